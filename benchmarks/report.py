"""Tables and plots of records: `python -m benchmarks.report *.json --output report/`.

Every number in a row is from one run. `report.md` has a table for each measure of each record; the
plots, of all records, are the device time over the bytes that have to be moved, the speed-up over T
and N, and the in-graph times.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import records

CLOCKS = {
    "cupti": "device time: the sum of a run's kernel times by CUPTI, without memcpy and memset",
    "stream": "the time of kernels and memory operations by JAX's profiler",
    "wall": "time on the clock of one call, not device time",
    "chain": "time on the clock of a call among several in one computation, less the same without",
}
TITLES = {
    "device": "Outputs",
    "stream": "Outputs, memory operations included",
    "grad": "Outputs and gradients in the data",
    "in_graph": "A call inside a computation",
}


def gigabytes_per_second(row: dict[str, Any]) -> float:
    """What a row's time means for the bytes that it has to move."""
    return row["bytes"] / records.median(row) / 1e3


def _times(row: dict[str, Any]) -> str:
    low, high = records.spread(row)
    return f"{records.median(row):.2f} ({low:.2f}-{high:.2f})"


def _cell(group: dict[str, Any], own: dict[str, Any], program: str) -> str:
    """A bound and its rate, or how many times longer than the library's own a program takes."""
    row = group.get(program)
    if row is None:
        return ""
    if program in ("floor", "XLA copy"):
        return f"{records.median(row):.2f} ({gigabytes_per_second(row):.0f} GB/s)"
    return f"{records.median(row) / records.median(own):.1f}x"


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of a Markdown table for each measure."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for (kind, _), group in records.grouped(rows).items():
        if records.subject(group):
            kinds.setdefault(kind, []).append(group)
    for kind, groups in kinds.items():
        bounds = [p for p in ("floor", "XLA copy") if any(p in group for group in groups)]
        found = dict.fromkeys(program for group in groups for program in group)
        rest = [p for p in found if p not in (*bounds, "itself", "triton", "library scan")]
        clock = next(iter(groups[0].values()))["clock"]
        bound = bounds[0] if bounds else ""
        head = ["case", "program", "µs (quartiles)", "A/A", *bounds]
        head += [f"/ {bound}"] if bound else []
        yield f"## {TITLES[kind]}\n\nµs are {CLOCKS[clock]}.\n"
        yield _row([*head, *rest])
        yield _row(["---"] * (len(head) + len(rest)))
        for group in groups:
            name = str(records.subject(group))
            own = group[name]
            cells = [own["case"], name, _times(own), f"{100 * records.noise(group):.0f}%"]
            cells += [_cell(group, own, bound) for bound in bounds]
            if bound in group:
                cells.append(f"{records.median(own) / records.median(group[bound]):.2f}")
            elif bound:
                cells.append("")
            yield _row([*cells, *(_cell(group, own, program) for program in rest)])
        yield ""


