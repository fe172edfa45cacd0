"""Types: data decide the result's, nothing else does, sums are kept in float32, edges are empty."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl_triton_jax
from tests.inputs import DATA
from tests.transforms import (
    CASES,
    OPERATIONS,
    arguments,
    both,
    floats,
    operation,
    oracle,
)

SHORT = (jnp.bfloat16, jnp.float16)
FLOATS = (jnp.float32, *SHORT, jnp.float64)
OTHERS = (jnp.bool, jnp.uint8, jnp.float32, jnp.bfloat16, jnp.float64)
IMPLEMENTATIONS = ("scan", "associative_scan")


def precision(*dtypes):
    """float64 exists only where it is asked for."""
    return jax.enable_x64(jnp.float64 in dtypes)


def types(tree):
    return {x.dtype for x in jax.tree.leaves(tree)}


def cast(args, data, others):
    """Data in one type, every other float argument in another. `a` counts as data."""
    return {
        n: x if x.dtype == bool else x.astype(data if n in (*DATA, "a") else others)
        for n, x in args.items()
    }


# --- the result's type ---


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("data", FLOATS)
@pytest.mark.parametrize("case", OPERATIONS)
def test_only_data_decide(case, data, others):
    """γ, λ, ratios, clips and flags of any type change nothing; gradients have their operand's."""
    with precision(data, others):
        args = cast(arguments(case), data, others)
        if jnp.issubdtype(others, jnp.floating):
            out, gradients = jax.eval_shape(lambda args: both(operation(case), args), args)
            assert {n: x.dtype for n, x in gradients.items()} == {
                n: x.dtype for n, x in floats(args).items()
            }
        else:
            out = jax.eval_shape(operation(case), args)
        assert types(out) == {jnp.dtype(data)}


@pytest.mark.parametrize(
    ("rewards", "values", "expected"),
    [
        (jnp.bfloat16, jnp.float32, jnp.float32),
        (jnp.float32, jnp.float16, jnp.float32),
        (jnp.bfloat16, jnp.float16, jnp.float32),
        (jnp.float64, jnp.float32, jnp.float64),
        (jnp.bfloat16, jnp.float64, jnp.float64),
        (jnp.int32, jnp.bfloat16, jnp.bfloat16),
        (jnp.bool, jnp.float16, jnp.float16),
        (jnp.float32, jnp.int8, jnp.float32),
        (jnp.int32, jnp.int32, jnp.float32),
        (jnp.bool, jnp.uint8, jnp.float32),
    ],
)
@pytest.mark.parametrize("case", ["gae", "vtrace", "retrace", "lambda_returns", "gae-drop"])
def test_mixed_data(case, rewards, values, expected):
    with precision(rewards, values):
        args = cast(arguments(case), values, jnp.float32)
        args["rewards"] = args["rewards"].astype(rewards)
        out = operation(case)(args)
        assert types(out) == {jnp.dtype(expected)}
        exact = {n: x.astype(expected) if n in DATA else x for n, x in args.items()}
        jax.tree.map(np.testing.assert_array_equal, out, operation(case)(exact))


def test_integers_become_the_default_float():
    args = {n: x.astype(int) if n in DATA else x for n, x in arguments("gae").items()}
    for x64, expected in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(x64):
            assert types(operation("gae")(jax.tree.map(np.asarray, args))) == {jnp.dtype(expected)}


