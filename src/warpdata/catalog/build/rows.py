"""Rows and columns of Python values as exact Arrow data. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.jsontext import MAX_JSON_BYTES, parse_json_object
from warpdata.errors import DatasetError, FormatError
from warpdata.sql.rowpicking import cast_column

ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)
"""Errors of pyarrow for values, types or files it does not take."""

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 32 << 20
_SAMPLE_ROWS = 16
"""Rows whose size decides how many are converted at once."""
_PLAIN = {type(None), bool, int, float, str, bytes}
_CONTAINERS = {list, tuple, set, frozenset, dict}
MAX_LEVELS = 100
"""Nested lists and structs; Arrow follows Python values until the stack of the process ends."""
_MAX_REPEATS = 1 << 28
"""Values that repeat because the list that holds them does: 2 GiB as numbers."""


@contextlib.contextmanager
def readable_file(path: Path) -> Iterator[None]:
    """DatasetError that names the file for a damaged or wrongly compressed one."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"the file cannot be read ({error})", path=path) from None


def json_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines files; empty lines are skipped."""
    for path in paths:
        with (
            readable_file(path),
            io.BufferedReader(pa.input_stream(str(path), compression="detect")) as stream,
        ):
            for number in itertools.count(1):
                line = stream.readline(MAX_JSON_BYTES + 1)
                if not line:
                    break
                try:
                    if line.strip():
                        yield parse_json_object(line, allow_nan=True)
                except FormatError as error:
                    raise DatasetError(f"line {number} is not a row: {error}", path=path) from None


def rows_reader(rows: Iterable[Mapping[str, Any]], staging: Path) -> pa.RecordBatchReader:
    """Dictionaries as a table: its columns are all their keys, with types that fit all their values.

    Rows are spilled to `staging` as they come, so memory holds few of them.
    """
    staging.mkdir(parents=True, exist_ok=True)
    source, done = iter(rows), 0
    first = list(itertools.islice(source, _SAMPLE_ROWS))
    step = _rows_at_once(_chunk_table(first, 0)) if first else 1
    source = itertools.chain(first, source)
    parts: list[tuple[Path, int]] = []
    schemas: list[pa.Schema] = []
    while chunk := list(itertools.islice(source, step)):
        table = _chunk_table(chunk, done)
        step, done = _rows_at_once(table), done + len(chunk)
        path = staging / f"rows-{len(parts):06d}.arrow"
        try:
            with (
                map_os_errors(path),
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
        except pa.ArrowInvalid as error:  # it has a limit of levels of its own
            raise DatasetError(f"the rows cannot be written ({error})", path=path) from None
        parts.append((path, len(chunk)))
        schemas.append(table.schema)
    if not parts:
        hint = "Give Arrow data with a schema."
        raise DatasetError("the table has no rows, so its columns are unknown", hint=hint)
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise DatasetError(f"the rows have values of different kinds in one column ({error})") from None
    for number, field in enumerate(schema):  # unsigned, if some integers fit no other type
        types = [part.field(field.name).type for part in schemas if field.name in part.names]
        if field.type == pa.int64() and pa.uint64() in types:
            schema = schema.set(number, field.with_type(pa.uint64()))
    return pa.RecordBatchReader.from_batches(schema, _spilled_batches(parts, schema))


def _rows_at_once(table: pa.Table) -> int:
    fitting = _CHUNK_BYTES * int(table.num_rows) // max(1, int(table.nbytes))
    return max(1, min(_CHUNK_ROWS, fitting))


def _spilled_batches(parts: Iterable[tuple[Path, int]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path, rows in parts:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        path.unlink()
        columns = []
        for field in schema:
            try:
                is_there = field.name in table.schema.names  # a table without columns does not know its rows
                column = (
                    cast_column(table.column(field.name), field.type)
                    if is_there
                    else pa.nulls(rows, field.type)
                )
            except pa.ArrowException as error:
                raise _mixed_types(field.name, error) from None
            columns.append(column)
        yield from pa.table(columns, schema=schema).to_batches()


def _chunk_table(rows: Sequence[Mapping[str, Any]], first: int) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise TypeError(f"row {number} is a {type(row).__name__}, not a dictionary by column name")
        names.update(dict.fromkeys(row))
    return columns_table({name: [row.get(name) for row in rows] for name in names})


def columns_table(columns: Mapping[str, Any]) -> pa.Table:
    """Columns by name as a table; DatasetError for a column without one type for all its values."""
    arrays = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise TypeError(f"a column is named by text, not by {name!r}")
        if name.encode("utf-8", "replace").decode() != name:
            raise DatasetError(f"the column name {name!r} is not valid UTF-8", hint="Rename it.")
        arrays[name] = _exact_array(name, values) if _is_container(values) else values
    return pa.table(arrays)


def frame_table(frame: Any) -> pa.Table:
    """Data with the Arrow interface as a table; DatasetError for a column of Python objects."""
    module = type(frame).__module__.partition(".")[0]
    if not hasattr(frame, "columns") or module not in ("pandas", "polars"):
        return pa.table(frame)
    if module == "polars":
        for name, kind in zip(frame.columns, frame.dtypes, strict=True):
            if "Object" in str(kind):  # polars exports the addresses of the objects
                hint = "Cast it to a type that has values."
                raise DatasetError(f"column {name!r} holds Python objects", hint=hint)
        return pa.table(frame)
    objects = [number for number, kind in enumerate(frame.dtypes) if kind == np.dtype(object)]
    values = {number: frame.iloc[:, number].to_numpy() for number in objects}
    for number in objects:
        _check_nesting(frame.columns[number], values[number])
    table = pa.table(frame)
    for number in objects:
        name = frame.columns[number]
        try:
            exact = _check_exact(values[number], table.column(number), from_pandas=True)
        except ARROW_ERRORS as error:
            raise _mixed_types(name, error) from None
        table = table.set_column(number, table.schema.field(number).with_type(exact.type), exact)
    return table


def pieces_reader(items: Iterable[Any]) -> pa.RecordBatchReader:
    """Pieces with the Arrow interface (batches, tables, frames), one after the other; they must have one schema."""

    def convert(number: int, item: Any) -> pa.Table:
        try:
            table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else frame_table(item)
        except ARROW_ERRORS as error:
            fact = f"piece {number} of the table cannot be turned into Arrow ({error})"
            raise DatasetError(fact) from None
        return table.replace_schema_metadata(None)

    tables = (convert(number, item) for number, item in enumerate(items))
    first = next(tables)

    def batches() -> Iterator[pa.RecordBatch]:
        for number, table in enumerate(itertools.chain([first], tables)):
            if not table.schema.equals(first.schema):
                fact = f"piece {number} of the table has another schema than the first"
                raise DatasetError(fact, hint="Give every piece the same columns and types.")
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _exact_array(name: str, values: Any) -> Any:
    """Python values as an Arrow array that holds each of them exactly."""
    _check_nesting(name, values)
    try:
        try:
            array = pa.array(values)
        except OverflowError as error:
            try:
                array = pa.array(values, pa.uint64())
            except pa.ArrowException:  # integers inside lists
                raise error from None
        return _check_exact(values, array)
    except ARROW_ERRORS as error:
        raise _mixed_types(name, error) from None


def _check_exact(values: Any, array: Any, *, from_pandas: bool = False) -> Any:
    """The array, in nanoseconds if the values need them; ValueError for times of several kinds.

    Arrow takes a number for a moment, and the day of a moment for the moment, by the value that comes first.
    """
    groups = list(_times_in(values, array.type))
    for times in groups:
        kinds = {_time_kind(one) for one in times}
        if len(kinds) > 1:
            raise ValueError(f"there are {' and '.join(sorted(kinds))}")
    if any(getattr(t, "nanosecond", 0) or getattr(t, "nanoseconds", 0) for times in groups for t in times):
        array = pa.array(values, _in_nanoseconds(array.type), from_pandas=from_pandas)
    array.validate(full=True)  # inside lists Arrow takes bytes beside text for text
    return array


def _mixed_types(name: str, error: Exception) -> DatasetError:
    hint = "Give all its values one type, or Arrow data with a schema."
    return DatasetError(f"the values of column {name!r} fit no one type ({error})", hint=hint)


def _times_in(values: Iterable[Any], kind: pa.DataType) -> Iterator[list[Any]]:
    """The dates, times and durations among nested values: one list for each Arrow field."""
    types = pa.types
    if types.is_temporal(kind) and not types.is_interval(kind):
        yield [one for one in values if one is not None and one == one]  # NaT does not equal itself
    elif types.is_struct(kind) and _holds_times(kind):
        rows = [one for one in values if one is not None]
        for field in kind:
            yield from _times_in([one.get(field.name) for one in rows], field.type)
    elif types.is_list(kind) and _holds_times(kind):
        inner = itertools.chain.from_iterable(one for one in values if one is not None)
        yield from _times_in(inner, kind.value_type)


def _holds_times(kind: pa.DataType) -> bool:
    is_time = pa.types.is_temporal(kind)
    return is_time or any(_holds_times(kind.field(number).type) for number in range(kind.num_fields))


def _time_kind(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a time zone"
    known = (date, time, timedelta, np.datetime64, np.timedelta64)
    return next((kind.__name__ for kind in known if isinstance(value, kind)), type(value).__name__)


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_nanoseconds(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_in_nanoseconds(kind.value_type))
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if types.is_duration(kind) else kind


def _check_nesting(name: str, values: Any) -> None:
    """DatasetError for values nested too deeply, or that Arrow would multiply by writing shared lists again."""
    measured: dict[int, tuple[int, int]] = {}  # container -> values that Arrow writes for it, levels below it
    unique = 0

    def measure(container: Any, depth: int) -> tuple[int, int]:
        nonlocal unique
        size, height = measured.get(id(container), (len(container), 0))
        if depth + height > MAX_LEVELS:
            raise _too_deep(name)
        if id(container) in measured:
            return size, height
        unique += size
        kind = type(container)
        is_mapping = kind is dict or (kind not in _CONTAINERS and isinstance(container, Mapping))
        held = container.values() if is_mapping else container
        if not _PLAIN.issuperset(map(type, held)):
            inner = [measure(one, depth + 1) for one in held if _is_container(one)]
            size += sum(more for more, _ in inner)
            height = 1 + max((levels for _, levels in inner), default=-1)
        measured[id(container)] = size, height
        return size, height

    if measure(values, 0)[0] - unique > _MAX_REPEATS:
        fact = f"column {name!r} holds the same lists or dictionaries again and again"
        hint = "Keep such values once, and refer to them."
        raise DatasetError(f"{fact}, which makes more than {_MAX_REPEATS} values", hint=hint)


def _is_container(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or kind in _CONTAINERS:
        return kind in _CONTAINERS
    if isinstance(value, np.ndarray):
        return value.dtype == object and value.ndim > 0
    return isinstance(value, list | tuple | set | frozenset | Mapping)


def check_levels(field: pa.Field) -> None:
    """DatasetError for a type of too many nested lists and structs."""
    level = [field.type]
    for _ in range(MAX_LEVELS + 1):
        level = [kind.field(k).type for kind in level for k in range(kind.num_fields)]
        if not level:
            return
    raise _too_deep(field.name)


def _too_deep(name: str) -> DatasetError:
    fact = f"the values of column {name!r} are lists or structs more than {MAX_LEVELS} levels deep"
    return DatasetError(fact, hint="Store them as JSON text, or flatten them.")
