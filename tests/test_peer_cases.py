"""The test cases of rl-triton (Zehnder 2026), a PyTorch library of the same estimators.

Its numbers, shapes, laws of random inputs and tolerances; time is the last axis, as there. Its
advantages of Retrace have no counterpart here. Where its answers differ from the definitions, the
definitions' stand here.
"""

import numpy as np
import pytest

import rl_triton_jax
from tests import oracles
from tests.inputs import call

TINY, RANDOM = 1e-5, 1e-4


def array(x):
    return np.asarray(x, np.float32)


def with_carry(next_values, lambda_, carry):
    """The peer's λ-returns mix the last successor value with a carry; ours bootstrap wholly."""
    next_values = array(next_values)
    last = (1 - lambda_) * next_values[..., -1:] + lambda_ * array(carry)[..., None]
    return array(np.concatenate([next_values[..., :-1], last], axis=-1))


GAE = dict(bootstrap_value=0.0, gamma=1.0, lambda_=1.0)
ZEROS = [0, 0, 0]
VTRACE = dict(rewards=[1, 1], values=[0, 0], log_rho=[0, 0], bootstrap_value=0.0, gamma=1.0)
BARS = dict(clip_rho=100.0, clip_c=100.0, clip_pg_rho=100.0)
RETRACE = dict(rewards=[1, 1], q_values=[0, 0], log_rho=[0, 0], gamma=1.0)
RETURNS = dict(rewards=[1, 2], gamma=1.0)
DISCOUNTED = dict(rewards=[1, 2], gamma=0.9, bootstrap_value=0.0)
TRACES = dict(gamma=1.0, lambda_=1.0)
STARTS = dict(boundary="starts_at")

