"""Branches, loops and checkpoints."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.transforms.checks import EITHER, around, check
from tests.transforms.pieces import (
    both,
    copies,
    direction,
    gradient,
    knobs,
    leader,
    repeated,
    scanned,
    total,
    vmapped,
)


def nothing(op):
    """A branch not taken."""
    return lambda args: jax.tree.map(jnp.zeros_like, op(args))


def true(args):
    """A condition that is traced."""
    return args[leader(args)][0, 0] < 1e3


@around("cond", cases=EITHER)
def _(op, args):
    return lambda args: lax.cond(true(args), op, nothing(op), args)


@around("switch", cases=EITHER)
def _(op, args):
    branches = (nothing(op), op, nothing(op))
    return lambda args: lax.switch(true(args).astype(int), branches, args)


@around("fori_loop", cases=EITHER)
def _(op, args):
    return lambda args: lax.fori_loop(0, 2, lambda i, _: op(args), nothing(op)(args))


around("checkpoint")(lambda op, args: jax.checkpoint(op))


@around("checkpoint, own primitive saved")
def _(op, args):
    return jax.checkpoint(op, policy=lambda p, *_, **__: p.name == op.function.__name__)


@around("checkpoint, named result saved", cases=EITHER)
def _(op, args):
    policy = jax.checkpoint_policies.save_only_these_names("out")
    return jax.checkpoint(lambda args: checkpoint_name(op(args), "out"), policy=policy)


@around("checkpoint, dots saved", cases=EITHER)
def _(op, args):
    return jax.checkpoint(op, policy=jax.checkpoint_policies.dots_saveable)


@check("scan over arguments", cases=EITHER)
def _(op, args):
    def body(carry, args):
        out = op(args)
        return carry + total(out), out

    def f(args):
        carry, out = lax.scan(body, jnp.zeros(()), args)
        return carry[None], out

    return both(f, copies(args, 3))


@check("scan over results")
def _(op, args):
    return both(scanned(op), args)


@check("scan over results, unrolled", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(scanned(op, unroll=3), args)


@check("scan of checkpoint", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(scanned(op, jax.checkpoint), args)


@check("jvp of while_loop", cases=EITHER)
def _(op, args):
    body, start = repeated(op, args)

    def f(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1])), (0, x))[1]

    return jax.jvp(f, (start,), (direction(start),))


@check("vmap of fori_loop, another number of rounds each", cases=EITHER)
def _(op, args):
    body, start = repeated(op, args)
    return jax.vmap(lambda n: lax.fori_loop(0, n, lambda _, x: body(x), start))(jnp.arange(3))


@check("vmap of cond, another branch each", cases=EITHER)
def _(op, args):
    return jax.vmap(lambda yes, args: lax.cond(yes, op, nothing(op), args))(
        jnp.array([True, False]), copies(args, 2)
    )


@check("map in batches", cases=EITHER)
def _(op, args):
    return lax.map(op, copies(args, 3), batch_size=2)


@check("gradient of scan of checkpoint of vmap", cases=EITHER)
def _(op, args):
    names = [leader(args), *knobs(args)]
    return gradient(scanned(vmapped(op, args, names), jax.checkpoint), copies(args, 2, names))
