"""The parquet files of a LeRobot set: columns as arrays, pictures and text. The adapter of pyarrow."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of, read_only
from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.convert.place import Place
from warpdata.convert.tables.parquet import LISTS, flat_values
from warpdata.errors import CorruptLayoutError, FormatError, MissingExtraError, UnsupportedDtypeError, nearest
from warpdata.formats.episodedir.signal_file import arrow_errors
from warpdata.timeline.meta import OBJECT

_MAX_ROWS = 1 << 40
_KEPT_BYTES = 256 << 20
_KEPT_FILES = 16
_SMALL_BYTES = 1 << 20
"""A file of this size is read at once: every read of a part goes through Python."""
PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class ColumnKind:
    """Type and shape of a column, from the schema of its file and the declaration in info.json."""

    def __init__(self, name: str, schema: Any, declared: Mapping[str, Any], path: str) -> None:
        if name not in schema.names:
            raise CorruptLayoutError(f"no column {name!r}.{nearest(name, schema.names)}", path=path)
        self.name = name
        kind = schema.field(name).type
        kind = item = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        sides: list[int | None] = []
        while isinstance(item, LISTS):
            sides.append(item.list_size if pa.types.is_fixed_size_list(item) else None)
            item = item.value_type
        is_text = bool(pa.types.is_string(item) or pa.types.is_large_string(item))
        is_struct = pa.types.is_struct(item)
        self.is_picture = not sides and is_struct and {field.name for field in kind} <= {"bytes", "path"}
        self.is_json = not self.is_picture and (is_struct or (bool(sides) and is_text))
        self.dtype = OBJECT
        self.shape: tuple[int, ...] = ()
        if is_text or is_struct:
            return
        try:
            self.dtype = dtype_of(numpy_dtype(item)).dtype
        except (NotImplementedError, TypeError, ValueError):
            raise UnsupportedDtypeError(f"column {name!r} holds {kind}", path=path) from None
        if sides:
            self.shape = _shape(name, sides, declared.get("shape"), path)

    def array(self, table: Any, path: str) -> NDArray[Any]:
        """The column of a table as one read-only array: numbers of its type and shape, or text."""
        with arrow_errors(path):
            column = one_chunk(table, self.name)
            column = column.storage if isinstance(column, pa.ExtensionArray) else column
            if self.dtype == OBJECT:
                cells, out = column.to_pylist(), np.empty(len(column), object)
                out[:] = (
                    [json.dumps(cell, ensure_ascii=False, default=str) for cell in cells]
                    if self.is_json
                    else ["" if cell is None else cell for cell in cells]
                )
                return read_only(out)
            uneven = CorruptLayoutError(f"column {self.name!r} has rows of different lengths", path=path)
            rows, (values, _) = len(column), flat_values(column, self.name, path, uneven)
        if values.size != rows * math.prod(self.shape):
            counts = f"{values.size} numbers in {rows} rows of shape {list(self.shape)}"
            raise CorruptLayoutError(f"column {self.name!r} has {counts}", path=path)
        return read_only(np.asarray(values, self.dtype).reshape(rows, *self.shape))


def _shape(name: str, sides: list[int | None], declared: Any, path: str) -> tuple[int, ...]:
    is_shape = isinstance(declared, list) and all(isinstance(n, int) and n > 0 for n in declared)
    known = [side for side in sides if side is not None]
    if len(known) == len(sides) and (not is_shape or math.prod(declared) != math.prod(known)):
        return tuple(known)
    if not is_shape:
        raise CorruptLayoutError(f"info.json does not state the shape of {name!r}", path=path)
    return tuple(declared)


def one_chunk(table: Any, name: str) -> Any:
    """A column of a table as one array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


@dataclass
class KeptRows:
    """Some rows of some columns, and the arrays that were made of them."""

    table: Any
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def array(self, kind: ColumnKind, path: str) -> NDArray[Any]:
        """A column as one read-only array."""
        if kind.name not in self.arrays:
            self.arrays[kind.name] = kind.array(self.table, path)
        return self.arrays[kind.name]


