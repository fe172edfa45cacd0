"""Eligibility traces (Sutton & Barto 2018) and episodic prefix sums, with their derivatives."""

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences import td
from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Arrays, Rows


def eligibility_traces(x: Rows) -> Arrays:
    """z_t = x_t + γ_{t-1} λ_{t-1} k_{t-1} z_{t-1};  z_{-1} = init enters row 0 times γ λ."""
    edge = None if x.init is None else gate(x.gamma, x.lambda_)
    traces = x.solve(lambda y: (y.previous(td.carry, edge), y.x), reverse=False, init=x.init)
    return {"traces": traces}


def eligibility_traces_vjp(x: Rows) -> Arrays:
    """From z̄, backward in time: x̄_t = z̄_t + γ_t λ_t k_t x̄_{t+1};  init's is γ λ x̄_0."""
    g = x.solve(lambda y: (td.carry(y), y.traces), reverse=True)
    if "init" not in x.options["wanted"]:
        return {"x": g}
    return {"x": g, "init": gate(gate(x.gamma, x.lambda_), x.first(g))}


def _keeps(x: Rows) -> jax.Array:
    """k_t = c_t m_t."""
    flags = [k for k in (td.goes_on(x), td.uncut(x)) if k is not None]
    if len(flags) == 2:
        return gate(*flags)
    return flags[0] if flags else jnp.ones((1,) * len(x.shape), x.dtype)


def episodic_prefix_sum(x: Rows) -> Arrays:
    """C_t = x_t + k_{t-1} C_{t-1}, or gated by k_t where a flag marks an episode's first row."""

    def terms(y: Rows) -> tuple[jax.Array, jax.Array]:
        if y.options["boundary"] == "starts_at":
            return _keeps(y), y.x
        return y.previous(_keeps, jnp.ones((1,) * len(y.shape), y.dtype)), y.x

    return {"sums": x.solve(terms, reverse=False, init=x.init)}


def episodic_prefix_sum_vjp(x: Rows) -> Arrays:
    """From C̄, backward in time: x̄_t = C̄_t + k_t x̄_{t+1}  (k_{t+1} for "starts_at")."""
    starts = x.options["boundary"] == "starts_at"
    g = x.solve(lambda y: (y.next(_keeps) if starts else _keeps(y), y.sums), reverse=True)
    return {"x": g, "init": x.first(gate(_keeps(x), g) if starts else g)}
