"""The public operations as float64 loops, written from their definitions: the oracle of the tests.

Each operation is one loop over the rows of a single lane, on Python floats: r rewards, v values,
c = 1 - terminated, m = 1 - truncated. `_by_lane` feeds it the columns of every lane and leaves out
the rows that `mask` does not count, which is what "transparent" means: no loop knows of masks.
"""

import math
from typing import NamedTuple

import numpy as np


class GAEOutput(NamedTuple):
    advantages: np.ndarray
    targets: np.ndarray


class VTraceOutput(NamedTuple):
    advantages: np.ndarray
    targets: np.ndarray


def gae(
    rewards,
    values,
    terminated=None,
    *,
    gamma,
    lambda_,
    bootstrap_value=None,
    next_values=None,
    truncated=None,
    on_truncation="bootstrap",
    last_terminated=None,
    mask=None,
    axis=0,
):
    """A_t = d_t + γ_t λ_t c_t m_t A_{t+1}, d_t = r_t + γ_t c_t v'_t - v_t, targets = A + v."""
    values, bootstrap_value = _split(values, bootstrap_value, rewards, axis)

    def loop(r, v, next_values, c, m, gamma, lambda_, bootstrap_value):
        following = _following(v, bootstrap_value, next_values)
        advantages = [0.0] * (len(r) + 1)
        for t in reversed(range(len(r))):
            error = r[t] + _times(gamma[t] * c[t], following[t]) - v[t]
            if on_truncation == "drop":
                error = _times(m[t], error)
            carry = gamma[t] * lambda_[t] * c[t] * m[t]
            advantages[t] = error + _times(carry, advantages[t + 1])
        advantages.pop()
        return advantages, [a + v for a, v in zip(advantages, v, strict=True)]

    gates = _gates(terminated, truncated, last_terminated, axis)
    rows = dict(r=rewards, v=values, next_values=next_values, gamma=gamma, lambda_=lambda_, **gates)
    return GAEOutput(
        *_by_lane(loop, 2, rewards, axis, mask, rows, dict(bootstrap_value=bootstrap_value))
    )


def vtrace(
    rewards,
    values,
    terminated=None,
    *,
    log_rho=None,
    rho=None,
    gamma,
    lambda_=1.0,
    clip_rho=1.0,
    clip_c=1.0,
    clip_pg_rho=1.0,
    pg_bootstrap="targets",
    bootstrap_value=None,
    next_values=None,
    truncated=None,
    on_truncation="bootstrap",
    last_terminated=None,
    mask=None,
    axis=0,
):
    """D_t = d_t + γ_t λ_t c_t m_t min(c̄, ρ_t) D_{t+1}, targets = v + D,

    d_t = min(ρ̄, ρ_t)(r_t + γ_t c_t v'_t - v_t),
    advantages = min(ρ̄_pg, ρ_t)(r_t + γ_t c_t q'_t - v_t).
    """
    values, bootstrap_value = _split(values, bootstrap_value, rewards, axis)

    def loop(r, v, next_values, c, m, gamma, lambda_, rho, bootstrap_value):
        following = _following(v, bootstrap_value, next_values)
        last = len(r) - 1
        advantages, targets = [0.0] * len(r), [0.0] * len(r)
        difference = 0.0
        for t in reversed(range(len(r))):
            kept = m[t] if on_truncation == "drop" else 1.0
            error = r[t] + _times(gamma[t] * c[t], following[t]) - v[t]
            carry = gamma[t] * lambda_[t] * c[t] * m[t] * _clip(rho[t], clip_c)
            difference = _times(kept * _clip(rho[t], clip_rho), error) + _times(carry, difference)
            targets[t] = v[t] + difference

            if t == last:
                q = following[t]
            else:
                q = targets[t + 1]
                if pg_bootstrap == "mixed":
                    q = _times(lambda_[t], q) + _times(1 - lambda_[t], v[t + 1])
                q = _times(m[t], q) + _times(1 - m[t], following[t])
            advantage = r[t] + _times(gamma[t] * c[t], q) - v[t]
            advantages[t] = _times(kept * _clip(rho[t], clip_pg_rho), advantage)
        return advantages, targets

    gates = _gates(terminated, truncated, last_terminated, axis)
    rows = dict(
        r=rewards,
        v=values,
        next_values=next_values,
        gamma=gamma,
        lambda_=lambda_,
        rho=rho if log_rho is None else _exp(log_rho),
        **gates,
    )
    return VTraceOutput(
        *_by_lane(loop, 2, rewards, axis, mask, rows, dict(bootstrap_value=bootstrap_value))
    )


