"""`gae` against hand-written scans on the CPU: `python -m benchmarks.cpu`.

Each figure is the median over interleaved pairs of (time of gae) / (time of a baseline), both
compiled, on the same arrays; the row "itself" times the same code twice and shows the noise.
"""

import argparse

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import registry
from benchmarks.baselines import PROGRAMS
from benchmarks.registry import Case
from benchmarks.timing import seconds

SHAPES = [(128, 8), (128, 1024), (128, 4096), (1024, 64), (16, 8192), (2048, 512)]
OURS = "library scan"
BASELINES = {
    "itself": OURS,
    "lax.scan(unroll=1)": "lax.scan(unroll=1)",
    "lax.scan(unroll=16)": "lax.scan(unroll=16)",
    "associative_scan": "lax.associative_scan",
}


def measure(steps: int, envs: int, pairs: int) -> dict[str, float]:
    """Median ratio of gae's time to each baseline's."""
    case = Case("gae", (steps, envs))
    arrays = registry.arrays(case)
    gae = jax.jit(PROGRAMS[OURS](case)).lower(arrays).compile()
    baselines = {
        name: jax.jit(PROGRAMS[program](case)).lower(arrays).compile()
        for name, program in BASELINES.items()
    }
    for name, function in baselines.items():
        for got, expected in zip(function(arrays), gae(arrays), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    ratios = {name: [] for name in baselines}
    for pair in range(pairs):
        for name, function in baselines.items():
            first, second = (gae, function) if pair % 2 else (function, gae)
            times = {first: seconds(first, arrays), second: seconds(second, arrays)}
            ratios[name].append(times[gae] / times[function])
    return {name: float(np.median(r)) for name, r in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    table = Table(title=f"time of gae / time of the baseline, median of {pairs} pairs")
    table.add_column("T x N")
    for name in BASELINES:
        table.add_column(name, justify="right")
    table.add_column("to the fastest", justify="right")
    for steps, envs in track(SHAPES, "timing"):
        ratios = measure(steps, envs, pairs)
        fastest = max(ratio for name, ratio in ratios.items() if name != "itself")
        cells = [f"{ratio:.2f}" for ratio in (*ratios.values(), fastest)]
        table.add_row(f"{steps}x{envs}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
