"""Vectors out of files: .npy, a parquet column, lines of JSON. The door of pyarrow in this room."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from warpdata.errors import BlobNotFoundError, CorruptLayoutError

_BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Batch:
    """Some vectors with their ids and metadata, if the source has them."""

    vectors: NDArray[Any]
    ids: list[int] | None = None
    metadata: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a table hold what."""

    vector: str = "vector"
    id: str | None = None
    metadata: tuple[str, ...] = ()


def read_batches(path: str, columns: Columns) -> Iterator[Batch]:
    """Batches of a .npy or .parquet file."""
    if not os.path.exists(path):
        raise BlobNotFoundError("no such file", path=path)
    if path.endswith(".npy"):
        yield from _npy_batches(path)
    elif path.endswith((".parquet", ".pq")):
        yield from _parquet_batches(path, columns)
    else:
        raise ValueError(f"vectors come from .npy, .parquet or - for JSON lines, not {path!r}")


def _npy_batches(path: str) -> Iterator[Batch]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CorruptLayoutError(f"not a .npy file ({error})", path=path) from None
    if array.ndim != 2:
        raise ValueError(f"a .npy file of vectors has two dimensions, not {array.ndim}: {path}")
    for start in range(0, len(array), _BATCH_ROWS):
        yield Batch(np.asarray(array[start : start + _BATCH_ROWS]))


def _parquet_batches(path: str, columns: Columns) -> Iterator[Batch]:
    wanted = [columns.vector, *([columns.id] if columns.id else []), *columns.metadata]
    try:
        file = pyarrow.parquet.ParquetFile(path)
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            known = ", ".join(file.schema_arrow.names)
            raise ValueError(f"no column {missing[0]!r} in {path}; it has {known}")
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
            yield _from_arrow(batch, columns, path)
    except pyarrow.ArrowException as error:
        raise CorruptLayoutError(f"damaged parquet file ({error})", path=path) from None


def _from_arrow(batch: Any, columns: Columns, path: str) -> Batch:
    vectors = batch.column(columns.vector)
    if vectors.null_count or not hasattr(vectors, "flatten"):
        raise ValueError(f"the column {columns.vector!r} is not a list of numbers without gaps: {path}")
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    if not len(vectors) or len(flat) % len(vectors):
        raise ValueError(f"the vectors of column {columns.vector!r} differ in length: {path}")
    ids = batch.column(columns.id).to_pylist() if columns.id else None
    metadata = None
    if columns.metadata:
        metadata = [dict(row) for row in batch.select(list(columns.metadata)).to_pylist()]
    return Batch(flat.reshape(len(vectors), -1), ids, metadata)


def json_batches(lines: Iterable[str]) -> Iterator[Batch]:
    """Lines of JSON: a list of numbers each, {"vector": [...], "id": 1, "metadata": {...}}, or a list of such."""
    pending: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            pending += _json_rows(line, number)
        while len(pending) >= _BATCH_ROWS:
            yield _joined(pending[:_BATCH_ROWS])
            pending = pending[_BATCH_ROWS:]
    if pending:
        yield _joined(pending)


def _json_rows(line: str, number: int) -> list[dict[str, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON ({error})") from None
    is_several = isinstance(value, list) and bool(value) and isinstance(value[0], list | dict)
    return [_json_row(each, number) for each in (value if is_several else [value])]


def _json_row(value: Any, number: int) -> dict[str, Any]:
    row = {"vector": value} if isinstance(value, list) else value
    if not isinstance(row, dict) or not isinstance(row.get("vector"), list):
        raise ValueError(f"line {number} has no vector")
    return row


def _joined(rows: list[dict[str, Any]]) -> Batch:
    with_id = [row for row in rows if "id" in row]
    if with_id and len(with_id) != len(rows):
        raise ValueError("either every line has an id, or none")
    try:
        vectors = np.array([row["vector"] for row in rows], np.float64)
    except (ValueError, TypeError):
        raise ValueError("the vectors of the lines differ in length or are not numbers") from None
    metadata = [dict(row.get("metadata") or {}) for row in rows]
    return Batch(
        vectors, [row["id"] for row in rows] if with_id else None, metadata if any(metadata) else None
    )
