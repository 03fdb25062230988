"""NumPy `.npy` matrices to a corpus and back, in bounded memory."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np

from warpdata.bytekit.arrays import byte_view, dtype_named
from warpdata.bytekit.io.commit import commit_file
from warpdata.convert.corpora.fill import ConvertOptions, Progress, batch_rows, fill_corpus
from warpdata.corpora.rows import Rows
from warpdata.corpora.source import MmapShardSource
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, TruncatedError, UnsupportedDtypeError

_HEADER_ERRORS = (
    ValueError, EOFError, OSError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError,
)  # fmt: skip
"""What numpy raises over a header that is not one."""


def npy_to_corpus(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], options: ConvertOptions | None = None
) -> int:
    """Convert a matrix, or an array whose last axis is the row; returns the number of rows."""
    options = ConvertOptions() if options is None else options
    if not os.path.isfile(path):
        raise BlobNotFoundError("no such file", path=path)
    with open(path, "rb") as file:
        shape, is_fortran, dtype = npy_header(file, path)
        if dtype.kind not in "fiu":
            raise UnsupportedDtypeError(f"rows of {dtype} cannot be stored", path=path)
        if len(shape) < 2 or not shape[-1] or (is_fortran and len(shape) > 2):
            raise CorruptLayoutError(f"an array of shape {shape} is no matrix of rows", path=path)
        count, width = int(np.prod(shape[:-1], dtype=object)), shape[-1]
        _check_size(file, path, count * width * dtype.itemsize)
        chosen = options if options.dtype else replace(options, dtype="f16" if dtype.itemsize == 2 else "f32")
        columns = _fortran(path, file.tell(), (count, width), dtype) if is_fortran else None
        batches = _rows(file, count, width, dtype) if columns is None else _slices(columns)
        return fill_corpus(folder, batches, (count, width), chosen)


def corpus_to_npy(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], *, dtype: str | None = None,
    overwrite: bool = False, progress: Progress | None = None,
) -> int:  # fmt: skip
    """Write all rows of a corpus as one matrix; returns the number of rows.

    `dtype` is f32 or f16; what is stored unless told. NumPy has no bf16: such rows become f32, which holds them.
    """
    if dtype not in (None, "f32", "f16"):
        raise ValueError(f"a .npy file holds f32 or f16, not {dtype}")
    with (
        MmapShardSource.open_dir(folder, dtype="stored") as source,
        commit_file(path, replace=overwrite) as out,
    ):
        stored = source.shards.dtype.name
        kind = dtype_named(dtype or ("f32" if stored == "bf16" else stored)).dtype
        out.write(_packed_header((source.total_rows, source.width), kind))
        for batch in source:
            with np.errstate(over="ignore", invalid="ignore"):  # f16 may become infinite
                out.write(byte_view(np.ascontiguousarray(batch.rows, kind)))
            if progress is not None:
                progress(source.position, source.total_rows)
        return source.total_rows


def _packed_header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    head = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


def npy_header(file: IO[bytes], path: str | os.PathLike[str]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of a .npy file; the file stands behind its header then."""
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
    except _HEADER_ERRORS as error:
        raise CorruptLayoutError(f"not a .npy file ({error})", path=path) from None
    return tuple(int(size) for size in shape), bool(is_fortran), dtype


def _check_size(file: IO[bytes], path: str | os.PathLike[str], payload: int) -> None:
    actual, expected = os.fstat(file.fileno()).st_size, file.tell() + payload
    if actual < expected:
        fact = f"the array is truncated: {expected} bytes are needed, file has {actual}"
        raise TruncatedError(fact, expected=expected, actual=actual, path=path)


def _rows(file: IO[bytes], count: int, width: int, dtype: np.dtype[Any]) -> Iterator[Rows]:
    step = batch_rows(width * dtype.itemsize)
    for start in range(0, count, step):
        rows = min(step, count - start)
        found = np.fromfile(file, dtype, rows * width)
        if len(found) != rows * width:
            raise TruncatedError("the array was cut while it was read", path=file.name)
        yield found.reshape(rows, width)


def _fortran(path: str | os.PathLike[str], offset: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Rows:
    return np.memmap(path, dtype, "r", offset, shape, "F")


def _slices(matrix: Rows) -> Iterator[Rows]:
    step = batch_rows(matrix.shape[1] * matrix.itemsize)
    for start in range(0, len(matrix), step):
        yield matrix[start : start + step]
