"""What JAX sees of an operation: one primitive each way, no copies, no retracing, no surprises."""

import functools
import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import rl_triton_jax
from tests.inputs import DATA
from tests.transforms import (
    CASES,
    OPERATIONS,
    arguments,
    copies,
    floats,
    gradient,
    hard,
    loss,
    operation,
)

ENVIRONMENT = "RL_TRITON_JAX_IMPLEMENTATION"
# What may stand beside the primitives where nothing is computed.
RESHAPING = {"reshape", "broadcast_in_dim", "squeeze", "reduce_sum"}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def equations(f, *args):
    """Those of f's jaxpr that do something, the ones inside jit and checkpoint included."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            inner = [x for x in jax.tree.leaves(equation.params) if hasattr(x, "eqns")]
            for x in inner:
                yield from walk(x)
            if not inner:
                yield equation

    return list(walk(jax.make_jaxpr(f)(*args)))


def count(f, *args):
    """How often each primitive occurs."""
    return Counter(equation.primitive.name for equation in equations(f, *args))


def besides(counts, *expected):
    """The other primitives, once these have been found exactly so often."""
    for name, times in Counter(expected).items():
        assert counts.pop(name, 0) == times, name
    return set(counts)


def by_data(case):
    """The operation as a function of its data, with bool flags, and that data."""
    args = hard(arguments(case), bool)
    data = {n: x for n, x in args.items() if n in DATA}
    return lambda data: operation(case)(args | data), data


@pytest.mark.parametrize("case", CASES)
def test_one_primitive_each_way(case):
    """Forward, backward, tangent, and the backward of the backward."""
    op = CASES[case].name
    f, data = by_data(case)
    out, vjp = jax.vjp(f, data)
    assert besides(count(f, data), op) <= RESHAPING
    assert besides(count(vjp, out), f"{op}_vjp") <= RESHAPING
    assert besides(count(lambda x: jax.jvp(f, (x,), (x,)), data), op, op) <= RESHAPING
    assert besides(count(jax.linear_transpose(vjp, out), (data,)), op) <= RESHAPING


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_asked_for_only_where_wanted(case):
    """`<op>_vjp` computes the cotangents of those operands that are differentiated."""
    op = CASES[case].name
    f, data = by_data(case)
    out = f(data)
    for name in data:
        _, vjp = jax.vjp(lambda x, name=name: f(data | {name: x}), data[name])
        (found,) = (e for e in equations(vjp, out) if e.primitive.name == f"{op}_vjp")
        operand = "values" if name == "q_values" else name
        assert [result[0] for result in found.params["results"]] == [operand]


@pytest.mark.parametrize("case", CASES)
def test_derivatives_by_coefficients_scan_with_primitives(case):
    """No loop and no associative_scan of JAX appears: every scan over time is a primitive's."""
    args = arguments(case)
    coefficients = {n: x for n, x in floats(args).items() if n not in DATA}
    found = count(jax.hessian(lambda x: loss(operation(case))(args | x)), coefficients)
    assert not {"scan", "while", "cumsum", "cumprod"} & set(found)


def test_unused_results_cost_no_forward_pass():
    """The gradient of a loss that is linear in the results needs only the backward primitive."""
    f, data = by_data("gae")
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: f(x).advantages.sum()))(data)
    used, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(data))
    names = Counter(e.primitive.name for e in used.eqns)
    assert besides(names, "gae_vjp") <= RESHAPING


@pytest.mark.parametrize(
    ("policy", "forward"),
    [(None, 2), (lambda p, *_, **__: p.name == "gae", 1)],
    ids=["recomputed", "saved"],
)
def test_checkpoint_recomputes_or_saves_the_primitive(policy, forward):
    f, data = by_data("gae")
    body = jax.checkpoint(lambda x: jnp.sin(f(x).advantages).sum(), policy=policy)
    counts = count(jax.grad(lambda x: jnp.sin(body(x))), data)
    assert (counts["gae"], counts["gae_vjp"]) == (forward, 1)


# --- vmap ---


def batched_call(op, args, names, axis):
    """The equation of the operation under vmap over `names`, and all other equations."""
    in_axes = {n: min(axis, args[n].ndim) if n in names else None for n in args}
    found = equations(jax.vmap(op, (in_axes,), axis), copies(args, 2, names, axis))
    (call,) = (e for e in found if e.primitive.name == op.function.__name__)
    return call, [e for e in found if e is not call]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("case", OPERATIONS)
def test_vmap_copies_nothing(case, axis):
    """Operands that are not mapped get an axis of size 1, and one common axis stays in its place.

    The rows are mapped at `axis`; values per lane and scalars are not, so that theirs cannot
    differ.
    """
    args = hard(arguments(case), bool)
    rows = [n for n, x in args.items() if x.ndim == 2]
    call, others = batched_call(operation(case), args, rows, axis)
    assert {e.primitive.name for e in others} <= {"reshape", "broadcast_in_dim", "squeeze"}
    for equation in others:
        assert equation.outvars[0].aval.size == equation.invars[0].aval.size
    sizes = {
        n: x.aval.shape[axis] for n, x in zip(call.params["operands"], call.invars, strict=True)
    }
    assert {"values" if n == "q_values" else n for n in rows} == {
        n for n, size in sizes.items() if size == 2
    }


@pytest.mark.parametrize("case", OPERATIONS)
def test_vmap_shares_what_is_not_mapped(case):
    """Each argument alone is mapped, the others keep size 1 on the new axis."""
    args = hard(arguments(case), bool)
    for name in args:
        call, others = batched_call(operation(case), args, [name], 0)
        assert all(e.outvars[0].aval.size <= math.prod(e.invars[0].aval.shape) for e in others)
        assert [x.aval.shape[0] for x in call.invars].count(2) == 1


