"""Every case of `data/cases.json` that a public operation can express, on each implementation."""

import re
import warnings
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rl_triton_jax
from tests import cases
from tests.cases import CASES, IMPLEMENTATIONS


def bind(call, implementation):
    """The public operation with the call's static options set."""
    op = getattr(rl_triton_jax, call.op)
    return partial(op, **call.options, implementation=implementation)


@partial(jax.jit, static_argnums=0)
def compiled(static, operands):
    """One function for all cases, so that those of equal shapes share a compilation."""
    op, options, implementation = static
    return getattr(rl_triton_jax, op)(**operands, **dict(options), implementation=implementation)


def run(case, call, implementation):
    return compiled((call.op, tuple(call.options.items()), implementation), call.operands)


def run_vmapped(case, call, implementation, argument):
    """`argument` holds the axes, such as "in_axes=1,out_axes=2"; scalars are not mapped."""
    axes = {name: int(axis) for name, axis in re.findall(r"(\w+)=(\d+)", argument)}
    arrays = {name: x for name, x in call.operands.items() if np.ndim(x)}
    scalars = {name: x for name, x in call.operands.items() if not np.ndim(x)}
    op = bind(call, implementation)
    return jax.jit(jax.vmap(lambda x: op(**x, **scalars), **axes))(arrays)


def run_sharded(case, call, implementation, argument):
    """Eight devices along the lanes, the last axis of every array (`argument` is "N")."""
    devices = jax.devices("cpu")
    if len(devices) < 8:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8")
    mesh = Mesh(devices[:8], (argument,))

    def put(x):
        spec = [None] * (np.ndim(x) - 1) + [argument] * bool(np.ndim(x))
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    operands = {name: put(x) for name, x in call.operands.items()}
    op = bind(call, implementation)
    program = jax.jit(lambda x: op(**x)).lower(operands).compile()
    traffic = re.findall("all-gather|all-reduce|all-to-all|collective-permute", program.as_text())
    assert not traffic, f"lanes are independent, yet: {traffic}"
    return program(operands)


def run_donated(case, call, implementation, argument):
    """Donates the operands named in `argument`."""
    names = tuple(argument.split(","))
    operands = {name: jnp.array(x) for name, x in call.operands.items()}
    op = jax.jit(bind(call, implementation), donate_argnames=names)
    with warnings.catch_warnings():
        # values of length T+1 fit no output, and some platforms never reuse a buffer.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return op(**operands)


def run_gradient(case, call, implementation):
    """The gradients of sum(cotangent * advantages) by the operands that the case lists."""
    names = [name.removeprefix("d_") for name in call.expected]
    op = bind(call, implementation)
    stop = jax.lax.stop_gradient if case["params"]["stop_gradient"] else lambda x: x

    @jax.jit
    @jax.grad
    def gradient(x):
        advantages = op(**(call.operands | stop(x))).advantages
        return jnp.sum(jnp.float32(case["inputs"]["cotangent"]) * advantages)

    gradients = gradient({name: jnp.asarray(call.operands[name]) for name in names})
    return {f"d_{name}": x for name, x in gradients.items()}


RUNNERS = {"vmap": run_vmapped, "sharding": run_sharded, "donate": run_donated}


def runner(case):
    """How to run a case: by its tags "name:argument", by its operation, or plainly under jit."""
    for tag in case["tags"]:
        name, _, argument = tag.partition(":")
        if name in RUNNERS:
            return partial(RUNNERS[name], argument=argument)
    return run_gradient if case["op"] == "gae_grad" else run


def params():
    for case_id in CASES:
        for implementation in IMPLEMENTATIONS:
            why = cases.why_not(case_id, implementation)
            marks = [pytest.mark.skip(reason=why)] if why else []
            yield pytest.param(case_id, implementation, marks=marks)


@pytest.mark.parametrize(("case_id", "implementation"), list(params()))
def test_case(case_id, implementation):
    case = CASES[case_id]
    precision = jax.enable_x64(True) if "x64" in case["tags"] else nullcontext()
    with precision:
        for call in cases.calls(case):
            if "values-have-trailing-1" in case["tags"]:
                shape = re.escape(str(call.operands["values"].shape))
                with pytest.raises(ValueError, match=rf"values.*{shape}"):
                    run(case, call, implementation)
                continue
            result = runner(case)(case, call, implementation)
            if isinstance(result, tuple):
                result = result._asdict()
            elif not isinstance(result, dict):
                result = dict.fromkeys(call.expected, result)
            cases.check(call, result)
            if "bitwise" in case["tags"]:
                for name, x in result.items():
                    assert (x == x[:, :1]).all(), f"columns of {name} differ"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gamma_is_no_constant(implementation):
    """Other values of gamma and lambda_ reuse the compiled function, and change its result."""
    traces = []

    @jax.jit
    def gae(operands):
        traces.append(operands)
        return rl_triton_jax.gae(**operands, implementation=implementation)

    chain = [case for case in CASES.values() if "same-jit:gamma-constant" in case["tags"]]
    assert len(chain) == 3
    for case in chain:
        call = next(cases.calls(case))
        # One of the chain has NumPy's float32; JAX would trace Python's floats apart from it.
        numbers = {name: np.float32(call.operands[name]) for name in ("gamma", "lambda_")}
        cases.check(call, gae(call.operands | numbers)._asdict())
    assert len(traces) == 1


def test_hardly_any_case_is_left_out():
    assert len(CASES) == 99
    assert CASES.keys() >= cases.CANNOT_RUN.keys()
    for implementation in IMPLEMENTATIONS:
        assert sum(cases.why_not(case_id, implementation) is None for case_id in CASES) >= 90
