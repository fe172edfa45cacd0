"""The table of transformations that every operation must pass, and the plain loops it must equal.

A case is one call of an operation: a dict of arrays, all differentiable but the mask, and static
options. A check takes an operation, as a function of that dict, and the dict, and returns arrays.
It runs on the library's operation and on the oracle, a `lax.scan` over the rows that JAX
differentiates, and both must give the same. `expect` names the check whose oracle result is
compared instead: a donated or sharded gradient must equal the plain one.

One line of `CASES` adds a call, one function adds a check.
"""

import contextlib
import functools
import inspect
import math
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rl_triton_jax

# ------------------------------------------------------------------------------------------------
# Oracles: the definitions, one row after another
# ------------------------------------------------------------------------------------------------


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


# ------------------------------------------------------------------------------------------------
# Cases: one call each
# ------------------------------------------------------------------------------------------------

LENGTH, LANES, DEVICES = 5, 16, min(8, jax.device_count())

ROWS = ("rewards", "values", "q_values", "next_values", "x", "a", "b", "log_rho", "rho", "trace")
FLAGS = ("terminated", "truncated")
BY_LANE = ("bootstrap_value", "init", "last_terminated")
DATA = ("rewards", "values", "q_values", "next_values", "bootstrap_value", "x", "init", "b")
NUMBERS = {"gamma": 0.9, "lambda_": 0.8, "clip_rho": 1.1, "clip_c": 0.9, "clip_pg_rho": 1.3}
COEFFICIENTS = ("gamma", "lambda_", "a")  # of any shape that broadcasts


@dataclass(frozen=True)
class Case:
    """An operation, its arguments ("values+" has a row more), and its options."""

    name: str
    arguments: str
    options: tuple = ()


# The first eight cases run every check, the others those that depend on the recurrence.
CASES = {
    "gae": Case("gae", "rewards values next_values terminated truncated gamma lambda_"),
    "vtrace": Case(
        "vtrace",
        "rewards values bootstrap_value terminated log_rho clip_rho clip_c clip_pg_rho "
        "gamma lambda_",
    ),
    "retrace": Case(
        "retrace", "rewards q_values next_values terminated truncated log_rho gamma lambda_"
    ),
    "lambda_returns": Case(
        "lambda_returns", "rewards values bootstrap_value terminated gamma lambda_"
    ),
    "discounted_returns": Case(
        "discounted_returns", "rewards terminated truncated next_values gamma"
    ),
    "eligibility_traces": Case("eligibility_traces", "x init terminated truncated gamma lambda_"),
    "episodic_prefix_sum": Case("episodic_prefix_sum", "x terminated truncated init"),
    "linear_recurrence": Case("linear_recurrence", "b init a"),
}
OPERATIONS = tuple(CASES)
DROP, MIXED = ("on_truncation", "drop"), ("pg_bootstrap", "mixed")
CASES |= {
    "gae-bootstrap": Case("gae", "rewards values bootstrap_value terminated gamma lambda_"),
    "gae-last": Case(
        "gae", "rewards values bootstrap_value terminated last_terminated gamma lambda_"
    ),
    "gae-drop": Case("gae", "rewards values+ terminated truncated gamma lambda_", (DROP,)),
    "gae-mask": Case("gae", "rewards values bootstrap_value terminated mask gamma lambda_"),
    "vtrace-mixed": Case(
        "vtrace",
        "rewards values next_values terminated truncated rho clip_rho clip_c clip_pg_rho "
        "gamma lambda_",
        (MIXED,),
    ),
    "vtrace-drop-mask": Case(
        "vtrace",
        "rewards values+ terminated truncated mask log_rho clip_rho clip_c clip_pg_rho "
        "gamma lambda_",
        (DROP, MIXED),
    ),
    "retrace-mask": Case(
        "retrace", "rewards q_values next_values terminated mask log_rho gamma lambda_"
    ),
    "retrace-trace": Case("retrace", "rewards q_values next_values terminated trace gamma"),
    "lambda_returns-next": Case(
        "lambda_returns", "rewards next_values terminated truncated gamma lambda_"
    ),
    "lambda_returns-drop": Case(
        "lambda_returns", "rewards values+ terminated truncated gamma lambda_", (DROP,)
    ),
    "discounted_returns-mask": Case(
        "discounted_returns", "rewards terminated mask bootstrap_value gamma"
    ),
    "eligibility_traces-mask": Case(
        "eligibility_traces", "x init terminated truncated mask gamma lambda_"
    ),
    "episodic_prefix_sum-starts_at": Case(
        "episodic_prefix_sum", "x init mask terminated truncated", (("boundary", "starts_at"),)
    ),
    "linear_recurrence-reverse": Case("linear_recurrence", "b init a", (("reverse", True),)),
}


