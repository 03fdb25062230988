"""Ctrl-C while files are made or finished: it waits until they are whole."""

from __future__ import annotations

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
