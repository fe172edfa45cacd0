"""The checks and timings behind `python -m rl_triton_jax`: each operation against a float64 loop.

The loops are written from the definitions and share nothing with the rest of the package. They take
an operation's arguments under the same names, time first, and one call looks at values and
gradients alike: an operation is linear in its data, so along any direction its derivative is the
loop itself, run on that direction.
"""

import inspect
import time
from collections.abc import Callable, Mapping
from functools import partial

import jax
import numpy as np
from jax import lax

import rl_triton_jax

TOLERANCE = 1e-5
"""Of values and gradients in float32, relative to the largest number of the array."""

DATA = ("rewards", "values", "q_values", "next_values", "next_q_values", "b", "x", "init")
"""The arguments in which an operation is linear."""

ACTIONS = 6
"""Of tables."""


def _solve(a: np.ndarray, b: np.ndarray, h: np.ndarray | float = 0.0, *, reverse: bool = False):
    """h_t = a_t h_{t-1} + b_t, or h_t = a_t h_{t+1} + b_t in reverse, row by row."""
    out = np.empty_like(b)
    for t in range(len(b))[:: -1 if reverse else 1]:
        out[t] = h = a[t] * h + b[t]
    return out


def _after(x, edge):
    """Row t+1 of x in row t, and `edge` in the last."""
    return np.concatenate([x[1:], edge[None]])


def _before(x, edge):
    """Row t-1 of x in row t, and `edge` in the first."""
    return np.concatenate([np.full_like(x[:1], edge), x[:-1]])


def _keeps(terminated, truncated):
    """k_t."""
    return (1 - terminated) * (1 - truncated)


def _error(rewards, values, terminated, next_values, gamma):
    """δ_t = r_t + γ c_t v'_t - v_t."""
    return rewards + gamma * (1 - terminated) * next_values - values


def _gae(rewards, values, terminated, truncated, next_values, gamma, lambda_):
    error = _error(rewards, values, terminated, next_values, gamma)
    carry = gamma * lambda_ * _keeps(terminated, truncated)
    advantages = _solve(carry, error, reverse=True)
    return advantages, advantages + values


def _vtrace(rewards, values, terminated, truncated, next_values, log_rho, gamma, lambda_):
    rho = np.minimum(1, np.exp(log_rho))
    error = _error(rewards, values, terminated, next_values, gamma)
    carry = gamma * lambda_ * _keeps(terminated, truncated) * rho
    targets = values + _solve(carry, rho * error, reverse=True)
    following = np.where(truncated, next_values, _after(targets, next_values[-1]))
    return rho * _error(rewards, values, terminated, following, gamma), targets


def _retrace(rewards, q_values, terminated, truncated, next_values, log_rho, gamma, lambda_):
    trace = lambda_ * np.minimum(1, np.exp(log_rho))
    error = _error(rewards, q_values, terminated, next_values, gamma)
    carry = gamma * _keeps(terminated, truncated) * _after(trace, 0 * trace[-1])
    return (q_values + _solve(carry, error, reverse=True),)


def _retrace_from_policy(
    rewards,
    q_values,
    terminated,
    truncated,
    actions,
    target_probs,
    behaviour_log_prob,
    next_q_values,
    next_target_probs,
    gamma,
    lambda_,
):
    taken = np.asarray(actions, int)[..., None]
    q, pi = (np.take_along_axis(x, taken, -1)[..., 0] for x in (q_values, target_probs))
    expected = np.sum(next_target_probs * next_q_values, -1)
    log_rho = np.log(pi) - behaviour_log_prob
    return _retrace(rewards, q, terminated, truncated, expected, log_rho, gamma, lambda_)


def _lambda_returns(rewards, terminated, truncated, next_values, gamma, lambda_):
    of_return = lambda_ * (1 - truncated)
    of_return[-1] = 0
    discount = gamma * (1 - terminated)
    b = rewards + discount * (1 - of_return) * next_values
    return (_solve(discount * of_return, b, reverse=True),)


def _discounted_returns(rewards, terminated, truncated, next_values, gamma):
    return _lambda_returns(rewards, terminated, truncated, next_values, gamma, 1.0)


def _eligibility_traces(x, terminated, truncated, init, gamma, lambda_):
    return (_solve(gamma * lambda_ * _before(_keeps(terminated, truncated), 1), x, init),)


def _episodic_prefix_sum(x, terminated, truncated, init):
    return (_solve(_before(_keeps(terminated, truncated), 1), x, init),)


