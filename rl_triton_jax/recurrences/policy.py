"""Retrace from tables over actions, which are the last axis, and stay, of size 1."""

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.retrace import retrace, retrace_vjp
from rl_triton_jax.recurrences.rows import TABLES, Arrays, Rows


@jax.custom_jvp
def of_the_action(table: jax.Array, actions: jax.Array) -> jax.Array:
    """A table's number for the action taken; NaN for one that it does not have."""
    return jnp.take_along_axis(table, actions, axis=-1)


@of_the_action.defjvp
def _(primals, tangents):
    """A selection, whose transpose writes a table once: that of a look-up would scatter into it."""
    table, actions = primals
    selected = jnp.where(_taken(actions, table.shape[-1]), tangents[0], 0)
    return of_the_action(table, actions), jnp.sum(selected, axis=-1, keepdims=True)


def _taken(actions: jax.Array, count: int) -> jax.Array:
    """For every action, whether it is the one taken."""
    return jnp.where(actions < 0, actions + count, actions) == jnp.arange(count)


def _log_rho(x: Rows) -> jax.Array:
    """log π(a_t|s_t) - log μ(a_t|s_t)."""
    if x.target_logits is None:
        log_pi = jnp.log(of_the_action(x.target_probs, x.actions))
    else:
        log_pi = of_the_action(jax.nn.log_softmax(x.target_logits), x.actions)
    return log_pi - x.behaviour_log_prob


def _next_policy(x: Rows) -> jax.Array:
    """π(·|s_{t+1})."""
    if x.next_target_logits is None:
        return x.next_target_probs
    return jax.nn.softmax(x.next_target_logits)


def _without_tables(x: Rows) -> Rows:
    """The operands of Retrace, its values where there are tables of them:

    v_t = q(s_t, a_t),  v'_t = Σ_a π(a|s_{t+1}) q(s_{t+1}, a)

    An action of probability 0 is not read.
    """
    found = {"log_rho": _log_rho(x)}
    if x.q_values is not None:
        found["values"] = of_the_action(x.q_values, x.actions)
    if x.next_q_values is not None:
        expected = gate(_next_policy(x), x.next_q_values)
        found["next_values"] = jnp.sum(expected, axis=-1, keepdims=True)
    return x.instead((*TABLES, "actions", "behaviour_log_prob"), found)


def retrace_from_policy(x: Rows) -> Arrays:
    """`retrace` behind an expectation, a ratio and two look-ups."""
    return retrace(_without_tables(x))


def retrace_from_policy_vjp(x: Rows) -> Arrays:
    """`retrace_vjp`, whose cotangents of values go back to the tables:

    q̄(s_t, a) = v̄_t where a is a_t, and 0 elsewhere;  q̄(s_{t+1}, a) = π(a|s_{t+1}) v̄'_t
    """
    found = retrace_vjp(_without_tables(x))
    values, next_values = found["values"], found["next_values"]
    assert values is not None and next_values is not None  # they do not share an operand
    return {
        "rewards": found["rewards"],
        "q_values": jnp.where(_taken(x.actions, x.options["actions"]), values, 0),
        "next_q_values": gate(_next_policy(x), next_values),
    }
