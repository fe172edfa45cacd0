"""Every operation against its float64 oracle: option sets, shapes, types, implementations."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from tests.inputs import CASES, LAYOUTS, OPTIONS, call, make

IMPLEMENTATIONS = ("scan", "associative_scan")
SHAPES = [*itertools.product(LAYOUTS, (1, 2)), ("TN", 33), ("NT", 33)]

# Largest error, relative to the largest number of the output (or to 1). The short types are
# computed in float32 and rounded once.
TOLERANCE = {
    "float64": 1e-12,
    "float32": 2e-6,
    "bfloat16": 2**-8 + 2e-6,
    "float16": 2**-11 + 2e-6,
}


def check(op, options, shape, axis, dtype, implementation):
    dtype = jnp.dtype(dtype)
    arguments = make(op, options, shape, axis, rng=np.random.default_rng(7), dtype=dtype)
    expected = getattr(oracles, op)(**arguments)
    got = call(op, **arguments, implementation=implementation, dtype=dtype, jit=True)
    assert getattr(got, "_fields", None) == getattr(expected, "_fields", None)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.dtype == dtype
        scale = np.max(abs(y), initial=1.0)
        atol = TOLERANCE[dtype.name]
        np.testing.assert_allclose(x.astype(np.float64) / scale, y / scale, rtol=0, atol=atol)


# Compiling takes nearly all of the time, so below, what is not crossed takes turns.


def in_turn(i):
    return IMPLEMENTATIONS[i % 2]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("op", "options"), CASES)
def test_option_sets(op, options, implementation):
    layouts = list(LAYOUTS.values())
    shape, axis = layouts[OPTIONS[op].index(options) % len(layouts)](7)
    check(op, options, shape, axis, "float64", implementation)


@pytest.mark.parametrize(("layout", "length"), SHAPES)
@pytest.mark.parametrize("op", OPTIONS)
def test_shapes(op, layout, length):
    i = SHAPES.index((layout, length))
    options, implementation = OPTIONS[op][i % len(OPTIONS[op])], in_turn(i)
    check(op, options, *LAYOUTS[layout](length), "float64", implementation)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", OPTIONS)
def test_types(op, dtype):
    check(op, OPTIONS[op][-1], (7, 3), 0, dtype, in_turn(list(OPTIONS).index(op)))
