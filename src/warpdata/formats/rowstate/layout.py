"""Every number of the row state log and its checkpoint."""

from __future__ import annotations

import struct
from typing import NamedTuple

LOG_MAGIC = b"WROWLOG1"
FRAME_MAGIC = b"WROWFRM1"
CHECKPOINT_MAGIC = b"WROWCKP1"
CHECKPOINT_NAME = "checkpoint"
LOCK_NAME = "lock"
LOG_NAME = "log-{:06d}"
ALIGN = 8
MAX_FRAME_BYTES = 1 << 31


class LogHeader(NamedTuple):
    """The first bytes of a log."""

    magic: bytes
    model: bytes


LOG_HEADER = struct.Struct("<8s32s")


class FrameHeader(NamedTuple):
    """One batch of row states; five arrays follow: ids, iterations, counts, latents, active sets."""

    magic: bytes
    n_rows: int
    n_latents: int
    n_active: int
    body_crc32c: int
    header_crc32c: int


FRAME_HEADER = struct.Struct("<8sQQQII")


class CheckpointHeader(NamedTuple):
    """What was committed: which log, how much of it, and where every row is; two arrays follow."""

    magic: bytes
    model: bytes
    log_number: int
    log_bytes: int
    n_rows: int
    body_crc32c: int
    header_crc32c: int


CHECKPOINT_HEADER = struct.Struct("<8s32sQQQII")
