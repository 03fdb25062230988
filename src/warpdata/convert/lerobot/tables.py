"""The parquet files of a LeRobot set: rows as numpy arrays, pictures and text. The adapter of pyarrow."""

from __future__ import annotations

import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of, read_only
from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.convert.place import Place
from warpdata.errors import CorruptLayoutError, FormatError, MissingExtraError, UnsupportedDtypeError, nearest
from warpdata.formats.episodedir.signal_file import arrow_errors
from warpdata.timeline.meta import OBJECT, Kind, SignalMeta, numeric_kind

_MAX_ROWS = 1 << 40
_KEPT_BYTES = 256 << 20
_KEPT_FILES = 16
_SMALL_BYTES = 1 << 20
"""A file of this size is read at once: every call of Arrow for a part of it goes through Python."""
PICTURE_FIELDS = {"bytes", "path"}


class ColumnKind:
    """What a column holds, from the schema of its file and what `info.json` declares."""

    def __init__(self, name: str, kind: Any, declared: Mapping[str, Any], path: str) -> None:
        self.name = name
        item, sides = kind, []
        while _is_list(item):
            sides.append(item.list_size if pa.types.is_fixed_size_list(item) else None)
            item = item.value_type
        self.is_picture = pa.types.is_struct(kind) and {f.name for f in kind} <= PICTURE_FIELDS
        self.is_text = not sides and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        self.is_json = not self.is_picture and (pa.types.is_struct(item) or (bool(sides) and _is_text(item)))
        self.shape: tuple[int, ...] = ()
        self.dtype = OBJECT
        if self.is_picture or self.is_text or self.is_json:
            return
        try:
            self.dtype = dtype_of(numpy_dtype(item)).dtype
        except (NotImplementedError, TypeError, ValueError):
            raise UnsupportedDtypeError(f"column {name!r} holds {kind}", path=path) from None
        if sides:
            self.shape = _shape(name, sides, declared.get("shape"), path)

    def meta(self, role: Any, clock: str, names: tuple[str, ...] | None) -> SignalMeta:
        """The signal of the column."""
        kind: Kind = "text" if self.dtype == OBJECT else numeric_kind(self.shape)
        return SignalMeta(self.dtype, self.shape, kind, names=names, role=role, clock=clock)


_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def _is_list(kind: Any) -> bool:
    return isinstance(kind, _LISTS)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _shape(name: str, sides: list[int | None], declared: Any, path: str) -> tuple[int, ...]:
    stated = (
        declared
        if isinstance(declared, list) and all(isinstance(n, int) and n > 0 for n in declared)
        else None
    )
    known = [side for side in sides if side is not None]
    if len(known) == len(sides) and (stated is None or int(np.prod(stated)) != int(np.prod(known))):
        return tuple(known)
    if stated is None:
        raise CorruptLayoutError(f"info.json does not say the shape of {name!r}", path=path)
    return tuple(stated)