class Tables:
    """The parquet files of one place; open files and the columns read last are kept, within bounds."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = ThreadLock()
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._kept: OrderedDict[tuple[Any, ...], KeptRows] = OrderedDict()
        self._kept_bytes = 0
        self._kinds: tuple[Any, dict[str, ColumnKind]] | None = None
        """Schema and columns of the file that was looked at last: the files of a set are alike."""

    def schema(self, file: str) -> Any:
        """The Arrow schema of a file."""
        return self._file(file).schema_arrow

    def rows(self, file: str) -> int:
        """The number of rows of a file."""
        return int(self._file(file).metadata.num_rows)

    def kinds(self, file: str, features: Mapping[str, Any], path: str) -> Mapping[str, ColumnKind]:
        """The columns of a file, without those of videos; a declared one that is missing is an error."""
        schema = self.schema(file)
        if self._kinds is None or not self._kinds[0].equals(schema):
            declared = [name for name, feature in features.items() if feature.get("dtype") != "video"]
            names = dict.fromkeys([*declared, *schema.names])
            kinds = {name: ColumnKind(name, schema, features.get(name, {}), path) for name in names}
            self._kinds = (schema, kinds)
        return self._kinds[1]

    def columns(self, file: str, names: tuple[str, ...], start: int, stop: int) -> KeptRows:
        """Rows [start, stop) of some columns; those read last are kept."""
        key = (file, names, start, stop)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        rows = KeptRows(self._read(file, names, start, stop))
        with self._lock:
            if key not in self._kept:
                self._kept[key] = rows
                self._kept_bytes += rows.table.get_total_buffer_size()  # with the rows around that it holds
            while len(self._kept) > 1 and self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].table.get_total_buffer_size()
        return rows

    def everything(self, file: str) -> list[dict[str, Any]]:
        """All rows of a small file as dicts."""
        with arrow_errors(self._path(file)):
            return list(self._file(file).read(use_threads=False).to_pylist())

    def _read(self, file: str, names: Sequence[str], start: int, stop: int) -> Any:
        opened = self._file(file)
        with arrow_errors(self._path(file)):
            about = opened.metadata
            if stop > about.num_rows or start < 0:
                fact = f"rows {start} to {stop} are needed, there are {about.num_rows}"
                raise CorruptLayoutError(fact, path=self._path(file))
            if start == 0 and stop == about.num_rows:
                return opened.read(columns=list(names), use_threads=False)
            starts = np.cumsum([0, *(about.row_group(n).num_rows for n in range(about.num_row_groups))])
            low = int(np.searchsorted(starts, start, side="right")) - 1
            groups = range(low, max(low, int(np.searchsorted(starts, stop, side="left"))))
            table = opened.read_row_groups(list(groups), columns=list(names), use_threads=False)
            return table.slice(start - int(starts[low]), stop - start).combine_chunks()

    def _file(self, file: str) -> Any:
        with self._lock:
            if file in self._files:
                self._files.move_to_end(file)
                return self._files[file]
        reader = self._place.open(file)
        with arrow_errors(self._path(file)):
            if reader.size <= _SMALL_BYTES:
                source = pa.BufferReader(reader.read(0, reader.size))
                reader.close()
            else:
                source = pa.PythonFile(RangeFile(reader), "r")
            opened = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            if not 0 <= opened.metadata.num_rows <= _MAX_ROWS:
                fact = f"a file of {opened.metadata.num_rows} rows"
                raise CorruptLayoutError(fact, path=self._path(file))
        with self._lock:
            self._files[file] = opened
            while len(self._files) > _KEPT_FILES:
                self._files.popitem(last=False)
        return opened

    def _path(self, file: str) -> str:
        return f"{self._place.name}/{file}"


def pictures(table: Any, name: str, rows: range, path: str) -> list[tuple[bytes | None, str | None]]:
    """(bytes, path) of the pictures of a column; a row has at least one of the two."""
    with arrow_errors(path):
        values = one_chunk(table, name).slice(rows.start, len(rows)).to_pylist()
    return [(picture.get("bytes"), picture.get("path")) if picture else (None, None) for picture in values]


def write_table(path: str, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a small table as one file."""
    table = pa.table(dict(columns))
    pq.write_table(table.replace_schema_metadata(dict(metadata)) if metadata else table, path)


def list_column(rows: Sequence[Any]) -> Any:
    """Nested lists of numbers as a column; one without any number is of float64."""
    column = pa.array(rows)
    kind, depth = column.type, 0
    while isinstance(kind, LISTS):
        kind, depth = kind.value_type, depth + 1
    kind = pa.float64() if pa.types.is_null(kind) else kind
    for _ in range(depth):
        kind = pa.list_(kind)
    return column.cast(kind)


class RowsFile:
    """A data file being written: one row group per episode."""

    def __init__(self, path: str, columns: Mapping[str, Any]) -> None:
        self._schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
        self._writer = pq.ParquetWriter(path, self._schema, write_page_checksum=True)

    def write(self, columns: Mapping[str, Any]) -> None:
        """Add the rows of one episode."""
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    discard = close


def number_column(values: NDArray[Any], *, is_scalar: bool) -> Any:
    """Numbers as a column: scalars, lists of fixed length, or nested lists."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if is_scalar:
        return flat
    sides = values.shape[1:]
    if len(sides) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, sides[0])
    for size in reversed(sides):
        offsets = np.arange(len(flat) // size + 1, dtype=np.int32) * size
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return flat


def text_column(values: Sequence[str]) -> Any:
    """Text as a column."""
    return pa.array(list(values), pa.string())


def json_column(values: Sequence[str], path: str) -> Any:
    """JSON of lists or structs as a column of them."""
    try:
        return pa.array([json.loads(value) for value in values])
    except (ValueError, pa.ArrowInvalid) as error:
        raise FormatError(f"invalid JSON in a column ({error})", path=path) from None


def picture_column(data: Sequence[bytes], names: Sequence[str]) -> Any:
    """Encoded pictures as a column."""
    arrays = [pa.array(list(data), pa.binary()), pa.array(list(names), pa.string())]
    return pa.StructArray.from_arrays(arrays, fields=list(PICTURE_TYPE))


def task_frame(texts: Sequence[str], numbers: Sequence[int]) -> Any:
    """Tasks as a pandas frame whose index is the text."""
    table = pa.table({"task_index": pa.array(numbers, pa.int64()), "task": text_column(texts)})
    try:
        return table.to_pandas().set_index("task")
    except ImportError:
        raise MissingExtraError("pandas is not installed", hint="Install it: pip install pandas.") from None
