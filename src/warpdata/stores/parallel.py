"""Several reads at the same time, owned by the call that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_PARALLEL = 16


def run_parallel(call: Callable[[T], R], tasks: Sequence[T], workers: int = MAX_PARALLEL) -> list[R]:
    """The results of `call` for each task, in order; the first error is raised after the others end."""
    if len(tasks) <= 1 or workers <= 1:
        return [call(task) for task in tasks]
    with ThreadPoolExecutor(min(workers, len(tasks)), thread_name_prefix="warp-read") as pool:
        return list(pool.map(call, tasks))
