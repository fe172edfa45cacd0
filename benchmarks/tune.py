"""Finds tiles for the kernels: `python -m benchmarks.tune --output tune.json`.

Every tile of a grid is held against the results of the tile that `launch.configs` chooses, and
timed on the device, with the memset that a split takes. What is found is written down by hand in
`launch.configs`, as a rule: tiles are picked by pure functions of the plan, and never timed in a
user's program.
"""

import argparse
import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import track

from benchmarks import presets, records, registry, timing, workers
from benchmarks.baselines import PROGRAMS
from benchmarks.measure import TOLERANCE
from benchmarks.registry import Case
from rl_triton_jax.launch import configs
from rl_triton_jax.launch.plan import Plan

CASES = [
    *(case for shape in presets.TN for case in presets.layouts("gae", *shape)),
    *(Case("gae", shape, "NT") for shape in presets.NT),
    *(Case("gae", shape, "STN") for shape in presets.STN),
    *(
        case
        for op in ("vtrace", "retrace", "discounted_returns", "linear_recurrence")
        for shape in (*presets.MAIN, (8192, 64), (65536, 64))
        for case in presets.layouts(op, *shape)
    ),
    *(job.case for job in presets.PRESETS["policy"]()),
]

TOGETHER = 8
"""Tiles that one worker takes at a time."""

type Tile = tuple[int, ...]
"""(fold, chunks, lanes, warps, split) of columns, (block, lanes, warps, split) of rows."""


class Launches:
    """Stands in for `launch.configs.choose`: gives every plan one tile, if it has one."""

    def __init__(self) -> None:
        self.tile: Tile | None = None
        self.made: configs.Config | None = None

    def __call__(self, plan: Plan) -> configs.Config:
        self.made = configs.choose(plan)
        if self.tile is not None:
            make = configs.columns if plan.columns else configs.rows
            *tile, split = self.tile
            self.made = make(plan, *tile, split=bool(split), actions=self.made.actions)
        return self.made


def tile_of(config: configs.Config) -> Tile:
    """What a configuration is made of."""
    return (*(size for _, size in config.constants), config.warps, int(config.parts > 1))


def _powers(first: int, last: int) -> list[int]:
    return [1 << n for n in range(first.bit_length() - 1, last.bit_length()) if 1 << n <= last]


def grid(case: Case) -> Iterator[Tile]:
    """The tiles that could be any good: a thread keeps 4 to 32 numbers of an operand."""
    inner = math.prod(case.shape[case.axis + 1 :])
    lanes = inner if inner > 1 else math.prod(case.lanes)
    fewest, most = min(64, case.steps), max(2 * case.steps, 8)
    if case.actions:
        kept, folds, sides = (4, 8, 16, 32), _powers(1, 8), _powers(2, 16)
    elif inner > 1:
        kept, folds = (4, 8, 16, 32), _powers(1 if inner < 8 else 4, 32)
        sides = _powers(min(8 if lanes > 256 else 2, inner), 64)
    else:
        kept, folds, sides = (4, 8, 16), [1], _powers(1, 32)
    block = min(configs.power_of_2(case.actions), configs.MOST_ACTIONS) if case.actions else 1
    for fold, chunks, side, numbers in itertools.product(folds, _powers(1, 8192), sides, kept):
        warps = fold * chunks * side * block // (32 * numbers)
        rows = fold * chunks
        fits = 1 <= warps <= 16 and 32 * warps <= chunks * side * block
        if fits and fewest <= rows <= most and side <= configs.power_of_2(lanes):
            tile = (fold, chunks, side, warps) if inner > 1 else (chunks, side, warps)
            yield from _ways(case, rows, tile)


def _ways(case: Case, rows: int, tile: Tile) -> Iterator[Tile]:
    """In one block, in a loop over a few, or split over programs."""
    blocks = case.steps / rows
    if blocks <= 1 or (blocks <= 16 and math.prod(case.lanes) > 1024):
        yield (*tile, 0)
    if blocks > 1:
        yield (*tile, 1)


@cache
def _launches() -> Launches:
    """Put in place, in a process that measures."""
    from rl_triton_jax.launch import triton as launch

    launch.choose = Launches()
    return launch.choose


@cache
def _expected(case: Case) -> tuple[dict[str, jax.Array], tuple]:
    given = registry.arrays(case)
    _launches().tile = None
    return given, jax.jit(PROGRAMS["triton"](case))(given)


def measure(work: tuple[Case, tuple[Tile | None, ...]]) -> list[dict[str, Any]]:
    """A row for each of these tiles; None is the chosen one."""
    case, tiles = work
    return [_measure(case, tile) for tile in tiles]


def _measure(case: Case, tile: Tile | None) -> dict[str, Any]:
    launches = _launches()
    try:
        given, expected = _expected(case)
        launches.tile = tile
        compiled = timing.compile_program(PROGRAMS["triton"](case), given)
        with workers.turn():
            outputs = compiled.run(given)
            for x, y in zip(outputs, expected, strict=True):
                error = float(abs(x - y).max() / abs(y).max())
                if not error <= TOLERANCE[case.dtype]:
                    raise ValueError(f"off by {error:.1e}")
        row = asdict(timing.stream_samples(compiled.run, given))
    except Exception as error:
        row = {"failed": f"{type(error).__name__}: {error}"[:200]}
    made = tile or (launches.made and tile_of(launches.made))
    return {"case": str(case), "tile": made, "is_chosen": tile is None, **row}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help='regular expression on "gae TN 128x4096"')
    parser.add_argument("--workers", type=int, default=1, help="processes that compile")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    options = parser.parse_args(argv)
    if jax.default_backend() != "gpu":
        parser.error("there is no GPU, and so no kernel to tune")

    console = Console(width=records.LOG_WIDTH)
    record = records.Record(options.output, only=options.only)
    work = []
    for case in CASES:
        if re.search(options.only, str(case)):
            tiles = [None, *grid(case)]
            parts = itertools.batched(tiles, TOGETHER)
            work += [(case, part) for part in parts]
    found = workers.each(measure, work, options.workers)
    for _, rows in track(found, total=len(work), console=console):
        record.add(*rows)
    record.finish()
    for case, rows in itertools.groupby(sorted(record.rows, key=_case), key=_case):
        timed = sorted((row for row in rows if "us" in row), key=records.median)
        best = [f"{row['tile']} {records.median(row):.2f}" for row in timed[:6]]
        own = [f"{row['tile']} {records.median(row):.2f}" for row in timed if row["is_chosen"]]
        console.print(f"{case}: chosen {', '.join(own)}; best {', '.join(best)}", soft_wrap=True)
    return 0


def _case(row: dict[str, Any]) -> str:
    return row["case"]


if __name__ == "__main__":
    sys.exit(main())
