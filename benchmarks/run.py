"""The benchmarks: `python -m benchmarks.run --preset table --output table.json`.

Every program is held against an oracle before it is timed. The record is written after every job,
so that a run that is cut short leaves what it has. Processes (`--workers`) compile side by side and
measure one at a time. `benchmarks.report` makes tables and plots of records, `benchmarks.compare`
compares two of them.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import measure, records, workers
from benchmarks.presets import PRESETS
from benchmarks.registry import Job


def select(presets: Iterable[str], only: str) -> list[Job]:
    """The jobs of these presets whose description matches a regular expression."""
    jobs = dict.fromkeys(job for preset in presets for job in PRESETS[preset]())
    return [job for job in jobs if re.search(only, f"{job.measure} {job.case}")]


def run(
    jobs: Sequence[Job],
    record: records.Record,
    console: Console,
    *,
    budget: float,
    processes: int,
) -> None:
    """Measures jobs, one at a time, until the seconds of the budget are over."""
    deadline = time.monotonic() + budget
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(jobs))
        for job, rows in workers.each(measure.rows, jobs, processes):
            record.add(*rows)
            bar.update(task, advance=1, description=f"{job.measure} {job.case}")
            bar.console.print(line(rows), highlight=False, soft_wrap=True)
            if time.monotonic() > deadline:
                bar.console.print(f"Stopped: {budget:.0f} s are over.")
                return
    record.finish()


def line(rows: Sequence[dict]) -> str:
    """A job in one line of a log."""
    cells = []
    for row in rows:
        found = f"{records.median(row):.2f}" if "us" in row else row["failed"]
        cells.append(f"{row['program']} {found}")
    return f"{rows[0]['measure']} {rows[0]['case']} µs: " + ", ".join(cells)


def summary(record: records.Record) -> Table:
    """The library's own program, beside the yardstick and the fastest baseline."""
    table = Table(title=f"rl_triton_jax on {record.about['device']}")
    for title in ("measure (clock)", "case", "program", "µs", "ratio to", "A/A", "fastest other"):
        table.add_column(title)
    for (kind, case), group in records.grouped(record.rows).items():
        name = records.subject(group)
        if name is None:
            continue
        own = records.median(group[name])
        yardstick = records.yardstick(group)
        others = {program: records.median(group[program]) for program in records.others(group)}
        fastest = min(others, key=others.__getitem__, default=None)
        table.add_row(
            f"{kind} ({group[name]['clock']})",
            case,
            name,
            f"{own:.2f}",
            f"{own / records.median(group[yardstick]):.2f} {yardstick}" if yardstick else "",
            f"{100 * records.noise(group):.0f}%",
            f"{others[fastest] / own:.1f}x {fastest}" if fastest else "",
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    presets = [f"  {name:8} {jobs.__doc__}" for name, jobs in PRESETS.items()]
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(["presets:", *presets]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["quick"])
    parser.add_argument("--only", default="", help='regular expression on "device gae TN 128x4096"')
    parser.add_argument("--workers", type=int, default=1, help="processes that compile")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--output", type=Path, required=True, help="the record, a JSON file")
    parser.add_argument("--commit", help="what is measured, where the files are without git")
    options = parser.parse_args(argv)

    jobs = select(options.preset, options.only)
    if not jobs:
        parser.error(f"nothing in {' '.join(options.preset)} matches {options.only!r}")
    console = Console(width=None if sys.stdout.isatty() else records.LOG_WIDTH)
    about = {"presets": options.preset, "only": options.only}
    if options.commit:
        about |= {"commit": options.commit, "uncommitted_changes": None}
    record = records.Record(options.output, **about)
    run(jobs, record, console, budget=options.budget, processes=options.workers)
    console.print(summary(record))
    failures = [row for row in record.rows if "failed" in row]
    for row in failures:
        text = f"FAILED: {row['measure']} {row['case']}, {row['program']}: {row['failed']}"
        console.print(text, markup=False, soft_wrap=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
