"""A run's record: what it ran on, and a row for every program measured; kept as JSON."""

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

PACKAGES = ("jax", "jaxlib", "jax-triton", "triton", "numpy", "torch", "rl-triton", "pufferlib")
LIBRARY = ("triton", "library associative_scan", "library scan")
YARDSTICKS = ("floor", "XLA copy", "lax.associative_scan", "lax.scan(unroll=1)")
"""What times are given relative to: the first of these that was measured beside them."""
LOG_WIDTH = 160
"""Of tables where no terminal says how wide it is."""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    here = Path(__file__).parent
    try:
        return subprocess.check_output(
            ["git", *arguments], cwd=here, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """What the numbers of this process depend on."""
    device = jax.devices()[0]
    versions = {package: _version(package) for package in PACKAGES}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": device.platform,
        "device": device.device_kind,
        "versions": {name: version for name, version in versions.items() if version},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": None if changes is None else bool(changes),
    }


class Record:
    """Rows as they come; the file is always whole."""

    def __init__(self, path: Path, **about: Any):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        self.about = {**machine(), **about, "complete": False}

    def add(self, *rows: dict[str, Any]) -> None:
        self.rows += rows
        self.write()

    def write(self) -> None:
        written = self.path.with_suffix(".part")
        written.write_text(json.dumps({"about": self.about, "rows": self.rows}, indent=1))
        written.replace(self.path)

    def finish(self) -> None:
        self.about["complete"] = True
        self.write()


def median(row: dict[str, Any]) -> float:
    """Microseconds of a row that has them."""
    return float(np.median(row["us"]))


def spread(row: dict[str, Any]) -> tuple[float, float]:
    """The quartiles."""
    low, high = np.quantile(row["us"], (0.25, 0.75))
    return float(low), float(high)


type Groups = dict[tuple[str, str], dict[str, dict[str, Any]]]


def grouped(rows: Sequence[dict[str, Any]]) -> Groups:
    """(measure, case) -> program -> row, of what was measured."""
    groups: Groups = {}
    for row in rows:
        if "us" in row:
            groups.setdefault((row["measure"], row["case"]), {})[row["program"]] = row
    return groups


def subject(group: dict[str, Any]) -> str | None:
    """The form of the library that a group is about."""
    return next((name for name in ("triton", "library scan") if name in group), None)


def yardstick(*groups: dict[str, Any]) -> str | None:
    """What the times of these groups are given relative to."""
    return next((name for name in YARDSTICKS if all(name in group for group in groups)), None)


def others(group: dict[str, Any]) -> list[str]:
    """The programs of a group that do the same work and are not the library's."""
    return [p for p in group if p not in (*LIBRARY, "itself", "floor", "XLA copy")]


def noise(group: dict[str, Any]) -> float:
    """How far the same program measured twice lies apart, as a share; 0 if it was not."""
    name = subject(group)
    if name is None or "itself" not in group:
        return 0.0
    return abs(median(group["itself"]) / median(group[name]) - 1)


def load(path: Path) -> dict[str, Any]:
    """A record, from its file."""
    return json.loads(path.read_text())
