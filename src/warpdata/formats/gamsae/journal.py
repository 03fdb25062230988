"""The harvest journal beside an unfinished shard: one frame per acknowledged append."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import byte_view, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import SealedHeader, records
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import FormatError
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


_FRAME = SealedHeader(layout.JournalFrame, layout.JOURNAL_FRAME, layout.JOURNAL_MAGIC)


def pack_frame(rows: npt.NDArray[Any], columns: Columns) -> bytes:
    """The frame that acknowledges `rows`, with their side columns in the order of the schema."""
    side = b"".join(bytes(byte_view(column)) for column in columns.values())
    return _FRAME.pack(len(rows), len(side), crc32c(byte_view(rows)), crc32c(side)) + side


def read_frames(reader: RangeReader, schema: Mapping[str, str]) -> Iterator[Append]:
    """Every whole frame from the beginning; what a crash cut short ends the journal."""
    with contextlib.suppress(FormatError):
        for frame, start, end in records(reader, 0, _FRAME, lambda frame: frame.side_bytes):
            columns = None
            if frame.side_bytes <= layout.MAX_JOURNAL_FRAME_BYTES:
                columns = _columns(reader.read(start, end), frame, schema)
            if columns is None:
                return
            yield Append(frame.n_rows, frame.rows_crc32c, columns, _FRAME.size + end - start)


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
