"""Processes that share a device: they compile side by side, and measure one at a time."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

_turn: contextlib.AbstractContextManager = contextlib.nullcontext()


def turn() -> contextlib.AbstractContextManager:
    """What runs inside of it has the device for itself, as far as the other workers go."""
    return _turn


def _start(lock: contextlib.AbstractContextManager) -> None:
    global _turn
    _turn = lock


def each[Item, Found](
    work: Callable[[Item], Found], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Found]]:
    """(item, work(item)) as they are done, in so many processes; if one is enough, in this one."""
    if workers == 1:
        yield from ((item, work(item)) for item in items)
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # they share its memory, too
    context = multiprocessing.get_context("spawn")  # a process that holds a device cannot fork
    with ProcessPoolExecutor(workers, context, _start, (context.Lock(),)) as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
