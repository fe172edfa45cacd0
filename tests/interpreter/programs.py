"""Kernels in programs that JAX compiles: what the table of transformations does with them."""

import jax
import jax.numpy as jnp

from rl_triton_jax.launch import triton as launch
from tests import transforms
from tests.interpreter.kernels import same
from tests.interpreter.launch import launched, small

PROGRAMS = (
    transforms.PLAIN,
    "reverse over reverse",
    "forward over reverse",
    "jvp",
    f"{transforms.PLAIN} of vmap, odd arguments",
    f"vmap of {transforms.PLAIN}, odd arguments",
    "vmap in vmap, even and odd arguments",
    "vmap of vjp over cotangents",
    "scan over results",
    "scan of checkpoint",
    "shard_map",
    "gradient inside shard_map",
    "jit over devices",
    "jit over devices, scan",
    "explicit mesh",
    "export, serialised",
)
"""Compiling takes the time: tests do these with gae, and the first with all other cases."""


def checks_of_table(case, names=tuple(transforms.CHECKS), x64=True):
    """Those that apply to the case, in float64 or in float32."""
    for name in names:
        if case not in transforms.CHECKS[name].cases:
            continue

        def check(name=name):
            transform, launch.choose, before = transforms.CHECKS[name], small, len(launched)
            with jax.enable_x64(x64):
                arguments = transforms.arguments(case)
                got = transform(transforms.operation(case, "triton"), arguments)
                expected = transforms.CHECKS[transform.expect](transforms.oracle(case), arguments)
                same(jax.tree.map(jnp.asarray, got), expected)
            assert (len(launched) > before) == (name not in transforms.WITHOUT_KERNELS)

        yield f"{name}, {case}", check


def checks_of_others():
    """In float32, save where coefficients are larger than 1, so that rounding errors grow."""
    for case in transforms.CASES:
        if case != "gae":
            x64 = transforms.CASES[case].name == "linear_recurrence"
            yield from checks_of_table(case, PROGRAMS[:1], x64)
