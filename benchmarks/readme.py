"""The README's tables, from the records in `benchmarks/results`: `python -m benchmarks.readme`."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.presets import MAIN, ONE_AXIS_OPS, TN, layouts
from benchmarks.registry import Case

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PLACE = re.compile(r"(?s)(?<=<!-- benchmarks\.readme -->\n).*?(?=<!-- /benchmarks\.readme -->)")

PARALLEL, LOOP = "lax.associative_scan", "lax.scan(unroll=16)"

type Group = dict[str, dict[str, Any]]


def _own(group: Group) -> float:
    """The kernel's µs, of both times that it was measured."""
    return float(np.median(group["triton"]["us"] + group["itself"]["us"]))


def _slower(group: Group, program: str) -> float:
    """How many times longer than the kernel a program takes."""
    return records.median(group[program]) / _own(group)


def _range(numbers: Sequence[float]) -> str:
    return f"{min(numbers):.1f}x to {max(numbers):.1f}x"


def device_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Every operation on the device, at two shapes in two layouts."""
    groups = records.grouped(rows)
    heads = [f"{steps}×{envs} {layout}" for steps, envs in MAIN for layout in ("[T, N]", "[N, T]")]
    yield f"| operation | {' | '.join(heads)} | associative_scan | scan |"
    yield f"|---|{'---|' * len(heads)}---|---|"
    for op in ONE_AXIS_OPS:
        cases = [case for shape in MAIN for case in layouts(op, *shape)]
        found = [groups["device", str(case)] for case in cases]
        cells = [", ".join([f"`{cases[0].function}`", *op.split()[1:]])]
        for group in found:
            own = _own(group)
            cells.append(f"{own:.1f} ({own / records.median(group['floor']):.2f})")
        cells += [_range([_slower(group, form) for group in found]) for form in (PARALLEL, LOOP)]
        yield f"| {' | '.join(cells)} |"


def in_graph(rows: list[dict[str, Any]], commit: str) -> str:
    """gae inside a computation, beside the XLA form that is fastest at each shape."""
    groups = records.grouped(rows)
    found = {shape: groups["in_graph", str(Case("gae", shape))] for shape in TN}
    best = {
        f"{steps}×{envs}": min(_slower(group, p) for p in group.keys() - {"triton", "itself"})
        for (steps, envs), group in found.items()
    }
    lost = [f"{shape} ({ratio:.1f}x)" for shape, ratio in best.items() if ratio < 1]
    noise = [records.noise(group) for group in found.values()]
    return (
        f"Inside a jitted computation, launch included, the fastest XLA form takes "
        f"{_range(list(best.values()))} the time of `gae`'s kernel over {len(best)} shapes; it is "
        f"faster at {' and '.join(lost) or 'none'}. The host was shared: two measurements of the "
        f"kernel differ by {100 * np.median(noise):.0f}% in the middle and by "
        f"{100 * max(noise):.0f}% at most. Commit {commit[:7]}."
    )


def text() -> str:
    """All that stands between the README's marks."""
    table, chains = (records.load(RESULTS / f"{name}.json") for name in ("table", "ingraph"))
    about = table["about"]
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in ("jax", "triton"))
    return "\n".join(
        [
            f"µs on an {about['device']} by CUPTI, in parentheses over the floor, a kernel that "
            "moves the same bytes and computes nothing; then how many times as long scans take as "
            f"people write them, `{PARALLEL}` and `{LOOP}`. Float32, bool flags, {versions}, "
            f"commit {about['commit'][:7]}.",
            "",
            *device_table(table["rows"]),
            "",
            in_graph(chains["rows"], chains["about"]["commit"]),
            "",
        ]
    )


def main() -> int:
    path = ROOT / "README.md"
    path.write_text(PLACE.sub(lambda _: text(), path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
