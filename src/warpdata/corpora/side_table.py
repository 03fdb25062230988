"""rows.parquet: side data of every row, keyed by row id. The adapter of pyarrow in this package."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import NewFile, commit_file
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, nearest
from warpdata.formats.gamsae.layout import ROW_ID_COLUMN, ROWS_PARQUET

Columns = dict[str, npt.NDArray[Any]]

_GROUP_ROWS = 1 << 18
COLUMN_DTYPES = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "f64", "f32", "f16", "bool")


class SideTable:
    """The side columns of a corpus as arrays; `columns[name][row_id]` is the value of a row."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = Path(folder) / ROWS_PARQUET
        if not self._path.is_file():
            raise BlobNotFoundError("this corpus has no side columns", path=self._path)
        self._file = _open_table(self._path)
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
            with _map_errors(self._path):
                self._loaded[name] = self._file.read(columns=[name]).column(name).to_numpy()
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
    return int(_open_table(path).metadata.num_rows) if path.is_file() else 0


def extend_side_table(
    folder: str | os.PathLike[str], schema: Mapping[str, str], chunks: Iterable[Columns]
) -> None:
    """Replace rows.parquet by one that has the rows of the old one and then those of `chunks`, atomically."""
    path = Path(folder) / ROWS_PARQUET
    types = [(name, pa.from_numpy_dtype(dtype_named(kind).dtype)) for name, kind in schema.items()]
    arrow = pa.schema([(ROW_ID_COLUMN, pa.uint64()), *types])
    waiting: list[Columns] = []
    done = count = 0

    def write_waiting() -> None:
        columns = [np.concatenate([chunk[name] for chunk in waiting]) for name in schema]
        ids = np.arange(done - count, done, dtype=np.uint64)
        writer.write_table(pa.table([pa.array(column) for column in (ids, *columns)], schema=arrow))

    with commit_file(path) as out, pq.ParquetWriter(_Sink(out), arrow, compression="zstd") as writer:
        if path.is_file():
            old = _open_table(path)
            done = int(old.metadata.num_rows)
            for group in range(old.num_row_groups):
                with _map_errors(path):
                    table = old.read_row_group(group)
                writer.write_table(table)
        for columns in chunks:  # small appends become row groups worth their overhead
            waiting.append(columns)
            added = len(next(iter(columns.values())))
            done, count = done + added, count + added
            if count >= _GROUP_ROWS:
                write_waiting()
                waiting, count = [], 0
        if waiting:
            write_waiting()


def _open_table(path: Path) -> Any:
    with _map_errors(path):
        return pq.ParquetFile(path, page_checksum_verification=True)


@contextlib.contextmanager
def _map_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CorruptLayoutError(f"the side columns cannot be read ({error})", path=path) from None


class _Sink(io.RawIOBase):
    """A file being committed, for pyarrow."""

    def __init__(self, out: NewFile) -> None:
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._out.write(data)
        return memoryview(data).nbytes
