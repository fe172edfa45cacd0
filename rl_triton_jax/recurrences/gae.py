"""Generalised advantage estimation (Schulman 2016): the recurrence and its derivative."""

from rl_triton_jax.recurrences.rows import Arrays, Rows
from rl_triton_jax.recurrences.td import (
    corrections,
    corrections_vjp,
    cotangents,
    discount,
    gate,
    total,
)


def gae(x: Rows) -> Arrays:
    """A_t = δ_t + γ_t λ_t k_t A_{t+1},  δ_t = r_t + γ_t c_t v'_t - v_t;  targets = A + v."""
    advantages = corrections(x)
    return {"advantages": advantages, "targets": advantages + x.values}


def gae_vjp(x: Rows) -> Arrays:
    """From the cotangents Ā, T̄ of advantages and targets, forward in time:

    G_t = Ā_t + T̄_t + γ_{t-1} λ_{t-1} k_{t-1} G_{t-1}
    r̄_t = G_t,   v̄'_t = γ_t c_t G_t,   v̄_t = T̄_t - G_t   (+ v̄'_{t-1} where v'_{t-1} is v_t)
    """
    error = corrections_vjp(x, lambda y: total(y.advantages, y.targets))
    return cotangents(
        x, rewards=error, values=total(x.targets, -error), successors=gate(discount(x), error)
    )
