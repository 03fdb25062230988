"""Every number of a manifest, and the guide of a table: page checksums and file tails of all shards."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BadMagicError, ChecksumError, CorruptLayoutError, LimitExceededError

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
_READ_AT_ONCE_BYTES = 4 << 20


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


def directory_end(shard_count: int) -> int:
    """Where the sections of a guide of so many shards begin."""
    return GUIDE_HEADER.size + shard_count * GUIDE_ENTRY.size


@dataclass(frozen=True, slots=True)
class ShardGuide:
    """What is known of one shard before any of it is read."""

    page_sums: NDArray[np.uint32]
    tail: bytes


def pack_guide(shards: Sequence[ShardGuide]) -> bytes:
    """The bytes of a guide."""
    sections, entries = [], []
    position = directory_end(len(shards))
    for shard in shards:
        sums = shard.page_sums.astype("<u4").tobytes()
        places = (position, len(shard.page_sums), position + len(sums), len(shard.tail))
        entries.append(GuideEntry(*places, crc32c(sums), crc32c(shard.tail)))
        sections += [sums, shard.tail]
        position += len(sums) + len(shard.tail)
    directory = b"".join(GUIDE_ENTRY.pack(*entry) for entry in entries)
    header = GuideHeader(GUIDE_MAGIC, GUIDE_PAGE_BYTES, crc32c(directory), len(shards), position)
    return GUIDE_HEADER.pack(*header) + directory + b"".join(sections)


class Guide:
    """A guide being read: small ones at once, large ones shard by shard."""

    def __init__(self, reader: RangeReader, shard_count: int) -> None:
        self._reader = reader
        end = reader.size if reader.size <= _READ_AT_ONCE_BYTES else directory_end(shard_count)
        self._head = reader.read(0, min(end, reader.size))
        self._entries = _directory(self._head, reader, shard_count)

    def shard(self, number: int) -> ShardGuide:
        """What is known of shard `number`."""
        entry = self._entries[number]
        sums, tail = self._sections(entry)
        if crc32c(sums) != entry.sums_crc32c or crc32c(tail) != entry.tail_crc32c:
            raise ChecksumError(f"the guide to shard {number} is damaged", path=self._reader.name)
        return ShardGuide(np.frombuffer(sums, "<u4"), bytes(tail))

    def _sections(self, entry: GuideEntry) -> tuple[memoryview, memoryview]:
        sums_end = entry.sums_offset + 4 * entry.page_count
        tail_end = entry.tail_offset + entry.tail_bytes
        if tail_end <= self._head.nbytes:
            return self._head[entry.sums_offset : sums_end], self._head[entry.tail_offset : tail_end]
        both = self._reader.read(entry.sums_offset, tail_end)
        return both[: sums_end - entry.sums_offset], both[entry.tail_offset - entry.sums_offset :]


def _directory(head: memoryview, reader: RangeReader, shard_count: int) -> list[GuideEntry]:
    end = directory_end(shard_count)
    if head.nbytes < end:
        raise CorruptLayoutError("the guide is too short for its shards", path=reader.name)
    header = GuideHeader(*GUIDE_HEADER.unpack(head[: GUIDE_HEADER.size]))
    if header.magic != GUIDE_MAGIC:
        raise BadMagicError("not a guide", path=reader.name)
    good = (GUIDE_PAGE_BYTES, shard_count, reader.size)
    if (header.page_bytes, header.shard_count, header.file_bytes) != good:
        raise CorruptLayoutError("the guide does not fit its table", path=reader.name)
    directory = bytes(head[GUIDE_HEADER.size : end])
    if crc32c(directory) != header.directory_crc32c:
        raise ChecksumError("the directory of the guide is damaged", path=reader.name)
    entries = [GuideEntry(*fields) for fields in GUIDE_ENTRY.iter_unpack(directory)]
    _check_places(entries, end, reader)
    return entries


def _check_places(entries: list[GuideEntry], start: int, reader: RangeReader) -> None:
    """Sections follow each other without holes and overlaps, and end where the guide ends."""
    position = start
    for entry in entries:
        if entry.tail_bytes > MAX_TAIL_BYTES:
            raise LimitExceededError("a tail in the guide is too large", path=reader.name)
        if entry.sums_offset != position or entry.tail_offset != position + 4 * entry.page_count:
            raise CorruptLayoutError("the sections of the guide are out of place", path=reader.name)
        position = entry.tail_offset + entry.tail_bytes
    if position != reader.size:
        raise CorruptLayoutError("the guide does not end where its sections do", path=reader.name)
