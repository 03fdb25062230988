"""Threads of the row sources: one that works ahead in a fixed order, and a few for headers."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from warpdata.bytekit.forks import OwnProcess, tell_in_child

T = TypeVar("T")
A = TypeVar("A")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _is_alive(thread: threading.Thread, own: OwnProcess) -> bool:
    """A forked child has no copy of a thread, and at the end of the interpreter none ever runs again."""
    return bool(own) and not sys.is_finalizing() and thread.is_alive()


class OrderedWorker(Generic[T]):
    """Work ahead of the reader in one thread; results come back strictly in order. Close it when done.

    A forked child has no copy of the thread: there the jobs whose results were not taken are done again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Callable[[], T]] = deque()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._begun()
        tell_in_child(self)

    def in_child(self) -> None:
        """Begin again, once something is asked for."""
        self._thread = None

    @property
    def pending(self) -> int:
        """How many results are still to be taken."""
        return len(self._waiting)

    def submit(self, job: Callable[[], T]) -> None:
        """Queue a job; its result is taken by `take`, after those queued before."""
        jobs = self._begun()
        self._waiting.append(job)
        jobs.put(job)

    def take(self) -> T:
        """The result of the oldest job, or what it raised."""
        if not self._waiting:
            raise RuntimeError("no job is waiting")
        self._begun()
        result = self._results.get()
        self._waiting.popleft()
        if isinstance(result, _Failure):
            raise result.error
        return result

    @property
    def is_alive(self) -> bool:
        """False once closed, and at the end of the interpreter, when no thread ever runs again."""
        return not self._is_closed and not sys.is_finalizing()

    def close(self) -> None:
        """Drop what is queued and stop the thread."""
        if not self.is_alive:
            return
        self._is_closed = True
        self._waiting.clear()
        if self._thread is None:
            return
        while not self._jobs.empty():
            self._jobs.get()
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _begun(self) -> SimpleQueue[Callable[[], T] | None]:
        """Queues with a thread between them that has all jobs that wait."""
        if self._thread is None:
            self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
            self._results: SimpleQueue[T | _Failure] = SimpleQueue()
            for job in self._waiting:
                self._jobs.put(job)
            self._thread = threading.Thread(
                target=_work, args=(self._jobs, self._results), name=self._name, daemon=True
            )
            self._thread.start()
        return self._jobs


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
        self._own = OwnProcess()
        self._thread = threading.Thread(target=_share, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child."""
        return _is_alive(self._thread, self._own)

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


class Task(Generic[T]):
    """A job that a thread does, unless the caller takes it back before the thread has begun."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._result: T | None = None
        self._ended.acquire()

    def cancel(self) -> bool:
        """True if nobody has begun it, and now nobody will."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> T | None:
        """The result of a task that was begun; None if it failed."""
        with self._ended:
            return self._result

    def run(self) -> None:
        """Do the job unless it was taken back."""
        if not self.cancel():
            return
        try:
            self._result = self._job()
        except BaseException:  # noqa: BLE001 - whoever wants the result does the job and sees the error
            self._result = None
        finally:
            self._ended.release()


class ErrandRunner:
    """One thread that does tasks in their order. Close it when done."""

    def __init__(self, name: str) -> None:
        self._errands: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._own = OwnProcess()
        self._thread = threading.Thread(target=_run_errands, args=(self._errands,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child."""
        return _is_alive(self._thread, self._own)

    def send(self, job: Callable[[], T]) -> Task[T]:
        """Queue a job."""
        task = Task(job)
        self._errands.put(task)
        return task

    def close(self) -> None:
        """Stop the thread when it has done what is queued and was not taken back."""
        if self.is_alive:
            self._errands.put(None)
            if threading.current_thread() is not self._thread:
                self._thread.join()


def _run_errands(tasks: SimpleQueue[Task[Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task


def map_in_threads(job: Callable[[A], T], items: Sequence[A], threads: int) -> list[T]:
    """Do a job for every item, several at a time; results in the order of the items."""
    if len(items) < 2:
        return [job(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), "warpdata-map") as pool:
        return list(pool.map(job, items))
