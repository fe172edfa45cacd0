"""Every operation through every transformation of the table in `tests.transforms`."""

import functools

import jax
import numpy as np
import pytest

from rl_triton_jax import reference
from tests.transforms import CASES, CHECKS, OPERATIONS, PLAIN, arguments, operation, oracle

# The implementation matters to lowering and to derivatives by coefficients, not to how the
# primitives transform: the whole table runs on the default, the other one where it can differ.
IMPLEMENTATIONS = {
    None: tuple(CHECKS),
    "associative_scan": (
        PLAIN,
        f"{PLAIN} of vmap, odd arguments",
        f"{PLAIN} of vmap, a knob",
        "jit over devices",
    ),
}
PARAMETERS = [
    (name, case, implementation)
    for implementation, names in IMPLEMENTATIONS.items()
    for case in (CASES if implementation is None else OPERATIONS)
    for name in names
    if case in CHECKS[name].cases
]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@functools.cache
def expected(name, case):
    """The oracle's answer; many checks share one."""
    return CHECKS[name](oracle(case), arguments(case))


def same(got, want):
    assert jax.tree.map(np.shape, jax.tree.leaves(got)) == jax.tree.map(
        np.shape, jax.tree.leaves(want)
    )
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "case", "implementation"), PARAMETERS)
def test_transform(name, case, implementation):
    check = CHECKS[name]
    got = check(operation(case, implementation), arguments(case))
    same(got, expected(check.expect, case))


@pytest.mark.parametrize("case", OPERATIONS)
def test_reference(case):
    got = CHECKS[PLAIN](operation(case, namespace=reference), arguments(case))
    same(got, expected(PLAIN, case))


def test_every_expectation_runs_where_it_is_needed():
    for check in CHECKS.values():
        assert set(check.cases) <= set(CHECKS[check.expect].cases)
