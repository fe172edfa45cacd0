"""The kernels on a GPU: values, derivatives, determinism, transformations, devices, long windows.

Several processes (`-n 8`) share the GPU; nearly all of the time is compilation.
"""

import os
import shutil
import subprocess
import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rl_triton_jax
from tests import cases, oracles, test_cases
from tests.inputs import DATA, OPTIONS, call, make, precision

pytestmark = pytest.mark.gpu

IMPLEMENTATION = "triton"

# name -> the shape and the time axis of a window of T rows, in ragged tiles
LAYOUTS = {
    "TN": lambda T: ((T, 70), 0),
    "NT": lambda T: ((70, T), 1),
    "STN": lambda T: ((2, T, 35), 1),
    "T": lambda T: ((T,), 0),
}
LENGTHS = (1, 7, 128, 300, 2500)
OPTION_SETS = [(op, options) for op, sets in OPTIONS.items() for options in sets]
PLAIN = {op: OPTIONS[op][1] for op in OPTIONS}
"""One option set of each operation."""

# Largest error, relative to the largest number of the output (or to 1). The short types are
# computed in float32 and rounded once; rounding errors of T rows add up like a random walk.
ROUNDING = {"float64": 2e-15, "float32": 1e-6, "bfloat16": 1e-6, "float16": 1e-6}
STORING = {"float64": 0, "float32": 0, "bfloat16": 2**-8, "float16": 2**-11}


def tolerance(dtype, length):
    return STORING[dtype] + ROUNDING[dtype] * max(2, length / 64) ** 0.5


def same(got, expected, length):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == np.shape(y)
        atol = tolerance(x.dtype.name, length)
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        scale = np.max(abs(y), initial=1.0, where=np.isfinite(y))
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=atol)


def draw(op, options, layout, length, dtype="float32", seed=7, **kwargs):
    shape, axis = LAYOUTS[layout](length)
    rng = np.random.default_rng(seed)
    return make(op, options, shape, axis, rng=rng, dtype=jnp.dtype(dtype), **kwargs)


def traced(arguments):
    """The arrays and numbers of a call, and its static options."""
    operands = {k: x for k, x in arguments.items() if isinstance(x, np.ndarray | float)}
    return operands, {k: x for k, x in arguments.items() if k not in operands}


def bind(op, static, implementation=None):
    """The operation as a function of a dict of operands."""
    function = getattr(rl_triton_jax, op)
    implementation = implementation or IMPLEMENTATION
    return lambda operands: function(**operands, **static, implementation=implementation)


def check_values(op, options, layout, length, dtype="float32"):
    arguments = draw(op, options, layout, length, dtype)
    expected = getattr(oracles, op)(**arguments)
    got = call(op, **arguments, implementation=IMPLEMENTATION, dtype=jnp.dtype(dtype), jit=True)
    assert all(x.dtype == jnp.dtype(dtype) for x in jax.tree.leaves(got))
    same(got, expected, length)


# ------------------------------------------------------------------------------------------------
# Values and derivatives
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "options", "length", "layout"),
    [
        (*case, LENGTHS[(i + k) % len(LENGTHS)], list(LAYOUTS)[(i + k) % len(LAYOUTS)])
        for i, case in enumerate(OPTION_SETS)
        for k in range(3)
    ],
)
def test_option_sets(op, options, length, layout):
    """Lengths and layouts take turns: each option set meets three of them."""
    check_values(op, options, layout, length)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["TN", "NT"])
@pytest.mark.parametrize("op", OPTIONS)
def test_types(op, layout, dtype):
    check_values(op, OPTIONS[op][-1], layout, 50, dtype)


@pytest.mark.parametrize("layout", ["TN", "NT"])
@pytest.mark.parametrize("boundary", ["starts_at", "ends_at"])
def test_integer_sums_are_exact(layout, boundary):
    shape, axis = LAYOUTS[layout](300)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, shape, np.int32)
    arguments = dict(terminated=rng.random(shape) < 0.05, boundary=boundary, axis=axis)
    got = rl_triton_jax.episodic_prefix_sum(x, **arguments, implementation=IMPLEMENTATION)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, oracles.episodic_prefix_sum(x, **arguments))


