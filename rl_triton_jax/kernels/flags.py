"""What flags, discounts and ratios say of row t: `rl_triton_jax.recurrences.td` in Triton."""

import triton
import triton.language as tl

from rl_triton_jax.kernels.gate import choose, coefficient, times
from rl_triton_jax.kernels.operands import behind, has, is_last, raw, read
from rl_triton_jax.kernels.policy import expectation, log_ratio


@triton.jit
def unset(flag, dtype: tl.constexpr):
    """1 - flag: a float flag is a probability, any other cuts where it is set."""
    if flag.dtype.is_floating():
        return coefficient(1 - flag.to(dtype))
    else:
        return tl.full([1, 1], 1, dtype), flag != 0


@triton.jit
def one(plan: tl.constexpr):
    return tl.full([1, 1], 1, plan.dtype), tl.full([1, 1], False, tl.int1)


@triton.jit
def goes_on(plan: tl.constexpr, x, o: tl.constexpr):
    """c_t; observation-aligned flags judge row t by row t+1."""
    if has(plan, "last_terminated"):
        following = unset(raw(plan, x, "terminated", o + 1), plan.dtype)
        if behind(plan, "terminated") is None:
            last = unset(raw(plan, x, "last_terminated", o), plan.dtype)
            following = choose(is_last(plan, x, o), last, following)
        return following
    elif has(plan, "terminated"):
        return unset(raw(plan, x, "terminated", o), plan.dtype)
    else:
        return one(plan)


@triton.jit
def uncut(plan: tl.constexpr, x, o: tl.constexpr):
    """m_t."""
    if has(plan, "truncated"):
        return unset(raw(plan, x, "truncated", o), plan.dtype)
    else:
        return one(plan)


@triton.jit
def undropped(plan: tl.constexpr, x, o: tl.constexpr):
    """m_t where a truncated row is dropped, 1 otherwise."""
    if plan.drops:
        return uncut(plan, x, o)
    else:
        return one(plan)


@triton.jit
def keeps(plan: tl.constexpr, x, o: tl.constexpr):
    """k_t."""
    return times(goes_on(plan, x, o), uncut(plan, x, o))


@triton.jit
def discount(plan: tl.constexpr, x, o: tl.constexpr):
    """γ_t c_t."""
    return times(coefficient(read(plan, x, "gamma", o)), goes_on(plan, x, o))


@triton.jit
def decay(plan: tl.constexpr, x, o: tl.constexpr):
    """γ_t λ_t."""
    return times(coefficient(read(plan, x, "gamma", o)), coefficient(read(plan, x, "lambda_", o)))


@triton.jit
def carry(plan: tl.constexpr, x, o: tl.constexpr):
    """γ_t λ_t k_t."""
    return times(decay(plan, x, o), keeps(plan, x, o))


@triton.jit
def successor(plan: tl.constexpr, x, o: tl.constexpr):
    """v'_t."""
    if has(plan, "next_q_values"):
        return expectation(plan, x, o)
    elif plan.successor == "next_values":
        return read(plan, x, "next_values", o)
    elif plan.successor == "bootstrap_value":
        return tl.where(is_last(plan, x, o), read(plan, x, "bootstrap_value", o), 0)
    elif has(plan, "bootstrap_value") and behind(plan, "values") is None:
        bootstrap = read(plan, x, "bootstrap_value", o)
        return tl.where(is_last(plan, x, o), bootstrap, read(plan, x, "values", o + 1))
    else:
        return read(plan, x, "values", o + 1)  # has a row more


@triton.jit
def ratio(plan: tl.constexpr, x, o: tl.constexpr, clip: tl.constexpr):
    """min(clip, ρ_t) if that clip was given; a huge log ratio is clipped before exp overflows."""
    if has(plan, "log_rho"):
        log_rho = read(plan, x, "log_rho", o)
        if has(plan, clip):
            log_rho = tl.minimum(log_rho, plan.largest_log, propagate_nan=tl.PropagateNan.ALL)
        rho = tl.exp(log_rho)
    else:
        rho = read(plan, x, "rho", o)
    if has(plan, clip):
        rho = tl.minimum(read(plan, x, clip, o), rho, propagate_nan=tl.PropagateNan.ALL)
    return coefficient(rho)


@triton.jit
def retrace_weight(plan: tl.constexpr, x, o: tl.constexpr):
    """w_t = λ_t min(1, ρ_t), or given."""
    if has(plan, "trace"):
        return coefficient(read(plan, x, "trace", o))
    else:
        if has(plan, "actions"):
            log_rho = log_ratio(plan, x, o)
        else:
            log_rho = read(plan, x, "log_rho", o)
        rho = tl.exp(tl.minimum(log_rho, 0, propagate_nan=tl.PropagateNan.ALL))
        return coefficient(read(plan, x, "lambda_", o) * rho)
