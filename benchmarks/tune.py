"""Finds tiles for the kernels: `python -m benchmarks.tune --output tune.json`.

From the tile that `launch.configs` chooses for a case, it climbs: every neighbour (one size doubled
or halved) is held against the chosen tile's results and timed on the device, and the fastest is the
next centre. What it finds is written down by hand in `launch.configs`, as a rule: tiles are picked
by pure functions of the plan, and never timed in a user's program.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks import records, registry, timing
from benchmarks.baselines import PROGRAMS
from benchmarks.measure import TOLERANCE
from benchmarks.registry import Case
from rl_triton_jax.launch import configs
from rl_triton_jax.launch.plan import Plan

STEPS = 4
"""How often the centre moves at most."""

CASES = [
    *(Case("gae", shape) for shape in registry.TN),
    *(Case("gae", shape, "NT") for shape in [(4096, 128), (4096, 2048), *registry.NT]),
    *(Case(op, shape) for op in ("vtrace", "retrace") for shape in registry.MAIN),
    *(Case("retrace_from_policy", (2048, 64), actions=actions) for actions in (4, 18)),
]

type Tile = tuple[int, ...]
"""(fold, chunks, lanes, warps) of columns, (block, lanes, warps) of rows."""


class Launches:
    """Stands in for `launch.configs.choose`: gives every plan one tile, if it has one."""

    def __init__(self) -> None:
        self.tile: Tile | None = None
        self.made: configs.Config | None = None

    def __call__(self, plan: Plan) -> configs.Config:
        self.made = configs.choose(plan)
        if self.tile is not None:
            make = configs.columns if plan.columns else configs.rows
            self.made = make(plan, *self.tile, split=True, actions=self.made.actions)
        return self.made


def tile_of(config: configs.Config) -> Tile:
    """What a configuration is made of."""
    return (*(size for _, size in config.constants), config.warps)


def neighbours(tile: Tile) -> Iterator[Tile]:
    """One size doubled or halved; a thread keeps 1 to 16 numbers of a row."""
    for i, size in enumerate(tile):
        for other in (2 * size, size // 2):
            near = (*tile[:i], other, *tile[i + 1 :])
            *sizes, warps = near
            numbers = sizes[-1] * sizes[-2] / (32 * warps) if warps else 0
            if min(near) > 0 and warps <= 32 and 1 <= numbers <= 16:
                yield near


def climb(case: Case, launches: Launches) -> list[dict[str, Any]]:
    """Times tiles around the chosen one, and around the best of them, while there is a better."""
    given = registry.arrays(case)
    found: dict[Tile, dict[str, Any]] = {}
    expected = None

    def measure(tile: Tile | None) -> tuple[Tile, dict[str, Any]]:
        nonlocal expected
        launches.tile = tile
        try:
            compiled = timing.compile_program(PROGRAMS["triton"](case), given)
            outputs = compiled.run(given)
            expected = outputs if expected is None else expected
            for x, y in zip(outputs, expected, strict=True):
                error = float(abs(x - y).max() / abs(y).max())
                if not error <= TOLERANCE[case.dtype]:
                    raise ValueError(f"off by {error:.1e}")
            row = asdict(timing.device_samples(compiled.run, given))
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:200]}
        tile = tile or tile_of(launches.made)
        return tile, {"case": str(case), "tile": tile, "is_chosen": launches.tile is None, **row}

    centre, row = measure(None)
    found[centre] = row
    for _ in range(STEPS):
        for tile in neighbours(centre):
            if tile not in found:
                found[tile] = measure(tile)[1]
        best = min(
            found, key=lambda tile: records.median(found[tile]) if _timed(found[tile]) else np.inf
        )
        if best == centre:
            break
        centre = best
    return list(found.values())


def _timed(row: dict[str, Any]) -> bool:
    return "us" in row


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help='regular expression on "gae TN 128x4096"')
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    options = parser.parse_args(argv)
    if jax.default_backend() != "gpu":
        parser.error("there is no GPU, and so no kernel to tune")

    from rl_triton_jax.launch import triton as launch

    console = Console(width=records.LOG_WIDTH)
    record = records.Record(options.output, only=options.only)
    launches = launch.choose = Launches()
    for case in track([x for x in CASES if re.search(options.only, str(x))], console=console):
        rows = climb(case, launches)
        for row in rows:
            record.add(row)
        timed = sorted(filter(_timed, rows), key=records.median)
        best = [f"{row['tile']} {records.median(row):.2f}" for row in timed[:4]]
        own = [f"{row['tile']} {records.median(row):.2f}" for row in timed if row["is_chosen"]]
        console.print(f"{case}: chosen {', '.join(own)}; best {', '.join(best)}", soft_wrap=True)
    record.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
