"""What is measured, as data: operations, cases, jobs, and the presets that name lists of jobs."""

from collections.abc import Iterator
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


FULL = (
    "triton",
    "itself",
    "floor",
    "XLA copy",
    "library associative_scan",
    "library scan",
    "lax.associative_scan",
    "lax.scan(unroll=16)",
    "lax.scan(unroll=1)",
    "vmap(lax.scan)",
)
TABLE = (
    "triton",
    "itself",
    "floor",
    "XLA copy",
    "library associative_scan",
    "lax.associative_scan",
    "lax.scan(unroll=16)",
)
IN_GRAPH = (
    "triton",
    "itself",
    "library associative_scan",
    "lax.associative_scan",
    "lax.scan(unroll=16)",
)
SHORT = 32
"""A loop over more rows cannot be what is fastest."""
GRAD = ("triton", "itself", "library associative_scan", "lax.associative_scan")
STREAM = ("triton", "itself", "floor", "lax.associative_scan")
PEERS = ("triton", "itself", "floor", "rl-triton", "PufferLib")

TN = [
    *((128, 4096), (2048, 4096), (16, 8192), (32, 1024), (128, 1024), (1024, 64), (128, 32768)),
    *((16, 32768), (65536, 64), (512, 4096), (128, 16384), (24, 4096), (32, 4096), (512, 512)),
    *((8192, 64), (65536, 16), (1048576, 1), (1000, 64), (128, 4), (32, 32), (64, 1024)),
    *((5, 2048), (10, 1024), (20, 256)),
]
NT = [(1024, 15), (1024, 512), (512, 2048), (64, 32768)]
STN = [(2048, 128, 4), (30, 64, 1024), (4, 512, 4096)]
TNK = [(128, 1024, 4)]
SPLIT = [(65536, 64), (8192, 64), (65536, 16), (1024, 64), (2048, 64), (1048576, 1), (128, 32768)]
MAIN = [(128, 4096), (2048, 4096)]
ONE_AXIS_OPS = [op for op in OPS if op != "retrace_from_policy"]


def _table() -> Iterator[Job]:
    """Every operation at two shapes, time-major and batch-major."""
    for steps, envs in MAIN:
        for op in ONE_AXIS_OPS:
            yield Job(Case(op, (steps, envs)), "device", TABLE)
            yield Job(Case(op, (envs, steps), "NT"), "device", TABLE)


def _shapes() -> Iterator[Job]:
    """gae over the shapes that people train with, and its other types."""
    for layout, shapes in (("TN", TN), ("NT", NT), ("STN", STN), ("TNK", TNK)):
        for shape in shapes:
            yield Job(Case("gae", shape, layout), "device", FULL)
    for dtype in ("bfloat16", "float64"):
        for shape in MAIN:
            yield Job(Case("gae", shape, dtype=dtype), "device", TABLE)


def _split() -> Iterator[Job]:
    """gae where time is split over programs, memset included; in a run of its own."""
    for steps, envs in SPLIT:
        yield Job(Case("gae", (steps, envs)), "stream", STREAM)
        yield Job(Case("gae", (envs, steps), "NT"), "stream", STREAM)


def _policy() -> Iterator[Job]:
    """Retrace from tables of 4 and 18 actions, over T."""
    for steps, envs in ((128, 1024), (2048, 64), (16384, 16)):
        for actions in (4, 18):
            case = Case("retrace_from_policy", (steps, envs), actions=actions)
            yield Job(case, "device", TABLE)


def _ingraph() -> Iterator[Job]:
    """A call inside a jitted computation."""
    for shape in TN:
        programs = IN_GRAPH + (("library scan",) if shape[0] <= SHORT else ())
        yield Job(Case("gae", shape), "in_graph", programs)
    for op in ONE_AXIS_OPS[1:]:
        yield Job(Case(op, MAIN[0]), "in_graph", IN_GRAPH)
    for shape in ((1024, 64), (8192, 64), (65536, 16), (2048, 4096)):
        yield Job(Case("gae", shape, dtype="float64"), "in_graph", IN_GRAPH)  # never split


def _grad() -> Iterator[Job]:
    """Outputs and gradients in the data, of every operation."""
    for steps, envs in MAIN:
        for op in ONE_AXIS_OPS:
            yield Job(Case(op, (steps, envs)), "grad", GRAD)
            yield Job(Case(op, (envs, steps), "NT"), "grad", GRAD)
    yield Job(Case("retrace_from_policy", (128, 1024), actions=4), "grad", GRAD)


def _peers() -> Iterator[Job]:
    """Other libraries' kernels, in their layout."""
    for steps, envs in (*MAIN, (16, 32768), (128, 32768), (65536, 64), (1024, 64)):
        yield Job(Case("gae", (envs, steps), "NT"), "device", PEERS)
    for steps, envs in MAIN:
        for op in ONE_AXIS_OPS[2:]:
            if op not in ("retrace", "linear_recurrence"):
                yield Job(Case(op, (envs, steps), "NT"), "device", PEERS)


def _quick() -> Iterator[Job]:
    """Something of everything, in seconds, on any machine."""
    yield Job(Case("gae", (4, 8)), "device", FULL)
    yield Job(Case("gae", (4, 8)), "in_graph", ("triton", "itself", "lax.scan(unroll=1)"))
    yield Job(Case("eligibility_traces", (4, 8)), "grad", GRAD)
    yield Job(Case("linear_recurrence", (8, 4), "NT"), "device", ("triton", "itself", "XLA copy"))


PRESETS = {
    "table": _table,
    "shapes": _shapes,
    "split": _split,
    "policy": _policy,
    "ingraph": _ingraph,
    "grad": _grad,
    "peers": _peers,
    "quick": _quick,
}
