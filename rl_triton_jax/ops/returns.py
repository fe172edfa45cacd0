"""TD(λ) and discounted returns."""

import jax
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.ops.td_arguments import add_flags, add_successors
from rl_triton_jax.primitives import estimators


def lambda_returns(
    rewards: ArrayLike,
    values: ArrayLike | None = None,
    terminated: ArrayLike | None = None,
    *,
    gamma: ArrayLike,
    lambda_: ArrayLike,
    next_values: ArrayLike | None = None,
    bootstrap_value: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    on_truncation: str = "bootstrap",
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """TD(λ) returns: the value targets of `gae`.

    With c_t = 1 - terminated_t and m_t = 1 - truncated_t:

        G_t = r_t + γ_t c_t [(1 - λ_t m_t) v'_t + λ_t m_t G_{t+1}]

    and G_t = r_t + γ_t c_t v'_t in the last row. Flags belong to row t's transition, and the
    successor values v'_t are given as in `gae`.

    Args:
      rewards: [T, ...], or time on any other `axis`.
      values: of the states s_t, the rewards' shape, or one row more along time. Read as
        successors, and as the target of a dropped row; not needed beside `next_values` otherwise.
      terminated: the rewards' shape; bool, int or float (a probability).
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      lambda_: trace decay, given like gamma.
      next_values, bootstrap_value, truncated, on_truncation, last_terminated, mask: as in `gae`.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The returns, of the rewards' shape, in the float type of rewards and values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import lambda_returns
      >>> lambda_returns(
      ...     jnp.array([1.0, 2.0]), next_values=jnp.array([3.0, 4.0]), gamma=1.0, lambda_=0.5
      ... )
      Array([5.5, 6. ], dtype=float32)

    Sutton & Barto, "Reinforcement Learning: An Introduction", 2018, chapter 12.
    """
    x = Arguments("lambda_returns", "rewards", rewards, axis)
    drops = on_truncation == "drop" and truncated is not None
    if values is None and (drops or next_values is None):
        reason = "the target of a dropped row is its value" if drops else "or next_values"
        x.refuse("values", "None", f"the values of the states ({reason})")
    successor = add_successors(
        x,
        values=values,
        bootstrap_value=bootstrap_value,
        next_values=next_values,
        truncated=truncated,
        on_truncation=on_truncation,
        only_successors=not drops,
    )
    add_flags(x, terminated, truncated, last_terminated, mask)
    x.coefficient("gamma", gamma)
    x.coefficient("lambda_", lambda_)
    options = {"successor": successor, "on_truncation": on_truncation}
    return x.call(estimators.lambda_returns, implementation, **options)[0]


def discounted_returns(
    rewards: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    gamma: ArrayLike,
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Discounted sums of rewards to the end of the episode, or to the bootstrap: `lambda_returns`
    at λ = 1.

    With c_t = 1 - terminated_t and m_t = 1 - truncated_t:

        G_t = r_t + γ_t c_t [(1 - m_t) v'_t + m_t G_{t+1}]

    and G_t = r_t + γ_t c_t v'_t in the last row. Flags belong to row t's transition; v'_t is read
    at truncated rows and in the last row only.

    Args:
      rewards: [T, ...], or time on any other `axis`.
      terminated: the rewards' shape; bool, int or float (a probability).
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      bootstrap_value: value of the state behind the last row; a scalar or per lane.
      next_values: the rewards' shape; value of the state after each row's transition, in its place.
      truncated: the rewards' shape; the episode was cut although a value follows. Needs
        `next_values`.
      last_terminated, mask: as in `gae`.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The returns, of the rewards' shape, in the float type of rewards and successor values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import discounted_returns
      >>> discounted_returns(
      ...     jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 1, 0]), gamma=0.5, bootstrap_value=4.0
      ... )
      Array([2., 2., 5.], dtype=float32)

    Sutton & Barto, "Reinforcement Learning: An Introduction", 2018, chapter 3.
    """
    x = Arguments("discounted_returns", "rewards", rewards, axis)
    successor = add_successors(
        x,
        values=None,
        bootstrap_value=bootstrap_value,
        next_values=next_values,
        truncated=truncated,
        on_truncation="bootstrap",
    )
    add_flags(x, terminated, truncated, last_terminated, mask)
    x.coefficient("gamma", gamma)
    return x.call(estimators.discounted_returns, implementation, successor=successor)[0]
