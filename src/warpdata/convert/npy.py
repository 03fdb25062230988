"""NumPy `.npy` matrices to a corpus, in bounded memory."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np

from warpdata.convert.corpus_fill import ConvertOptions, batch_rows, fill_corpus
from warpdata.corpora.batch import Rows
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
        shape, is_fortran, dtype = _header(file, path)
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


def _header(file: IO[bytes], path: str | os.PathLike[str]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
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
        yield np.fromfile(file, dtype, rows * width).reshape(rows, width)


def _fortran(path: str | os.PathLike[str], offset: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Rows:
    return np.memmap(path, dtype, "r", offset, shape, "F")


def _slices(matrix: Rows) -> Iterator[Rows]:
    step = batch_rows(matrix.shape[1] * matrix.itemsize)
    for start in range(0, len(matrix), step):
        yield matrix[start : start + step]
