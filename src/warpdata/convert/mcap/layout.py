"""Layout of the MCAP records that are read here: opcodes and fixed parts, little endian."""

from __future__ import annotations

from struct import Struct

import numpy as np

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = range(1, 7)
ATTACHMENT, STATISTICS, METADATA, DATA_END = 9, 11, 12, 15

RECORD = Struct("<BQ")
"""Opcode and length of the body."""
MESSAGE_HEAD = np.dtype(
    [
        ("opcode", "u1"),
        ("length", "<u8"),
        ("channel", "<u2"),
        ("sequence", "<u4"),
        ("log", "<u8"),
        ("publish", "<u8"),
    ]
)
"""A message record before its data."""
MESSAGE_FIXED_BYTES = MESSAGE_HEAD.itemsize - RECORD.size
CHUNK_HEAD = Struct("<QQQI")
"""Start time, end time, size before compression, CRC."""
FOOTER_BODY = Struct("<QQI")
"""Start of the summary, start of its offsets, CRC."""
