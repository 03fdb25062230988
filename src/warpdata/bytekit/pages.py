"""Pages of a memory mapping: fault them in before they are needed, give them back after.

`mmap.madvise` keeps the interpreter lock while it reads the disk, so the call goes through ctypes, which does
not. Every function here is advice: where the system cannot follow it, nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

PAGE_BYTES = mmap.PAGESIZE

_MADV_DONTNEED = 4
_MADV_POPULATE_READ = 22
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
if _libc is not None:
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def populate(address: int, length: int) -> bool:
    """Fault in every page of [address, address + length); False if the system cannot or the file ends."""
    start = address // PAGE_BYTES * PAGE_BYTES
    return _advise(start, address + length - start, _MADV_POPULATE_READ)


def release(address: int, length: int) -> bool:
    """Drop the whole pages inside [address, address + length) from this process; they stay in the cache."""
    start = -(-address // PAGE_BYTES) * PAGE_BYTES
    end = (address + length) // PAGE_BYTES * PAGE_BYTES
    return _advise(start, end - start, _MADV_DONTNEED)


def _advise(start: int, length: int, advice: int) -> bool:
    if _libc is None or length <= 0:
        return False
    return int(_libc.madvise(start, length, advice)) == 0


def fits_free_memory(size_bytes: int) -> bool:
    """True if the system could hand out so much memory without swapping, or does not say."""
    if "SC_AVPHYS_PAGES" in os.sysconf_names and size_bytes <= os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES:
        return True  # free even without giving up caches: the quick answer
    available = _available_bytes()
    return available is None or size_bytes <= available


def _available_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(found[0][1]) * 1024 if found else None
