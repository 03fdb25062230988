"""Background work. The one place that starts threads: a pool, an ordered queue and read-ahead.

A forked child has none of its parent's threads: pools and queues start again there on first use.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import OwnProcess, PerProcess

T = TypeVar("T")
A = TypeVar("A")

MOST_AT_ONCE = max(2, system.allowed_descriptors() // 16)
"""Threads that wait for files or servers at the same time: each needs a few of the allowed descriptors."""
MAX_PARALLEL = min(16, MOST_AT_ONCE)


def start_thread(target: Callable[..., object], name: str, *args: Any) -> threading.Thread:
    """Start a daemon thread that runs `target(*args)`."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def call_with_timeout(call: Callable[[], T], timeout_s: float | None, name: str) -> T:
    """Run a call that cannot be interrupted; TimeoutError after `timeout_s`, while its thread runs on."""
    results: SimpleQueue[Callable[[], T]] = SimpleQueue()
    start_thread(lambda: results.put(_outcome(call)), name)
    try:
        outcome = results.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"{name} timed out") from None
    return outcome()


def _outcome(call: Callable[[], T]) -> Callable[[], T]:
    """Run a call now; the returned function returns its result or raises its error."""
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again by the returned function
        future.set_exception(error)
    return future.result


class ThreadPool:
    """A bounded number of threads, started on demand; calls start in the order of submission.

    A closed pool starts again on the next call.
    """

    def __init__(self, workers: int, name: str) -> None:
        count = min(workers, MOST_AT_ONCE)
        self._threads = PerProcess(lambda: ThreadPoolExecutor(count, name))

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue `call(*args)`."""
        return self._threads().submit(call, *args)

    def map(self, call: Callable[[A], T], tasks: Sequence[A]) -> list[T]:
        """Return the results of `call` for all tasks, in order; raises the first error."""
        return list(self._threads().map(call, tasks))

    def close(self, *, wait: bool = False) -> None:
        """Cancel what is queued; running calls finish."""
        threads = self._threads.reset()
        if threads is not None:
            threads.shutdown(wait=wait, cancel_futures=True)


def map_in_threads(call: Callable[[A], T], tasks: Sequence[A], workers: int = MAX_PARALLEL) -> list[T]:
    """Return the results of `call` for all tasks, in order; the first error is raised after the others end."""
    if len(tasks) <= 1 or workers <= 1:
        return [call(task) for task in tasks]
    with ThreadPoolExecutor(min(workers, len(tasks), MOST_AT_ONCE), "warp-map") as threads:
        return list(threads.map(call, tasks))


class OrderedQueue(Generic[T]):
    """Jobs done by background threads; `take` returns their results in the order of submission.

    In a forked child the jobs whose results were not taken run again.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._pool = ThreadPool(threads, name)
        self._jobs: deque[Callable[[], T]] = deque()
        self._futures = PerProcess(lambda: deque(self._pool.submit(job) for job in self._jobs))
        self._is_closed = False

    @property
    def pending(self) -> int:
        """The number of results not taken yet."""
        return len(self._jobs)

    @property
    def is_alive(self) -> bool:
        """False once closed, and at the end of the interpreter, when threads no longer run."""
        return not self._is_closed and not sys.is_finalizing()

    def submit(self, job: Callable[[], T]) -> None:
        """Queue a job."""
        futures = self._futures()
        self._jobs.append(job)
        futures.append(self._pool.submit(job))

    def take(self) -> T:
        """Wait for the oldest job; return its result or raise its error."""
        if not self._jobs:
            raise RuntimeError("no job is queued")
        future = self._futures().popleft()
        self._jobs.popleft()
        return future.result()

    def close(self) -> None:
        """Drop what is queued and wait for what is running."""
        self._is_closed = True
        self._jobs.clear()
        self._futures.reset()
        self._pool.close(wait=True)


def read_ahead(
    call: Callable[[A], T], tasks: Iterable[A], *, depth: int, threads: int = 1, name: str = "warp-read-ahead"
) -> Iterator[T]:
    """Yield the results of `call` for all tasks in order, computed up to `depth` tasks ahead of the consumer."""
    queue: OrderedQueue[T] = OrderedQueue(name, threads)
    try:
        for task in tasks:
            queue.submit(partial(call, task))
            if queue.pending > depth:
                yield queue.take()
        while queue.pending:
            yield queue.take()
    finally:
        queue.close()


class QueueThread(Generic[T]):
    """One thread that calls `handle` for everything that is put, in order. Close it when done."""

    def __init__(self, handle: Callable[[T], object], name: str) -> None:
        self._items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._own = OwnProcess()
        self._thread = start_thread(_serve, name, self._items, handle)

    @property
    def is_alive(self) -> bool:
        """False once closed, in a forked child, and at the end of the interpreter, when no thread ever runs again."""
        return bool(self._own) and not sys.is_finalizing() and self._thread.is_alive()

    def put(self, item: T) -> None:
        """Queue something."""
        self._items.put((item,))

    def drop(self) -> None:
        """Forget what is queued and not begun."""
        while not self._items.empty():
            self._items.get()

    def close(self, *, wait: bool = True) -> None:
        """End the thread when it has done what is queued."""
        if self.is_alive:
            self._items.put(None)
            if wait and threading.current_thread() is not self._thread:
                self._thread.join()


def _serve(items: SimpleQueue[tuple[T] | None], handle: Callable[[T], object]) -> None:
    while (item := items.get()) is not None:
        handle(*item)
        del item
