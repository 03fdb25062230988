"""Row groups of parquet shards through a range reader. One of the adapters of pyarrow."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warpdata.bytekit.io.ranges import Range, RangeReader, Span, check_range, coalesce
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    ManifestCorruptedError,
    TruncatedError,
    UnsupportedDtypeError,
)
from warpdata.formats.episodedir.layout import PARQUET_MAGIC
from warpdata.sql.enginetypes import fields_in, names_by_place
from warpdata.stores.blobs import AnyBlobReader, LocalBlobReader, RangeBytes

_TAIL_BYTES = 8
_MAX_FOOTER_BYTES = 256 << 20
_GAP_BYTES = 128 << 10
_GROUP_BYTES = 1 << 20
_GROUP_ROWS = 1 << 16
"""Neighbouring row groups of the file are read as one while they are not larger together."""
_LARGE_BYTES = 4 << 20
_LAZY_BUFFER_BYTES = 256 << 10
"""Of a remote group that is at least so large, the first rows are read page by page with such buffers."""
_OLD_SLACK_BYTES = 100
"""Old files of one writer say that column chunks are this much shorter than they are, and readers allow for it."""

_MOST_FLOATS = 3
"""Of how many columns each choice of those that are NaN is asked for; beyond, row groups are not ruled out."""

READS_NULL_LISTS = int(pa.__version__.partition(".")[0]) >= 26
"""Before, Arrow refused what it had written itself: lists of a fixed size of which some are null."""

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of some spans of a shard, in memory or mapped."""

    spans: list[Span]
    held: RangeBytes


