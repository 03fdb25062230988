"""GAMSAE01 shards: headers read and checked, shards written whole or in pieces, unfinished ones with their journal."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType, as_array, byte_view, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile, SealedHeader, records
from warpdata.bytekit.io.commit import NewFile, commit_file, fsync_folder, map_os_errors
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.forks import NoPickle, ThreadLock
from warpdata.errors import (
    BadMagicError,
    FormatError,
    LimitExceededError,
    SchemaMismatchError,
    TruncatedError,
    UnsupportedDtypeError,
    WriterClosedError,
    require_kind,
)
from warpdata.formats.gamsae import layout

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer


Rows = npt.NDArray[Any]


class ShardInfo:
    """The header of a shard, checked against the size of the file."""

    def __init__(
        self,
        name: str,
        n_rows: int,
        width: int,
        dtype: DType,
        file_bytes: int,
        reserved: int = 0,
        data_offset: int = layout.HEADER_BYTES,
    ) -> None:
        self.name, self.n_rows, self.width, self.dtype = name, n_rows, width, dtype
        self.file_bytes, self.reserved, self.data_offset = file_bytes, reserved, data_offset
        self.row_bytes = width * dtype.itemsize
        self.payload_bytes = n_rows * self.row_bytes
        self.trailing_bytes = file_bytes - data_offset - self.payload_bytes
        """Bytes after the last row; readers accept them, `verify` reports them."""

    def row_offset(self, row: int) -> int:
        """Offset of a row in the file."""
        return self.data_offset + row * self.row_bytes


def parse_header(head: Buffer, file_bytes: int, name: str) -> ShardInfo:
    """Check the first bytes of a shard of `file_bytes` bytes, in the order of SPEC.md."""
    if file_bytes < layout.HEADER_BYTES:
        raise _truncated(layout.HEADER_BYTES, file_bytes, name)
    header = layout.ShardHeader._make(layout.SHARD_HEADER.unpack(bytes(head)[: layout.HEADER_BYTES]))
    if header.magic != layout.SHARD_MAGIC:
        raise BadMagicError("shard has the wrong magic header", path=name)
    dtype_name = layout.DTYPE_NAMES.get(header.dtype)
    if dtype_name is None:
        raise _unsupported(header.dtype, name)
    dtype = dtype_named(dtype_name)
    expected = layout.HEADER_BYTES + header.n_rows * header.p * dtype.itemsize
    if file_bytes < expected:
        raise _truncated(min(expected, layout.U64_MAX), file_bytes, name)
    if header.dtype in layout.EXACT_LENGTH_TAGS and file_bytes != expected:
        raise _unsupported(header.dtype, name)
    if not header.p and header.n_rows > layout.MAX_EMPTY_ROWS:
        raise LimitExceededError(f"{header.n_rows} rows without a column", path=name)
    return ShardInfo(name, header.n_rows, header.p, dtype, file_bytes, header.reserved)


def read_shard_info(reader: RangeReader) -> ShardInfo:
    """Read and check the header of the shard behind `reader`."""
    head = reader.read(0, min(layout.HEADER_BYTES, reader.size))
    return parse_header(head, reader.size, reader.name)


def open_shard_info(path: str | os.PathLike[str]) -> ShardInfo:
    """Read and check the header of a shard file."""
    with FileRangeReader(path) as reader:
        return read_shard_info(reader)


def _truncated(expected: int, actual: int, name: str) -> TruncatedError:
    return TruncatedError(
        f"shard is truncated: header expects {expected} bytes, file has {actual}",
        expected=expected,
        actual=actual,
        path=name,
    )


def _unsupported(tag: int, name: str) -> UnsupportedDtypeError:
    known = ", ".join(f"{name}={tag}" for name, tag in layout.DTYPE_TAGS.items())
    return UnsupportedDtypeError(
        f"shard has unsupported dtype tag {tag} (known: {known})", tag=tag, path=name
    )


def pack_header(n_rows: int, width: int, dtype: str = "f32") -> bytes:
    """The 32 bytes before the rows."""
    tag = layout.DTYPE_TAGS.get(dtype)
    if tag is None:
        raise ValueError(f"rows can be stored as {', '.join(layout.DTYPE_TAGS)}, not as {dtype!r}")
    return layout.SHARD_HEADER.pack(*layout.ShardHeader(layout.SHARD_MAGIC, n_rows, width, tag, 0))


def encode_rows(rows: npt.ArrayLike, dtype: DType, *, may_overflow: bool = False) -> Rows:
    """The rows as a C-contiguous matrix of the stored type, rounded to nearest even.

    A finite value beyond the range of the type is an error, unless `may_overflow` makes it infinite.
    """
    try:
        matrix: Rows = as_array(rows)
    except ValueError as error:
        raise SchemaMismatchError(f"rows are {error}") from None
    if matrix.ndim != 2:
        raise SchemaMismatchError(f"rows must be a matrix (rows, width), not of shape {matrix.shape}")
    if matrix.dtype.kind not in "fiu" and matrix.dtype != dtype_named("bf16").dtype:
        raise SchemaMismatchError(f"rows must be numbers, not {matrix.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        encoded: Rows = np.ascontiguousarray(matrix, dtype=dtype.dtype)
    if not may_overflow and matrix.dtype != encoded.dtype and not np.isfinite(encoded).all():
        overflow = np.isfinite(matrix) & ~np.isfinite(encoded)
        if overflow.any():
            raise SchemaMismatchError(
                f"value {matrix[overflow][0]} is out of range for {dtype.name}",
                hint="Store the rows as f32 or bf16, or clip them first.",
            )
    return encoded


def encode_shard_bytes(rows: npt.ArrayLike, *, dtype: str = "f32") -> bytes:
    """A whole shard that holds the matrix `rows`, downcast to `dtype`."""
    matrix = encode_rows(rows, dtype_named(dtype), may_overflow=dtype == "f32")
    return pack_header(len(matrix), matrix.shape[1], dtype) + bytes(byte_view(matrix))


class ActivationShardWriter(NoPickle):
    """Write one shard in pieces, from any thread; it has its name only after a clean `close`, never half of it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int,
        *,
        dtype: str = "f32",
        overwrite: bool = False,
        durable: bool = True,
    ) -> None:
        require_kind("width", width, SupportsIndex, "a whole number")
        self.width = operator.index(width)
        self.dtype = dtype_named(dtype)
        self.n_rows = 0
        self._turn = ThreadLock()
        self._stack = contextlib.ExitStack()
        self._file: NewFile | None = self._stack.enter_context(
            commit_file(path, durable=durable, replace=overwrite)
        )
        self._file.write(pack_header(0, self.width, dtype))

    def append(self, rows: npt.ArrayLike) -> None:
        """Add the rows of a matrix at the end."""
        matrix = encode_rows(rows, self.dtype)
        if matrix.shape[1] != self.width:
            raise SchemaMismatchError(f"rows of width {matrix.shape[1]} in a shard of width {self.width}")
        with self._turn:
            if self._file is None:
                raise WriterClosedError("this shard was closed")
            with map_os_errors(self._file.path):
                self._file.write(byte_view(matrix))
            self.n_rows += len(matrix)

    def close(self) -> None:
        """Write the number of rows and give the file its name."""
        with self._turn:
            if self._file is not None:
                with map_os_errors(self._file.path):
                    self._file.finish()
                    self._file.write_at(0, pack_header(self.n_rows, self.width, self.dtype.name))
                self._file = None
                self._stack.close()

    def abort(self, error: BaseException | None = None) -> None:
        """Leave nothing behind."""
        with self._turn:
            self._file = None
            stop = error or WriterClosedError("aborted")
            self._stack.__exit__(type(stop), stop, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort(error)


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
