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
from warpdata.bytekit.process.threads import SharedWork
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
_SHARED_BYTES = 256 << 10
"""Columns that are larger together are begun by two threads: less is decoded sooner than the other one wakes up."""
_OLD_SLACK_BYTES = 100
"""Old files of one writer say that column chunks are this much shorter than they are, and readers allow for it."""

_MOST_FLOATS = 3
"""Of how many columns each choice of those that are NaN is asked for; beyond, row groups are not ruled out."""

READS_NULL_LISTS = int(pa.__version__.partition(".")[0]) >= 26
"""Before, Arrow refused what it had written itself: lists of a fixed size of which some are null."""

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


_second: SharedWork | None = None
_second_lock = ThreadLock()


def _decoding() -> SharedWork:
    """The one thread of this process that helps to begin columns."""
    global _second
    with _second_lock:
        if _second is None or not _second.is_alive:
            _second = SharedWork("warpdata-decode")
        return _second


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
    def group_starts(self) -> list[int]:
        """The row of the shard each row group begins with."""
        metadata = self.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return [0, *itertools.accumulate(rows)][: len(rows)]

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
            row_group = self.metadata.row_group(group)
            chunks = (_chunk_range(row_group.column(leaf)) for leaf in self._leaf_numbers(key[1]))
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

    def _leaf_names(self, columns: Sequence[str] | None) -> list[str]:
        """The paths of the parquet columns that make up these columns."""
        schema = self.metadata.schema
        leaves = self._leaf_numbers(None if columns is None else tuple(columns))
        return [schema.column(leaf).path for leaf in leaves]

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
        hold = self.reader.asked([(span.start, span.end) for span in spans])

        def fetch() -> Fetched:
            held = hold()
            self._touched([self.reader])
            return Fetched(spans, held)

        return fetch

    def fetch(self, group: int, columns: Sequence[str] | None) -> Fetched:
        """The bytes of a row group's columns."""
        return self.ask(group, columns)()

    def read(self, group: int, columns: Sequence[str] | None, fetched: Fetched) -> pa.Table:
        """A whole row group."""
        with self._opened(fetched) as file:
            return file.read_row_group(group, columns=_listed(columns), use_threads=False)

    def stream(self, group: int, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        """A row group in pieces of at most `rows` rows, decoded as they are asked for.

        Without threads, each piece is too small to share; but the first one, for which whole dictionaries and pages are
        decompressed, in two.
        """
        fetched = self.fetch(group, columns)
        with contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(self._opened(fetched)).iter_batches(
                    rows, row_groups=[group], columns=share, use_threads=False
                )
                for share in self._shares(group, columns, fetched)
            ]
            yield from streams[0] if len(streams) == 1 else self._side_by_side(streams, columns)

    def _shares(self, group: int, columns: Sequence[str] | None, fetched: Fetched) -> list[list[str] | None]:
        """The columns in two parts of about the same size, where beginning them is worth two threads."""
        names = self._leaf_names(columns)
        sizes = [end - start for start, end in self.column_ranges(group, columns)]
        is_nested = any("." in name for name in names)
        if fetched.held.whole is None or is_nested or len(names) < 2 or sum(sizes) < _SHARED_BYTES:
            return [_listed(columns)]
        shares: list[list[str]] = [[], []]
        totals = [0, 0]
        for size, name in sorted(zip(sizes, names, strict=True), reverse=True):
            lighter = totals.index(min(totals))
            shares[lighter].append(name)
            totals[lighter] += size
        return list(shares)

    def _side_by_side(
        self, streams: list[Iterator[pa.RecordBatch]], columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """The columns of two streams of the same rows together; Arrow may cut the pieces of each in its own way."""
        held: list[Any] = [None, None]

        def begin(number: int) -> None:
            held[number] = next(streams[number], None)

        _decoding().run(functools.partial(begin, number) for number in range(2))
        names = self._leaf_names(None) if columns is None else columns
        while all(piece is not None for piece in held):
            rows = min(held[0].num_rows, held[1].num_rows)
            found = {name: piece for piece in held for name in piece.schema.names}
            schema = pa.schema([found[name].schema.field(name) for name in names], held[0].schema.metadata)
            arrays = [found[name].column(name)[:rows] for name in names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            for number, piece in enumerate(held):
                held[number] = piece.slice(rows) if piece.num_rows > rows else next(streams[number], None)

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
        return [group for group in groups if group in kept]

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


def _parquet(source: pa.NativeFile, metadata: pq.FileMetaData) -> pq.ParquetFile:
    return pq.ParquetFile(source, metadata=metadata, pre_buffer=False, page_checksum_verification=True)


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
