"""Arrow and Parquet files of Minari: one file per episode, nested columns. The adapter of their tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.convert.place import Place
from warpdata.convert.stepped import Rows
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError
from warpdata.timeline.meta import Kind

_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, MemoryError)
MAX_COLUMN_BYTES = 4 << 30
"""What one column of one episode may take once it is read."""


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors of the library about a file into ours."""
    try:
        yield
    except (CorruptLayoutError, LimitExceededError, UnsupportedDtypeError):
        raise
    except _ERRORS as error:
        raise CorruptLayoutError(f"the table cannot be read ({str(error)[:200]})", path=name) from None


_ALONE = pa.ipc.IpcReadOptions(use_threads=False)


class MinariTable:
    """The table of one episode; a column is read when it is asked for."""

    def __init__(self, place: Place, name: str, format_name: str) -> None:
        self._place, self._file, self._format = place, name, format_name
        self.name = f"{place.name}/{name}"
        self._columns: dict[str, pa.Array] = {}
        with reading(self.name), contextlib.closing(place.open(name)) as reader:
            if format_name == "parquet":
                found = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                self.schema, self.count = found.schema_arrow, int(found.metadata.num_rows)
                self._check_parquet(found.metadata)
            else:
                opened = pa.ipc.open_file(RangeFile(reader), options=_ALONE)
                self.schema = opened.schema
                self.count = sum(opened.get_batch(at).num_rows for at in range(opened.num_record_batches))

    def _check_parquet(self, about: Any) -> None:
        size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        if size > MAX_COLUMN_BYTES or self.count < 0:
            raise LimitExceededError(f"a table of {size} bytes", path=self.name)

    def top(self, name: str) -> pa.Array:
        """A column at the top, as one array."""
        found = self._columns.get(name)
        if found is None:
            with reading(self.name), contextlib.closing(self._place.open(self._file)) as reader:
                if self._format == "parquet":
                    table = pq.ParquetFile(RangeFile(reader), pre_buffer=False).read(
                        columns=[name], use_threads=False
                    )
                else:
                    table = pa.ipc.open_file(RangeFile(reader), options=_ALONE).read_all().select([name])
                table.validate(full=True)
                found = self._columns[name] = table.column(name).combine_chunks()
                if isinstance(found, pa.ChunkedArray):
                    found = self._columns[name] = pa.concat_arrays(found.chunks)
            if len(found) != self.count:
                raise CorruptLayoutError(
                    f"column {name!r} has {len(found)} rows of {self.count}", path=self.name
                )
        return found

    def leaves(self) -> list[tuple[str, Any]]:
        """The path of every column that is no struct, with its field."""
        return column_leaves(self.schema)

    def rows(self, path: str, field: Any, shape: tuple[int, ...] | None, count: int) -> ArrowRows:
        """A column by rows, the first `count` of them."""
        return ArrowRows(self, path, field, shape, count)

    def __reduce__(self) -> tuple[Any, ...]:
        return (MinariTable, (self._place, self._file, self._format))


def column_leaves(schema: Any) -> list[tuple[str, Any]]:
    """The path of every column of a schema that is no struct, with its field."""
    return [leaf for field in schema for leaf in _leaves(field, field.name)]


def _without_gaps(found: Any, path: str, name: str) -> Any:
    """What holds a value everywhere: a gap among numbers would become a number."""
    if found.null_count:
        raise CorruptLayoutError(f"column {path!r} has rows without a value", path=name)
    return found


