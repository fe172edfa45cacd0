"""Retrace(λ)."""

import jax
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.ops.td_arguments import add_flags, add_successors
from rl_triton_jax.primitives import estimators


def retrace(
    rewards: ArrayLike,
    q_values: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    next_values: ArrayLike,
    log_rho: ArrayLike | None = None,
    trace: ArrayLike | None = None,
    gamma: ArrayLike,
    lambda_: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    on_truncation: str = "bootstrap",
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Retrace(λ) targets for action values.

    With ρ = exp(log_rho), c_t = 1 - terminated_t, k_t = c_t (1 - truncated_t):

        w_t = λ_t min(1, ρ_t)
        δ_t = r_t + γ_t c_t E_π q(s_{t+1}, ·) - q_t
        D_t = δ_t + γ_t k_t w_{t+1} D_{t+1}
        targets_t = q_t + D_t

    Row t holds state s_t and the action taken there. The step from row t to row t+1 carries the
    ratio of the action at t+1; nothing stands behind the last row, and w_0 is not used.

    Args:
      rewards: [T, ...], or time on any other `axis`.
      q_values: q(s_t, a_t) of the actions taken, the rewards' shape.
      terminated: the rewards' shape; bool, int or float (a probability).
      next_values: the rewards' shape; E_π q(s_{t+1}, ·), the expectation under the target policy
        *at* s_{t+1}.
      log_rho: log π(a_t|s_t) - log μ(a_t|s_t), the rewards' shape or a scalar.
      trace: w_t itself, in place of `log_rho` and `lambda_`.
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      lambda_: trace decay, given like gamma; 1 if absent.
      truncated, on_truncation, last_terminated, mask: as in `gae`.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The targets, of the rewards' shape, in the float type of rewards and values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import retrace
      >>> retrace(
      ...     jnp.array([1.0, 1.0]), jnp.zeros(2), next_values=jnp.array([2.0, 3.0]),
      ...     log_rho=jnp.log(jnp.array([1.0, 0.5])), gamma=1.0,
      ... )
      Array([5., 4.], dtype=float32)

    Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", 2016.
    """
    x = Arguments("retrace", "rewards", rewards, axis)
    successor = add_successors(
        x,
        values=None,
        bootstrap_value=None,
        next_values=x.exact("next_values", next_values),  # there is no other way here
        truncated=truncated,
        on_truncation=on_truncation,
    )
    x.rows("q_values", q_values, store_as="values")
    add_flags(x, terminated, truncated, last_terminated, mask)
    x.coefficient("gamma", gamma)
    x.ratios(log_rho=log_rho, trace=trace)
    if trace is None:
        x.coefficient("lambda_", 1.0 if lambda_ is None else lambda_)
    elif lambda_ is not None:
        x.refuse("lambda_ and trace", "both", "one of them: trace is λ_t min(1, ρ_t) already")
    options = {"successor": successor, "on_truncation": on_truncation}
    return x.call(estimators.retrace, implementation, **options)[0]