class ShardFile:
    """One parquet shard: its footer, and its row groups by column."""

    def __init__(
        self,
        reader: AnyBlobReader,
        tail: bytes | None = None,
        touched: Callable[[Iterable[AnyBlobReader]], None] = lambda _: None,
        expected: tuple[int, pa.Schema] | None = None,
    ) -> None:
        self.reader = reader
        self._tail = tail
        self._touched = touched
        self._expected = expected
        self._lock = ThreadLock()
        self._metadata: pq.FileMetaData | None = None
        self._idle: list[tuple[object, pq.ParquetFile]] = []
        self._ranges: dict[tuple[int, tuple[str, ...] | None], list[Range]] = {}
        self._leaves: dict[tuple[str, ...] | None, list[int]] = {}

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer, parsed once."""
        with self._lock:
            if self._metadata is None:
                metadata = self._read_footer()
                self._compare(metadata)
                self._metadata = metadata
            return self._metadata

    def _compare(self, metadata: pq.FileMetaData) -> None:
        """ManifestCorruptedError if the footer has another number of rows, or another schema, than the manifest."""
        if self._expected is None:
            return
        rows, schema = self._expected
        if metadata.num_rows != rows:
            fact = f"row_count mismatch: the manifest has {rows} rows, the shard {metadata.num_rows}"
            raise ManifestCorruptedError(fact, path=self.reader.name)
        stored = metadata.schema.to_arrow_schema()
        if stored.equals(schema):
            return
        fact = f"schema mismatch: the manifest has columns {schema.names}, the shard {stored.names}"
        if stored.names == schema.names:
            name = next((f.name for f, g in zip(schema, stored, strict=True) if not f.equals(g)), "")
            fields = schema.field(name), stored.field(name)
            fact = f"schema mismatch in column {name!r}: the manifest has {fields[0]}, the shard {fields[1]}"
        raise ManifestCorruptedError(fact, path=self.reader.name)

    @cached_property
    def _groups(self) -> list[tuple[range, int, int]]:
        """Row groups, small neighbours joined: (their numbers in the file, rows, bytes)."""
        joined: list[tuple[range, int, int]] = []
        for number in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(number)
            rows, size = group.num_rows, group.total_byte_size
            if joined and joined[-1][1] + rows <= _GROUP_ROWS and joined[-1][2] + size <= _GROUP_BYTES:
                numbers, more_rows, more_bytes = joined[-1]
                joined[-1] = range(numbers.start, number + 1), more_rows + rows, more_bytes + size
            else:
                joined.append((range(number, number + 1), rows, size))
        return joined

    @cached_property
    def group_rows(self) -> list[int]:
        """The rows of each group."""
        return [rows for _, rows, _ in self._groups]

    @cached_property
    def group_starts(self) -> list[int]:
        """The row of the shard each group begins with."""
        return [0, *itertools.accumulate(self.group_rows)][: len(self.group_rows)]

    def group_bytes(self, group: int) -> int:
        """The bytes of a group in memory."""
        return self._groups[group][2]

    def _read_footer(self) -> pq.FileMetaData:
        tail = self._tail if self._tail is not None else read_tail(self.reader)
        if not isinstance(self.reader, LocalBlobReader):
            return parse_footer(tail, self.reader.name)
        # The file is here: opened once, it gives the footer and then the rows.
        whole = self.reader.hold([(self.reader.size - len(tail), self.reader.size)]).whole
        assert whole is not None
        try:
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(whole)), page_checksum_verification=True)
        except _ARROW_ERRORS as error:
            raise self._damaged(error) from None
        self._idle.append((whole.obj, file))
        return file.metadata

    def column_ranges(self, group: int, columns: Sequence[str] | None) -> list[Range]:
        """Which bytes of a row group hold these columns."""
        key = (group, None if columns is None else tuple(columns))
        found = self._ranges.get(key)
        if found is None:
            leaves = self._leaf_numbers(key[1])
            members = (self.metadata.row_group(number) for number in self._groups[group][0])
            chunks = (_chunk_range(member.column(leaf)) for member in members for leaf in leaves)
            slack = _OLD_SLACK_BYTES if self.metadata.created_by.startswith("parquet-mr") else 0
            found = self._ranges[key] = [(a, min(b + slack, self.reader.size)) for a, b in chunks]
        return found

    def _leaf_numbers(self, columns: tuple[str, ...] | None) -> list[int]:
        """The positions of the parquet columns that make up these columns."""
        if columns not in self._leaves:
            schema = self.metadata.schema
            paths = [schema.column(i).path for i in range(len(schema))]
            wanted = None if columns is None else set(columns)
            self._leaves[columns] = [
                i for i, path in enumerate(paths) if wanted is None or {path, path.split(".", 1)[0]} & wanted
            ]
        return self._leaves[columns]

    def is_here(self, group: int, columns: Sequence[str] | None) -> bool:
        """Whether the bytes of a row group's columns need not be waited for."""
        return self.reader.has(self.column_ranges(group, columns))

    def costs(self, groups: Sequence[int], columns: Sequence[str] | None) -> list[int]:
        """The bytes of each request that fetching these row groups one after the other will make."""
        reads = [[(span.start, span.end) for span in self._spans(group, columns)] for group in groups]
        return self.reader.costs(reads)

    def _spans(self, group: int, columns: Sequence[str] | None) -> list[Span]:
        ranges = self.column_ranges(group, columns)
        for start, end in ranges:
            check_range(self.reader, start, end)
        return coalesce(ranges, max_gap_bytes=_GAP_BYTES)

    def ask(self, group: int, columns: Sequence[str] | None) -> Callable[[], Fetched]:
        """What a thread is to run for the bytes of a row group's columns: near ones together, all at the same time."""
        spans = self._spans(group, columns)
        hold = self.reader.claim([(span.start, span.end) for span in spans])

        def fetch() -> Fetched:
            held = hold()
            self._touched([self.reader])
            return Fetched(spans, held)

        return fetch

    def fetch(self, group: int, columns: Sequence[str] | None) -> Fetched:
        """The bytes of a row group's columns."""
        return self.ask(group, columns)()

    def read(self, group: int, columns: Sequence[str] | None, fetched: Fetched) -> pa.Table:
        """A whole group."""
        with self._opened(fetched) as file:
            tables = [
                file.read_row_groups(numbers, columns=_listed(columns), use_threads=False)
                for numbers in self._decoded_together(group)
            ]
            return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _decoded_together(self, group: int) -> list[list[int]]:
        """Row groups of the file that Arrow can decode in one call: it cannot join those of nested columns."""
        numbers = list(self._groups[group][0])
        return [[number] for number in numbers] if self._has_nested else [numbers]

    @cached_property
    def _has_nested(self) -> bool:
        types = [field.type for field in self.metadata.schema.to_arrow_schema()]
        return any(pa.types.is_nested(getattr(kind, "storage_type", kind)) for kind in types)

    def is_worth_paging(self, group: int, columns: Sequence[str] | None, rows: int) -> bool:
        """Whether the first `rows` rows of a group should be read page by page instead of fetching all of it."""
        ranges = self.column_ranges(group, columns)
        if isinstance(self.reader, LocalBlobReader) or 4 * rows > self.group_rows[group]:
            return False
        return sum(end - start for start, end in ranges) >= _LARGE_BYTES and not self.reader.has(ranges)

    def first_rows(self, group: int, columns: Sequence[str] | None, rows: int) -> pa.Table:
        """The first `rows` rows of a group, read page by page."""
        source = pa.PythonFile(_FetchedFile(Fetched([], RangeBytes([])), self.reader), mode="r")
        batches: list[pa.RecordBatch] = []
        try:
            file = _parquet(source, self.metadata, _LAZY_BUFFER_BYTES)
            steps = self._iter_batches(file, group, columns, rows)
            while (
                sum(batch.num_rows for batch in batches) < rows and (batch := next(steps, None)) is not None
            ):
                batches.append(batch)
        except _ARROW_ERRORS as error:
            raise self._damaged(error) from None
        self._touched([self.reader])
        return pa.Table.from_batches(batches).slice(0, rows)

    def stream(self, group: int, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        """A group in batches of at most `rows` rows, decoded as they are requested."""
        with self._opened(self.fetch(group, columns)) as file:
            yield from self._iter_batches(file, group, columns, rows)

    def _iter_batches(
        self, file: pq.ParquetFile, group: int, columns: Sequence[str] | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        for numbers in self._decoded_together(group):
            yield from file.iter_batches(
                rows, row_groups=numbers, columns=_listed(columns), use_threads=False
            )

    def matching_groups(self, groups: Sequence[int], expression: Any) -> list[int]:
        """The row groups whose statistics do not rule out an expression."""
        import pyarrow.dataset as pads  # costs as much as everything else that is imported to read

        tail = self._tail if self._tail is not None else read_tail(self.reader)
        footer, form = _footer_file(tail), pads.ParquetFileFormat()
        kept: set[int] = set()
        try:
            for known in _nan_cases(expression, self.metadata.schema.to_arrow_schema()):
                fragment = form.make_fragment(pa.BufferReader(footer), partition_expression=known)
                kept.update(group.id for group in fragment.subset(expression).row_groups)
        except _ARROW_ERRORS:
            return list(groups)
        return [group for group in groups if not kept.isdisjoint(self._groups[group][0])]

    @contextlib.contextmanager
    def _opened(self, fetched: Fetched) -> Iterator[pq.ParquetFile]:
        """The file, reading from what was fetched; nobody else uses it meanwhile."""
        whole, metadata = fetched.held.whole, self.metadata
        try:
            if whole is None:
                yield _parquet(pa.PythonFile(_FetchedFile(fetched, self.reader), mode="r"), metadata)
            else:
                file = self._idle_file(whole) or _parquet(pa.BufferReader(pa.py_buffer(whole)), metadata)
                yield file
                self._idle.append((whole.obj, file))
        except _ARROW_ERRORS as error:
            raise self._damaged(error) from None

    def _idle_file(self, whole: memoryview) -> pq.ParquetFile | None:
        """A file that was opened on the same mapping and is not in use."""
        with contextlib.suppress(IndexError):
            mapping, file = self._idle.pop()
            return file if mapping is whole.obj else None
        return None

    def _damaged(self, error: Exception) -> FormatError:
        if not READS_NULL_LISTS and "Expected all lists to be of size" in str(error):
            return UnsupportedDtypeError(
                f"pyarrow {pa.__version__} cannot read lists of a fixed size of which some are null",
                path=self.reader.name,
                hint="Install pyarrow 26 or newer.",
            )
        return CorruptLayoutError(f"damaged parquet shard ({_first_line(error)})", path=self.reader.name)


def _nan_cases(expression: Any, schema: pa.Schema) -> Iterator[Any]:
    """What a row may be beside what statistics say of it, which leave NaN out: each choice of floats that are NaN."""
    looked_at = fields_in(expression, schema.names)
    leaves = [leaf for name in looked_at for leaf in _float_leaves((name,), schema.field(name).type)]
    if len(leaves) > _MOST_FLOATS or names_by_place(str(expression)):
        raise ValueError("too many cases to ask for each of them")
    for count in range(len(leaves) + 1):
        for chosen in itertools.combinations(leaves, count):
            yield functools.reduce(operator.and_, chosen, pc.scalar(True))


def _float_leaves(path: tuple[str, ...], kind: pa.DataType) -> Iterator[Any]:
    """That a column of floats is NaN, for it or for each one inside a struct."""
    if pa.types.is_floating(kind):
        yield pc.field(*path) == pa.scalar(float("nan")).cast(kind)
    for field in kind if pa.types.is_struct(kind) else ():
        yield from _float_leaves((*path, field.name), field.type)


def _parquet(source: pa.NativeFile, metadata: pq.FileMetaData, buffer_bytes: int = 0) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=False,
        buffer_size=buffer_bytes,
        page_checksum_verification=True,
    )


def _chunk_range(chunk: Any) -> Range:
    """Where a column chunk lies, its dictionary included."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


class _FetchedFile:
    """What pyarrow sees as a file: ranges that are here, read by position."""

    def __init__(self, fetched: Fetched, reader: RangeReader) -> None:
        starts = [span.start for span in fetched.spans]
        self._spans = list(zip(starts, fetched.held.views, strict=True))
        self.reader = reader
        self._position = 0
        self.closed = False

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        end = self.reader.size if size < 0 else min(start + size, self.reader.size)
        self._position = end
        for span_start, data in self._spans:
            if span_start <= start and end <= span_start + data.nbytes:
                return data[start - span_start : end - span_start]
        return self.reader.read(start, end)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, self.reader.size)[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self.reader.size

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def read_tail(reader: RangeReader) -> bytes:
    """The footer of a parquet file with its length and magic."""
    if reader.size < 12:
        raise TruncatedError("too short for a parquet file", path=reader.name)
    guess = bytes(reader.read(max(0, reader.size - (64 << 10)), reader.size))
    if guess[-4:] != PARQUET_MAGIC:
        raise CorruptLayoutError("not a parquet file", path=reader.name)
    size = int.from_bytes(guess[-8:-4], "little") + _TAIL_BYTES
    if size > min(reader.size, _MAX_FOOTER_BYTES):
        raise CorruptLayoutError("the parquet footer is larger than the file", path=reader.name)
    return guess[-size:] if size <= len(guess) else bytes(reader.read(reader.size - size, reader.size))


def parse_footer(tail: bytes, name: str) -> pq.FileMetaData:
    """The parsed footer of a parquet file."""
    try:
        return pq.read_metadata(pa.BufferReader(_footer_file(tail)))
    except _ARROW_ERRORS as error:
        raise CorruptLayoutError(f"damaged parquet footer ({_first_line(error)})", path=name) from None


def _footer_file(tail: bytes) -> pa.Buffer:
    """A file of a footer only: enough for everything that looks at no rows."""
    return pa.py_buffer(PARQUET_MAGIC + tail)


def schema_to_base64(schema: pa.Schema) -> str:
    """The Arrow IPC bytes of a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_base64(text: str) -> pa.Schema:
    """A schema from untrusted text."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, *_ARROW_ERRORS) as error:
        raise ManifestCorruptedError(f"the Arrow schema is damaged ({_first_line(error)})") from None


def schema_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    """The fields of a schema for people and programs that do not speak Arrow."""
    return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]


def _listed(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200] or type(error).__name__
