"""That all loads of a kernel are on their way before anything waits for one, and that no register
is spilled; no GPU needed.

Memory takes as long for all as for one. Where the assembler moved loads down behind what waits for
others, programs took up to twice as long on a GPU; nothing else shows it, results do not.
"""

import re

import pytest

from tests import test_kernel_budget as budget

pytestmark = budget.pytestmark

SHAPES = {
    "short": budget.SHAPE,
    "long": (8192, 64),
    "large": budget.LARGE,
    "wide": (512, 16384),
    "ragged": (300, 4096),
    "uneven": (200, 4096),
    "hundred": (100, 32768),
}
ESTIMATORS = [op for op in budget.CALLS if op != "retrace_from_policy"]
"""A policy's tables are read in pieces."""


def instructions(cubin):
    """(name, operands) of each, in order."""
    text = budget.said_of(cubin, "nvdisasm", "-c")
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?);", text)


def behind_a_wait(cubin):
    """How many loads of arrays come after something has waited for one, and how many there are.

    What waits reads a register that a load fills, or writes it: another load may, of lanes that
    the first one left out.
    """
    pending, early, count = set(), None, 0
    for name, operands in instructions(cubin):
        registers = [int(n) for n in re.findall(r"\bR(\d+)", operands)]
        is_load = name.startswith("LDG") and ".STRONG" not in name  # as words of programs are
        width = 4 if ".128" in name else 2 if ".64" in name else 1
        filled = set(range(registers[0], registers[0] + width)) if is_load else set()
        if early is None and pending & (filled | set(registers)):
            early = count
        pending |= filled
        count += is_load
    return count - early, count


@pytest.mark.parametrize("columns", [True, False], ids=budget.layout)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ESTIMATORS)
def test_loads_come_first(op, shape, columns, request):
    if (op, shape, columns) == ("discounted_returns", "hundred", False):
        late = pytest.mark.xfail(strict=True, reason="asks for its bootstrap once flags are there")
        request.applymarker(late)
    for kernel, params in budget.launches(op, columns, 90, SHAPES[shape]).items():
        cubin = budget.compiled(**params).asm["cubin"]
        late, count = behind_a_wait(cubin)
        assert count > 0
        assert budget.resources(cubin)["STACK"] == 0, f"{kernel} spills"
        assert late == 0, f"{kernel}: {late} of {count}"


@pytest.mark.parametrize(
    ("name", "dtype", "waits"),
    [
        ("gamma", "float32", True),
        ("log_rho", "bfloat16", True),
        ("a", "int32", True),
        ("terminated", "float32", True),
        ("terminated", "uint8", False),
        ("rewards", "float32", False),
    ],
)
def test_coefficients_wait(name, dtype, waits):
    """Flags that are bytes cost no product."""
    import triton.language as tl

    from rl_triton_jax.kernels import hold

    assert hold.is_factor(name, getattr(tl, dtype)) == waits