def gradients(function, operands, by=None):
    """By every floating operand, of a sum in which all entries of the outputs weigh differently."""
    floating = {k for k, x in operands.items() if jnp.issubdtype(jnp.result_type(x), jnp.floating)}
    floating &= by or floating
    still = {k: x for k, x in operands.items() if k not in floating}

    def total(moving):
        outputs = jax.tree.leaves(function(still | moving))
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in outputs)

    return jax.jit(jax.grad(total))({k: operands[k] for k in floating})


def to_float64(x):
    return np.asarray(x, np.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


def check_gradients(op, options, layout, length, dtype):
    """Against JAX's own derivative of the plain operations in float64."""
    arguments = draw(op, options, layout, length, dtype)
    operands, static = traced(arguments)
    with jax.enable_x64(True):
        plain = partial(getattr(rl_triton_jax.reference, op), **static)
        expected = gradients(lambda x: plain(**x), jax.tree.map(to_float64, operands))
        expected = jax.tree.map(np.asarray, expected)
    with precision(dtype):
        got = gradients(bind(op, static), operands)
    largest = max(x.size for x in got.values())
    for name, x in got.items():  # what rows or lanes share has the sum over them for a gradient
        same(x, expected[name], length * largest // x.size)


@pytest.mark.parametrize(("op", "options"), OPTION_SETS)
def test_gradients(op, options):
    layout = list(LAYOUTS)[OPTION_SETS.index((op, options)) % len(LAYOUTS)]
    check_gradients(op, options, layout, 40, "float64")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPTIONS)
def test_gradients_in_float32(op, layout):
    check_gradients(op, PLAIN[op], layout, 100, "float32")


@pytest.mark.parametrize("layout", ["TN", "NT"])
@pytest.mark.parametrize("op", ["gae", "vtrace", "retrace", "lambda_returns", "discounted_returns"])
def test_nonfinite_numbers_stay_in_their_episode(op, layout):
    weights = {"vtrace": " rho clips", "retrace": " trace"}.get(op, "")
    options = ("" if op == "retrace" else "next ") + "terminated truncated" + weights
    arguments = draw(op, options, layout, 128)
    rng = np.random.default_rng(1)
    for name in {"rewards", "values", "q_values", "next_values"} & arguments.keys():
        x = np.array(arguments[name])
        x[rng.random(x.shape) < 0.02] = np.nan
        x[rng.random(x.shape) < 0.02] = np.inf
        arguments[name] = x
    got = call(op, **arguments, implementation=IMPLEMENTATION, dtype=np.float32, jit=True)
    with np.errstate(invalid="ignore"):
        expected = getattr(oracles, op)(**arguments)
    assert any(np.isnan(y).any() and np.isfinite(y).any() for y in jax.tree.leaves(expected))
    same(got, expected, 128)


# ------------------------------------------------------------------------------------------------
# The cases of bug reports
# ------------------------------------------------------------------------------------------------

# What a tree of sums cannot do, rows in a tile cannot; a sharding case asks for eight CPU devices.
RUNNABLE = [
    case_id
    for case_id, case in cases.CASES.items()
    if not cases.why_not(case_id, "associative_scan")
    if not any(tag.startswith("sharding") for tag in case["tags"])
]


@pytest.mark.parametrize("case_id", RUNNABLE)
def test_case(case_id):
    test_cases.test_case(case_id, IMPLEMENTATION)


# ------------------------------------------------------------------------------------------------
# Programs around the kernels
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["TN", "NT", "T"])
@pytest.mark.parametrize("op", OPTIONS)
def test_repeats_are_bitwise_equal(op, layout):
    operands, static = traced(draw(op, PLAIN[op], layout, 300))
    function = bind(op, static)

    @jax.jit
    def both(operands):
        return function(operands), gradients(function, operands)

    operands = jax.tree.map(jnp.asarray, operands)
    first, *others = (
        [np.asarray(x).tobytes() for x in jax.tree.leaves(both(operands))] for _ in range(20)
    )
    assert all(x == first for x in others)