def retrace(
    rewards,
    q_values,
    terminated=None,
    *,
    next_values,
    log_rho=None,
    trace=None,
    gamma,
    lambda_=1.0,
    truncated=None,
    on_truncation="bootstrap",
    last_terminated=None,
    mask=None,
    axis=0,
):
    """D_t = d_t + γ_t c_t m_t w_{t+1} D_{t+1}, d_t = r_t + γ_t c_t v'_t - q_t, targets = q + D."""
    if trace is None:
        trace = _full(lambda_, np.shape(rewards), axis) * np.minimum(1, _exp(log_rho))

    def loop(r, q, next_values, c, m, gamma, w):
        differences = [0.0] * (len(r) + 1)
        for t in reversed(range(len(r))):
            error = r[t] + _times(gamma[t] * c[t], next_values[t]) - q[t]
            if on_truncation == "drop":
                error = _times(m[t], error)
            carry = gamma[t] * c[t] * m[t] * w[t + 1] if t + 1 < len(r) else 0.0
            differences[t] = error + _times(carry, differences[t + 1])
        differences.pop()
        return [[q + d for q, d in zip(q, differences, strict=True)]]

    gates = _gates(terminated, truncated, last_terminated, axis)
    rows = dict(r=rewards, q=q_values, next_values=next_values, gamma=gamma, w=trace, **gates)
    return _by_lane(loop, 1, rewards, axis, mask, rows)[0]


