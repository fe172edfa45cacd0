"""What can be timed, by name: the library's forms, and scans as users write them.

The hand-written ones see every operation as h_t = a_t h_{t-1} + b_t (or h_{t+1}), make whole arrays
of a and b, and multiply where an episode ends. `gae` also has the loop that PPO scripts carry.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

import rl_triton_jax
from benchmarks.registry import GAMMA, LAMBDA, OPS, Case
from rl_triton_jax.launch import availability

type Program = Callable[[Mapping[str, jax.Array]], tuple[jax.Array, ...]]

LONGEST_LOOP = 8192
"""Loops over more rows are left out: on a GPU every few rows are a launch."""


def _after(x, last, axis):
    """Row t+1 of x in row t, and `last` in the last one."""
    rows = lax.slice_in_dim(x, 1, None, axis=axis)
    return jnp.concatenate([rows, jnp.expand_dims(last, axis)], axis)


def _before(x, axis):
    """Row t-1 of x in row t; nothing enters the first one."""
    rows = lax.slice_in_dim(x, 0, -1, axis=axis)
    return jnp.concatenate([jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=axis)), rows], axis)


def _error(rewards, values, terminated, next_values):
    return rewards + GAMMA * next_values * (1 - terminated) - values


def _gae(
    axis, rewards, values, terminated, truncated=False, bootstrap_value=None, next_values=None
):
    if next_values is None:
        next_values = _after(values, bootstrap_value, axis)
    error = _error(rewards, values, terminated, next_values)
    return GAMMA * LAMBDA * (1 - (terminated | truncated)), error, lambda h: (h, h + values)


def _vtrace(axis, rewards, values, terminated, log_rho, bootstrap_value):
    rho = jnp.minimum(1, jnp.exp(log_rho))
    following = partial(_after, last=bootstrap_value, axis=axis)

    def finish(h):
        targets = values + h
        return rho * _error(rewards, values, terminated, following(targets)), targets

    error = rho * _error(rewards, values, terminated, following(values))
    return GAMMA * (1 - terminated) * rho, error, finish


def _retrace(axis, rewards, q_values, terminated, log_rho, next_values):
    trace = LAMBDA * jnp.minimum(1, jnp.exp(log_rho))
    carry = GAMMA * (1 - terminated) * _after(trace, jnp.zeros_like(trace.take(0, axis)), axis)
    error = _error(rewards, q_values, terminated, next_values)
    return carry, error, lambda h: (q_values + h,)


def _retrace_from_policy(
    axis,
    rewards,
    q_values,
    terminated,
    actions,
    target_probs,
    behaviour_log_prob,
    next_q_values,
    next_target_probs,
):
    def taken(table):
        return jnp.take_along_axis(table, actions[..., None], -1)[..., 0]

    log_rho = jnp.log(taken(target_probs)) - behaviour_log_prob
    expected = jnp.sum(next_target_probs * next_q_values, -1)
    return _retrace(axis, rewards, taken(q_values), terminated, log_rho, expected)


def _returns(axis, rewards, terminated, next_values, lambda_):
    """λ-returns: all of the last row's successor is its value."""
    discount = GAMMA * (1 - terminated)
    last = lax.broadcasted_iota(jnp.int32, rewards.shape, axis) == rewards.shape[axis] - 1
    mixed = jnp.where(last, next_values, (1 - lambda_) * next_values)
    return discount * lambda_, rewards + discount * mixed, lambda h: (h,)


def _lambda_returns(axis, rewards, terminated, next_values):
    return _returns(axis, rewards, terminated, next_values, LAMBDA)


def _discounted_returns(axis, rewards, terminated, bootstrap_value):
    return _returns(axis, rewards, terminated, jnp.expand_dims(bootstrap_value, axis), 1)


def _eligibility_traces(axis, x, terminated):
    return GAMMA * LAMBDA * _before(1 - terminated, axis), x, lambda h: (h,)


def _episodic_prefix_sum(axis, x, terminated):
    return _before(1 - terminated, axis), x, lambda h: (h,)


def _linear_recurrence(axis, a, b):
    return a, b, lambda h: (h,)


