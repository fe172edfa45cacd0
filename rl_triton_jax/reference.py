"""The operations from plain JAX ones, under the same names and with the same arguments.

`jax.lax.associative_scan` over time (or `implementation="scan"`, a loop), differentiated by JAX
itself: no primitive and no derivative rule of this library but `gate`, the product that cuts. This
is the oracle that the kernels and the derivative rules are held against, and the vectorised
baseline of the benchmarks.

Example:
  >>> import jax.numpy as jnp
  >>> from rl_triton_jax import reference
  >>> reference.discounted_returns(jnp.ones(3), gamma=0.5, bootstrap_value=0.0)
  Array([1.75, 1.5 , 1.  ], dtype=float32)
"""

import functools
from collections.abc import Callable

from rl_triton_jax import config, ops

__all__ = [
    "discounted_returns",
    "eligibility_traces",
    "episodic_prefix_sum",
    "gae",
    "lambda_returns",
    "linear_recurrence",
    "retrace",
    "retrace_from_policy",
    "vtrace",
]


def _unfused[**P, R](op: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(op)
    def reference(*args: P.args, **kwargs: P.kwargs) -> R:
        with config.unfused():
            return op(*args, **kwargs)

    return reference


gae = _unfused(ops.gae)
vtrace = _unfused(ops.vtrace)
retrace = _unfused(ops.retrace)
retrace_from_policy = _unfused(ops.retrace_from_policy)
lambda_returns = _unfused(ops.lambda_returns)
discounted_returns = _unfused(ops.discounted_returns)
eligibility_traces = _unfused(ops.eligibility_traces)
episodic_prefix_sum = _unfused(ops.episodic_prefix_sum)
linear_recurrence = _unfused(ops.linear_recurrence)
