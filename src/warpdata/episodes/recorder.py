"""Keeps a journal ahead of its recorder: windows ready before they are needed, bytes on disk soon after."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.forks import process_id
from warpdata.episodes.bell import Bell
from warpdata.errors import StoreError
from warpdata.formats.journal.writer import JournalWriter

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Durability:
    """How much of a recording power loss may take: a period, every step, or whatever the kernel decides."""

    every_step: bool = False
    period_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Durability:
        """From `"step"`, `"none"`, or a period such as `"100ms"` or `"2s"`."""
        if text == "step":
            return cls(every_step=True)
        if text == "none":
            return cls()
        match = _PERIOD.fullmatch(text)
        if match is None:
            raise ValueError(f"durability is 'step', 'none' or a period like '100ms', not {text!r}")
        return cls(period_s=float(match[1]) * (0.001 if match[2] == "ms" else 1.0))


def owner() -> dict[str, Any]:
    """Who is recording: written into a journal for whoever finds it."""
    return {"pid": process_id(), "host": socket.gethostname(), "started_ns": time.time_ns()}


class JournalKeeper:
    """Two threads beside a recorder: one prepares the next window, one syncs; `close()` ends both."""

    def __init__(
        self,
        journal: JournalWriter,
        durability: Durability,
        *,
        sync: Callable[[], None] | None = None,
        on_failure: Callable[[StoreError], None] | None = None,
    ) -> None:
        self._journal = journal
        self._period_s = durability.period_s
        self._sync_now = sync or (lambda: journal.sync())
        self._on_failure = on_failure
        self._is_closing = False
        self._wanted, self._ended = Bell(), Bell()
        self._wanted.ring()
        journal.on_advance = self._wanted.ring
        self.failure: StoreError | None = None
        """Why syncing stopped, if it did: the recorder raises it with the next step."""
        self._threads = [threading.Thread(target=self._prepare, name="warp-journal-window", daemon=True)]
        if self._period_s is not None:
            self._threads.append(threading.Thread(target=self._sync, name="warp-journal-sync", daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop both threads; the journal itself stays open."""
        self._journal.on_advance = None
        self._is_closing = True
        self._wanted.ring()
        self._ended.ring()
        for thread in self._threads:
            thread.join()

    def _prepare(self) -> None:
        while self._wanted.wait():
            # Only after the wait: what `close` says before it rings is then never missed.
            if self._is_closing:
                return
            # A disk too full for the next window is no error yet: the recorder meets it when it gets there.
            with contextlib.suppress(OSError):
                self._journal.prepare()

    def _sync(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self._sync_now()
            except StoreError as error:
                self.failure = error
                if self._on_failure is not None:
                    self._on_failure(error)
                return
