"""A small run of every kernel, for tools that watch a process: `python -m tests.gpu.every_kernel`,
or of those of the operations that are named.

An operation and its derivative by the data, time-major and batch-major, with time split over
programs, and with masked rows, where it never is; ragged tiles. Results are not looked at. All of
an operation is one program for XLA, since such tools take their time for every module.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import rl_triton_jax
from tests.inputs import DATA, OPTIONS, make

SHAPES = (((45, 6), 0), ((700, 6), 0), ((17_000, 3), 0), ((6, 45), 1), ((6, 5000), 1))
"""And the axis of time: in one block, in several, in groups of them."""

MASKED = (((700, 6), 0), ((6, 5000), 1))


def draw(op, options, shape, axis):
    """The arrays of a call, and what it is linear in apart from the others; its static options."""
    arguments = make(op, options, shape, axis, rng=np.random.default_rng(0))
    arrays = {k: x for k, x in arguments.items() if isinstance(x, np.ndarray)}
    static = {k: x for k, x in arguments.items() if k not in arrays}
    moving = {k: x for k, x in arrays.items() if k in DATA}
    still = {k: x for k, x in arrays.items() if k not in DATA}
    return moving, still, static


def run(op):
    calls = [draw(op, OPTIONS[op][1], *shape) for shape in SHAPES]
    for options in [options for options in OPTIONS[op] if "mask" in options][:1]:
        calls += [draw(op, options, *shape) for shape in MASKED]

    def total(moving, still):
        outputs = [
            getattr(rl_triton_jax, op)(**x, **y, **static, implementation="triton")
            for x, y, (_, _, static) in zip(moving, still, calls, strict=True)
        ]
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(outputs))

    moving, still, _ = map(list, zip(*calls, strict=True))
    jax.block_until_ready(jax.jit(jax.value_and_grad(total))(moving, still))


if __name__ == "__main__":
    for op in sys.argv[1:] or OPTIONS:
        run(op)
        print(op, "ran", flush=True)
