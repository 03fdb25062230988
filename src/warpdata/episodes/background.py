"""One thread that does the slow part of recording, in order, behind a bounded queue that never drops."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from warpdata.episodes.bell import Bell
from warpdata.errors import WarpError, WriterClosedError

Job = Callable[[], None]

_LOOK_AGAIN_S = 0.05
"""Several callers may wait for room and the bell wakes one: the others look by themselves."""


class Background:
    """Runs jobs in order; a caller that is faster than the thread waits, and the wait is counted.

    A job is queued by one operation of the interpreter, so Ctrl-C leaves it queued or not, never in between.
    """

    def __init__(self, name: str, limit: int, *, delay_s: float = 0.0) -> None:
        self.failure: BaseException | None = None
        self.blocked_ns = 0
        self._limit = limit
        self._delay_s = delay_s
        self._jobs: deque[tuple[Job, float]] = deque()
        """The first one is being run; it leaves when it is done."""
        self._work, self._room = Bell(), Bell()
        self._closing = False
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; blocks while the queue is full. A failed job fails every later call."""
        self.room()
        if self._closing:
            raise WriterClosedError("the writer is closed")
        self._jobs.append((job, time.monotonic()))
        self._work.ring()

    def room(self) -> None:
        """Wait until the queue has room; raises what went wrong in the thread."""
        if len(self._jobs) >= self._limit:
            start = time.monotonic_ns()
            while len(self._jobs) >= self._limit and self.failure is None and not self._closing:
                self._room.wait(_LOOK_AGAIN_S)
            self.blocked_ns += time.monotonic_ns() - start
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if isinstance(self.failure, WarpError):
            raise type(self.failure)(self.failure.message, hint=self.failure.hint) from self.failure
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """Run everything queued, end the thread, and raise what went wrong."""
        self._stop()
        self.check()

    def cancel(self) -> None:
        """Drop what is queued and end the thread."""
        self._is_cancelled = True
        self._stop()

    def _stop(self) -> None:
        self._closing = True
        self._work.ring()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _is_due(self) -> bool:
        """Whether to act now: a burst is left alone until it is over or the queue is half full."""
        if self._closing or not self._jobs:
            return self._closing
        return len(self._jobs) * 2 >= self._limit or time.monotonic() - self._jobs[0][1] >= self._delay_s

    def _run(self) -> None:
        while True:
            while not self._is_due():
                self._work.wait(self._delay_s if self._jobs else None)
            if not self._jobs:
                return
            self._run_first()
            self._room.ring()

    def _run_first(self) -> None:
        """A job that fails is the last one run; those behind it are dropped, and the failure is kept."""
        try:
            if self.failure is None and not self._is_cancelled:
                self._jobs[0][0]()
        except BaseException as error:  # noqa: BLE001 - kept, and raised to the caller by check()
            self.failure = error
        self._jobs.popleft()
