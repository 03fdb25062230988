"""Pages of a memory mapping: fault them in before they are needed, give them back after.

Every function here is advice: where the system cannot follow it, nothing happens.
"""

from __future__ import annotations

from warpdata.bytekit.process import system
from warpdata.bytekit.process.system import PAGE_BYTES


def populate(address: int, length: int) -> bool:
    """Fault in every page of [address, address + length); False if the system cannot or the file ends."""
    start = address // PAGE_BYTES * PAGE_BYTES
    return system.populate_to_read(start, address + length - start)


def release(address: int, length: int) -> bool:
    """Drop the whole pages inside [address, address + length) from this process; they stay in the cache."""
    start = -(-address // PAGE_BYTES) * PAGE_BYTES
    end = (address + length) // PAGE_BYTES * PAGE_BYTES
    return system.release_pages(start, end - start)


def fits_free_memory(size_bytes: int) -> bool:
    """True if the system could hand out so much memory without swapping, or if it is unknown."""
    if size_bytes <= system.free_bytes():
        return True  # the quick answer
    available = system.available_bytes()
    return available is None or size_bytes <= available
