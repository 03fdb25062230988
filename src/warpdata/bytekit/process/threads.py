"""Work in the background: the one place that starts threads.

A forked child has none of its parent's threads: what is offered here begins anew there once something is asked of it,
or says that it is gone.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import OwnProcess, tell_in_child

T = TypeVar("T")
A = TypeVar("A")

MOST_AT_ONCE = max(2, system.allowed_descriptors() // 16)
"""Threads that wait for files or servers at the same time: each has a few descriptors of what the system allows."""
MAX_PARALLEL = min(16, MOST_AT_ONCE)


def start_thread(target: Callable[..., object], name: str, *args: Any) -> threading.Thread:
    """A thread that runs `target(*args)` and keeps no program from ending."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def ended_within(call: Callable[[], T], timeout_s: float | None, name: str) -> T:
    """What a call gives that nothing can interrupt, or TimeoutError; its thread then ends whenever the call does."""
    results: SimpleQueue[T | _Failure] = SimpleQueue()
    start_thread(lambda: results.put(_result(call)), name)
    try:
        result = results.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"{name} timed out") from None
    if isinstance(result, _Failure):
        raise result.error
    return result


class ThreadPool:
    """At most so many threads, started as they are needed; calls begin in the order they were asked for.

    One that was closed starts afresh when something is asked of it again.
    """

    def __init__(self, workers: int, name: str) -> None:
        self._workers = min(workers, MOST_AT_ONCE)
        self._name = name
        self.in_child()
        tell_in_child(self)

    def in_child(self) -> None:
        """Begin anew."""
        self._threads = ThreadPoolExecutor(self._workers, self._name)

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Ask for `call(*args)`."""
        return self._threads.submit(call, *args)

    def map(self, call: Callable[[A], T], tasks: Sequence[A]) -> list[T]:
        """The results of `call` for each task, in order; raises what the first of them that failed did."""
        return list(self._threads.map(call, tasks))

    def close(self, *, wait: bool = False) -> None:
        """Begin nothing more of what was asked for; what is under way ends by itself."""
        threads = self._threads
        self.in_child()
        threads.shutdown(wait=wait, cancel_futures=True)


def map_in_threads(call: Callable[[A], T], tasks: Sequence[A], workers: int = MAX_PARALLEL) -> list[T]:
    """The results of `call` for each task, in order; the first error is raised after the others end."""
    if len(tasks) <= 1 or workers <= 1:
        return [call(task) for task in tasks]
    with ThreadPoolExecutor(min(workers, len(tasks), MOST_AT_ONCE), "warp-map") as threads:
        return list(threads.map(call, tasks))


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


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class OrderedWorker(Generic[T]):
    """Work ahead of the reader in one thread; results come back strictly in order. Close it when done.

    In a forked child the jobs whose results were not taken are done again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Callable[[], T]] = deque()
        self._is_closed = False
        self._thread: QueueThread[Callable[[], T]] | None = None
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
        thread = self._begun()
        self._waiting.append(job)
        thread.put(job)

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
        if self._thread is not None:
            self._thread.drop()
            self._thread.close()

    def _begun(self) -> QueueThread[Callable[[], T]]:
        """The thread, with all jobs that wait; it does not hold the worker, which may go first."""
        if self._thread is None:
            self._results: SimpleQueue[T | _Failure] = SimpleQueue()
            results = self._results
            self._thread = QueueThread(lambda job: results.put(_result(job)), self._name)
            for job in self._waiting:
                self._thread.put(job)
        return self._thread


class OrderedWorkers(Generic[T]):
    """Like one `OrderedWorker`, with several jobs at a time: each thread does every so many-th one."""

    def __init__(self, name: str, threads: int) -> None:
        self._workers: list[OrderedWorker[T]] = [OrderedWorker(name) for _ in range(threads)]
        self._submitted = self._taken = 0

    @property
    def is_alive(self) -> bool:
        """False once closed, and at the end of the interpreter."""
        return self._workers[0].is_alive

    def submit(self, job: Callable[[], T]) -> None:
        """Queue a job; its result is taken by `take`, after those queued before."""
        self._workers[self._submitted % len(self._workers)].submit(job)
        self._submitted += 1

    def take(self) -> T:
        """The result of the oldest job, or what it raised."""
        worker = self._workers[self._taken % len(self._workers)]
        self._taken += 1
        return worker.take()

    def close(self) -> None:
        """Drop what is queued and stop the threads."""
        for worker in self._workers:
            worker.close()


def _result(job: Callable[[], T]) -> T | _Failure:
    try:
        return job()
    except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
        return _Failure(error)


class SharedWork:
    """Small jobs that the caller and one thread take from two ends; the caller never waits for an idle thread."""

    def __init__(self, name: str) -> None:
        self._thread: QueueThread[_Shared] = QueueThread(_Shared.help, name)

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child."""
        return self._thread.is_alive

    def run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Do all jobs, some of them in the thread if it gets to run; raises what a job raised."""
        shared = _Shared(deque(jobs))
        self._thread.put(shared)
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
        self._thread.close()


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

    def help(self) -> None:
        """In the thread: take jobs from the other end."""
        while self.jobs:
            with self.busy:
                try:
                    job = self.jobs.pop()
                except IndexError:
                    break
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - the caller raises it
                    self.errors.append(error)


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


class TaskThread:
    """One thread that does tasks in their order. Close it when done."""

    def __init__(self, name: str) -> None:
        self._thread: QueueThread[Task[Any]] = QueueThread(Task.run, name)

    @property
    def is_alive(self) -> bool:
        """False once closed, and in a forked child."""
        return self._thread.is_alive

    def send(self, job: Callable[[], T]) -> Task[T]:
        """Queue a job."""
        task = Task(job)
        self._thread.put(task)
        return task

    def close(self) -> None:
        """Stop the thread when it has done what is queued and was not taken back."""
        self._thread.close()