EXACT = [
    ("gae", GAE | dict(rewards=[1, 2, 3], values=ZEROS), [6, 5, 3]),
    ("gae", GAE | dict(rewards=[1, 2, 3], values=[1, 1, 1]), [5, 4, 2]),
    ("gae", GAE | dict(rewards=[1, 2, 3], values=ZEROS, bootstrap_value=2.0), [8, 7, 5]),
    ("gae", GAE | dict(rewards=[1, 2, 3], values=ZEROS, terminated=[0, 1, 0]), [3, 2, 3]),
    (
        "gae",
        GAE | dict(rewards=[[1, 2], [1, 2]], values=np.zeros((2, 2)), bootstrap_value=[0, 5]),
        [[3, 2], [8, 7]],
    ),
    ("gae", GAE | dict(rewards=[[1, 2], [3, 4]], values=np.zeros((2, 2))), [[3, 2], [7, 4]]),
    ("gae", GAE | dict(rewards=[1, 2], values=[0, 0], gamma=0.9), [2.8, 2]),
    ("gae", GAE | dict(rewards=[1, 2, 3], values=ZEROS, lambda_=0.0), [1, 2, 3]),
    ("vtrace", VTRACE | BARS, [[2, 1], [2, 1]]),
    ("vtrace", VTRACE | BARS | dict(bootstrap_value=0.5), [[2.5, 1.5], [2.5, 1.5]]),
    ("vtrace", VTRACE | BARS | dict(terminated=[1, 0]), [[1, 1], [1, 1]]),
    ("vtrace", VTRACE | dict(log_rho=np.log([0.5, 0.5])), [[0.75, 0.5], [0.75, 0.5]]),
    ("retrace", RETRACE | dict(next_values=[2, 3]), [7, 4]),
    ("retrace", RETRACE | dict(next_values=[2, 3], terminated=[1, 0]), [1, 4]),
    ("retrace", RETRACE | dict(next_values=[0.5, 0.5], log_rho=np.log([2, 2])), [3, 1.5]),
    ("retrace", RETRACE | dict(next_values=[5, 5], truncated=[0, 1]), [12, 6]),
    ("retrace", RETRACE | dict(next_values=[2, 3], truncated=[1, 0]), [3, 4]),
    (
        "retrace",
        dict(rewards=[1], q_values=[0], log_rho=[0], gamma=1.0, next_values=[5], terminated=[1]),
        [1],
    ),
    (
        "retrace",
        dict(rewards=[1], q_values=[0], log_rho=[0], gamma=1.0, next_values=[5], truncated=[1]),
        [6],
    ),
    # The expectation is of the policy in the next state; the peer's, of the policy here, gives 10.
    (
        "retrace_from_policy",
        dict(
            rewards=[0],
            q_values=[[0, 0]],
            actions=np.array([0]),
            target_probs=[[1, 0]],
            behaviour_log_prob=[0],
            next_q_values=[[10, 20]],
            next_target_probs=[[0, 1]],
            gamma=1.0,
        ),
        [20],
    ),
    ("lambda_returns", RETURNS | dict(lambda_=0.0, next_values=[3, 4]), [4, 6]),
    (
        "lambda_returns",
        RETURNS | dict(lambda_=0.5, next_values=with_carry([3, 4], 0.5, 0)),
        [4.5, 4],
    ),
    (
        "lambda_returns",
        RETURNS | dict(lambda_=0.5, next_values=with_carry([3, 4], 0.5, 0), terminated=[1, 0]),
        [1, 4],
    ),
    ("lambda_returns", RETURNS | dict(lambda_=1.0, next_values=with_carry([99, 99], 1, 0)), [3, 2]),
    ("lambda_returns", RETURNS | dict(lambda_=1.0, next_values=with_carry([99, 99], 1, 5)), [8, 7]),
    # Without a carry the peer's last row takes half of the value.
    ("lambda_returns", RETURNS | dict(lambda_=0.5, next_values=[3, 4]), [5.5, 6]),
    ("discounted_returns", DISCOUNTED, [2.8, 2]),
    ("discounted_returns", DISCOUNTED | dict(terminated=[1, 0]), [1, 2]),
    ("eligibility_traces", TRACES | dict(x=[1, 2, 3]), [1, 3, 6]),
    ("eligibility_traces", TRACES | dict(x=[1, 2], lambda_=0.5), [1, 2.5]),
    (
        "eligibility_traces",
        TRACES | dict(x=[1, 2, 3], lambda_=0.9, terminated=[0, 1, 0]),
        [1, 2.9, 3],
    ),
    ("eligibility_traces", TRACES | dict(x=[1, 2], init=2.0), [3, 5]),
    ("eligibility_traces", TRACES | dict(x=[1, 2, 3], lambda_=0.0), [1, 2, 3]),
    ("episodic_prefix_sum", dict(x=[1, 2, 3]), [1, 3, 6]),
    ("episodic_prefix_sum", dict(x=[5, 2, 3], terminated=[1, 0, 0]), [5, 2, 5]),
    ("episodic_prefix_sum", STARTS | dict(x=[5, 2, 3], terminated=[1, 0, 0]), [5, 7, 10]),
    ("episodic_prefix_sum", dict(x=[1, 2, 3, 4], terminated=[0, 0, 1, 0]), [1, 3, 6, 4]),
    ("episodic_prefix_sum", STARTS | dict(x=[1, 2, 3, 4], terminated=[0, 0, 1, 0]), [1, 3, 3, 7]),
    ("episodic_prefix_sum", dict(x=[1, 2, 3], terminated=[1, 1, 1]), [1, 2, 3]),
    ("episodic_prefix_sum", STARTS | dict(x=[1, 2, 3], terminated=[1, 1, 1]), [1, 2, 3]),
    ("episodic_prefix_sum", dict(x=[1, 2], init=10.0), [11, 13]),
    ("episodic_prefix_sum", dict(x=[1, 2], init=10.0, terminated=[1, 0]), [11, 2]),
    ("episodic_prefix_sum", STARTS | dict(x=[1, 2], init=10.0, terminated=[1, 0]), [1, 3]),
    ("episodic_prefix_sum", dict(x=[4, 2, 3], terminated=[0, 1, 0]), [4, 6, 3]),
    ("episodic_prefix_sum", STARTS | dict(x=[4, 2, 3], terminated=[0, 1, 0]), [4, 2, 5]),
]


