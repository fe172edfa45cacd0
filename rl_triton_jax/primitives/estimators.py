"""The estimators as primitives: which operands each is linear in, and what it gives."""

from collections.abc import Mapping
from typing import Any

import jax

from rl_triton_jax.primitives.linear_op import LinearOp, linear_recurrence
from rl_triton_jax.recurrences import gae as _gae
from rl_triton_jax.recurrences import policy as _policy
from rl_triton_jax.recurrences import retrace as _retrace
from rl_triton_jax.recurrences import returns as _returns
from rl_triton_jax.recurrences import traces as _traces
from rl_triton_jax.recurrences import vtrace as _vtrace
from rl_triton_jax.recurrences.rows import TABLES

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

_TD = ("rewards", "values", "next_values", "bootstrap_value")

gae = LinearOp(_gae.gae, _gae.gae_vjp, data=_TD, results=("advantages", "targets"))
vtrace = LinearOp(_vtrace.vtrace, _vtrace.vtrace_vjp, data=_TD, results=("advantages", "targets"))
retrace = LinearOp(_retrace.retrace, _retrace.retrace_vjp, data=_TD, results=("targets",))
lambda_returns = LinearOp(
    _returns.lambda_returns, _returns.lambda_returns_vjp, data=_TD, results=("returns",)
)
discounted_returns = LinearOp(
    _returns.discounted_returns, _returns.discounted_returns_vjp, data=_TD, results=("returns",)
)
eligibility_traces = LinearOp(
    _traces.eligibility_traces,
    _traces.eligibility_traces_vjp,
    data=("x", "init"),
    results=("traces",),
)
episodic_prefix_sum = LinearOp(
    _traces.episodic_prefix_sum,
    _traces.episodic_prefix_sum_vjp,
    data=("x", "init"),
    results=("sums",),
)


class _FromPolicy(LinearOp):
    """Of operands with an axis of actions behind all others, of size 1 where they are no tables."""

    def __call__(self, operands: Mapping[str, jax.Array], **params: Any) -> list[jax.Array]:
        wide = {n: x if n in TABLES else x[..., None] for n, x in operands.items()}
        actions = wide["q_values"].shape[-1]
        return [x[..., 0] for x in super().__call__(wide, actions=actions, **params)]


retrace_from_policy = _FromPolicy(
    _policy.retrace_from_policy,
    _policy.retrace_from_policy_vjp,
    data=("rewards", "q_values", "next_q_values"),
    results=("targets",),
)
