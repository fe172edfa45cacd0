"""A small run of an operation's kernels, for tools that watch a process:
`python -m tests.gpu.every_kernel gae`.

The operation and its derivative, time-major and batch-major, with masked rows, and with time
split over programs; ragged tiles. Results are not looked at.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import rl_triton_jax
from tests.inputs import OPTIONS, make


def run(op, options, shape, axis):
    arguments = make(op, options, shape, axis, rng=np.random.default_rng(0))
    arrays = {k: jnp.asarray(x) for k, x in arguments.items() if isinstance(x, np.ndarray)}
    static = {k: x for k, x in arguments.items() if k not in arrays}
    moving = {k: x for k, x in arrays.items() if x.dtype == jnp.float32 and k != "mask"}

    def total(moving):
        given = arrays | moving
        outputs = getattr(rl_triton_jax, op)(**given, **static, implementation="triton")
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(outputs))

    jax.block_until_ready(jax.jit(jax.value_and_grad(total))(moving))


def main(op):
    masked = [options for options in OPTIONS[op] if "mask" in options][:1]
    for options in (OPTIONS[op][1], *masked):
        for length in (45, 300):  # in one block, in several
            run(op, options, (length, 6), 0)
        for length in (45, 5000):
            run(op, options, (6, length), 1)


if __name__ == "__main__":
    main(sys.argv[1])
