"""What must hold between the operations, or between two ways of one call, whatever the oracle says.

One window of [T, N] rows in float64, so that few programs are compiled.
"""

import numpy as np
import pytest

from tests.inputs import OPTIONS, call, make, same, shifted

T, N = 6, 3
SPLITS = (1, 3, 5)

# operations that look ahead -> option words without which a call is not complete
BACKWARD = {
    "gae": "",
    "vtrace": "log_rho lambda clips",
    "retrace": "log_rho lambda",
    "lambda_returns": "values",
    "discounted_returns": "",
}
AHEAD = pytest.mark.parametrize("op", BACKWARD)


def draw(op, options, seed=0):
    return make(op, options, (T, N), rng=np.random.default_rng(seed), dtype=np.float64)


def rows(arguments, window):
    """The same call on some of its rows."""
    return {
        name: x[window] if isinstance(x, np.ndarray) and x.shape[:2] == (T, N) else x
        for name, x in arguments.items()
    }


# λ = 0, λ = 1, on policy


@pytest.mark.parametrize("options", ["soft_terminated", "terminated truncated", "gamma_full"])
def test_lambda_zero_is_the_one_step_error(options):
    x = draw("gae", f"next {options}") | dict(lambda_=0.0)
    goes_on = 1 - np.asarray(x.get("terminated", 0.0), np.float64)
    target = x["rewards"] + x["gamma"] * goes_on * x["next_values"]
    same(call("gae", **x), (target - x["values"], target))
    x.pop("values")
    same(call("lambda_returns", **x), target)


def test_lambda_one_is_monte_carlo_with_the_bootstrap():
    x = draw("gae", "bootstrap") | dict(lambda_=1.0)
    steps = np.arange(T)
    gamma = x["gamma"]
    discounts = np.triu(gamma ** np.clip(steps - steps[:, None], 0, None))
    returns = discounts @ x["rewards"] + gamma ** (T - steps[:, None]) * x["bootstrap_value"]
    same(call("gae", **x), (returns - x["values"], returns))
    same(call("vtrace", rho=1.0, **x), (returns - x["values"], returns))
    x.pop("lambda_")
    x.pop("values")
    same(call("discounted_returns", **x), returns)


@pytest.mark.parametrize("options", [o for o in OPTIONS["gae"] if "next" not in o])
def test_on_policy_targets_are_lambda_returns(options):
    """With v'_t = values[t + 1], the definitions of the three targets are one."""
    x = draw("gae", options)
    targets = call("gae", **x).targets
    same(call("vtrace", **x, rho=1.0).targets, targets)
    same(call("lambda_returns", **x), targets)


@pytest.mark.parametrize("on_truncation", ["bootstrap", "drop"])
def test_on_policy_targets_are_lambda_returns_beside_truncation(on_truncation):
    """Only where the flag is set need next_values be another number than the next row's value."""
    x = draw("gae", "next terminated truncated") | dict(on_truncation=on_truncation)
    after = shifted(x["values"], x["next_values"][-1])
    x["next_values"] = np.where(x["truncated"], x["next_values"], after)
    targets = call("gae", **x).targets
    same(call("vtrace", **x, rho=1.0).targets, targets)
    same(call("lambda_returns", **x), targets)
    same(call("retrace", q_values=x.pop("values"), log_rho=np.zeros((T, N)), **x), targets)


@pytest.mark.parametrize("options", OPTIONS["discounted_returns"])
def test_discounted_returns_are_lambda_returns_at_lambda_one(options):
    x = draw("discounted_returns", options)
    values = {} if "next" in options else dict(values=np.full((T, N), np.nan))  # never read
    same(call("discounted_returns", **x), call("lambda_returns", **x, **values, lambda_=1.0))


def test_on_policy_vtrace_advantages():
    """The advantage looks one step ahead to the target, whatever λ is."""
    x = draw("gae", "bootstrap terminated")
    advantages, targets = call("vtrace", **x, rho=1.0)
    following = shifted(targets, x["bootstrap_value"])
    same(
        advantages,
        call("gae", **x | dict(next_values=following, bootstrap_value=None, lambda_=0.0))[0],
    )
    same(call("vtrace", **x, rho=1.0, pg_bootstrap="mixed").advantages, call("gae", **x).advantages)


# Two ways to say the same


