"""Waking a thread without a lock that Ctrl-C could leave held."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Rung by anybody, waited for by one thread; a ring that nobody waits for is heard by the next wait.

    Events and conditions of the standard library are Python code: KeyboardInterrupt inside them can leave their
    lock held for ever. This is one lock of the interpreter, which is taken and given whole.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or let the next wait return at once."""
        with contextlib.suppress(RuntimeError):  # rung already, and not heard yet
            self._silence.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the bell rang before the time was over."""
        return self._silence.acquire(timeout=-1 if timeout_s is None else timeout_s)
