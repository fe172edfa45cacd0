"""Every check of the table of transformations, lowered for a GPU that is not there.

Triton's interpreter takes what its compiler does not: operands that lanes share in one call and not
in another have other types. Here all kernels of all checks are compiled; `tests.gpu` runs them.
"""

from functools import partial

import pytest

from tests.test_lowering import for_cuda, kernels, lower, needs_cuda_plugin, small_tiles
from tests.transforms import CHECKS, WITHOUT_KERNELS, arguments, operation

pytestmark = [needs_cuda_plugin, for_cuda]

__all__ = ["small_tiles"]

PARAMETERS = [
    (name, case)
    for name, check in CHECKS.items()
    if name not in WITHOUT_KERNELS and not check.eager
    for case in check.cases
]


@pytest.mark.parametrize(("name", "case"), PARAMETERS)
def test_kernels_compile(name, case):
    check = CHECKS[name]
    with check.context():
        lowered = lower(partial(check.function, operation(case, "triton")), arguments(case))
    assert kernels(lowered) > 0
