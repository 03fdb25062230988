"""Read and judge the header of a GAMSAE01 shard."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BadMagicError, LimitExceededError, TruncatedError, UnsupportedDtypeError
from warpdata.formats.gamsae import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The header of a shard, checked against the size of the file."""

    name: str
    n_rows: int
    width: int
    dtype: DType
    file_bytes: int
    reserved: int = 0
    data_offset: int = layout.HEADER_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.itemsize

    @property
    def payload_bytes(self) -> int:
        """Bytes of all rows."""
        return self.n_rows * self.row_bytes

    @property
    def trailing_bytes(self) -> int:
        """Bytes after the last row; readers accept them, `verify` reports them."""
        return self.file_bytes - self.data_offset - self.payload_bytes

    def row_offset(self, row: int) -> int:
        """Where in the file a row begins."""
        return self.data_offset + row * self.row_bytes


def parse_header(head: Buffer, file_bytes: int, name: str) -> ShardInfo:
    """Judge the first bytes of a shard of `file_bytes` bytes, in the order of SPEC.md."""
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
    """Read and judge the header of the shard behind `reader`."""
    head = reader.read(0, min(layout.HEADER_BYTES, reader.size))
    return parse_header(head, reader.size, reader.name)


def open_shard_info(path: str | os.PathLike[str]) -> ShardInfo:
    """Read and judge the header of a shard file."""
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
