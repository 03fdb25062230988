"""Locks on byte ranges that belong to an open file and die with its process."""

from __future__ import annotations

import errno
import fcntl
import time

from warpdata.stores.layout import pack_flock

_BUSY = (errno.EAGAIN, errno.EACCES)


def try_lock(fd: int, start: int, length: int, *, shared: bool = False) -> bool:
    """Take the lock if nobody else holds any of the range."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, pack_flock(kind, start, length))
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def wait_lock(fd: int, start: int, length: int, timeout_s: float) -> bool:
    """Take the lock, waiting for those who hold it; False when they hold it for longer than the timeout."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0005
    while not try_lock(fd, start, length):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)
    return True


def lock(fd: int, start: int, length: int, *, shared: bool = False) -> None:
    """Take the lock, however long it takes."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, pack_flock(kind, start, length))


def unlock(fd: int, start: int, length: int) -> None:
    """Give the lock back."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, pack_flock(fcntl.F_UNLCK, start, length))
