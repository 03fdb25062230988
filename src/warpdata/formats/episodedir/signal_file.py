"""Signals and frame indexes as parquet files. The adapter of pyarrow."""

from __future__ import annotations

import functools
import io
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.arrow_arrays import numpy_dtype, text_to_arrow, to_arrow, to_numpy
from warpdata.bytekit.io.ranges import RangeFile, RangeReader, retry_damaged
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Description, FileSum, Summary, read_bytes

_STORED_AS = {"bf16": "u16"}
"""Arrow has no bf16; its bits are stored as u16 and the true type in the schema metadata."""
_TEXT = {"text": pa.string(), "bytes": pa.binary()}
_MAX_FILE_BYTES = 1 << 36
SMALL_BYTES = 16 << 10
"""Tables of at most so many bytes are neither encoded nor compressed: that takes longer than writing them."""


# Writing.


def signal_schema(description: Mapping[str, Any]) -> Any:
    """The schema of a signal file: `timestamp` and `value`, with the description in its metadata."""
    return _schema(json.dumps(dict(description), separators=(",", ":")))


@functools.lru_cache(maxsize=256)
def _schema(text: str) -> Any:
    """The schema for a description as JSON: the next episode has the same signals."""
    value = pa.field(layout.VALUE_COLUMN, _value_type(json.loads(text)), nullable=False)
    time = pa.field(layout.TIME_COLUMN, pa.int64(), nullable=False)
    return pa.schema([time, value], metadata={layout.SCHEMA_KEY: text.encode()})


def _value_type(description: Mapping[str, Any]) -> Any:
    kind = description["kind"]
    if kind in _TEXT:
        return _TEXT[kind]
    item = pa.from_numpy_dtype(dtype_named(_STORED_AS.get(description["dtype"], description["dtype"])).dtype)
    if kind in layout.RAGGED_KINDS:
        return pa.list_(pa.field("element", item, nullable=False))
    if not description["shape"]:
        return item
    return pa.list_(pa.field("element", item, nullable=False), math.prod(description["shape"]))


