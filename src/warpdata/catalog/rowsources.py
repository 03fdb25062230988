"""Tables that are not Arrow yet: CSV, JSON lines, dictionaries, generators. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.jsontext import MAX_JSON_BYTES, parse_json_object
from warpdata.errors import DatasetError, FormatError
from warpdata.sql.rowpicking import cast_column

ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)
"""What pyarrow raises for values, types or files it does not take."""

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 32 << 20
_FIRST_ROWS = 16
"""How many rows tell how large rows are."""
_BLOCK_BYTES = 16 << 20
_LONG_INTEGER = r"^[+-]?[0-9]{16,}$"
_FAILED_COLUMN = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error"
)  # a row where one thread reads
_MOMENTS = [pa.timestamp("s"), pa.timestamp("ns"), pa.string()]
_WIDER = {
    pa.null(): [pa.int64(), pa.float64(), pa.date32(), *_MOMENTS],
    pa.int64(): [pa.uint64(), pa.float64(), pa.string()],
    pa.date32(): _MOMENTS,
    pa.timestamp("s"): _MOMENTS[1:],
}
"""What a column is tried as when a later value does not fit the type that the first ones have."""

_PLAIN = {type(None), bool, int, float, str, bytes}

_CONTAINERS = {list, tuple, set, frozenset, dict}

_EXACT_FLOAT = 2**53
"""Up to here a float holds every integer."""

MAX_LEVELS = 100
"""Lists and structs inside one another; Arrow follows Python values until the stack of the process ends."""

_MAX_REPEATS = 1 << 28
"""Values that come again because the list that holds them does: 2 GiB as numbers."""

_MAX_DIGITS = 400
"""No float has more."""


_KINDS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json lines", ".ndjson": "json lines",
}  # fmt: skip


def table_kind(path: Path) -> str | None:
    """What a file of a table is, by its name: parquet, csv or json lines, these also compressed; None for others."""
    *inner, last = ["", *(suffix.lower() for suffix in path.suffixes)]
    if last not in (".gz", ".bz2", ".zst"):
        return _KINDS.get(last)
    kind = _KINDS.get(inner[-1]) if inner else None
    return None if kind == "parquet" else kind


def kind_of(path: Path) -> str:
    """The same for a file that was named: one that says nothing is taken for parquet."""
    return table_kind(path) or "parquet"


def csv_reader(paths: Sequence[Path]) -> pa.RecordBatchReader:
    """CSV files with a header, one after the other; each column has a type that fits all its values."""
    with _readable(paths[0]):
        first = _csv_batches(paths[0], {}, None).schema
        names = _header(paths[0])
    types = dict(zip(names, first.types, strict=True))
    if len(types) < len(names):
        raise DatasetError("the CSV header has two columns of one name", path=paths[0])
    wider = {name: list(_WIDER.get(kind, [pa.string()])) for name, kind in types.items()}
    large: set[str] = set()
    while (misfit := _first_misfit(paths, types, names, large)) is not None:
        path, column, error = misfit
        if column is None or not wider[column]:
            raise _unreadable_csv(path, error)
        types[column] = wider[column].pop(0)
    floats = [name for name in names if name in large and types[name] == pa.float64()]
    for column, is_rounded in _long_integers(paths, floats).items():
        # Digits are kept: as integers where all values are, else as the text they are.
        types[column] = pa.uint64()
        if _first_misfit(paths, types, names, large) is not None:
            types[column] = pa.string() if is_rounded else pa.float64()
    schema = pa.schema(list(types.items()))
    batches = (batch for path in paths for batch in _opened_csv(path, types, names))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _first_misfit(
    paths: Sequence[Path], types: Mapping[str, pa.DataType], names: Sequence[str], large: set[str]
) -> tuple[Path, str | None, str] | None:
    """The first file with a value that its column's type does not take; `large` gets columns of large floats."""
    for path in paths:
        try:
            for batch in _opened_csv(path, types, names):
                large.update(name for name in batch.schema.names if _is_large(batch.column(name)))
        except pa.ArrowInvalid as error:
            found = _FAILED_COLUMN.match(str(error))
            return path, _header(path)[int(found[1])] if found else None, str(error)
    return None


def _is_large(column: pa.Array) -> bool:
    """Whether there are floats among which not every integer is."""
    if column.type != pa.float64():
        return False
    return bool((np.abs(column.to_numpy(zero_copy_only=False)) >= _EXACT_FLOAT).any())


def _long_integers(paths: Sequence[Path], columns: Sequence[str]) -> dict[str, bool]:
    """The columns in which long integers stand, and whether a float would round one of them."""
    found: dict[str, bool] = {}
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=list(columns)
    )
    for path in paths if columns else ():
        with _readable(path), pa.input_stream(str(path), compression="detect") as stream:
            for batch in pa_csv.open_csv(stream, _steps(), _dialect(path), convert):
                for name in columns:
                    texts = batch.column(name)
                    long = texts.filter(pc.match_substring_regex(texts, _LONG_INTEGER)).to_pylist()
                    if long:
                        found[name] = found.get(name, False) or any(map(_is_rounded, long))
    return found