@pytest.mark.parametrize(("op", "arguments", "expected"), EXACT)
def test_exact_cases(op, arguments, expected):
    arguments = {name: array(x) if isinstance(x, list) else x for name, x in arguments.items()}
    got = call(op, **arguments, axis=-1, dtype=np.float32)
    if op == "gae":
        np.testing.assert_allclose(got.targets, array(expected) + arguments["values"], atol=TINY)
        got = got.advantages
    np.testing.assert_allclose(got, expected, rtol=TINY, atol=TINY)


class Draw:
    """The peer's laws for [N, T] steps, or [N, T, A] where actions are discrete."""

    def __init__(self, shape, seed=42, dtype=np.float32):
        self.rng, self.dtype = np.random.default_rng(seed), dtype
        self.lanes, self.shape, self.actions = shape[:1], shape[:2], shape[2:]

    def normal(self, *more):
        return self.rng.standard_normal((*self.shape, *more)).astype(self.dtype)

    def uniform(self, low=0.0, high=1.0, shape=None):
        return self.rng.uniform(low, high, shape or self.shape).astype(self.dtype)

    def last(self, low=0.0, high=1.0):
        return self.uniform(low, high, self.lanes)

    def flags(self, rate=0.05):
        return self.rng.random(self.shape) < rate

    def policy(self):
        weights = np.exp(self.normal(*self.actions))
        return weights / weights.sum(-1, keepdims=True)


LAWS = {
    "gae": lambda d: dict(
        rewards=d.normal(),
        values=d.normal(),
        terminated=d.flags(),
        bootstrap_value=0.0,
        gamma=0.99,
        lambda_=0.95,
    ),
    "vtrace": lambda d: dict(
        log_rho=d.uniform() - d.uniform(),
        rewards=d.normal(),
        values=d.normal(),
        terminated=d.flags(),
        bootstrap_value=0.0,
        gamma=0.99,
    ),
    "retrace": lambda d: dict(
        rewards=d.normal(),
        q_values=d.normal(),
        next_values=d.normal(),
        terminated=d.flags(),
        truncated=d.flags(),
        gamma=0.99,
    ),
    "retrace_from_policy": lambda d: dict(
        rewards=d.normal(),
        q_values=d.normal(*d.actions),
        next_q_values=d.normal(*d.actions),
        actions=d.rng.integers(*d.actions, size=d.shape),
        target_probs=d.policy(),
        next_target_probs=d.policy(),
        behaviour_log_prob=np.log(d.uniform(0.1, 0.9)),
        terminated=d.flags(),
        truncated=d.flags(),
        gamma=0.99,
    ),
    "lambda_returns": lambda d: dict(rewards=d.normal(), terminated=d.flags(), gamma=0.99),
    "discounted_returns": lambda d: dict(
        rewards=d.normal(), terminated=d.flags(), bootstrap_value=0.0, gamma=0.99
    ),
    "eligibility_traces": lambda d: dict(x=d.normal(), terminated=d.flags(), gamma=0.99),
    "episodic_prefix_sum": lambda d: dict(x=d.normal(), terminated=d.flags()),
    "linear_recurrence": lambda d: dict(a=d.uniform(0, 0.99), b=d.normal(), reverse=True),
}

SHAPES = [(1, 1), (1, 7), (4, 128), (32, 333), (128, 1024), (256, 2048)]
SHORT = [(1, 1), (1, 7), (4, 128), (32, 512), (128, 1024)]
POLICIES = [
    *[(1, 1, 2), (1, 7, 4), (4, 128, 8), (32, 333, 4), (128, 1024, 6)],
    *[(8, 4096, 4), (4, 8192, 3), (2, 2049, 5)],
]
MIXES = [(1, 1, 0.0), (1, 7, 1.0), (4, 128, 0.5), (32, 333, 0.95), (128, 1024, 0.9)]
DECAYS = [(1, 1, 0.0), (1, 7, 1.0), (4, 128, 0.5), (32, 333, 0.9), (128, 1024, 0.95)]
SCANS = [(1, 1), (1, 7), (4, 1024), (4, 1025), (8, 2048), (32, 3000), (64, 4096), (2, 131073)]


def mixed(lambda_, carry):
    return dict(lambda_=lambda_, next_values=lambda d: with_carry(d.normal(), lambda_, carry(d)))