class KeptRows:
    """Some rows of some columns, and those of them that were made into arrays."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.size: int = table.get_total_buffer_size()  # what is held; some rows may hold those around them
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, kind: ColumnKind, path: str) -> NDArray[Any]:
        """A column as one read-only array."""
        found = self._arrays.get(kind.name)
        if found is None:
            found = self._arrays[kind.name] = read_only(column(self.table, kind, path))
        return found


class Tables:
    """The parquet files of one place: open files and the columns read last are kept, within bounds."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = ThreadLock()
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._kept: OrderedDict[tuple[Any, ...], KeptRows] = OrderedDict()
        self._kept_bytes = 0
        self._kinds: tuple[bytes | None, Any, dict[str, ColumnKind]] | None = None
        """Of the file looked at last: its schema, as Arrow and as Parquet have it, and its columns."""

    def schema(self, file: str) -> Any:
        """The Arrow schema of a file."""
        return self._file(file).schema_arrow

    def rows(self, file: str) -> int:
        """How many rows a file has."""
        return int(self._file(file).metadata.num_rows)

    def kinds(
        self, file: str, features: Mapping[str, Mapping[str, Any]], path: str
    ) -> Mapping[str, ColumnKind]:
        """The columns of a file, those of videos excepted; a declared one that is missing is an error."""
        opened = self._file(file)
        about = (opened.metadata.metadata or {}).get(b"ARROW:schema")
        known = self._kinds
        if known is not None and known[0] == about and known[1].equals(opened.schema):
            return known[2]  # the files of a set are alike
        schema = opened.schema_arrow
        found: dict[str, ColumnKind] = {}
        declared = [name for name, each in features.items() if each.get("dtype") != "video"]
        for name in dict.fromkeys([*declared, *schema.names]):
            found[name] = ColumnKind(name, require(schema, name, path), features.get(name, {}), path)
        self._kinds = (about, opened.schema, found)
        return found

    def columns(self, file: str, names: tuple[str, ...], start: int, stop: int) -> KeptRows:
        """Rows [start, stop) of some columns; the last ones read are kept."""
        key = (file, names, start, stop)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = KeptRows(self._read(file, names, start, stop))
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = found
            self._kept_bytes += found.size - (replaced.size if replaced is not None else 0)
            while len(self._kept) > 1 and self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].size
        return found

    def everything(self, file: str) -> list[dict[str, Any]]:
        """All rows of a small file as dicts."""
        with _errors(self._place, file):
            return list(self._file(file).read(use_threads=False).to_pylist())

    def _read(self, file: str, names: Sequence[str], start: int, stop: int) -> Any:
        opened = self._file(file)
        with _errors(self._place, file):
            total = opened.metadata.num_rows
            if stop > total or start < 0:
                raise CorruptLayoutError(
                    f"rows {start} to {stop} are needed, there are {total}", path=self._at(file)
                )
            # A name is at least one column: as many names as columns are all of them, which need not be looked up.
            wanted = None if len(names) == opened.metadata.num_columns else list(names)
            if start == 0 and stop == total:
                return opened.read(columns=wanted, use_threads=False)  # as every file before v3.0
            counts = [opened.metadata.row_group(n).num_rows for n in range(opened.metadata.num_row_groups)]
            starts = np.cumsum([0, *counts])
            low = int(np.searchsorted(starts, start, side="right")) - 1
            high = int(np.searchsorted(starts, stop, side="left"))
            table = opened.read_row_groups(
                list(range(low, max(high, low))), columns=wanted, use_threads=False
            )
            return table.slice(start - int(starts[low]), stop - start).combine_chunks()

    def _file(self, file: str) -> Any:
        with self._lock:
            found = self._files.get(file)
            if found is not None:
                self._files.move_to_end(file)
                return found
        reader = self._place.open(file)
        with _errors(self._place, file):
            if reader.size <= _SMALL_BYTES:
                source = pa.BufferReader(reader.read(0, reader.size))
                reader.close()
            else:
                source = pa.PythonFile(RangeFile(reader), "r")
            found = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            rows = found.metadata.num_rows
            if not 0 <= rows <= _MAX_ROWS:
                raise CorruptLayoutError(f"a file of {rows} rows", path=self._at(file))
        with self._lock:
            self._files[file] = found
            while len(self._files) > _KEPT_FILES:
                self._files.popitem(last=False)
        return found

    def _at(self, file: str) -> str:
        return f"{self._place.name}/{file}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tables, (self._place,))


def _errors(place: Place, file: str) -> contextlib.AbstractContextManager[None]:
    return arrow_errors(f"{place.name}/{file}")


def column(table: Any, kind: ColumnKind, path: str) -> NDArray[Any]:
    """A column as one array: numbers of its type and shape, or text."""
    with arrow_errors(path):
        found = table.column(kind.name)
        found = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
        if isinstance(found, pa.ExtensionArray):
            found = found.storage
        if kind.dtype == OBJECT:
            return _objects(found, kind)
        rows, size = len(found), math.prod(kind.shape)
        while kind.shape and _is_list(found.type):
            if found.null_count:
                raise CorruptLayoutError(f"column {kind.name!r} has missing values", path=path)
            if not _are_alike(found):
                raise CorruptLayoutError(f"column {kind.name!r} has rows of different lengths", path=path)
            found = _items(found)
        if found.null_count:
            raise CorruptLayoutError(f"column {kind.name!r} has missing values", path=path)
        values = found.to_numpy(zero_copy_only=False)
    if values.size != rows * size:
        raise CorruptLayoutError(
            f"column {kind.name!r} has {values.size} numbers in {rows} rows of shape {list(kind.shape)}",
            path=path,
        )
    return np.asarray(values, kind.dtype).reshape(rows, *kind.shape)


def _are_alike(lists: Any) -> bool:
    """All lists have one length: numbers of one row never stand in another."""
    if isinstance(lists, pa.FixedSizeListArray):
        return True
    lengths = np.diff(lists.offsets.to_numpy())
    return not len(lengths) or bool((lengths == lengths[0]).all())


