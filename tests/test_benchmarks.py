"""The benchmarks measure every operation, refuse wrong results, and notice what got slower."""

import importlib.util
import json
import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

import benchmarks
import rl_triton_jax
from benchmarks import (
    baselines,
    compare,
    measure,
    peers,
    presets,
    readme,
    records,
    registry,
    report,
    run,
    timing,
)
from benchmarks.presets import PRESETS
from benchmarks.registry import OPS, Case, Job

NOT_OPS = {"GAEOutput", "VTraceOutput", "default_implementation", "reference"}


def case(op, shape=(5, 3), layout="TN", **options):
    return Case(op, shape, layout, actions=4 if op == "retrace_from_policy" else 0, **options)


@pytest.fixture
def pretended_gpu(monkeypatch):
    """A GPU in name: XLA's loop for the kernels, and a profiler that sees two of them in a run."""

    def profiled(function, *, aggregate, iterations):
        assert not aggregate
        kernels = [("first", 1e-3), ("second", 2e-3)]
        return lambda *arguments: (function(*arguments), [kernels] * iterations)

    def floor(arguments, outputs, tile):
        return lambda arguments: [jnp.ones(x.shape, x.dtype) for x in outputs]

    for module in (baselines, measure):
        monkeypatch.setattr(module, "subject", lambda: "triton")
    monkeypatch.setitem(baselines.PROGRAMS, "triton", baselines.PROGRAMS["library scan"])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    modules = {
        "benchmarks.floor": SimpleNamespace(TILES=((256, 2), (512, 4)), floor=floor),
        "jax.experimental.mosaic.gpu": SimpleNamespace(profiler=SimpleNamespace(measure=profiled)),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(benchmarks, "floor", modules["benchmarks.floor"], raising=False)


def test_registry_covers_every_operation():
    ops = set(rl_triton_jax.__all__) - NOT_OPS
    assert {op.split()[0] for op in OPS} == ops == set(baselines.TERMS)
    for measured in ("device", "grad"):
        jobs = [job for preset in PRESETS.values() for job in preset() if job.measure == measured]
        assert {job.case.op for job in jobs} == set(OPS)


def test_presets_are_what_they_say():
    jobs = [job for preset in PRESETS.values() for job in preset()]
    known = {*baselines.PROGRAMS, *peers.PEERS, "itself", "floor", "XLA copy"}
    for job in jobs:
        assert set(job.programs) <= known
        assert len(job.case.shape) == len(job.case.layout)
        assert job.programs[0] == "triton"  # the others are held against it
    assert {job.case.dtype for job in jobs} == {"float32", "bfloat16", "float64"}
    assert {job.case.actions for job in jobs if job.case.op == "retrace_from_policy"} == {4, 18}
    assert not any(
        "lax.scan(unroll=16)" in measure.programs(job) for job in jobs if job.case.steps > 8192
    )


@pytest.mark.parametrize("op", OPS)
def test_arguments_are_not_zero(op):
    given = registry.draw(case(op, (64, 8)))
    assert all(x.any() for x in given.values())
    assert not any(x.all() for x in given.values() if x.dtype == bool)


def hold_against_the_library(case, given, names):
    """Compiles programs together, for it takes less time, and compares their outputs."""
    every = {name: baselines.PROGRAMS[name](case) for name in ("library scan", *names)}
    found = jax.jit(lambda given: {name: program(given) for name, program in every.items()})(given)
    expected = found.pop("library scan")
    for name, outputs in found.items():
        for x, y in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("op", OPS)
def test_baselines_agree(op):
    small = case(op, (4, 6))
    ends = {"terminated": np.arange(24) % 5 == 2, "truncated": np.arange(24) % 7 == 3}
    given = registry.draw(small)
    given |= {name: x.reshape(4, 6) for name, x in ends.items() if name in given}
    names = ("lax.associative_scan", "lax.scan(unroll=16)", "lax.scan(unroll=1)")
    hold_against_the_library(small, jax.device_put(given), names)


@pytest.mark.parametrize(
    ("op", "layout", "shape"),
    [("gae", "NT", (3, 4)), ("vtrace", "STN", (2, 4, 3)), ("gae", "TNK", (4, 3, 2))],
)
def test_baselines_agree_in_every_layout(op, layout, shape):
    there = case(op, shape, layout)
    names = ("lax.associative_scan", "lax.scan(unroll=1)", "vmap(lax.scan)")
    hold_against_the_library(there, registry.arrays(there), names)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_types(dtype):
    job = Job(case("gae", dtype=dtype), "device", ("triton",))
    (row,) = measure.rows(job)
    assert row["error"] < measure.TOLERANCE[dtype]
    rows = 2 * 15 * jnp.dtype(dtype).itemsize + 15 + 3 * jnp.dtype(dtype).itemsize
    assert row["bytes"] == rows + 2 * 15 * jnp.dtype(dtype).itemsize


def test_quick_run_compares_and_reports(tmp_path, capsys):
    record = tmp_path / "quick.json"
    assert run.main(["--output", str(record)]) == 0
    assert "gae TN 4x8 float32" in capsys.readouterr().out
    found = records.load(record)
    assert found["about"]["complete"]
    assert {"device", "commit", "versions"} <= set(found["about"])
    assert {row["measure"] for row in found["rows"]} == {"device", "grad", "in_graph"}
    for row in found["rows"]:
        assert len(row["us"]) >= timing.FEWEST
        assert row["clock"] == ("chain" if row["measure"] == "in_graph" else "wall")

    assert compare.main([str(record), str(record)]) == 0
    assert "0 slower, 0 broken" in capsys.readouterr().out

    assert report.main([str(record), str(record), "--output", str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "not device time" in text
    assert "| gae TN 4x8 float32 | library scan |" in text
    assert text.count("## Compilation and memory") == 2
    in_graph = [row for row in found["rows"] if row["measure"] == "in_graph"]
    assert "Compilation" not in report.markdown({**found, "rows": in_graph})
    for plot in ("roofline", "speedup", "in_graph"):
        assert (tmp_path / f"{plot}.png").stat().st_size > 1000


def test_the_readme_has_the_committed_figures():
    text = readme.PLACE.search((readme.ROOT / "README.md").read_text())
    assert text and text[0] == readme.text()


def test_memory_operations_are_timed_too():
    rows = {r["program"]: r for r in measure.rows(Job(case("gae"), "stream", presets.FLOOR))}
    assert set(rows) == {"library scan", "itself", "lax.associative_scan"}
    assert all(row["clock"] == "wall" and len(row["us"]) == timing.MOST for row in rows.values())


def test_events_of_several_runs_are_told_apart():
    events = [(start, name, 1e3) for start in (0, 7, 9) for name in ("kernel", "memset")]
    events = [(4.0, "memset", 3e3), *((float(start), name, ns) for start, name, ns in events)]
    with pytest.raises(RuntimeError, match="7 operations cannot be 3 equal runs"):
        timing.in_runs(events, 3)
    first, second = timing.in_runs(events[1:5], 2)
    assert [name for name, _ in first] == [name for name, _ in second] == ["kernel", "memset"]
    assert timing.from_kernels([first, second]).us == pytest.approx([2.0, 2.0])


@pytest.mark.usefixtures("pretended_gpu")
def test_rows_of_a_gpu():
    programs = ("triton", "itself", "floor", "XLA copy", "rl-triton")
    rows = {r["program"]: r for r in measure.rows(Job(case("gae"), "device", programs))}
    assert set(rows) == set(programs) - {"rl-triton"}
    for row in rows.values():
        assert row["clock"] == "cupti"
        assert row["kernels"] == {"first": 1.0, "second": 2.0}
        assert records.median(row) == pytest.approx(3.0)
    assert rows["floor"]["tile"] in [(256, 2), (512, 4)]


def test_a_budget_ends_a_run(tmp_path):
    record = tmp_path / "cut.json"
    run.main(["--only", "gae", "--budget", "0", "--output", str(record)])
    found = records.load(record)
    assert {row["measure"] for row in found["rows"]} == {"device"}  # and not "in_graph"
    assert not found["about"]["complete"]


def test_a_wrong_result_is_not_timed(monkeypatch):
    def wrong(case):
        return lambda arguments: (arguments["x"] + 1e-2,)

    monkeypatch.setitem(baselines.PROGRAMS, "library associative_scan", wrong)
    job = Job(case("eligibility_traces"), "device", ("triton", "library associative_scan"))
    right, row = measure.rows(job)
    assert "us" in right
    assert "us" not in row
    assert row["failed"].startswith("WrongResult: off by ")


def write(path, times, failed=()):
    about = {"device": "a GPU", "commit": "abc", "versions": {}}
    rows = [
        {"measure": "device", "case": "gae TN 4x8 float32", "program": program, "us": [us] * 3}
        for program, us in times.items()
    ]
    rows += [
        {"measure": "device", "case": "gae TN 4x8 float32", "program": p, "failed": "broken"}
        for p in failed
    ]
    path.write_text(json.dumps({"about": about, "rows": rows}))
    return str(path)


def test_compare_flags_what_got_slower(tmp_path, capsys):
    before = write(tmp_path / "a.json", {"triton": 2.6, "itself": 2.6, "floor": 2.0})
    slower = write(tmp_path / "b.json", {"triton": 3.0, "itself": 3.0, "floor": 2.0})
    slower_machine = write(tmp_path / "c.json", {"triton": 5.2, "itself": 5.2, "floor": 4.0})
    noisy = write(tmp_path / "d.json", {"triton": 3.0, "itself": 2.7, "floor": 2.0})
    broken = write(tmp_path / "e.json", {"floor": 2.0}, failed=["triton"])
    assert compare.main([before, slower]) == 1
    assert "1 slower" in capsys.readouterr().out
    assert compare.main([slower, before]) == 0
    assert compare.main([before, slower, "--threshold", "0.2"]) == 0
    assert compare.main([before, slower_machine]) == 0
    assert compare.main([before, noisy]) == 0
    assert compare.main([before, broken]) == 1
    assert "1 broken" in capsys.readouterr().out


def compiled_chain(op, calls):
    there = case(op)
    drawn = registry.draw(there)
    moving = [name for name in registry.MOVING if name in drawn]
    own = timing.own_arguments(drawn, moving, calls)
    program = baselines.PROGRAMS["lax.scan(unroll=1)"](there)
    fed = OPS[op].data[: 2 if op in ("gae", "vtrace") else 1]
    chained = timing.chain(program, fed, calls)
    given = jax.device_put(drawn)
    return timing.compile_program(chained, given, own).run, program, fed, given, own


@pytest.mark.parametrize("op", ["gae", "linear_recurrence"])
def test_every_call_of_a_chain_is_there(op):
    run, program, fed, given, own = compiled_chain(op, calls=3)
    assert len(re.findall(r"= .* while\(", run.as_text())) == 3
    expected = dict(given)
    for k in range(3):
        outputs = program(expected | {name: x[k] for name, x in own.items()})
        expected |= zip(fed, outputs, strict=True)
    for x, name in zip(run(given, own), fed, strict=True):
        np.testing.assert_allclose(x, expected[name], rtol=1e-4, atol=1e-4)


PACKAGES = ("triton", "jax_triton", "jax_cuda13_plugin")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, PACKAGES)), reason=f"needs {', '.join(PACKAGES)}"
)
@pytest.mark.parametrize("op", ["gae", "retrace_from_policy"])
def test_floor_kernel_compiles(op):
    from benchmarks.floor import floor

    given = registry.draw(case(op))
    outputs = jax.eval_shape(baselines.PROGRAMS["library scan"](case(op)), given)
    traced = jax.jit(floor(given, outputs, (256, 2))).trace(given)
    assert "triton_kernel_call" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_tuning_tries_tiles_of_a_grid():
    tl = pytest.importorskip("triton.language")
    from benchmarks import tune
    from rl_triton_jax.launch.plan import make_plan

    plan = make_plan(
        "gae",
        dict.fromkeys(("rewards", "values", "next_values"), (2048, 4096)),
        dict.fromkeys(("rewards", "values", "next_values"), "float32"),
        {"advantages": (2048, 4096)},
        axis=0,
        has_actions=False,
        dtype=tl.float32,
        index=(jnp.int32, jnp.int64),
        largest_log=80.0,
        holds=True,
        can_split=True,
        options={"successor": "next_values"},
    )
    launches = tune.Launches()
    chosen = tune.tile_of(launches(plan))
    tiles = list(tune.grid(Case("gae", (2048, 4096))))
    assert chosen in tiles
    for launches.tile in tiles:
        assert tune.tile_of(launches(plan)) == launches.tile
