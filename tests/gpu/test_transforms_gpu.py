"""The table of transformations with the kernels, in float64: see `tests.transforms`.

Lanes are spread over the devices that there are, be it one.
"""

import jax
import pytest

from tests.test_transforms import double_precision, expected, same
from tests.transforms import CASES, CHECKS, arguments, operation

pytestmark = pytest.mark.gpu

__all__ = ["double_precision"]

PARAMETERS = [(name, case) for case in CASES for name in CHECKS if case in CHECKS[name].cases]


@pytest.mark.parametrize(("name", "case"), PARAMETERS)
def test_transform(name, case):
    check = CHECKS[name]
    got = check(operation(case, "triton"), arguments(case))
    with jax.default_device(jax.devices("cpu")[0]):  # compiles loops faster
        same(got, expected(check.expect, case))