def column_values(column: Any, path: str, field: Any, name: str) -> NDArray[Any]:
    """The values of a leaf below a column, all rows: numbers with the shape of their lists, or objects."""
    with reading(name):
        found = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        for part in path.split("/")[1:]:
            found = _without_gaps(found, path, name).field(part)
        count, kind = len(_without_gaps(found, path, name)), field.type
        if not (
            pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        ) and (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
        ):
            out = np.empty(count, object)
            out[:] = found.to_pylist()
            return out
        sides: list[int] = []
        while (
            pa.types.is_list(found.type)
            or pa.types.is_large_list(found.type)
            or pa.types.is_fixed_size_list(found.type)
        ):
            lengths = np.unique(pa.compute.list_value_length(found).to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                raise UnsupportedDtypeError(
                    f"column {path!r} holds lists of different lengths",
                    path=name,
                    hint="Leave it out with a mapping.",
                )
            sides.append(int(lengths[0]) if len(lengths) else 0)
            found = _without_gaps(found.flatten(), path, name)
        try:
            dtype = dtype_of(numpy_dtype(found.type)).dtype
        except (ValueError, NotImplementedError, TypeError):
            raise UnsupportedDtypeError(f"column {path!r} holds {field.type}", path=name) from None
        values = found.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        return np.asarray(values.reshape(count, *sides))


def _leaves(field: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if pa.types.is_struct(field.type) and depth < 32:
        for number in range(field.type.num_fields):
            inner = field.type.field(number)
            yield from _leaves(inner, f"{path}/{inner.name}", depth + 1)
    else:
        yield path, field


class ArrowRows(Rows):
    """A column of numbers, lists of numbers, text or bytes by rows."""

    def __init__(
        self, table: MinariTable, path: str, field: Any, shape: tuple[int, ...] | None, count: int
    ) -> None:
        self._table, self._path, self._field, self.count = table, path, field, count
        self._values: NDArray[Any] | None = None
        self._shape = shape
        kind = field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self.dtype, self.row_shape, self.kind = np.dtype(object), (), "text"
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self.dtype, self.row_shape, self.kind = np.dtype(object), (), "bytes"
        else:
            self.dtype, self.row_shape = self._numeric(kind, shape)

    kind: Kind | None = None

    def _numeric(self, kind: Any, shape: tuple[int, ...] | None) -> tuple[np.dtype[Any], tuple[int, ...]]:
        sides: list[int] = []
        while pa.types.is_fixed_size_list(kind):
            sides.append(kind.list_size)
            kind = kind.value_type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            sides.append(self._one_length())
            kind = kind.value_type
        try:
            dtype = dtype_of(numpy_dtype(kind)).dtype
        except (ValueError, NotImplementedError, TypeError):
            raise UnsupportedDtypeError(
                f"column {self._path!r} holds {self._field.type}", path=self._table.name,
                hint="Leave infos out with infos=False.",
            ) from None  # fmt: skip
        told = shape if shape is not None else self._told_shape()
        if told is not None and int(np.prod(told, dtype=object)) != int(np.prod(sides, dtype=object)):
            raise CorruptLayoutError(
                f"column {self._path!r} has rows of {sides}, not of {list(told)}", path=self._table.name
            )
        return dtype, tuple(sides) if told is None else told

    def _told_shape(self) -> tuple[int, ...] | None:
        told = (self._field.metadata or {}).get(b"shape")
        if told is None:
            return None
        try:
            return tuple(int(side) for side in told.split(b",") if side)
        except ValueError:
            raise CorruptLayoutError(
                f"the shape of column {self._path!r} is damaged", path=self._table.name
            ) from None

    def _one_length(self) -> int:
        """The length that all lists of the column have."""
        with reading(self._table.name):
            lengths = np.unique(
                pa.compute.list_value_length(self._array()).drop_null().to_numpy(zero_copy_only=False)
            )
        if len(lengths) > 1:
            raise UnsupportedDtypeError(
                f"column {self._path!r} holds lists of different lengths", path=self._table.name,
                hint="Leave infos out with infos=False.",
            )  # fmt: skip
        return int(lengths[0]) if len(lengths) else 0

    def _array(self) -> Any:
        first, *rest = self._path.split("/")
        found = self._table.top(first)[: self.count]
        for part in rest:
            found = _without_gaps(found, self._path, self._table.name).field(part)
        return found

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the column, which is read once."""
        if self._values is None:
            with reading(self._table.name):
                self._values = self._converted(self._array())
        return self._values[start:stop]

    def _converted(self, found: Any) -> NDArray[Any]:
        _without_gaps(found, self._path, self._table.name)
        if self.kind in ("text", "bytes"):
            out = np.empty(len(found), object)
            out[:] = found.to_pylist()
            return out
        while pa.types.is_nested(found.type):
            found = _without_gaps(found.flatten(), self._path, self._table.name)
        values = found.to_numpy(zero_copy_only=False)
        return np.asarray(values.astype(self.dtype, copy=False).reshape(self.count, *self.row_shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return (ArrowRows, (self._table, self._path, self._field, self._shape, self.count))


class TableOut:
    """The table of one episode being written: leaves by path, nested when it is done."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._leaves: dict[str, tuple[Any, Any]] = {}

    def numbers(self, path: str, values: NDArray[Any], *, told_shape: bool = False) -> None:
        """Numbers or arrays of numbers; short of rows they are padded with zeros."""
        missing = self._rows - len(values)
        values = (
            np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
            if missing
            else values
        )
        kind = pa.from_numpy_dtype(values.dtype)
        if values.ndim == 1:
            self._leaves[path] = (pa.array(np.ascontiguousarray(values), kind), None)
            return
        width = int(np.prod(values.shape[1:]))
        made = pa.FixedSizeListArray.from_arrays(
            pa.array(values.reshape(-1), kind), type=pa.list_(kind, width)
        )
        shape = ",".join(map(str, values.shape[1:]))
        self._leaves[path] = (made, {"shape": shape} if told_shape else None)

    def objects(self, path: str, values: Sequence[Any], *, is_text: bool) -> None:
        """Text or bytes; short of rows they are padded with nothing."""
        padded = [*values, *[None] * (self._rows - len(values))]
        self._leaves[path] = (pa.array(padded, pa.string() if is_text else pa.binary()), None)

    def table(self) -> pa.Table:
        """All of it."""
        tree: dict[str, Any] = {}
        for path, leaf in self._leaves.items():
            at = tree
            *above, last = path.split("/")
            for part in above:
                at = at.setdefault(part, {})
            at[last] = leaf
        arrays, fields = _nested(tree)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _nested(tree: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    arrays, fields = [], []
    for name, each in tree.items():
        if isinstance(each, dict):
            inner, inside = _nested(each)
            array = pa.StructArray.from_arrays(inner, fields=inside)
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        else:
            arrays.append(each[0])
            fields.append(pa.field(name, each[0].type, metadata=each[1]))
    return arrays, fields


def write_table(path: Any, table: pa.Table, format_name: str) -> None:
    """Write one table as a file."""
    sink = pa.BufferOutputStream()
    if format_name == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as out:
            for batch in table.combine_chunks().to_batches():
                out.write_batch(batch)
    with commit_file(path, durable=False) as new:
        new.write(sink.getvalue())
