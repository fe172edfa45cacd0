"""What `benchmarks.ppo` shows: the progress bar, the table and the learning curve."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


@contextmanager
def progress(updates: int) -> Generator[Callable[[np.ndarray, np.ndarray], None]]:
    """A bar over the updates; yields the function to call after each with its episodes.

    The bar draws itself a few times a second, however often that function is called.
    """
    columns = (
        TextColumn("update"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("mean episode return {task.fields[mean_return]}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("update", total=updates, mean_return="(compiling)")

        def on_update(count: np.ndarray, return_sum: np.ndarray) -> None:
            bar.advance(task)
            if count:  # an update in which no episode ended leaves the last mean standing
                bar.update(task, mean_return=f"{return_sum / count:.1f}")

        yield on_update


def mean_returns(count: np.ndarray, return_sum: np.ndarray, bins: int) -> np.ma.MaskedArray:
    """Each seed's mean return over the episodes of each of `bins` runs of updates.

    Args:
      count: [updates, seeds], the episodes that ended.
      return_sum: [updates, seeds], the sum of their returns.
      bins: how many runs of (nearly) equal length the updates are cut into, if there are enough.

    Returns:
      [bins, seeds], masked where no episode ended.
    """
    bins = min(bins, len(count))
    starts = np.arange(bins) * len(count) // bins
    return np.ma.divide(np.add.reduceat(return_sum, starts), np.add.reduceat(count, starts))


def print_table(title: str, final_returns: np.ma.MaskedArray, rates: dict[str, str]) -> None:
    """Prints the seeds' mean returns at the end of training, and the rates below them."""
    table = Table("seed", "mean return, last tenth", title=title)
    for seed, final_return in enumerate(final_returns):
        table.add_row(str(seed), f"{final_return:.1f}")
    table.add_section()
    for name, value in rates.items():
        table.add_row(name, value)
    Console().print(table)


def plot_curve(path: Path, title: str, curve: np.ma.MaskedArray, timesteps: int) -> None:
    """Writes the learning curves: every seed thin, their mean thick.

    Args:
      path: where the PNG goes.
      title: the title.
      curve: [bins, seeds], as `mean_returns` gives it.
      timesteps: what the whole curve spans.
    """
    steps = (np.arange(len(curve)) + 1) * timesteps / len(curve)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, curve, color="C0", linewidth=0.8, alpha=0.5)
    axes.plot(steps, curve.mean(axis=1), color="C0", linewidth=2.5, label="mean over seeds")
    axes.plot([], [], color="C0", linewidth=0.8, alpha=0.5, label="one seed")
    axes.set(title=title, xlabel="environment steps per seed", ylabel="mean episode return")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
