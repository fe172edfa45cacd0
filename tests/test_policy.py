"""`retrace_from_policy` under JAX's transformations: the same as `retrace` behind plain operations.

Its tables have an axis that other operations' operands do not have, so it has a table of its own.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rl_triton_jax
from rl_triton_jax import reference
from tests import inputs
from tests.inputs import OPTIONS, make
from tests.transforms import floats

T, N, A, B = 5, 8, 3, 2
SETS = OPTIONS["retrace_from_policy"]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def arguments(options, shape=(T, N)):
    """The arrays of a call."""
    rng = np.random.default_rng(0)
    given = make("retrace_from_policy", options, shape, rng=rng, dtype=np.float64)
    return {k: jnp.asarray(x) for k, x in given.items() if k != "axis"}


def along(f):
    """The derivative of f in a fixed direction of its arguments."""
    return lambda x: jax.jvp(f, (x,), (jax.tree.map(jnp.cos, x),))[1]


def gradient(f, x):
    return jax.grad(lambda moved: jnp.sum(jnp.sin(f(x | moved))))(floats(x))


def both(f, x):
    return f(x), gradient(f, x)


def copies(x, axis, names):
    return {k: jnp.stack([v, jnp.flip(v)], axis) if k in names else v for k, v in x.items()}


def vmapped(f, x, axis, names):
    axes = {k: axis if k in names else None for k in x}
    return jax.vmap(f, (axes,), axis)(copies(x, axis, names))


def spec(x):
    return P(*([None, "lanes", None] if x.ndim > 1 else ["lanes"])[: x.ndim])


def over_lanes(f, x):
    mesh = jax.make_mesh((8,), ("lanes",), (AxisType.Auto,))
    put = {k: jax.device_put(v, NamedSharding(mesh, spec(v))) for k, v in x.items()}
    program = jax.jit(partial(both, f)).lower(put).compile()
    assert "all-gather" not in program.as_text()
    return program(put)


def by_shard(f, x):
    mesh = jax.make_mesh((8,), ("lanes",), (AxisType.Auto,))
    specs = jax.tree.map(spec, x)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=(specs,), out_specs=P(None, "lanes"))
    return both(mapped, x)


def scanned(f, x):
    def body(rewards, _):
        return jnp.tanh(f(x | {"rewards": rewards})), None

    return jax.lax.scan(jax.checkpoint(body), x["rewards"], None, length=3)[0]


BATCHED = {
    "everything": list,
    "tables": lambda x: [k for k in x if x[k].ndim == 3],
    "rewards": lambda x: ["rewards"],
    "gamma": lambda x: ["gamma"],
    "one policy": lambda x: [k for k in x if k.startswith("target")],
}
TRANSFORMED = {
    "value": lambda f, x: f(x),
    "gradient": gradient,
    "jvp": lambda f, x: along(lambda moved: f(x | moved))(floats(x)),
    "reverse over forward": lambda f, x: gradient(along(lambda moved: f(x | moved)), floats(x)),
    "reverse over reverse": lambda f, x: gradient(
        lambda moved: gradient(f, x | moved)["rewards"], {"q_values": x["q_values"]}
    ),
    "jacobian": lambda f, x: jax.jacrev(lambda r: f(x | {"rewards": r}))(x["rewards"]),
    "scan of checkpoint": scanned,
    "gradient of scan": lambda f, x: gradient(partial(scanned, f), x),
    "both": both,
    "jit over devices": over_lanes,
    "shard_map": by_shard,
    **{
        f"vmap of {name}, axis {axis}": lambda f, x, choose=choose, axis=axis: vmapped(
            f, x, axis, choose(x)
        )
        for name, choose in BATCHED.items()
        for axis in (0, -1)
        if name != "gamma" or axis == 0
    },
    "vmap of gradient": lambda f, x: jax.vmap(lambda r: gradient(f, x | {"rewards": r}), 1, 0)(
        jnp.stack([x["rewards"]] * B, 1)
    ),
    "gradient of vmap": lambda f, x: gradient(
        lambda moved: vmapped(f, moved, 0, ["next_q_values"]), x
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.parametrize("options", SETS)
def test_transform(options, name):
    x = arguments(options)

    def on(op, transform):
        run = partial(TRANSFORMED[transform], lambda x: op(**x))
        return run(x) if run.func is over_lanes else jax.jit(run)(x)

    # Shardy 0.11 crashes on the reference in shard_map
    plain = "both" if name in ("jit over devices", "shard_map") else name
    got = on(rl_triton_jax.retrace_from_policy, name)
    expected = on(reference.retrace_from_policy, plain)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for y, z in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-9, atol=1e-9)


def value_and_gradient(x, implementation):
    def f(x):
        return rl_triton_jax.retrace_from_policy(**x, implementation=implementation)

    return f(x), gradient(f, x)


@pytest.mark.parametrize("implementation", ["scan", "associative_scan"])
def test_an_action_that_never_happens_may_be_worth_anything(implementation):
    """In the values, and in the derivatives by everything else."""
    for options in SETS[:2]:
        x = arguments(options)
        name = next(k for k in x if k.startswith("next_target"))
        never = -np.inf if "logits" in name else 0.0
        x[name] = x[name].at[..., 0].set(never)
        expected = value_and_gradient(x, implementation)
        x["next_q_values"] = x["next_q_values"].at[..., 0].set(np.inf)
        got = value_and_gradient(x, implementation)
        for k in expected[1]:
            if k != name:
                np.testing.assert_array_equal(got[1][k], expected[1][k], err_msg=k)
        np.testing.assert_array_equal(got[0], expected[0])


@pytest.mark.parametrize("implementation", ["scan", "associative_scan"])
def test_actions_of_a_type_that_cannot_hold_their_number(implementation, monkeypatch):
    """An int8 that counts from the end of 200."""
    monkeypatch.setattr(inputs, "ACTIONS", 200)
    x = arguments(SETS[0])
    x["actions"] = x["actions"] // 2 - 100
    narrow = x | {"actions": x["actions"].astype(jnp.int8)}
    expected, got = (value_and_gradient(y, implementation) for y in (x, narrow))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_one_primitive():
    """A call is one, and its derivative another."""
    x = arguments(SETS[0])

    def f(moved):
        return rl_triton_jax.retrace_from_policy(**(x | moved)).sum()

    def names(jaxpr):
        return [eqn.primitive.name for eqn in jaxpr.eqns]

    moved = {"rewards": x["rewards"], "next_q_values": x["next_q_values"]}
    assert names(jax.make_jaxpr(f)(moved)).count("retrace_from_policy") == 1
    gradient = names(jax.make_jaxpr(jax.grad(f))(moved))
    assert gradient.count("retrace_from_policy_vjp") == 1
    assert not {"scan", "while", "custom_jvp_call", "gate"} & set(gradient)