@pytest.mark.parametrize("layout", ["TN", "NT"])
@pytest.mark.parametrize("op", OPTIONS)
def test_a_thousand_repeats_over_programs(op, layout):
    """Programs that share a window compose what they hear in one order, whoever is first."""
    operands, static = traced(draw(op, PLAIN[op], layout, 20_000, end_rate=1e-3))
    operands = jax.tree.map(jnp.asarray, operands)
    function = bind(op, static)
    both = jax.jit(lambda x: jax.tree.leaves((function(x), gradients(function, x, DATA))))

    @jax.jit
    def differs(xs, ys):
        pairs = zip(xs, ys, strict=True)
        return sum(jnp.any(x.view(jnp.int32) != y.view(jnp.int32)) for x, y in pairs)

    first = both(operands)
    assert sum(differs(first, both(operands)) for _ in range(1000)) == 0


@pytest.mark.parametrize("layout", ["TN", "NT"])
@pytest.mark.parametrize("op", OPTIONS)
def test_donated_operands(op, layout):
    arguments = draw(op, PLAIN[op], layout, 128)
    operands, static = traced(arguments)
    function = jax.jit(bind(op, static), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        got = function(jax.tree.map(jnp.array, operands))
    same(got, getattr(oracles, op)(**arguments), 128)


def gae_inputs(layout, length=33):
    operands, static = traced(draw("gae", "bootstrap terminated last", layout, length))
    plain = bind("gae", static, "scan" if IMPLEMENTATION == "triton" else "associative_scan")
    return operands, bind("gae", static), plain


@pytest.mark.parametrize("layout", ["TN", "NT"])
def test_in_loops(layout):
    operands, kernel, plain = gae_inputs(layout)

    def scan(gae):
        def body(values, _):
            out = gae(operands | {"values": values})
            return jnp.tanh(out.targets), out.advantages

        return jax.lax.scan(body, jnp.asarray(operands["values"]), None, length=5)

    def while_loop(gae):
        def body(state):
            step, values = state
            return step + 1, jnp.tanh(gae(operands | {"values": values}).targets)

        start = 0, jnp.asarray(operands["values"])
        return jax.lax.while_loop(lambda state: state[0] < 5, body, start)[1]

    def checkpointed(gae):
        return jax.grad(
            lambda values: jnp.sum(
                jax.lax.scan(
                    jax.checkpoint(
                        lambda x, _: (jnp.tanh(gae(operands | {"values": x}).targets), None)
                    ),
                    values,
                    None,
                    length=3,
                )[0]
            )
        )(jnp.asarray(operands["values"]))

    for loop in (scan, while_loop, checkpointed):
        got, expected = jax.jit(partial(loop, kernel))(), jax.jit(partial(loop, plain))()
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_over_seeds(layout):
    """gamma is not batched, then only gamma is, then each over its own axis."""
    operands, kernel, plain = gae_inputs(layout)
    fixed = {k: operands.pop(k) for k in ("gamma", "lambda_")}
    seeds = {
        k: np.stack([x, np.flip(x), -x if x.dtype != bool else x]) for k, x in operands.items()
    }
    gammas = np.float32([0.5, 0.9, 0.99, 1.0])

    @partial(jax.jit, static_argnums=0)
    def run(gae, seeds, gammas):
        def of(x, gamma):
            return gae(fixed | x | {"gamma": gamma})

        shared = jax.vmap(lambda x: gae(fixed | x))(seeds)
        own_gamma = jax.vmap(partial(of, operands))(gammas)
        return shared, own_gamma, jax.vmap(jax.vmap(of, (None, 0)), (0, None))(seeds, gammas)

    same(run(kernel, seeds, gammas), run(plain, seeds, gammas), 33)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("layout", ["TN", "NT", "STN"])
def test_lanes_over_two_gpus(layout, gradient):
    devices = jax.devices()[:2]
    if len(devices) < 2:
        pytest.skip("needs two GPUs")
    mesh = jax.make_mesh((2,), ("lanes",), (AxisType.Auto,), devices=devices)
    operands, kernel, plain = gae_inputs(layout)
    lanes = {"TN": 1, "NT": 0, "STN": 0}[layout]
    rank = operands["rewards"].ndim

    def put(x):
        spec = [None] * np.ndim(x)
        if np.ndim(x) == rank:
            spec[lanes] = "lanes"
        elif np.ndim(x):
            spec[0] = "lanes"
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    def run(gae):
        if not gradient:
            return gae
        return jax.grad(lambda x: jnp.sum(jnp.sin(gae(operands | x).targets)))

    moving = ("rewards", "values", "bootstrap_value") if gradient else operands
    given = {k: operands[k] for k in moving}
    program = jax.jit(run(kernel)).lower(jax.tree.map(put, given)).compile()
    assert "all-gather" not in program.as_text()
    same(program(jax.tree.map(put, given)), jax.jit(run(plain))(given), 33)


def test_a_new_gamma_does_not_compile_again():
    operands, kernel, plain = gae_inputs("TN")
    function = jax.jit(kernel)
    for gamma in np.float32([0.9, 0.99, 1.0]):
        same(function(operands | {"gamma": gamma}), plain(operands | {"gamma": gamma}), 33)
    assert function._cache_size() == 1


# ------------------------------------------------------------------------------------------------
# Long windows and large arrays
# ------------------------------------------------------------------------------------------------

LONG = ((2**20, 1), (1, 2**20), (70_000, 64), (64, 70_000))


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("op", OPTIONS)
def test_long_windows(op, shape):
    """Episodes of a thousand rows, so that what crosses blocks matters."""
    axis = int(np.argmax(shape))
    rng = np.random.default_rng(0)
    arguments = make(op, PLAIN[op], shape, axis, rng=rng, end_rate=1e-3)
    got = call(op, **arguments, implementation=IMPLEMENTATION, dtype=np.float32, jit=True)
    exact = {k: to_float64(x) if isinstance(x, np.ndarray) else x for k, x in arguments.items()}
    with jax.default_device(jax.devices("cpu")[0]):  # a loop is quick there, to compile and to run
        expected = call(op, **exact, implementation="scan", dtype=np.float64, jit=True)
    same(got, expected, shape[axis])


@pytest.mark.parametrize("time_major", [True, False])
def test_more_than_2_31_elements(time_major):
    """Offsets need 64 bits: the last lanes equal those of a small call."""
    length, lanes, few = 4, 2**29 + 64, 256
    shape, axis = ((length, lanes), 0) if time_major else ((lanes, length), 1)
    rewards = jax.jit(
        lambda: jax.lax.broadcasted_iota(jnp.int32, shape, 1 - axis).astype(jnp.int8)
    )()
    rewards = rewards.astype(jnp.bfloat16)
    function = jax.jit(
        partial(rl_triton_jax.discounted_returns, gamma=0.5, bootstrap_value=1.0, axis=axis),
        static_argnames="implementation",
    )
    got = function(rewards, implementation=IMPLEMENTATION)
    for end in (slice(few), slice(-few, None)):
        part = (slice(None), end) if time_major else (end,)
        np.testing.assert_array_equal(got[part], function(rewards[part], implementation="scan"))


OURS = ("--kernel-name", "kns=columns", "--kernel-name", "kns=rows")
"""What compute-sanitizer is to look at; XLA's own kernels take it minutes."""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer(tool):
    """No access outside of an array, no race in shared memory. Slow where others use the GPU: ten
    times as long beside other tests."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("needs compute-sanitizer")
    watched = [sys.executable, "-m", "tests.gpu.every_kernel"]
    run = subprocess.run(
        [program, "--tool", tool, *OURS, "--error-exitcode", "9", *watched],
        env=os.environ | {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},  # an allocation an array
        capture_output=True,
        text=True,
        timeout=500,
    )
    if "Device not supported" in run.stdout + run.stderr:
        pytest.skip("compute-sanitizer does not take this machine")
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert run.stdout.count(" ran") == len(OPTIONS)


def test_self_check():
    run = subprocess.run(
        [sys.executable, "-m", "rl_triton_jax"], capture_output=True, text=True, timeout=500
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_kernels_are_the_default():
    """None takes them on a GPU, for what they can do."""
    if IMPLEMENTATION == "triton":
        operands, static = traced(draw("gae", PLAIN["gae"], "TN", 33))
        function = partial(rl_triton_jax.gae, **static)
        with precision(np.float32):
            text = jax.jit(lambda x: function(**x)).lower(operands).as_text()
        assert text.count("triton_kernel_call") == 1
