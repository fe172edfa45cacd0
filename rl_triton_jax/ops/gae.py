"""Generalised advantage estimation."""

from typing import NamedTuple

import jax
import jax.export
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.ops.td_arguments import add_flags, add_successors
from rl_triton_jax.primitives import estimators


class GAEOutput(NamedTuple):
    """What `gae` returns, both of the rewards' shape."""

    advantages: jax.Array
    targets: jax.Array


jax.export.register_namedtuple_serialization(GAEOutput, serialized_name="rl_triton_jax.GAEOutput")


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    gamma: ArrayLike,
    lambda_: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    on_truncation: str = "bootstrap",
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> GAEOutput:
    """Generalised advantage estimates, and the value targets that go with them.

    With c_t = 1 - terminated_t and k_t = c_t (1 - truncated_t), A_T = 0 behind the last row:

        δ_t = r_t + γ_t c_t v'_t - v_t
        A_t = δ_t + γ_t λ_t k_t A_{t+1}
        targets_t = A_t + v_t

    Row t holds state s_t, the action taken there and its reward; `terminated[t]` and
    `truncated[t]` say how the transition *out of* s_t ended. v'_t is the value of the state that
    it led to, given in exactly
    one way: `values` [T] with `bootstrap_value` (v'_t = values[t+1], in the last row the
    bootstrap), `values` [T+1], or `values` [T] with `next_values` [T].

    Args:
      rewards: [T, ...], or time on any other `axis`; any float type, integers become float.
      values: of the states s_t, the rewards' shape, or one row more along time.
      terminated: the rewards' shape; the episode ended, no value follows. Bool, int (set where not
        0), or float (a probability).
      gamma: discount. A scalar, or per lane (the rewards' shape without time), or of full rank with
        each axis full or 1, so [T, 1] is per time.
      lambda_: trace decay, given like gamma.
      bootstrap_value: value of the state behind the last row; a scalar or per lane.
      next_values: the rewards' shape; value of the state after each row's transition.
      truncated: the rewards' shape; the episode was cut although a value follows. Needs
        `next_values` (the next row belongs to the reset state) or `on_truncation="drop"`.
      on_truncation: "bootstrap": from `next_values`. "drop" (Brax): a truncated row has advantage
        0 and its value as target.
      last_terminated: per lane; says that flags are observation-aligned: `terminated[t]` arrived
        *with* s_t, so row t is judged by `terminated[t+1]` and the last row by this.
      mask: the rewards' shape; rows where it is 0 (padding, tool tokens) are transparent: the
        carry and the successor value pass through them, and they give 0.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      GAEOutput(advantages, targets), in the float type of rewards and values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument; use `jax.lax.stop_gradient` where none should flow.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import gae
      >>> advantages, targets = gae(
      ...     jnp.array([1.0, 1.0, 1.0]),
      ...     jnp.array([0.5, 0.5, 0.5]),
      ...     jnp.array([False, True, False]),
      ...     gamma=0.5, lambda_=0.5, bootstrap_value=2.0,
      ... )
      >>> advantages
      Array([0.875, 0.5  , 1.5  ], dtype=float32)
      >>> targets
      Array([1.375, 1.   , 2.   ], dtype=float32)

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    2016.
    """
    x = Arguments("gae", "rewards", rewards, axis)
    successor = add_successors(
        x,
        values=values,
        bootstrap_value=bootstrap_value,
        next_values=next_values,
        truncated=truncated,
        on_truncation=on_truncation,
    )
    add_flags(x, terminated, truncated, last_terminated, mask)
    x.coefficient("gamma", gamma)
    x.coefficient("lambda_", lambda_)
    return GAEOutput(
        *x.call(estimators.gae, implementation, successor=successor, on_truncation=on_truncation)
    )
