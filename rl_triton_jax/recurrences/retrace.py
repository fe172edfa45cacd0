"""Retrace(λ) (Munos 2016): the recurrence and its derivative."""

import jax

from rl_triton_jax.recurrences import td
from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Arrays, Rows
from rl_triton_jax.recurrences.vtrace import clipped_ratio


def _trace(x: Rows) -> jax.Array:
    """w_t = λ_t min(1, ρ_t), or given."""
    return gate(x.lambda_, clipped_ratio(x, 1.0)) if x.trace is None else x.trace


def _carry(x: Rows) -> jax.Array:
    """γ_t k_t w_{t+1}: the step into row t+1 is weighed by the action taken there."""
    return gate(td.gated(td.uncut(x), td.discount(x)), x.next(_trace))


def retrace(x: Rows) -> Arrays:
    """D_t = δ_t + γ_t k_t w_{t+1} D_{t+1},  δ_t = r_t + γ_t c_t E_π q(s_{t+1}, ·) - q_t;
    targets = q + D.
    """
    return {"targets": x.values + td.corrections(x, carry=_carry)}


def retrace_vjp(x: Rows) -> Arrays:
    """From the cotangent T̄ of the targets, forward in time:

    G_t = T̄_t + γ_{t-1} k_{t-1} w_t G_{t-1}
    r̄_t = G_t,   E̅_t = γ_t c_t G_t,   q̄_t = T̄_t - G_t
    """
    error = td.corrections_vjp(x, lambda y: y.targets, carry=_carry)
    return td.cotangents(
        x, rewards=error, values=x.targets - error, successors=gate(td.discount(x), error)
    )
