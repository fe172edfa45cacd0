"""How long a compiled program takes: on the device, on the clock, and inside one computation."""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import workers
from benchmarks.baselines import Program

CALLS = {"kernel": 16, "parallel": 8, "loop": 4}
"""Calls in a chain. More kernels would leave the range of float32, as every call enlarges its data;
more of the others would take long to compile."""

REPEATS, WARM_UP = 51, 3
"""Timed runs of each chain, after untimed ones."""

SECONDS, FEWEST, MOST = 0.2, 3, 20
"""Device samples: as many as fit in this time, within these bounds."""


@dataclass
class Compiled:
    """A program for given arrays, and what making it took."""

    run: jax.stages.Compiled
    seconds: dict[str, float]
    bytes: dict[str, int]


@dataclass
class Samples:
    """Microseconds, the clock that they are from, and the kernels: name -> µs in one run."""

    us: list[float]
    clock: str
    kernels: dict[str, float] = field(default_factory=dict)


type Row = dict[str, Any]
"""What a record says of one program."""

type Sample = Callable[..., Samples]
"""Takes a compiled program and its arguments."""


def compile_program(program: Callable, *arguments: Any) -> Compiled:
    """Traces, lowers and compiles a function of these arguments."""
    times = [time.perf_counter()]
    # An argument that a chain leaves unread still costs the host time when it is passed.
    traced = jax.jit(program, keep_unused=True).trace(*arguments)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    run = lowered.compile()
    times.append(time.perf_counter())
    memory = run.memory_analysis()
    if memory is None:
        raise RuntimeError("the compiler does not say how much memory the program takes")
    return Compiled(
        run,
        dict(zip(("trace", "lower", "compile"), map(float, np.diff(times)), strict=True)),
        {
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "temporary": memory.temp_size_in_bytes,
            "peak": memory.peak_memory_in_bytes,
        },
    )


def seconds(run: Callable, *arguments: Any) -> float:
    """One run on the clock, from the call until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def device_samples(run: Callable, *arguments: Any) -> Samples:
    """The device time of one run, many times.

    On a GPU it is the sum of the run's kernel times by CUPTI. JAX's profiler asks CUPTI for kernels
    only: `memcpy` and `memset` are not in it (they are in the in-graph time). On a CPU it is the
    time on the clock.
    """
    with workers.turn():
        seconds(run, *arguments)
        samples = int(np.clip(SECONDS / seconds(run, *arguments), FEWEST, MOST))
        if jax.default_backend() != "gpu":
            return Samples([1e6 * seconds(run, *arguments) for _ in range(samples)], "wall")
        from jax.experimental.mosaic.gpu import profiler

        _, runs = profiler.measure(run, aggregate=False, iterations=samples)(*arguments)
    if runs is None:
        raise RuntimeError("CUPTI saw no kernel")
    return from_kernels(runs)


def stream_samples(run: Callable, *arguments: Any) -> Samples:
    """The time of all that a run puts on the device, memory operations too, by JAX's own profiler.

    Only one of the two profilers can be used in a process.
    """
    with workers.turn():
        seconds(run, *arguments)
        if jax.default_backend() != "gpu":
            return Samples([1e6 * seconds(run, *arguments) for _ in range(MOST)], "wall")
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(MOST):
                    seconds(run, *arguments)
            (path,) = Path(folder).rglob("*.xplane.pb")
            planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
        events = [
            (event.start_ns, event.name, event.duration_ns)
            for plane in planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
    return replace(from_kernels(in_runs(events, MOST)), clock="stream")


def timed(compiled: Compiled, *arguments: Any, sample: Sample) -> Row:
    """A row of a record: the samples of a program, what making it took, and its memory."""
    samples = sample(compiled.run, *arguments)
    return {**vars(samples), "seconds": compiled.seconds, "memory": compiled.bytes}


def in_runs(
    events: Iterable[tuple[float, str, float]], runs: int
) -> list[tuple[tuple[str, float], ...]]:
    """Events (start, name, ns) of so many equal runs -> the (name, ms) of each."""
    in_order = [(name, 1e-6 * ns) for _, name, ns in sorted(events)]
    each, left_over = divmod(len(in_order), runs)
    if left_over:
        raise RuntimeError(f"{len(in_order)} operations cannot be {runs} equal runs")
    return list(itertools.batched(in_order, each))


def from_kernels(runs: Sequence[Sequence[tuple[str, float]]]) -> Samples:
    """Sums the kernels of each run, given as (name, ms)."""
    kernels: dict[str, float] = {}
    for name, ms in runs[0]:
        kernels[name] = kernels.get(name, 0.0) + 1e3 * ms
    return Samples([1e3 * sum(ms for _, ms in run) for run in runs], "cupti", kernels)


def chain(program: Program, fed: Sequence[str], calls: int) -> Callable:
    """So many calls in one function, each with the outputs of the one before as its data.

    The function takes the arguments, and for each call those that it alone has. Nothing of a call
    can be shared with another then, or be done before the one it depends on.
    """

    def chained(arguments, own):
        for k in range(calls):
            outputs = program({**arguments, **{name: x[k] for name, x in own.items()}})
            arguments = {**arguments, **dict(zip(fed, outputs, strict=True))}
        return [arguments[name] for name in fed]

    return chained


def no_op(fed: Sequence[str]) -> Program:
    """What takes an operation's place in the chain whose time is subtracted."""
    return lambda arguments: tuple(arguments[name] + 1 for name in fed)


def own_arguments(
    arguments: Mapping[str, np.ndarray], moving: Sequence[str], calls: int
) -> dict[str, list[jax.Array]]:
    """For each call its own version of the arguments that move: shifted by some lanes and rows."""
    return {
        name: [jax.device_put(np.roll(arguments[name], 1 + 7 * k)) for k in range(calls)]
        for name in moving
    }


def interleaved(runs: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of each, in turns, every other time in the opposite order."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    with workers.turn():
        for repeat in range(WARM_UP + REPEATS):
            for name in list(runs)[:: -1 if repeat % 2 else 1]:
                elapsed = seconds(runs[name])
                if repeat >= WARM_UP:
                    times[name].append(elapsed)
    return times