# --- compiled programs ---


def instructions(f, *args):
    """The kinds of instruction in the optimised program."""
    text = jax.jit(f).lower(*args).compile().as_text()
    return set(re.findall(r"^\s*(?:ROOT )?%?[\w.-]+ = .*? ([a-z-]+)\(", text, re.M))


@pytest.mark.parametrize("implementation", ["scan", "associative_scan"])
@pytest.mark.parametrize("time", [0, -1])
def test_no_layout_is_transposed(time, implementation):
    args = {n: x.T if time else x for n, x in hard(arguments("gae-bootstrap"), bool).items()}
    op = operation("gae-bootstrap", implementation).with_options(axis=time)
    for f in (op, functools.partial(gradient, op)):
        found = instructions(f, args)
        assert "parameter" in found
        assert "transpose" not in found


def test_a_new_gamma_does_not_retrace():
    traces = []

    @jax.jit
    def f(gamma, lambda_):
        traces.append(gamma)
        args = arguments("gae") | {"gamma": gamma, "lambda_": lambda_}
        return operation("gae")(args)

    for gamma in (0.9, 0.95, 1.0):
        f(gamma, 0.5)
    assert len(traces) == 1


@pytest.mark.parametrize("case", OPERATIONS)
def test_a_new_number_does_not_recompile_an_eager_call(case, caplog):
    args = {n: float(x) if x.ndim == 0 else x for n, x in arguments(case).items()}
    operation(case)(args)
    with jax.log_compiles():
        operation(case)({n: x / 2 if isinstance(x, float) else x for n, x in args.items()})
    assert "ompil" not in caplog.text


@pytest.mark.parametrize("platforms", [("cpu",), ("tpu",), ("cpu", "tpu"), ("cpu", "cuda")])
def test_lowers_for_any_platforms(platforms):
    args = arguments("gae")
    f = jax.jit(jax.value_and_grad(lambda args: operation("gae")(args).advantages.sum()))
    assert f.trace(args).lower(lowering_platforms=platforms).as_text()


# --- the choice of an implementation ---


def chosen(**options):
    """What a call carries along, read off its trace."""
    (call,) = (
        e
        for e in equations(operation("gae").with_options(**options), arguments("gae"))
        if e.primitive.name == "gae"
    )
    return call.params["implementation"]


@pytest.mark.parametrize(
    ("argument", "context", "environment", "expected"),
    [
        (None, None, None, None),
        (None, None, "", None),
        (None, None, "scan", "scan"),
        (None, "associative_scan", "scan", "associative_scan"),
        ("scan", "associative_scan", None, "scan"),
        ("triton", "associative_scan", "scan", "triton"),
    ],
)
def test_argument_then_context_then_environment(
    argument, context, environment, expected, monkeypatch
):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    if environment is not None:
        monkeypatch.setenv(ENVIRONMENT, environment)
    with rl_triton_jax.default_implementation(context):
        assert chosen(implementation=argument) == expected


def test_contexts_nest_and_end(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with rl_triton_jax.default_implementation("scan"):
        with pytest.raises(KeyError), rl_triton_jax.default_implementation("associative_scan"):
            assert chosen() == "associative_scan"
            raise KeyError
        assert chosen() == "scan"
    assert chosen() is None


@pytest.mark.parametrize("how", ["argument", "context", "environment"])
def test_unknown_names_raise(how, monkeypatch):
    with pytest.raises(ValueError, match=r"implementation.*'cuda'.*'associative_scan'"):
        if how == "argument":
            chosen(implementation="cuda")
        elif how == "context":
            with rl_triton_jax.default_implementation("cuda"):
                pass
        else:
            monkeypatch.setenv(ENVIRONMENT, "cuda")
            chosen()


@pytest.mark.parametrize("case", OPERATIONS)
def test_the_choice_holds_for_derivatives(case):
    """A call keeps it in every derivative, wherever that is taken."""
    args = arguments(case)
    with rl_triton_jax.default_implementation("associative_scan"):
        out, vjp = jax.vjp(lambda x: operation(case)(args | x), floats(args))
    found = [e for e in equations(vjp, out) if "implementation" in e.params]
    assert found
    assert {e.params["implementation"] for e in found} == {"associative_scan"}


@pytest.mark.parametrize("case", OPERATIONS)
def test_the_choice_changes_the_program(case):
    loops = {
        implementation: jax.jit(operation(case, implementation))
        .lower(arguments(case))
        .as_text()
        .count("stablehlo.while")
        for implementation in ("scan", "associative_scan")
    }
    assert loops == {"scan": 1, "associative_scan": 0}


@pytest.mark.parametrize("case", OPERATIONS)
def test_forced_triton_raises_at_lowering(case):
    """Tracing is the same on every machine; the reason comes when a CPU program is asked for."""
    op, args = operation(case, "triton"), arguments(case)
    assert jax.eval_shape(op, args) == jax.eval_shape(operation(case), args)
    for f, name in ((op, CASES[case].name), (functools.partial(gradient, op), "")):
        assert jax.make_jaxpr(f)(args)
        traced = jax.jit(f).trace(args)
        with pytest.raises(NotImplementedError, match=f"{name}.*'triton'"):
            traced.lower(lowering_platforms=("cpu",))
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu), pytest.raises(NotImplementedError, match="'triton'"):
        op(jax.device_put(args, cpu))
