"""How a primitive becomes operations of a device: an XLA form, or the launch of a kernel."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import dispatch
from jax.extend.core import Primitive
from jax.interpreters import mlir

from rl_triton_jax import config, rules
from rl_triton_jax.launch import availability
from rl_triton_jax.launch.plan import BEHIND
from rl_triton_jax.primitives import sharding
from rl_triton_jax.recurrences.rows import (
    Arrays,
    Rows,
    Solver,
    lanes_of,
    no_lanes,
    result_types,
    shape_of,
)
from rl_triton_jax.recurrences.solvers import SOLVERS

type Recurrence = Callable[[Rows], Arrays]


def register(p: Primitive, unfused: Callable) -> None:
    """Registers the lowerings of a primitive.

    `unfused` does the same in plain JAX, in the way that its argument `implementation` names.
    """
    # custom_partitioning asks for the devices while it is lowered
    dispatch.prim_requires_devices_during_lowering.add(p)
    mlir.register_lowering(p, partial(_lower, p.name, unfused, None))
    for platform in ("cpu", "cuda", "rocm"):
        mlir.register_lowering(p, partial(_lower, p.name, unfused, platform), platform=platform)


def by_solver(recurrence: Recurrence) -> Callable:
    """A recurrence in plain JAX, by the solver of an implementation's name."""

    def unfused(*arrays: jax.Array, implementation: str, **params: Any) -> list[jax.Array]:
        return evaluate(recurrence, SOLVERS[implementation], *arrays, **params)

    return unfused


def evaluate(
    recurrence: Recurrence,
    solver: Solver,
    *arrays: jax.Array,
    operands: tuple[str, ...],
    results: tuple[tuple[str, int, Any], ...],
    axis: int,
    dtype: Any,
    **options: Any,
) -> list[jax.Array]:
    """The results of a recurrence from plain JAX operations; the parameters are a primitive's."""
    length, actions = arrays[0].shape[axis], options.get("actions")
    options["wanted"] = tuple(name for name, _, _ in results)
    x = Rows(
        dict(zip(operands, arrays, strict=True)),
        length=length,
        axis=axis,
        dtype=dtype,
        options=options,
        solver=solver,
    )
    if 0 in x.shape:
        out = result_types(results, x.lanes, axis, actions)
        return [jnp.zeros(y.shape, y.dtype) for y in out.values()]
    found = {name: y for name, y in recurrence(x).items() if y is not None}

    def finish(name: str, rows: int, out_dtype: Any) -> jax.Array:
        def all_lanes(y: jax.Array) -> jax.Array:
            return jnp.broadcast_to(y, shape_of(name, x.lanes, axis, y.shape[axis], actions))

        y = all_lanes(found[name])
        if rows == length + 1:
            behind = all_lanes(found[BEHIND[name]])
            return lax.concatenate([x.counted(y), behind], axis).astype(out_dtype)
        return (x.counted(y) if rows == length else y).astype(out_dtype)

    return [finish(*result) for result in results]


def _lower(
    name: str, unfused: Callable, platform: str | None, ctx, *args, implementation, **params
):
    why_no_kernel = availability.why_not(platform, asked=implementation == "triton")
    if why_no_kernel is None and sharding.is_partly_manual(ctx.module_context.axis_context):
        why_no_kernel = "it cannot be partitioned in a shard_map over some axes of a mesh"
    if why_no_kernel is None and implementation is None:
        why_no_kernel = _why_slow(ctx, platform, **params)
    chosen = config.resolve(implementation, platform, name, why_no_kernel)
    if chosen == "triton":
        apart = no_lanes(params["axis"], ctx.avals_in[0].ndim, params.get("actions"))
        body = sharding.over_lanes(partial(_launch, name, platform, **params), apart)
    else:
        body = partial(unfused, implementation=chosen, **params)
    return rules.lower_as(body)(ctx, *args)


def _why_slow(ctx, platform, *, operands, axis, dtype, **_) -> str | None:
    length = ctx.avals_in[0].shape[axis]
    lanes = math.prod(lanes_of(dict(zip(operands, ctx.avals_in, strict=True)), axis))
    split = availability.can_split(platform == "cuda", np.dtype(dtype).name, operands)
    return availability.why_slow(length, lanes, split=split)


def _launch(
    name: str,
    platform: str,
    *arrays: jax.Array,
    operands: tuple[str, ...],
    results: tuple[tuple[str, int, Any], ...],
    axis: int,
    actions: int | None = None,
    **params: Any,
) -> list[jax.Array]:
    from rl_triton_jax.launch import triton  # where Triton is not installed, nothing gets here

    params.pop("data", None)
    given = dict(zip(operands, arrays, strict=True))
    return triton.call(
        name,
        given,
        result_types(results, lanes_of(given, axis), axis, actions),
        axis=axis,
        has_actions=actions is not None,
        compute_capability=availability.compute_capability() if platform == "cuda" else None,
        **params,
    )
