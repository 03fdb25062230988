"""Writable windows of a file: preallocated, mapped, and optionally faulted in ahead of use."""

from __future__ import annotations

import mmap

from warpdata.bytekit import system

PAGE_BYTES = mmap.ALLOCATIONGRANULARITY


def map_window(fd: int, start: int, size_bytes: int) -> mmap.mmap:
    """Allocate and map [start, start + size) of a file; a full disk is an OSError here, no fault later."""
    system.allocate(fd, start, size_bytes)
    return mmap.mmap(fd, size_bytes, offset=start)


def prefault(window: mmap.mmap) -> None:
    """Bring the pages of a writable window into memory now, so that filling it costs only the copy."""
    system.populate_to_write(window)


def sync_range(fd: int, start: int, end: int) -> None:
    """Bring the bytes [start, end) of a file to the disk, whatever mapping they were written through."""
    # Syncing the whole file would write and protect pages mapped ahead, which then fault again one by one;
    # a range can only be named through a mapping, which costs nothing as long as nobody touches it.
    first = start // PAGE_BYTES * PAGE_BYTES
    with mmap.mmap(fd, end - first, offset=first) as window:
        system.sync_mapped(window, fd)
