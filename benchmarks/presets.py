"""Which jobs a run can take, by name: cases, what to measure of them, and beside which programs."""

from collections.abc import Iterator

from benchmarks.registry import OPS, Case, Job

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
FLOOR = ("triton", "itself", "floor", "lax.associative_scan")
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
OTHERS = [((512, 4096), "TN"), ((300, 4096), "TN"), ((1024, 8192), "TN"), ((4, 512, 4096), "STN")]
ONE_AXIS_OPS = [op for op in OPS if op != "retrace_from_policy"]


def layouts(op: str, steps: int, envs: int) -> tuple[Case, Case]:
    """Time-major and batch-major."""
    return Case(op, (steps, envs)), Case(op, (envs, steps), "NT")


def _table() -> Iterator[Job]:
    """Every operation at two shapes, time-major and batch-major; and beside the floor at others, of
    which each has tiles of its own."""
    for op in ONE_AXIS_OPS:
        for steps, envs in MAIN:
            for case in layouts(op, steps, envs):
                yield Job(case, "device", TABLE)
        for shape, layout in OTHERS:
            yield Job(Case(op, shape, layout), "device", FLOOR)


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
        for case in layouts("gae", steps, envs):
            yield Job(case, "stream", FLOOR)


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
            for case in layouts(op, steps, envs):
                yield Job(case, "grad", GRAD)
    for shape in ((128, 1024), *MAIN):
        yield Job(Case("retrace_from_policy", shape, actions=4), "grad", GRAD)


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
