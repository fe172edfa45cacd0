"""Kernels alone: forward and backward against the float64 loops."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import rl_triton_jax
from rl_triton_jax import reference
from rl_triton_jax.launch import triton as launch
from tests import inputs as draws
from tests import oracles
from tests.inputs import DATA, LAYOUTS, OPTIONS, make
from tests.interpreter.launch import CONFIGS, launched, small

# Largest difference, relative to the largest number of an output (or to 1).
# The interpreter stores bfloat16 by cutting off digits, where a GPU rounds.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 2**-7 + 2e-6, "float16": 2**-11 + 2e-6}


def same(got, expected):
    """Equal numbers and types of results; the expected ones may have more digits."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        if jnp.issubdtype(x.dtype, jnp.integer):
            np.testing.assert_array_equal(x, y)
            continue
        tolerance = TOLERANCE[x.dtype.name]
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        scale = np.max(abs(y), initial=1.0, where=np.isfinite(y))
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=tolerance)


def kernel_of(name):
    return partial(getattr(rl_triton_jax, name), implementation="triton")


def split(arguments):
    data = {name: x for name, x in arguments.items() if name in DATA}
    return data, {name: x for name, x in arguments.items() if name not in DATA}


def transposed(oracle, data, rest, cotangents):
    """The cotangents of data: a linear operation applied to every row's unit vector, and to that of
    every action of a table.

    Lanes do not see each other, so one evaluation gives a row's numbers in all of them.
    """
    axis, zeros = rest["axis"], {name: np.zeros_like(x) for name, x in data.items()}

    def of(unit):
        outputs = jax.tree.leaves(oracle(**rest, **(zeros | unit)))
        pairs = zip(outputs, cotangents, strict=True)
        return sum(np.sum(np.float64(c) * y, axis) for y, c in pairs)

    found = {}
    for name, x in data.items():
        if np.ndim(x) < cotangents[0].ndim:
            total = of({name: np.ones_like(x)})
            found[name] = total if np.ndim(x) else np.sum(total)
            continue
        found[name] = np.empty(x.shape)
        actions = range(x.shape[-1]) if x.ndim > cotangents[0].ndim else [None]
        for t, action in itertools.product(range(x.shape[axis]), actions):
            here = (slice(None),) * axis + (t, ...)
            here += () if action is None else (action,)
            unit = np.zeros_like(x)
            unit[here] = 1
            found[name][here] = of({name: unit})
    return found


def check_kernel(name, arguments, config="chosen"):
    """Both kernels of an operation against its float64 loop."""
    data, rest = split(arguments)
    oracle = getattr(oracles, name)
    launch.choose, before = CONFIGS[config], len(launched)
    outputs, vjp = jax.vjp(
        lambda data: jax.tree.leaves(kernel_of(name)(**rest, **data)),
        jax.tree.map(jnp.asarray, data),
    )
    same(outputs, oracle(**arguments))
    rng = np.random.default_rng(1)
    cotangents = [np.asarray(rng.standard_normal(y.shape), y.dtype) for y in outputs]
    (found,) = vjp([jnp.asarray(c) for c in cotangents])
    same(found, transposed(oracle, data, rest, cotangents))
    assert len(launched) == before + 2


def inputs(name, options, layout, length=7, **kwargs):
    shape, axis = LAYOUTS[layout](length)
    return make(name, options, shape, axis, rng=np.random.default_rng(7), **kwargs)


OTHERS = [
    ("NT", 7, "small"),
    ("TN", 7, "chosen"),
    ("TN", 75, "split"),
    ("STN", 9, "split"),
    ("NT", 75, "split"),
    ("TNA", 9, "small"),
    ("T", 7, "chosen"),
]


def checks_of(name):
    """Every option set in small time-major tiles, and what else there is in turn."""
    for i, options in enumerate(OPTIONS[name]):
        for layout, length, config in (("TN", 7, "small"), OTHERS[i % len(OTHERS)]):

            def check(options=options, layout=layout, length=length, config=config):
                check_kernel(name, inputs(name, options, layout, length), config)

            yield f"{options}, {layout}, {config} tiles", check


def checks_of_policy():
    """One action, a few, more than a tile holds; actions and weights that are no ordinary ones."""
    name = "retrace_from_policy"
    for options in OPTIONS[name]:
        for actions, layout, config in (
            (3, "TN", "split"),
            (3, "NT", "small"),
            (1, "STN", "chosen"),
            (40, "TN", "chosen"),
            (40, "T", "split"),
        ):

            def check(options=options, layout=layout, actions=actions, config=config):
                draws.ACTIONS = actions
                check_kernel(name, inputs(name, options, layout, 9), config)

            yield f"{options}, {layout}, {actions} actions, {config} tiles", check

    def unusual(op):
        launch.choose, draws.ACTIONS = small, 3
        arguments = inputs(name, "logits terminated", "TN", 9)
        arguments["actions"][:3] -= 3  # counts from the end
        arguments["actions"][5, 0] = 3  # does not exist
        arguments["target_logits"][..., 1] = -np.inf
        arguments["next_target_logits"][..., 0] = -np.inf
        arguments["next_q_values"][..., 0] = np.inf
        return op(**arguments)

    def narrow():
        """An int8 cannot hold the number of actions."""
        launch.choose, draws.ACTIONS = small, 200
        arguments = inputs(name, "probs terminated", "TN", 5)
        arguments["actions"] = (arguments["actions"] // 2 - 100).astype(np.int8)
        same(kernel_of(name)(**arguments), oracles.retrace_from_policy(**arguments))

    def masked(op):
        """What rows hold that do not count shows nowhere, and they have no cotangents."""
        launch.choose, draws.ACTIONS = small, 3
        arguments = inputs(name, "logits terminated mask lambda", "TN", 9)
        hidden = arguments["mask"] == 0
        for x in arguments.values():
            if isinstance(x, np.ndarray) and x.shape[:2] == hidden.shape and x.dtype == np.float32:
                x[hidden] = np.nan
        data, rest = split(arguments)
        outputs, vjp = jax.vjp(lambda data: op(**rest, **data), jax.tree.map(jnp.asarray, data))
        return outputs, vjp(jnp.cos(outputs))

    def masked_rows():
        got = masked(kernel_of(name))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
        same(got, masked(reference.retrace_from_policy))

    yield "masked rows", masked_rows
    yield "narrow actions", narrow
    yield (
        "unusual actions and weights",
        lambda: same(unusual(kernel_of(name)), unusual(reference.retrace_from_policy)),
    )
