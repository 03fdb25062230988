"""Tables to publish: files, Arrow data, frames and Python values as parquet shards. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.files import FileRangeReader, check_regular
from warpdata.bytekit.jsontext import MAX_JSON_BYTES, parse_json_object
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.errors import CorruptLayoutError, DatasetError, FormatError
from warpdata.formats.manifest.codec import ShardGuide
from warpdata.sql.columns import cast_column, fold_case, parse_footer, read_tail, with_children, without_views
from warpdata.sql.engine import OWN_COLUMNS
from warpdata.stores.blobstore import FileDigest, check_unchanged, digest_file

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)
"""Errors of pyarrow for values, types or files it does not take."""

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 32 << 20
_FIRST_ROWS = 16
"""Rows whose size decides how many are converted at once."""
_PLAIN = {type(None), bool, int, float, str, bytes}
_CONTAINERS = {list, tuple, set, frozenset, dict}
MAX_LEVELS = 100
"""Nested lists and structs; Arrow follows Python values until the stack of the process ends."""
_MAX_REPEATS = 1 << 28
"""Values that repeat because the list that holds them does: 2 GiB as numbers."""


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[Any]:
    """A file, decompressed by its name; DatasetError that names it if it is damaged or wrongly compressed."""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            yield stream
    except OSError as error:
        raise DatasetError(f"the file cannot be read ({error})", path=path) from None


def json_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines files; empty lines are skipped."""
    for path in paths:
        with _open_text(path) as raw, io.BufferedReader(raw) as stream:
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
    first = list(itertools.islice(source, _FIRST_ROWS))
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
        arrays[name] = values
        if not _is_container(values):
            continue
        _check_nesting(name, values)
        try:
            try:
                array = pa.array(values)
            except OverflowError as error:
                try:
                    array = pa.array(values, pa.uint64())
                except pa.ArrowException:  # integers inside lists
                    raise error from None
            arrays[name] = _check_exact(values, array)
        except _ARROW_ERRORS as error:
            raise _mixed_types(name, error) from None
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
        except _ARROW_ERRORS as error:
            raise _mixed_types(name, error) from None
        table = table.set_column(number, table.schema.field(number).with_type(exact.type), exact)
    return table


