"""Every number of a manifest, and of the guide of a table: page checksums and file tails of all shards."""

from __future__ import annotations

import struct
from typing import NamedTuple

MAX_MANIFEST_BYTES = 64 << 20
MAX_POINTER_BYTES = 64 << 10
MAX_TABLES = 10_000
MAX_SHARDS = 1_000_000
MAX_INTEGER = (1 << 53) - 1
"""Canonical JSON numbers are exact up to here."""

MAX_NOTE_LEVELS = 100
"""Lists and objects inside one another in a note; readers have a limit too, of their own."""

MAX_INDEXES = 64
"""Member indexes of one artifact; a publisher merges small ones, so there are few."""

FLAT_SHARDS = 256
"""A list of at most so many shards is in the manifest itself."""

PART_MIN_ENTRIES = 32
PART_MAX_ENTRIES = 512
PART_CUT_ONE_IN = 96
"""Behind the least number of entries, a part ends at one in so many, chosen by their content."""

MAX_PART_BYTES = 4 << 20
MAX_PART_LEVEL = 12

GUIDE_MAGIC = b"WGUIDE01"
GUIDE_PAGE_BYTES = 64 << 10
MAX_TAIL_BYTES = 256 << 20
GUIDE_AT_ONCE_BYTES = 4 << 20


class GuideHeader(NamedTuple):
    """The first record of a guide."""

    magic: bytes
    page_bytes: int
    directory_crc32c: int
    shard_count: int
    file_bytes: int


class GuideEntry(NamedTuple):
    """The places of the page sums and the tail of one shard in the guide."""

    sums_offset: int
    page_count: int
    tail_offset: int
    tail_bytes: int
    sums_crc32c: int
    tail_crc32c: int


GUIDE_HEADER = struct.Struct("<8sIIQQ")
GUIDE_ENTRY = struct.Struct("<QQQQII")
