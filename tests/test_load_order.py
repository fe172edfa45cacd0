"""That all loads of a kernel are on their way before anything waits for one; no GPU needed.

Memory takes as long for all as for one. Where the assembler moved loads down behind what waits for
others, programs took up to twice as long on a GPU; nothing else shows it, results do not.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from rl_triton_jax.launch import availability
from tests import test_kernel_budget as budget

pytestmark = budget.pytestmark

SHAPES = {"short": budget.SHAPE, "large": budget.LARGE, "wide": (512, 16384)}
ESTIMATORS = [op for op in budget.CALLS if op != "retrace_from_policy"]
"""A policy's tables are read in pieces."""


def may_be_late(kernel, shape, columns, count):
    """How many of a kernel's loads may come after the first wait: of programs with many rows, for
    want of registers; in derivatives, flags that only results ask for."""
    if columns and shape == "large":
        return count * (0.3 if kernel == "lambda_returns_vjp" else 0.15)
    return 2 if kernel.endswith("_vjp") else 0


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
def test_loads_come_first(op, shape, columns):
    for kernel, params in budget.launches(op, columns, 90, SHAPES[shape]).items():
        late, count = behind_a_wait(budget.compiled(**params).asm["cubin"])
        assert count > 0
        assert late <= may_be_late(kernel, shape, columns, count), f"{kernel}: {late} of {count}"


HELD = {"vtrace": ("log_rho",), "retrace": ("log_rho",), "linear_recurrence": ("a",)}


@pytest.mark.parametrize("op", budget.CALLS)
def test_coefficients_wait(op):
    """Those that are read for every row; not flags, which cost no product."""
    for kernel, params in budget.launches(op, True, 90, budget.SHAPE).items():
        assert params["plan"].held == HELD.get(op, ()), kernel


def test_what_waits_in_ptx():
    types = {"gamma": jnp.float32, "terminated": jnp.bool_, "a": jnp.int32}
    operands = {name: jax.ShapeDtypeStruct((3,), dtype) for name, dtype in types.items()}
    assert availability.can_hold(True, operands) == ("gamma", "a")
    assert availability.can_hold(False, operands) == ()