# (operation, [N, T], arguments beside those of the operation's law)
GRID = [
    *(("gae", shape, {}) for shape in [*SHAPES, (64, 512)]),
    ("gae", (32, 512), dict(bootstrap_value=Draw.last)),
    ("gae", (8, 64), dict(lambda_=0.0)),
    *(("vtrace", shape, {}) for shape in [*SHAPES, (32, 512), (2, 131073)]),
    ("vtrace", (32, 512), dict(bootstrap_value=Draw.last)),
    ("vtrace", (16, 256), dict(bootstrap_value=lambda d: d.last() * array(np.arange(16) % 2))),
    *(("retrace_from_policy", shape, {}) for shape in POLICIES),
    ("retrace_from_policy", (16, 256, 4), dict(lambda_=0.5)),
    ("retrace", (16, 256), dict(trace=lambda d: np.minimum(0.5, np.exp(d.normal())))),
    ("retrace", (8, 64), dict(log_rho=lambda d: 0 * d.normal())),
    *(("lambda_returns", shape, mixed(mix, lambda d: 0 * d.last())) for *shape, mix in MIXES),
    ("lambda_returns", (32, 512), mixed(0.95, Draw.last)),
    *(("discounted_returns", shape, {}) for shape in SHORT),
    *(("eligibility_traces", shape, dict(lambda_=decay)) for *shape, decay in DECAYS),
    ("eligibility_traces", (32, 512), dict(lambda_=0.9, init=Draw.last)),
    *(
        ("episodic_prefix_sum", shape, dict(boundary=boundary) | more)
        for boundary in ("ends_at", "starts_at")
        for shape, more in [
            *((shape, {}) for shape in [*SHAPES, (64, 512)]),
            ((16, 256), dict(terminated=lambda d: d.flags(0))),
            ((16, 256), dict(terminated=lambda d: d.flags(1))),
            ((32, 128), dict(init=lambda d: d.normal()[:, 0])),
        ]
    ),
    *(("linear_recurrence", shape, {}) for shape in SCANS),
    *(
        ("linear_recurrence", shape, dict(init=lambda d: d.last(0, 2)))
        for shape in [(4, 1024), (8, 2048), (32, 3000)]
    ),
    ("linear_recurrence", (8, 2048), dict(a=lambda d: 0 * d.normal())),
]


@pytest.mark.parametrize(
    ("op", "shape", "more"),
    GRID,
    ids=["-".join([op, *map(str, shape), *more]) for op, shape, more in GRID],
)
def test_random_grids(op, shape, more):
    draw = Draw(tuple(shape))
    more = {name: x(draw) if callable(x) else x for name, x in more.items()}
    arguments = LAWS[op](draw) | more | dict(axis=1)
    got = call(op, **arguments, dtype=np.float32, jit=True)
    np.testing.assert_allclose(got, getattr(oracles, op)(**arguments), rtol=RANDOM, atol=RANDOM)


def truncation_fixture():
    """Two lanes of 12 rows, cut where the numbers below stand; the last column is the window's."""
    d = Draw((2, 12), seed=99)
    bootstrap = np.zeros(d.shape, np.float32)
    bootstrap[0, [3, 7, 11]] = 2.5, 1.8, 3.2
    bootstrap[1, 5] = 0.9
    truncated = np.zeros(d.shape, bool)
    truncated[0, [3, 7]] = truncated[1, 5] = True
    return d, np.zeros(d.shape, bool), truncated, bootstrap


def random_truncation():
    d = Draw((8, 64))
    terminated = d.flags()
    return d, terminated, d.flags() & ~terminated, d.uniform()


@pytest.mark.parametrize("fixture", [truncation_fixture, random_truncation])
@pytest.mark.parametrize("op", ["gae", "vtrace", "lambda_returns", "discounted_returns"])
def test_truncation(op, fixture):
    d, terminated, truncated, bootstrap = fixture()
    values = d.uniform()
    following = np.where(truncated, bootstrap, np.roll(values, -1, axis=1))
    following[:, -1] = bootstrap[:, -1]
    arguments = dict(
        rewards=d.uniform(),
        terminated=terminated,
        truncated=truncated,
        next_values=following,
        gamma=0.99,
        axis=1,
    )
    if op in ("gae", "vtrace"):
        arguments["values"] = values
    if op == "vtrace":
        arguments["log_rho"] = d.uniform() - d.uniform()
    if op in ("gae", "lambda_returns"):
        arguments["lambda_"] = 0.95
    got = call(op, **arguments, dtype=np.float32)
    np.testing.assert_allclose(got, getattr(oracles, op)(**arguments), rtol=TINY, atol=TINY)


