"""What is measured, as data: operations with their arguments, cases, and jobs."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

GAMMA, LAMBDA = 0.99, 0.95
END_RATE = 0.05
MOVING = ("terminated", "truncated", "log_rho", "a")
"""What every call of a chain has for itself, so that none of its work can be shared."""


@dataclass(frozen=True)
class Op:
    """The arguments of an operation that vary, those that do not, and those it is linear in.

    A chain of calls feeds outputs back as the first of `data`, one for each output.
    """

    arguments: str
    data: tuple[str, ...]
    gamma: bool = True
    lambda_: bool = True

    @property
    def names(self) -> list[str]:
        return self.arguments.split()

    @property
    def constants(self) -> dict[str, float]:
        given = {"gamma": GAMMA} if self.gamma else {}
        return given | ({"lambda_": LAMBDA} if self.lambda_ else {})


OPS = {
    "gae": Op("rewards values terminated bootstrap_value", ("rewards", "values")),
    "gae truncated": Op("rewards values terminated truncated next_values", ("rewards", "values")),
    "vtrace": Op(
        "rewards values terminated log_rho bootstrap_value", ("rewards", "values"), lambda_=False
    ),
    "retrace": Op(
        "rewards q_values terminated log_rho next_values", ("rewards", "q_values", "next_values")
    ),
    "retrace_from_policy": Op(
        "rewards q_values terminated actions target_probs behaviour_log_prob next_q_values "
        "next_target_probs",
        ("rewards", "q_values", "next_q_values"),
    ),
    "lambda_returns": Op("rewards terminated next_values", ("rewards", "next_values")),
    "discounted_returns": Op("rewards terminated bootstrap_value", ("rewards",), lambda_=False),
    "eligibility_traces": Op("x terminated", ("x",)),
    "episodic_prefix_sum": Op("x terminated", ("x",), gamma=False, lambda_=False),
    "linear_recurrence": Op("a b", ("b",), gamma=False, lambda_=False),
}
"""An operation's name, and what marks a variant behind it, to its arguments."""


@dataclass(frozen=True)
class Case:
    """One set of arrays: an operation, a shape in memory order and a letter for each of its axes.

    T is time; N, S and K are environments, seeds and agents, all of them lanes. `actions` is the
    size of the last axis of tables.
    """

    op: str
    shape: tuple[int, ...]
    layout: str = "TN"
    dtype: str = "float32"
    actions: int = 0

    @property
    def function(self) -> str:
        return self.op.split()[0]

    @property
    def axis(self) -> int:
        return self.layout.index("T")

    @property
    def steps(self) -> int:
        return self.shape[self.axis]

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    def __str__(self) -> str:
        actions = f" A={self.actions}" if self.actions else ""
        return f"{self.op} {self.layout} {'x'.join(map(str, self.shape))} {self.dtype}{actions}"


def _draw(name: str, case: Case, rng: np.random.Generator) -> np.ndarray:
    table = (*case.shape, case.actions)
    match name:
        case "terminated" | "truncated":
            return rng.random(case.shape, np.float32) < END_RATE
        case "actions":
            return rng.integers(case.actions, size=case.shape, dtype=np.int32)
        case "a":
            return rng.random(case.shape, np.float32)
        case "log_rho":
            return 0.7 * rng.standard_normal(case.shape, np.float32)
        case "behaviour_log_prob":
            return -rng.random(case.shape, np.float32)
        case "bootstrap_value":
            return rng.standard_normal(case.lanes, np.float32)
        case "target_probs" | "next_target_probs":
            weights = rng.random(table, np.float32)
            return weights / weights.sum(-1, keepdims=True)
    tables = ("q_values", "next_q_values") if case.actions else ()
    return rng.standard_normal(table if name in tables else case.shape, np.float32)


def draw(case: Case) -> dict[str, np.ndarray]:
    """Random arguments of a case, the same ones every time."""
    rng = np.random.default_rng(0)
    given = {name: _draw(name, case, rng) for name in OPS[case.op].names}
    dtype = jnp.dtype(case.dtype)
    return {name: x.astype(dtype) if x.dtype == np.float32 else x for name, x in given.items()}


def arrays(case: Case) -> dict[str, jax.Array]:
    """The same on the device."""
    return jax.device_put(draw(case))


@dataclass(frozen=True)
class Job:
    """One case, what to measure of it (a key of `measure.MEASURES`) and for which programs."""

    case: Case
    measure: str
    programs: tuple[str, ...]
