"""What flags, discounts and ratios say of row t: `rl_triton_jax.recurrences.td` in Triton."""

import triton
import triton.language as tl

from rl_triton_jax.kernels.gate import gate
from rl_triton_jax.kernels.operands import has, is_last, raw, read
from rl_triton_jax.kernels.policy import expectation, log_ratio


@triton.jit
def cut(flag, x):
    """(1 - flag) x: a float flag is a probability, any other cuts where it is set."""
    if flag.dtype.is_floating():
        return gate(1 - flag.to(x.dtype), x)
    else:
        return tl.where(flag != 0, 0, x)


@triton.jit
def taken(flag, x):
    """flag x, the part that `cut` takes away."""
    if flag.dtype.is_floating():
        return gate(flag.to(x.dtype), x)
    else:
        return tl.where(flag != 0, x, 0)


@triton.jit
def going_on(plan: tl.constexpr, x, o: tl.constexpr, y):
    """c_t y; observation-aligned flags judge row t by row t+1."""
    if has(plan, "last_terminated"):
        last = cut(raw(plan, x, "last_terminated", o), y)
        return tl.where(is_last(plan, x, o), last, cut(raw(plan, x, "terminated", o + 1), y))
    elif has(plan, "terminated"):
        return cut(raw(plan, x, "terminated", o), y)
    else:
        return y


@triton.jit
def uncut(plan: tl.constexpr, x, o: tl.constexpr, y):
    """m_t y."""
    if has(plan, "truncated"):
        return cut(raw(plan, x, "truncated", o), y)
    else:
        return y


@triton.jit
def dropped(plan: tl.constexpr, x, o: tl.constexpr, y):
    """m_t y where a truncated row is dropped, y otherwise."""
    if plan.drops:
        return uncut(plan, x, o, y)
    else:
        return y


@triton.jit
def one(plan: tl.constexpr):
    return tl.full([1, 1], 1, plan.dtype)


@triton.jit
def discount(plan: tl.constexpr, x, o: tl.constexpr):
    """γ_t c_t."""
    return going_on(plan, x, o, read(plan, x, "gamma", o))


@triton.jit
def carry(plan: tl.constexpr, x, o: tl.constexpr):
    """γ_t λ_t k_t."""
    y = read(plan, x, "gamma", o) * read(plan, x, "lambda_", o)
    return uncut(plan, x, o, going_on(plan, x, o, y))


@triton.jit
def keeps(plan: tl.constexpr, x, o: tl.constexpr):
    """k_t."""
    return uncut(plan, x, o, going_on(plan, x, o, one(plan)))


@triton.jit
def successor(plan: tl.constexpr, x, o: tl.constexpr):
    """v'_t."""
    if has(plan, "next_q_values"):
        return expectation(plan, x, o)
    elif plan.successor == "next_values":
        return read(plan, x, "next_values", o)
    elif plan.successor == "bootstrap_value":
        return tl.where(is_last(plan, x, o), read(plan, x, "bootstrap_value", o), 0)
    elif has(plan, "bootstrap_value"):
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
    return rho


@triton.jit
def retrace_weight(plan: tl.constexpr, x, o: tl.constexpr):
    """w_t = λ_t min(1, ρ_t), or given."""
    if has(plan, "trace"):
        return read(plan, x, "trace", o)
    else:
        if has(plan, "actions"):
            log_rho = log_ratio(plan, x, o)
        else:
            log_rho = read(plan, x, "log_rho", o)
        rho = tl.exp(tl.minimum(log_rho, 0, propagate_nan=tl.PropagateNan.ALL))
        return read(plan, x, "lambda_", o) * rho
