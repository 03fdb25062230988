"""Locks: of files between processes, and of byte ranges between open files.

A lock of a file dies with its process, and is not inherited by children. It is looked up by name: if the
file was deleted or replaced meanwhile, the file that has the name now is locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.files import check_regular
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import block_forks, run_in_child
from warpdata.errors import BlobNotFoundError, NoLocksError, UnavailableError

_BUSY = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NOT_OF_THIS = (*_NO_LOCKS, errno.EBADF)
"""The last is the error of network file systems for a file that is not open for writing, as a folder never is."""
_NEW_FOLDER_S = 10.0
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""To open what is there, a folder too, without waiting for the other end of a pipe."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.0002, 0.01
_MAX_TURNS = 1000


class FileLock:
    """A locked file or folder: held until `release`, or until nothing in this process refers to it any more.

    `fd` is open for reading and writing, for content kept in the locked file.
    """

    def __init__(self, path: str, fd: int, *, removes: bool) -> None:
        self.path = path
        self.fd = fd
        self._removes = removes
        run_in_child(self.let_go)  # the lock dies with the process that took it, and not with its children

    @classmethod
    def take(
        cls,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = 0.0,
        removes: bool = False,
        mode: int = 0o666,
        make: bool = True,
    ) -> FileLock | None:
        """Lock the file of this name; None on timeout, NoLocksError where files cannot be locked.

        It is made if need be. Without `make` it may be a folder too, and BlobNotFoundError if nothing has the name.
        With `removes` the file is deleted by `release`.
        """
        name, flags = os.fspath(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC if make else _LOOK
        deadline = time.monotonic() + timeout_s
        for _ in range(_MAX_TURNS):
            with map_os_errors(path):
                try:
                    with block_forks():
                        lock = cls(name, os.open(name, flags, mode), removes=removes)
                except FileNotFoundError:
                    if make:
                        raise
                    raise BlobNotFoundError("nothing has this name, or not any more", path=path) from None
                try:
                    if make:
                        check_regular(name)
                    if not lock_open_file(lock.fd, name, timeout_s=deadline - time.monotonic()):
                        lock.let_go()
                        return None
                    if _has_name(lock.fd, name):
                        return lock
                except BaseException:
                    lock.let_go()
                    raise
            lock.let_go()
        raise UnavailableError("this lock keeps changing hands", path=name)

    def release(self) -> None:
        """Give the lock back."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        # Deleted while it is still locked: a waiting process then finds that it has lost its name.
        if self._removes and _has_name(fd, self.path):
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # What nothing can release any more must not stay locked. At the end of the interpreter `os` may be gone.
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    def let_go(self) -> None:
        """Close the file and leave it where it is."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def hold_lock(path: str | os.PathLike[str], *, timeout_s: float) -> Iterator[FileLock]:
    """Hold the lock of a file for a moment; UnavailableError on timeout."""
    lock = FileLock.take(path, timeout_s=timeout_s)
    if lock is None:
        hint = "Look for a stopped process that writes here, and end it."
        raise UnavailableError("timed out waiting for the lock of another process", path=path, hint=hint)
    with lock:
        yield lock


def make_locked_folder(path: str | os.PathLike[str]) -> FileLock | None:
    """Make a folder and lock it before anything is in it; FileExistsError if it is there.

    None where folders cannot be locked.
    """
    for _ in range(_MAX_TURNS):
        os.mkdir(path)
        try:
            # A process that checks the lock holds it for a moment itself.
            lock = FileLock.take(path, timeout_s=_NEW_FOLDER_S, make=False)
        except BlobNotFoundError:
            continue  # another process took it for a leftover and removed it
        except NoLocksError:
            return None
        if lock is not None:
            return lock
        break
    raise UnavailableError("another process took the folder as it was made", path=path)


def lock_open_file(fd: int, path: str | os.PathLike[str], *, timeout_s: float = 0.0) -> bool:
    """Lock a file that is open; False if it is held elsewhere, NoLocksError where files cannot be locked."""
    try:
        return _waited(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), timeout_s)
    except OSError as error:
        if error.errno in _NOT_OF_THIS:
            raise NoLocksError(
                "this file system has no locks, so nothing keeps two writers apart", path=path
            ) from None
        raise


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a running process holds the lock of a file; where it is not, or cannot be locked, none does."""
    try:
        fd = os.open(path, _LOOK)
    except FileNotFoundError:
        return False
    try:
        return not _waited(lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB), 0.0)
    except OSError as error:
        if error.errno in _NOT_OF_THIS:
            return False
        raise
    finally:
        os.close(fd)


def lock_range(fd: int, start: int, size_bytes: int, *, shared: bool = False, timeout_s: float = 0.0) -> bool:
    """Lock bytes of an open file; False on timeout.

    This is for caches: where files cannot be locked, everybody goes on as if alone.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        return _waited(lambda: system.set_range_lock(fd, kind, start, size_bytes), timeout_s)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return True
        raise


def unlock_range(fd: int, start: int, size_bytes: int) -> None:
    """Give the lock back."""
    try:
        system.set_range_lock(fd, fcntl.LOCK_UN, start, size_bytes)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _waited(lock: Callable[[], None], timeout_s: float) -> bool:
    """Try until it is free; False when it is not within the timeout."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            lock()
        except OSError as error:
            if error.errno not in _BUSY:
                raise
        else:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _has_name(fd: int, path: str) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
