"""What a builder accepts as a table, as parquet shards. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.files import FileRangeReader, check_regular
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.catalog.build.rowsources import (
    ARROW_ERRORS,
    batches_reader,
    check_levels,
    columns_table,
    csv_reader,
    json_rows,
    kind_of,
    rows_reader,
    table_kind,
    table_of,
)
from warpdata.catalog.read.rowgroups import parse_footer, read_tail
from warpdata.errors import CorruptLayoutError, DatasetError
from warpdata.sql.rowpicking import cast_column, without_views
from warpdata.sql.sqltext import OWN_COLUMNS, folded

_WEIGHED_ROWS = 32
"""How many rows at the beginning of a row group tell how large its rows are."""

_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How tables that are not parquet yet are written: shards and row groups sized for range reads."""

    shard_bytes: int = 128 << 20
    row_group_rows: int = 131_072
    compression: str = "zstd"
    row_group_bytes: int = 64 << 20
    """About how much memory the rows of a row group take at most; at least a few rows are one."""


@dataclass(frozen=True, slots=True)
class ParquetFacts:
    """What a parquet file says about itself."""

    path: Path
    rows: int
    schema: pa.Schema
    tail: bytes


def table_shards(
    source: Any, staging: Path, options: ParquetOptions, *, optimize: bool = False
) -> list[Path] | Iterator[Path]:
    """The shards of a table: parquet files as they are unless optimised, all else as it is written into `staging`."""
    given = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(given, list | tuple) and given and all(isinstance(one, str | os.PathLike) for one in given):
        paths = [path for one in given for path in _table_files(one)]
        for path in paths:
            check_regular(path)
        kinds = sorted({kind_of(path) for path in paths})
        if kinds == ["parquet"]:
            return write_shards(_rewritten(paths, staging.name), staging, options) if optimize else paths
        if len(kinds) > 1:
            raise DatasetError(
                f"a table is made of files of one kind, not {' and '.join(kinds)}",
                path=paths[0],
                hint="Name the files of one kind.",
            )
        reader = csv_reader(paths) if kinds == ["csv"] else rows_reader(json_rows(paths), staging)
        return write_shards(reader, staging, options)
    return write_shards(_batches(source, staging), staging, options)


