"""V-trace (Espeholt 2018): the recurrence and its derivative."""

import math

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences import td
from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Arrays, Rows


def clipped_ratio(x: Rows, clip: jax.Array | float | None) -> jax.Array:
    """min(clip, ρ_t); a huge log ratio is clipped before exp could overflow."""
    if x.log_rho is None:
        return x.rho if clip is None else jnp.minimum(clip, x.rho)
    if clip is None:
        return jnp.exp(x.log_rho)
    largest = 0.99 * math.log(jnp.finfo(x.dtype).max)
    return jnp.minimum(clip, jnp.exp(jnp.minimum(x.log_rho, largest)))


def _weight(x: Rows) -> jax.Array:
    return clipped_ratio(x, x.clip_rho)


def _carry(x: Rows) -> jax.Array:
    return gate(td.carry(x), clipped_ratio(x, x.clip_c))


def _follows(x: Rows) -> jax.Array:
    """How much of q'_t is the next row's target: m_t, and 0 in the last row."""
    uncut = td.uncut(x)
    uncut = jnp.ones_like(x.gamma) if uncut is None else uncut
    return jnp.where(x.is_last(), jnp.zeros_like(uncut), uncut)


def vtrace(x: Rows) -> Arrays:
    """D_t = min(ρ̄, ρ_t) δ_t + γ_t λ_t k_t min(c̄, ρ_t) D_{t+1};  targets = v + D.

    advantages = min(ρ̄_pg, ρ_t) (r_t + γ_t c_t q'_t - v_t),  q'_t = m_t targets_{t+1} + (1 - m_t)
    v'_t
    """
    targets = x.values + td.corrections(x, carry=_carry, weight=_weight)
    following = x.next(lambda _: targets)
    if x.options["pg_bootstrap"] == "mixed":
        following = gate(x.lambda_, following) + gate(1 - x.lambda_, x.next(lambda y: y.values))
    follows = _follows(x)
    q = gate(follows, following) + gate(1 - follows, td.successor(x))
    error = x.rewards + gate(td.discount(x), q) - x.values
    return {
        "advantages": td.dropped(x, gate(clipped_ratio(x, x.clip_pg_rho), error)),
        "targets": targets,
    }


def vtrace_vjp(x: Rows) -> Arrays:
    """From the cotangents Ā, T̄ of advantages and targets, forward in time:

    u_t = min(ρ̄_pg, ρ_t) Ā_t,   q̄_t = γ_t c_t u_t
    T_t = T̄_t + m_{t-1} q̄_{t-1}
    G_t = T_t + γ_{t-1} λ_{t-1} k_{t-1} min(c̄, ρ_{t-1}) G_{t-1},   δ̄_t = min(ρ̄, ρ_t) G_t
    r̄_t = δ̄_t + u_t,   v̄'_t = γ_t c_t δ̄_t + (1 - m_t) q̄_t
    v̄_t = T_t - δ̄_t - u_t   (+ v̄'_{t-1} where v'_{t-1} is v_t)
    """
    mixed = x.options["pg_bootstrap"] == "mixed"

    def policy(y: Rows) -> jax.Array:
        return td.dropped(y, gate(clipped_ratio(y, y.clip_pg_rho), y.advantages))

    def following(y: Rows) -> jax.Array:
        return gate(_follows(y), gate(td.discount(y), policy(y)))

    def next_target(y: Rows) -> jax.Array:
        return gate(y.lambda_, following(y)) if mixed else following(y)

    def target(y: Rows) -> jax.Array:
        return y.targets if y.advantages is None else td.total(y.targets, y.previous(next_target))

    error = td.corrections_vjp(x, target, carry=_carry, weight=_weight)
    rewards, values, successors = error, target(x) - error, gate(td.discount(x), error)
    if x.advantages is not None:
        u = policy(x)
        rewards, values = rewards + u, values - u
        successors = successors + gate(1 - _follows(x), gate(td.discount(x), u))
        if mixed:
            values = values + x.previous(lambda y: gate(1 - y.lambda_, following(y)))
    return td.cotangents(x, rewards=rewards, values=values, successors=successors)
