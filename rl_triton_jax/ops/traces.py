"""Eligibility traces and episodic prefix sums, forward in time."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.primitives import estimators


def eligibility_traces(
    x: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    gamma: ArrayLike,
    lambda_: ArrayLike,
    init: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Accumulating eligibility traces, one stream per lane.

    With k_t = (1 - terminated_t) (1 - truncated_t):

        z_t = x_t + γ_{t-1} λ_{t-1} k_{t-1} z_{t-1}

    A flag in row t ends the episode that row t belongs to: row t+1 starts anew. That is the same
    flag array as for `gae`, unshifted.

    Args:
      x: [T, ...], or time on any other `axis`; what is traced (gradients, features, rewards).
      terminated: x's shape; bool, int or float (a probability).
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      lambda_: trace decay, given like gamma.
      init: z_{-1}, a scalar or per lane. Enters row 0 times γ λ, which must be constant in time
        then.
      truncated: x's shape; ends an episode just as `terminated` does.
      mask: x's shape; rows where it is 0 are transparent: the trace passes through them, and they
        give 0.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The traces, of x's shape, in the float type of x and init.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import eligibility_traces
      >>> eligibility_traces(jnp.ones(4), jnp.array([0, 1, 0, 0]), gamma=1.0, lambda_=0.5)
      Array([1. , 1.5, 1. , 1.5], dtype=float32)

    Sutton & Barto, "Reinforcement Learning: An Introduction", 2018, chapter 12.
    """
    arguments = Arguments("eligibility_traces", "x", x, axis)
    arguments.per_lane("init", init)
    arguments.flags("terminated", terminated)
    arguments.flags("truncated", truncated)
    arguments.flags("mask", mask)
    for name, coefficient in (("gamma", gamma), ("lambda_", lambda_)):
        arguments.coefficient(name, coefficient)
        if init is not None and arguments.varies_in_time(name):
            got = f"shape {jnp.shape(coefficient)} beside init"
            arguments.refuse(name, got, "a value constant in time: init enters row 0 times γ λ")
    return arguments.call(estimators.eligibility_traces, implementation)[0]


def episodic_prefix_sum(
    x: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    init: ArrayLike | None = None,
    boundary: str = "ends_at",
    truncated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """Running sums that start anew with every episode (returns so far, step counters).

    With k_t = (1 - terminated_t) (1 - truncated_t):

        C_t = x_t + k_{t-1} C_{t-1}      boundary="ends_at": a flag marks the last row of an episode
        C_t = x_t + k_t C_{t-1}          boundary="starts_at": a flag marks the first row

    Args:
      x: [T, ...], or time on any other `axis`. Integers stay integers, and exact.
      terminated: x's shape; bool, int, or, for a float x, float (a probability).
      init: C_{-1}, a scalar or per lane. With "starts_at", a flag in row 0 drops it.
      boundary: which row of an episode a flag marks.
      truncated: x's shape; a second series of flags, with the same effect.
      mask: x's shape; rows where it is 0 are transparent: the sum passes through them, and they
        give 0.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      The sums, of x's shape, in the type of x and init.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number, or for float flags beside an integer x.

    Differentiable in every float argument.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import episodic_prefix_sum
      >>> episodic_prefix_sum(jnp.array([1, 2, 3, 4]), jnp.array([False, True, False, False]))
      Array([1, 3, 3, 7], dtype=int32)
    """
    arguments = Arguments("episodic_prefix_sum", "x", x, axis)
    arguments.per_lane("init", init)
    arguments.choice("boundary", boundary, ("ends_at", "starts_at"))
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        arguments.flags(name, flags)
        if flags is not None and _is_float(flags) and not _is_float(x):
            got = f"dtype {jnp.asarray(flags).dtype} beside x of dtype {jnp.asarray(x).dtype}"
            arguments.refuse(
                name,
                got,
                "bool or int flags: a probability would not keep integers exact",
                TypeError,
            )
    arguments.flags("mask", mask)
    return arguments.call(
        estimators.episodic_prefix_sum, implementation, keep_integers=True, boundary=boundary
    )[0]


def _is_float(x: ArrayLike) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)
