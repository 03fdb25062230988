"""Several reads at the same time, owned by the call that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from warpdata.bytekit.forks import tell_in_child

T = TypeVar("T")
R = TypeVar("R")

MAX_PARALLEL = 16


def run_parallel(call: Callable[[T], R], tasks: Sequence[T], workers: int = MAX_PARALLEL) -> list[R]:
    """The results of `call` for each task, in order; the first error is raised after the others end."""
    if len(tasks) <= 1 or workers <= 1:
        return [call(task) for task in tasks]
    with ThreadPoolExecutor(min(workers, len(tasks)), thread_name_prefix="warp-read") as pool:
        return list(pool.map(call, tasks))


class Fetchers:
    """Threads that several callers share; calls begin in the order they were asked for, so what is needed first is."""

    def __init__(self) -> None:
        self.in_child()
        tell_in_child(self)

    def in_child(self) -> None:
        """A forked child has none of its parent's threads."""
        self._threads = ThreadPoolExecutor(MAX_PARALLEL, "warp-bring")

    def run(self, call: Callable[[T], object], tasks: Sequence[T]) -> None:
        """Returns when `call` was made for every task; raises what the first of them that failed did."""
        for each in [self._threads.submit(call, task) for task in tasks]:
            each.result()

    def close(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