def _is_rounded(digits: str) -> bool:
    return len(digits) > _MAX_DIGITS or float(digits) != int(digits)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What goes wrong with the file itself (cut, not compressed as it says), as an error that names it."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"the file cannot be read ({error})", path=path) from None


def _opened_csv(
    path: Path, types: Mapping[str, pa.DataType], names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    with _readable(path):
        yield from _csv_batches(path, types, names)


def _csv_batches(path: Path, types: Mapping[str, pa.DataType], names: Sequence[str] | None) -> Any:
    """A file as batches, with these types, its columns in the order of `names`."""
    stream = pa.input_stream(str(path), compression="detect")
    convert = pa_csv.ConvertOptions(column_types=dict(types), include_columns=names)
    try:
        if names is not None:
            _check_header(path, names)
        reader = pa_csv.open_csv(stream, _steps(), _dialect(path), convert)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        if names is not None and isinstance(error, pa.ArrowInvalid):
            raise
        raise _unreadable_csv(path, error) from None
    if any(pa.types.is_binary(kind) for kind in reader.schema.types):
        raise _not_utf8(path)
    return reader


def _header(path: Path) -> list[str]:
    """What the columns of a file are called."""
    with pa.input_stream(str(path), compression="detect") as stream:
        schema = pa_csv.open_csv(stream, _steps(), _dialect(path)).schema
    try:
        return list(schema.names)
    except UnicodeDecodeError:
        raise _not_utf8(path) from None


def _not_utf8(path: Path) -> DatasetError:
    return DatasetError("the CSV is not UTF-8 text", path=path, hint="Convert it to UTF-8 first.")


def _unreadable_csv(path: Path, error: object) -> DatasetError:
    hint = "Mend the line, or convert the file."
    return DatasetError(f"the CSV cannot be read ({error})", path=path, hint=hint)


def _check_header(path: Path, names: Sequence[str]) -> None:
    header = _header(path)
    if sorted(header) != sorted(names):
        fact = f"its columns are {', '.join(header)}, not {', '.join(names)}"
        raise DatasetError(f"a CSV file differs from the first: {fact}", path=path)


def _steps() -> pa_csv.ReadOptions:
    return pa_csv.ReadOptions(block_size=_BLOCK_BYTES)


def _dialect(path: Path) -> pa_csv.ParseOptions:
    separator = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else ","
    return pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True)


