"""The calls that every check is made of: arguments, options, numbers.

One line of `CASES` adds a call.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

import rl_triton_jax
from tests.transforms import loops

LENGTH, LANES, DEVICES = 5, 16, min(8, jax.device_count())

FLAGS = ("terminated", "truncated")
BY_LANE = ("bootstrap_value", "init", "last_terminated")
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
    return Operation(getattr(loops, CASES[case].name), CASES[case].options)


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
