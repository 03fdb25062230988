"""Every number of the page cache's own files."""

from __future__ import annotations

import struct
from typing import NamedTuple

PAGE_BYTES = 64 << 10
"""Ranges are fetched, checked and kept in pages of this size."""

MAP_MAGIC = b"WPGMAP01"
MAP_HEADER_BYTES = 64
MAP_ENTRY_BYTES = 8
PRESENT = 1 << 32
"""Bit of a page entry beside its CRC-32C: the page is here."""

WHOLE_OFFSET = 24
"""Where the header says that the whole blob was checked against its SHA-256."""

PAGE_LOCK_BASE = 1 << 40
PIN_LOCK_OFFSET = 1 << 39
"""Bytes far past the end of the map file that only carry locks."""


class MapHeader(NamedTuple):
    """The first bytes of a page map."""

    magic: bytes
    blob_bytes: int
    page_bytes: int
    is_whole: int


MAP_HEADER = struct.Struct("<8sQQI36x")


def page_count(blob_bytes: int) -> int:
    """How many pages a blob has."""
    return -(-blob_bytes // PAGE_BYTES)


def pack_map_header(blob_bytes: int) -> bytes:
    """The header of the map of a blob of which nothing is here yet."""
    return MAP_HEADER.pack(MAP_MAGIC, blob_bytes, PAGE_BYTES, 0)


def unpack_map_header(data: bytes) -> MapHeader | None:
    """The header, or None when this is not the map of a page cache."""
    if len(data) < MAP_HEADER_BYTES:
        return None
    header = MapHeader(*MAP_HEADER.unpack_from(data))
    return header if header.magic == MAP_MAGIC and header.page_bytes == PAGE_BYTES else None