def _table_files(source: str | os.PathLike[str]) -> list[Path]:
    """The files a caller means; of a folder its parquet files, or where it has none its CSV or JSON lines."""
    folder = Path(os.path.expanduser(os.fspath(source)))
    if not folder.is_dir():
        return expand_paths(source, "")
    kinds = {path: table_kind(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    others = [path for path, kind in kinds.items() if kind not in ("parquet", None)]
    if found := [path for path, kind in kinds.items() if kind == "parquet"] or others:
        return found
    raise DatasetError("no files of a table there", path=folder, hint="Give parquet, csv or jsonl files.")


def expand_paths(source: str | os.PathLike[str], suffix: str) -> list[Path]:
    """A file, the matching files of a folder, or those of a pattern, sorted."""
    text = os.path.expanduser(os.fspath(source))
    path = Path(text)
    if path.is_dir():
        found = sorted(p for p in path.rglob(f"*{suffix}") if p.is_file())
    elif path.is_file():
        found = [path]
    else:
        found = sorted(Path(one) for one in glob.glob(text, recursive=True))
    if not found:
        raise DatasetError(
            f"no {suffix or 'such'} files there", path=text, hint="Check the path or the pattern."
        )
    return found


def parquet_facts(path: Path, reader: RangeReader | None = None) -> ParquetFacts:
    """Read a parquet file's footer, through `reader` if given, and check that it is one."""
    with contextlib.closing(reader or FileRangeReader(path)) as opened:
        tail = read_tail(opened)
        metadata = parse_footer(tail, str(path))
    schema = metadata.schema.to_arrow_schema()
    return ParquetFacts(path, metadata.num_rows, schema, tail)


def same_schema(facts: Sequence[ParquetFacts], table: str) -> pa.Schema:
    """The schema all shards share, or an error that names the first that differs."""
    if not facts:
        raise DatasetError(f"table {table!r} has no shards")
    first = facts[0].schema.remove_metadata()
    check_names(first, table)
    for one in facts[1:]:
        if not one.schema.remove_metadata().equals(first):
            hint = "Convert the files to one schema, or publish them as two tables."
            raise DatasetError(f"a shard of table {table!r} has another schema", path=one.path, hint=hint)
    return first


def check_names(schema: pa.Schema, table: str) -> None:
    """DatasetError for two columns of one name, and for one of ours; to SQL a name is the same in capitals."""
    if not schema.names:  # parquet knows no rows without columns, so their number would be lost
        raise DatasetError(f"table {table!r} has no columns", hint="Give rows with at least one column.")
    seen: dict[str, str] = {}
    for name in schema.names:
        if folded(name).startswith(OWN_COLUMNS):
            fact = f"table {table!r} has a column {name!r}: names that begin with {OWN_COLUMNS!r} are taken"
            raise DatasetError(fact, hint="Rename it.")
        if folded(name) in seen:
            fact = f"table {table!r} has two columns that SQL cannot tell apart: {seen[folded(name)]!r} and {name!r}"
            raise DatasetError(fact, hint="Rename one of them.")
        seen[folded(name)] = name


def column_values(path: Path, column: str) -> Iterator[Any]:
    """The values of one column, row group by row group."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[column]):
                yield batch.column(0)
    except ARROW_ERRORS as error:
        raise CorruptLayoutError(f"column {column!r} cannot be read ({error})", path=path) from None


def _rewritten(paths: Sequence[Path], table: str) -> pa.RecordBatchReader:
    """The rows of parquet files, to be written again with row groups sized for range reads, and page checksums."""

    schema = same_schema([parquet_facts(path) for path in paths], table)
    batches = (batch for path in paths for batch in file_batches(path) if batch.num_rows)
    return pa.RecordBatchReader.from_batches(schema, batches)


def file_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a parquet file in batches; an empty one if it has none."""
    try:
        with pq.ParquetFile(path) as file:
            yield from file.schema_arrow.remove_metadata().empty_table().to_batches()
            yield from file.iter_batches(_batch_rows(file.metadata))
    except ARROW_ERRORS as error:
        raise CorruptLayoutError(f"it cannot be read ({error})", path=path) from None


def _batch_rows(metadata: Any) -> int:
    """How many rows of a file are read at a time: some MiB of them."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [int(group.total_byte_size) // max(1, int(group.num_rows)) for group in groups]
    return max(1, min(65_536, _BATCH_BYTES // max([1, *sizes])))


def write_shards(reader: pa.RecordBatchReader, staging: Path, options: ParquetOptions) -> Iterator[Path]:
    """Write batches as parquet shards of about equal size, each given when it is whole; equal rows give equal bytes."""
    staging.mkdir(parents=True, exist_ok=True)
    schema = _storable(reader.schema)
    groups = _row_groups(reader, options)
    group = next(groups, None)
    if group is None:
        group = pa.Table.from_batches([], reader.schema)
    for number in itertools.count():
        path = staging / f"shard-{number:06d}.parquet"
        with _open_writer(path, schema, options) as write:
            while group is not None:
                write(_stored(group, schema))
                group = next(groups, None)
                if path.stat().st_size >= options.shard_bytes:
                    break
        yield path
        if group is None:
            return


@contextlib.contextmanager
def _open_writer(
    path: Path, schema: pa.Schema, options: ParquetOptions
) -> Iterator[Callable[[pa.Table], None]]:
    """A function that writes row groups to a new parquet file; a full disk is an OutOfSpaceError."""

    def write(group: pa.Table) -> None:
        with map_os_errors(path):
            writer.write_table(group, row_group_size=options.row_group_rows)

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
        yield write
    except BaseException:
        with contextlib.suppress(OSError):
            writer.close()
        raise
    with map_os_errors(path):
        writer.close()


def _stored(group: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [cast_column(column, field.type) for column, field in zip(group.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _storable(schema: pa.Schema) -> pa.Schema:
    """The schema as parquet can hold it, or an error that names the column it cannot."""
    fields = []
    for field in schema:
        # Parquet takes strings that are views as a column, but neither in lists nor as categories.
        is_view = pa.types.is_string_view(field.type) or pa.types.is_binary_view(field.type)
        check_levels(field)
        kept = field if is_view else field.with_type(without_views(field.type))
        try:
            stored = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_batches([], pa.schema([kept])), stored)
            # Types are written that are too deep for any reader.
            pq.read_metadata(pa.BufferReader(stored.getvalue()))
        except ARROW_ERRORS as error:
            fact = f"column {field.name!r} of type {field.type!s:.200} cannot be stored in parquet ({error})"
            raise DatasetError(fact, hint="Cast the column to another type.") from None
        fields.append(kept)
    return pa.schema(fields)


def _row_groups(reader: pa.RecordBatchReader, options: ParquetOptions) -> Iterator[pa.Table]:
    """The rows cut by their number and by their bytes, alike however they come in batches."""
    first = min(_WEIGHED_ROWS, options.row_group_rows)
    held: list[pa.RecordBatch] = []
    count, rows = 0, first
    for batch in reader:
        while batch.num_rows:
            taken = batch.slice(0, rows - count)
            held.append(taken)
            count += taken.num_rows
            batch = batch.slice(taken.num_rows)
            if count == rows == first:
                rows = _rows_like(held, count, options)
            if count == rows:
                yield pa.Table.from_batches(held, reader.schema)
                held, count, rows = [], 0, first
    if count:
        yield pa.Table.from_batches(held, reader.schema)


def _rows_like(batches: Sequence[pa.RecordBatch], count: int, options: ParquetOptions) -> int:
    """How many rows a group has that begins with these: a power of two, unless it is the most."""
    size = sum(_memory(column) for batch in batches for column in batch.columns)
    fitting = options.row_group_bytes * count // max(1, size)
    if fitting >= options.row_group_rows:
        return options.row_group_rows
    return max(count, 1 << max(0, fitting.bit_length() - 1))


def _memory(array: Any) -> int:
    """What the values of a column take; those that it shares with others, as parts and categories do, are not its."""
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


def _batches(source: Any, staging: Path) -> pa.RecordBatchReader:
    """Anything that is a table: Arrow, frames of pandas and polars, columns by name, rows, or pieces of these."""
    try:
        if isinstance(source, pa.RecordBatchReader):
            return source
        if isinstance(source, dict):
            source = columns_table(source)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if not isinstance(source, pa.Table) and hasattr(source, "__arrow_c_stream__"):
            source = table_of(source)
        if isinstance(source, pa.Table):
            return source.replace_schema_metadata(None).to_reader()
    except ARROW_ERRORS as error:
        raise DatasetError(f"the table cannot be turned into Arrow ({error})") from None
    if isinstance(source, Iterable) and not isinstance(source, str | bytes) and not hasattr(source, "read"):
        return _reader_of_pieces(iter(source), staging)
    raise TypeError(
        f"a {type(source).__name__} is not a table; give files, Arrow, a frame, or rows as dictionaries"
    )


def _reader_of_pieces(pieces: Iterator[Any], staging: Path) -> pa.RecordBatchReader:
    first = list(itertools.islice(pieces, 1))
    together = itertools.chain(first, pieces)
    if any(hasattr(one, "__arrow_c_stream__") or hasattr(one, "__arrow_c_array__") for one in first):
        return batches_reader(together)
    return rows_reader(together, staging)
