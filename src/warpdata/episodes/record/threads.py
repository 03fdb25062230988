"""The threads of one recording: a helper, a syncer, and no more encoders than cores; jobs wait for them in order."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from warpdata.bytekit.process.system import give_way, usable_cores
from warpdata.bytekit.process.threads import start_thread
from warpdata.errors import StoreError, WarpError, WriterClosedError, nearest
from warpdata.formats.journal.writer import JournalWriter

Job = Callable[[], None]

STATUS_S = 0.5
"""Period of the status report."""
VIDEO_S = 1.0
"""Least period at which encoded frames are synced."""

_LOOK_AGAIN_S = 0.05
"""Several callers may wait for room and one is woken: the others look by themselves."""

_KEPT = "What was recorded so far is kept: end the recording, see to the disk, then run `warp salvage` on it."
_UNBOUNDED = 1 << 30
_ALMOST = 0.99
"""A wait may end a little early."""

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold back the first Ctrl-C until the block is done; a second one passes at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # Python hands signals to the main thread only
        return
    pending: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pending.append(number)
        if len(pending) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pending:
            handler(pending[0], None)


class Wakeup:
    """Set by any thread, waited for by one; if no thread waits, the next wait ends at once.

    Events and conditions of the standard library are Python code: KeyboardInterrupt inside them can leave their
    lock held for ever. This is one lock of the interpreter, which is taken and released as a whole.
    """

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake one thread that waits, or make the next wait return at once."""
        with contextlib.suppress(RuntimeError):  # set already, and not noticed yet
            self._asleep.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was set before the timeout."""
        return self._asleep.acquire(timeout=-1 if timeout_s is None else timeout_s)


@dataclass(frozen=True, slots=True)
class Durability:
    """What power loss may take: the last period, no record, or everything the kernel has not written."""

    every_record: bool = False
    period_s: float | None = None

    @property
    def video_period_s(self) -> float:
        """How often encoded frames are brought to the disk: a sync takes long, and every one writes a page again."""
        if self.every_record:
            return 0.0
        return math.inf if self.period_s is None else max(self.period_s, VIDEO_S)

    @classmethod
    def parse(cls, text: str) -> Durability:
        """From `"record"`, `"none"`, or a period such as `"100ms"` or `"2s"`."""
        if text in ("record", "none"):
            return cls(every_record=text == "record")
        match = _PERIOD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"durability is 'none', 'record' or a period like '100ms', not {text!r}."
                + nearest(str(text), ("none", "record", "100ms"))
            )
        return cls(period_s=float(match[1]) * (0.001 if match[2] == "ms" else 1.0))


class RecordingThreads:
    """All threads of a recording, however many signals, journals and cameras it has.

    One helper writes tables and prepares journals, one syncer brings journals to the disk (if they are to be synced
    at times) and writes the status of the recording, and as many encoders as there are cameras, but never more than
    cores.
    """

    def __init__(self, durability: Durability, report: Job | None = None) -> None:
        """`report` is called twice a second while the recording runs."""
        self.failure: BaseException | None = None
        """An error in the background that concerns the whole recording: raised by the next append."""
        self._synced: dict[JournalWriter, None] = {}
        self._period_s = durability.period_s
        self._ended = Wakeup()
        self._helper = Workers("warp-record-helper", 1)
        self._encoders = Workers("warp-record-encoder", usable_cores(), give_way)
        self.chores = self._helper.queue(_UNBOUNDED, on_failure=self.fail)
        """Short jobs that cannot wait, in order; served first, because windows must be there before they are needed."""
        self.chores.is_urgent = True
        self._helper.start()
        self._syncer: threading.Thread | None = None
        self._report = report
        if self._period_s is not None or report is not None:
            self._syncer = start_thread(self._sync, "warp-record-syncer")

    def table_jobs(self, limit: int, delay_s: float) -> JobQueue:
        """A queue of jobs that write tables; a burst of records is over, or `delay_s` have passed, when they run."""
        return self._helper.queue(limit, delay_s=delay_s, on_failure=self.fail)

    def camera_jobs(self) -> JobQueue:
        """A queue of jobs of one camera, which limits them itself; an error in it concerns that camera only."""
        queue = self._encoders.queue(_UNBOUNDED)
        self.chores.submit(self._encoders.start)  # starting a thread takes a while on a busy machine
        return queue

    def add_journal(self, journal: JournalWriter) -> None:
        """Keep windows of a journal ready, and sync it at times."""

        def prepare() -> None:
            # A disk too full for the next window is no error yet: the recorder meets it when it gets there.
            with contextlib.suppress(OSError):
                journal.prepare()

        self._synced[journal] = None
        journal.on_advance = lambda: self.chores.submit(prepare)
        journal.on_advance()

    def remove_journal(self, journal: JournalWriter) -> None:
        """Stop preparing and syncing a journal; a thread that works on it now holds its lock."""
        journal.on_advance = None
        self._synced.pop(journal, None)

    def fail(self, error: BaseException) -> None:
        """Refuse every later record because of this error; the first one counts."""
        if self.failure is None:
            self.failure = error

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self.failure is not None:
            raise_again(self.failure)

    def end(self) -> None:
        """Begin nothing new: the threads end meanwhile, once they have done what is queued."""
        self._ended.set()
        self._helper.end()
        self._encoders.end()

    def close(self) -> None:
        """End all threads; what is queued is finished first, unless its queue was cancelled."""
        self.end()
        if self._syncer is not None:
            self._syncer.join()
        self._helper.close()
        self._encoders.close()

    def _sync(self) -> None:
        jobs = [] if self._report is None else [(STATUS_S, self._report)]
        if self._period_s is not None:
            jobs.append((self._period_s, self._sync_journals))
        done = dict.fromkeys(jobs, time.monotonic())
        while not self._ended.wait(min(period_s for period_s, _ in jobs)):
            for period_s, job in jobs:
                now = time.monotonic()
                if now - done[period_s, job] >= period_s * _ALMOST:
                    done[period_s, job] = now
                    try:
                        job()
                    except StoreError as error:
                        self.fail(error)
                        return

    def _sync_journals(self) -> None:
        for journal in tuple(self._synced):
            journal.sync()


class Workers:
    """Threads that serve queues: the jobs of one queue run in order, those of several at the same time."""

    def __init__(self, name: str, most: int, begin: Job | None = None) -> None:
        """`begin` is called by every thread first."""
        self._name = name
        self._most = most
        self._begin = begin
        self._queues: list[JobQueue] = []
        self._threads: list[threading.Thread] = []
        self._claiming = threading.Lock()
        """Only taken by these threads, which no signal handler interrupts."""
        self._wakeup = Wakeup()
        self._is_closing = False

    def queue(
        self, limit: int, *, delay_s: float = 0.0, on_failure: Callable[[BaseException], None] | None = None
    ) -> JobQueue:
        """Another queue for these threads."""
        queue = JobQueue(self._wakeup, self.start, limit, delay_s, on_failure)
        self._queues.append(queue)
        return queue

    def start(self) -> None:
        """Start another thread if there are fewer than queues and than `most`."""
        if len(self._threads) < min(self._most, len(self._queues)):
            self._threads.append(start_thread(self._run, self._name))

    def end(self) -> None:
        """Take no more jobs: the threads run what is queued and end."""
        for queue in self._queues:
            queue.stop()
        self._is_closing = True
        self._wakeup.set()

    def close(self) -> None:
        """Run what is queued and end the threads."""
        self.end()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        if self._begin is not None:
            self._begin()
        while True:
            with self._claiming:
                queue, wait_s = self._claim()
            if queue is not None:
                if len(self._threads) > 1:
                    self._wakeup.set()  # there may be work for another one
                queue.run_first()
                queue.is_taken = False
            elif self._is_closing and not any(queue.jobs for queue in self._queues):
                self._wakeup.set()  # for the next thread
                return
            else:
                self._wakeup.wait(wait_s)

    def _claim(self) -> tuple[JobQueue | None, float | None]:
        """The queue whose job is due for longest, else how long to wait at most."""
        now, first, soonest = time.monotonic(), None, None
        for queue in tuple(self._queues):
            due_s = None if queue.is_taken else queue.due_in_s(now)
            if due_s is not None and (soonest is None or due_s < soonest):
                first, soonest = queue, due_s
            if due_s is not None and due_s <= 0 and queue.is_urgent:
                first, soonest = queue, due_s
                break
        if first is None or soonest is None or soonest > 0:
            return None, soonest
        first.is_taken = True
        return first, None


class JobQueue:
    """Jobs in order and a limit: a caller that is faster than the threads waits, and the wait is counted.

    A job is queued by one operation of the interpreter, so Ctrl-C leaves it queued or not, never in between.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        start: Callable[[], None],
        limit: int,
        delay_s: float,
        on_failure: Callable[[BaseException], None] | None,
    ) -> None:
        self.failure: BaseException | None = None
        self.blocked = 0
        """How often a caller had to wait."""
        self.blocked_ns = 0
        self.on_wait: Callable[[float], None] | None = None
        """Called with the seconds that a caller waited, by that caller."""
        self.is_taken = False
        """Whether a thread is running the first job."""
        self.is_urgent = False
        """Whether its jobs come before those of all other queues."""
        self.jobs: deque[tuple[Job, float]] = deque()
        """The first one may be running; it leaves when it is done."""
        self.limit = limit
        """How many jobs may wait, the running one included."""
        self._wakeup = wakeup
        self._start = start
        """Callers that wait start a thread if there is none: what was to start one may have failed."""
        self._delay_s = delay_s
        self._on_failure = on_failure
        self._room, self._empty = Wakeup(), Wakeup()
        self._closing = False
        self._is_cancelled = False

    def submit(self, job: Job) -> None:
        """Queue a job; blocks while the queue is full. A failed job fails every later call."""
        self.wait_until(lambda: len(self.jobs) < self.limit)
        if self._closing:
            raise WriterClosedError("the writer is closed")
        self.jobs.append((job, time.monotonic()))
        self._wakeup.set()

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Whether it became ready before the timeout, looked at after every job; raises what went wrong in a job."""
        ready = is_ready()
        if not ready:
            start = now = time.monotonic()
            self.blocked += timeout_s > 0
            self._start()
            while not (ready := is_ready()) and self.failure is None and not self._closing:
                if (left_s := start + timeout_s - now) <= 0:
                    break
                self._room.wait(min(_LOOK_AGAIN_S, left_s))
                now = time.monotonic()
            self.blocked_ns += int((now - start) * 1e9)
            if self.on_wait is not None and now > start:
                self.on_wait(now - start)
        self.check()
        return ready

    def check(self) -> None:
        """Raise what went wrong in a job, if anything did."""
        if self.failure is not None:
            raise_again(self.failure)

    def settle(self) -> None:
        """Wait until everything queued so far was run, and raise what went wrong."""
        self._wait_until_empty()
        self.check()

    def finish(self) -> None:
        """Run everything queued, take no more, and raise what went wrong."""
        self.stop()
        self.settle()

    def cancel(self) -> None:
        """Drop what is queued, and wait for the job that is running."""
        self._is_cancelled = True
        self.stop()
        self._wait_until_empty()

    def stop(self) -> None:
        """Take no more jobs."""
        self._closing = True
        if self.jobs:  # they are due now
            self._wakeup.set()

    def due_in_s(self, now: float) -> float | None:
        """When the first job may run: a burst is left alone until it is over or the queue is half full."""
        if not self.jobs:
            return None
        due_s = self.jobs[0][1] + self._delay_s - now
        if self._closing or self._is_cancelled or len(self.jobs) * 2 >= self.limit:
            return min(due_s, 0.0)
        return due_s

    def run_first(self) -> None:
        """A job that fails is the last one run; those after it are dropped, and the failure is kept."""
        try:
            if self.failure is None and not self._is_cancelled:
                self.jobs[0][0]()
        except BaseException as error:  # noqa: BLE001 - kept, and raised to the caller by check()
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)
        self.jobs.popleft()
        self._room.set()
        if not self.jobs:
            self._empty.set()

    def _wait_until_empty(self) -> None:
        if not self.jobs:
            return
        self._wakeup.set()
        self._start()
        while self.jobs:
            self._empty.wait(_LOOK_AGAIN_S)


def raise_again(failure: BaseException) -> None:
    """Raise what went wrong in another thread, with that as its cause."""
    if isinstance(failure, WarpError):
        hint = f"{failure.hint} {_KEPT}".strip() if isinstance(failure, StoreError) else failure.hint
        raise type(failure)(failure.message, hint=hint) from failure
    raise failure