def retrace_from_policy(
    rewards,
    q_values,
    terminated=None,
    *,
    actions,
    target_probs=None,
    target_logits=None,
    behaviour_log_prob,
    next_q_values,
    next_target_probs=None,
    next_target_logits=None,
    **options,
):
    """`retrace` of q(s_t, a_t), π(a_t|s_t) / μ(a_t|s_t) and E_π q(s_{t+1}, ·)."""

    def of_the_action(table):
        return np.take_along_axis(table, np.asarray(actions)[..., None], axis=-1)[..., 0]

    def log_policy(probs, logits):
        if probs is None:
            return _float(logits) - np.logaddexp.reduce(_float(logits), axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            return np.log(_float(probs))

    next_policy = _exp(log_policy(next_target_probs, next_target_logits))
    log_pi = of_the_action(log_policy(target_probs, target_logits))
    return retrace(
        rewards,
        of_the_action(_float(q_values)),
        terminated,
        next_values=np.sum(next_policy * _float(next_q_values), axis=-1),
        log_rho=log_pi - _float(behaviour_log_prob),
        **options,
    )


def lambda_returns(
    rewards,
    values=None,
    terminated=None,
    *,
    gamma,
    lambda_,
    next_values=None,
    bootstrap_value=None,
    truncated=None,
    on_truncation="bootstrap",
    last_terminated=None,
    mask=None,
    axis=0,
):
    """G_t = r_t + γ_t c_t [(1 - λ_t m_t) v'_t + λ_t m_t G_{t+1}], with λ = 0 in the last row.

    "drop": G_t = (1 - m_t) v_t + m_t (r_t + γ_t c_t [(1 - λ_t) v'_t + λ_t G_{t+1}]).
    """
    values, bootstrap_value = _split(values, bootstrap_value, rewards, axis)

    def loop(r, v, next_values, c, m, gamma, lambda_, bootstrap_value):
        following = _following(v, bootstrap_value, next_values)
        returns = [0.0] * (len(r) + 1)
        for t in reversed(range(len(r))):
            mix = lambda_[t] if t + 1 < len(r) else 0.0
            if on_truncation == "bootstrap":
                mix = mix * m[t]
            successor = _times(1 - mix, following[t]) + _times(mix, returns[t + 1])
            returns[t] = r[t] + _times(gamma[t] * c[t], successor)
            if on_truncation == "drop":
                returns[t] = _times(1 - m[t], v[t]) + _times(m[t], returns[t])
        returns.pop()
        return [returns]

    gates = _gates(terminated, truncated, last_terminated, axis)
    rows = dict(r=rewards, v=values, next_values=next_values, gamma=gamma, lambda_=lambda_, **gates)
    return _by_lane(loop, 1, rewards, axis, mask, rows, dict(bootstrap_value=bootstrap_value))[0]


def discounted_returns(
    rewards,
    terminated=None,
    *,
    gamma,
    bootstrap_value=None,
    next_values=None,
    truncated=None,
    last_terminated=None,
    mask=None,
    axis=0,
):
    """G_t = r_t + γ_t c_t [(1 - m_t) v'_t + m_t G_{t+1}], with m = 0 in the last row."""

    def loop(r, next_values, c, m, gamma, bootstrap_value):
        returns = [0.0] * (len(r) + 1)
        for t in reversed(range(len(r))):
            if t + 1 == len(r):
                successor = bootstrap_value if next_values is None else next_values[t]
            elif next_values is None:
                successor = returns[t + 1]
            else:
                successor = _times(1 - m[t], next_values[t]) + _times(m[t], returns[t + 1])
            returns[t] = r[t] + _times(gamma[t] * c[t], successor)
        returns.pop()
        return [returns]

    gates = _gates(terminated, truncated, last_terminated, axis)
    rows = dict(r=rewards, next_values=next_values, gamma=gamma, **gates)
    return _by_lane(loop, 1, rewards, axis, mask, rows, dict(bootstrap_value=bootstrap_value))[0]


def eligibility_traces(
    x, terminated=None, *, gamma, lambda_, init=None, truncated=None, mask=None, axis=0
):
    """z_t = x_t + γ_{t-1} λ_{t-1} c_{t-1} m_{t-1} z_{t-1}; z_{-1} = init enters times γλ."""

    def loop(x, c, m, gamma, lambda_, init):
        traces = []
        for t in range(len(x)):
            if t == 0:
                carry, before = gamma[0] * lambda_[0], init or 0.0
            else:
                carry = gamma[t - 1] * lambda_[t - 1] * c[t - 1] * m[t - 1]
                before = traces[t - 1]
            traces.append(x[t] + _times(carry, before))
        return [traces]

    rows = dict(x=x, gamma=gamma, lambda_=lambda_, **_gates(terminated, truncated))
    return _by_lane(loop, 1, x, axis, mask, rows, dict(init=init))[0]


def episodic_prefix_sum(
    x, terminated=None, *, init=None, boundary="ends_at", truncated=None, mask=None, axis=0
):
    """C_t = x_t + k_{t-1} C_{t-1} ("ends_at") or x_t + k_t C_{t-1} ("starts_at"), k = c m."""

    def loop(x, c, m, init):
        sums = []
        for t in range(len(x)):
            gate = t if boundary == "starts_at" else t - 1
            carry = c[gate] * m[gate] if gate >= 0 else 1.0
            before = sums[t - 1] if t else init or 0.0
            sums.append(x[t] + _times(carry, before))
        return [sums]

    rows = dict(x=x, **_gates(terminated, truncated))
    return _by_lane(loop, 1, x, axis, mask, rows, dict(init=init))[0]


def linear_recurrence(a, b, init=None, *, reverse=False, axis=0):
    """h_t = a_t h_{t-1} + b_t, or h_t = a_t h_{t+1} + b_t; init is the h before the first row."""

    def loop(a, b, init):
        order = range(len(b))
        states, state = [0.0] * len(b), init or 0.0
        for t in reversed(order) if reverse else order:
            states[t] = state = _times(a[t], state) + b[t]
        return [states]

    return _by_lane(loop, 1, b, axis, None, dict(a=a, b=b), dict(init=init))[0]


def _times(coefficient, x):
    """A cut is a selection: a coefficient of exactly 0 hides x, whatever x is."""
    return 0.0 if coefficient == 0 else coefficient * x


def _clip(rho, limit):
    return rho if limit is None else min(rho, float(limit))


def _following(v, bootstrap_value, next_values):
    """v'_t of every row, where any is given."""
    if next_values is not None or bootstrap_value is None:
        return next_values
    return [*v[1:], bootstrap_value] if v else []


def _split(values, bootstrap_value, rewards, axis):
    """Values of length T + 1 are T values and a bootstrap."""
    if values is None or np.shape(values) == np.shape(rewards):
        return values, bootstrap_value
    values = np.moveaxis(_float(values), axis, 0)
    return np.moveaxis(values[:-1], 0, axis), values[-1]


def _gate(flags, last=None, axis=0):
    """1 - flag: integers are set when nonzero, floats are probabilities.

    With `last` the flags are those that arrived with each observation: row t is judged by t + 1.
    """
    if flags is None:
        return 1.0
    flags = np.asarray(flags)
    gate = 1.0 - (flags != 0 if flags.dtype.kind in "biu" else flags.astype(np.float64))
    if last is None:
        return gate
    gate = np.moveaxis(gate, axis, 0)
    last = np.broadcast_to(_gate(last), gate.shape[1:])
    return np.moveaxis(np.concatenate([gate[1:], last[None]]), 0, axis)


def _gates(terminated, truncated, last_terminated=None, axis=0):
    return dict(c=_gate(terminated, last_terminated, axis), m=_gate(truncated))


def _exp(log):
    with np.errstate(over="ignore"):
        return np.exp(_float(log))


def _float(x):
    return np.asarray(x, np.float64)


def _full(x, shape, axis):
    """A scalar, one number per lane, or an array whose axes are full or 1, as a full array."""
    x = _float(x)
    if x.ndim == len(shape) - 1:
        x = np.expand_dims(x, axis)
    return np.broadcast_to(x, shape)


def _by_lane(loop, outputs, like, axis, mask, rows, numbers=None):
    """`outputs` arrays like `like`: loop(**rows, **numbers) of each lane, 0 where not counted."""
    shape = np.shape(like)
    lane_shape = tuple(np.delete(shape, axis))
    size = math.prod(lane_shape)

    def columns(x):
        return np.moveaxis(_full(x, shape, axis), axis, -1).reshape(size, shape[axis])

    rows = {name: None if x is None else columns(x) for name, x in rows.items()}
    numbers = {
        name: None if x is None else np.broadcast_to(_float(x), lane_shape).ravel()
        for name, x in (numbers or {}).items()
    }
    counted = columns(1.0 if mask is None else np.asarray(mask) != 0) != 0
    results = np.zeros((outputs, size, shape[axis]))
    for lane, keep in enumerate(counted):
        results[:, lane, keep] = loop(
            **{name: None if x is None else x[lane, keep].tolist() for name, x in rows.items()},
            **{name: None if x is None else x[lane].item() for name, x in numbers.items()},
        )
    results = results.reshape(outputs, *lane_shape, shape[axis])
    return [np.moveaxis(result, -1, axis) for result in results]
