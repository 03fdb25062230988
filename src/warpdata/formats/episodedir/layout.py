"""Every name and number of the episode directory; SPEC.md explains them."""

from __future__ import annotations

import struct
from typing import NamedTuple

SCHEMA_VERSION = 1
DIGITS = 12
BLOCK_EPISODES = 1000

STATIC_FILE = "static.json"
META_FILE = "meta.json"
EDITS_FILE = "edits.jsonl"
DATASET_FILE = "dataset.json"
"""What is known of a root as a whole, where it was imported: the metadata of its source, and the receipt."""
LISTING_FILE = ".listing.json"
FACTS_FILE = ".facts.parquet"
RECORDING_FOLDER = ".recording"
WHOLE_FOLDER = "whole"
"""In it: second names of all files, while one file is made of a recording that is complete."""
FOREIGN_UNFINISHED = ".unfinished"
"""The mark of an unfinished episode of the existing library."""

SIGNAL_SUFFIX = ".parquet"
FRAMES_SUFFIX = ".frames.parquet"
VIDEO_SUFFIXES = (".mp4", ".mkv")
SUFFIX_KEY = "suffix"
"""In the entry of a camera whose file does not end as its codec implies."""

JPEG_MAGIC = b"\xff\xd8\xff"
PARQUET_MAGIC = b"PAR1"

TIME_COLUMN = "timestamp"
VALUE_COLUMN = "value"
FOREIGN_TIME_PREFIX = "ts."
"""Newer files of the existing library name their clocks `ts.<name>`; the first one is taken."""

FRAME_TIME_COLUMN = "ts_ns"
FRAME_COLUMNS = ("ts_ns", "pts", "keyframe", "offset", "size", "crc32c")
SHOWN_COLUMN = "shown"
"""Optional: whether a frame belongs to the camera, or is only there to decode others."""
SCHEMA_KEY = b"warpdata"
"""Key of the JSON description in the schema metadata of a parquet file."""

KINDS = ("scalar", "vector", "tensor", "image", "text", "bytes", "ragged", "sound")
RAGGED_KINDS = ("ragged", "sound")
"""Kinds whose values have any number of rows of one shape."""
SOUND_DTYPES = ("u8", "i16", "i32", "f32", "f64")

MAX_NAME_BYTES = 200
MAX_JSON_BYTES = 64 << 20
MAX_FRAME_SIDE = 1 << 15
MAX_PACKET_BYTES = 1 << 28
MAX_RECORDS = 1 << 40
ROW_GROUP_ROWS = 1 << 16


class FrameMark(NamedTuple):
    """One encoded frame that is safely in the video file, while the recording goes on."""

    ts_ns: int
    offset: int
    size: int
    flags: int
    packet_crc32c: int
    mark_crc32c: int


FRAME_MARK = struct.Struct("<qQIIII")
FRAME_MARK_BYTES = FRAME_MARK.size
FRAME_MARK_CHECKED = slice(0, 28)
KEYFRAME_FLAG = 1
MARK_CRC = struct.Struct("<I")


class BoxHead(NamedTuple):
    """The head of an MP4 box."""

    size: int
    kind: bytes


BOX = struct.Struct(">I4s")
BOX_LARGE = struct.Struct(">Q")
U32 = struct.Struct(">I")

TFHD_BASE_OFFSET, TFHD_SAMPLE_INDEX, TFHD_DURATION, TFHD_SIZE = 0x1, 0x2, 0x8, 0x10
TRUN_DATA_OFFSET, TRUN_FIRST_FLAGS = 0x1, 0x4
TRUN_DURATION, TRUN_SIZE, TRUN_FLAGS, TRUN_CTO = 0x100, 0x200, 0x400, 0x800

EBML_SEGMENT = 0x18538067
EBML_CLUSTER = 0x1F43B675
EBML_SIMPLE_BLOCK = 0xA3
EBML_BLOCK_GROUP = 0xA0
EBML_BLOCK = 0xA1
BLOCK_HEAD_BYTES = 4
"""Track number (one byte here), relative time and flags stand before the frame in a block."""

ROLES = (
    *("observation", "action", "reward", "terminated", "truncated", "event"),
    *("prediction", "uncertainty", "residual", "other"),
)
"""The parts that signals play in an episode; stored by name."""
