"""Work done ahead of whoever consumes it, in order and within a bound on memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.threads import ThreadPool

CORES = max(2, min(8, system.usable_cores()))

T = TypeVar("T")
F = TypeVar("F")
R = TypeVar("R")


@dataclass(slots=True)
class _Job(Generic[T, F, R]):
    task: T
    cost: int
    fetched: Callable[[], F]
    """Waits for what is being fetched, or fetches it."""
    done: Future[R] | None = None


class ReadAhead(Generic[T, F, R]):
    """Tasks fetched far ahead and worked on near ahead, by threads that begin at once; results in order.

    `ask` is called for one task after the other, in order; what it returns is run by a thread at once, beside others.
    Many fetches may wait for a network at the same time, but only as many tasks as there are cores (or `cores`
    says) are worked on, and few finished results lie in memory. With `first`, so many are begun at the beginning
    and twice as many after each result: what is needed last does not slow down what is needed now.
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
        cores: int | None = None,
        first: int | None = None,
    ) -> None:
        self._ask = ask
        self._work = work
        self._tasks = iter(tasks)
        self._next = next(self._tasks, None)
        self._cost = cost
        self._is_here = is_here
        self._cores = CORES if cores is None else cores
        self._depth = workers + 1
        self._near = min(self._depth, self._cores + 2)
        self._open = self._depth if first is None else first
        self._max_cost = max_cost
        self._jobs: deque[_Job[T, F, R]] = deque()
        self._pending = 0
        self._is_begun = True
        self._fetchers = ThreadPool(max(1, self._depth - 1), "warp-fetch")
        self._workers = ThreadPool(self._cores, "warp-work")
        run_in_child(self.in_child)
        if workers > 0:
            self._submit()

    def in_child(self) -> None:
        """Begin again what was under way, once a result is asked for."""
        self._is_begun = False

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if not self._is_begun:
            self._is_begun = True
            self._jobs = deque(self._job(job.task, job.cost) for job in self._jobs)
            self._submit()
        if not self._jobs:
            task = self._taken()
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
        self._jobs.clear()
        self._fetchers.close()
        self._workers.close()

    def _submit(self) -> None:
        while self._next is not None and self._has_room():
            task = self._taken()
            job = self._job(task, self._cost(task))
            self._jobs.append(job)
            self._pending += job.cost
            self._begin()
        self._begin()

    def _job(self, task: T, cost: int) -> _Job[T, F, R]:
        fetch = self._ask(task)
        # Others may wait for what was asked for: it is fetched at once, not when its turn to be worked on comes.
        is_fetched_by_worker = self._depth <= self._near or self._is_here(task)
        return _Job(task, cost, fetch if is_fetched_by_worker else self._fetchers.submit(fetch).result)

    def _begin(self) -> None:
        """Hand the next tasks to the workers; at once, because finding a further task may take time."""
        for job in itertools.islice(self._jobs, self._near):
            if job.done is None:
                job.done = self._workers.submit(self._run, job)

    def _run(self, job: _Job[T, F, R]) -> R:
        return self._work(job.task, job.fetched())

    def _has_room(self) -> bool:
        return not self._jobs or (len(self._jobs) < self._open and self._pending < self._max_cost)

    def _taken(self) -> T:
        if self._next is None:
            raise StopIteration
        taken, self._next = self._next, next(self._tasks, None)
        return taken
