"""Properties of every operation, over option sets, flags, axes and what lies behind a cut."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracles
from tests.inputs import CASES, DATA, call, make, same

# Few shapes, because each new one is compiled.
T, N = 5, 3
FLAGS = ("terminated", "truncated", "last_terminated", "mask")
SUCCESSORS = ("next_values", "next_q_values", "next_target_probs", "next_target_logits")

properties = settings(deadline=None, max_examples=25, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)
implementations = st.sampled_from(["scan", "associative_scan"])
garbage = st.sampled_from([np.nan, np.inf, -np.inf])


def cases(*words):
    """The option sets that hold one of these words, or all of them."""
    found = [x for x in CASES if not words or set(words) & set(x[1].split())]
    return st.sampled_from(found)


def draw(case, seed, shape=(T, N), **options):
    return make(*case, shape, rng=np.random.default_rng(seed), dtype=np.float64, **options)


def each(function, arguments):
    """The same call with `function` of every array."""
    return {name: function(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


@properties
@given(case=cases(), seed=seeds, end_rate=st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_implementations_agree(case, seed, end_rate):
    arguments = draw(case, seed, end_rate=end_rate)
    got = call(case[0], **arguments, implementation="associative_scan")
    same(got, call(case[0], **arguments, implementation="scan"))


@properties
@given(case=cases(), seed=seeds)
def test_linear_in_data(case, seed):
    op, _ = case
    first, second = draw(case, seed), draw(case, seed + 1)
    both = {name: 2 * x - 3 * second[name] if name in DATA else x for name, x in first.items()}
    second = {name: x if name in DATA else first[name] for name, x in second.items()}
    expected = jax.tree.map(lambda x, y: 2 * x - 3 * y, call(op, **first), call(op, **second))
    same(call(op, **both), expected)


@properties
@given(case=cases(), seed=seeds, order=st.permutations(range(N)))
def test_lanes_are_independent(case, seed, order):
    def permute(x):
        """Of [N], [T, N, ...], [1, N]; nothing to do in [T, 1]."""
        if x.shape == (N,):
            return x[order]
        return x[:, order] if x.ndim > 1 and x.shape[1] == N else x

    arguments = draw(case, seed)
    got = call(case[0], **each(permute, arguments))
    same(got, jax.tree.map(permute, call(case[0], **arguments)))


@properties
@given(case=cases(), seed=seeds, axis=st.sampled_from([1, 2, -1, -2]))
def test_time_may_be_any_axis(case, seed, axis):
    def move(x):
        return np.moveaxis(x, 0, axis % 3) if x.ndim >= 3 else x

    arguments = draw(case, seed, shape=(T, 2, N))
    got = call(case[0], **each(move, arguments) | dict(axis=axis))
    same(got, jax.tree.map(move, call(case[0], **arguments)))


@properties
@given(
    case=cases("terminated", "mask"),
    seed=seeds,
    dtype=st.sampled_from([np.int32, np.uint8, np.float32, np.float64]),
)
def test_flags_of_any_type(case, seed, dtype):
    arguments = draw(case, seed)
    typed = {
        name: x.astype(dtype) if name in FLAGS and x.dtype == bool else x
        for name, x in arguments.items()
    }
    same(call(case[0], **typed), call(case[0], **arguments))


@properties
@given(
    seed=seeds,
    boundary=st.sampled_from(["ends_at", "starts_at"]),
    dtype=st.sampled_from([np.int32, np.int16, np.uint32]),
    implementation=implementations,
)
def test_integer_sums_are_exact(seed, boundary, dtype, implementation):
    """Beyond 2^24 float32 would not be, beyond 2^11 float16."""
    x = draw(("episodic_prefix_sum", "terminated mask"), seed)
    scale = np.iinfo(dtype).max // (T + 2)
    rng = np.random.default_rng(seed)
    x |= dict(x=rng.integers(scale // 2, scale, (T, N)).astype(dtype), boundary=boundary)
    x |= dict(init=rng.integers(scale, size=N).astype(dtype))
    got = call("episodic_prefix_sum", **x, implementation=implementation)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, oracles.episodic_prefix_sum(**x))


def poison(arguments, names, rows, lane, number):
    """The same call with a number that is not finite in these rows, or for this lane."""

    def plant(x):
        x = x.copy()
        x[(lane,) if x.ndim == 1 else (rows, lane)] = number
        return x

    sizes = {(N,), (T, N), (T + 1, N)}
    return {
        name: plant(x) if name in names and np.shape(x)[:2] in sizes and x.dtype.kind == "f" else x
        for name, x in arguments.items()
    }


FORWARD = {"eligibility_traces", "episodic_prefix_sum", "linear_recurrence"}
CUTS = [
    ((op, options), flag)
    for op, options in CASES
    for flag in ("terminated", "truncated", "a_full")
    if any(f"_{word}".endswith(f"_{flag}") for word in options.split())
]


def cut_at(op, flag, arguments, row, lane):
    """The call with a cut in this row, the rows that are then hidden, and what is unread in it."""
    hidden, unread = slice(row + 1, None), {"bootstrap_value"}
    if op in FORWARD and not arguments.get("reverse"):
        own = op == "linear_recurrence" or arguments.get("boundary") == "starts_at"
        hidden, unread = slice(0, row if own else row + 1), {"init"}

    arguments = each(np.copy, arguments)
    if "mask" in arguments:
        arguments["mask"][row, lane] = 1
    if flag == "a_full":
        arguments["a"][row, lane] = 0
    elif flag == "terminated" and "last_terminated" in arguments:
        flags = [*arguments["terminated"], arguments["last_terminated"]]
        flags[row + 1][lane] = 1
    else:
        arguments[flag][row, lane] = 1
    return arguments, hidden, unread


@settings(properties, max_examples=60)
@given(
    cut=st.sampled_from(CUTS),
    seed=seeds,
    row=st.integers(0, T - 1),
    lane=st.integers(0, N - 1),
    number=garbage,
    implementation=implementations,
)
def test_nothing_crosses_a_cut(cut, seed, row, lane, number, implementation):
    (op, options), flag = cut
    arguments, hidden, beyond = cut_at(op, flag, draw((op, options), seed), row, lane)
    rows = {name for name, x in arguments.items() if np.ndim(x) > 1} - {*FLAGS}
    dirty = poison(arguments, rows | beyond, hidden, lane, number)
    if flag == "terminated" or "drop" in options:
        dirty = poison(dirty, SUCCESSORS, row, lane, number)
    if flag == "truncated" and "drop" in options:
        dirty = poison(dirty, {"rewards"}, row, lane, number)

    seen = np.ones((T, N), bool)
    seen[hidden, lane] = False
    got, expected = (call(op, **x, implementation=implementation) for x in (dirty, arguments))
    same(jax.tree.map(lambda x: x[seen], got), jax.tree.map(lambda x: x[seen], expected))


@properties
@given(
    case=cases("mask", "int_mask", "float_mask"),
    seed=seeds,
    lane=st.integers(0, N - 1),
    number=garbage,
    implementation=implementations,
)
def test_masked_rows_are_not_read(case, seed, lane, number, implementation):
    arguments = draw(case, seed)
    rows = np.flatnonzero(arguments["mask"][:, lane] == 0)
    names = {name for name, x in arguments.items() if np.ndim(x) > 1} - {"mask"}
    got = call(
        case[0], **poison(arguments, names, rows, lane, number), implementation=implementation
    )
    same(got, call(case[0], **arguments, implementation=implementation))
