"""What Retrace needs of tables over actions, which are the last axis and stay, of size 1."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences.gate import gate

TABLES = (
    "q_values",
    "target_probs",
    "target_logits",
    "next_q_values",
    "next_target_probs",
    "next_target_logits",
)


@jax.custom_jvp
def of_the_action(table: jax.Array, actions: jax.Array) -> jax.Array:
    """A table's number for the action taken; NaN for one that it does not have."""
    return jnp.take_along_axis(table, actions, axis=-1)


@of_the_action.defjvp
def _(primals, tangents):
    """A selection, whose transpose writes a table once: that of a look-up would scatter into it."""
    table, actions = primals
    count = table.shape[-1]
    taken = jnp.where(actions < 0, actions + count, actions) == jnp.arange(count)
    moved = jnp.sum(jnp.where(taken, tangents[0], 0), axis=-1, keepdims=True)
    return of_the_action(table, actions), moved


def without_tables(operands: Mapping[str, jax.Array], dtype: Any) -> dict[str, jax.Array]:
    """The operands of `retrace` from those of `retrace_from_policy`:

    values = q(s_t, a_t),  next_values = Σ_a π(a|s_{t+1}) q(s_{t+1}, a),
    log_rho = log π(a_t|s_t) - log μ(a_t|s_t)

    An action of probability 0 is not read.
    """
    rest = {n: x for n, x in operands.items() if n not in TABLES}
    tables = {n: operands[n].astype(dtype) for n in TABLES if n in operands}
    actions, behaviour = rest.pop("actions"), rest.pop("behaviour_log_prob").astype(dtype)

    if "target_probs" in tables:
        log_pi = jnp.log(of_the_action(tables["target_probs"], actions))
    else:
        log_pi = of_the_action(jax.nn.log_softmax(tables["target_logits"]), actions)
    if "next_target_probs" in tables:
        probs = tables["next_target_probs"]
    else:
        probs = jax.nn.softmax(tables["next_target_logits"])
    return rest | {
        "values": of_the_action(tables["q_values"], actions),
        "next_values": jnp.sum(gate(probs, tables["next_q_values"]), axis=-1, keepdims=True),
        "log_rho": log_pi - behaviour,
    }
