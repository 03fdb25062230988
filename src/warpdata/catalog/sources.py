"""What a builder accepts as a table, as parquet shards. One of the doors of pyarrow."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warpdata.bytekit.ranges import FileRangeReader, RangeReader
from warpdata.catalog.rowgroups import parse_footer, read_tail
from warpdata.errors import CorruptLayoutError, DatasetError

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How tables that are not parquet yet are written: shards and row groups sized for range reads."""

    shard_bytes: int = 128 << 20
    row_group_rows: int = 131_072
    compression: str = "zstd"


@dataclass(frozen=True, slots=True)
class ParquetFacts:
    """What a parquet file says about itself."""

    path: Path
    rows: int
    schema: pa.Schema
    tail: bytes


def parquet_paths(source: Any, staging: Path, options: ParquetOptions) -> list[Path]:
    """The shards of a table: parquet files as they are, anything else written as parquet into `staging`."""
    if isinstance(source, str | os.PathLike):
        return expand_paths(source, ".parquet")
    if isinstance(source, list | tuple) and all(isinstance(one, str | os.PathLike) for one in source):
        return [path for one in source for path in expand_paths(one, ".parquet")]
    return write_shards(_batches(source), staging, options)


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
    for one in facts[1:]:
        if not one.schema.remove_metadata().equals(first):
            hint = "Convert the files to one schema, or publish them as two tables."
            raise DatasetError(f"a shard of table {table!r} has another schema", path=one.path, hint=hint)
    return first


def column_values(path: Path, column: str) -> Iterator[Any]:
    """The values of one column, row group by row group."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[column]):
                yield batch.column(0)
    except _ARROW_ERRORS as error:
        raise CorruptLayoutError(f"column {column!r} cannot be read ({error})", path=path) from None


def rewrite(paths: Sequence[Path], staging: Path, options: ParquetOptions) -> list[Path]:
    """Write parquet files again with row groups and pages sized for range reads, and page checksums."""

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(65_536)

    schema = parquet_facts(paths[0]).schema
    return write_shards(pa.RecordBatchReader.from_batches(schema, batches()), staging, options)


def write_shards(reader: pa.RecordBatchReader, staging: Path, options: ParquetOptions) -> list[Path]:
    """Write batches as parquet shards of about equal size; equal rows give equal bytes."""
    staging.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    groups = _row_groups(reader, options.row_group_rows)
    group = next(groups, None)
    if group is None:
        group = reader.schema.empty_table()
    while group is not None:
        path = staging / f"shard-{len(paths):06d}.parquet"
        paths.append(path)
        with pq.ParquetWriter(
            path, reader.schema, compression=options.compression, write_page_checksum=True,
            write_page_index=False, store_schema=True,
        ) as writer:  # fmt: skip
            while group is not None:
                writer.write_table(group, row_group_size=options.row_group_rows)
                group = next(groups, None)
                if path.stat().st_size >= options.shard_bytes:
                    break
    return paths


def _row_groups(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        while batch.num_rows:
            taken = batch.slice(0, rows - count)
            held.append(taken)
            count += taken.num_rows
            batch = batch.slice(taken.num_rows)
            if count == rows:
                yield pa.Table.from_batches(held, reader.schema)
                held, count = [], 0
    if count:
        yield pa.Table.from_batches(held, reader.schema)


def _batches(source: Any) -> pa.RecordBatchReader:
    """Anything that speaks Arrow: tables, readers, frames of pandas and polars, dictionaries of columns."""
    try:
        if isinstance(source, pa.RecordBatchReader):
            return source
        if isinstance(source, dict):
            source = pa.table(source)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if not isinstance(source, pa.Table) and hasattr(source, "__arrow_c_stream__"):
            source = pa.table(source)
        if isinstance(source, pa.Table):
            return source.replace_schema_metadata(None).to_reader()
    except _ARROW_ERRORS as error:
        raise DatasetError(f"the table cannot be turned into Arrow ({error})") from None
    raise TypeError(f"a {type(source).__name__} is not a table; give parquet files, Arrow or a frame")
