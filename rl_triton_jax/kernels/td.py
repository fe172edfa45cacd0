"""GAE, V-trace, Retrace and their derivatives at row t: D_t = w_t δ_t + a_t D_{t+1}.

For each recurrence of the library there are two functions: `<op>_terms` gives a_t and b_t of
h_t = b_t + a_t h_{t∓1} and a tuple of whatever else the results need of the row; `<op>_results`
writes them from h_t and `before`, the h that entered the row. All is read before anything is
written.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.flags import (
    carry,
    discount,
    one,
    ratio,
    retrace_weight,
    successor,
    uncut,
    undropped,
)
from rl_triton_jax.kernels.gate import coefficient, complement, follow, gate, times, zero_where
from rl_triton_jax.kernels.operands import has, is_last, read, read_or_zero, wants, write, write_at
from rl_triton_jax.kernels.policy import of_the_action, write_at_the_action, write_expected


@triton.jit
def weight(plan: tl.constexpr, x, o: tl.constexpr):
    """w_t of the one-step error; 0 in a dropped row."""
    if plan.kind == "vtrace":
        return times(undropped(plan, x, o), ratio(plan, x, o, "clip_rho"))
    else:
        return undropped(plan, x, o)


@triton.jit
def step(plan: tl.constexpr, x, o: tl.constexpr):
    """a_t: γ_t λ_t k_t, times min(c̄, ρ_t) in V-trace; γ_t k_t w_{t+1} in Retrace."""
    if plan.kind == "vtrace":
        return times(carry(plan, x, o), ratio(plan, x, o, "clip_c"))
    elif plan.kind == "retrace":
        kept = times(discount(plan, x, o), uncut(plan, x, o))
        return times(kept, retrace_weight(plan, x, o + 1))
    else:
        return carry(plan, x, o)


@triton.jit
def policy_weight(plan: tl.constexpr, x, o: tl.constexpr):
    """V-trace: min(ρ̄_pg, ρ_t), of the advantage; 0 in a dropped row."""
    return times(undropped(plan, x, o), ratio(plan, x, o, "clip_pg_rho"))


@triton.jit
def follows(plan: tl.constexpr, x, o: tl.constexpr):
    """How much of V-trace's q'_t is the next row's target: m_t, and 0 in the last row."""
    return zero_where(is_last(plan, x, o), uncut(plan, x, o))


@triton.jit
def mixing(plan: tl.constexpr, x, o: tl.constexpr):
    """How much of that is the target itself rather than the value."""
    if plan.mixed:
        return coefficient(read(plan, x, "lambda_", o))
    else:
        return one(plan)


@triton.jit
def value(plan: tl.constexpr, x, o: tl.constexpr):
    """v_t, or q_t of the action taken."""
    if has(plan, "q_values"):
        return of_the_action(plan, x, "q_values", o)
    else:
        return read(plan, x, "values", o)


@triton.jit
def errors_terms(plan: tl.constexpr, x, o: tl.constexpr):
    r = read(plan, x, "rewards", o)
    v = value(plan, x, o)
    g = discount(plan, x, o)
    nxt = successor(plan, x, o)
    kept = (v,)
    if plan.kind == "vtrace" and wants(plan, "advantages"):
        # p (r + g q' - v), which is affine in D_{t+1}: q' = μ (v_{t+1} + [λ] D_{t+1}) + (1 - μ) v'
        p = policy_weight(plan, x, o)
        mu = follows(plan, x, o)
        q = nxt
        if plan.successor == "next_values":  # otherwise v' is v_{t+1}, save in the last row
            q = gate(mu, read(plan, x, "values", o + 1)) + gate(complement(mu), nxt)
        of_next = times(times(p, g), times(mu, mixing(plan, x, o)))
        kept = (v, gate(p, follow(g, r, q) - v), of_next)
    return step(plan, x, o), gate(weight(plan, x, o), follow(g, r, nxt) - v), kept


@triton.jit
def errors_results(plan: tl.constexpr, x, results, h, before, kept):
    write(plan, x, results, "targets", h + kept[0])
    if plan.kind == "vtrace":
        if wants(plan, "advantages"):
            write(plan, x, results, "advantages", follow(kept[2], kept[1], before))
    else:
        write(plan, x, results, "advantages", h)


@triton.jit
def policy(plan: tl.constexpr, x, o: tl.constexpr):
    """V-trace: the cotangents of r_t and of q'_t through the advantage."""
    u = gate(policy_weight(plan, x, o), read(plan, x, "advantages", o))
    return u, gate(discount(plan, x, o), u)


