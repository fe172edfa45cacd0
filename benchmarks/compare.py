"""Two records of the same benchmarks: `python -m benchmarks.compare before.json after.json`.

Times of different runs are not compared as they are: each is first divided by that of a yardstick
in its own run (the floor, where there is one). A program is slower if that ratio grew by more than
the threshold and the noise that either run saw between two measurements of the same program.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import records

THRESHOLD = 0.1


@dataclass(frozen=True)
class Change:
    """Of a library's program: its time over the yardstick's, before and after."""

    measure: str
    case: str
    program: str
    yardstick: str
    before: float
    after: float
    noise: float

    @property
    def growth(self) -> float:
        return self.after / self.before - 1

    def is_slower(self, threshold: float) -> bool:
        return self.growth > threshold + self.noise


def changes(before: records.Groups, after: records.Groups) -> list[Change]:
    """Of every program that both runs have, the largest growth first."""
    found = []
    for (measure, case), old in before.items():
        new = after.get((measure, case), {})
        yardstick = records.yardstick(old, new)
        if yardstick is None:
            continue
        noise = max(records.noise(old), records.noise(new))
        for program in records.LIBRARY:
            if program in old and program in new:
                was, now = (
                    records.median(group[program]) / records.median(group[yardstick])
                    for group in (old, new)
                )
                found.append(Change(measure, case, program, yardstick, was, now, noise))
    return sorted(found, key=lambda change: -change.growth)


def broken(before: records.Groups, rows: Sequence[dict]) -> list[str]:
    """What was measured before and has failed since."""
    return [
        f"{row['measure']} {row['case']}, {row['program']}: {row['failed']}"
        for row in rows
        if "failed" in row and row["program"] in before.get((row["measure"], row["case"]), {})
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="allowed growth")
    options = parser.parse_args(argv)

    old, new = (records.load(path) for path in (options.before, options.after))
    console = Console(width=None if sys.stdout.isatty() else records.LOG_WIDTH)
    for path, record in ((options.before, old), (options.after, new)):
        about = record["about"]
        text = f"{path}: {about['device']}, commit {about['commit']}, {about['versions']}"
        console.print(text, markup=False, highlight=False)
    before, after = records.grouped(old["rows"]), records.grouped(new["rows"])
    table = Table(title="time over that of the yardstick")
    for title in ("measure", "case", "program", "yardstick", "before", "after", "change", "A/A"):
        table.add_column(title)
    found = changes(before, after)
    for change in found:
        table.add_row(
            change.measure,
            change.case,
            change.program,
            change.yardstick,
            f"{change.before:.2f}",
            f"{change.after:.2f}",
            f"{100 * change.growth:+.0f}%",
            f"{100 * change.noise:.0f}%",
            style="red" if change.is_slower(options.threshold) else None,
        )
    console.print(table)
    slower = [change for change in found if change.is_slower(options.threshold)]
    failures = broken(before, new["rows"])
    for text in failures:
        console.print(f"BROKEN: {text}", markup=False, soft_wrap=True)
    console.print(f"{len(found)} compared, {len(slower)} slower, {len(failures)} broken")
    return 1 if slower or failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
