"""What must stay with its process: a forked child inherits open writers, and must never touch their files."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """Something open for writing that a fork would duplicate."""

    def disown(self) -> None:
        """In a child: refuse everything from now on, without waiting for a lock."""


_OPEN: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def stays_with_its_process(thing: Inheritable) -> None:
    """Have `disown` called in every child that is forked from now on."""
    _OPEN.add(thing)


def _disown_all() -> None:
    for thing in list(_OPEN):
        thing.disown()
    _OPEN.clear()


os.register_at_fork(after_in_child=_disown_all)
