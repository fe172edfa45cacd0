"""How a kernel is spread over devices: lanes are independent, time is not.

A kernel is opaque to the partitioner, which would gather its operands. `custom_partitioning` says
that lane axes may be split and that time may not; every device then launches on its own lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.interpreters.mlir import SPMDAxisContext
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


def is_partly_manual(axis_context: Any) -> bool:
    """Inside a shard_map over some of the mesh's axes; nothing can be partitioned there."""
    return isinstance(axis_context, SPMDAxisContext) and set(axis_context.manual_axes) != set(
        axis_context.mesh.axis_names
    )


def over_lanes(
    body: Callable[..., Sequence[jax.Array]], apart: Sequence[int]
) -> Callable[..., Any]:
    """`body`, launched by every device on its own lanes of operands and results.

    Args:
      body: from operands in normal form (each axis full or 1) to a list of results of full lanes.
      apart: the axes that hold no lanes.
    """

    def rule(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> SdyShardingRule:
        full = results[0].shape

        def factors(kind: str, number: int, shape: Sequence[int]) -> ArrayMapping:
            return ArrayMapping(
                *(
                    f"lane{i}" if i not in apart and n == full[i] else f"{kind}{number}_{i}"
                    for i, n in enumerate(shape)
                )
            )

        return SdyShardingRule(
            tuple(factors("operand", k, x.shape) for k, x in enumerate(operands)),
            tuple(factors("result", k, x.shape) for k, x in enumerate(results)),
            need_replication_factors=tuple(
                f"{kind}{k}_{i}"
                for kind, arrays in (("operand", operands), ("result", results))
                for k, _ in enumerate(arrays)
                for i in apart
            ),
        )

    def partition(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> tuple:
        # The results decide: the cotangent of a plain sum arrives replicated, and would win if the
        # operands did.
        full = results[0].shape
        spec: list[Any] = [None] * len(full)
        for x in results:
            for i, names in enumerate(x.sharding.spec):
                if i not in apart and names is not None:
                    spec[i] = names

        def sharding(shape: Sequence[int]) -> NamedSharding:
            names = [spec[i] if n == full[i] else None for i, n in enumerate(shape)]
            return NamedSharding(mesh, PartitionSpec(*names))

        def on_one_device(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
                return tuple(body(*arrays))

        return (
            mesh,
            on_one_device,
            tuple(sharding(x.shape) for x in results),
            tuple(sharding(x.shape) for x in operands),
        )

    call = custom_partitioning(lambda *arrays: tuple(body(*arrays)))
    call.def_partition(partition=partition, sharding_rule=rule)
    return call
