"""Locks on byte ranges that belong to an open file and die with its process, and one between threads."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time

from warpdata.stores.layout import pack_flock

_BUSY = (errno.EAGAIN, errno.EACCES)


class ThreadLock:
    """A lock between the threads of a process; a forked child finds it free, whoever held it in the parent."""

    def __init__(self, *, reentrant: bool = False) -> None:
        """`reentrant` lets the thread that holds it take it again."""
        self._reentrant = reentrant
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock() if self._reentrant else threading.Lock()

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            self._start()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


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


def wait_lock(fd: int, start: int, length: int, timeout_s: float, *, shared: bool = False) -> bool:
    """Take the lock, waiting for those who hold it; False when they hold it for longer than the timeout."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0002
    while not try_lock(fd, start, length, shared=shared):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)
    return True


def unlock(fd: int, start: int, length: int) -> None:
    """Give the lock back."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, pack_flock(fcntl.F_UNLCK, start, length))
