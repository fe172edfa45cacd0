"""The table of transformations, lowered for a GPU that is not there.

Triton's interpreter takes what its compiler does not: operands that lanes share in one call and not
in another have other types. Here all kernels of a check are compiled: of those in which arguments
move alone, or of all if the whole table is asked for; `tests.gpu` runs them.
"""

from functools import partial

import pytest

from tests.test_lowering import for_cuda, kernels, lower, needs_cuda_plugin, small_tiles
from tests.transforms import CHECKS, WITHOUT_KERNELS, arguments, operation
from tests.transforms.checks import WHOLE_TABLE

pytestmark = [needs_cuda_plugin, for_cuda]

__all__ = ["small_tiles"]

ALONE = [f"{transform} one argument alone" for transform in ("jvp by", "grad by", "vmap of")]
PARAMETERS = [
    (name, case)
    for name in (CHECKS if WHOLE_TABLE else ALONE)
    if name not in WITHOUT_KERNELS and not CHECKS[name].eager
    for case in CHECKS[name].cases
]


@pytest.mark.parametrize(("name", "case"), PARAMETERS)
def test_kernels_compile(name, case):
    check = CHECKS[name]
    with check.context():
        lowered = lower(partial(check.function, operation(case, "triton")), arguments(case))
    assert kernels(lowered) > 0
