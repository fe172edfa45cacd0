"""`retrace_from_policy` as a primitive, so that one kernel can read the tables and run the scan.

It is Retrace behind an expectation, a ratio and two look-ups. A kernel does all of it at once;
everywhere else, and in every derivative, it is those parts one after the other, the last one the
primitive `retrace`. The operands have an axis of actions behind all others, of size 1 where they
are no tables.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, xla

from rl_triton_jax import config, rules
from rl_triton_jax.primitives import estimators, lowering
from rl_triton_jax.primitives.linear_op import accumulation_type
from rl_triton_jax.recurrences.policy import TABLES, without_tables
from rl_triton_jax.recurrences.rows import with_time

p = Primitive("retrace_from_policy")
p.multiple_results = True
p.def_impl(partial(xla.apply_primitive, p))


def retrace_from_policy(
    operands: Mapping[str, jax.Array], *, axis: int, out_dtype: Any, **params: Any
) -> list[jax.Array]:
    """What the public operation calls, as others call a `LinearOp`."""
    wide = {n: x if n in TABLES else x[..., None] for n, x in operands.items()}
    params |= dict(
        operands=tuple(wide),
        results=(("targets", wide["rewards"].shape[axis], out_dtype),),
        axis=axis,
        dtype=accumulation_type(out_dtype),
        actions=wide["q_values"].shape[-1],
    )
    run = _in_parts if config.is_unfused() else p.bind
    return [x[..., 0] for x in run(*rules.same_varying(*wide.values()), **params)]


def _in_parts(*arrays, operands, results, axis, dtype, actions, implementation, **options):
    """Retrace behind what it needs of the tables."""
    given = without_tables(dict(zip(operands, arrays, strict=True)), dtype)
    ((_, _, out_dtype),) = results
    return estimators.retrace(
        given, axis=axis, out_dtype=out_dtype, implementation=implementation, **options
    )


@p.def_abstract_eval
def _types(*avals, axis, results, **_):
    lanes = jnp.broadcast_shapes(*(x.shape[:-1] for x in avals))
    return [
        rules.result_type((*with_time(lanes, axis, rows), 1), dtype, avals, replicated=axis)
        for _, rows, dtype in results
    ]


def _batch(args, dims, *, axis, **params):
    position = rules.batch_axis(dims)
    if position == max(x.ndim for x in args) - 1:
        position = 0  # actions stay the last axis
    args = rules.batch_together(args, dims, position)
    return p.bind(*args, axis=axis + (position <= axis), **params), [position]


def _jvp(primals, tangents, *, operands, **params):
    out = p.bind(*primals, operands=operands, **params)
    moving = {n: x for n, x in enumerate(tangents) if type(x) is not ad.Zero}

    def of(moved):
        arrays = (moved.get(n, x) for n, x in enumerate(primals))
        return _in_parts(*arrays, operands=operands, **params)

    if not moving:
        return out, [rules.zero_tangent(x) for x in out]
    at = {n: primals[n] for n in moving}
    return out, jax.jvp(of, (at,), (moving,))[1]


lowering.register(p, _in_parts)
batching.primitive_batchers[p] = _batch
ad.primitive_jvps[p] = _jvp
