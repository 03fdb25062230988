"""Every number of the SHRD container and every name of the episode convention; SPEC.md explains them."""

from __future__ import annotations

import struct
from typing import NamedTuple

from warpdata.bytekit.codec import MAX_EXPANDED_BYTES as MAX_EXPANDED_BYTES
from warpdata.bytekit.codec import MAX_LARGE_RATIO as MAX_LARGE_RATIO

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


class PiecesHeader(NamedTuple):
    """The start of an `aux/crc32c/…` block."""

    rows_per_piece: int


MASK_LENGTH = struct.Struct("<I")
"""What stands before each dimension of a bit mask that says its sizes."""

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
