"""A Triton kernel that moves an operation's bytes and scans nothing: what the memory system allows.

It reads every argument and writes every output once. Imported where there is a GPU only.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax_triton
import triton
import triton.language as tl

from rl_triton_jax.launch import availability
from rl_triton_jax.launch.triton import backend_options

TILES = ((256, 2), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8))
"""Steps and warps of a program; the fastest of them is the floor."""


@triton.jit
def floor_kernel(
    arguments,
    first,
    second,
    SIZES: tl.constexpr,
    REPEATS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program p has BLOCK steps; an argument has REPEATS numbers a step and SIZES in all."""
    start = tl.program_id(0) * BLOCK
    i = tl.arange(0, BLOCK)
    total = tl.full([BLOCK], 1.0, tl.float32)
    for k in tl.static_range(len(SIZES)):
        for j in tl.static_range(REPEATS[k]):
            at = start * REPEATS[k] + j * BLOCK + i
            total += tl.load(arguments[k] + at, mask=at < SIZES[k], other=0).to(tl.float32)
    at = start + i
    tl.store(first + at, total, mask=at < STEPS)
    if second is not None:
        tl.store(second + at, total + 1.0, mask=at < STEPS)


def floor(
    arguments: Mapping[str, jax.Array], outputs: Sequence[jax.ShapeDtypeStruct], tile: tuple
) -> Callable:
    """The function of the arguments that launches it with one of `TILES`."""
    block, warps = tile
    steps = outputs[0].size
    compute_capability = availability.compute_capability()

    def launch(arguments):
        absent = {} if len(outputs) > 1 else {"second": None}
        return jax_triton.triton_call(
            tuple(arguments.values()),
            kernel=floor_kernel,
            out_type=tuple(outputs),
            grid=(triton.cdiv(steps, block),),
            name="floor",
            compute_capability=compute_capability,
            backend_options=backend_options(warps, compute_capability),
            SIZES=tuple(x.size for x in arguments.values()),
            REPEATS=tuple(max(x.size // steps, 1) for x in arguments.values()),
            STEPS=steps,
            BLOCK=block,
            **absent,
        )

    return launch
