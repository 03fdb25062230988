"""Descriptors of files that are read by position: few stay open, however many files are in use.

The system gives the lowest number that is free. So a descriptor with a low number says that few files are open, and
such a file is left alone; those with higher numbers are looked after.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import PerProcess

MOST_OPEN = 512
SHARE_OF_ALLOWED = 3, 8
"""How much they may take of what the system allows: decoders, caches and the user's own files need the rest."""


class ClosedAndOpened(Protocol):
    """A file that can do without its descriptor until it is read again."""

    def let_go(self) -> None:
        """Close the descriptor."""


Claim = list["weakref.ref[ClosedAndOpened]"]
"""Whoever takes the one thing in it closes the descriptor: the file, or whoever needs room.

A file whose last user has gone may still be found through its reference while it closes what it has.
"""


class OpenFiles:
    """Which files with higher numbers are open; beyond the most that may be, those opened first are closed."""

    def __init__(self, most_open: int | None = None, low: int | None = None) -> None:
        part, whole = SHARE_OF_ALLOWED
        half = min(MOST_OPEN, system.allowed_descriptors() * part // whole) // 2
        self.low = half if low is None else low
        """Descriptors below this number need not be added."""
        self.most_open = half if most_open is None else most_open
        self._lock = PerProcess(threading.RLock)
        self._files: dict[int, Claim] = {}

    @property
    def lock(self) -> threading.RLock:
        """The lock of this process; the files are open in forked children too."""
        return self._lock()

    def add(self, fd: int, file: ClosedAndOpened) -> Claim:
        """Say that a file was opened."""
        claim = self._files[fd] = [weakref.ref(file)]
        if len(self._files) > self.most_open:
            self._close_surplus(claim)
        return claim

    def take_back(self, fd: int, claim: Claim) -> bool:
        """Whether the descriptor is the file's to close; if not, somebody who needs room closes it now or did."""
        try:
            claim.pop()
        except IndexError:
            return False
        self._files.pop(fd, None)
        return True

    def _close_surplus(self, newest: Claim) -> None:
        with self.lock:
            for fd in list(self._files)[: len(self._files) - self.most_open]:
                claim = self._files.pop(fd, None)
                if claim is newest:  # another thread was quicker to make room for it
                    self._files[fd] = claim
                elif claim:
                    self._close(claim)

    def _close(self, claim: Claim) -> None:
        try:
            file = claim.pop()()
        except IndexError:
            return
        if file is not None:
            file.let_go()
