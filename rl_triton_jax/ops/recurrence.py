"""The linear recurrence itself."""

import jax
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.primitives import estimators


def linear_recurrence(
    a: ArrayLike,
    b: ArrayLike,
    init: ArrayLike | None = None,
    *,
    reverse: bool = False,
    axis: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """The first-order linear recurrence that all other operations are cases of.

        h_t = a_t h_{t-1} + b_t        or, with `reverse`,  h_t = a_t h_{t+1} + b_t

    An a_t that is exactly 0 selects b_t: nothing before row t, not even NaN, reaches it.

    Args:
      a: the factor that enters row t: a scalar, per lane (b's shape without time), or of b's rank
        with each axis full or 1.
      b: [T, ...], or time on any other `axis`.
      init: the h before the row that is computed first; a scalar or per lane. 0 if absent.
      reverse: whether the last row is computed first.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      h, of b's shape, in the float type of a, b and init.

    Raises:
      ValueError: for shapes that do not fit together.
      TypeError: for what is no real number.

    Differentiable in a, b and init.

    The parallel scan multiplies factors before it applies them: a run of factors above 1 whose
    product overflows gives inf or NaN there, where the loop stays finite.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import linear_recurrence
      >>> linear_recurrence(jnp.array([0.5, 0.5, 2.0]), jnp.array([1.0, 1.0, 1.0]), init=2.0)
      Array([2., 2., 5.], dtype=float32)

    Blelloch, "Prefix Sums and Their Applications", 1990.
    """
    x = Arguments("linear_recurrence", "b", b, axis)
    x.data_coefficient("a", a)
    x.per_lane("init", init)
    return x.call(estimators.linear_recurrence, implementation, reverse=reverse)[0]