def compilation(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of a Markdown table of what compiling took, and what running takes of memory."""
    groups = [
        {program: row for program, row in group.items() if "error" in row and "memory" in row}
        for (kind, _), group in records.grouped(rows).items()
        if kind == "device"
    ]
    programs = list(dict.fromkeys(program for group in groups for program in group))
    if not programs:
        return
    yield "## Compilation and memory\n"
    yield (
        "Seconds to trace, lower and compile, others at the same time; less where another case has "
        "the same kernel. MiB at the peak, arguments and outputs included.\n"
    )
    yield _row(["case", *programs])
    yield _row(["---"] * (1 + len(programs)))
    for group in filter(None, groups):
        cells = [
            f"{sum(row['seconds'].values()):.2f} s, {row['memory']['peak'] / 2**20:.1f} MiB"
            if (row := group.get(program))
            else ""
            for program in programs
        ]
        yield _row([next(iter(group.values()))["case"], *cells])
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown(record: dict[str, Any]) -> str:
    """The whole report of a record."""
    about = record["about"]
    presets = " and ".join(about["presets"])
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    changed = ", with changes that are not committed" if about["uncommitted_changes"] else ""
    failed = [
        f"- {row['measure']} {row['case']}, {row['program']}: {row['failed']}"
        for row in record["rows"]
        if "failed" in row
    ]
    lines = [
        f"# rl_triton_jax on {about['device']}: {presets}",
        "",
        f"{about['date']}, commit {about['commit']}{changed}; {versions}. "
        + ("" if about["complete"] else "The run was cut short. ")
        + "A/A is how far two measurements of the same program lie apart. Where a column says 3x, "
        "that program takes three times as long as the one on the left.",
        "",
        *tables(record["rows"]),
        *compilation(record["rows"]),
        *(["## What failed", "", *failed, ""] if failed else []),
    ]
    return "\n".join(lines)


def _series(rows: Sequence[dict[str, Any]], measure: str) -> dict[str, list[dict[str, Any]]]:
    """Program -> its rows."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (kind, _), group in records.grouped(rows).items():
        for program, row in group.items():
            if kind == measure and program != "itself":
                found.setdefault(program, []).append(row)
    return found


def roofline(rows: Sequence[dict[str, Any]]) -> Figure:
    """Device time over the bytes that an operation has to move, beside the floor."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for program, series in _series(rows, "device").items():
        ordered = sorted(series, key=lambda row: row["bytes"])
        x, y = [row["bytes"] for row in ordered], [records.median(row) for row in ordered]
        is_bound = program in ("floor", "XLA copy")
        axes.plot(x, y, "-" if is_bound else ".", label=program)
    clock = next(row["clock"] for row in rows if row["measure"] == "device" and "us" in row)
    axes.set(xscale="log", yscale="log", xlabel="bytes to move", ylabel=f"µs ({clock})")
    axes.legend(fontsize="small")
    return figure


def speedup(rows: Sequence[dict[str, Any]]) -> Figure:
    """How many times longer than the library's program gae takes otherwise, over T and over N."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    points: dict[str, list[tuple[int, int, float]]] = {}
    for (kind, _), group in records.grouped(rows).items():
        name = records.subject(group)
        if kind == "device" and name and group[name]["op"] == "gae":
            own = group[name]
            for program in records.others(group):
                ratio = records.median(group[program]) / records.median(own)
                points.setdefault(program, []).append((own["steps"], own["lanes"], ratio))
    for axis, (axes, label) in enumerate(zip(panels, ("T", "lanes"), strict=True)):
        for program, found in points.items():
            axes.plot([p[axis] for p in found], [p[2] for p in found], ".", label=program)
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=label)
    panels[0].set_ylabel("time / time of the library")
    panels[0].legend(fontsize="small")
    return figure


def in_graph(rows: Sequence[dict[str, Any]]) -> Figure:
    """µs of a call inside a computation, with quartiles, by case."""
    series = _series(rows, "in_graph")
    cases = list(dict.fromkeys(row["case"] for found in series.values() for row in found))
    figure = Figure(figsize=(9, 1.5 + 0.35 * len(cases)), layout="constrained")
    axes = figure.subplots()
    for program, found in series.items():
        middle = [records.median(row) for row in found]
        low, high = zip(*map(records.spread, found), strict=True)
        errors = [
            [m - x for m, x in zip(middle, low, strict=True)],
            [x - m for m, x in zip(middle, high, strict=True)],
        ]
        places = [cases.index(row["case"]) for row in found]
        axes.errorbar(middle, places, xerr=errors, fmt=".", capsize=2, label=program)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    fastest = min(records.median(row) for found in series.values() for row in found)
    # a quartile of differences can lie below 0
    axes.set(xscale="log", xlim=(max(fastest, 0.1) / 2, None), xlabel="µs a call")
    axes.legend(fontsize="small")
    return figure


PLOTS = {"device": {"roofline": roofline, "speedup": speedup}, "in_graph": {"in_graph": in_graph}}
"""Measure -> the plots that need it."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    options = parser.parse_args(argv)

    found = [records.load(path) for path in options.records]
    rows = [row for record in found for row in record["rows"]]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "report.md").write_text("\n".join(map(markdown, found)))
    for measure, plots in PLOTS.items():
        for name, plot in plots.items():
            if _series(rows, measure):
                plot(rows).savefig(options.output / f"{name}.png", dpi=150)
    print(f"{options.output / 'report.md'}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
