"""TD(λ) and discounted returns (Sutton & Barto 2018): the recurrence and its derivative."""

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences import td
from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Arrays, Rows


def _weights(x: Rows) -> tuple[jax.Array, jax.Array]:
    """Those of G_{t+1} and v'_t: γ_t c_t λ_t m_t, γ_t c_t (1 - λ_t m_t); in the last row λ is 0."""
    trace = jnp.ones_like(x.gamma) if x.lambda_ is None else x.lambda_
    if td.kept_share(x) is None:
        trace = td.gated(td.uncut(x), trace)
    trace = jnp.where(x.is_last(), jnp.zeros_like(trace), trace)
    discount = td.discount(x)
    return td.dropped(x, gate(discount, trace)), gate(discount, 1 - trace)


def lambda_returns(x: Rows) -> Arrays:
    """G_t = r_t + γ_t c_t [(1 - λ_t m_t) v'_t + λ_t m_t G_{t+1}]; a dropped row's is its value."""

    def terms(y: Rows) -> tuple[jax.Array, jax.Array]:
        of_return, of_value = _weights(y)
        b = td.dropped(y, y.rewards + gate(of_value, td.successor(y)))
        kept = td.kept_share(y)
        if kept is not None:
            b = b + gate(1 - kept, y.values)
        return of_return, b

    return {"returns": x.solve(terms, reverse=True)}


def lambda_returns_vjp(x: Rows) -> Arrays:
    """From the cotangent Ḡ of the returns, forward in time:

    g_t = Ḡ_t + γ_{t-1} c_{t-1} λ_{t-1} m_{t-1} g_{t-1}
    r̄_t = g_t,   v̄'_t = γ_t c_t (1 - λ_t m_t) g_t
    """
    g = x.solve(lambda y: (y.previous(lambda z: _weights(z)[0]), y.returns), reverse=False)
    kept = td.kept_share(x)
    rewards = td.gated(kept, g)
    return td.cotangents(
        x,
        rewards=rewards,
        values=None if kept is None else gate(1 - kept, g),
        successors=gate(_weights(x)[1], rewards),
    )


def discounted_returns(x: Rows) -> Arrays:
    """G_t = r_t + γ_t c_t [(1 - m_t) v'_t + m_t G_{t+1}]: TD(λ) where λ, absent, is 1."""
    return lambda_returns(x)


def discounted_returns_vjp(x: Rows) -> Arrays:
    """`lambda_returns_vjp` where λ, absent, is 1."""
    return lambda_returns_vjp(x)
