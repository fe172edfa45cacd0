"""Eligibility traces, prefix sums, the linear recurrence, and derivatives, at row t: see `td`."""

import triton
import triton.language as tl

from rl_triton_jax.kernels.flags import carry, decay, keeps, one
from rl_triton_jax.kernels.gate import choose, coefficient, gate
from rl_triton_jax.kernels.operands import has, is_first, is_last, read, write, write_at


@triton.jit
def traces_terms(plan: tl.constexpr, x, o: tl.constexpr):
    a = carry(plan, x, o - 1)
    if has(plan, "init"):
        a = choose(is_first(plan, x, o), decay(plan, x, o), a)  # with which `init` enters row 0
    return a, read(plan, x, "x", o), ()


@triton.jit
def traces_vjp_terms(plan: tl.constexpr, x, o: tl.constexpr):
    return carry(plan, x, o), read(plan, x, "traces", o), (decay(plan, x, o),)


@triton.jit
def sum_terms(plan: tl.constexpr, x, o: tl.constexpr):
    if plan.starts:
        return keeps(plan, x, o), read(plan, x, "x", o), ()
    else:
        return keeps(plan, x, o - 1), read(plan, x, "x", o), ()


@triton.jit
def sum_vjp_terms(plan: tl.constexpr, x, o: tl.constexpr):
    if plan.starts:
        return keeps(plan, x, o + 1), read(plan, x, "sums", o), (keeps(plan, x, o),)
    else:
        return keeps(plan, x, o), read(plan, x, "sums", o), (one(plan),)


@triton.jit
def linear_terms(plan: tl.constexpr, x, o: tl.constexpr):
    return coefficient(read(plan, x, "a", o)), read(plan, x, "b", o), ()


@triton.jit
def linear_vjp_terms(plan: tl.constexpr, x, o: tl.constexpr):
    # a derivative in reverse is that of a recurrence forward in time
    a = coefficient(read(plan, x, "a", o - plan.direction))
    return a, read(plan, x, "h", o), (coefficient(read(plan, x, "a", o)),)


@triton.jit
def accumulation_results(plan: tl.constexpr, x, results, h, before, kept):
    write(plan, x, results, plan.results[0], h)


@triton.jit
def accumulation_vjp_results(plan: tl.constexpr, x, results, h, before, kept):
    """`kept` is the coefficient with which `init` entered the row that was computed first."""
    write(plan, x, results, plan.data[0], h)
    if plan.reverse:
        write_at(plan, x, results, "init", is_first(plan, x, 0), 0, gate(kept[0], h))
    else:
        write_at(plan, x, results, "init", is_last(plan, x, 0), 0, gate(kept[0], h))
