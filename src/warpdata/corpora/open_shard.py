"""The shard a harvest is writing: rows in a partial file, each append acknowledged in its journal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from warpdata.bytekit.arrays import DType, byte_view, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.commit import fsync_folder
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.corpora.batch import Rows
from warpdata.errors import nearest
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.journal import Append, Columns, pack_frame, read_frames
from warpdata.formats.gamsae.writer import pack_header

_READ_BYTES = 16 << 20


def shard_name(index: int) -> str:
    """The name of a shard; names sort as numbers do."""
    return f"shard-{index:06d}{layout.SHARD_SUFFIX}"


def partial_path(folder: Path, index: int) -> Path:
    """Where the rows of an unfinished shard are."""
    return folder / f"shard-{index:06d}{layout.PARTIAL_SUFFIX}"


def journal_path(folder: Path, index: int) -> Path:
    """Where its appends are acknowledged."""
    return folder / f"shard-{index:06d}{layout.JOURNAL_SUFFIX}"


class OpenShard:
    """An unfinished shard: nothing acknowledged is lost when the process is killed."""

    def __init__(self, folder: Path, index: int, width: int, dtype: DType, *, sync_appends: bool) -> None:
        self.folder = folder
        self.index = index
        self.n_rows = 0
        self._width = width
        self._dtype = dtype
        self._sync_appends = sync_appends
        self._rows = AppendFile.open(partial_path(folder, index))
        try:
            self._journal = AppendFile.open(journal_path(folder, index))
        except BaseException:
            self._rows.close()
            raise

    @property
    def payload_bytes(self) -> int:
        """Bytes of the acknowledged rows."""
        return self.n_rows * self._width * self._dtype.itemsize

    def begin(self) -> None:
        """Start with no rows; existing contents are dropped."""
        self._cut_after(layout.HEADER_BYTES, 0)

    def recover(self, schema: Mapping[str, str]) -> Iterator[Rows]:
        """The acknowledged rows of a killed harvest in order; everything after them is cut off."""
        acknowledged = 0
        with FileRangeReader(self._journal.path) as journal:
            for append in read_frames(journal, schema):
                if not self._is_whole(append):
                    break
                yield from self._next_rows(append.n_rows)
                self.n_rows += append.n_rows
                acknowledged += append.frame_bytes
        self._cut_after(layout.HEADER_BYTES + self.payload_bytes, acknowledged)

    def _cut_after(self, rows_bytes: int, journal_bytes: int) -> None:
        """Keep so much of both files, and say in the header that the shard is unfinished."""
        self._rows.cut(rows_bytes)
        self._journal.cut(journal_bytes)
        self._rows.overwrite(pack_header(0, self._width, self._dtype.name), 0)

    def _is_whole(self, append: Append) -> bool:
        """Whether the disk holds the rows of an append as they were acknowledged."""
        row_bytes = self._width * self._dtype.itemsize
        end = layout.HEADER_BYTES + self.payload_bytes + append.n_rows * row_bytes
        if end > self._rows.position:
            return False
        crc = 0
        for rows in self._next_rows(append.n_rows):
            crc = crc32c(byte_view(rows), crc)
        return crc == append.rows_crc32c

    def _next_rows(self, count: int) -> Iterator[Rows]:
        """The `count` rows after those counted so far, some MiB at a time."""
        row_bytes = self._width * self._dtype.itemsize
        step = max(1, _READ_BYTES // row_bytes)
        for start in range(0, count, step):
            rows = np.empty((min(step, count - start), self._width), self._dtype.dtype)
            at = layout.HEADER_BYTES + (self.n_rows + start) * row_bytes
            self._rows.read_into(byte_view(rows), at)
            yield rows

    def append(self, rows: Rows, columns: Columns) -> None:
        """Write rows, then the frame that acknowledges them; on failure the shard is as before."""
        end = self._rows.append(byte_view(rows), sync=self._sync_appends)
        try:
            self._journal.append(pack_frame(rows, columns), sync=self._sync_appends)
        except BaseException:
            self._rows.cut(end)
            raise
        self.n_rows += len(rows)

    def finish(self) -> Path:
        """Write the header, make everything durable and give the shard its name."""
        self._rows.overwrite(pack_header(self.n_rows, self._width, self._dtype.name), 0)
        self._rows.sync()
        self._journal.sync()
        self.close()
        target = self.folder / shard_name(self.index)
        os.rename(partial_path(self.folder, self.index), target)
        fsync_folder(self.folder)
        return target

    def discard(self) -> None:
        """Remove an unfinished shard that holds no rows."""
        self.close()
        partial_path(self.folder, self.index).unlink(missing_ok=True)
        journal_path(self.folder, self.index).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; what was acknowledged stays."""
        self._rows.close()
        self._journal.close()


def journal_columns(folder: Path, index: int, schema: Mapping[str, str]) -> Iterator[Columns]:
    """The side columns of a finished shard, append by append."""
    with FileRangeReader(journal_path(folder, index)) as journal:
        for append in read_frames(journal, schema):
            yield append.columns


def stored_dtype(name: str) -> DType:
    """A dtype rows can be stored as."""
    if name not in layout.DTYPE_TAGS:
        near = nearest(str(name), layout.DTYPE_TAGS)
        raise ValueError(f"rows can be stored as {', '.join(layout.DTYPE_TAGS)}, not as {name!r}.{near}")
    return dtype_named(name)
