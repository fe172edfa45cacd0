"""Which recurrence a kernel runs: its terms and results, by the plan's family."""

import triton
import triton.language as tl

from rl_triton_jax.kernels.flags import one
from rl_triton_jax.kernels.gate import choose, follow
from rl_triton_jax.kernels.operands import counts, has, is_first, is_last, masked, read
from rl_triton_jax.kernels.td import (
    errors_results,
    errors_terms,
    errors_vjp_results,
    errors_vjp_terms,
    returns_results,
    returns_terms,
    returns_vjp_results,
    returns_vjp_terms,
)
from rl_triton_jax.kernels.traces import (
    accumulation_results,
    accumulation_vjp_results,
    linear_terms,
    linear_vjp_terms,
    sum_terms,
    sum_vjp_terms,
    traces_terms,
    traces_vjp_terms,
)


@triton.jit
def computed_first(plan: tl.constexpr, x, o: tl.constexpr):
    """Where in the tile t + o is the row that nothing but `init` enters."""
    if plan.reverse:
        return is_last(plan, x, o)
    else:
        return is_first(plan, x, o)


@triton.jit
def terms(plan: tl.constexpr, x, o: tl.constexpr):
    """a_t, b_t and what the results will need of row t; other rows hand the carry on."""
    if plan.family == "errors":
        a, b, kept = errors_terms(plan, x, o)
    elif plan.family == "errors_vjp":
        a, b, kept = errors_vjp_terms(plan, x, o)
    elif plan.family == "returns":
        a, b, kept = returns_terms(plan, x, o)
    elif plan.family == "returns_vjp":
        a, b, kept = returns_vjp_terms(plan, x, o)
    elif plan.family == "traces":
        a, b, kept = traces_terms(plan, x, o)
    elif plan.family == "traces_vjp":
        a, b, kept = traces_vjp_terms(plan, x, o)
    elif plan.family == "sum":
        a, b, kept = sum_terms(plan, x, o)
    elif plan.family == "sum_vjp":
        a, b, kept = sum_vjp_terms(plan, x, o)
    elif plan.family == "linear":
        a, b, kept = linear_terms(plan, x, o)
    else:
        a, b, kept = linear_vjp_terms(plan, x, o)
    if has(plan, "init"):
        b = tl.where(computed_first(plan, x, o), follow(a, b, read(plan, x, "init", 0)), b)
    if masked(plan) or not plan.even:
        there = counts(plan, x, o)
        a = choose(there, a, one(plan))
        b = tl.where(there, b, 0)
    return a, b, kept


@triton.jit
def finish(plan: tl.constexpr, x, results, h, before, kept):
    """Writes the results of row t."""
    if plan.family == "errors":
        errors_results(plan, x, results, h, before, kept)
    elif plan.family == "errors_vjp":
        errors_vjp_results(plan, x, results, h, before, kept)
    elif plan.family == "returns":
        returns_results(plan, x, results, h, before, kept)
    elif plan.family == "returns_vjp":
        returns_vjp_results(plan, x, results, h, before, kept)
    elif plan.is_vjp:
        accumulation_vjp_results(plan, x, results, h, before, kept)
    else:
        accumulation_results(plan, x, results, h, before, kept)


@triton.constexpr_function
def needs_before(plan):
    """Whether results ask for the h that entered their row."""
    if plan.family == "errors":
        return plan.kind == "vtrace" and "advantages" in plan.results
    return plan.family in ("errors_vjp", "returns_vjp") and plan.successor == "values"
