"""Work done ahead of whoever consumes it, in order and within a bound on memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(
    call: Callable[[T], R],
    tasks: Iterable[T],
    *,
    workers: int,
    cost: Callable[[T], int],
    max_cost: int,
) -> Iterator[R]:
    """The results of `call` in the order of the tasks, computed ahead by threads up to `max_cost`."""
    if workers <= 0:
        yield from (call(task) for task in tasks)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="warp-ahead")
    waiting: deque[tuple[Future[R], int]] = deque()
    source = iter(tasks)
    pending = 0
    try:
        task = next(source, None)
        while waiting or task is not None:
            while task is not None and (not waiting or (len(waiting) <= workers and pending < max_cost)):
                price = cost(task)
                waiting.append((pool.submit(call, task), price))
                pending += price
                task = next(source, None)
            future, price = waiting.popleft()
            result = future.result()
            pending -= price
            yield result
    finally:
        # An abandoned stream may be collected in any thread, even one of these: never wait here.
        pool.shutdown(wait=False, cancel_futures=True)
