"""Calls of the system that fail once: for writers that go on after an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CALLS = (
    "fsync",
    "fdatasync",
    "rename",
    "replace",
    "write",
    "pwrite",
    "pwritev",
    "ftruncate",
    "open",
    "unlink",
)
"""What writers of files ask of the system."""


@contextmanager
def failing(name: str, number: int, code: int = errno.ENOSPC) -> Iterator[list[int]]:
    """Let the call with this number fail; says how many there were."""
    real, count = getattr(os, name), [0]

    def call(*args: object, **options: object) -> object:
        count[0] += 1
        if count[0] == number:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, call)
        yield count
