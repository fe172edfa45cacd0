"""Other libraries and projects, and the call here that gives their numbers.

RLax and Brax are run; the projects whose credit assignment is a scan inside a training script are
written out as that scan, `backward(body, carry, ...)`.
"""

import warnings

import jax
import numpy as np
import pytest

from tests.inputs import call, precision, same, shifted

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import rlax
    from brax.training.agents.ppo.losses import compute_gae as brax_gae
    from rlax._src.multistep import importance_corrected_td_errors  # not among its public names

T, N, A = 19, 4, 3
GAMMA, LAMBDA = 0.97, 0.9
SCALARS = dict(gamma=GAMMA, lambda_=LAMBDA)


class Window:
    """Random steps of [T, N], and what a project derives from them."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.rewards, self.values, self.other = (self.normal() for _ in range(3))
        self.last_value = self.normal()[0]
        self.done, self.cut = (self.rng.random((T, N)) < 0.2 for _ in range(2))
        self.last_done = self.rng.random(N) < 0.5
        self.discount = np.where(self.done, 0.0, self.rng.uniform(0.8, 1.0, (T, N)))
        self.mix = self.rng.uniform(0.5, 1.0, (T, N))
        self.rho = np.exp(0.7 * self.normal())
        self.mask = self.rng.random((T, N)) < 0.7

    def normal(self, *more):
        return self.rng.standard_normal((T, N, *more))

    @property
    def all_values(self):
        return np.concatenate([self.values, self.last_value[None]])


@pytest.fixture
def w():
    return Window()


def run(function, *arguments, **options):
    """A function of single trajectories, over the lanes of [T, N] arrays."""
    axes = [1 if np.ndim(x) > 1 else None for x in arguments]
    with precision(np.float64):
        mapped = jax.vmap(lambda *x: function(*x, **options), in_axes=axes, out_axes=1)
        return jax.tree.map(np.asarray, mapped(*arguments))


def backward(body, carry, *rows):
    """`jax.lax.scan(body, carry, rows, reverse=True)`, outputs only."""
    outputs = []
    for row in reversed(list(zip(*rows, strict=True))):
        carry, y = body(carry, row)
        outputs.append(y)
    return np.stack(outputs[::-1])


# RLax

MIXING = pytest.mark.parametrize("mixing", ["scalar", "per step"])


def lambda_of(w, mixing):
    return LAMBDA if mixing == "scalar" else w.mix


@MIXING
def test_rlax_gae(w, mixing):
    mix = lambda_of(w, mixing)
    expected = run(
        rlax.truncated_generalized_advantage_estimation, w.rewards, w.discount, mix, w.all_values
    )
    got = call("gae", rewards=w.rewards, values=w.all_values, gamma=w.discount, lambda_=mix)
    same(got.advantages, expected)


@MIXING
def test_rlax_lambda_returns(w, mixing):
    mix = lambda_of(w, mixing)
    expected = run(rlax.lambda_returns, w.rewards, w.discount, w.values, mix)
    x = dict(rewards=w.rewards, next_values=w.values, gamma=w.discount, lambda_=mix)
    same(call("lambda_returns", **x), expected)
    errors = run(rlax.td_lambda, w.other, w.rewards, w.discount, w.values, mix)
    same(call("lambda_returns", **x) - w.other, errors)


@pytest.mark.parametrize("op", ["q_lambda", "sarsa_lambda"])
def test_rlax_action_values(w, op):
    q, q_next = w.normal(A), w.normal(A)
    a, a_next = (w.rng.integers(A, size=(T, N)) for _ in range(2))
    taken = np.take_along_axis(q, a[..., None], -1)[..., 0]
    if op == "q_lambda":
        following = q_next.max(-1)
        errors = run(rlax.q_lambda, q, a, w.rewards, w.discount, q_next, LAMBDA)
    else:
        following = np.take_along_axis(q_next, a_next[..., None], -1)[..., 0]
        errors = run(rlax.sarsa_lambda, q, a, w.rewards, w.discount, q_next, a_next, LAMBDA)
    x = dict(rewards=w.rewards, next_values=following, gamma=w.discount, lambda_=LAMBDA)
    same(call("lambda_returns", **x) - taken, errors)


def test_rlax_discounted_returns(w):
    expected = run(rlax.discounted_returns, w.rewards, w.discount, w.values)
    x = dict(rewards=w.rewards, gamma=w.discount, bootstrap_value=w.values[-1])
    same(call("discounted_returns", **x), expected)


@MIXING
@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.5, 0.7)])
def test_rlax_vtrace(w, mixing, clips):
    mix = lambda_of(w, mixing)
    after = shifted(w.values, w.last_value)
    expected = run(
        rlax.vtrace_td_error_and_advantage,
        *(w.values, after, w.rewards, w.discount, w.rho, mix, *clips),
    )
    advantages, targets = call(
        "vtrace",
        rewards=w.rewards,
        values=w.values,
        next_values=after,
        rho=w.rho,
        gamma=w.discount,
        lambda_=mix,
        clip_rho=clips[0],
        clip_pg_rho=clips[1],
        pg_bootstrap="mixed",
    )
    same(advantages, expected.pg_advantage)
    same(targets - w.values, expected.errors)


def test_rlax_vtrace_sample_mask(w):
    """Its policy advantage reads the masked rows, so only the targets are the same."""
    errors = run(
        lambda *x: rlax.vtrace(*x[:-1], sample_mask=x[-1]),
        *(w.values, w.other, w.rewards, w.discount, w.rho, w.mask),
    )
    x = dict(rewards=w.rewards, values=w.values, next_values=w.other, rho=w.rho, mask=w.mask)
    targets = call("vtrace", **x, gamma=w.discount).targets
    same((targets - w.values)[w.mask], errors[w.mask])


def test_rlax_importance_corrected_td_errors(w):
    expected = run(
        importance_corrected_td_errors, w.rewards, w.discount, w.rho, w.mix, w.all_values
    )
    trace = w.mix * shifted(w.rho, 1.0)
    got = call("gae", rewards=w.rewards, values=w.all_values, gamma=w.discount, lambda_=trace)
    same(w.rho * got.advantages, expected)


def test_rlax_general_off_policy_returns(w):
    """Its q and c begin one row later: here the first q and the first c are not read."""
    expected = run(
        rlax.general_off_policy_returns_from_q_and_v,
        *(w.other[1:], w.values, w.rewards, w.discount, w.mix[1:]),
    )
    x = dict(rewards=w.rewards, q_values=w.other, next_values=w.values, gamma=w.discount)
    same(call("retrace", **x, trace=w.mix), expected)


def test_rlax_retrace_continuous(w):
    log_rho = np.log(w.rho)
    errors = run(
        rlax.retrace_continuous,
        *(w.other, w.other[1:], w.values, w.rewards, w.discount, log_rho[1:], LAMBDA),
    )
    x = dict(rewards=w.rewards, q_values=w.other, next_values=w.values, gamma=w.discount)
    same(call("retrace", **x, log_rho=log_rho, lambda_=LAMBDA) - w.other, errors)


def test_rlax_retrace(w):
    q = np.concatenate([w.normal(A), w.normal(A)[:1]])
    logits = np.concatenate([w.normal(A), w.normal(A)[:1]])
    policy = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    actions = w.rng.integers(A, size=(T + 1, N))
    mu = w.rng.uniform(0.1, 0.9, (T + 1, N))
    errors = run(
        rlax.retrace,
        *(q[:-1], q[1:], actions[:-1], actions[1:]),
        *(w.rewards, w.discount, policy[1:], mu[1:], LAMBDA),
        eps=0.0,
    )
    targets = call(
        "retrace_from_policy",
        rewards=w.rewards,
        q_values=q[:-1],
        actions=actions[:-1],
        target_probs=policy[:-1],
        behaviour_log_prob=np.log(mu[:-1]),
        next_q_values=q[1:],
        next_target_logits=logits[1:],
        gamma=w.discount,
        lambda_=LAMBDA,
    )
    same(targets - np.take_along_axis(q, actions[..., None], -1)[:-1, :, 0], errors)


# Brax


def test_brax(w):
    """Its flags exclude each other; its advantage has no λ on the first step (V-trace's form)."""
    truncation, termination = w.cut.astype(float), (w.done & ~w.cut).astype(float)
    with precision(np.float64):
        arguments = (truncation, termination, w.rewards, w.values, w.last_value, LAMBDA, GAMMA)
        targets, advantages = jax.tree.map(np.asarray, brax_gae(*arguments))
    x = dict(
        rewards=w.rewards,
        values=w.values,
        terminated=termination,
        truncated=truncation,
        on_truncation="drop",
        bootstrap_value=w.last_value,
    )
    same(call("vtrace", **x, **SCALARS, rho=1.0), (advantages, targets))
    same(call("gae", **x, **SCALARS).targets, targets)
    same(call("lambda_returns", **x, **SCALARS), targets)


# Scans of training scripts


def test_purejaxrl(w):
    """Step-aligned: done[t] was returned by the step that row t holds."""

    def body(carry, row):
        gae, next_value = carry
        reward, value, done = row
        delta = reward + GAMMA * next_value * (1 - done) - value
        gae = delta + GAMMA * LAMBDA * (1 - done) * gae
        return (gae, value), gae

    done = w.done.astype(int)
    expected = backward(body, (0.0, w.last_value), w.rewards, w.values, done)
    x = dict(rewards=w.rewards, values=w.values, terminated=w.done, bootstrap_value=w.last_value)
    same(call("gae", **x, **SCALARS), (expected, expected + w.values))


def test_purejaxrl_rnn(w):
    """Observation-aligned: done[t] arrived with the observation of row t."""

    def body(carry, row):
        gae, next_value, next_done = carry
        reward, value, done = row
        delta = reward + GAMMA * next_value * (1 - next_done) - value
        gae = delta + GAMMA * LAMBDA * (1 - next_done) * gae
        return (gae, value, done), gae

    done = w.done.astype(int)
    carry = (0.0, w.last_value, w.last_done.astype(int))
    expected = backward(body, carry, w.rewards, w.values, done)
    x = dict(rewards=w.rewards, values=w.values, terminated=w.done, last_terminated=w.last_done)
    got = call("gae", **x, bootstrap_value=w.last_value, **SCALARS)
    same(got, (expected, expected + w.values))


def test_stoix_truncation(w):
    """The error keeps its bootstrap, V of the real next observation; the trace is cut."""

    def body(gae, row):
        delta, discount, truncation = row
        gae = delta + discount * LAMBDA * (1 - truncation) * gae
        return gae, gae

    deltas = w.rewards + w.discount * w.other - w.values
    expected = backward(body, 0.0, deltas, w.discount, w.cut.astype(float))
    x = dict(rewards=w.rewards, values=w.values, next_values=w.other, truncated=w.cut)
    got = call("gae", **x, gamma=w.discount, lambda_=LAMBDA)
    same(got, (expected, expected + w.values))


def test_token_mask(w):
    """tunix and verl: tokens without loss are skipped by the advantage and by the next value."""

    def body(carry, row):
        next_advantage, next_value = carry
        reward, value, mask = row
        delta = reward + GAMMA * next_value - value
        advantage = delta + GAMMA * LAMBDA * next_advantage
        next_advantage = mask * advantage + (1 - mask) * next_advantage
        next_value = mask * value + (1 - mask) * next_value
        return (next_advantage, next_value), next_advantage

    mask = w.mask.astype(float)
    expected = backward(body, (0.0, 0.0), w.rewards, w.values, mask) * mask
    x = dict(rewards=w.rewards.T, values=w.values.T, mask=w.mask.T, axis=1)
    got = call("gae", **x, bootstrap_value=0.0, **SCALARS)
    same(got, (expected.T, ((expected + w.values) * mask).T))


def test_verl_reinforce_plus_plus(w):
    """The return restarts behind the last token of an answer, where the mask ends."""

    def body(running, row):
        reward, mask = row
        result = reward + GAMMA * running
        return result * mask, result

    expected = backward(body, 0.0, w.rewards, w.mask.astype(float))
    ends = 1.0 - shifted(w.mask.astype(float), 0.0)
    x = dict(rewards=w.rewards.T, terminated=ends.T, bootstrap_value=0.0, axis=1)
    same(call("discounted_returns", **x, gamma=GAMMA), expected.T)


@pytest.mark.parametrize("variant", ["atari", "gymnax"])
def test_purejaxql(w, variant):
    """Q(λ) from max Q; some of its files begin with the wrong next value, which is reproduced."""

    def body(carry, row):
        target, next_q = carry
        reward, done, q = row
        mixed = reward + GAMMA * (1 - done) * next_q + GAMMA * LAMBDA * (target - next_q)
        target = (1 - done) * mixed + done * reward
        return (target, q), target

    done, q, last_q = w.done.astype(float), w.normal(A).max(-1), w.last_value
    last = w.rewards[-1] + GAMMA * (1 - done[-1]) * last_q
    masked = last_q * (1 - done[-1])
    begin = q[-1] if variant == "atari" else masked
    expected = backward(body, (last, begin), w.rewards[:-1], done[:-1], q[:-1])
    expected = np.concatenate([expected, last[None]])
    if variant == "atari":
        following = dict(values=q, bootstrap_value=last_q)
    else:
        following = dict(next_values=np.concatenate([q[1:-1], masked[None], masked[None]]))
    x = dict(rewards=w.rewards, terminated=w.done)
    same(call("lambda_returns", **x, **following, **SCALARS), expected)


@pytest.mark.parametrize("imagined", [False, True])
def test_dreamerv3(w, imagined):
    """Soft flags that arrive with the observation: T rows of them make T - 1 returns."""

    def body(target, row):
        interim, live, mix = row
        target = interim + live * mix * target
        return target, target

    ends = w.rng.uniform(0.0, 1.0, (T, N))  # of the continue head
    cut = np.zeros((T, N)) if imagined else w.cut.astype(float)
    live, mix = GAMMA * (1 - ends)[1:], LAMBDA * (1 - cut)[1:]
    rewards, following = w.rewards[1:], w.values[1:]
    interim = rewards + (1 - mix) * live * following
    expected = backward(body, following[-1], interim, live, mix)
    x = dict(rewards=rewards.T, next_values=following.T, lambda_=LAMBDA, axis=1)
    if imagined:
        got = call("lambda_returns", **x, gamma=live.T)
    else:
        flags = dict(terminated=ends[1:].T, truncated=w.cut[1:].T)
        got = call("lambda_returns", **x, **flags, gamma=GAMMA)
    same(got, expected.T)


def test_impala(w):
    """The TensorFlow original: no λ, the advantage bootstraps from the next target."""

    def body(difference, row):
        delta, discount, c = row
        difference = delta + discount * c * difference
        return difference, difference

    following = shifted(w.values, w.last_value)
    deltas = np.minimum(1.3, w.rho) * (w.rewards + w.discount * following - w.values)
    targets = w.values + backward(body, 0.0, deltas, w.discount, np.minimum(1.0, w.rho))
    after = shifted(targets, w.last_value)
    advantages = np.minimum(0.8, w.rho) * (w.rewards + w.discount * after - w.values)
    x = dict(rewards=w.rewards, values=w.values, bootstrap_value=w.last_value, gamma=w.discount)
    got = call("vtrace", **x, log_rho=np.log(w.rho), clip_rho=1.3, clip_pg_rho=0.8)
    same(got, (advantages, targets))


def test_sample_factory(w):
    """An invalid step still adds the next valid value: not transparent, so spelt out."""

    def body(carry, row):
        delta, done, valid = row
        carry = delta + (GAMMA * LAMBDA * valid + 1 - valid) * (1 - done) * carry
        return carry, carry

    valid, done = w.mask.astype(float), w.done.astype(float)
    next_valid = shifted(valid, 1.0)
    following = GAMMA * shifted(w.values, w.last_value) * next_valid
    deltas = (w.rewards - w.values) * valid + (1 - done) * following
    expected = backward(body, 0.0, deltas, done, valid)
    a = np.where(w.done, 0.0, np.where(w.mask, GAMMA * LAMBDA, 1.0))
    same(call("linear_recurrence", a=a, b=deltas, reverse=True), expected)
