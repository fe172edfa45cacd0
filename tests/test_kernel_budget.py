"""What the compiler makes of the kernels: registers, memory, code size, loads; no GPU needed.

`python -m tests.test_kernel_budget` prints the lines of `BUDGETS` anew, with a quarter more than it
sees. Do that after a change that is meant to cost more, and look at what it costs.
"""

import importlib.util
import math
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rl_triton_jax
from rl_triton_jax.launch import availability

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("triton", "jax_triton"))),
    reason="needs triton and jax_triton",
)

SHAPE = (128, 4096)
LONG = {True: (65536, 64), False: (32768, 64)}
"""Time is split over programs; columns, rows."""
LARGE = (2048, 4096)
"""Memory is what such arrays wait for; their tiles have more rows."""
WHOLE = (512, 4096)
"""The longest windows that one program of 16 warps has to itself."""

# operation -> the floating operands with every row (the derivative's are these), with one, options
CALLS = {
    "gae": ("rewards values", "bootstrap_value", dict(gamma=0.99, lambda_=0.95)),
    "vtrace": ("rewards values log_rho", "bootstrap_value", dict(gamma=0.99)),
    "retrace": ("rewards q_values next_values log_rho", "", dict(gamma=0.99)),
    "retrace_from_policy": ("rewards behaviour_log_prob", "", dict(gamma=0.99)),
    "lambda_returns": ("rewards next_values", "", dict(gamma=0.99, lambda_=0.95)),
    "discounted_returns": ("rewards", "bootstrap_value", dict(gamma=0.99)),
    "eligibility_traces": ("x", "init", dict(gamma=0.99, lambda_=0.95)),
    "episodic_prefix_sum": ("x", "init", {}),
    "linear_recurrence": ("a b", "init", {}),
}
OF_FEW_OPERANDS = [op for op in CALLS if op not in ("vtrace", "retrace", "retrace_from_policy")]
FLAGLESS = {"linear_recurrence"}
COEFFICIENTS = {"log_rho", "a", "behaviour_log_prob"}
ACTIONS = 18

# kernel -> loads beyond one a row of every operand that has rows (a neighbour's row, operands that
# are shared along time); and, where time is contiguous, 128-bit loads: one for each operand of
# numbers that is read at its own row.
LOADS = {
    "gae": (3, 2),
    "gae_vjp": (3, 2),
    "vtrace": (6, 3),
    "vtrace_vjp": (8, 3),
    "retrace": (2, 3),
    "retrace_vjp": (3, 2),
    "retrace_from_policy": (3, 0),
    "retrace_from_policy_vjp": (3, 0),
    "lambda_returns": (2, 2),
    "lambda_returns_vjp": (3, 1),
    "discounted_returns": (2, 1),
    "discounted_returns_vjp": (2, 1),
    "eligibility_traces": (3, 1),
    "eligibility_traces_vjp": (2, 1),
    "episodic_prefix_sum": (1, 1),
    "episodic_prefix_sum_vjp": (0, 1),
    "linear_recurrence": (1, 2),
    "linear_recurrence_vjp": (1, 2),
}

AGAIN = {"retrace_from_policy": 1, "retrace_from_policy_vjp": 2}
"""Loads beyond one an operand, in every row: of a policy's logits, first for their sum, then for
the action taken or for the policy of the next state."""

STEPS = {"registers": 8, "shared": 1024, "ptx": 50}
"""What a thread and a program take at most, and how many lines of PTX; to what they are rounded."""

