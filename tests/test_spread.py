"""What programs are spread over devices: lanes are, and nothing is gathered.

The XLA forms stand where the kernels go, so that the CPU's partitioner spreads them over eight
devices; two GPUs do it with the kernels in `tests/gpu`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rl_triton_jax import reference
from rl_triton_jax.launch import availability
from rl_triton_jax.primitives import lowering
from rl_triton_jax.recurrences import gae, linear, policy, retrace, returns, traces, vtrace
from rl_triton_jax.recurrences.solvers import SOLVERS
from tests.test_lowering import DATA, TRANSFORMED, T, bind, inputs, of_sine, split

LANES = 16


@pytest.fixture
def local_shapes(monkeypatch):
    """Has the XLA forms run where a GPU would have kernels; lists the shapes that they see."""
    modules = (gae, linear, policy, retrace, returns, traces, vtrace)
    recurrences = {k: f for module in modules for k, f in vars(module).items() if callable(f)}
    shapes = []

    def launch(name, _platform, *arrays, **params):
        shapes.append(arrays[0].shape)
        return lowering.evaluate(recurrences[name], SOLVERS["scan"], *arrays, **params)

    monkeypatch.setattr(lowering, "_launch", launch)
    monkeypatch.setattr(availability, "why_not", lambda platform, asked: None)
    yield shapes
    jax.clear_caches()


ENV = {"env": 8}
SEED_ENV = {"seed": 2, "env": 4}


def put(operands, axes, kind=AxisType.Auto, seeds=False, replicated=()):
    """Lanes over env; a leading axis of seeds, where there is one, over seed."""
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), (kind,) * len(axes))

    def spec(name, x):
        seeded = ("seed",) if seeds and name in seeds else ()
        rank = x.ndim - len(seeded)
        lanes = (None, "env")[2 - rank :] if name not in replicated else ()
        return P(*seeded, *lanes)

    return {k: jax.device_put(x, NamedSharding(mesh, spec(k, x))) for k, x in operands.items()}


def grad_of(*names, loss=of_sine):
    return lambda f, x: jax.grad(loss(f))(*split(x, *names))


def of_sum(function):
    return lambda moving, still: jnp.sum(function(moving | still)[0])


def over_seeds(*names):
    return lambda f, x: jax.vmap(f, ({k: 0 if k in names else None for k in x},))(x)


def grad_over_seeds(*names):
    def transform(f, x):
        moving, still = split(x, *names)
        return jax.vmap(lambda moving: jax.grad(of_sine(f))(moving, still))(moving)

    return transform


ALL = ("rewards", "values", "bootstrap_value", "terminated")
# name -> axes of the mesh, operands with seeds, operands on every device, transformation
SPREAD = {
    "forward": (ENV, (), (), lambda f, x: f(x)),
    "replicated bootstrap and flags": (
        ENV,
        (),
        ("bootstrap_value", "terminated"),
        lambda f, x: f(x),
    ),
    "grad": (ENV, (), (), grad_of(*DATA)),
    "grad by coefficients": (ENV, (), (), grad_of("gamma", "lambda_")),
    "grad of a plain sum": (ENV, (), (), grad_of("rewards", "values", loss=of_sum)),
    "grad of checkpoint in scan": (ENV, (), (), TRANSFORMED["grad of checkpoint in scan"][1]),
    "seeds": (SEED_ENV, ALL, (), over_seeds(*ALL)),
    "seeds with their own gamma": (SEED_ENV, (*ALL, "gamma"), (), over_seeds(*ALL, "gamma")),
    "grad of seeds with shared flags": (SEED_ENV, DATA, (), grad_over_seeds(*DATA)),
}


@pytest.mark.parametrize("name", SPREAD)
def test_spread(name, local_shapes):
    axes, seeds, replicated, transform = SPREAD[name]
    operands, static = inputs(shape=(T, LANES))
    batched = {k: np.stack([x, 0.9 * x, x, x]).astype(x.dtype) for k, x in operands.items()}
    operands |= {k: batched[k] for k in seeds}
    placed = put(operands, axes, seeds=seeds, replicated=replicated)
    function = bind(static, implementation="triton")
    program = jax.jit(lambda x: transform(function, x)).lower(placed).compile()
    assert "all-gather" not in program.as_text()
    assert local_shapes[-1][-1] == LANES // axes["env"]
    if seeds:
        assert local_shapes[-1][0] == 4 // axes["seed"]
    plain = bind(static, library=reference)
    same(program(placed), jax.jit(lambda x: transform(plain, x))(operands))


def same(got, expected):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        scale = np.max(abs(y), initial=1.0)
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=2e-6)


@pytest.mark.parametrize("by_action", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_tables_spread(kind, by_action, local_shapes, monkeypatch):
    """Over lanes, each with all of its actions: those are gathered if they were apart."""
    monkeypatch.setattr("tests.inputs.ACTIONS", 4)
    op, names = "retrace_from_policy", ("rewards", "q_values", "next_q_values")
    operands, static = inputs(op, "probs terminated", (T, LANES))
    mesh = jax.make_mesh((4, 2), ("env", "action"), (kind, kind))
    axes = (None, "env", "action" if by_action else None)
    placed = {
        k: jax.device_put(x, NamedSharding(mesh, P(*axes[: x.ndim]))) for k, x in operands.items()
    }

    def both(function, x):
        return function(x), grad_of(*names)(function, x), grad_of("next_q_values")(function, x)

    with jax.set_mesh(mesh):
        function = bind(static, op, implementation="triton")
        program = jax.jit(partial(both, function)).lower(placed).compile()
    assert ("all-gather" in program.as_text()) == by_action
    assert local_shapes[-1][1] == LANES // 4
    got = jax.device_get(program(placed))
    same(got, both(bind(static, op, library=reference), operands))


def test_explicit_mesh(local_shapes):
    operands, static = inputs(shape=(T, LANES))
    placed = put(operands, ENV, AxisType.Explicit)
    function = bind(static, implementation="triton")
    with jax.set_mesh(placed["rewards"].sharding.mesh):
        program = jax.jit(lambda x: (function(x), grad_of(*DATA, "gamma")(function, x)))
        text, got = program.lower(placed).compile().as_text(), program(placed)
    assert "all-gather" not in text
    assert local_shapes[-1][-1] == LANES // 8
    plain = bind(static, library=reference)
    same(jax.device_get(got), (plain(operands), grad_of(*DATA, "gamma")(plain, operands)))


def test_shard_map(local_shapes):
    operands, static = inputs(shape=(T, LANES))
    mesh = jax.make_mesh((8,), ("env",), (AxisType.Auto,))
    specs = jax.tree.map(lambda x: P(*(None, "env")[2 - x.ndim :]), operands)
    function = bind(static, implementation="triton")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(specs,), out_specs=P(None, "env"))
    got = jax.jit(lambda x: grad_of("values", "gamma")(mapped, x))(operands)
    assert set(local_shapes) == {(T, LANES // 8)}
    same(got, grad_of("values", "gamma")(bind(static, library=reference), operands))
