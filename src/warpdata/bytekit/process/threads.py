"""Background work. The one place that starts threads: a pool, and read-ahead on top of it.

A forked child has none of its parent's threads: pools start again there on first use.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import OwnProcess, PerProcess

T = TypeVar("T")
A = TypeVar("A")
F = TypeVar("F")
R = TypeVar("R")

MOST_AT_ONCE = max(2, system.allowed_descriptors() // 16)
"""Threads that wait for files or servers at the same time: each needs a few of the allowed descriptors."""
MAX_PARALLEL = min(16, MOST_AT_ONCE)
CORES = max(2, min(8, system.usable_cores()))


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

    def share(self, call: Callable[[A], object], tasks: Sequence[A]) -> None:
        """Run `call` for all tasks; the caller, which may be a thread of this pool, works too.

        It takes the first task, and then those that no other thread has begun.
        """
        others = [(task, self.submit(call, task)) for task in tasks[1:]]
        call(tasks[0])
        for task, other in others:
            if other.cancel():
                call(task)
            else:
                other.result()

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


@dataclass(slots=True)
class _Job(Generic[T, F, R]):
    task: T
    cost: int
    fetched: Callable[[], F]
    """Waits for what is being fetched, or fetches it."""
    done: Future[R] | None = None


class ReadAhead(Generic[T, F, R]):
    """Tasks fetched far ahead and worked on near ahead, by threads that begin at once; results in order.

    `ask` is called for one task after the other, in order; a thread runs what it returns at once.
    Many fetches may wait for a network at the same time, but only as many tasks as there are cores (or `cores`)
    are worked on, and few finished results are in memory. With `first`, that many are begun at the beginning
    and twice as many after each result, so that late tasks do not slow down the first ones.
    """

    def __init__(
        self,
        ask: Callable[[T], Callable[[], F]],
        work: Callable[[T, F], R],
        tasks: Iterable[T],
        *,
        workers: int,
        cost: Callable[[T], int],
        max_cost: int,
        is_here: Callable[[T], bool] = lambda _: False,
        cores: int = CORES,
        first: int | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        """`pool` works on the tasks and is left open; without it there are threads of this object alone."""
        self._ask, self._work = ask, work
        self._tasks = iter(tasks)
        self._next = next(self._tasks, None)
        self._cost, self._max_cost = cost, max_cost
        self._is_here = is_here
        self._depth = workers + 1
        self._near = min(self._depth, cores + 2)
        self._open = self._depth if first is None else first
        self._jobs: deque[_Job[T, F, R]] = deque()
        self._pending = 0
        self._own = OwnProcess()
        self._fetchers = ThreadPool(max(1, self._depth - 1), "warp-fetch")
        self._closes = pool is None
        self._workers = ThreadPool(cores, "warp-work") if pool is None else pool
        if workers > 0:
            self._submit()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if not self._own:  # a forked child begins again what was under way
            self._own = OwnProcess()
            self._jobs = deque(self._start(job.task, job.cost) for job in self._jobs)
            self._submit()
        if not self._jobs:
            task = self._take()
            return self._work(task, self._ask(task)())
        job = self._jobs.popleft()
        assert job.done is not None
        result = job.done.result()
        self._pending -= job.cost
        self._open = min(self._depth, 2 * self._open)
        self._submit()
        return result

    def close(self) -> None:
        """Begin nothing more. A stream may be collected in any thread, even one of these: never wait."""
        self._next = None
        for job in self._jobs:
            if job.done is not None:
                job.done.cancel()
        self._jobs.clear()
        self._fetchers.close()
        if self._closes:
            self._workers.close()

    def _submit(self) -> None:
        while self._next is not None and (
            not self._jobs or (len(self._jobs) < self._open and self._pending < self._max_cost)
        ):
            task = self._take()
            job = self._start(task, self._cost(task))
            self._jobs.append(job)
            self._pending += job.cost
            self._work_on_next()
        self._work_on_next()

    def _start(self, task: T, cost: int) -> _Job[T, F, R]:
        fetch = self._ask(task)
        # Other readers may wait for the bytes: they are fetched at once, not when the task is worked on.
        is_fetched_by_worker = self._depth <= self._near or self._is_here(task)
        return _Job(task, cost, fetch if is_fetched_by_worker else self._fetchers.submit(fetch).result)

    def _work_on_next(self) -> None:
        """Hand the next tasks to the workers; at once, because finding a further task may take time."""
        for job in itertools.islice(self._jobs, self._near):
            if job.done is None:
                job.done = self._workers.submit(lambda job=job: self._work(job.task, job.fetched()))

    def _take(self) -> T:
        if self._next is None:
            raise StopIteration
        task, self._next = self._next, next(self._tasks, None)
        return task
