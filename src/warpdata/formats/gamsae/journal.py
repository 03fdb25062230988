"""The shard a harvest is writing: rows in a partial file, one journal frame per acknowledged append."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType, byte_view, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile, SealedHeader, records
from warpdata.bytekit.io.commit import fsync_folder
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.errors import FormatError
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.shard import Rows, pack_header

Columns = dict[str, npt.NDArray[Any]]

_READ_BYTES = 16 << 20
_FRAME = SealedHeader(layout.JournalFrame, layout.JOURNAL_FRAME, layout.JOURNAL_MAGIC)


class Append(NamedTuple):
    """One acknowledged append; `frame_bytes` counts its frame and the side columns after it."""

    n_rows: int
    rows_crc32c: int
    columns: Columns
    frame_bytes: int


def read_appends(path: Path, schema: Mapping[str, str]) -> Iterator[Append]:
    """Every whole frame of a journal from the beginning; a frame that a crash truncated ends it."""
    row_bytes = {name: dtype_named(kind).itemsize for name, kind in schema.items()}
    with FileRangeReader(path) as reader, contextlib.suppress(FormatError):
        for frame, start, end in records(reader, 0, _FRAME, lambda frame: frame.side_bytes):
            is_of_schema = frame.n_rows * sum(row_bytes.values()) == frame.side_bytes
            if not is_of_schema or frame.side_bytes > layout.MAX_JOURNAL_FRAME_BYTES:
                return
            side, offset, columns = reader.read(start, end), 0, {}
            if crc32c(side) != frame.side_crc32c:
                return
            for name, size in row_bytes.items():
                stop = offset + frame.n_rows * size
                columns[name] = np.frombuffer(side[offset:stop], dtype_named(schema[name]).dtype)
                offset = stop
            yield Append(frame.n_rows, frame.rows_crc32c, columns, _FRAME.size + end - start)


class OpenShard:
    """An unfinished shard: nothing acknowledged is lost when the process is killed."""

    def __init__(self, folder: Path, index: int, width: int, dtype: DType, *, sync_appends: bool) -> None:
        self.path = folder / f"shard-{index:06d}{layout.SHARD_SUFFIX}"
        self.partial_path = folder / f"shard-{index:06d}{layout.PARTIAL_SUFFIX}"
        self.journal_path = folder / f"shard-{index:06d}{layout.JOURNAL_SUFFIX}"
        self.n_rows = 0
        self._width = width
        self._dtype = dtype
        self._row_bytes = width * dtype.itemsize
        self._sync_appends = sync_appends
        self._files: tuple[AppendFile, AppendFile] | None = None

    def open(self) -> tuple[AppendFile, AppendFile]:
        """The files of the rows and of the journal, opened on first use."""
        if self._files is None:
            rows = AppendFile.open(self.partial_path)
            try:
                self._files = rows, AppendFile.open(self.journal_path)
            except BaseException:
                rows.close()
                raise
        return self._files

    def begin(self) -> None:
        """Start with no rows; existing contents are dropped."""
        try:
            self._truncate(layout.HEADER_BYTES, 0)
        except BaseException:
            self.close()
            raise

    def recover(self, schema: Mapping[str, str]) -> Iterator[Rows]:
        """The acknowledged rows of a killed harvest in order; everything after them is removed."""
        acknowledged, rows_file = 0, self.open()[0]
        for append in read_appends(self.journal_path, schema):
            end = layout.HEADER_BYTES + (self.n_rows + append.n_rows) * self._row_bytes
            if end > rows_file.position:
                break
            crc = 0
            for rows in self._next_rows(append.n_rows):
                crc = crc32c(byte_view(rows), crc)
            if crc != append.rows_crc32c:
                break
            yield from self._next_rows(append.n_rows)
            self.n_rows += append.n_rows
            acknowledged += append.frame_bytes
        self._truncate(layout.HEADER_BYTES + self.n_rows * self._row_bytes, acknowledged)

    def _truncate(self, rows_bytes: int, journal_bytes: int) -> None:
        """Shorten both files, and mark the shard as unfinished in its header."""
        rows, journal = self.open()
        rows.cut(rows_bytes)
        journal.cut(journal_bytes)
        rows.overwrite(pack_header(0, self._width, self._dtype.name), 0)

    def _next_rows(self, count: int) -> Iterator[Rows]:
        """The `count` rows after those counted so far, some MiB at a time."""
        step = max(1, _READ_BYTES // self._row_bytes)
        for start in range(0, count, step):
            rows = np.empty((min(step, count - start), self._width), self._dtype.dtype)
            at = layout.HEADER_BYTES + (self.n_rows + start) * self._row_bytes
            self.open()[0].read_into(byte_view(rows), at)
            yield rows

    def append(self, rows: Rows, columns: Columns) -> None:
        """Write rows, then the frame that acknowledges them; on failure the shard is as before."""
        rows_file, journal = self.open()
        side = b"".join(bytes(byte_view(column)) for column in columns.values())
        frame = _FRAME.pack(len(rows), len(side), crc32c(byte_view(rows)), crc32c(side))
        end = rows_file.append(byte_view(rows), sync=self._sync_appends)
        try:
            journal.append(frame + side, sync=self._sync_appends)
        except BaseException:
            rows_file.cut(end)
            raise
        self.n_rows += len(rows)

    def finish(self) -> None:
        """Write the header, make everything durable and give the shard its name."""
        rows, journal = self.open()
        rows.overwrite(pack_header(self.n_rows, self._width, self._dtype.name), 0)
        rows.sync()
        journal.sync()
        self.close()
        os.rename(self.partial_path, self.path)
        fsync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove an unfinished shard that holds no rows."""
        self.close()
        self.partial_path.unlink(missing_ok=True)
        self.journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; acknowledged rows stay."""
        if self._files is not None:
            for file in self._files:
                file.close()
