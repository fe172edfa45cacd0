"""One job: every program is held against an oracle, then timed; one row for each."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import bounds, peers, registry, timing, workers
from benchmarks.baselines import ORACLE, PROGRAMS, Program, is_loop, runs, subject
from benchmarks.registry import OPS, Case, Job
from benchmarks.timing import Row, Sample

TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 5e-2}
"""Relative to the largest number of an array."""


class WrongResult(Exception):
    """A program that is not to be timed."""


def precision(case: Case) -> contextlib.AbstractContextManager:
    """A context in which JAX keeps the case's type."""
    return jax.enable_x64(case.dtype == "float64")


def programs(job: Job) -> list[str]:
    """The programs of a job that run on this machine, in order; the library's own one first.

    Where there is no kernel to measure, what `implementation=None` picks takes its place.
    """
    names = [subject() if name == "triton" else name for name in job.programs]
    return [name for name in dict.fromkeys(names) if _runs(name, job.case)]


def _runs(name: str, case: Case) -> bool:
    if name == "floor":
        return subject() == "triton"
    if name in peers.PEERS:
        return peers.available(name)
    return name not in PROGRAMS or runs(name, case)


def rows(job: Job) -> list[Row]:
    """Measures a job, program by program; what fails says why in its row."""
    measure = MEASURES[job.measure]
    about = {"case": str(job.case), "op": job.case.op, "layout": job.case.layout}
    about |= {"steps": job.case.steps, "lanes": int(np.prod(job.case.lanes))}
    about |= {"measure": job.measure}
    with precision(job.case):
        try:
            found = list(measure(job.case, programs(job)))
        except Exception as error:  # before the first program: in the oracle, or for want of memory
            found = [(ORACLE, _failure(error))]
    return [{**about, "program": name, **row} for name, row in found]


def _failure(error: Exception) -> Row:
    return {"failed": f"{type(error).__name__}: {error}"[:500]}


def _attempt(work: Callable[[], Row]) -> Row:
    """The row, or why there is none: a program that breaks must not end the run."""
    try:
        return work()
    except Exception as error:
        return _failure(error)


@jax.jit
def _error(outputs: tuple, expected: tuple) -> jax.Array:
    """The largest difference, relative to the largest number of each array."""
    pairs = zip(outputs, expected, strict=True)
    return jnp.max(
        jnp.stack([jnp.max(abs(x.astype(y.dtype) - y)) / jnp.max(abs(y)) for x, y in pairs])
    )


def _checked(case: Case, outputs: tuple, expected: tuple) -> float:
    with workers.turn():
        found = float(_error(tuple(outputs), tuple(expected)))
    if not found <= TOLERANCE[case.dtype]:
        raise WrongResult(f"off by {found:.1e}, relative to the largest number")
    return found


_compiled: dict[tuple[Case, str], timing.Compiled] = {}


def _compile(case: Case, name: str, given: Mapping[str, jax.Array]) -> timing.Compiled:
    """A program for a case, compiled once in a run."""
    if (case, name) not in _compiled:
        _compiled[case, name] = timing.compile_program(PROGRAMS[name](case), given)
    return _compiled[case, name]


def _expected(case: Case, given: Mapping[str, jax.Array]) -> tuple:
    """What the oracle says, in a type that it can be trusted in."""
    if case.dtype != "bfloat16":
        return _compile(case, ORACLE, given).run(given)
    narrow = jnp.dtype(case.dtype)
    wide = {k: x.astype(jnp.float32) if x.dtype == narrow else x for k, x in given.items()}
    return jax.jit(PROGRAMS[ORACLE](case))(wide)


def _device(
    case: Case, names: list[str], sample: Sample = timing.device_samples
) -> Iterator[tuple[str, Row]]:
    given = registry.arrays(case)
    expected = _expected(case, given)
    shapes = [jax.ShapeDtypeStruct(x.shape, case.dtype) for x in expected]
    moved = sum(x.nbytes for x in given.values())
    moved += sum(x.size * x.dtype.itemsize for x in shapes)

    def row(name: str) -> Row:
        if name == "itself":
            return vars(sample(_compile(case, subject(), given).run, given))
        if name == "floor":
            sizes = tuple((k, x.shape, x.dtype) for k, x in given.items())
            return bounds.floor(sizes, tuple(shapes), sample)
        if name == "XLA copy":
            return bounds.copy(moved, sample)
        if name in peers.PEERS:
            return _peer(case, name, given)
        compiled = _compile(case, name, given)
        found = _checked(case, compiled.run(given), expected)
        return {**timing.timed(compiled, given, sample=sample), "error": found}

    for name in names:
        yield name, {"bytes": moved, **_attempt(partial(row, name))}


