"""The definitions, one row after another, as a `lax.scan` that JAX differentiates."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax


def _keep(flag):
    if flag is None:
        return 1.0
    return 1 - flag if jnp.issubdtype(flag.dtype, jnp.floating) else jnp.where(flag != 0, 0.0, 1.0)


def _gates(terminated, truncated, last_terminated=None):
    if last_terminated is not None:
        terminated = jnp.concatenate([terminated[1:], last_terminated[None]])
    return {"c": _keep(terminated), "m": _keep(truncated)}


def _loop(step, state, shape, arrays, mask, reverse):
    """step(row, state) -> (state, outputs); rows that the mask does not count are passed over."""
    rows = {name: jnp.broadcast_to(x, shape) for name, x in arrays.items() if x is not None}
    counts = jnp.ones(shape, bool) if mask is None else mask != 0

    def body(state, row):
        row, counts = row
        new, outputs = step(SimpleNamespace(**row), SimpleNamespace(**state))
        state = {name: jnp.where(counts, new[name], x) for name, x in state.items()}
        return state, jax.tree.map(lambda y: jnp.where(counts, y, 0.0), outputs)

    state = {name: jnp.broadcast_to(x, shape[1:]) for name, x in state.items()}
    return lax.scan(body, state, (rows, counts), reverse=reverse)[1]


def _backward(
    step,
    carried,
    rewards,
    values=None,
    terminated=None,
    *,
    bootstrap_value=None,
    next_values=None,
    truncated=None,
    last_terminated=None,
    mask=None,
    **coefficients,
):
    """step(row, following): `carried` of the row that follows, its value `v`, and whether none does
    (`last`)."""
    zero = jnp.zeros_like(rewards[0])
    if values is not None and len(values) > len(rewards):
        values, bootstrap_value = values[:-1], values[-1]

    def with_successor(row, following):
        row.successor = following.v if next_values is None else row.next
        state, outputs = step(row, following)
        return state | {"v": following.v if values is None else row.v, "last": zero}, outputs

    state = dict.fromkeys(carried, zero) | {"last": zero + 1}
    state["v"] = zero if bootstrap_value is None else bootstrap_value
    arrays = {"r": rewards, "v": values, "next": next_values, **coefficients}
    arrays |= _gates(terminated, truncated, last_terminated)
    return _loop(with_successor, state, rewards.shape, arrays, mask, reverse=True)


def gae(*args, on_truncation="bootstrap", **kwargs):
    def step(x, following):
        error = x.r + x.gamma * x.c * x.successor - x.v
        if on_truncation == "drop":
            error = x.m * error
        advantage = error + x.gamma * x.lambda_ * x.c * x.m * following.advantage
        return {"advantage": advantage}, (advantage, advantage + x.v)

    return _backward(step, ["advantage"], *args, **kwargs)


def vtrace(*args, log_rho=None, pg_bootstrap="targets", on_truncation="bootstrap", **kwargs):
    def step(x, following):
        rho = x.rho if log_rho is None else jnp.exp(x.log_rho)
        kept = x.m if on_truncation == "drop" else 1.0
        error = jnp.minimum(x.clip_rho, rho) * (x.r + x.gamma * x.c * x.successor - x.v)
        trace = x.gamma * x.lambda_ * x.c * x.m * jnp.minimum(x.clip_c, rho)
        correction = kept * error + trace * following.correction
        q = following.target
        if pg_bootstrap == "mixed":
            q = x.lambda_ * q + (1 - x.lambda_) * following.v
        q = jnp.where(following.last == 1, x.successor, x.m * q + (1 - x.m) * x.successor)
        advantage = jnp.minimum(x.clip_pg_rho, rho) * (x.r + x.gamma * x.c * q - x.v)
        state = {"correction": correction, "target": x.v + correction}
        return state, (kept * advantage, x.v + correction)

    return _backward(step, ["correction", "target"], *args, log_rho=log_rho, **kwargs)


def retrace(rewards, q_values, *args, log_rho=None, trace=None, **kwargs):
    def step(x, following):
        w = x.lambda_ * jnp.minimum(1, jnp.exp(x.log_rho)) if trace is None else x.trace
        error = x.r + x.gamma * x.c * x.successor - x.v
        correction = error + x.gamma * x.c * x.m * following.w * following.correction
        return {"correction": correction, "w": w}, x.v + correction

    given = {"log_rho": log_rho, "trace": trace}
    return _backward(step, ["correction", "w"], rewards, q_values, *args, **given, **kwargs)


def lambda_returns(*args, on_truncation="bootstrap", **kwargs):
    def step(x, following):
        mix = x.lambda_ if on_truncation == "drop" else x.lambda_ * x.m
        mix = jnp.where(following.last == 1, 0.0, mix)
        future = (1 - mix) * x.successor + mix * following.returns
        returns = x.r + x.gamma * x.c * future
        if on_truncation == "drop":
            returns = x.m * returns + (1 - x.m) * x.v
        return {"returns": returns}, returns

    return _backward(step, ["returns"], *args, **kwargs)


def discounted_returns(rewards, **kwargs):
    return lambda_returns(rewards, lambda_=jnp.ones_like(rewards), **kwargs)


def eligibility_traces(x, terminated=None, *, gamma, lambda_, init=0.0, truncated=None, mask=None):
    def step(row, before):
        trace = row.x + before.carry * before.trace
        return {"trace": trace, "carry": row.gamma * row.lambda_ * row.c * row.m}, trace

    arrays = {"x": x, "gamma": gamma, "lambda_": lambda_, **_gates(terminated, truncated)}
    first = gamma * lambda_ if jnp.ndim(gamma * lambda_) < x.ndim else 0.0  # then without init
    return _loop(step, {"trace": init, "carry": first}, x.shape, arrays, mask, reverse=False)


def episodic_prefix_sum(
    x, terminated=None, *, init=0.0, truncated=None, mask=None, boundary="ends_at"
):
    def step(row, before):
        keeps = row.c * row.m
        total = row.x + (keeps if boundary == "starts_at" else before.keeps) * before.total
        return {"total": total, "keeps": keeps}, total

    arrays = {"x": x, **_gates(terminated, truncated)}
    return _loop(step, {"total": init, "keeps": 1.0}, x.shape, arrays, mask, reverse=False)


def linear_recurrence(a, b, init=0.0, *, reverse=False):
    def step(row, before):
        h = row.a * before.h + row.b
        return {"h": h}, h

    return _loop(step, {"h": init}, b.shape, {"a": a, "b": b}, None, reverse)