BUDGETS = {
    ("gae", "columns"): {"registers": 56, "shared": 3072, "ptx": 1950},
    ("gae_vjp", "columns"): {"registers": 64, "shared": 3072, "ptx": 2100},
    ("gae", "rows"): {"registers": 40, "shared": 0, "ptx": 1400},
    ("gae_vjp", "rows"): {"registers": 56, "shared": 3072, "ptx": 1550},
    ("vtrace", "columns"): {"registers": 80, "shared": 3072, "ptx": 2750},
    ("vtrace_vjp", "columns"): {"registers": 80, "shared": 3072, "ptx": 3150},
    ("vtrace", "rows"): {"registers": 56, "shared": 0, "ptx": 2200},
    ("vtrace_vjp", "rows"): {"registers": 64, "shared": 3072, "ptx": 2500},
    ("retrace", "columns"): {"registers": 72, "shared": 3072, "ptx": 2050},
    ("retrace_vjp", "columns"): {"registers": 56, "shared": 3072, "ptx": 2100},
    ("retrace", "rows"): {"registers": 40, "shared": 0, "ptx": 1400},
    ("retrace_vjp", "rows"): {"registers": 40, "shared": 0, "ptx": 1300},
    ("retrace_from_policy", "columns"): {"registers": 152, "shared": 2048, "ptx": 6700},
    ("retrace_from_policy_vjp", "columns"): {"registers": 152, "shared": 1024, "ptx": 7350},
    ("retrace_from_policy", "rows"): {"registers": 104, "shared": 2048, "ptx": 2900},
    ("retrace_from_policy_vjp", "rows"): {"registers": 72, "shared": 1024, "ptx": 3300},
    ("lambda_returns", "columns"): {"registers": 56, "shared": 3072, "ptx": 1750},
    ("lambda_returns_vjp", "columns"): {"registers": 56, "shared": 3072, "ptx": 1800},
    ("lambda_returns", "rows"): {"registers": 32, "shared": 0, "ptx": 1250},
    ("lambda_returns_vjp", "rows"): {"registers": 32, "shared": 0, "ptx": 1250},
    ("discounted_returns", "columns"): {"registers": 40, "shared": 3072, "ptx": 1600},
    ("discounted_returns_vjp", "columns"): {"registers": 40, "shared": 3072, "ptx": 1700},
    ("discounted_returns", "rows"): {"registers": 32, "shared": 0, "ptx": 1100},
    ("discounted_returns_vjp", "rows"): {"registers": 32, "shared": 3072, "ptx": 1150},
    ("eligibility_traces", "columns"): {"registers": 40, "shared": 3072, "ptx": 1650},
    ("eligibility_traces_vjp", "columns"): {"registers": 40, "shared": 3072, "ptx": 1650},
    ("eligibility_traces", "rows"): {"registers": 32, "shared": 0, "ptx": 1150},
    ("eligibility_traces_vjp", "rows"): {"registers": 32, "shared": 3072, "ptx": 1150},
    ("episodic_prefix_sum", "columns"): {"registers": 40, "shared": 3072, "ptx": 1400},
    ("episodic_prefix_sum_vjp", "columns"): {"registers": 40, "shared": 3072, "ptx": 1350},
    ("episodic_prefix_sum", "rows"): {"registers": 32, "shared": 0, "ptx": 1000},
    ("episodic_prefix_sum_vjp", "rows"): {"registers": 32, "shared": 3072, "ptx": 950},
    ("linear_recurrence", "columns"): {"registers": 56, "shared": 3072, "ptx": 1500},
    ("linear_recurrence_vjp", "columns"): {"registers": 56, "shared": 3072, "ptx": 1600},
    ("linear_recurrence", "rows"): {"registers": 32, "shared": 0, "ptx": 950},
    ("linear_recurrence_vjp", "rows"): {"registers": 40, "shared": 3072, "ptx": 1100},
}


def launches(op, columns, capability, sizes):
    """What the forward and the backward kernel are launched with, by name."""
    from rl_triton_jax.launch import triton as launch

    T, N = sizes
    shape = (T, N) if columns else (N, T)
    full, single, options = CALLS[op]
    x = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name in full.split()}
    x |= {name: jax.ShapeDtypeStruct((N,), jnp.float32) for name in single.split()}
    moving = {name: x.pop(name) for name in list(x) if name not in COEFFICIENTS}
    if op == "retrace_from_policy":
        table = jax.ShapeDtypeStruct((*shape, ACTIONS), jnp.float32)
        moving |= dict.fromkeys(("q_values", "next_q_values"), table)
        x |= dict.fromkeys(("target_logits", "next_target_logits"), table)
        x["actions"] = jax.ShapeDtypeStruct(shape, jnp.int32)
    if op not in FLAGLESS:
        x["terminated"] = jax.ShapeDtypeStruct(shape, bool)
    found = {}

    def triton_call(operands, *, name, out_type, **params):
        found[name.removeprefix("rl_triton_")] = params | {
            "types": [x.dtype for x in operands],
            "out_types": [x.dtype for x in out_type],
        }
        return [jnp.zeros(x.shape, x.dtype) for x in out_type]

    def total(moving, still):
        outputs = getattr(rl_triton_jax, op)(
            **moving, **still, **options, axis=1 - columns, implementation="triton"
        )
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(outputs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.jax_triton, "triton_call", triton_call)
        patch.setattr(availability, "missing_package", lambda: None)  # nothing is packed
        patch.setattr(availability, "compute_capability", lambda: capability)
        jax.jit(jax.grad(total)).trace(moving, x).lower(lowering_platforms=("cuda",))
    return found


