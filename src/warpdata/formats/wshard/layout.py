"""Every number of the SHRD container and every name of the episode convention; its header and block table.

SPEC.md explains them. Nothing here reads the data of a block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.checksum import crc32c, fnv1a64, xxh64
from warpdata.bytekit.codec import MAX_EXPANDED_BYTES as MAX_EXPANDED_BYTES
from warpdata.bytekit.codec import MAX_LARGE_RATIO as MAX_LARGE_RATIO
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


MAGIC = b"SHRD"

VERSION = 2

TABLE_OFFSET = 64

ROLE_CHUNK_LIST = 4

ROLE_EPISODE = 5

FLAG_LITTLE_ENDIAN = 0x0002

FLAG_HAS_CHECKSUMS = 0x0020

FLAG_HAS_CONTENT_TYPES = 0x0080

HEADER_FLAGS = FLAG_LITTLE_ENDIAN | FLAG_HAS_CHECKSUMS | FLAG_HAS_CONTENT_TYPES

ALIGNMENT = 64

ALIGNMENTS = (0, 16, 32, 64)

ENTRY_COMPRESSED = 0x0001

ENTRY_ZSTD = 0x0002

ENTRY_LZ4 = 0x0004

ENTRY_SEEKABLE = 0x0008

ENTRY_FLAGS = {"none": 0, "zstd": ENTRY_COMPRESSED | ENTRY_ZSTD, "lz4": ENTRY_COMPRESSED | ENTRY_LZ4}

CODEC_DEFAULTS = {0: "none", 1: "zstd", 2: "lz4"}

CONTENT_RAW = 0

CONTENT_JSON = 2

CONTENT_TEXT = 5

MARK = b"WDC1"

MARK_AT = 48

MARKED_HEADER_BYTES = 48

MAX_ENTRIES = 10_000_000

MAX_STRING_TABLE_BYTES = 100_000_000

MAX_NAME_BYTES = 4096

MAX_BLOCK_BYTES = 64 << 30

MAX_TIMES = 1 << 28

LZ4_MAX_BLOCK_BYTES = 32 << 20

STRICT_MAX_COMPRESSED_BYTES = 1 << 30

SEEKABLE_FROM_BYTES = 8 << 20

FRAME_BYTES = 64 << 10

PIECES_FROM_BYTES = 1 << 20

PIECE_BYTES = 256 << 10

MIN_COMPRESSED_BYTES = 64


class Header(NamedTuple):
    """The first 64 bytes of a shard."""

    magic: bytes
    version: int
    role: int
    flags: int
    alignment: int
    compression_default: int
    index_entry_size: int
    entry_count: int
    string_table_offset: int
    data_section_offset: int
    schema_offset: int
    total_file_size: int
    table_mark: bytes
    table_crc32c: int
    reserved: bytes


HEADER = struct.Struct("<4sBBHBBHIQQQQ4sI8s")


class Entry(NamedTuple):
    """One row of the block table."""

    name_hash: int
    name_offset: int
    name_bytes: int
    flags: int
    data_offset: int
    disk_size: int
    raw_size: int
    crc32c: int
    content_type: int
    tags: int


ENTRY = struct.Struct("<QIHHQQQIHH")

ENTRY_BYTES = ENTRY.size

PIECES_HEADER = struct.Struct("<I")

"""What stands before the checksums of an `aux/crc32c/…` block: rows per piece."""

MASK_LENGTH = struct.Struct("<I")

"""The length before each dimension of a bit mask."""

META_WSHARD = "meta/wshard"

META_EPISODE = "meta/episode"

META_CHANNELS = "meta/channels"

META_MODELS = "meta/models"

META_CHUNK_LIST = "meta/manifest"

REWARD = "reward"

DONE = "done"

TRUNCATED = "truncated"

TICKS = "time/ticks"

TIMESTAMPS_NS = "time/timestamps_ns"

EXACT = {REWARD: "aux/reward", DONE: "aux/done", TRUNCATED: "aux/truncated"}

"""Where rewards and flags are kept exactly if their own block, whose dtype is fixed, cannot hold them."""

PIECES_PREFIX = "aux/crc32c/"

SEEK_PREFIX = "aux/seek/"

AIDS = (PIECES_PREFIX, SEEK_PREFIX)

"""How the names of blocks begin that only help to read others."""

ENDS_PREFIX = "aux/ends/"

LANE_PREFIX = {
    "signal": "signal/",
    "action": "action/",
    "omen": "omen/",
    "uncert": "uncert/",
    "residual": "residual/",
}

CONTENT_TYPE_OF_MODALITY = {
    "rgb": 6,
    "depth": 1,
    "language": 5,
    "proprioception": 1,
    "audio": 7,
    "video": 8,
    "pointcloud": 1,
}

_SALVAGE_HINT = "Run `warp salvage` if a streaming recorder wrote it; otherwise restore it from another copy."


class Block(NamedTuple):
    """Offset, sizes and storage of one named block."""

    name: str
    codec: str
    is_seekable: bool
    data_offset: int
    disk_size: int
    raw_size: int
    crc32c: int
    content_type: int


_new_block: Callable[[tuple[object, ...]], Block] = partial(tuple.__new__, Block)
"""Half the time of `Block(…)`, for tables of many blocks."""


class BlockTable(NamedTuple):
    """The header of a shard and its blocks by name, in the order of the table."""

    header: Header
    blocks: dict[str, Block]
    is_checksummed: bool
    """Whether header and table carry our checksum; else only structure and name hashes were checked."""


def unpack_header(start: memoryview, size: int) -> Header:
    """The header, with everything checked that needs no other byte; errors of this module get their path later."""
    if start[:4] != MAGIC:
        if size == 0 or MAGIC.startswith(bytes(start[:4])):
            raise TruncatedError(f"a file of {size} bytes is too short for a shard")
        raise BadMagicError("not a shard: the file does not begin with SHRD")
    if len(start) < TABLE_OFFSET:
        raise TruncatedError(f"a file of {size} bytes is too short for a shard")
    header = Header._make(HEADER.unpack_from(start))
    if header.version != VERSION:
        raise UnsupportedVersionError(f"shard version {header.version} is not known")
    if header.index_entry_size != ENTRY_BYTES:
        raise CorruptLayoutError(f"table entries of {header.index_entry_size} bytes, not 48")
    if header.entry_count > MAX_ENTRIES:
        raise LimitExceededError(f"{header.entry_count} blocks, at most 10,000,000 are allowed")
    if header.alignment not in ALIGNMENTS:
        raise CorruptLayoutError(f"alignment {header.alignment} is not 0, 16, 32 or 64")
    _check_sections(header, size)
    return header


def _check_sections(header: Header, size: int) -> None:
    if header.string_table_offset != TABLE_OFFSET + ENTRY_BYTES * header.entry_count:
        raise CorruptLayoutError("the names do not follow the block table", hint=_SALVAGE_HINT)
    names = header.data_section_offset - header.string_table_offset
    if names < 0:
        raise CorruptLayoutError("the data begins before the names")
    if names > MAX_STRING_TABLE_BYTES:
        raise LimitExceededError(f"{names} bytes of names, at most 100 MB are allowed")
    if header.total_file_size != size:
        kind = TruncatedError if size < header.total_file_size else CorruptLayoutError
        raise kind(f"the file has {size} bytes, its header states {header.total_file_size}")
    if header.data_section_offset > size:
        raise TruncatedError("the file ends inside its block table")


def parse_table(header: Header, head: memoryview, size: int, *, allow_overlap: bool = False) -> BlockTable:
    """Read the block table from the first `data_section_offset` bytes of a shard."""
    is_checksummed = _check_mark(header, head)
    text = bytes(head[header.string_table_offset : header.data_section_offset])
    blocks: dict[str, Block] = {}
    end, is_ordered = header.data_section_offset, True
    entries = ENTRY.iter_unpack(head[TABLE_OFFSET : header.string_table_offset])
    for hashed, start, length, flags, offset, disk_size, raw_size, checksum, kind, _ in entries:
        name = valid_name(text[start : start + length], length)
        if not is_checksummed and hashed not in (xxh64(name.encode()), fnv1a64(name.encode())):
            raise CorruptLayoutError("the hash of the name is wrong", block=name)
        if name in blocks:
            raise CorruptLayoutError("two blocks have this name", block=name)
        codec, is_seekable = "none", False
        if flags or disk_size != raw_size or raw_size > MAX_BLOCK_BYTES:
            codec, is_seekable = _storage(name, flags, disk_size, raw_size, header.compression_default)
        if offset < end:
            is_ordered = False
        end = offset + disk_size
        blocks[name] = _new_block((name, codec, is_seekable, offset, disk_size, raw_size, checksum, kind))
    if not allow_overlap and not (is_ordered and end <= size):
        _check_ranges(blocks.values(), header.data_section_offset, size)
    return BlockTable(header, blocks, is_checksummed)


def _storage(name: str, flags: int, disk_size: int, raw_size: int, default: int) -> tuple[str, bool]:
    """The codec of a block, and whether its frames can be entered."""
    if raw_size > MAX_BLOCK_BYTES or disk_size > MAX_BLOCK_BYTES:
        raise LimitExceededError(f"{max(raw_size, disk_size)} bytes are too many", block=name)
    if flags not in _STORAGE:
        raise CorruptLayoutError(f"unknown storage flags 0x{flags:04x}", block=name)
    codec, is_seekable = _STORAGE[flags]
    if flags == ENTRY_COMPRESSED:
        # Two existing writers set only this bit, even where nothing was saved and the block is raw.
        codec = "none" if disk_size == raw_size else CODEC_DEFAULTS.get(default, "none")
    if codec == "none" and raw_size != disk_size:
        raise CorruptLayoutError("stored raw, but its two sizes differ", block=name)
    return codec, is_seekable


def _check_ranges(blocks: Iterable[Block], position: int, size: int) -> None:
    """Raise unless the blocks share no byte with each other or the table; their order in the table means nothing."""
    for block in sorted(blocks, key=lambda block: block.data_offset):
        if not block.disk_size:
            continue
        if block.data_offset < position:
            raise CorruptLayoutError("overlaps what is before it", block=block.name, hint=_SALVAGE_HINT)
        position = block.data_offset + block.disk_size
        if position > size:
            raise TruncatedError("is past the end of the file", block=block.name)


_STORAGE = {flags: (codec, False) for codec, flags in ENTRY_FLAGS.items()}
_STORAGE |= {ENTRY_FLAGS["zstd"] | ENTRY_SEEKABLE: ("zstd", True), ENTRY_COMPRESSED: ("", False)}


@lru_cache(maxsize=1024)
def valid_name(raw: bytes, size: int) -> str:
    """The block name in these bytes."""
    if len(raw) != size:
        raise CorruptLayoutError("the name of a block is outside the table of names")
    if not 0 < size <= MAX_NAME_BYTES:
        raise LimitExceededError(f"a block name of {size} bytes: {bytes(raw[:60])!r}")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise CorruptLayoutError(f"the block name {raw[:40]!r} is not UTF-8") from None
    if "\0" in name:
        raise CorruptLayoutError(f"the block name {name!r:.40} contains a NUL byte")
    return name


def _check_mark(header: Header, head: memoryview) -> bool:
    """Check our table checksum; a file without it has zeros there, anything else is damage."""
    if header.reserved != bytes(8):
        raise CorruptLayoutError("reserved header bytes are not zero")
    if header.table_mark == bytes(4) and header.table_crc32c == 0:
        return False
    if header.table_mark != MARK:
        raise CorruptLayoutError("the mark of the table checksum is damaged")
    if table_crc32c(head, header.data_section_offset) != header.table_crc32c:
        raise ChecksumError("header, block table or names were changed")
    return True


def table_crc32c(head: memoryview, end: int) -> int:
    """The checksum over the first 48 header bytes, the table and the names with their padding."""
    start = crc32c(head[:MARKED_HEADER_BYTES])
    return crc32c(head[TABLE_OFFSET:end], start)


def data_offset_for(names: Sequence[str]) -> int:
    """Where the first block of a shard with these block names begins."""
    text = sum(len(name.encode()) for name in names)
    return align_up(TABLE_OFFSET + ENTRY_BYTES * len(names) + text, ALIGNMENT)


def pack_table(blocks: Sequence[Block], total_file_size: int, role: int, data_offset: int) -> bytes:
    """Header, block table and names of a shard, with our checksum, up to where the data begins."""
    names = [block.name.encode() for block in blocks]
    header = Header(
        magic=MAGIC, version=VERSION, role=role, flags=HEADER_FLAGS,
        alignment=ALIGNMENT, compression_default=0, index_entry_size=ENTRY_BYTES,
        entry_count=len(blocks), string_table_offset=TABLE_OFFSET + ENTRY_BYTES * len(blocks),
        data_section_offset=data_offset, schema_offset=0,
        total_file_size=total_file_size, table_mark=MARK, table_crc32c=0, reserved=bytes(8),
    )  # fmt: skip
    rows, position = [], 0
    for block, name in zip(blocks, names, strict=True):
        flags = ENTRY_FLAGS[block.codec] | (ENTRY_SEEKABLE if block.is_seekable else 0)
        place = block.data_offset, block.disk_size, block.raw_size, block.crc32c, block.content_type
        rows.append(ENTRY.pack(xxh64(name), position, len(name), flags, *place, 0))
        position += len(name)
    body = (b"".join(rows) + b"".join(names)).ljust(header.data_section_offset - TABLE_OFFSET, b"\0")
    head = HEADER.pack(*header) + body
    crc = table_crc32c(memoryview(head), header.data_section_offset)
    return HEADER.pack(*header._replace(table_crc32c=crc)) + body


# The two hashes of the container, by the names its users know.


def compute_crc32(data: Buffer) -> int:
    """The checksum of a block: CRC-32C (Castagnoli) of its uncompressed bytes."""
    return crc32c(data)


def name_hash(name: str) -> int:
    """The hash of a block name in the table: XXH64 of its UTF-8 bytes."""
    return xxh64(name.encode())
