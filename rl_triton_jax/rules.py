"""What every primitive of the library shares: result types, batching, lowering.

Operands of a primitive all have the same rank, and each axis of each is full or 1: a size of 1 is
"shared along that axis" (a scalar gamma, a value per lane, an operand that vmap did not batch), so
nothing is ever copied to make shapes agree.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import ad, mlir
from jax.sharding import AbstractMesh, AxisType, ManualAxisType, NamedSharding, PartitionSpec


def same_varying(*arrays: jax.Array) -> list[jax.Array]:
    """Inside shard_map, marks all arrays as varying over the mesh axes that any of them varies
    over.

    Done before a primitive is bound, it makes the gradient of a replicated operand the sum over
    devices, which is what JAX's own operations do.
    """
    varying = [jax.typeof(x).manual_axis_type.varying for x in arrays]
    union = frozenset[str]().union(*varying)
    return [
        jax.lax.pcast(x, tuple(sorted(union - v)), to="varying") if union - v else x
        for x, v in zip(arrays, varying, strict=True)
    ]


def result_type(
    shape: tuple[int, ...], dtype, operands: Sequence[ShapedArray], replicated: Sequence[int]
) -> ShapedArray:
    """The type of a result: sharded and varying like the operands, but not over these axes."""
    mesh = next((x.sharding.mesh for x in operands if not x.sharding.mesh.empty), None)
    if mesh is None:
        return ShapedArray(shape, dtype)
    spec: list = [None] * len(shape)
    for x in operands:
        for i, name in enumerate(x.sharding.spec):
            if i not in replicated and name is not None and x.shape[i] == shape[i]:
                spec[i] = name
    varying = frozenset[str]().union(*(x.manual_axis_type.varying for x in operands))
    return ShapedArray(
        shape,
        dtype,
        sharding=NamedSharding(mesh, PartitionSpec(*spec)),
        manual_axis_type=ManualAxisType(varying=varying),
    )


def batch_together(args: Sequence, dims: Sequence[int | None], position: int) -> list:
    """Gives every operand the batch axis at this position, of size 1 where it has none."""
    return [
        jnp.expand_dims(x, position)
        if d is None
        else x
        if d == position
        else jnp.moveaxis(x, d, position)
        for x, d in zip(args, dims, strict=True)
    ]


def batch_axis(dims: Sequence[int | None]) -> int:
    """Where the first operand that is batched has the batch axis."""
    return next(d for d in dims if d is not None)


def zero_tangent(x: jax.Array) -> ad.Zero:
    """The tangent of what does not move."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def unbroadcast(x: jax.Array, to: ShapedArray) -> jax.Array:
    """A cotangent of full shape as an operand's: summed over the axes that it is shared along."""
    pairs = enumerate(zip(x.shape, to.shape, strict=True))
    axes = tuple(i for i, (have, want) in pairs if have != want)
    x = jnp.sum(x, axes, keepdims=True) if axes else x
    explicit = AxisType.Explicit in to.sharding.mesh.axis_types
    if explicit and jax.typeof(x).sharding != to.sharding:
        return jax.sharding.reshard(x, to.sharding)
    return x


def lower_as(fun: Callable) -> Callable:
    """A lowering rule that traces `fun` on plain arrays: no mesh, no manual axes.

    Inside the rule the operands are what one device or the partitioner sees, so the types that
    shard_map and explicit sharding put on them would only get in the way.
    """

    def rule(ctx, *args, **params):
        plain = [ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return mlir.lower_fun(fun, multiple_results=True)(
                ctx.replace(avals_in=plain), *args, **params
            )

    return rule
