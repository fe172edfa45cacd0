"""What this machine runs, whether it is right, and how fast: `python -m rl_triton_jax`."""

import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import jax
import numpy as np

import rl_triton_jax
from rl_triton_jax import config, selfcheck
from rl_triton_jax.launch import availability

WIDTH = 100

WHY = {
    "triton": "one fused kernel for the whole call",
    "associative_scan": "without a kernel, a loop over time would launch work for every row",
    "scan": "a loop over time is faster than a parallel scan",
}


def main(
    ops: Sequence[str] = tuple(selfcheck.LOOPS),
    shape: tuple[int, int] | None = None,
    repeats: int = 10,
) -> int:
    """Checks and times the operations, and prints a report of one screenful.

    Args:
      ops: the operations to look at.
      shape: of the arrays, time first; 128 x 1024 on the CPU and 128 x 4096 elsewhere if absent.
      repeats: timed runs of each; 0 leaves the times out.

    Returns:
      The exit code: 0, or 1 if a result is wrong or what None picks cannot run.
    """
    platform = availability.default_platform()
    steps, lanes = shape or (128, 1024 if platform == "cpu" else 4096)
    calls = 1 if platform == "cpu" else 20  # so that starting a computation weighs little
    given = {op: selfcheck.arguments(op, steps, lanes) for op in ops}
    picked = {op: _picked(op, platform) for op in ops}
    _print_machine(picked, platform)

    found = _examine(given, calls if repeats else 0)
    failures, reasons = [], {}
    print(f"\n{'':19}" + "".join(f"  {name:16}" for name in config.IMPLEMENTATIONS).rstrip())
    print(
        f"{'operation':19}" + f"  {'error':>7}{'µs':>7}  " * len(config.IMPLEMENTATIONS) + "picked"
    )
    for op in ops:
        errors, chains = {}, {}
        for name in config.IMPLEMENTATIONS:
            one = found[op, name]
            if isinstance(one, NotImplementedError):
                reasons.setdefault(name, {})[op] = str(one)
                continue
            by_kind, chains[name] = one
            errors[name] = float(np.max(list(by_kind.values())))
            failures += [
                f"WRONG: {op}, {name}: {what} are off by {error:.1e}"
                for what, error in by_kind.items()
                if not error <= selfcheck.TOLERANCE
            ]
        if picked[op] not in errors:
            failures.append(f"WRONG: {op}, {picked[op]}: picked, but it cannot run")
        times = {}
        if repeats:
            times = selfcheck.microseconds(chains, calls=calls, repeats=repeats)
        cells = [_cells(errors.get(name), times.get(name)) for name in config.IMPLEMENTATIONS]
        print(f"{op:19}" + "".join(cells) + picked[op], flush=True)

    chain = "" if calls == 1 else f" in a jitted chain of {calls}"
    print()
    _print_wrapped(
        f"{steps} x {lanes} (time x environments), float32. error: the largest one of values and "
        "gradients against float64 loops, relative to the largest number (tolerance "
        f"{selfcheck.TOLERANCE:.0e}). µs: one call{chain}, the median of {repeats}."
    )
    for name, why in reasons.items():
        runs = f"{name} runs {len(ops) - len(why)} of {len(ops)} operations here"
        _print_wrapped(f"{runs}: {next(iter(why.values()))}")
    print("\n".join(failures) or "All results are right.")
    return 1 if failures else 0


type Examined = tuple[dict[str, float], Callable | None] | NotImplementedError


def _examine(
    given: Mapping[str, Mapping[str, np.ndarray]], calls: int
) -> dict[tuple[str, str], Examined]:
    """(operation, implementation) -> its errors and, if there are calls, their chain to time."""

    def examine(op: str, name: str) -> Examined:
        try:
            errors = selfcheck.errors(op, name, given[op])
            return errors, selfcheck.chain(op, name, given[op], calls) if calls else None
        except NotImplementedError as reason:
            return reason

    jobs = [(op, name) for op in given for name in config.IMPLEMENTATIONS]
    # XLA, which takes most of the time, compiles in threads; Triton's compiler is not made for them
    with ThreadPoolExecutor() as pool:
        ahead = {job: pool.submit(examine, *job) for job in jobs if job[1] != "triton"}
        here = {job: examine(*job) for job in jobs if job not in ahead}
        return here | {job: future.result() for job, future in ahead.items()}


def _picked(op: str, platform: str) -> str:
    """What a call that names no implementation runs, or would have to."""
    why_no_kernel = availability.why_not(platform, asked=False)
    return config.requested(None, op) or config.resolve(None, platform, op, why_no_kernel)


def _print_machine(picked: dict[str, str], platform: str) -> None:
    versions = {"rl_triton_jax": rl_triton_jax.__version__}
    versions |= {name: _version(name) for name in ("jax", "jaxlib", "triton", "jax_triton")}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    kinds = Counter(f"{device.platform} ({device.device_kind})" for device in jax.devices())
    print("devices: " + ", ".join(f"{n} x {kind}" for kind, n in kinds.items()))
    asked = config.requested(None, "default")
    for name, n in Counter(picked.values()).items():
        where = platform if n == len(picked) else f"{platform} for {n} of {len(picked)}"
        why = "the default is set to it" if asked else WHY[name]
        print(f"implementation=None picks {name} on {where}: {why}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cells(error: float | None, time: float | None) -> str:
    return (
        f"  {'-' if error is None else format(error, '.1e'):>7}"
        f"{'-' if time is None else format(time, '.0f'):>7}  "
    )


def _print_wrapped(text: str) -> None:
    print(textwrap.fill(text, WIDTH))


if __name__ == "__main__":
    sys.exit(main())