@pytest.mark.parametrize("zero", [0.0, 0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_python_scalars_take_the_type_of_the_arrays(dtype, zero):
    with precision(dtype):
        x = jnp.ones(3, dtype)
        after, before = {"bootstrap_value": zero, "gamma": 1}, {"gamma": 1, "init": zero}
        results = (
            rl_triton_jax.gae(x, x, lambda_=0.5, **after),
            rl_triton_jax.vtrace(x, x, rho=1.0, **after),
            rl_triton_jax.lambda_returns(x, x, lambda_=0.5, **after),
            rl_triton_jax.discounted_returns(x, **after),
            rl_triton_jax.eligibility_traces(x, lambda_=0.5, **before),
            rl_triton_jax.episodic_prefix_sum(x, init=zero),
            rl_triton_jax.linear_recurrence(0.5, x, zero),
        )
        assert types(results) == {jnp.dtype(dtype)}


@pytest.mark.parametrize("case", CASES)
def test_numpy_arrays(case):
    """As everywhere in JAX, float64 arrays are float32 where float64 is off."""
    args = {n: np.asarray(x) for n, x in arguments(case).items()}
    double = {n: x if x.dtype == bool else x.astype(np.float64) for n, x in args.items()}
    for x64, expected in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(x64):
            assert types(jax.eval_shape(operation(case), double)) == {jnp.dtype(expected)}
    short = {n: x if x.dtype == bool else x.astype(jnp.bfloat16) for n, x in args.items()}
    assert types(operation(case)(short)) == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("data", FLOATS)
@pytest.mark.parametrize("case", OPERATIONS)
def test_strict_promotion(case, data):
    """Neither the call nor its derivatives promote anything by accident."""
    with precision(data), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        args = cast(arguments(case), data, jnp.float32)
        lowered = jax.jit(operation(case)).lower(args)
        assert types(lowered.out_info) == {jnp.dtype(data)}
        tangents = jax.tree.map(jnp.ones_like, floats(args))
        cotangents = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), lowered.out_info)

        def derivatives(x, tangents, cotangents):
            f = lambda x: operation(case)(args | x)  # noqa: E731
            return jax.jvp(f, (x,), (tangents,)), jax.vjp(f, x)[1](cotangents)

        assert jax.jit(derivatives).lower(floats(args), tangents, cotangents)


# --- accumulation ---

LONG = 4096  # in bfloat16, ones add up to 256 only, and in float16 to 2048

# Each adds up what it is given, over time.
SUMS = {
    "gae": lambda x, **options: (
        rl_triton_jax.gae(
            x, 0 * x, gamma=1.0, lambda_=1.0, bootstrap_value=0.0, **options
        ).advantages
    ),
    "vtrace": lambda x, **options: (
        rl_triton_jax.vtrace(x, 0 * x, rho=1.0, gamma=1.0, bootstrap_value=0.0, **options).targets
    ),
    "retrace": lambda x, **options: rl_triton_jax.retrace(
        x, 0 * x, next_values=0 * x, trace=jnp.ones_like(x), gamma=1.0, **options
    ),
    "lambda_returns": lambda x, **options: rl_triton_jax.lambda_returns(
        x, 0 * x, gamma=1.0, lambda_=1.0, bootstrap_value=0.0, **options
    ),
    "discounted_returns": lambda x, **options: rl_triton_jax.discounted_returns(
        x, gamma=1.0, bootstrap_value=0.0, **options
    ),
    "eligibility_traces": lambda x, **options: rl_triton_jax.eligibility_traces(
        x, gamma=1.0, lambda_=1.0, **options
    ),
    "episodic_prefix_sum": lambda x, **options: rl_triton_jax.episodic_prefix_sum(x, **options),
    "linear_recurrence": lambda x, **options: rl_triton_jax.linear_recurrence(1.0, x, **options),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("op", SUMS)
def test_ones_add_up(op, dtype, implementation):
    """In the values, and in the gradient of their sum."""

    @jax.jit
    def f(x):
        out = SUMS[op](x, implementation=implementation)
        return jnp.sum(out, dtype=jnp.float32), out

    gradient, out = jax.grad(f, has_aux=True)(jnp.ones(LONG, dtype))
    assert types((gradient, out)) == {jnp.dtype(dtype)}
    for sums in (out, gradient):
        sums = np.sort(np.asarray(sums, np.float32))
        np.testing.assert_array_equal(sums, np.arange(1, LONG + 1).astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", SHORT)
def test_gradients_of_shared_arguments_add_up(dtype):
    """A scalar for many lanes: the sum over them is not taken in the short type either."""
    one = jnp.ones((), dtype)
    rewards = jnp.ones((1, LONG), dtype)

    def f(gamma, bootstrap_value):
        out = rl_triton_jax.discounted_returns(
            rewards, gamma=gamma, bootstrap_value=bootstrap_value
        )
        return jnp.sum(out, dtype=jnp.float32)

    assert list(jax.grad(f, (0, 1))(one, one)) == [LONG, LONG]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", SHORT)
def test_coefficients_are_not_rounded_to_the_type_of_the_data(dtype, implementation):
    """bfloat16 has no 0.99, and the error of its nearest number grows a hundredfold here."""
    last = jnp.zeros(101, dtype).at[-1].set(1)
    first = jnp.zeros(101, dtype).at[0].set(1)
    expected = np.float32(0.99**100).astype(dtype)
    options = {"implementation": implementation}
    returns = rl_triton_jax.discounted_returns(last, gamma=0.99, bootstrap_value=0.0, **options)
    assert returns[0] == expected
    for gamma, lambda_ in ((0.99, 1.0), (1.0, 0.99)):
        scales = {"gamma": gamma, "lambda_": lambda_}
        advantages = rl_triton_jax.gae(last, 0 * last, bootstrap_value=0.0, **scales, **options)[0]
        traces = rl_triton_jax.eligibility_traces(first, **scales, **options)
        assert advantages[0] == expected
        assert traces[-1] == expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint32])