def pieces_reader(items: Iterable[Any]) -> pa.RecordBatchReader:
    """Pieces with the Arrow interface (batches, tables, frames), one after the other; they must have one schema."""

    schema: pa.Schema | None = None

    def tables() -> Iterator[pa.Table]:
        nonlocal schema
        for number, item in enumerate(items):
            try:
                table = (
                    pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else frame_table(item)
                )
            except _ARROW_ERRORS as error:
                fact = f"piece {number} of the table cannot be turned into Arrow ({error})"
                raise DatasetError(fact) from None
            table = table.replace_schema_metadata(None)
            schema = table.schema if schema is None else schema
            if not table.schema.equals(schema):
                fact = f"piece {number} of the table has another schema than the first"
                raise DatasetError(fact, hint="Give every piece the same columns and types.")
            yield table

    pieces = tables()
    first = next(pieces)
    batches = (batch for table in itertools.chain([first], pieces) for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(first.schema, batches)


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
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if pa.types.is_duration(kind) else with_children(kind, _in_nanoseconds)


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


def _too_deep(name: str) -> DatasetError:
    fact = f"the values of column {name!r} are lists or structs more than {MAX_LEVELS} levels deep"
    return DatasetError(fact, hint="Store them as JSON text, or flatten them.")


_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json lines",
    ".ndjson": "json lines",
}
_SAMPLE_ROWS = 32
"""Rows at the beginning of a row group whose size decides how many rows it gets."""
_BATCH_BYTES = 32 << 20
_BLOCK_BYTES = 16 << 20
_CSV_TYPES = [
    pa.null(),
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
]
"""Types of CSV columns, tried in this order; a column that fits none is text."""
_CSV_NULLS = pa.array(pa_csv.ConvertOptions().null_values)
_LONG_INTEGER = r"^[+-]?[0-9]{16,}$"
_MAX_DIGITS = 400
"""No float has more."""


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How tables that are not parquet yet are written: shards and row groups sized for range reads."""

    shard_bytes: int = 128 << 20
    row_group_rows: int = 131_072
    compression: str = "zstd"
    row_group_bytes: int = 64 << 20
    """About how much memory the rows of a row group take at most; at least a few rows are one."""


@dataclass(frozen=True, slots=True)
class ParquetShard:
    """One parquet file of a table."""

    path: Path
    digest: FileDigest
    is_own: bool
    """Whether the builder wrote the file."""
    rows: int
    schema: pa.Schema
    guide: ShardGuide

    @classmethod
    def read(cls, path: Path, *, is_own: bool) -> ParquetShard:
        """Hash a file and read its footer, which must be that of the hashed bytes."""
        digest = digest_file(path)
        with FileRangeReader(path) as reader:
            tail = read_tail(reader)
        check_unchanged(path, digest)
        metadata = parse_footer(tail, str(path))
        schema = metadata.schema.to_arrow_schema().remove_metadata()
        return cls(path, digest, is_own, metadata.num_rows, schema, ShardGuide(digest.page_sums, tail))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows in batches of some MiB; first an empty one."""
        try:
            with pq.ParquetFile(self.path) as file:
                groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
                sizes = [group.total_byte_size // max(1, group.num_rows) for group in groups]
                step = max(1, min(65_536, _BATCH_BYTES // max([1, *sizes])))
                schema = (
                    self.schema if columns is None else pa.schema([self.schema.field(n) for n in columns])
                )
                yield pa.RecordBatch.from_pylist([], schema)
                yield from file.iter_batches(step, columns=None if columns is None else list(columns))
        except _ARROW_ERRORS as error:
            raise CorruptLayoutError(f"it cannot be read ({error})", path=self.path) from None


def stage_table(
    name: str, source: Any, staging: Path, options: ParquetOptions, *, optimize: bool = False
) -> list[ParquetShard]:
    """The files of a table: parquet files as they are unless optimised, other sources written into `staging`."""
    paths = _paths_of(source)
    kinds = sorted({table_kind(path) or "parquet" for path in paths})
    if len(kinds) > 1:
        fact = f"a table is made of files of one kind, not {' and '.join(kinds)}"
        raise DatasetError(fact, path=paths[0], hint="Name the files of one kind.")
    if kinds == ["parquet"]:
        files = map_in_threads(lambda path: ParquetShard.read(path, is_own=False), paths)
        schema = _check_schemas(files, name)
        if not optimize:
            return files
        batches = (batch for file in files for batch in file.batches() if batch.num_rows)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
    elif kinds:
        reader = csv_reader(paths) if kinds == ["csv"] else rows_reader(json_rows(paths), staging)
    else:
        reader = _reader_of(source, staging)
    files = [ParquetShard.read(path, is_own=True) for path in write_shards(reader, staging, options)]
    _check_schemas(files, name)
    return files


def _paths_of(source: Any) -> list[Path]:
    """The files of a source: of a folder its parquet files, else its CSV or JSON lines; [] if it has no paths."""
    given = [source] if isinstance(source, str | os.PathLike) else source
    is_paths = isinstance(given, list | tuple) and all(isinstance(one, str | os.PathLike) for one in given)
    paths: list[Path] = []
    for one in given if is_paths else ():
        folder = Path(os.path.expanduser(os.fspath(one)))
        if not folder.is_dir():
            paths += expand_paths(one)
            continue
        kinds = {path: table_kind(path) for path in sorted(folder.rglob("*")) if path.is_file()}
        parquet = [path for path, kind in kinds.items() if kind == "parquet"]
        files = parquet or [path for path, kind in kinds.items() if kind is not None]
        if not files:
            hint = "Give parquet, csv or jsonl files."
            raise DatasetError("no files of a table there", path=folder, hint=hint)
        paths += files
    for path in paths:
        check_regular(path)
    return paths


def table_kind(path: Path) -> str | None:
    """The kind of a table file by its name: parquet, csv or json lines, these also compressed; None for others."""
    *inner, last = ["", *(suffix.lower() for suffix in path.suffixes)]
    if last not in (".gz", ".bz2", ".zst"):
        return _KINDS.get(last)
    kind = _KINDS.get(inner[-1]) if inner else None
    return None if kind == "parquet" else kind


def expand_paths(source: str | os.PathLike[str]) -> list[Path]:
    """A file, the files of a folder, or those of a pattern, sorted."""
    text = os.path.expanduser(os.fspath(source))
    path = Path(text)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file())
    else:
        paths = [path] if path.is_file() else sorted(Path(one) for one in glob.glob(text, recursive=True))
    if not paths:
        raise DatasetError("no such files there", path=text, hint="Check the path or the pattern.")
    return paths


def _check_schemas(files: Sequence[ParquetShard], table: str) -> pa.Schema:
    """The schema that all files share; DatasetError for a different one, and for names that SQL cannot use."""
    if not files:
        raise DatasetError(f"table {table!r} has no shards")
    schema = files[0].schema
    check_names(schema, table)
    for file in files[1:]:
        if not file.schema.equals(schema):
            hint = "Convert the files to one schema, or publish them as two tables."
            raise DatasetError(f"a shard of table {table!r} has another schema", path=file.path, hint=hint)
    return schema


def check_names(schema: pa.Schema, table: str) -> None:
    """DatasetError for names that differ in case only, and for reserved ones."""
    if not schema.names:  # parquet has no rows without columns, so their number would be lost
        raise DatasetError(f"table {table!r} has no columns", hint="Give rows with at least one column.")
    seen: dict[str, str] = {}
    for name in schema.names:
        if fold_case(name).startswith(OWN_COLUMNS):
            fact = (
                f"table {table!r} has a column {name!r}: names that begin with {OWN_COLUMNS!r} are reserved"
            )
            raise DatasetError(fact, hint="Rename it.")
        if fold_case(name) in seen:
            pair = f"{seen[fold_case(name)]!r} and {name!r}"
            fact = f"table {table!r} has two columns that SQL cannot distinguish: {pair}"
            raise DatasetError(fact, hint="Rename one of them.")
        seen[fold_case(name)] = name


def csv_reader(paths: Sequence[Path]) -> pa.RecordBatchReader:
    """CSV files with a header, one after the other; each column has the first type that fits all its values.

    The files are read twice, as text: an integer that a float would round stays an integer or text.
    """
    names: list[str] = []
    for path in paths:
        with _open_csv(path) as reader:
            header = list(reader.schema.names)
        names = names or header
        if len(set(header)) < len(header):
            raise DatasetError("the CSV header has two columns of one name", path=path)
        if sorted(header) != sorted(names):
            fact = f"its columns are {', '.join(header)}, not {', '.join(names)}"
            raise DatasetError(f"a CSV file differs from the first: {fact}", path=path)
    possible = {name: list(_CSV_TYPES) for name in names}
    for batch in _csv_batches(paths, names):
        for name, types in possible.items():
            possible[name] = [kind for kind in types if _csv_cast(batch.column(name), kind) is not None]
    schema = pa.schema([(name, types[0] if types else pa.string()) for name, types in possible.items()])

    typed = (
        pa.RecordBatch.from_arrays([_csv_cast(batch.column(f.name), f.type) for f in schema], schema=schema)
        for batch in _csv_batches(paths, names)
    )
    return pa.RecordBatchReader.from_batches(schema, typed)


def _csv_cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """CSV values as a type; None if a value does not fit exactly."""
    if pa.types.is_string(kind):
        return texts
    values = pc.if_else(pc.is_in(texts, value_set=_CSV_NULLS), None, texts)
    if pa.types.is_null(kind):
        return pa.nulls(len(values)) if values.null_count == len(values) else None
    if pa.types.is_floating(kind):
        long = values.filter(pc.match_substring_regex(values, _LONG_INTEGER)).to_pylist()
        if any(len(digits) > _MAX_DIGITS or float(digits) != int(digits) for digits in long):
            return None
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def _csv_batches(paths: Sequence[Path], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of CSV files as text."""
    types = pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=list(names))
    for path in paths:
        with _open_csv(path, types) as reader:
            yield from reader


@contextlib.contextmanager
def _open_csv(path: Path, types: pa_csv.ConvertOptions | None = None) -> Iterator[Any]:
    separator = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else ","
    dialect = pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        with _open_text(path) as stream:
            yield pa_csv.open_csv(stream, pa_csv.ReadOptions(block_size=_BLOCK_BYTES), dialect, types)
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) or "utf8" in str(error).lower():
            hint = "Convert it to UTF-8 first."
            raise DatasetError("the CSV is not UTF-8 text", path=path, hint=hint) from None
        hint = "Correct the line, or convert the file."
        raise DatasetError(f"the CSV cannot be read ({error})", path=path, hint=hint) from None


def _reader_of(source: Any, staging: Path) -> pa.RecordBatchReader:
    """Batches of a table: Arrow, frames of pandas and polars, columns by name, rows, or pieces of these."""
    try:
        if isinstance(source, pa.RecordBatchReader):
            return source
        if isinstance(source, dict):
            source = columns_table(source)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if not isinstance(source, pa.Table) and hasattr(source, "__arrow_c_stream__"):
            source = frame_table(source)
        if isinstance(source, pa.Table):
            return source.replace_schema_metadata(None).to_reader()
    except _ARROW_ERRORS as error:
        raise DatasetError(f"the table cannot be turned into Arrow ({error})") from None
    if not isinstance(source, Iterable) or isinstance(source, str | bytes) or hasattr(source, "read"):
        kind = type(source).__name__
        raise TypeError(f"a {kind} is not a table; give files, Arrow, a frame, or rows as dictionaries")
    pieces = iter(source)
    first = list(itertools.islice(pieces, 1))
    is_arrow = any(hasattr(one, "__arrow_c_stream__") or hasattr(one, "__arrow_c_array__") for one in first)
    items = itertools.chain(first, pieces)
    return pieces_reader(items) if is_arrow else rows_reader(items, staging)


def write_shards(reader: pa.RecordBatchReader, staging: Path, options: ParquetOptions) -> Iterator[Path]:
    """Write batches as parquet shards of about equal size, yielding each one; equal rows give equal bytes."""
    staging.mkdir(parents=True, exist_ok=True)
    schema = _storable(reader.schema)
    groups = _row_groups(reader, options)
    group = next(groups, None)
    if group is None:
        group = pa.Table.from_batches([], reader.schema)
    for number in itertools.count():
        path = staging / f"shard-{number:06d}.parquet"
        with map_os_errors(path):
            writer = pq.ParquetWriter(
                path,
                schema,
                compression=options.compression,
                write_page_checksum=True,
                write_page_index=False,
                store_schema=True,
            )
        try:
            while group is not None:
                columns = [cast_column(c, field.type) for c, field in zip(group.columns, schema, strict=True)]
                with map_os_errors(path):
                    writer.write_table(
                        pa.table(columns, schema=schema), row_group_size=options.row_group_rows
                    )
                group = next(groups, None)
                if path.stat().st_size >= options.shard_bytes:
                    break
        except BaseException:
            with contextlib.suppress(OSError):
                writer.close()
            raise
        with map_os_errors(path):
            writer.close()
        yield path
        if group is None:
            return


def _storable(schema: pa.Schema) -> pa.Schema:
    """The schema as parquet can hold it, or an error that names the column it cannot."""
    fields = []
    for field in schema:
        level = [field.type]
        for _ in range(MAX_LEVELS + 1):
            level = [kind.field(k).type for kind in level for k in range(kind.num_fields)]
        if level:
            raise _too_deep(field.name)
        # Parquet takes views as a column, but neither in lists nor as categories.
        is_view = pa.types.is_string_view(field.type) or pa.types.is_binary_view(field.type)
        kept = field if is_view else field.with_type(without_views(field.type))
        try:
            stored = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_batches([], pa.schema([kept])), stored)
            pq.read_metadata(pa.BufferReader(stored.getvalue()))  # some types are written but cannot be read
        except _ARROW_ERRORS as error:
            fact = f"column {field.name!r} of type {field.type!s:.200} cannot be stored in parquet ({error})"
            raise DatasetError(fact, hint="Cast the column to another type.") from None
        fields.append(kept)
    return pa.schema(fields)


def _row_groups(reader: pa.RecordBatchReader, options: ParquetOptions) -> Iterator[pa.Table]:
    """The rows cut by their number and by their bytes; the cuts do not depend on the batches."""
    first = min(_SAMPLE_ROWS, options.row_group_rows)
    held: list[pa.RecordBatch] = []
    count, rows = 0, first
    for batch in reader:
        while batch.num_rows:
            taken = batch.slice(0, rows - count)
            held.append(taken)
            count += taken.num_rows
            batch = batch.slice(taken.num_rows)
            if count == rows == first:
                size = sum(_memory(column) for sample in held for column in sample.columns)
                fitting = options.row_group_bytes * count // max(1, size)
                power = max(count, 1 << max(0, fitting.bit_length() - 1))
                rows = options.row_group_rows if fitting >= options.row_group_rows else power
            if count == rows:
                yield pa.Table.from_batches(held, reader.schema)
                held, count, rows = [], 0, first
    if count:
        yield pa.Table.from_batches(held, reader.schema)


def _memory(array: Any) -> int:
    """Bytes of the values of a column, without values that it shares with others, as slices and categories do."""
    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _memory(array.storage)
    if types.is_dictionary(kind):
        return int(array.indices.nbytes)
    if types.is_struct(kind):
        return sum(map(_memory, array.flatten()))
    if hasattr(kind, "value_field"):
        return 4 * len(array) + _memory(array.flatten())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        array = array.cast(without_views(kind))
    return int(array.nbytes)