def _linear_recurrence(a, b, init):
    return (_solve(a, b, init),)


LOOPS: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
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


def arguments(op: str, steps: int, lanes: int) -> dict[str, np.ndarray]:
    """Random arguments of an operation: float32, and flags that end one row in 25 each."""
    rng = np.random.default_rng(0)
    names = inspect.signature(LOOPS[op]).parameters
    table = (steps, lanes, ACTIONS)

    def draw(name: str) -> np.ndarray:
        match name:
            case "actions":
                return rng.integers(ACTIONS, size=(steps, lanes), dtype=np.int32)
            case "target_probs" | "next_target_probs":
                weights = rng.random(table, np.float32)
                return weights / weights.sum(-1, keepdims=True)
            case "q_values" | "next_q_values" if "actions" in names:
                return rng.standard_normal(table, np.float32)
            case "gamma" | "lambda_":
                return np.asarray({"gamma": 0.99, "lambda_": 0.95}[name], np.float32)
            case "terminated" | "truncated":
                return rng.random((steps, lanes)) < 0.04
            case "a":
                return rng.random((steps, lanes), np.float32)
            case "init":
                return rng.standard_normal(lanes, np.float32)
        return rng.standard_normal((steps, lanes), np.float32)

    return {name: draw(name) for name in names}


def errors(op: str, implementation: str, given: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest errors of the values and of the gradients, relative to the largest number.

    Gradients are compared lane by lane along a random direction d: with the cotangents g of the
    outputs, the gradient times d is g times the loop of d.

    Raises:
      NotImplementedError: if the implementation cannot run here.
    """
    rng = np.random.default_rng(1)
    data = {name: given[name] for name in DATA if name in given}
    direction = {name: rng.standard_normal(x.shape, np.float32) for name, x in data.items()}
    expected = _run_loop(op, given)
    cotangents = [rng.standard_normal(x.shape, np.float32) for x in expected]

    @jax.jit
    def both(data, given, cotangents):
        run = partial(_run, getattr(rl_triton_jax, op), implementation)
        outputs, pull = jax.vjp(lambda data: run(given | data), data)
        return outputs, pull(cotangents)[0]

    outputs, gradients = both(data, dict(given), cotangents)
    slopes = [_by_lane(gradients[name], direction[name]) for name in data]
    rises = list(map(_by_lane, cotangents, _run_loop(op, {**given, **direction})))
    return {
        "values": float(np.max([_distance(x, y) for x, y in zip(outputs, expected, strict=True)])),
        "gradients": _distance(np.sum(slopes, 0), np.sum(rises, 0)),
    }


def chain(op: str, implementation: str, given: Mapping[str, np.ndarray], calls: int) -> Callable:
    """So many calls in one compiled function, each with outputs of the one before as its data.

    Raises:
      NotImplementedError: if the implementation cannot run here.
    """
    run = partial(_run, getattr(rl_triton_jax, op), implementation)
    arrays = jax.device_put(dict(given))
    fed = [name for name in DATA if name in given][: len(jax.eval_shape(run, arrays))]

    def chained(arrays):
        def step(_, outputs):
            # The barrier keeps XLA from doing once what depends on the flags alone.
            return run(lax.optimization_barrier(arrays | dict(zip(fed, outputs, strict=True))))

        return lax.fori_loop(0, calls, step, [arrays[name] for name in fed])

    return partial(jax.jit(chained).lower(arrays).compile(), arrays)


def microseconds(chains: Mapping[str, Callable], *, calls: int, repeats: int) -> dict[str, float]:
    """The time of one of so many calls in a chain, by name: the median of interleaved repeats."""
    times = {name: [] for name in chains}
    for repeat in range(repeats + 1):
        for name, run in chains.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if repeat:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    return {name: 1e6 * float(np.median(x)) / calls for name, x in times.items()}


def _run(function: Callable, implementation: str, given: Mapping) -> list[jax.Array]:
    return jax.tree.leaves(function(**given, implementation=implementation))


def _run_loop(op: str, given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return LOOPS[op](**{name: np.asarray(x, np.float64) for name, x in given.items()})


def _by_lane(x, y) -> np.ndarray:
    """The scalar product of every lane."""
    product = np.asarray(x, np.float64) * y
    return product if product.ndim == 1 else product.sum((0, *range(2, product.ndim)))


def _distance(got, expected: np.ndarray) -> float:
    return float(np.max(abs(np.asarray(got, np.float64) - expected)) / np.max(abs(expected)))
