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

AT_ONCE = {("lambda_returns_vjp", "columns"): 0.8}
"""The least part of a kernel's loads, where it is less than MOST."""
MOST = 0.85


def instructions(cubin):
    """(name, operands) of each, in order."""
    text = budget.said_of(cubin, "nvdisasm", "-c")
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?);", text)


def on_their_way(cubin):
    """How many loads of arrays are on their way at once, at most, and how many there are."""
    pending, most, count = {}, 0, 0  # register -> the number of the load that fills it
    for name, operands in instructions(cubin):
        registers = [int(n) for n in re.findall(r"\bR(\d+)", operands)]
        is_load = name.startswith("LDG") and ".STRONG" not in name  # as words of programs are
        arrived = {pending[n] for n in registers[is_load:] if n in pending}
        pending = {n: load for n, load in pending.items() if load not in arrived}
        if is_load:
            width = 4 if ".128" in name else 2 if ".64" in name else 1
            pending |= dict.fromkeys(range(registers[0], registers[0] + width), count)
            count += 1
            most = max(most, len(set(pending.values())))
    return most, count


@pytest.mark.parametrize("columns", [True, False], ids=budget.layout)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ESTIMATORS)
def test_loads_come_first(op, shape, columns):
    for kernel, params in budget.launches(op, columns, 90, SHAPES[shape]).items():
        most, count = on_their_way(budget.compiled(**params).asm["cubin"])
        least = AT_ONCE.get((kernel, budget.layout(columns)), MOST) * count
        assert most >= least > 0, f"{kernel}: {most} of {count} at once"


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
