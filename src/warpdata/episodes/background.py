"""One thread that does the slow part of recording, in order, behind a bounded queue that never drops."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from warpdata.errors import WarpError, WriterClosedError

Job = Callable[[], None]


class Background:
    """Runs jobs in order; a caller that is faster than the thread waits, and the wait is counted."""

    def __init__(self, name: str, limit: int, *, delay_s: float = 0.0) -> None:
        self.failure: BaseException | None = None
        self.blocked_ns = 0
        self._limit = limit
        self._delay_s = delay_s
        self._weight = 0
        self._jobs: deque[tuple[Job, int, float]] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, weight: int = 1) -> None:
        """Queue a job; blocks while the queue is full. A failed job fails every later call."""
        with self._change:
            if self._weight >= self._limit:
                self._wait_for_room()
            self.check()
            if self._closing:
                raise WriterClosedError("the writer is closed")
            self._jobs.append((job, weight, time.monotonic()))
            self._weight += weight
            self._change.notify_all()

    def room(self) -> None:
        """Wait until the queue has room; raises what went wrong in the thread."""
        if self._weight >= self._limit or self.failure is not None:
            with self._change:
                self._wait_for_room()
                self.check()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if isinstance(self.failure, WarpError):
            raise type(self.failure)(self.failure.message, hint=self.failure.hint) from self.failure
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """Run everything queued, end the thread, and raise what went wrong."""
        self._stop(drop=False)
        self.check()

    def cancel(self) -> None:
        """Drop what is queued and end the thread."""
        self._stop(drop=True)

    def _stop(self, *, drop: bool) -> None:
        with self._change:
            self._closing = True
            if drop:
                self._jobs.clear()
            self._change.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wait_for_room(self) -> None:
        start = time.monotonic_ns()
        while self._weight >= self._limit and self.failure is None and not self._closing:
            self._change.wait()
        self.blocked_ns += time.monotonic_ns() - start

    def _is_due(self) -> bool:
        """Whether to act now: a burst is left alone until it is over or the queue is half full."""
        if self._closing or not self._jobs:
            return self._closing
        return self._weight * 2 >= self._limit or time.monotonic() - self._jobs[0][2] >= self._delay_s

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._is_due():
                    self._change.wait(self._delay_s if self._jobs else None)
                if not self._jobs:
                    return
                job, weight, _ = self._jobs.popleft()
            try:
                if self.failure is None:
                    job()
            except BaseException as error:  # noqa: BLE001 - kept, and raised to the caller by check()
                self.failure = error
            finally:
                del job
            with self._change:
                self._weight -= weight
                self._change.notify_all()