class TableWriter:
    """A parquet file that grows by row groups."""

    def __init__(
        self, sink: Any, schema: Any, description: Mapping[str, Any], *, is_small: bool = False
    ) -> None:
        self._schema = schema
        self._description = description
        is_sound = description["kind"] == "sound"
        self._writer = pq.ParquetWriter(sink, schema, **_options(schema, is_small, is_sound=is_sound))

    def write(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add rows as one row group."""
        about = self._description
        if about["kind"] in _TEXT:
            column = text_to_arrow(values.tolist(), _TEXT[about["kind"]])
        elif about["kind"] in layout.RAGGED_KINDS:
            flat = np.concatenate([np.empty(0, dtype_named(about["dtype"]).dtype), *map(np.ravel, values)])
            ends = np.cumsum([0, *(value.size for value in values)], dtype=np.int32)
            stored = flat.view(np.uint16) if about["dtype"] in _STORED_AS else flat
            kind = _value_type(about)
            column = pa.ListArray.from_arrays(to_arrow(ends), to_arrow(stored), type=kind)
        else:
            stored = values.view(np.uint16) if about["dtype"] in _STORED_AS else values
            column = to_arrow(np.ascontiguousarray(stored).reshape(-1))
            if about["shape"]:
                column = pa.FixedSizeListArray.from_arrays(column, type=_value_type(about))
        table = pa.Table.from_arrays([to_arrow(stamps), column], schema=self._schema)
        self._writer.write_table(table, row_group_size=max(1, len(stamps)))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def table_bytes(description: Mapping[str, Any], stamps: NDArray[np.int64], values: NDArray[Any]) -> Any:
    """The file of a signal whose records are one row group, as a buffer."""
    is_small = values.dtype != np.dtype(object) and stamps.nbytes + values.nbytes <= SMALL_BYTES
    sink = pa.BufferOutputStream()
    writer = TableWriter(sink, signal_schema(description), description, is_small=is_small)
    writer.write(stamps, values)
    writer.close()
    return sink.getvalue()


def write_columns(
    path: str | None, columns: Mapping[str, NDArray[Any]], description: Mapping[str, Any]
) -> bytes:
    """Write flat columns with a description, as one row group; the bytes of the file if there is no path."""
    arrays = {name: to_arrow(values) for name, values in columns.items()}
    fields = [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
    text = json.dumps(dict(description), separators=(",", ":")).encode()
    schema = pa.schema(fields, metadata={layout.SCHEMA_KEY: text})
    table = pa.Table.from_arrays(list(arrays.values()), schema=schema)
    is_small = table.nbytes <= SMALL_BYTES
    sink: Any = path or pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=max(1, len(table)), **_options(schema, is_small))
    return b"" if path else bytes(sink.getvalue())


def _options(schema: Any, is_small: bool, *, is_sound: bool = False) -> dict[str, Any]:
    options: dict[str, Any] = {"use_dictionary": False, "version": "2.6", "write_page_checksum": True}
    if is_small:
        return {**options, "compression": "none"}
    encodings = {}
    for field in schema:
        item = field.type.value_type if _is_list(field.type) else field.type
        column = field.name + (".list.element" if _is_list(field.type) else "")
        if field.type == pa.int64() or (is_sound and pa.types.is_integer(item)):
            encodings[column] = "DELTA_BINARY_PACKED"  # neighbours in sound differ by little
        elif pa.types.is_floating(item):
            encodings[column] = "BYTE_STREAM_SPLIT"
    return {**options, "compression": "zstd", "compression_level": 1, "column_encoding": encodings}


# Reading.


class ParquetFooter:
    """The end of a parquet file, read without its columns."""

    def __init__(self, data: Any, path: str) -> None:
        self.path = path
        with arrow_errors(path):
            source = pa.PythonFile(data, "r") if isinstance(data, io.RawIOBase) else pa.BufferReader(data)
            self._file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            self.schema = self._file.schema_arrow
            self.rows = self._file.metadata.num_rows
        if not 0 <= self.rows <= layout.MAX_RECORDS:
            raise CorruptLayoutError(f"a file of {self.rows} rows", path=path)

    @property
    def stated(self) -> dict[str, Any] | None:
        """Our description in the schema; None in files of other writers."""
        text = (self.schema.metadata or {}).get(layout.SCHEMA_KEY)
        if text is None:
            return None
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise CorruptLayoutError("the description in the schema is not JSON", path=self.path)
        return entry

    def description(self) -> Description:
        """The description of the signal; of another writer's file, derived from its types."""
        stated = self.stated
        if stated is not None:
            return Description.from_json(stated, self.path)
        if layout.VALUE_COLUMN not in self.schema.names:
            raise CorruptLayoutError(f"no column {layout.VALUE_COLUMN!r}", path=self.path)
        kind = self.schema.field(layout.VALUE_COLUMN).type
        is_list = _is_list(kind)
        item = kind.value_type if is_list else kind
        if pa.types.is_string(item) or pa.types.is_binary(item):
            name = "text" if pa.types.is_string(item) else "bytes"
            return Description(name, name, ())
        try:
            dtype = dtype_of(numpy_dtype(item)).name
        except (NotImplementedError, TypeError, ValueError):
            raise CorruptLayoutError(f"values of type {item} are not known", path=self.path) from None
        if not is_list:
            return Description("scalar", dtype, ())
        column = self.read([layout.VALUE_COLUMN])[layout.VALUE_COLUMN]
        with arrow_errors(self.path):
            lengths = np.unique(to_numpy(column.value_lengths()))
        if len(lengths) == 1 and lengths[0]:
            return Description("vector", dtype, (int(lengths[0]),))
        return Description("ragged", dtype, ())

    def time_column(self, own: str) -> str:
        """The column of the clock: ours, or the first named clock of the existing library."""
        foreign = (name for name in self.schema.names if name.startswith(layout.FOREIGN_TIME_PREFIX))
        column = own if own in self.schema.names else next(foreign, None)
        if column is None or self.schema.field(column).type != pa.int64():
            raise CorruptLayoutError(f"no int64 column {own!r}", path=self.path)
        return column

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Least and greatest value of an int64 column by the statistics of its row groups."""
        groups: list[tuple[int, int]] = []
        with arrow_errors(self.path):
            meta = self._file.metadata
            for number in range(meta.num_row_groups):
                chunk = meta.row_group(number).column(self.schema.names.index(column))
                statistics = chunk.statistics
                if not chunk.num_values:
                    continue
                if chunk.path_in_schema != column or statistics is None or not statistics.has_min_max:
                    return None
                groups.append((int(statistics.min), int(statistics.max)))
        return (groups[0][0], groups[-1][1]) if groups else None

    def read_groups(self, column: str) -> list[Any]:
        """A column as arrow arrays, one for every row group."""
        with arrow_errors(self.path):
            count = self._file.num_row_groups
            tables = [self._file.read_row_group(n, [column], use_threads=False) for n in range(count)]
            return [chunk for table in tables for chunk in table.column(column).chunks]

    def read(self, columns: list[str]) -> dict[str, Any]:
        """These columns, each as one arrow array."""
        with arrow_errors(self.path):
            table = self._file.read(columns=columns, use_threads=False)
            arrays = {name: table.column(name) for name in columns}
            arrays = {
                name: chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
                for name, chunks in arrays.items()
            }
        for name, array in arrays.items():
            if len(array) != self.rows or array.null_count:
                raise CorruptLayoutError(f"column {name!r} has missing values", path=self.path)
        return arrays

    def times(self, own: str) -> NDArray[np.int64]:
        """The column of the clock as numpy."""
        column = self.time_column(own)
        return np.asarray(to_numpy(self.read([column])[column]), np.int64)


def read_summary(reader: RangeReader) -> Summary:
    """Read only the footer of a signal file."""
    footer = ParquetFooter(RangeFile(reader), reader.name)
    description = footer.description()
    bounds = footer.bounds(footer.time_column(layout.TIME_COLUMN))
    if bounds is None and footer.rows:
        stamps, _ = read_signal(reader)
        bounds = (int(stamps[0]), int(stamps[-1]))
    first, last = bounds or (None, None)
    return Summary(description, footer.rows, first, last)


def read_signal(
    reader: RangeReader, expected: FileSum | None = None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """All timestamps and values of a signal file, verified and read-only."""

    def read() -> tuple[NDArray[np.int64], NDArray[Any]]:
        data = read_bytes(reader, max_bytes=_MAX_FILE_BYTES)
        if expected is not None:
            expected.check(data, reader.name)
        return parse_signal(data, reader.name)[1:]

    return retry_damaged(reader, read)


def parse_signal(data: bytes, path: str) -> tuple[Description, NDArray[np.int64], NDArray[Any]]:
    """Description, timestamps and values from the bytes of a signal file."""
    footer = ParquetFooter(data, path)
    description = footer.description()
    column = footer.time_column(layout.TIME_COLUMN)
    # The elements of all values of varying length may be more than one list of Arrow can hold.
    arrays = footer.read([column] if description.is_ragged else [column, layout.VALUE_COLUMN])
    stamps = np.asarray(to_numpy(arrays[column]), np.int64)
    check_clock(stamps, path)
    if description.is_ragged:
        parts = [_ragged_values(part, description, path) for part in footer.read_groups(layout.VALUE_COLUMN)]
        values = np.concatenate([np.empty(0, object), *parts])
        if len(values) != len(stamps):
            raise CorruptLayoutError(f"{len(values)} values for {len(stamps)} times", path=path)
    else:
        values = _values(arrays[layout.VALUE_COLUMN], description, path)
    stamps.flags.writeable = values.flags.writeable = False
    return description, stamps, values


def _values(array: Any, description: Description, path: str) -> NDArray[Any]:
    """The `value` column as one batch of the described type and shape."""
    if description.kind in _TEXT:
        if array.type != _TEXT[description.kind]:
            raise CorruptLayoutError(f"values of type {array.type} are no {description.kind}", path=path)
        out = np.empty(len(array), object)
        with arrow_errors(path):
            out[:] = array.to_pylist()
        return out
    dtype, shape, rows = description.dtype, description.shape, len(array)
    size, is_list = math.prod(shape), _is_list(array.type)
    with arrow_errors(path):
        flat = array.flatten() if is_list else array
        values = to_numpy(flat)
        is_even = not is_list or bool((to_numpy(array.value_lengths()) == size).all())
    is_typed = values.dtype == dtype_named(_STORED_AS.get(dtype, dtype)).dtype and not flat.null_count
    if is_list != bool(shape) or not is_even or not is_typed or values.size != rows * size:
        raise CorruptLayoutError(f"values are not {rows} records of {dtype}{list(shape)}", path=path)
    if dtype in _STORED_AS:
        values = values.view(dtype_named(dtype).dtype)
    return values.reshape(rows, *shape)


def _ragged_values(array: Any, description: Description, path: str) -> NDArray[Any]:
    """Values of varying length as read-only arrays of rows over one memory."""
    dtype, width = description.dtype, math.prod(description.shape)
    with arrow_errors(path):
        is_list = _is_list(array.type) and not array.null_count and not array.flatten().null_count
        flat = to_numpy(array.flatten()) if is_list else np.empty(0)
        ends = np.cumsum(to_numpy(array.value_lengths()), dtype=np.int64) if is_list else np.empty(0)
    if not is_list or flat.dtype != dtype_named(_STORED_AS.get(dtype, dtype)).dtype or (ends % width).any():
        raise CorruptLayoutError(f"values are not rows of {dtype}{list(description.shape)}", path=path)
    rows = flat.view(dtype_named(dtype).dtype).reshape(-1, *description.shape)
    rows.flags.writeable = False
    values = np.empty(len(array), object)
    bounds = [0, *(ends // width).tolist()]
    for at, (low, high) in enumerate(itertools.pairwise(bounds)):
        values[at] = rows[low:high]
    return values


def check_clock(stamps: NDArray[np.int64], path: str) -> None:
    """Raise unless the timestamps of a file are strictly increasing."""
    wrong = np.flatnonzero(stamps[1:] <= stamps[:-1])
    if len(wrong):
        raise CorruptLayoutError(f"the time of record {int(wrong[0]) + 1} is not increasing", path=path)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


_ABOUT_BYTES = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError)


@contextmanager
def arrow_errors(path: str) -> Iterator[None]:
    """Turn the errors of pyarrow about damaged bytes into ours."""
    try:
        yield
    except FormatError:
        raise
    except FileNotFoundError:
        raise CorruptLayoutError("the file is missing", path=path) from None
    except MemoryError:
        raise LimitExceededError("the file announces more than fits in memory", path=path) from None
    except _ABOUT_BYTES as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptLayoutError(f"not a readable parquet file ({text})", path=path) from None