@dataclass(frozen=True)
class Operation:
    """A function of a case's arguments."""

    function: Callable
    options: tuple = ()

    def __call__(self, arguments):
        return self.function(**arguments, **dict(self.options))

    def with_options(self, **options):
        return replace(self, options=(*self.options, *options.items()))


def operation(case, implementation=None, namespace=rl_triton_jax):
    function = getattr(namespace, CASES[case].name)
    return Operation(function, CASES[case].options).with_options(implementation=implementation)


def oracle(case):
    return Operation(globals()[CASES[case].name], CASES[case].options)


def arguments(case):
    """The same numbers for the same names: soft flags with hard ones among them, no ties."""
    return {word.removesuffix("+"): _draw(word) for word in CASES[case].arguments.split()}


def _draw(word):
    name = word.removesuffix("+")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name in NUMBERS:
        return jnp.asarray(np.float64(NUMBERS[name]))
    if name in BY_LANE:
        return jnp.asarray(rng.uniform(0.1, 0.9, LANES))
    if name == "mask":
        return jnp.asarray(rng.random((LENGTH, LANES)) < 0.7)
    if name in FLAGS:
        u = rng.random((LENGTH, LANES))
        return jnp.asarray(np.where(u < 0.2, 1.0, np.where(u < 0.5, u, 0.0)))
    x = rng.standard_normal((LENGTH + word.endswith("+"), LANES))
    return jnp.asarray(np.exp(0.5 * x) if name in ("rho", "trace") else x)


# ------------------------------------------------------------------------------------------------
# What the checks are made of
# ------------------------------------------------------------------------------------------------


