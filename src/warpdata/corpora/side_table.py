"""rows.parquet: side data of every row, keyed by row id. The adapter of pyarrow in this package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import commit_file
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, nearest
from warpdata.formats.gamsae.layout import ROW_ID_COLUMN, ROWS_PARQUET

Columns = dict[str, npt.NDArray[Any]]

COLUMN_DTYPES = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "f64", "f32", "f16", "bool")


class SideTable:
    """The side columns of a corpus as arrays; `columns[name][row_id]` is the value of a row."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = Path(folder) / ROWS_PARQUET
        if not self._path.is_file():
            raise BlobNotFoundError("this corpus has no side columns", path=self._path)
        self._file = _opened(self._path)
        self._loaded: Columns = {}

    @property
    def names(self) -> list[str]:
        """The columns, without the row id."""
        return [name for name in self._file.schema_arrow.names if name != ROW_ID_COLUMN]

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole column, read once."""
        if name not in self._loaded:
            if name not in self.names:
                raise KeyError(
                    f"no side column {name!r}; there are {', '.join(self.names)}.{nearest(name, self.names)}"
                )
            self._loaded[name] = _read_column(self._file, name, self._path)
        return self._loaded[name]

    def take(self, row_ids: npt.ArrayLike) -> Columns:
        """The side columns of these rows, in their order."""
        ids = np.asarray(row_ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"row ids are one list of integers, not {ids.dtype} of shape {ids.shape}")
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            raise ValueError(f"row ids are from 0 to {len(self) - 1}")
        return {name: self.column(name)[ids.astype(np.int64)] for name in self.names}


def side_rows(folder: str | os.PathLike[str]) -> int:
    """How many rows rows.parquet covers; 0 where there is none."""
    path = Path(folder) / ROWS_PARQUET
    return int(_opened(path).metadata.num_rows) if path.is_file() else 0


def extend_side_table(
    folder: str | os.PathLike[str], schema: Mapping[str, str], chunks: Iterable[Columns]
) -> None:
    """Replace rows.parquet by one that has the rows of the old one and then those of `chunks`, atomically."""
    path = Path(folder) / ROWS_PARQUET
    arrow = pa.schema(
        [(ROW_ID_COLUMN, pa.uint64()), *((name, _arrow_type(kind)) for name, kind in schema.items())]
    )
    with commit_file(path) as out, pq.ParquetWriter(_Sink(out.write), arrow, compression="zstd") as writer:
        done = 0
        if path.is_file():
            old = _opened(path)
            for group in range(old.num_row_groups):
                writer.write_table(_read_group(old, group, path))
            done = int(old.metadata.num_rows)
        for columns in _merged(chunks):
            done = _write_chunk(writer, columns, arrow, done)


def _write_chunk(writer: Any, columns: Columns, arrow: Any, done: int) -> int:
    count = len(next(iter(columns.values())))
    ids = np.arange(done, done + count, dtype=np.uint64)
    writer.write_table(pa.table([pa.array(ids), *(pa.array(c) for c in columns.values())], schema=arrow))
    return done + count


def _merged(chunks: Iterable[Columns], rows: int = 1 << 18) -> Iterable[Columns]:
    """Small appends joined into row groups worth their overhead."""
    waiting: list[Columns] = []
    count = 0
    for columns in chunks:
        waiting.append(columns)
        count += len(next(iter(columns.values())))
        if count >= rows:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(chunks: list[Columns]) -> Columns:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _read_column(file: Any, name: str, path: Path) -> npt.NDArray[Any]:
    try:
        values: npt.NDArray[Any] = file.read(columns=[name]).column(name).to_numpy()
    except (pa.ArrowException, OSError) as error:
        raise CorruptLayoutError(f"side column {name!r} cannot be read ({error})", path=path) from None
    return values


def _read_group(file: Any, group: int, path: Path) -> Any:
    try:
        return file.read_row_group(group)
    except (pa.ArrowException, OSError) as error:
        raise CorruptLayoutError(f"side columns cannot be read ({error})", path=path) from None


def _opened(path: Path) -> Any:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptLayoutError(f"not a parquet file ({error})", path=path) from None


def _arrow_type(name: str) -> Any:
    return pa.from_numpy_dtype(dtype_named(name).dtype)


class _Sink:
    """A file for pyarrow that writes into a commit."""

    closed = False

    def __init__(self, write: Any) -> None:
        self._write = write
        self._position = 0

    def write(self, data: Any) -> int:
        self._write(data)
        self._position += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The commit closes the file."""
        self.closed = True
