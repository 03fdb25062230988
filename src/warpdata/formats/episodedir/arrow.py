"""Parquet files of signals and frame indexes. The adapter of pyarrow."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
from collections.abc import Container, Mapping
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.arrow_arrays import numpy_dtype, text_to_arrow, to_arrow, to_numpy
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.plain_parquet import MAX_PLAIN_BYTES, PlainColumn, plain_bytes, plain_file

_FLOATS = {"f64", "f32", "f16"}
_STORED_AS = {"bf16": "u16"}
"""Arrow has no bf16; its bits are stored as u16 and the true type in the schema metadata."""

_TEXT = {"text": pa.string(), "bytes": pa.binary()}


def signal_schema(description: Mapping[str, Any]) -> Any:
    """The schema of a signal file: `timestamp` and `value`, with the description in its metadata."""
    return _schema(json.dumps(dict(description), separators=(",", ":")))


@functools.lru_cache(maxsize=256)
def _schema(text: str) -> Any:
    """The schema of a signal by its description as JSON: the next episode has the same signals."""
    fields = [
        pa.field(layout.TIME_COLUMN, pa.int64(), nullable=False),
        pa.field(layout.VALUE_COLUMN, _value_type(json.loads(text)), nullable=False),
    ]
    return pa.schema(fields, metadata={layout.SCHEMA_KEY: text.encode()})


def _value_type(description: Mapping[str, Any]) -> Any:
    kind = description["kind"]
    if kind in _TEXT:
        return _TEXT[kind]
    item = pa.from_numpy_dtype(dtype_named(_STORED_AS.get(description["dtype"], description["dtype"])).dtype)
    if not description["shape"]:
        return item
    return pa.list_(pa.field("element", item, nullable=False), math.prod(description["shape"]))


class TableWriter:
    """A parquet file that grows by row groups."""

    def __init__(self, path: Any, schema: Any, description: Mapping[str, Any]) -> None:
        self._schema = schema
        self._description = description
        self._writer = pq.ParquetWriter(
            path, schema, compression="zstd", compression_level=1, use_dictionary=False, version="2.6",
            column_encoding=_encodings(description), write_page_checksum=True, store_schema=True,
        )  # fmt: skip

    def write(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add rows as one row group."""
        columns = [to_arrow(stamps), _values_to_arrow(values, self._description)]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=max(1, len(stamps)))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def table_bytes(
    description: Mapping[str, Any], stamps: NDArray[np.int64], values: NDArray[Any], text: bytes | None = None
) -> Any:
    """The file of a signal whose records are one row group, as a buffer; a small one is plain.

    `text` is what `description_text` makes of the description, where the caller has it.
    """
    found = plain_table(description, stamps, values, text)
    if found is not None:
        return found
    sink = pa.BufferOutputStream()
    writer = TableWriter(sink, signal_schema(description), description)
    writer.write(stamps, values)
    writer.close()
    return sink.getvalue()


def plain_table(
    description: Mapping[str, Any], stamps: NDArray[np.int64], values: NDArray[Any], text: bytes | None = None
) -> bytes | None:
    """The file of a small signal of numbers, neither encoded nor compressed; None where it is not small."""
    if description["kind"] in _TEXT or not len(stamps):
        return None
    dtype = description["dtype"]
    if dtype in _STORED_AS:
        dtype, values = _STORED_AS[dtype], values.view(np.uint16)
    per_row = math.prod(description["shape"]) if description["shape"] else None
    columns = [
        PlainColumn(layout.TIME_COLUMN, "i64", stamps, is_sorted=True, is_shared=True),
        PlainColumn(layout.VALUE_COLUMN, dtype, values, per_row),
    ]
    if plain_bytes(columns) > MAX_PLAIN_BYTES:
        return None
    text = description_text(description) if text is None else text
    return plain_file(columns, text, _signal_schema_bytes(text))


@functools.lru_cache(maxsize=512)
def _signal_schema_bytes(text: bytes) -> bytes:
    """The schema of the signals with a description, as Arrow stores it."""
    return bytes(signal_schema(json.loads(text)).serialize().to_pybytes())


_COMPACT = json.JSONEncoder(separators=(",", ":"))