@pytest.mark.parametrize("options", ["terminated gamma_full", "soft_terminated soft_last"])
@pytest.mark.parametrize("op", ["gae", "vtrace", "lambda_returns"])
def test_three_ways_to_give_the_next_value(op, options):
    x = draw(op, f"values bootstrap {BACKWARD[op]} {options}")
    bootstrap = x.pop("bootstrap_value")
    expected = call(op, **x, bootstrap_value=bootstrap)
    same(call(op, **x, next_values=shifted(x["values"], bootstrap)), expected)
    same(call(op, **x | dict(values=np.concatenate([x["values"], bootstrap[None]]))), expected)


@pytest.mark.parametrize("kind", ["", "soft_"])
@AHEAD
def test_last_terminated_shifts_the_flags(op, kind):
    words = "" if op == "retrace" else "bootstrap"
    x = draw(op, f"{words} {BACKWARD[op]} {kind}terminated {kind}last")
    expected = call(op, **x)
    last = x.pop("last_terminated")
    same(call(op, **x | dict(terminated=shifted(x["terminated"], last))), expected)


@AHEAD
def test_discount_array_replaces_flags(op):
    x = draw(op, f"next {BACKWARD[op]} terminated gamma_full")
    expected = call(op, **x)
    gamma = np.where(x.pop("terminated"), 0.0, x["gamma"])
    same(call(op, **x | dict(gamma=gamma)), expected)


def test_ratio_or_its_logarithm():
    x = draw("vtrace", "bootstrap log_rho terminated lambda clips")
    expected = call("vtrace", **x)
    same(call("vtrace", **x | dict(rho=np.exp(x["log_rho"]), log_rho=None)), expected)


@pytest.mark.parametrize("clip", ["clip_rho", "clip_c", "clip_pg_rho"])
def test_clip_above_all_ratios_is_none(clip):
    x = draw("vtrace", "bootstrap log_rho terminated lambda clips")
    expected = call("vtrace", **x | {clip: None})
    same(call("vtrace", **x | {clip: 1e6}), expected)


def test_trace_is_the_clipped_ratio_times_lambda():
    x = draw("retrace", "log_rho lambda_full terminated")
    expected = call("retrace", **x)
    trace = x.pop("lambda_") * np.minimum(1, np.exp(x.pop("log_rho")))
    same(call("retrace", **x, trace=trace), expected)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("op", ["gae", "vtrace", "lambda_returns"])
def test_drop_of_no_row_and_of_every_row(op, truncated):
    x = draw(op, f"values bootstrap {BACKWARD[op]} terminated drop")
    got = call(op, **x, truncated=np.full((T, N), truncated))
    expected = call(op, **x)
    if truncated:
        expected = x["values"] if op == "lambda_returns" else (np.zeros((T, N)), x["values"])
    same(got, expected)


# A window in two parts


@pytest.mark.parametrize("row", SPLITS)
@pytest.mark.parametrize("options", ["terminated", "soft_terminated soft_truncated"])
def test_window_split_at_any_row(row, options):
    """The first part ends in what the second one begins with."""
    first, second = slice(None, row), slice(row, None)
    x = draw("lambda_returns", f"next {options} gamma_full lambda_full")
    expected = call("lambda_returns", **x)
    rest = call("lambda_returns", **rows(x, second))
    x["next_values"] = x["next_values"].copy()
    mix = x["lambda_"][row - 1] * (1 - x.get("truncated", np.zeros((T, N)))[row - 1])
    x["next_values"][row - 1] += mix * (rest[0] - x["next_values"][row - 1])
    same(np.concatenate([call("lambda_returns", **rows(x, first)), rest]), expected)

    x = draw("gae", f"next {options} gamma_full lambda_full")
    expected = call("gae", **x).advantages
    rest = call("gae", **rows(x, second)).advantages
    carry = x["gamma"] * x["lambda_"] * (1 - x["terminated"].astype(float))
    carry *= 1 - x.get("truncated", np.zeros((T, N)))
    x["rewards"] = x["rewards"].copy()
    x["rewards"][row - 1] += carry[row - 1] * rest[0]
    same(np.concatenate([call("gae", **rows(x, first)).advantages, rest]), expected)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@AHEAD
def test_window_split_where_an_episode_ends(op, flag):
    row = T // 2
    x = draw(op, f"next {BACKWARD[op]} terminated truncated gamma_full")
    x[flag][row - 1] = True
    parts = [call(op, **rows(x, window)) for window in (slice(None, row), slice(row, None))]
    same(np.concatenate(parts, axis=-2), np.asarray(call(op, **x)))


