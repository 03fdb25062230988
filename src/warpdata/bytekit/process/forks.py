"""What a forked child inherits. The one place that knows about forks: whoever holds what a child must not use is
told in the child, before anything else runs there.

A reader begins anew with what it needs, so it works in the child. A writer lets go, so it refuses there: what it writes
stays with the process that began it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Protocol


class Inherited(Protocol):
    """Something that holds threads, locks between threads, connections, decoders or files open for writing."""

    def in_child(self) -> None:
        """Renew it, or let go of it, without waiting for a lock: whoever held one has stayed behind."""


_told: weakref.WeakSet[Inherited] = weakref.WeakSet()
_generation = 0
_forking = threading.RLock()
_PAUSE_S, _PAUSES = 0.001, 2_000


def tell_in_child(thing: Inherited) -> None:
    """Call `thing.in_child()` in every child that is forked from now on, as long as `thing` lives."""
    _told.add(thing)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """No child is forked meanwhile: what is opened here is told of before a child can have it unknown to us."""
    with _forking:
        yield


def generation() -> int:
    """How many forks lie between the first process and this one: what was noted in a parent differs in its children."""
    return _generation


def process_id() -> int:
    """The number of this process, to be named in files; to tell processes apart there is `generation`."""
    return os.getpid()


def _tell_all() -> None:
    global _generation
    _generation += 1
    for thing in list(_told):
        # One that fails is used by nobody yet; the others must be told all the same.
        with contextlib.suppress(Exception):
            thing.in_child()


def _in_child() -> None:
    _forking.release()
    _tell_all()


def _before() -> None:
    """Let imports of other threads end: a child has their locks, and nobody who would let go of them.

    A thread that imports may itself wait for what the forking one holds, so not for ever.
    """
    for _ in range(_PAUSES):
        _forking.acquire()
        if not _is_importing_elsewhere():
            return
        _forking.release()
        time.sleep(_PAUSE_S)
    _forking.acquire()


def _is_importing_elsewhere() -> bool:
    """Whether another thread is in the middle of an import; Python has no public word for it."""
    references = list(getattr(importlib._bootstrap, "_module_locks", {}).values())
    owners = {getattr(reference(), "owner", None) for reference in references}
    return bool(owners - {None, threading.get_ident()})


os.register_at_fork(before=_before, after_in_parent=_forking.release, after_in_child=_in_child)


class OwnProcess:
    """Whether this process is the one that made this, and not a child of it."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = _generation

    def __bool__(self) -> bool:
        return self._made == _generation

    def __reduce__(self) -> tuple[Any, ...]:
        return (OwnProcess, ())
