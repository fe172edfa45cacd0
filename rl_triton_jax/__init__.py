"""Credit assignment for reinforcement learning, native to every JAX transformation."""

from rl_triton_jax import reference
from rl_triton_jax.config import default_implementation
from rl_triton_jax.ops import (
    GAEOutput,
    VTraceOutput,
    discounted_returns,
    eligibility_traces,
    episodic_prefix_sum,
    gae,
    lambda_returns,
    linear_recurrence,
    retrace,
    retrace_from_policy,
    vtrace,
)

__version__ = "0.1.0"

__all__ = [
    "GAEOutput",
    "VTraceOutput",
    "default_implementation",
    "discounted_returns",
    "eligibility_traces",
    "episodic_prefix_sum",
    "gae",
    "lambda_returns",
    "linear_recurrence",
    "reference",
    "retrace",
    "retrace_from_policy",
    "vtrace",
]
