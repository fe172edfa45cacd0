"""The public operations: what they compute, and their arguments."""

from rl_triton_jax.ops.gae import GAEOutput, gae
from rl_triton_jax.ops.recurrence import linear_recurrence
from rl_triton_jax.ops.retrace import retrace
from rl_triton_jax.ops.retrace_from_policy import retrace_from_policy
from rl_triton_jax.ops.returns import discounted_returns, lambda_returns
from rl_triton_jax.ops.traces import eligibility_traces, episodic_prefix_sum
from rl_triton_jax.ops.vtrace import VTraceOutput, vtrace

__all__ = [
    "GAEOutput",
    "VTraceOutput",
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