def test_integer_sums_are_exact(dtype, implementation):
    """Also where float32 is not: a few units beside half the type's range."""
    x = np.ones(9, dtype)
    x[0] = np.iinfo(dtype).max // 2
    flags = np.arange(9) == 5
    sums = rl_triton_jax.episodic_prefix_sum(x, flags, init=3, implementation=implementation)
    expected = np.concatenate([np.cumsum(x[:6], dtype=dtype) + dtype(3), np.arange(1, 4)])
    assert sums.dtype == dtype
    np.testing.assert_array_equal(sums, expected)


def test_bools_are_counted():
    counts = rl_triton_jax.episodic_prefix_sum(np.ones(300, bool))
    assert counts.dtype == jnp.int32
    assert counts[-1] == 300


# --- edges of shapes ---


def quickly(op, args):
    """Value and gradient."""
    return jax.jit(functools.partial(both, op))(args)


def same(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def cut(args, length, lanes):
    """The first rows and lanes."""
    rows = args["rewards" if "rewards" in args else "x" if "x" in args else "b"].shape[0]
    return {
        n: x[: length + len(x) - rows, :lanes] if x.ndim == 2 else x[:lanes] if x.ndim else x
        for n, x in args.items()
    }


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (0, 0)])
@pytest.mark.parametrize("case", CASES)
def test_empty_arrays(case, shape):
    args = cut(arguments(case), *shape)
    out, gradients = both(operation(case), args)
    assert {x.shape for x in jax.tree.leaves(out)} == {shape}
    for name, x in gradients.items():
        assert (x.shape, x.dtype) == (args[name].shape, args[name].dtype)
        np.testing.assert_array_equal(x, 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (1, 1)])
@pytest.mark.parametrize("case", OPERATIONS)
def test_one_row_and_one_lane(case, shape, implementation):
    with precision(jnp.float64):
        args = cut(arguments(case), *shape)
        same(quickly(operation(case, implementation), args), quickly(oracle(case), args))


@pytest.mark.parametrize("case", OPERATIONS)
def test_five_axes(case):
    """Time in the middle of four axes of lanes."""
    with precision(jnp.float64):
        args = arguments(case)

        def op(args):
            folded = {
                n: jnp.moveaxis(x.reshape(-1, 2, 2, 2, 2), 0, 2)
                if x.ndim == 2
                else x.reshape((2, 2, 2, 2) if x.ndim else ())
                for n, x in args.items()
            }
            out = operation(case).with_options(axis=2)(folded)
            return jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0).reshape(-1, 16), out)

        same(quickly(op, args), quickly(oracle(case), args))


@pytest.mark.parametrize("case", OPERATIONS)
def test_one_axis(case):
    """A single trajectory is the first of several."""
    with precision(jnp.float64):
        args = cut(arguments(case), 5, 1)
        flat = {n: x.reshape(-1) if x.ndim == 2 else x.reshape(()) for n, x in args.items()}
        out, gradients = quickly(operation(case), flat)
        several, expected = quickly(operation(case), args)
        same(out, jax.tree.map(jnp.ravel, several))
        same(gradients, {n: x.reshape(flat[n].shape) for n, x in expected.items()})
