"""The terms that the temporal-difference recurrences share; every function reads row t of `Rows`.

c_t = 1 - terminated_t     gates the bootstrap
m_t = 1 - truncated_t      with c_t, gates the carry
v'_t                       the value of the state after the transition of row t
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Rows


def keep(flag: jax.Array, dtype) -> jax.Array:
    """1 - flag: a bool or int flag is set where it is not 0, a float one is a probability."""
    if jnp.issubdtype(flag.dtype, jnp.floating):
        return 1 - flag.astype(dtype)
    return jnp.where(flag != 0, 0, 1).astype(dtype)


def goes_on(x: Rows) -> jax.Array | None:
    """c_t; observation-aligned flags (`last_terminated` is given) judge row t by row t+1."""
    if x.terminated is None:
        return None
    if x.last_terminated is None:
        return keep(x.terminated, x.dtype)
    return x.next(lambda y: keep(y.terminated, x.dtype), edge=keep(x.last_terminated, x.dtype))


def uncut(x: Rows) -> jax.Array | None:
    """m_t."""
    return None if x.truncated is None else keep(x.truncated, x.dtype)


def gated(coefficient: jax.Array | None, x: jax.Array) -> jax.Array:
    """`gate`, where an absent coefficient is 1."""
    return x if coefficient is None else gate(coefficient, x)


def kept_share(x: Rows) -> jax.Array | None:
    """m_t under `on_truncation="drop"`, where it scales whole rows; otherwise nothing."""
    return uncut(x) if x.options.get("on_truncation") == "drop" else None


def dropped(x: Rows, y: jax.Array) -> jax.Array:
    """m_t y_t under `on_truncation="drop"`, y_t otherwise."""
    return gated(kept_share(x), y)


def discount(x: Rows) -> jax.Array:
    """γ_t c_t."""
    return gated(goes_on(x), x.gamma)


def carry(x: Rows) -> jax.Array:
    """γ_t λ_t k_t, with k_t = c_t m_t."""
    trace = discount(x) if x.lambda_ is None else gate(discount(x), x.lambda_)
    return gated(uncut(x), trace)


def successor(x: Rows) -> jax.Array:
    """v'_t: given; or the next row's value, and behind the last row the bootstrap."""
    if x.options["successor"] == "next_values":
        return x.next_values
    if x.options["successor"] == "bootstrap_value":  # read in the last row only
        return jnp.where(x.is_last(), x.bootstrap_value, jnp.zeros_like(x.bootstrap_value))
    bootstrap = x.beyond("values") if x.bootstrap_value is None else x.bootstrap_value
    return x.next(lambda y: y.values, edge=bootstrap)


def td_error(x: Rows) -> jax.Array:
    """r_t + γ_t c_t v'_t - v_t."""
    return x.rewards + gate(discount(x), successor(x)) - x.values


def corrections(
    x: Rows,
    *,
    carry: Callable[[Rows], jax.Array] = carry,
    weight: Callable[[Rows], jax.Array] | None = None,
) -> jax.Array:
    """D_t = w_t δ_t + a_t D_{t+1}: the recurrence of GAE, V-trace and Retrace; D_T = 0."""

    def terms(y: Rows) -> tuple[jax.Array, jax.Array]:
        error = td_error(y) if weight is None else gate(weight(y), td_error(y))
        return carry(y), dropped(y, error)

    return x.solve(terms, reverse=True)


def corrections_vjp(
    x: Rows,
    cotangent: Callable[[Rows], jax.Array],
    *,
    carry: Callable[[Rows], jax.Array] = carry,
    weight: Callable[[Rows], jax.Array] | None = None,
) -> jax.Array:
    """δ̄_t = w_t G_t,  G_t = D̄_t + a_{t-1} G_{t-1}: the scan of the cotangent, forward in time."""
    g = x.solve(lambda y: (y.previous(carry), cotangent(y)), reverse=False)
    return dropped(x, g if weight is None else gate(weight(x), g))


def total(*cotangents: jax.Array | None) -> jax.Array:
    """The sum of the cotangents that there are."""
    first, *rest = (x for x in cotangents if x is not None)
    return sum(rest, start=first)


def cotangents(
    x: Rows, *, rewards: jax.Array, successors: jax.Array, values: jax.Array | None
) -> dict[str, jax.Array | None]:
    """Deals out the cotangents of r_t, v'_t and v_t to the operands that hold them.

    Where v'_t is the next row's value, its cotangent moves one row on, and what leaves the last row
    belongs to the bootstrap.
    """
    if x.options["successor"] == "values":
        values = total(values, x.previous(lambda _: successors))
    return {
        "rewards": rewards,
        "values": values,
        "next_values": successors,
        "bootstrap_value": x.last(successors),
    }