def _peer(case: Case, name: str, given: Mapping[str, jax.Array]) -> Row:
    expected = jax.jit(PROGRAMS[ORACLE](case))(peers.comparable(name, given))
    run = peers.PEERS[name](case, given)
    outputs = tuple(jax.dlpack.from_dlpack(x.contiguous()) for x in run())
    found = _checked(case, outputs, expected[: len(outputs)])
    return {**vars(peers.device_samples(run)), "error": found}


def _gradient(case: Case, program: Program) -> Callable:
    """Outputs, and gradients in the data for given cotangents."""

    def outputs_and_gradients(data, others, cotangents):
        outputs, pull = jax.vjp(lambda data: program({**others, **data}), data)
        (gradients,) = pull(cotangents)
        return *outputs, *(gradients[name] for name in OPS[case.op].data)

    return outputs_and_gradients


def _grad(case: Case, names: list[str]) -> Iterator[tuple[str, Row]]:
    given = registry.arrays(case)
    data = {name: given[name] for name in OPS[case.op].data}
    others = {name: x for name, x in given.items() if name not in data}
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(PROGRAMS[ORACLE](case), given)
    cotangents = jax.device_put(
        tuple(rng.standard_normal(x.shape, np.float32).astype(x.dtype) for x in shapes)
    )
    arguments = (data, others, cotangents)

    @cache
    def compiled(name: str) -> timing.Compiled:
        return timing.compile_program(_gradient(case, PROGRAMS[name](case)), *arguments)

    expected = compiled(ORACLE).run(*arguments)

    def row(name: str) -> Row:
        if name == "itself":
            return vars(timing.device_samples(compiled(subject()).run, *arguments))
        found = _checked(case, compiled(name).run(*arguments), expected)
        timed = timing.timed(compiled(name), *arguments, sample=timing.device_samples)
        return {**timed, "error": found}

    for name in names:
        yield name, _attempt(partial(row, name))


def _calls(name: str) -> int:
    if name == "itself":
        name = subject()
    kind = "loop" if is_loop(name) else "parallel" if "scan" in name else "kernel"
    return timing.CALLS[kind]


def _in_graph(case: Case, names: list[str]) -> Iterator[tuple[str, Row]]:
    """All chains are made and checked first, then timed in turns, so that they share the noise."""
    drawn = registry.draw(case)
    given = jax.device_put(drawn)
    moving = [name for name in registry.MOVING if name in given]
    own = timing.own_arguments(drawn, moving, max(timing.CALLS.values()))
    expected = _expected(case, given)
    fed = OPS[case.op].data[: len(expected)]
    chains: dict[str, Callable] = {}

    def make(name: str, program: Program, calls: int) -> timing.Compiled:
        arguments = (given, {k: x[:calls] for k, x in own.items()})
        compiled = timing.compile_program(timing.chain(program, fed, calls), *arguments)
        chains[name] = partial(compiled.run, *arguments)
        return compiled

    def row(name: str) -> Row:
        found = _checked(case, _compile(case, name, given).run(given), expected)
        compiled = make(name, PROGRAMS[name](case), _calls(name))
        if not all(np.isfinite(x).all() for x in chains[name]()):
            del chains[name]
            raise WrongResult("the chain left the range of its type")
        return {"error": found, "seconds": compiled.seconds, "memory": compiled.bytes}

    found = {name: _attempt(partial(row, name)) for name in names if name != "itself"}
    if subject() in chains and "itself" in names:
        chains["itself"] = chains[subject()]
        found["itself"] = {}
    for calls in {_calls(name) for name in chains}:
        make(f"nothing {calls}", timing.no_op(fed), calls)
    times = timing.interleaved(chains)
    for name in found:
        if name in chains:
            calls = _calls(name)
            pairs = zip(times[name], times[f"nothing {calls}"], strict=True)
            us = [1e6 * (chain - nothing) / calls for chain, nothing in pairs]
            found[name] |= {"us": us, "clock": "chain", "calls": calls}
        yield name, found[name]


MEASURES = {
    "device": _device,
    "stream": partial(_device, sample=timing.stream_samples),
    "grad": _grad,
    "in_graph": _in_graph,
}
"""What a job can ask for."""
