"""Retrace(λ) from whole action distributions."""

import jax
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.ops.td_arguments import add_flags
from rl_triton_jax.primitives import estimators


def retrace_from_policy(
    rewards: ArrayLike,
    q_values: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    actions: ArrayLike,
    target_probs: ArrayLike | None = None,
    target_logits: ArrayLike | None = None,
    behaviour_log_prob: ArrayLike,
    next_q_values: ArrayLike,
    next_target_probs: ArrayLike | None = None,
    next_target_logits: ArrayLike | None = None,
    gamma: ArrayLike,
    lambda_: ArrayLike = 1.0,
    truncated: ArrayLike | None = None,
    on_truncation: str = "bootstrap",
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Retrace(λ) targets for discrete actions, from the policies and all action values.

    With ρ_t = π(a_t|s_t) / μ(a_t|s_t), c_t = 1 - terminated_t, k_t = c_t (1 - truncated_t):

        w_t = λ_t min(1, ρ_t)
        δ_t = r_t + γ_t c_t Σ_a π(a|s_{t+1}) q(s_{t+1}, a) - q(s_t, a_t)
        D_t = δ_t + γ_t k_t w_{t+1} D_{t+1}
        targets_t = q(s_t, a_t) + D_t

    Row t holds state s_t and the action taken there. The expectation is under the policy *at*
    s_{t+1}; an action that has probability 0 there is not read, so its value may be infinite.

    Args:
      rewards: [T, ...], or time on any other `axis`.
      q_values: q(s_t, ·), the rewards' shape and an axis of actions behind it.
      terminated: the rewards' shape; bool, int or float (a probability).
      actions: the actions taken, integers of the rewards' shape.
      target_probs: π(·|s_t), the shape of q_values.
      target_logits: its unnormalised logarithm, in its place.
      behaviour_log_prob: log μ(a_t|s_t) of the actions taken, the rewards' shape.
      next_q_values: q(s_{t+1}, ·), the shape of q_values.
      next_target_probs: π(·|s_{t+1}), the shape of q_values.
      next_target_logits: its unnormalised logarithm, in its place.
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      lambda_: trace decay, given like gamma.
      truncated, on_truncation, last_terminated, mask: as in `gae`.
      axis: where time is, in rewards.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The targets, of the rewards' shape, in the float type of rewards and q_values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number, and for actions that are no integers.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import retrace_from_policy
      >>> retrace_from_policy(
      ...     jnp.array([0.0]), jnp.zeros((1, 2)), actions=jnp.array([0]),
      ...     target_probs=jnp.array([[1.0, 0.0]]), behaviour_log_prob=jnp.zeros(1),
      ...     next_q_values=jnp.array([[10.0, 20.0]]), next_target_probs=jnp.array([[0.0, 1.0]]),
      ...     gamma=1.0,
      ... )
      Array([20.], dtype=float32)

    Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", 2016.
    """
    x = Arguments("retrace_from_policy", "rewards", rewards, axis)
    x.table("q_values", q_values)
    x.table("next_q_values", next_q_values, like="q_values")
    x.integers("actions", actions)
    for given in (
        dict(target_probs=target_probs, target_logits=target_logits),
        dict(next_target_probs=next_target_probs, next_target_logits=next_target_logits),
    ):
        x.table(*x.one_of(**given), like="q_values", typed=False)
    x.ratios(behaviour_log_prob=x.exact("behaviour_log_prob", behaviour_log_prob))
    x.choice("on_truncation", on_truncation, ("bootstrap", "drop"))
    add_flags(x, terminated, truncated, last_terminated, mask)
    x.coefficient("gamma", gamma)
    x.coefficient("lambda_", lambda_)
    options = {"successor": "next_values", "on_truncation": on_truncation}
    return x.call(estimators.retrace_from_policy, implementation, **options)[0]