TERMS = {
    "gae": _gae,
    "vtrace": _vtrace,
    "retrace": _retrace,
    "retrace_from_policy": _retrace_from_policy,
    "lambda_returns": _lambda_returns,
    "discounted_returns": _discounted_returns,
    "eligibility_traces": _eligibility_traces,
    "episodic_prefix_sum": _episodic_prefix_sum,
    "linear_recurrence": _linear_recurrence,
}
"""Operation -> (a, b, what makes the outputs of h), from the time axis and the arguments."""

FORWARD = ("eligibility_traces", "episodic_prefix_sum", "linear_recurrence")


def _by_terms(function: str, solve: Callable, axis: int) -> Program:
    def program(arguments):
        a, b, finish = TERMS[function](axis, **arguments)
        return finish(solve(a.astype(b.dtype), b, function not in FORWARD, axis))

    return program


def _parallel(a, b, reverse, axis):
    def compose(first, second):
        return first[0] * second[0], second[1] + second[0] * first[1]

    return lax.associative_scan(compose, (a, b), reverse=reverse, axis=axis)[1]


def _loop(unroll, a, b, reverse, axis):
    def step(h, row):
        h = row[1] + row[0] * h
        return h, h

    rows = (jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0))
    _, h = lax.scan(step, jnp.zeros_like(rows[1][0]), rows, reverse=reverse, unroll=unroll)
    return jnp.moveaxis(h, 0, axis)


def _ppo_loop(unroll: int, axis: int) -> Program:
    """What PPO scripts do for gae, as they write it, in their layout."""

    def step(carry, row):
        advantage, next_value = carry
        reward, value, done = row
        delta = reward + GAMMA * next_value * (1 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
        return (advantage, value), advantage

    def program(arguments):
        rewards, values, dones = (
            jnp.moveaxis(arguments[name], axis, 0) for name in ("rewards", "values", "terminated")
        )
        last = arguments["bootstrap_value"]
        start = (jnp.zeros_like(last), last)
        _, advantages = lax.scan(step, start, (rewards, values, dones), reverse=True, unroll=unroll)
        return tuple(jnp.moveaxis(x, 0, axis) for x in (advantages, advantages + values))

    return program


def _scan(case: Case, unroll: int, axis: int) -> Program:
    if case.op == "gae":
        return _ppo_loop(unroll, axis)
    return _by_terms(case.function, partial(_loop, unroll), axis)


def _vmapped_scan(case: Case) -> Program:
    """RLax's way: a function of one trajectory, vmapped over every axis of lanes."""
    program = _scan(case, 1, 0)
    lanes = case.layout.replace("T", "")
    for i in reversed(range(len(lanes))):
        axis = case.layout.translate(str.maketrans("", "", lanes[:i])).index(lanes[i])
        axes = {name: 0 if name == "bootstrap_value" else axis for name in OPS[case.op].names}
        program = jax.vmap(program, (axes,), axis)
    return program


def _library(case: Case, implementation: str) -> Program:
    op = getattr(rl_triton_jax, case.function)

    def program(arguments):
        outputs = op(
            **arguments,
            **OPS[case.op].constants,
            axis=case.axis,
            implementation=implementation,
        )
        return tuple(jax.tree.leaves(outputs))

    return program


PROGRAMS: dict[str, Callable[[Case], Program]] = {
    "triton": partial(_library, implementation="triton"),
    "library associative_scan": partial(_library, implementation="associative_scan"),
    "library scan": partial(_library, implementation="scan"),
    "lax.associative_scan": lambda case: _by_terms(case.function, _parallel, case.axis),
    "lax.scan(unroll=16)": lambda case: _scan(case, 16, case.axis),
    "lax.scan(unroll=1)": lambda case: _scan(case, 1, case.axis),
    "vmap(lax.scan)": _vmapped_scan,
}
"""Name -> what makes the function of one dict of arrays that is timed."""

ORACLE = "lax.associative_scan"


def subject() -> str:
    """The form of the library that a benchmark on this machine is about."""
    on_gpu = jax.default_backend() == "gpu" and availability.missing_package() is None
    return "triton" if on_gpu else "library scan"


def is_loop(name: str) -> bool:
    """Whether a program goes through time row by row."""
    return "scan" in name and "associative" not in name


def runs(name: str, case: Case) -> bool:
    """Whether this machine can run a program, and in reasonable time."""
    if name in ("triton", subject()):
        return name == subject()
    return case.steps <= LONGEST_LOOP or not is_loop(name)