def _items(lists: Any) -> Any:
    """The numbers of lists without gaps, one behind the other."""
    if not isinstance(lists, pa.FixedSizeListArray):
        return lists.flatten()
    size = lists.type.list_size  # a view: `flatten` computes
    return lists.values.slice(lists.offset * size, len(lists) * size)


def _objects(found: Any, kind: ColumnKind) -> NDArray[Any]:
    values = found.to_pylist()
    out = np.empty(len(values), object)
    if kind.is_json:
        out[:] = [json.dumps(value, ensure_ascii=False, default=str) for value in values]
    else:
        out[:] = ["" if value is None else value for value in values]
    return out


def pictures(table: Any, name: str, rows: Sequence[int], path: str) -> list[tuple[bytes | None, str | None]]:
    """(bytes, path) of the pictures of a column; a row has at least one of the two."""
    with arrow_errors(path):
        found = table.column(name)
        found = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
        fields = {field.name for field in found.type}
        data = found.field("bytes") if "bytes" in fields else None
        paths = found.field("path") if "path" in fields else None
        return [
            (None if data is None else data[row].as_py(), None if paths is None else paths[row].as_py())
            for row in rows
        ]


def require(schema: Any, name: str, path: str) -> Any:
    """The type of a column that must be there."""
    if name not in schema.names:
        raise CorruptLayoutError(f"no column {name!r}.{nearest(name, schema.names)}", path=path)
    kind = schema.field(name).type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def write_table(sink: Any, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """A small table as one file."""
    table = pa.table(dict(columns))
    if metadata:
        table = table.replace_schema_metadata(dict(metadata))
    pq.write_table(table, sink, compression="snappy")


def list_column(rows: Sequence[Any]) -> Any:
    """Nested lists of numbers as a column: whole numbers stay whole, all else is float64."""
    found = pa.array(rows)
    kind = found.type
    depth = 0
    while _is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_null(kind):
        kind = pa.float64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.array(rows, type=kind)


class RowsFile:
    """The data file that frames are written into: one row group per episode."""

    def __init__(self, path: str, schema: Any) -> None:
        self.schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="snappy", write_page_checksum=True)
        self.rows = 0

    def write(self, columns: Mapping[str, Any]) -> None:
        """Add the rows of one episode."""
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def rows_schema(kinds: Mapping[str, Any]) -> Any:
    """The schema of data files."""
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


PICTURE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def arrow_type(dtype: np.dtype[Any], shape: tuple[int, ...], *, is_scalar: bool) -> Any:
    """The type of a column of numbers: a scalar, a list of fixed length, or nested lists."""
    item = pa.bool_() if dtype == np.bool_ else pa.from_numpy_dtype(dtype)
    if is_scalar:
        return item
    if len(shape) == 1:
        return pa.list_(item, shape[0])
    for _ in shape:
        item = pa.list_(item)
    return item


def number_column(values: NDArray[Any], kind: Any) -> Any:
    """An array of numbers as a column of that type."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if not _is_list(kind):
        return flat.cast(kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    sides = values.shape[1:]
    for depth in range(len(sides) - 1, -1, -1):
        size = sides[depth]
        count = len(flat) // size
        flat = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * size), flat)
    return flat


def text_column(values: Sequence[str]) -> Any:
    """Text as a column."""
    return pa.array(list(values), pa.string())


def json_column(values: Sequence[str], path: str) -> Any:
    """What `column` gave as JSON, as it was."""
    try:
        return pa.array([json.loads(value) for value in values])
    except (ValueError, pa.ArrowInvalid) as error:
        raise FormatError(f"a column that should hold JSON does not ({error})", path=path) from None


def picture_column(data: Sequence[bytes], names: Sequence[str]) -> Any:
    """Encoded pictures as a column."""
    return pa.StructArray.from_arrays(
        [pa.array(list(data), pa.binary()), pa.array(list(names), pa.string())], fields=list(PICTURE_TYPE)
    )


def task_frame(texts: Sequence[str], numbers: Sequence[int]) -> Any:
    """Tasks as a pandas frame whose index is the text."""
    table = pa.table({"task_index": pa.array(numbers, pa.int64()), "task": text_column(texts)})
    try:
        return table.to_pandas().set_index("task")
    except ImportError:
        raise MissingExtraError("pandas is not installed", hint="Install it: pip install pandas.") from None