def description_text(description: Mapping[str, Any]) -> bytes:
    """A description as it is stored in a schema."""
    return _COMPACT.encode(dict(description)).encode()


def _encodings(description: Mapping[str, Any]) -> dict[str, str]:
    chosen = {layout.TIME_COLUMN: "DELTA_BINARY_PACKED"}
    if description["kind"] not in _TEXT and description["dtype"] in _FLOATS:
        column = layout.VALUE_COLUMN + (".list.element" if description["shape"] else "")
        chosen[column] = "BYTE_STREAM_SPLIT"
    return chosen


def _values_to_arrow(values: NDArray[Any], description: Mapping[str, Any]) -> Any:
    if description["kind"] in _TEXT:
        return text_to_arrow(values.tolist(), _TEXT[description["kind"]])
    if description["dtype"] in _STORED_AS:
        values = values.view(np.uint16)
    flat = to_arrow(np.ascontiguousarray(values).reshape(-1))
    if not description["shape"]:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, type=_value_type(description))


class ParquetFooter:
    """What the end of a parquet file tells without reading its columns."""

    def __init__(self, data: Any, path: str) -> None:
        self.path = path
        with arrow_errors(path):
            is_file = isinstance(data, io.RawIOBase)
            source = pa.PythonFile(data, "r") if is_file else pa.BufferReader(data)
            self._file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            self.schema = self._file.schema_arrow
            self.rows = self._file.metadata.num_rows
        if not 0 <= self.rows <= layout.MAX_RECORDS:
            raise CorruptLayoutError(f"a file of {self.rows} rows", path=path)

    @property
    def description(self) -> dict[str, Any] | None:
        """Our description of the signal, or None in files of other writers."""
        text = (self.schema.metadata or {}).get(layout.SCHEMA_KEY)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise CorruptLayoutError("the description in the schema is not JSON", path=self.path)
        return found

    def time_column(self, own: str) -> str:
        """The column of the clock: ours, or the first named clock of the existing library."""
        names = list(self.schema.names)
        found = (
            own
            if own in names
            else next((n for n in names if n.startswith(layout.FOREIGN_TIME_PREFIX)), None)
        )
        if found is None or self.schema.field(found).type != pa.int64():
            raise CorruptLayoutError(f"no int64 column {own!r}", path=self.path)
        return found

    def group_rows(self) -> list[int]:
        """How many rows each row group has."""
        meta = self._file.metadata
        return [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Least and greatest value of an int64 column by the statistics of its row groups."""
        found: list[tuple[int, int]] = []
        with arrow_errors(self.path):
            meta = self._file.metadata
            for number in range(meta.num_row_groups):
                group = meta.row_group(number)
                if not group.num_rows:
                    continue
                chunk = group.column(self.schema.names.index(column))
                if (
                    chunk.path_in_schema != column
                    or chunk.statistics is None
                    or not chunk.statistics.has_min_max
                ):
                    return None
                found.append((int(chunk.statistics.min), int(chunk.statistics.max)))
        return (found[0][0], found[-1][1]) if found else None

    def read(self, columns: list[str]) -> dict[str, Any]:
        """These columns, each as one arrow array."""
        with arrow_errors(self.path):
            table = self._file.read(columns=columns, use_threads=False)
            out = {}
            for name in columns:
                chunks = table.column(name)
                out[name] = chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
        for name, array in out.items():
            if len(array) != self.rows or array.null_count:
                raise CorruptLayoutError(f"column {name!r} has missing values", path=self.path)
        return out

    def value_dtype(self) -> tuple[Any, bool]:
        """(numpy dtype or None for text, whether values are lists) of the `value` column."""
        if layout.VALUE_COLUMN not in self.schema.names:
            raise CorruptLayoutError(f"no column {layout.VALUE_COLUMN!r}", path=self.path)
        kind = self.schema.field(layout.VALUE_COLUMN).type
        is_list = _is_list(kind)
        item = kind.value_type if is_list else kind
        if pa.types.is_string(item) or pa.types.is_binary(item):
            return (str if pa.types.is_string(item) else bytes), is_list
        try:
            return numpy_dtype(item), is_list
        except (NotImplementedError, TypeError):
            raise CorruptLayoutError(f"values of type {item} are not known", path=self.path) from None


def int64_of(array: Any) -> NDArray[np.int64]:
    """An arrow int64 array as numpy, without a copy where arrow allows."""
    return np.asarray(to_numpy(array), np.int64)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def values_of(array: Any, dtype: str, shape: tuple[int, ...], path: str) -> NDArray[Any]:
    """The `value` column as one batch of the described type and shape."""
    with arrow_errors(path):
        stored = dtype_named(_STORED_AS.get(dtype, dtype)).dtype
        rows, size = len(array), math.prod(shape)
        is_list = _is_list(array.type)
        flat = array.flatten() if is_list else array
        out = to_numpy(flat)
        is_even = not is_list or bool((to_numpy(array.value_lengths()) == size).all())
    if (
        is_list != bool(shape)
        or not is_even
        or out.dtype != stored
        or out.size != rows * size
        or flat.null_count
    ):
        raise CorruptLayoutError(f"values are not {rows} records of {dtype}{list(shape)}", path=path)
    if dtype in _STORED_AS:
        out = out.view(dtype_named(dtype).dtype)
    return out.reshape(rows, *shape)


def list_shape(array: Any, path: str) -> tuple[int, ...]:
    """The one length all lists of a foreign file share."""
    with arrow_errors(path):
        lengths = np.unique(to_numpy(array.value_lengths()))
    if len(lengths) != 1:
        raise CorruptLayoutError("vectors of different lengths in one signal", path=path)
    return (int(lengths[0]),)


def objects_of(array: Any, kind: str, path: str) -> NDArray[Any]:
    """Text or bytes as an array of objects."""
    if array.type != _TEXT[kind]:
        raise CorruptLayoutError(f"values of type {array.type} are no {kind}", path=path)
    out = np.empty(len(array), object)
    with arrow_errors(path):
        out[:] = array.to_pylist()
    return out


def write_columns(
    path: str | BinaryIO, columns: Mapping[str, NDArray[Any]], description: Mapping[str, Any]
) -> None:
    """Write flat columns with a description, as one row group."""
    arrays = {name: to_arrow(values) for name, values in columns.items()}
    fields = [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
    schema = pa.schema(fields, metadata={layout.SCHEMA_KEY: description_text(description)})
    table = pa.Table.from_arrays(list(arrays.values()), schema=schema)
    ints = [name for name, array in arrays.items() if array.type == pa.int64()]
    pq.write_table(
        table, path, compression="zstd", compression_level=1, use_dictionary=False, version="2.6",
        column_encoding=dict.fromkeys(ints, "DELTA_BINARY_PACKED"), write_page_checksum=True,
        row_group_size=max(1, len(table)),
    )  # fmt: skip


def columns_bytes(
    columns: Mapping[str, NDArray[Any]], description: Mapping[str, Any], shared: Container[str] = ()
) -> Any:
    """What `write_columns` writes, as a buffer; few rows of it are plain.

    `shared` names columns that the next file is likely to have too.
    """
    plain = [
        PlainColumn(name, dtype_of(each.dtype).name, each, is_shared=name in shared)
        for name, each in columns.items()
    ]
    if len(plain[0].values) and plain_bytes(plain) <= MAX_PLAIN_BYTES:
        return plain_file(plain, description_text(description))
    sink = pa.BufferOutputStream()
    write_columns(sink, columns, description)
    return sink.getvalue()


_ABOUT_BYTES = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError)


class _ArrowErrorsMapped:
    """A class, not a generator: every column of every episode goes through one."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, FormatError):
            return
        if isinstance(error, FileNotFoundError):
            raise CorruptLayoutError("the file is missing", path=self._path) from None
        if isinstance(error, MemoryError):
            raise LimitExceededError("the file announces more than fits in memory", path=self._path) from None
        if isinstance(error, _ABOUT_BYTES):
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CorruptLayoutError(f"not a readable parquet file ({text})", path=self._path) from None


def arrow_errors(path: str) -> contextlib.AbstractContextManager[None]:
    """Turn whatever pyarrow says about damaged bytes into ours."""
    return _ArrowErrorsMapped(path)