def monte_carlo(rewards, last, gamma):
    """Σ γ^k r_{t+k}, and the value behind the window, as one matrix product."""
    steps = np.arange(rewards.shape[1])
    ahead = steps - steps[:, None]
    discounts = np.where(ahead >= 0, gamma ** np.maximum(ahead, 0.0), 0.0)
    return rewards @ discounts.T + np.outer(last, gamma ** (len(steps) - steps))


def test_gae_at_lambda_one_is_monte_carlo():
    d = Draw((16, 37), seed=123)
    r, v, last = d.normal(), d.normal(), d.last()
    x = dict(rewards=r, values=v, bootstrap_value=last, gamma=0.97, lambda_=1.0, axis=1)
    got = call("gae", **x, dtype=np.float32).advantages
    np.testing.assert_allclose(got, monte_carlo(r, last, 0.97) - v, rtol=RANDOM, atol=RANDOM)


def test_gae_at_lambda_one_is_monte_carlo_on_both_sides_of_a_cut():
    d = Draw((8, 6), seed=124)
    r, v, cut = d.normal(), d.normal(), np.arange(6) == 2
    after = np.where(cut, d.normal(), np.concatenate([v[:, 1:], d.normal()[:, :1]], axis=1))
    x = dict(
        rewards=r,
        values=v,
        next_values=after,
        truncated=np.broadcast_to(cut, d.shape),
        gamma=0.95,
        lambda_=1.0,
        axis=1,
    )
    parts = [monte_carlo(r[:, i], after[:, i][:, -1], 0.95) for i in (slice(0, 3), slice(3, 6))]
    got = call("gae", **x, dtype=np.float32).advantages
    expected = np.concatenate(parts, axis=1) - v
    np.testing.assert_allclose(got, expected, rtol=RANDOM, atol=RANDOM)


def test_on_policy_vtrace_is_monte_carlo():
    d = Draw((16, 41), seed=321)
    r, v, last = d.normal(), d.normal(), d.last()
    x = dict(rewards=r, values=v, log_rho=0 * r, bootstrap_value=last, gamma=0.98, axis=1)
    advantages, targets = call("vtrace", **x, **BARS, dtype=np.float32)
    expected = monte_carlo(r, last, 0.98)
    np.testing.assert_allclose(targets, expected, rtol=RANDOM, atol=RANDOM)
    np.testing.assert_allclose(advantages, expected - v, rtol=RANDOM, atol=RANDOM)


# Where the peer is expected to differ


def test_both_flags_are_a_termination():
    both = dict(terminated=[True, False], truncated=[True, False], next_values=array([9, 2]))
    both = both | dict(rewards=array([1, 1]), gamma=1.0)
    for op, more in (("lambda_returns", dict(lambda_=1.0)), ("discounted_returns", {})):
        np.testing.assert_array_equal(call(op, **both, **more, dtype=np.float32), [1, 3])


def test_nan_behind_a_terminal_row_stays_there():
    x = GAE | dict(rewards=array([1, 1, 1]), terminated=array([0, 1, 0]))
    got = call("gae", **x, values=array([0, 0, np.nan]), dtype=np.float32).advantages
    np.testing.assert_array_equal(got, [2, 1, np.nan])


def test_misspelt_boundary_is_an_error():
    with pytest.raises(ValueError, match="boundary"):
        rl_triton_jax.episodic_prefix_sum(array([1, 2]), boundary="ends-at")


def test_float64_keeps_its_digits_over_long_windows():
    x = LAWS["gae"](Draw((2, 4099), dtype=np.float64)) | dict(axis=1)
    np.testing.assert_allclose(call("gae", **x), oracles.gae(**x), rtol=1e-12, atol=1e-12)