POINTERS = {"float32": "*fp32", "bool": "*i1", "int32": "*i32"}


def compiled(kernel, types, out_types, backend_options, compute_capability, plan, **constants):
    """As jax_triton compiles it: pointers are aligned, as JAX's buffers are."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    del constants["grid"], constants["zeroed_outputs"]
    constants["plan"] = plan
    aligned = [["tt.divisibility", 16]]
    results = [name for name in kernel.arg_names[1:] if name not in constants]
    signature = {"operands": tuple(POINTERS[x.name] for x in types)}
    signature |= {name: POINTERS[x.name] for name, x in zip(results, out_types, strict=True)}
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {(0, i): aligned for i in range(len(types))}
    attributes |= {(kernel.arg_names.index(name),): aligned for name in results}
    order = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, order, constants, attributes)
    target = GPUTarget("cuda", compute_capability, 32)
    return triton.compile(source, target=target, options=backend_options)


def said_of(cubin, tool, option):
    """What one of the tools that come with Triton prints."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(cubin):
    text = said_of(cubin, "cuobjdump", "--dump-resource-usage")
    return {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


@cache
def seen(op, columns, capability=90, sizes=SHAPE):
    """kernel -> what it takes, and what it loads."""
    found = {}
    for name, params in launches(op, columns, capability, sizes).items():
        result = compiled(**params)
        ptx, ir = result.asm["ptx"], result.asm["ttgir"]
        usage = resources(result.asm["cubin"])
        found[name] = {
            "registers": usage["REG"],
            "stack": usage["STACK"] + usage.get("LOCAL", 0),
            "shared": result.metadata.shared,
            "warps": result.metadata.num_warps,
            "ptx": len(ptx.splitlines()),
            "loads": len(re.findall(r"tt\.load(?!.*isVolatile)", ir)),
            "wide": len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)),
            "fold": params.get("S", 1),
            "full": sum(layout.time != 0 for layout in params["plan"].layouts),
        }
    return found


def layout(columns):
    return "columns" if columns else "rows"


def check(op, columns, capability):
    for kernel, x in seen(op, columns, capability).items():
        assert x["stack"] == 0, f"{kernel} spills"
        for name, most in BUDGETS[kernel, layout(columns)].items():
            assert x[name] <= most, f"{kernel}: {x[name]} {name}, at most {most}"
        extra, wide = LOADS[kernel]
        assert x["loads"] == x["fold"] * (x["full"] + AGAIN.get(kernel, 0)) + extra, kernel
        assert columns or x["wide"] >= wide, kernel


@pytest.mark.parametrize("columns", [True, False], ids=layout)
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_budget(capability, op, columns):
    """Ampere, Hopper, Blackwell."""
    check(op, columns, capability)


@pytest.mark.parametrize("columns", [True, False], ids=layout)
@pytest.mark.parametrize("op", CALLS)
def test_long_windows(op, columns):
    for kernel, x in seen(op, columns, sizes=LONG[columns]).items():
        assert x["stack"] == 0, f"{kernel} spills"


@pytest.mark.parametrize("op", CALLS)
def test_large_arrays(op):
    for kernel, x in seen(op, columns=True, sizes=LARGE).items():
        assert x["stack"] == 0, f"{kernel} spills"


@pytest.mark.parametrize("op", OF_FEW_OPERANDS)
def test_whole_windows(op):
    """A multiprocessor has registers for two programs."""
    x = seen(op, columns=True, sizes=WHOLE)[op]
    assert x["warps"] == 16
    assert x["stack"] == 0, f"{op} spills"
    assert x["registers"] <= 64


def main():
    for op in CALLS:
        for columns in (True, False):
            for kernel, x in seen(op, columns).items():
                budget = {
                    name: step * math.ceil(1.25 * x[name] / step) for name, step in STEPS.items()
                }
                print(f"    {(kernel, layout(columns))}: {budget},".replace("'", '"'))


if __name__ == "__main__":
    main()