def floats(args):
    """The differentiable arguments."""
    return {n: x for n, x in args.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def differentiable(op, args):
    """The operation as a function of its float arguments, and those."""
    return lambda moving: op(args | moving), floats(args)


def total(tree):
    """A scalar, not linear, that weighs rows apart and is a sum over lanes."""

    def weigh(x):
        rows = jnp.arange(len(x), dtype=x.dtype)
        weights = jnp.cos(2 + rows).reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.sum(weights * jnp.sin(x))

    return sum(map(weigh, jax.tree.leaves(tree)))


def direction(tree):
    """A tangent or cotangent without structure."""
    return jax.tree.map(
        lambda x: jnp.cos(2 + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), tree
    )


def loss(op):
    return lambda args: total(op(args))


def gradient(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(loss(f))(moving)


def both(op, args):
    """Value and gradient."""

    def of(moving):
        out = op(args | moving)
        return total(out), out

    gradients, out = jax.grad(of, has_aux=True)(floats(args))
    return out, gradients


def along(f):
    """The derivative of a scalar function along a fixed direction, in reverse mode."""

    def derivative(x):
        products = jax.tree.map(jnp.vdot, jax.grad(f)(x), direction(x))
        return sum(jax.tree.leaves(products))

    return derivative


def leader(args):
    """The argument that has the results' shape."""
    return next(n for n in ("rewards", "x", "b") if n in args)


def knobs(args):
    """Two arguments, those that hyperparameter searches map over where there are such."""
    first, second, *_ = (n for n in ("gamma", "lambda_", "a", "init", "terminated") if n in args)
    return first, second


def by_few(op, args):
    """The loss as a function of an array and the knobs, and those."""
    few = {n: args[n] for n in (leader(args), *knobs(args))}
    return lambda few: loss(op)(args | few), few


def even(args):
    """Every other argument."""
    return sorted(args)[::2]


def odd(args):
    """The others."""
    return sorted(args)[1::2]


def copies(args, count, names=None, axis=0):
    """Several different versions of the arguments, or of those named, stacked along an axis."""

    def stack(name, x):
        if name in (*FLAGS, "mask"):
            versions = [jnp.roll(x, i, 0) for i in range(count)]
        else:
            versions = [x * (1 - 0.1 * i) for i in range(count)]
        return jnp.stack(versions, min(axis, x.ndim))

    return {n: stack(n, x) if names is None or n in names else x for n, x in args.items()}


def vmapped(op, args, names=None, **options):
    """Over a new first axis of the named arguments, or of all."""
    return jax.vmap(op, ({n: 0 if names is None or n in names else None for n in args},), **options)


def hard(args, dtype):
    """Flags that are bool or int: set where they are not 0."""
    return {n: (3 * (x > 0.5)).astype(dtype) if n in FLAGS else x for n, x in args.items()}


def one_for_all_lanes(args):
    return {n: x[0] if n in BY_LANE else x for n, x in args.items()}


def spread(args, shape):
    """Coefficients by lane, by time, or full; without init, which wants them constant in time."""
    rows = args[leader(args)]
    like = {"lane": rows[0], "time": rows[:, :1], "full": rows}[shape]
    kept = {n: x for n, x in args.items() if n != "init" or shape == "lane"}
    return {n: 0.8 + 0.1 * direction(like) if n in COEFFICIENTS else x for n, x in kept.items()}


def repeated(op, args, step=lambda f: f):
    """A loop body that feeds the first result back as the first argument, and its start."""
    body = step(lambda x: jnp.tanh(jax.tree.leaves(op(args | {leader(args): x}))[0]))
    return body, args[leader(args)]


def scanned(op, step=lambda f: f, **options):
    """Three rounds of that."""

    def f(args):
        body, start = repeated(op, args, step)
        return lax.scan(lambda x, _: (body(x), None), start, length=3, **options)[0]

    return f


# ------------------------------------------------------------------------------------------------
# Checks
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """function(op, args), run under jit unless `eager`; `cases` are those that it can depend on."""

    function: Callable
    expect: str
    cases: tuple = OPERATIONS
    eager: bool = False
    context: Callable = contextlib.nullcontext

    def __call__(self, op, args):
        function = functools.partial(self.function, op)
        if not self.eager:
            function = jax.jit(function)
        with self.context():
            return function(args)


CHECKS: dict[str, Check] = {}
PLAIN = "value and gradient"
EVERY_CASE = tuple(CASES)
FLAGGED = tuple(case for case in OPERATIONS if case != "linear_recurrence")
EDGED = tuple(case for case in OPERATIONS if set(BY_LANE) & set(CASES[case].arguments.split()))
DECAYED = tuple(case for case in OPERATIONS if case != "episodic_prefix_sum")
# For checks in which JAX handles the operation as a black box, or chains rules that other checks
# put every operation through.
EITHER = ("gae", "linear_recurrence")


def check(name, *, expect=None, **options):
    """Adds a check; without `expect` the oracle goes through the same function."""

    def register(function):
        CHECKS[name] = Check(function, expect or name, **options)
        return function

    return register


def around(name, *, expect=PLAIN, **options):
    """Adds a check of `wrap(op, args)`, which must have the operation's value and gradient."""

    def register(wrap):
        check(name, expect=expect, **options)(lambda op, args: both(wrap(op, args), args))
        return wrap

    return register


# --- calls and contexts ---

check(PLAIN, cases=EVERY_CASE)(both)
check("eager", expect=PLAIN, eager=True)(both)
check("debug_nans", expect=PLAIN, context=functools.partial(jax.debug_nans, True))(both)
check("debug_infs", expect=PLAIN, context=functools.partial(jax.debug_infs, True), cases=EITHER)(
    both
)
check("value")(lambda op, args: op(args))
check("disable_jit", expect="value", eager=True, context=jax.disable_jit)(lambda op, args: op(args))
around("nested jit", cases=EITHER)(lambda op, args: jax.jit(jax.jit(op)))


@check("eval_shape")
def types(op, args):
    shapes = jax.eval_shape(functools.partial(both, op), args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


# In these contexts JAX refuses to trace what is not exact.
for name, context in {
    "strict dtype promotion": functools.partial(jax.numpy_dtype_promotion, "strict"),
    "rank promotion raises": functools.partial(jax.numpy_rank_promotion, "raise"),
    "checking_leaks": jax.checking_leaks,
    "enable_checks": functools.partial(jax.enable_checks, True),
}.items():
    check(name, expect="eval_shape", context=context)(types)


@check("NumPy inputs", expect="value", eager=True)
def _(op, args):
    return op({n: np.asarray(x) for n, x in args.items()})


@check("ensure_compile_time_eval", expect="value", eager=True)
def _(op, args):
    def f():
        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, op(args))  # fails on a tracer

    return jax.jit(f)()


@around("make_jaxpr", cases=EITHER)
def _(op, args):
    jaxpr, shape = jax.make_jaxpr(op, return_shape=True)(args)
    evaluate = jax.extend.core.jaxpr_as_fun(jaxpr)
    return lambda args: jax.tree.unflatten(
        jax.tree.structure(shape), evaluate(*jax.tree.leaves(args))
    )


@around("static_argnames")
def _(op, args):
    words = {"axis": 0, "implementation": None, "on_truncation": "bootstrap"} | dict(op.options)
    known = inspect.signature(op.function).parameters
    static = {n: x for n, x in words.items() if n in known}
    return lambda args: jax.jit(op.function, static_argnames=tuple(static))(**args, **static)


@check("donated arguments", expect="value", eager=True, cases=EITHER)
def _(op, args):
    with warnings.catch_warnings():
        # Not every argument has the type of a result whose buffer it could become.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return jax.jit(op, donate_argnums=0)({n: x.copy() for n, x in args.items()})


KERNELS = jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")
"""That JAX gives no guarantee of compatibility for them."""


@around("export for two platforms", eager=True, cases=("eligibility_traces",))
def _(op, args):
    op = op.with_options(implementation=None)  # none but None has something to run on each of them
    export = jax.export.export(jax.jit(op), platforms=("cpu", "cuda"), disabled_checks=[KERNELS])
    return export(args).call


@around("export, serialised", eager=True, cases=EITHER)
def _(op, args):
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")
    exported = jax.export.export(jax.jit(op), disabled_checks=[KERNELS])(args)
    return jax.export.deserialize(exported.serialize(vjp_order=1)).call


# --- derivatives ---


@check("value_and_grad", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.value_and_grad(loss(f))(moving)


@check("jvp")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jvp(f, (moving,), (direction(moving),))


@check("jvp by one argument alone")
def _(op, args):
    f, moving = differentiable(op, args)
    return {
        n: jax.jvp(lambda x, n=n: f(moving | {n: x}), (x,), (direction(x),))[1]
        for n, x in moving.items()
    }


@check("grad by one argument alone", expect=PLAIN)
def _(op, args):
    f, moving = differentiable(op, args)
    alone = {n: jax.grad(lambda x, n=n: loss(f)(moving | {n: x}))(x) for n, x in moving.items()}
    return op(args), alone


@check("gradient of one result alone", cases=("gae", "vtrace"))
def _(op, args):
    f, moving = differentiable(op, args)
    return [jax.grad(lambda x, i=i: total(f(x)[i]))(moving) for i in range(2)]


@check("vjp")
def _(op, args):
    f, moving = differentiable(op, args)
    out, vjp = jax.vjp(f, moving)
    return out, vjp(direction(out))


@check("jacfwd")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jacfwd(f)(moving)


@check("jacrev", expect="jacfwd")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jacrev(f)(moving)


@check("hessian")
def _(op, args):
    f, few = by_few(op, args)
    return jax.hessian(f)(few)


@check("linearize", expect="jvp")
def _(op, args):
    f, moving = differentiable(op, args)
    out, linear = jax.linearize(f, moving)
    return out, linear(direction(moving))


@check("linear_transpose")
def _(op, args):
    data = {n: x for n, x in args.items() if n in DATA}
    return jax.linear_transpose(lambda data: op(args | data), data)(direction(op(args)))


@check("linear_transpose twice", expect="value")
def _(op, args):
    data = {n: x for n, x in args.items() if n in DATA}
    transposed = jax.linear_transpose(lambda data: op(args | data), data)
    (out,) = jax.linear_transpose(lambda y: transposed(y)[0], op(args))(data)
    return out


@check("reverse over reverse", cases=EVERY_CASE)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(along(loss(f)))(moving)


@check("forward over reverse", expect="reverse over reverse")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.jvp(jax.grad(loss(f)), (moving,), (direction(moving),))[1]


@check("reverse over forward", expect="reverse over reverse")
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.grad(lambda x: jax.jvp(loss(f), (x,), (direction(x),))[1])(moving)


@check("forward over forward", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    tangent = direction(moving)
    return jax.jvp(lambda x: jax.jvp(f, (x,), (tangent,))[1], (moving,), (tangent,))


@check("third order")
def _(op, args):
    f, few = by_few(op, args)
    return jax.jvp(jax.grad(along(f)), (few,), (direction(few),))[1]


@check("third order, reverse only", expect="third order", cases=EITHER)
def _(op, args):
    f, few = by_few(op, args)
    return jax.grad(along(along(f)))(few)


@check("gradient through a gradient step", cases=EITHER)
def _(op, args):
    knob, _ = knobs(args)
    start = args[leader(args)]

    def outer(k):
        inner = loss(lambda x: op(args | {knob: k, leader(args): x}))
        return inner(start - 0.1 * jax.grad(inner)(start))

    return jax.grad(outer)(args[knob])


@check("check_grads", expect="value", eager=True, cases=("linear_recurrence",))
def _(op, args):
    f, moving = differentiable(op, args)
    jax.test_util.check_grads(jax.jit(f), (moving,), order=2, modes=("fwd", "rev"))
    return op(args)


# --- batching ---

BATCHED = {
    "even arguments": (even, OPERATIONS),
    "odd arguments": (odd, OPERATIONS),
    "all arguments": (list, EITHER),
    "a knob": (lambda args: knobs(args)[:1], OPERATIONS),
    "all but the flags": (lambda args: [n for n in args if n not in FLAGS], EITHER),
}
for which, (choose, cases) in BATCHED.items():

    @check(f"{PLAIN} of vmap, {which}", cases=cases)
    def _(op, args, choose=choose):
        names = choose(args)
        return both(vmapped(op, args, names), copies(args, 2, names))

    @check(f"vmap of {PLAIN}, {which}", cases=EITHER)
    def _(op, args, choose=choose):
        names = choose(args)
        return vmapped(functools.partial(both, op), args, names)(copies(args, 2, names))


@check("vmap of one argument alone")
def _(op, args):
    return {n: vmapped(op, args, [n])(copies(args, 2, [n])) for n in args}


@check("vmap over one knob in vmap over the other", cases=EITHER)
def _(op, args):
    one, other = ([knob] for knob in knobs(args))
    f = vmapped(vmapped(functools.partial(both, op), args, one), args, other)
    return f(copies(copies(args, 3, one), 2, other))


@check("vmap in vmap, even and odd arguments")
def _(op, args):
    f = vmapped(vmapped(op, args, even(args)), args, odd(args))
    return both(f, copies(copies(args, 2, even(args)), 3, odd(args)))


@check("vmap in vmap in vmap", cases=EITHER)
def _(op, args):
    one, other = ([knob] for knob in knobs(args))
    f = vmapped(vmapped(vmapped(op, args, one), args, other), args)
    return f(copies(copies(copies(args, 2, one), 2, other), 2))


@check("vmap, in_axes=-1 and out_axes=-1")
def _(op, args):
    return jax.vmap(op, -1, -1)(copies(args, 2, axis=2))


@check("vmap, in_axes=1 and out_axes=1", cases=EITHER)
def _(op, args):
    names = [n for n in args if args[n].ndim]
    f = jax.vmap(op, ({n: 1 if n in names else None for n in args},), 1)
    return f(copies(args, 2, names, axis=1))


@check("vmap, another axis for every other argument", cases=EITHER)
def _(op, args):
    f = jax.vmap(op, ({n: 0 if n in even(args) else -1 for n in args},))
    return f(copies(copies(args, 2, even(args)), 2, odd(args), axis=2))


def lane_axes(args):
    return {n: {2: 1, 1: 0, 0: None}[x.ndim] for n, x in args.items()}


@around("lanes by vmap")
def _(op, args):
    return jax.vmap(op, (lane_axes(args),), 1)


@around("time on the last axis")
def _(op, args):
    def f(args):
        out = op.with_options(axis=-1)({n: x.T for n, x in args.items()})
        return jax.tree.map(jnp.transpose, out)

    return f if op.function.__module__ != __name__ else op


@check("vmap of jvp over tangents", cases=EITHER)
def _(op, args):
    f, moving = differentiable(op, args)
    return jax.vmap(lambda t: jax.jvp(f, (moving,), (t,))[1])(copies(direction(moving), 2))


@check("vmap of vjp over cotangents")
def _(op, args):
    f, moving = differentiable(op, args)
    out, vjp = jax.vjp(f, moving)
    return jax.vmap(vjp)(jax.tree.map(lambda y: jnp.stack([y, 2 - y]), direction(out)))


@check("hessian of vmap", cases=EITHER)
def _(op, args):
    names = even(args)
    batch = copies(args, 2, names)
    f = loss(vmapped(op, args, names))
    return jax.hessian(lambda x: f(batch | x))({n: batch[n] for n in knobs(args)})


def over_seeds(op):
    """What a data-parallel update does, with the seed's index for a scale."""

    def f(args):
        args = args | {leader(args): args[leader(args)] * (1.0 + lax.axis_index("seed"))}
        return lax.psum(op(args), "seed"), lax.pmean(gradient(op, args), "seed")

    return f


@check("named axis, psum and pmean")
def _(op, args):
    return vmapped(over_seeds(op), args, axis_name="seed")(copies(args, 2))


@check("gradient of psum over a named axis", cases=EITHER)
def _(op, args):
    names = odd(args)
    f = vmapped(lambda args: lax.psum(op(args), "seed"), args, names, axis_name="seed")
    return gradient(f, copies(args, 2, names))


# --- shapes and types of coefficients, flags and edges ---

for shape in ("lane", "time", "full"):

    @check(f"coefficients by {shape}", cases=DECAYED)
    def _(op, args, shape=shape):
        return both(op, spread(args, shape))


@check("vmap of gradient, full coefficients", cases=EITHER)
def _(op, args):
    args = spread(args, "full")
    return vmapped(functools.partial(gradient, op), args, odd(args))(copies(args, 2, odd(args)))


def beside_flags(op, args):
    """Value and cotangents, with flags that have none."""
    out, vjp = jax.vjp(op, args)
    (cotangents,) = vjp(direction(out))
    for n, x in cotangents.items():
        assert (x.dtype == jax.dtypes.float0) == (n not in floats(args))
    return out, floats(cotangents)


@check("bool flags", cases=FLAGGED)
def _(op, args):
    return beside_flags(op, hard(args, bool))


@check("int flags", cases=("gae",))
def _(op, args):
    return beside_flags(op, hard(args, np.int32))


@check("scalar bootstrap and init", cases=EDGED)
def _(op, args):
    return both(op, one_for_all_lanes(args))


# --- control flow ---


def nothing(op):
    """A branch not taken."""
    return lambda args: jax.tree.map(jnp.zeros_like, op(args))


def true(args):
    """A condition that is traced."""
    return args[leader(args)][0, 0] < 1e3


@around("cond", cases=EITHER)
def _(op, args):
    return lambda args: lax.cond(true(args), op, nothing(op), args)


@around("switch", cases=EITHER)
def _(op, args):
    branches = (nothing(op), op, nothing(op))
    return lambda args: lax.switch(true(args).astype(int), branches, args)


@around("fori_loop", cases=EITHER)
def _(op, args):
    return lambda args: lax.fori_loop(0, 2, lambda i, _: op(args), nothing(op)(args))


around("checkpoint")(lambda op, args: jax.checkpoint(op))


@around("checkpoint, own primitive saved")
def _(op, args):
    return jax.checkpoint(op, policy=lambda p, *_, **__: p.name == op.function.__name__)


@around("checkpoint, named result saved", cases=EITHER)
def _(op, args):
    policy = jax.checkpoint_policies.save_only_these_names("out")
    return jax.checkpoint(lambda args: checkpoint_name(op(args), "out"), policy=policy)


@around("checkpoint, dots saved", cases=EITHER)
def _(op, args):
    return jax.checkpoint(op, policy=jax.checkpoint_policies.dots_saveable)


@check("scan over arguments", cases=EITHER)
def _(op, args):
    def body(carry, args):
        out = op(args)
        return carry + total(out), out

    def f(args):
        carry, out = lax.scan(body, jnp.zeros(()), args)
        return carry[None], out

    return both(f, copies(args, 3))


@check("scan over results")
def _(op, args):
    return both(scanned(op), args)


@check("scan over results, unrolled", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(scanned(op, unroll=3), args)


@check("scan of checkpoint", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(scanned(op, jax.checkpoint), args)


@check("jvp of while_loop", cases=EITHER)
def _(op, args):
    body, start = repeated(op, args)

    def f(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1])), (0, x))[1]

    return jax.jvp(f, (start,), (direction(start),))


@check("vmap of fori_loop, another number of rounds each", cases=EITHER)
def _(op, args):
    body, start = repeated(op, args)
    return jax.vmap(lambda n: lax.fori_loop(0, n, lambda _, x: body(x), start))(jnp.arange(3))


@check("vmap of cond, another branch each", cases=EITHER)
def _(op, args):
    return jax.vmap(lambda yes, args: lax.cond(yes, op, nothing(op), args))(
        jnp.array([True, False]), copies(args, 2)
    )


@check("map in batches", cases=EITHER)
def _(op, args):
    return lax.map(op, copies(args, 3), batch_size=2)


@check("gradient of scan of checkpoint of vmap", cases=EITHER)
def _(op, args):
    names = [leader(args), *knobs(args)]
    return gradient(scanned(vmapped(op, args, names), jax.checkpoint), copies(args, 2, names))


# --- several devices ---

SEEDS = 2


def needs(devices):
    if jax.device_count() < devices:
        pytest.skip(f"needs {devices} devices")


def new_mesh(kind=AxisType.Auto, **sizes):
    needs(math.prod(sizes.values()))
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def mesh(kind=AxisType.Auto):
    return new_mesh(kind, lanes=DEVICES)


def mesh_of_seeds(kind=AxisType.Auto):
    return new_mesh(kind, seeds=SEEDS, lanes=max(DEVICES // SEEDS, 1))


def spec(x, *leading):
    """Lanes are the last axis; scalars are replicated."""
    rank = x.ndim - len(leading)
    return P(*leading, *[None] * (rank - 1), *["lanes"] * (rank > 0))


def specs(args, *leading):
    return {n: spec(x, *leading) for n, x in args.items()}


def put(args, mesh, *leading):
    return {n: jax.device_put(x, NamedSharding(mesh, spec(x, *leading))) for n, x in args.items()}


def by_shard(op, args, **options):
    return jax.shard_map(
        op,
        mesh=mesh(),
        in_specs=(specs(args),),
        out_specs=spec(args[leader(args)]),
        **options,
    )


def without_gathering(f, args):
    """Compiles and runs; the lanes are independent, so nothing may be gathered."""
    program = jax.jit(f).lower(args).compile()
    assert "all-gather" not in program.as_text()
    return program(args)


@around("pmap")
def _(op, args):
    mapped = jax.pmap(op, in_axes=({n: x.ndim - 1 if x.ndim else None for n, x in args.items()},))

    def f(args):
        lanes = {n: x.reshape(*x.shape[:-1], DEVICES, -1) if x.ndim else x for n, x in args.items()}
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, 1).reshape(LENGTH, -1), mapped(lanes))

    return f


@check("pmap, psum and pmean", expect="named axis, psum and pmean", eager=True, cases=EITHER)
def _(op, args):
    needs(2)
    return jax.pmap(over_seeds(op), axis_name="seed")(copies(args, 2))


around("shard_map")(by_shard)


@check("shard_map, eager", expect="value", eager=True, cases=EITHER)
def _(op, args):
    return by_shard(op, args)(args)


around("shard_map, check_vma=False", cases=EITHER)(functools.partial(by_shard, check_vma=False))


@around("shard_map of checkpoint", cases=EITHER)
def _(op, args):
    return by_shard(jax.checkpoint(op), args)


@around("shard_map of vmap over lanes", cases=EITHER)
def _(op, args):
    return by_shard(jax.vmap(op, (lane_axes(args),), 1), args)


@check("gradient inside shard_map", expect=PLAIN)
def _(op, args):
    """That of a replicated operand comes out summed over the devices."""
    out_specs = (spec(args[leader(args)]), specs(floats(args)))
    inside = functools.partial(both, op)
    return jax.shard_map(inside, mesh=mesh(), in_specs=(specs(args),), out_specs=out_specs)(args)


@check("shard_map, bool flags", expect="bool flags", cases=FLAGGED)
def _(op, args):
    args = hard(args, bool)
    return beside_flags(by_shard(op, args), args)


@check("shard_map, replicated bootstrap and init", expect="scalar bootstrap and init", cases=EDGED)
def _(op, args):
    args = one_for_all_lanes(args)
    return both(by_shard(op, args), args)


@check("third order of shard_map", expect="third order", cases=EITHER)
def _(op, args):
    f, few = by_few(by_shard(op, args), args)
    return jax.jvp(jax.grad(along(f)), (few,), (direction(few),))[1]


@check("scan in shard_map", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(by_shard(scanned(op), args), args)


@check("vmap of shard_map", expect=f"{PLAIN} of vmap, all arguments", cases=EITHER)
def _(op, args):
    return both(jax.vmap(by_shard(op, args)), copies(args, 2))


@check("shard_map over some axes", expect=f"{PLAIN} of vmap, all arguments", cases=EITHER)
def _(op, args):
    f = jax.shard_map(
        jax.vmap(op),
        mesh=mesh_of_seeds(),
        in_specs=P("seeds"),
        out_specs=P("seeds"),
        axis_names={"seeds"},
    )
    return both(f, copies(args, SEEDS))


@check("jit over devices", expect=PLAIN, eager=True)
def _(op, args):
    return without_gathering(functools.partial(both, op), put(args, mesh()))


@check("jit over devices, only the rows put there", expect=PLAIN, eager=True, cases=EITHER)
def _(op, args):
    rows = put({n: x for n, x in args.items() if x.ndim == 2}, mesh())
    return without_gathering(functools.partial(both, op), args | rows)


@check("jit over devices, scan", expect="scan over results", eager=True, cases=EITHER)
def _(op, args):
    return without_gathering(functools.partial(both, scanned(op)), put(args, mesh()))


@check(
    "jit over devices, vmap over seeds",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    batch = put(copies(args, SEEDS), mesh_of_seeds(), "seeds")
    return without_gathering(jax.vmap(functools.partial(both, op)), batch)


@check(
    "jit over devices, spmd_axis_name",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    batch = put(copies(args, SEEDS), mesh_of_seeds(), "seeds")
    with jax.set_mesh(mesh_of_seeds()):
        f = jax.vmap(functools.partial(both, op), spmd_axis_name="seeds")
        return without_gathering(f, batch)


@check("jit over devices, time split", expect=PLAIN, eager=True, cases=EITHER)
def _(op, args):
    """The rows have to be gathered then, and the result is right all the same."""
    split = NamedSharding(new_mesh(time=LENGTH), P("time"))
    args = {n: jax.device_put(x, split) if len(x.shape) == 2 else x for n, x in args.items()}
    return jax.jit(functools.partial(both, op))(args)


def explicit(f, args, mesh, *leading):
    """Runs on a mesh of explicit axes, where types hold shardings: results have the rows', and
    gradients their operands'."""
    with jax.set_mesh(mesh):
        args = put(args, mesh, *leading)
        out, gradients = jax.jit(f)(args)
        for y in jax.tree.leaves(out):
            assert jax.typeof(y).sharding.spec == spec(args[leader(args)], *leading)
        for name, y in gradients.items():
            assert jax.typeof(y).sharding.spec == spec(args[name], *leading), name
        return out, gradients


@check("explicit mesh", expect=PLAIN, eager=True, cases=EVERY_CASE)
def _(op, args):
    return explicit(functools.partial(both, op), args, mesh(AxisType.Explicit))


@check("explicit mesh, scan", expect="scan over results", eager=True, cases=EITHER)
def _(op, args):
    return explicit(functools.partial(both, scanned(op)), args, mesh(AxisType.Explicit))


@check(
    "explicit mesh, vmap over seeds",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    f = jax.vmap(functools.partial(both, op), spmd_axis_name="seeds")
    return explicit(f, copies(args, SEEDS), mesh_of_seeds(AxisType.Explicit), "seeds")
