"""vmap: of every argument, over every axis, nested, with derivatives and named axes."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.transforms import loops
from tests.transforms.cases import FLAGS, OPERATIONS
from tests.transforms.checks import EITHER, PLAIN, around, check
from tests.transforms.pieces import (
    both,
    copies,
    differentiable,
    direction,
    even,
    gradient,
    knobs,
    leader,
    loss,
    odd,
    vmapped,
)

BATCHED = {
    "even arguments": (even, OPERATIONS),
    "odd arguments": (odd, OPERATIONS),
    "all arguments": (list, EITHER),
    "a knob": (lambda args: knobs(args)[:1], OPERATIONS),
    "all but the flags": (lambda args: [n for n in args if n not in FLAGS], EITHER),
}
for which, (choose, cases) in BATCHED.items():

    @check(f"{PLAIN} of vmap, {which}", cases=cases)
    def _(op, args, choose=choose):
        names = choose(args)
        return both(vmapped(op, args, names), copies(args, 2, names))

    @check(f"vmap of {PLAIN}, {which}", cases=EITHER)
    def _(op, args, choose=choose):
        names = choose(args)
        return vmapped(functools.partial(both, op), args, names)(copies(args, 2, names))


@check("vmap of one argument alone")
def _(op, args):
    return {n: vmapped(op, args, [n])(copies(args, 2, [n])) for n in args}


@check("vmap over one knob in vmap over the other", cases=EITHER)
def _(op, args):
    one, other = ([knob] for knob in knobs(args))
    f = vmapped(vmapped(functools.partial(both, op), args, one), args, other)
    return f(copies(copies(args, 3, one), 2, other))


@check("vmap in vmap, even and odd arguments")
def _(op, args):
    f = vmapped(vmapped(op, args, even(args)), args, odd(args))
    return both(f, copies(copies(args, 2, even(args)), 3, odd(args)))


@check("vmap in vmap in vmap", cases=EITHER)
def _(op, args):
    one, other = ([knob] for knob in knobs(args))
    f = vmapped(vmapped(vmapped(op, args, one), args, other), args)
    return f(copies(copies(copies(args, 2, one), 2, other), 2))


@check("vmap, in_axes=-1 and out_axes=-1")
def _(op, args):
    return jax.vmap(op, -1, -1)(copies(args, 2, axis=2))


@check("vmap, in_axes=1 and out_axes=1", cases=EITHER)
def _(op, args):
    names = [n for n in args if args[n].ndim]
    f = jax.vmap(op, ({n: 1 if n in names else None for n in args},), 1)
    return f(copies(args, 2, names, axis=1))


@check("vmap, another axis for every other argument", cases=EITHER)
def _(op, args):
    f = jax.vmap(op, ({n: 0 if n in even(args) else -1 for n in args},))
    return f(copies(copies(args, 2, even(args)), 2, odd(args), axis=2))


def lane_axes(args):
    return {n: {2: 1, 1: 0, 0: None}[x.ndim] for n, x in args.items()}


@around("lanes by vmap")
def _(op, args):
    return jax.vmap(op, (lane_axes(args),), 1)


@around("time on the last axis")
def _(op, args):
    def f(args):
        out = op.with_options(axis=-1)({n: x.T for n, x in args.items()})
        return jax.tree.map(jnp.transpose, out)

    return f if op.function.__module__ != loops.__name__ else op


@check("vmap of jvp over tangents", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.vmap(lambda t: jax.jvp(f, (moving,), (t,))[1])(copies(direction(moving), 2))


@check("vmap of vjp over cotangents")
def _(op, args):
    f, moving = differentiable(op, args)
    out, vjp = jax.vjp(f, moving)
    return jax.vmap(vjp)(jax.tree.map(lambda y: jnp.stack([y, 2 - y]), direction(out)))


@check("hessian of vmap", cases=EITHER)
def _(op, args):
    names = even(args)
    batch = copies(args, 2, names)
    f = loss(vmapped(op, args, names))
    return jax.hessian(lambda x: f(batch | x))({n: batch[n] for n in knobs(args)})


def over_seeds(op):
    """What a data-parallel update does, with the seed's index for a scale."""

    def f(args):
        args = args | {leader(args): args[leader(args)] * (1.0 + lax.axis_index("seed"))}
        return lax.psum(op(args), "seed"), lax.pmean(gradient(op, args), "seed")

    return f


@check("named axis, psum and pmean")
def _(op, args):
    return vmapped(over_seeds(op), args, axis_name="seed")(copies(args, 2))


@check("gradient of psum over a named axis", cases=EITHER)
def _(op, args):
    names = odd(args)
    f = vmapped(lambda args: lax.psum(op(args), "seed"), args, names, axis_name="seed")
    return gradient(f, copies(args, 2, names))
