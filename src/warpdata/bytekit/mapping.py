"""Writable windows of a file: preallocated, mapped, and optionally faulted in ahead of use."""

from __future__ import annotations

import ctypes
import mmap
import os

PAGE_BYTES = mmap.ALLOCATIONGRANULARITY

_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MS_SYNC = 4


def map_window(fd: int, start: int, size_bytes: int) -> mmap.mmap:
    """Allocate and map [start, start + size) of a file; a full disk is an OSError here, no fault later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, size_bytes)
    elif os.fstat(fd).st_size < start + size_bytes:
        os.ftruncate(fd, start + size_bytes)
    return mmap.mmap(fd, size_bytes, offset=start)


def prefault(window: mmap.mmap) -> None:
    """Bring the pages of a writable window into memory now, so that filling it costs only the copy."""
    anchor = ctypes.c_char.from_buffer(window)
    # ctypes gives up the interpreter lock during the call, which mmap.madvise does not;
    # a kernel that does not know the advice refuses it, and pages then come one by one.
    _libc.madvise(ctypes.addressof(anchor), len(window), _MADV_POPULATE_WRITE)
    del anchor


def sync_range(fd: int, start: int, end: int) -> None:
    """Bring the bytes [start, end) of a file to the disk, whatever mapping they were written through."""
    # Syncing the whole file would write and protect pages mapped ahead, which then fault again one by one;
    # a range can only be named through a mapping, which costs nothing as long as nobody touches it.
    first = start // PAGE_BYTES * PAGE_BYTES
    with mmap.mmap(fd, end - first, offset=first) as window:
        anchor = ctypes.c_char.from_buffer(window)
        failed = _libc.msync(ctypes.addressof(anchor), end - first, _MS_SYNC)
        code = ctypes.get_errno()
        del anchor
    if failed:
        raise OSError(code, os.strerror(code))
