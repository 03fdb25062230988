"""Threads of the row sources: one that works ahead in a fixed order, and a few for headers."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class OrderedWorker(Generic[T]):
    """Work ahead of the reader in one thread; results come back strictly in order. Close it when done."""

    def __init__(self, name: str) -> None:
        self.pending = 0
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._results: SimpleQueue[T | _Failure] = SimpleQueue()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, self._results), name=name, daemon=True
        )
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> None:
        """Queue a job; its result is taken by `take`, after those queued before."""
        self.pending += 1
        self._jobs.put(job)

    def take(self) -> T:
        """The result of the oldest job, or what it raised."""
        if not self.pending:
            raise RuntimeError("no job is waiting")
        result = self._results.get()
        self.pending -= 1
        if isinstance(result, _Failure):
            raise result.error
        return result

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child, which has no copy of the thread."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def close(self) -> None:
        """Drop what is queued and stop the thread."""
        if not self.is_alive:
            return
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.pending = 0


def _work(jobs: SimpleQueue[Callable[[], T] | None], results: SimpleQueue[T | _Failure]) -> None:
    while (job := jobs.get()) is not None:
        try:
            results.put(job())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
            results.put(_Failure(error))
        del job


class SharedWork:
    """Small jobs that the caller and one thread take from two ends; the caller never waits for an idle thread."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Shared | None] = SimpleQueue()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_share, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Do all jobs, some of them in the thread if it gets to run; raises what a job raised."""
        shared = _Shared(deque(jobs))
        self._calls.put(shared)
        try:
            while (job := shared.next_job()) is not None:
                job()
        finally:
            shared.jobs.clear()
            with shared.busy:  # free unless the thread is in the middle of a job
                pass
        if shared.errors:
            raise shared.errors[0]

    def close(self) -> None:
        """Stop the thread."""
        if self.is_alive:
            self._calls.put(None)
            self._thread.join()


class _Shared:
    def __init__(self, jobs: deque[Callable[[], None]]) -> None:
        self.jobs = jobs
        self.busy = threading.Lock()
        self.errors: list[BaseException] = []

    def next_job(self) -> Callable[[], None] | None:
        try:
            return self.jobs.popleft()
        except IndexError:
            return None


def _share(calls: SimpleQueue[_Shared | None]) -> None:
    while (shared := calls.get()) is not None:
        while shared.jobs:
            with shared.busy:
                try:
                    job = shared.jobs.pop()
                except IndexError:
                    break
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - the caller raises it
                    shared.errors.append(error)
        del shared


def has_idle_core(cores: int) -> bool:
    """True if this very moment some core has nothing to do; an average would remember our own past work."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] < cores
    return running < cores


def map_in_threads(job: Callable[[A], T], items: Sequence[A], threads: int) -> list[T]:
    """Do a job for every item, several at a time; results in the order of the items."""
    if len(items) < 2:
        return [job(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), "warpdata-map") as pool:
        return list(pool.map(job, items))