@triton.jit
def errors_vjp_terms(plan: tl.constexpr, x, o: tl.constexpr):
    targets = read_or_zero(plan, x, "targets", o)
    w = weight(plan, x, o)
    g = discount(plan, x, o)
    from_before = times(discount(plan, x, o - 1), weight(plan, x, o - 1))
    if plan.kind == "vtrace" and has(plan, "advantages"):
        u, q = policy(plan, x, o)
        _u_before, q_before = policy(plan, x, o - 1)
        mu = follows(plan, x, o)
        mu_before = follows(plan, x, o - 1)
        mixed = mixing(plan, x, o - 1)
        b = follow(times(mixed, mu_before), targets, q_before)
        of_values = follow(times(complement(mixed), mu_before), b - u, q_before)
        if plan.successor == "values":
            of_values = follow(complement(mu_before), of_values, q_before)
        kept = (w, g, from_before, of_values, u, gate(complement(mu), q))
    else:
        b = targets
        if plan.kind == "gae":
            b += read_or_zero(plan, x, "advantages", o)
        kept = (
            w,
            g,
            from_before,
            targets,
            tl.zeros([1, 1], plan.dtype),
            tl.zeros([1, 1], plan.dtype),
        )
    return step(plan, x, o - 1), b, kept


@triton.jit
def errors_vjp_results(plan: tl.constexpr, x, results, h, before, kept):
    w, g, from_before, of_values, of_rewards, of_successors = kept
    error = gate(w, h)
    successors = gate(g, error) + of_successors
    values = of_values - error
    if plan.successor == "values":
        values = follow(from_before, values, before)
    deal_out(plan, x, results, values, successors)
    write(plan, x, results, "rewards", error + of_rewards)


@triton.jit
def deal_out(plan: tl.constexpr, x, results, values, successors):
    """Writes the cotangents of v_t and v'_t to the operands that hold them.

    The first asks for the action, which a masked row would read anew behind another's stores.
    """
    write_at_the_action(plan, x, results, "q_values", values)
    write_expected(plan, x, results, "next_q_values", successors)
    write(plan, x, results, "next_values", successors)
    write(plan, x, results, "values", values)
    write_at(plan, x, results, "bootstrap_value", is_last(plan, x, 0), 0, successors)
    if wants(plan, "values") and plan.longer:
        write_at(plan, x, results, "values", is_last(plan, x, 0), plan.length, successors)


@triton.jit
def return_weights(plan: tl.constexpr, x, o: tl.constexpr):
    """Of G_{t+1} and v'_t: γ_t c_t λ_t m_t and γ_t c_t (1 - λ_t m_t); in the last row λ is 0."""
    if has(plan, "lambda_"):
        trace = coefficient(read(plan, x, "lambda_", o))
    else:
        trace = one(plan)
    if not plan.drops:
        trace = times(trace, uncut(plan, x, o))
    trace = zero_where(is_last(plan, x, o), trace)
    g = discount(plan, x, o)
    return times(undropped(plan, x, o), times(g, trace)), times(g, complement(trace))


@triton.jit
def returns_terms(plan: tl.constexpr, x, o: tl.constexpr):
    a, of_value = return_weights(plan, x, o)
    w = undropped(plan, x, o)
    b = gate(w, follow(of_value, read(plan, x, "rewards", o), successor(plan, x, o)))
    if plan.drops and has(plan, "truncated"):
        b = follow(complement(w), b, read(plan, x, "values", o))
    return a, b, ()


@triton.jit
def returns_results(plan: tl.constexpr, x, results, h, before, kept):
    write(plan, x, results, "returns", h)


@triton.jit
def returns_vjp_terms(plan: tl.constexpr, x, o: tl.constexpr):
    w = undropped(plan, x, o)
    _of_return, of_value = return_weights(plan, x, o)
    a, of_value_before = return_weights(plan, x, o - 1)
    kept = (w, of_value, times(undropped(plan, x, o - 1), of_value_before))
    return a, read(plan, x, "returns", o), kept


@triton.jit
def returns_vjp_results(plan: tl.constexpr, x, results, h, before, kept):
    w, of_value, from_before = kept
    rewards = gate(w, h)
    write(plan, x, results, "rewards", rewards)
    values = gate(complement(w), h)
    if plan.successor == "values":
        values = follow(from_before, values, before)
    deal_out(plan, x, results, values, gate(of_value, rewards))
