"""Numbers of the MCAP container: opcodes and the fixed parts of its records, little endian."""

from __future__ import annotations

from struct import Struct

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX = range(1, 9)
ATTACHMENT, ATTACHMENT_INDEX, STATISTICS, METADATA, METADATA_INDEX, SUMMARY_OFFSET, DATA_END = range(9, 16)

RECORD = Struct("<BQ")
"""Opcode, length of what follows."""
MESSAGE_HEAD = Struct("<BQHIQQ")
"""A message with its opcode and length: channel, sequence, log time, publish time."""
MESSAGE_FIXED = 22
CHUNK_HEAD = Struct("<QQQI")
"""Start, end, size before compression, CRC."""
FOOTER_BODY = Struct("<QQI")
"""Start of the summary, start of its offsets, CRC."""
STATISTICS_HEAD = Struct("<QHIIIIQQ")
"""Messages, schemas, channels, attachments, metadata, chunks, first time, last time."""
CHUNK_INDEX_HEAD = Struct("<QQQQ")
TIME_AND_OFFSET = Struct("<QQ")
TWO_TIMES = Struct("<QQ")
U16, U32, U64 = Struct("<H"), Struct("<I"), Struct("<Q")