@pytest.mark.parametrize("row", SPLITS)
@pytest.mark.parametrize(
    ("op", "options", "gated"),
    [
        ("eligibility_traces", "init soft_terminated gamma_lane lambda_lane", True),
        ("episodic_prefix_sum", "init soft_terminated", True),
        ("episodic_prefix_sum", "init soft_terminated starts_at", False),
        ("linear_recurrence", "init a_full", False),
        ("linear_recurrence", "init a_full reverse", False),
    ],
)
def test_forward_window_split_at_any_row(op, options, gated, row):
    """`init` hands the state on, gated by the flag of the row it leaves where that row gates."""
    x = draw(op, options)
    first, second, edge = slice(None, row), slice(row, None), row - 1
    if x.get("reverse"):
        first, second, edge = second, first, row
    begin = call(op, **rows(x, first))
    init = begin[0 if x.get("reverse") else -1]
    if gated:
        init = (1 - x["terminated"][edge]) * init
    rest = call(op, **rows(x, second) | dict(init=init))
    parts = [rest, begin] if x.get("reverse") else [begin, rest]
    same(np.concatenate(parts), call(op, **x))


# Masked rows are not there


@pytest.mark.parametrize(
    ("op", "options"), [(op, o) for op in OPTIONS for o in OPTIONS[op] if "mask" in o]
)
def test_masked_rows_can_be_left_out(op, options):
    """With the same rows masked in every lane, the others are a window of their own."""
    x = draw(op, options)
    counts = np.array([True, False, True, True, False, True])
    x["mask"] = np.broadcast_to(counts[:, None], (T, N)).astype(x["mask"].dtype)
    got = np.asarray(call(op, **x))

    x.pop("mask")
    if x.get("values", np.empty(0)).shape == (T + 1, N):
        x["bootstrap_value"] = x["values"][-1]
        x["values"] = x["values"][:-1]
    expected = np.asarray(call(op, **rows(x, counts)))
    same(got[..., counts, :], expected)
    same(got[..., ~counts, :], 0.0)


# Forward and backward are each other's transpose


@pytest.mark.parametrize(
    "options",
    ["terminated", "soft_terminated soft_truncated gamma_full lambda_full", "terminated mask"],
)
def test_traces_are_the_transpose_of_advantages(options):
    """<y, advantages(rewards)> = <traces(y), rewards>, with values of 0."""
    x = draw("eligibility_traces", options)
    y, rewards = x.pop("x"), draw("gae", "")["rewards"]
    zeros = np.zeros((T, N))
    advantages = call("gae", rewards=rewards, values=zeros, next_values=zeros, **x).advantages
    traces = call("eligibility_traces", x=y, **x)
    if "mask" in x:
        y = y * x["mask"]
    same(np.sum(traces * rewards), np.sum(y * advantages))


def test_traces_without_decay_are_prefix_sums():
    x = draw("eligibility_traces", "init soft_terminated truncated mask") | dict(
        gamma=1.0, lambda_=1.0
    )
    traces = call("eligibility_traces", **x)
    x = {name: v for name, v in x.items() if name not in ("gamma", "lambda_")}
    same(call("episodic_prefix_sum", **x), traces)
    x.pop("mask")
    starts = np.concatenate([np.zeros((1, N)), x["terminated"][:-1]])
    cuts = np.concatenate([np.zeros((1, N)), x["truncated"][:-1]])
    moved = dict(boundary="starts_at", terminated=starts, truncated=cuts)
    same(call("episodic_prefix_sum", **x | moved), call("episodic_prefix_sum", **x))


def test_every_operation_is_a_linear_recurrence():
    x = draw("gae", "next soft_terminated soft_truncated gamma_full lambda_full")
    goes_on, uncut = 1 - x["terminated"], 1 - x["truncated"]
    error = x["rewards"] + x["gamma"] * goes_on * x["next_values"] - x["values"]
    a = x["gamma"] * x["lambda_"] * goes_on * uncut
    same(call("linear_recurrence", a=a, b=error, reverse=True), call("gae", **x).advantages)
    traces = {k: x[k] for k in ("terminated", "truncated", "gamma", "lambda_")}
    before = np.concatenate([np.ones((1, N)), a[:-1]])
    same(
        call("linear_recurrence", a=before, b=error),
        call("eligibility_traces", x=error, **traces),
    )
