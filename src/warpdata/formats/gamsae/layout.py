"""Every number of the GAMSAE01 shard, of corpus.json and of the harvest journal."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

SHARD_MAGIC = b"GAMSAE01"
SHARD_SUFFIX = ".shard"

DTYPE_TAGS = {"f32": 0, "f16": 1, "bf16": 2}
"""f32 is what every reader knows; f16 and bf16 are ours, and others refuse them by their tag."""
DTYPE_NAMES = {tag: name for name, tag in DTYPE_TAGS.items()}
EXACT_LENGTH_TAGS = frozenset({1, 2})
"""Our tags are believed only in a file of exactly the announced length."""

U64_MAX = (1 << 64) - 1
MAX_TOTAL_ROWS = (1 << 63) - 1
"""Row ids are handed out as integers of 63 bits."""
MAX_EMPTY_ROWS = 1 << 20
"""Rows of a shard of width 0: no byte of the file stands for them, so this bounds what reading them takes."""
MAX_ROW_BYTES = 1 << 30
"""Of a row that corpus.json announces, before any shard shows it."""


def is_shard_name(name: str) -> bool:
    """Whether a file of this name in the folder of a corpus is one of its shards."""
    return os.path.splitext(name)[1] == SHARD_SUFFIX


class ShardHeader(NamedTuple):
    """The 32 bytes before the rows."""

    magic: bytes
    n_rows: int
    p: int
    dtype: int
    reserved: int


SHARD_HEADER = struct.Struct("<8sQQII")
HEADER_BYTES = SHARD_HEADER.size

CORPUS_JSON = "corpus.json"
CORPUS_FORMAT = "warpdata.corpus"
CORPUS_VERSION = 1
MAX_CORPUS_JSON_BYTES = 1 << 30
ROWS_PARQUET = "rows.parquet"
ROW_ID_COLUMN = "row_id"

CHECKSUM_BLOCK_BYTES = 4 << 20
"""corpus.json holds one CRC32C per block of the file of this size."""
CHECKSUM_RUN_BYTES = 1 << 20
"""And one per run of whole rows of about this size, so that rows read in any order can be checked."""


def rows_per_run(row_bytes: int) -> int:
    """How many rows one checksummed run holds."""
    return max(1, CHECKSUM_RUN_BYTES // max(1, row_bytes))


PARTIAL_SUFFIX = ".shard.partial"
JOURNAL_SUFFIX = ".journal"
JOURNAL_MAGIC = b"GAMSAEJ1"
MAX_JOURNAL_FRAME_BYTES = 1 << 30


class JournalFrame(NamedTuple):
    """One acknowledged append: how many rows, what they sum to, and their side columns after it."""

    magic: bytes
    n_rows: int
    side_bytes: int
    rows_crc32c: int
    side_crc32c: int
    frame_crc32c: int


JOURNAL_FRAME = struct.Struct("<8sQQIII")
JOURNAL_FRAME_BYTES = JOURNAL_FRAME.size