def json_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines files; empty lines are skipped."""
    for path in paths:
        with _readable(path), io.BufferedReader(pa.input_stream(str(path), compression="detect")) as stream:
            for number in itertools.count(1):
                line = stream.readline(MAX_JSON_BYTES + 1)
                if not line:
                    break
                if not line.strip():
                    continue
                try:
                    yield parse_json_object(line, allow_nan=True)
                except FormatError as error:
                    raise DatasetError(f"line {number} is not a row: {error}", path=path) from None


def rows_reader(rows: Iterable[Mapping[str, Any]], staging: Path) -> pa.RecordBatchReader:
    """Dictionaries as a table: its columns are all their keys, with types that fit all their values.

    Rows are put aside in `staging` as they come, so memory holds few of them.
    """
    staging.mkdir(parents=True, exist_ok=True)
    source, done = iter(rows), 0
    first = list(itertools.islice(source, _FIRST_ROWS))
    step = _fitting_rows(_chunk_table(first, 0)) if first else 1
    source = itertools.chain(first, source)
    del first
    parts: list[tuple[Path, int]] = []
    schemas: list[pa.Schema] = []
    while chunk := list(itertools.islice(source, step)):
        table = _chunk_table(chunk, done)
        step, done = _fitting_rows(table), done + len(chunk)
        path = staging / f"rows-{len(parts):06d}.arrow"
        try:
            with (
                map_os_errors(path),
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
        except pa.ArrowInvalid as error:  # it has a limit of levels of its own
            raise DatasetError(f"the rows cannot be put aside ({error})", path=path) from None
        parts.append((path, len(chunk)))
        schemas.append(table.schema)
    if not parts:
        raise DatasetError(
            "the table has no rows, so its columns are unknown", hint="Give Arrow data with a schema."
        )
    try:
        schema = _with_large_integers(pa.unify_schemas(schemas, promote_options="permissive"), schemas)
    except pa.ArrowException as error:
        raise DatasetError(f"the rows have values of different kinds in one column ({error})") from None
    return pa.RecordBatchReader.from_batches(schema, _read_again(parts, schema))


def _fitting_rows(table: pa.Table) -> int:
    """How many rows like these are put aside at once."""
    fitting = _CHUNK_BYTES * int(table.num_rows) // max(1, int(table.nbytes))
    return max(1, min(_CHUNK_ROWS, fitting))


def _with_large_integers(schema: pa.Schema, parts: Sequence[pa.Schema]) -> pa.Schema:
    """The schema, where integers are unsigned if some of them fit no other type."""
    for number, field in enumerate(schema):
        is_large = any(
            part.field(field.name).type == pa.uint64() for part in parts if field.name in part.names
        )
        if is_large and field.type == pa.int64():
            schema = schema.set(number, field.with_type(pa.uint64()))
    return schema


def _read_again(parts: Iterable[tuple[Path, int]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path, rows in parts:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        path.unlink()
        columns = [_fitting(table, field, rows) for field in schema]
        yield from pa.table(columns, schema=schema).to_batches()


def _fitting(table: pa.Table, field: pa.Field, rows: int) -> Any:
    if field.name not in table.schema.names:  # it may have no columns at all, and then does not know its rows
        return pa.nulls(rows, field.type)
    try:
        return cast_column(table.column(field.name), field.type)
    except pa.ArrowException as error:
        raise _misfit(field.name, error) from None


def _chunk_table(rows: Sequence[Mapping[str, Any]], first: int) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise TypeError(f"row {number} is a {type(row).__name__}, not a dictionary by column name")
        names.update(dict.fromkeys(row))
    return columns_table({name: [row.get(name) for row in rows] for name in names})


def columns_table(columns: Mapping[str, Any]) -> pa.Table:
    """Columns by name as a table."""
    return pa.table(
        {
            _utf8(name): _array(name, values) if _is_container(values) else values
            for name, values in columns.items()
        }
    )


def _utf8(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a column is named by text, not by {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DatasetError(f"the column name {name!r} is no text in UTF-8", hint="Rename it.") from None
    return name


def _shallow(name: str, values: Any) -> Any:
    """The values themselves; DatasetError where they hold too many lists and dictionaries inside one another.

    Also where Arrow, which writes a list as often as it is held, would write far more values than there are.
    """
    level: Sequence[Any] = [values]
    times: Mapping[int, int] = {}  # how often each is held, where one is held more than once
    repeats = 0
    for _ in range(MAX_LEVELS + 1):
        inner: dict[int, Any] = {}  # by identity: what is held twice is looked at once
        count = 0
        for _, found in _with_containers(level):
            count += len(found)
            inner.update(zip(map(id, found), found, strict=True))
        if times:
            repeats += sum((times[id(each)] - 1) * len(each) for each in level)
        if repeats > _MAX_REPEATS:
            fact = f"column {name!r} holds the same lists or dictionaries again and again"
            hint = "Keep such values once, and refer to them."
            raise DatasetError(f"{fact}, which makes more than {_MAX_REPEATS} values", hint=hint)
        if not inner:
            return values
        times = _times_held(level, times) if times or count > len(inner) else {}
        level = list(inner.values())
    raise _too_deep(name)


def _times_held(level: Sequence[Any], times: Mapping[int, int]) -> Mapping[int, int]:
    """How often each container inside these is held, all in all."""
    held: Counter[int] = Counter()
    for each, found in _with_containers(level):
        for one in found:
            held[id(one)] += times.get(id(each), 1)
    return held


def _with_containers(level: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Of these containers those that may hold others, and what they hold of them."""
    for each in level:
        kind = type(each)
        is_mapping = kind is dict or (kind not in _CONTAINERS and isinstance(each, Mapping))
        held = each.values() if is_mapping else each
        if not _PLAIN.issuperset(map(type, held)):
            yield each, [one for one in held if _is_container(one)]


