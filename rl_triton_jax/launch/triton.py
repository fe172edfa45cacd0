"""The launch itself: the only module that imports jax_triton."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax_triton
import numpy as np
import triton.language as tl

from rl_triton_jax.kernels import scan
from rl_triton_jax.launch.availability import can_split
from rl_triton_jax.launch.configs import REGISTERS, choose
from rl_triton_jax.launch.plan import Plan, make_plan
from rl_triton_jax.launch.slim import slim

RESULTS = 4
"""How many results a kernel has room for."""

TYPES = {"float32": tl.float32, "float64": tl.float64, "int32": tl.int32, "int64": tl.int64}

PTX_VERSIONS = {103: 88, 120: 87, 100: 86}
"""Lowest PTX version per compute capability; 80 for all before. Triton picks its own toolchain's
version, which an older CUDA rejects."""


def backend_options(
    warps: int, compute_capability: int | None, registers: int = REGISTERS
) -> dict[str, Any]:
    """What Triton's compiler is told; None is no CUDA."""
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}
    if compute_capability is not None:
        options["ptx_version"] = PTX_VERSIONS.get(compute_capability, 80)
        options["maxnreg"] = registers
    return options


def call(
    name: str,
    operands: Mapping[str, jax.Array],
    results: Mapping[str, jax.ShapeDtypeStruct],
    *,
    axis: int,
    dtype: Any,
    compute_capability: int | None,
    has_actions: bool,
    **options: Any,
) -> list[jax.Array]:
    """Launches the kernel of a primitive, `<op>` or `<op>_vjp`, on arrays of one device.

    `compute_capability` is None where there is no CUDA. Operands and results may have an axis of
    actions behind all others, of size 1 where they are no tables.
    """
    out = list(results.values())
    if 0 in out[0].shape:
        return [jnp.zeros(x.shape, x.dtype) for x in out]
    on_cuda = compute_capability is not None
    plan = make_plan(
        name,
        {operand: x.shape for operand, x in operands.items()},
        {operand: x.dtype for operand, x in operands.items()},
        {result: x.shape for result, x in results.items()},
        axis=axis,
        has_actions=has_actions,
        dtype=TYPES[np.dtype(dtype).name],
        index=(tl.int32, tl.int64),
        largest_log=0.99 * float(np.log(np.finfo(dtype).max)) if np.dtype(dtype).kind == "f" else 0,
        holds=on_cuda,  # by PTX
        can_split=can_split(on_cuda, np.dtype(dtype).name, tuple(operands)),
        options=options,
    )
    config = choose(plan)
    tiled = config.tile(plan)
    constants: dict[str, Any] = {f"r{i}": None for i in range(len(out), RESULTS)}
    constants |= dict(config.constants)
    if config.parts > 1:
        words = [_words(tiled)]
    else:
        words, constants["words"] = [], None

    def launch(*arrays: jax.Array) -> list[jax.Array]:
        pointers: Any = arrays
        with warnings.catch_warnings():
            # what is to replace it, a Ref, cannot be made inside a lowering rule
            warnings.filterwarnings("ignore", "zeroed_outputs is deprecated", DeprecationWarning)
            return jax_triton.triton_call(
                pointers,
                kernel=getattr(scan, config.kernel),
                out_type=out + words,
                zeroed_outputs=tuple(range(len(out), len(out + words))),
                grid=(config.programs,),
                name=f"rl_triton_{name}",
                compute_capability=compute_capability,
                backend_options=backend_options(config.warps, compute_capability, config.registers),
                plan=tiled,
                **constants,
            )

    return slim(launch, out + words, *operands.values())[: len(out)]


def _words(plan: Plan) -> jax.ShapeDtypeStruct:
    """What the programs that share a window tell each other: 64 bits a lane for every part, and for
    every group of them if there are several."""
    count = plan.parts + (plan.groups if plan.groups > 1 else 0)
    return jax.ShapeDtypeStruct((count, plan.outer_size * plan.lanes, 2), jnp.int32)
