"""Processes that share a store of a simulated world: every request is one step, and somebody decides who is next.

The real code runs, each process in a thread of its own that only goes on when it is told to. Time is the world's,
and only there; a crash is an exception at a step, after which the process can ask for nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.memory_store import MemoryStore
from tests.waiting import LIMIT_S
from warpdata.errors import UnavailableError

OVERDUE_S = 200.0
"""Nobody stands still for longer: a collector stops after half the life of its lock, which is 450 s."""


class Crashed(BaseException):
    """The process died here."""


class LossyStore:
    """A store as one process sees it, where the answer to one of its requests is lost: it was done, and it failed."""

    def __init__(self, store: ProcessStore, lost: int) -> None:
        self._store = store
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._asked, found) if callable(found) else found

    def _asked(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        before = self._store.requests
        answer = call(*args, **options)
        if before < self._lost <= self._store.requests:
            raise UnavailableError("the answer was lost")
        return answer


class Process:
    """One process: what it runs, and whether it may go on."""

    def __init__(self, world: World, name: str, run: Callable[[ProcessStore], Any]) -> None:
        self.name = name
        self.world = world
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_dead = False
        self.waits_since_s = world.now_s
        self.steps = 0
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[ProcessStore], Any]) -> None:
        self._go.acquire()
        try:
            self.result = run(ProcessStore(self))
        except BaseException as error:  # noqa: BLE001 - a crash included: the world wants to know
            self.error = error
        self.is_done = True
        self.world.turn.release()

    def step(self) -> None:
        """Called by the process before each request: wait until it is its turn again."""
        if self.is_dead:
            raise Crashed
        self.world.turn.release()
        self._go.acquire()
        if self.is_dead:
            raise Crashed
        self.steps += 1

    def go_on(self) -> None:
        """Let the process run up to its next request."""
        self.world.running = self
        self._go.release()
        assert self.world.turn.acquire(timeout=LIMIT_S), f"{self.name} hangs"
        self.waits_since_s = self.world.now_s

    def crash(self) -> None:
        """Kill it where it stands."""
        self.is_dead = True
        self.go_on()


class ProcessStore:
    """The store as one process sees it; threads of that process ask one after the other."""

    def __init__(self, process: Process) -> None:
        self._one = threading.Lock()
        self._process = process
        self._inner = process.world.store
        self.address = self._inner.address
        self.is_local = False

    @property
    def requests(self) -> int:
        """How many were made."""
        return self._process.steps

    def list(self, prefix: str) -> Iterator[Any]:
        return self._stepped(self._inner.list, prefix)

    def put_stream(self, key: str, chunks: Callable[[], Iterator[Any]], size: int) -> None:
        self._stepped(self._inner.put_stream, key, chunks, size)

    def put_file(self, key: str, path: Path, digest: Any) -> None:
        self._stepped(self._inner.put_file, key, path, digest)

    def delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def _stepped(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._one:
            self._process.step()
            return call(*args, **options)

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return partial(self._stepped, getattr(self._inner, name))


class World:
    """A store, a clock, and processes that take turns."""

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.now_s = 1_000_000.0
        self.store = kind("simulated", now_s=lambda: self.now_s)
        self.turn = threading.Semaphore(0)
        self.processes: list[Process] = []
        self.running: Process | None = None
        self.checks: list[Callable[[], None]] = []
        self._checked = (0, 0)
        self.least_sleep_s = 60.0
        self.removals_at_start = 0

    def start(self, name: str, run: Callable[[ProcessStore], Any]) -> Process:
        """A new process; it waits for its first turn."""
        process = Process(self, name, run)
        self.processes.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        """What sleeping is in this world: time passes, `least_sleep_s` at least, and others may go on."""
        self.now_s += max(seconds, self.least_sleep_s)
        assert self.running is not None
        self.running.step()

    @property
    def alive(self) -> list[Process]:
        """Processes that are not through."""
        return [process for process in self.processes if not process.is_done]

    def let(self, process: Process, *, crash: bool = False) -> None:
        """One step of a process, or its end; where it changed the store, what must always hold is looked at."""
        if crash:
            process.crash()
        else:
            process.go_on()
        state = (self.store._writes, len(self.store._blobs))
        if state != self._checked:
            for check in self.checks:
                check()
        self._checked = state

    def overdue(self) -> Process | None:
        """Whoever must go on before more time passes."""
        waiting = [p for p in self.alive if self.now_s - p.waits_since_s > OVERDUE_S]
        return min(waiting, key=lambda p: p.waits_since_s, default=None)

    def finish(self, order: Sequence[Process] = ()) -> None:
        """Run what is left, one process after the other, unless somebody must go on."""
        for process in [*order, *self.processes]:
            while not process.is_done:
                self.let(self.overdue() or process)
