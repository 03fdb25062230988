"""Waking a thread without a lock that Ctrl-C could leave held."""

from __future__ import annotations

import contextlib
import threading


class Wakeup:
    """Set by anybody, waited for by a thread; a wakeup that nobody waits for ends the next wait at once.

    Events and conditions of the standard library are Python code: KeyboardInterrupt inside them can leave their
    lock held for ever. This is one lock of the interpreter, which is taken and given whole.
    """

    __slots__ = ("_asleep",)

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake one thread that waits, or let the next wait return at once."""
        with contextlib.suppress(RuntimeError):  # set already, and not noticed yet
            self._asleep.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether somebody set it before the time was over."""
        return self._asleep.acquire(timeout=-1 if timeout_s is None else timeout_s)
