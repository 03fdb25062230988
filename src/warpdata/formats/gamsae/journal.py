"""The harvest journal beside an unfinished shard: one frame per acknowledged append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.ranges import RangeReader
from warpdata.bytekit.view import byte_view
from warpdata.formats.gamsae import layout

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """One append as the journal remembers it."""

    n_rows: int
    rows_crc32c: int
    columns: Columns
    frame_bytes: int
    """Bytes of its frame and of the side columns after it."""


def pack_frame(rows: npt.NDArray[Any], columns: Columns) -> bytes:
    """The frame that acknowledges `rows`, with their side columns in the order of the schema."""
    side = b"".join(bytes(byte_view(column)) for column in columns.values())
    frame = layout.JournalFrame(
        layout.JOURNAL_MAGIC, len(rows), len(side), crc32c(byte_view(rows)), crc32c(side), 0
    )
    head = layout.JOURNAL_FRAME.pack(*frame)
    return layout.JOURNAL_FRAME.pack(*frame._replace(frame_crc32c=crc32c(head))) + side


def read_frames(reader: RangeReader, schema: Mapping[str, str]) -> Iterator[Append]:
    """Every whole frame from the beginning; what a crash cut short ends the journal."""
    offset = 0
    while offset + layout.JOURNAL_FRAME_BYTES <= reader.size:
        head = reader.read(offset, offset + layout.JOURNAL_FRAME_BYTES)
        frame = layout.JournalFrame._make(layout.JOURNAL_FRAME.unpack(head))
        offset += layout.JOURNAL_FRAME_BYTES
        if not _is_sound(frame) or offset + frame.side_bytes > reader.size:
            return
        side = reader.read(offset, offset + frame.side_bytes)
        columns = _columns(side, frame, schema)
        if columns is None:
            return
        offset += frame.side_bytes
        size = layout.JOURNAL_FRAME_BYTES + frame.side_bytes
        yield Append(frame.n_rows, frame.rows_crc32c, columns, size)


def _is_sound(frame: layout.JournalFrame) -> bool:
    unsigned = layout.JOURNAL_FRAME.pack(*frame._replace(frame_crc32c=0))
    if frame.magic != layout.JOURNAL_MAGIC or crc32c(unsigned) != frame.frame_crc32c:
        return False
    return frame.side_bytes <= layout.MAX_JOURNAL_FRAME_BYTES


def _columns(side: memoryview, frame: layout.JournalFrame, schema: Mapping[str, str]) -> Columns | None:
    sizes = {name: frame.n_rows * dtype_named(dtype).itemsize for name, dtype in schema.items()}
    if crc32c(side) != frame.side_crc32c or sum(sizes.values()) != frame.side_bytes:
        return None
    columns: Columns = {}
    offset = 0
    for name, size in sizes.items():
        columns[name] = np.frombuffer(side[offset : offset + size], dtype_named(schema[name]).dtype)
        offset += size
    return columns
