"""V-trace."""

from typing import NamedTuple

import jax
import jax.export
from jax.typing import ArrayLike

from rl_triton_jax.ops.arguments import Arguments
from rl_triton_jax.ops.td_arguments import add_flags, add_successors
from rl_triton_jax.primitives import estimators


class VTraceOutput(NamedTuple):
    """What `vtrace` returns, both of the rewards' shape."""

    advantages: jax.Array
    targets: jax.Array


jax.export.register_namedtuple_serialization(
    VTraceOutput, serialized_name="rl_triton_jax.VTraceOutput"
)


def vtrace(
    rewards: ArrayLike,
    values: ArrayLike,
    terminated: ArrayLike | None = None,
    *,
    log_rho: ArrayLike | None = None,
    rho: ArrayLike | None = None,
    gamma: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho: ArrayLike | None = 1.0,
    clip_c: ArrayLike | None = 1.0,
    clip_pg_rho: ArrayLike | None = 1.0,
    pg_bootstrap: str = "targets",
    bootstrap_value: ArrayLike | None = None,
    next_values: ArrayLike | None = None,
    truncated: ArrayLike | None = None,
    on_truncation: str = "bootstrap",
    last_terminated: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    axis: int = 0,
    implementation: str | None = None,
) -> VTraceOutput:
    """V-trace value targets and policy-gradient advantages.

    With ρ = exp(log_rho), c_t = 1 - terminated_t, m_t = 1 - truncated_t, k_t = c_t m_t, D_T = 0
    behind the last row and clips ρ̄, c̄, ρ̄_pg:

        δ_t = min(ρ̄, ρ_t) (r_t + γ_t c_t v'_t - v_t)
        D_t = δ_t + γ_t λ_t k_t min(c̄, ρ_t) D_{t+1}
        targets_t = v_t + D_t
        advantages_t = min(ρ̄_pg, ρ_t) (r_t + γ_t c_t q'_t - v_t)

    where q'_t = m_t targets_{t+1} + (1 - m_t) v'_t, and v'_t in the last row. Row t holds state
    s_t and the action taken there; flags and the successor values v'_t are as in `gae`.

    Args:
      rewards: [T, ...], or time on any other `axis`.
      values: of the states s_t, the rewards' shape, or one row more along time.
      terminated: the rewards' shape; bool, int or float (a probability).
      log_rho: log π(a_t|s_t) - log μ(a_t|s_t), the rewards' shape or a scalar. Clipped before exp
        can overflow.
      rho: the ratio itself, in place of `log_rho`.
      gamma: discount: a scalar, per lane, or of full rank with each axis full or 1.
      lambda_: trace decay, given like gamma.
      clip_rho: ρ̄, a scalar; None for no clip.
      clip_c: c̄, likewise.
      clip_pg_rho: ρ̄_pg, likewise.
      pg_bootstrap: "targets", or "mixed" (RLax) for λ_t targets_{t+1} + (1 - λ_t) v_{t+1} in its
        place.
      bootstrap_value, next_values, truncated, on_truncation, last_terminated, mask: as in `gae`.
      axis: where time is.
      implementation: "triton", "associative_scan", "scan", or None for what suits the machine.

    Returns:
      VTraceOutput(advantages, targets), in the float type of rewards and values.

    Raises:
      ValueError: for shapes and arguments that do not fit together.
      TypeError: for what is no real number.

    Differentiable in every float argument; at ρ_t equal to a clip the derivative is
    `jnp.minimum`'s.

    Example:
      >>> import jax.numpy as jnp
      >>> from rl_triton_jax import vtrace
      >>> advantages, targets = vtrace(
      ...     jnp.array([1.0, 1.0]), jnp.zeros(2), log_rho=jnp.log(jnp.array([0.5, 2.0])),
      ...     gamma=1.0, bootstrap_value=0.5,
      ... )
      >>> targets
      Array([1.25, 1.5 ], dtype=float32)
      >>> advantages
      Array([1.25, 1.5 ], dtype=float32)

    Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
    Architectures", 2018.
    """
    x = Arguments("vtrace", "rewards", rewards, axis)
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
    x.ratios(log_rho=log_rho, rho=rho)
    x.scalar("clip_rho", clip_rho)
    x.scalar("clip_c", clip_c)
    x.scalar("clip_pg_rho", clip_pg_rho)
    x.choice("pg_bootstrap", pg_bootstrap, ("targets", "mixed"))
    options = {"successor": successor, "on_truncation": on_truncation, "pg_bootstrap": pg_bootstrap}
    return VTraceOutput(*x.call(estimators.vtrace, implementation, **options))
