"""Vectors out of files and into them: .npy, parquet, lines of JSON, CSV. The adapter of pyarrow in this package."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, nearest
from warpdata.search.file.metadata import ARROW_TYPES

if TYPE_CHECKING:
    from warpdata.search.store import VectorStore

_BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class VectorRows:
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


def read_batches(path: str, columns: Columns) -> Iterator[VectorRows]:
    """Batches of a .npy or .parquet file."""
    if not os.path.exists(path):
        raise BlobNotFoundError("no such file", path=path)
    if path.endswith(".npy"):
        yield from _npy_batches(path)
    elif path.endswith((".parquet", ".pq")):
        yield from _parquet_batches(path, columns)
    else:
        raise ValueError(f"vectors come from .npy, .parquet or - for JSON lines, not {path!r}")


def _npy_batches(path: str) -> Iterator[VectorRows]:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise CorruptLayoutError(f"not a .npy file ({error})", path=path) from None
    if array.ndim != 2:
        raise ValueError(f"a .npy file of vectors has two dimensions, not {array.ndim}: {path}")
    for start in range(0, len(array), _BATCH_ROWS):
        yield VectorRows(np.asarray(array[start : start + _BATCH_ROWS]))


def _parquet_batches(path: str, columns: Columns) -> Iterator[VectorRows]:
    wanted = [columns.vector, *([columns.id] if columns.id else []), *columns.metadata]
    try:
        file = pyarrow.parquet.ParquetFile(path)
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            known = ", ".join(file.schema_arrow.names)
            guess = nearest(missing[0], file.schema_arrow.names)
            raise ValueError(f"no column {missing[0]!r} in {path}; it has {known}.{guess}")
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
            yield _from_arrow(batch, columns, path)
    except pyarrow.ArrowException as error:
        raise CorruptLayoutError(f"damaged parquet file ({error})", path=path) from None


def _from_arrow(batch: Any, columns: Columns, path: str) -> VectorRows:
    vectors = batch.column(columns.vector)
    is_list = any(
        getattr(pyarrow.types, f"is_{kind}list")(vectors.type) for kind in ("", "large_", "fixed_size_")
    )
    if vectors.null_count or not is_list:
        raise ValueError(f"the column {columns.vector!r} is not a list of numbers without gaps: {path}")
    lengths = pyarrow.compute.list_value_length(vectors).unique()
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    if len(lengths) > 1:
        raise ValueError(f"the vectors of column {columns.vector!r} differ in length: {path}")
    ids = batch.column(columns.id).to_pylist() if columns.id else None
    metadata = None
    if columns.metadata:
        metadata = [dict(row) for row in batch.select(list(columns.metadata)).to_pylist()]
    return VectorRows(flat.reshape(len(vectors), len(flat) // max(1, len(vectors))), ids, metadata)


def json_batches(lines: Iterable[str]) -> Iterator[VectorRows]:
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
    rows = [
        {"vector": each} if isinstance(each, list) else each for each in (value if is_several else [value])
    ]
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("vector"), list):
            raise ValueError(f"line {number} has no vector")
        if not isinstance(row.get("metadata") or {}, dict):
            raise ValueError(f"the metadata of line {number} is no object")
    return rows


def _joined(rows: list[dict[str, Any]]) -> VectorRows:
    with_id = [row for row in rows if "id" in row]
    if with_id and len(with_id) != len(rows):
        raise ValueError("either every line has an id, or none")
    try:
        vectors = np.array([row["vector"] for row in rows], np.float64)
    except (ValueError, TypeError, OverflowError):
        raise ValueError("the vectors of the lines differ in length or are not numbers") from None
    metadata = [dict(row.get("metadata") or {}) for row in rows]
    return VectorRows(
        vectors, [row["id"] for row in rows] if with_id else None, metadata if any(metadata) else None
    )


TABLE_SUFFIXES = (".npy", ".parquet", ".pq", ".jsonl", ".csv")


def write_rows(path: str, source: VectorStore, *, overwrite: bool) -> int:
    """Write ids, vectors and metadata to a table of the kind of its suffix; returns how many rows.

    .npy has the vectors alone, in the order of the ids. A file that exists is a ConflictError unless overwritten.
    """
    suffix = os.path.splitext(path)[1].lower()
    pair = (_write_parquet, _write_parquet)
    writers = dict(zip(TABLE_SUFFIXES, (_write_npy, *pair, _write_jsonl, _write_csv), strict=True))
    if suffix not in writers:
        raise ValueError(f"vectors are written to {', '.join(TABLE_SUFFIXES)}, not {path!r}")
    with commit_file(path, replace=overwrite) as out, os.fdopen(os.dup(out.fd), "wb") as file:
        writers[suffix](file, source)
        return len(source.ids)


def _pieces(source: VectorStore) -> Iterator[NDArray[np.int64]]:
    ids = source.ids
    for start in range(0, len(ids), _BATCH_ROWS):
        yield ids[start : start + _BATCH_ROWS]


def _write_npy(file: Any, source: VectorStore) -> None:
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (len(source.ids), source.dim)}
    )
    for ids in _pieces(source):
        file.write(np.ascontiguousarray(source.get(ids), "<f4").data)


def _named(source: VectorStore, *taken: str) -> dict[str, str]:
    """The fields that become columns beside those that are always there."""
    clash = [name for name in source.fields if name in taken]
    if clash:
        raise ValueError(f"a field of the metadata is called {clash[0]!r} as a column is; write to .jsonl")
    return source.fields


def _write_parquet(file: Any, source: VectorStore) -> None:
    fields = _named(source, "id", "vector")
    schema = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("vector", pyarrow.list_(pyarrow.float32(), source.dim)),
            *((name, ARROW_TYPES[kind]) for name, kind in fields.items()),
        ]
    )
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for ids in _pieces(source):
            flat = pyarrow.array(np.ascontiguousarray(source.get(ids)).reshape(-1))
            rows = source.metadata(ids)
            columns = [
                pyarrow.array(ids),
                pyarrow.FixedSizeListArray.from_arrays(flat, source.dim),
                *(
                    pyarrow.array([row.get(name) for row in rows], ARROW_TYPES[kind])
                    for name, kind in fields.items()
                ),
            ]
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))


def _write_jsonl(file: Any, source: VectorStore) -> None:
    for ids in _pieces(source):
        vectors, rows = source.get(ids), source.metadata(ids)
        for key, vector, row in zip(ids.tolist(), vectors.astype(str).tolist(), rows, strict=True):
            about = json.dumps({name: _text(value) for name, value in row.items()})
            line = f'{{"id": {key}, "vector": [{", ".join(vector)}], "metadata": {about}}}'
            file.write(line.encode() + b"\n")


def _write_csv(file: Any, source: VectorStore) -> None:
    numbers = [f"v{number}" for number in range(source.dim)]
    fields = list(_named(source, "id", *numbers))
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    table = csv.writer(text)
    table.writerow(["id", *numbers, *fields])
    for ids in _pieces(source):
        vectors, rows = source.get(ids), source.metadata(ids)
        for key, vector, row in zip(ids.tolist(), vectors.astype(str).tolist(), rows, strict=True):
            table.writerow([key, *vector, *(_text(row.get(name, "")) for name in fields)])
    text.flush()
    text.detach()


def _text(value: Any) -> Any:
    """A value as JSON and CSV can hold it: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else value
