"""Write GAMSAE01 shards: whole from memory, or row by row into a file that appears when it is complete."""

from __future__ import annotations

import contextlib
import operator
import os
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType, as_array, byte_view, dtype_named
from warpdata.bytekit.io.commit import NewFile, commit_file, map_os_errors
from warpdata.errors import SchemaMismatchError, WriterClosedError, require_kind
from warpdata.formats.gamsae import layout

if TYPE_CHECKING:
    from typing import Self

Rows = npt.NDArray[Any]


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


class ActivationShardWriter:
    """Write one shard in pieces; it has its name only after a clean `close`, never half of it."""

    def __init__(
        self, path: str | os.PathLike[str], width: int, *, dtype: str = "f32", durable: bool = True
    ) -> None:
        require_kind("width", width, SupportsIndex, "a whole number")
        self.width = operator.index(width)
        self.dtype = dtype_named(dtype)
        self.n_rows = 0
        self._stack = contextlib.ExitStack()
        self._file: NewFile | None = self._stack.enter_context(commit_file(path, durable=durable))
        self._file.write_in_large_pages(pack_header(0, self.width, dtype))

    def append(self, rows: npt.ArrayLike) -> None:
        """Add the rows of a matrix at the end."""
        if self._file is None:
            raise WriterClosedError("this shard was closed")
        matrix = encode_rows(rows, self.dtype)
        if matrix.shape[1] != self.width:
            raise SchemaMismatchError(f"rows of width {matrix.shape[1]} in a shard of width {self.width}")
        with map_os_errors(self._file.path):
            self._file.write_in_large_pages(byte_view(matrix))
        self.n_rows += len(matrix)

    def close(self) -> None:
        """Write the number of rows and give the file its name."""
        if self._file is not None:
            with map_os_errors(self._file.path):
                self._file.finish()
                self._file.write_at(0, pack_header(self.n_rows, self.width, self.dtype.name))
            self._file = None
            self._stack.close()

    def abort(self, error: BaseException | None = None) -> None:
        """Leave nothing behind."""
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
