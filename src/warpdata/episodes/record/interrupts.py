"""Ctrl-C: it waits while files are made or finished, and threads are woken without a lock it could leave held."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold back the first Ctrl-C until the block is done; a second one is let through at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # Python hands signals to the main thread only
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(came[0], None)


def finish_despite_interrupt(finish: Callable[[], None], is_begun: Callable[[], bool]) -> None:
    """Run `finish` with Ctrl-C held back; one that comes before that can be is raised after it."""
    try:
        with interrupts_wait():
            finish()
    except KeyboardInterrupt:
        if not is_begun():
            with interrupts_wait():
                finish()
        raise


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