def _is_container(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or kind in _CONTAINERS:
        return kind in _CONTAINERS
    if isinstance(value, np.ndarray):
        return value.dtype == object and value.ndim > 0
    return isinstance(value, list | tuple | set | frozenset | Mapping)


def check_levels(field: pa.Field) -> None:
    """DatasetError for a type of too many lists and structs inside one another."""
    level = [field.type]
    for _ in range(MAX_LEVELS + 1):
        level = [kind.field(k).type for kind in level for k in range(kind.num_fields)]
        if not level:
            return
    raise _too_deep(field.name)


def _too_deep(name: str) -> DatasetError:
    fact = f"the values of column {name!r} are lists or structs more than {MAX_LEVELS} levels deep"
    return DatasetError(fact, hint="Store them as JSON text, or flatten them.")


def _array(name: str, values: Any) -> Any:
    """Python values as an Arrow array; DatasetError where no type holds each of them."""
    _shallow(name, values)
    try:
        return _exact(values, _converted(values))
    except ARROW_ERRORS as error:
        raise _misfit(name, error) from None


def _exact(values: Any, array: Any, *, is_of_pandas: bool = False) -> Any:
    """What Arrow made of Python values, where it kept each of them; else an error."""
    times = list(_times_in(values, array.type))
    for found in times:
        _check_times(found)
    if any(_has_nanoseconds(found) for found in times):  # Arrow takes microseconds for all moments
        array = pa.array(values, _in_nanoseconds(array.type), from_pandas=is_of_pandas)
    array.validate(full=True)  # inside lists it takes bytes beside text for text
    return array


def _misfit(name: str, error: Exception) -> DatasetError:
    hint = "Give all its values one type, or Arrow data with a schema."
    return DatasetError(f"the values of column {name!r} fit no one type ({error})", hint=hint)


def _converted(values: Any) -> Any:
    try:
        return pa.array(values)
    except OverflowError as error:
        try:
            return pa.array(values, pa.uint64())
        except pa.ArrowException:  # integers inside lists
            raise error from None


def _times_in(values: Iterable[Any], kind: pa.DataType) -> Iterator[list[Any]]:
    """The dates, times and spans among some values, however deep: together those that are of one type of Arrow."""
    types = pa.types
    if types.is_temporal(kind) and not types.is_interval(kind):
        yield [one for one in values if one is not None and one == one]  # NaT is not itself
    elif types.is_struct(kind) and _holds_times(kind):
        there = [one for one in values if one is not None]
        for field in kind:
            yield from _times_in([one.get(field.name) for one in there], field.type)
    elif types.is_list(kind) and _holds_times(kind):
        inner = itertools.chain.from_iterable(one for one in values if one is not None)
        yield from _times_in(inner, kind.value_type)


def _holds_times(kind: pa.DataType) -> bool:
    if pa.types.is_temporal(kind):
        return True
    return any(_holds_times(kind.field(number).type) for number in range(kind.num_fields))


def _check_times(values: Sequence[Any]) -> None:
    """ValueError for values of several kinds: Arrow takes a number for a moment, and the day of a moment for it."""
    kinds = {_kind_of_time(one) for one in values}
    if len(kinds) > 1:
        raise ValueError(f"there are {' and '.join(sorted(kinds))}")


def _kind_of_time(value: Any) -> str:
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a time zone"
    known = (date, time, timedelta, np.datetime64, np.timedelta64)
    return next((each.__name__ for each in known if isinstance(value, each)), type(value).__name__)


def _has_nanoseconds(values: Iterable[Any]) -> bool:
    """Whether moments or spans of pandas are among these that microseconds do not hold."""
    return any(getattr(one, "nanosecond", 0) or getattr(one, "nanoseconds", 0) for one in values)


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_nanoseconds(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_in_nanoseconds(kind.value_type))
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if types.is_duration(kind) else kind


def table_of(frame: Any) -> pa.Table:
    """What speaks Arrow as a table; DatasetError for a column of Python objects."""
    if type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns"):
        return _table_of_pandas(frame)
    kinds = frame.dtypes if type(frame).__module__.startswith("polars.") and hasattr(frame, "columns") else ()
    for name, kind in zip(frame.columns, kinds, strict=True) if kinds else ():
        if "Object" in str(kind):  # polars hands out the addresses of the objects
            raise DatasetError(
                f"column {name!r} holds Python objects", hint="Cast it to a type that has values."
            )
    return pa.table(frame)


def _table_of_pandas(frame: Any) -> pa.Table:
    objects = [number for number, kind in enumerate(frame.dtypes) if kind == np.dtype(object)]
    values = {number: frame.iloc[:, number].to_numpy() for number in objects}
    for number in objects:
        _shallow(frame.columns[number], values[number])
    table = pa.table(frame)
    for number in objects:
        try:
            exact = _exact(values[number], table.column(number), is_of_pandas=True)
        except ARROW_ERRORS as error:
            raise _misfit(frame.columns[number], error) from None
        table = table.set_column(number, table.schema.field(number).with_type(exact.type), exact)
    return table


def batches_reader(items: Iterable[Any]) -> pa.RecordBatchReader:
    """Pieces that speak Arrow (batches, tables, frames), one after the other; they must have one schema."""
    tables = (_piece(number, item) for number, item in enumerate(items))
    first = next(tables)

    def batches() -> Iterator[pa.RecordBatch]:
        for number, table in enumerate(itertools.chain([first], tables)):
            if not table.schema.equals(first.schema):
                hint = "Give every piece the same columns and types."
                raise DatasetError(
                    f"piece {number} of the table has another schema than the first", hint=hint
                )
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _piece(number: int, item: Any) -> pa.Table:
    try:
        table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else table_of(item)
    except ARROW_ERRORS as error:
        raise DatasetError(f"piece {number} of the table cannot be turned into Arrow ({error})") from None
    return table.replace_schema_metadata(None)
