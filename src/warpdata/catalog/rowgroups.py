"""Row groups of parquet shards through a range reader. One of the doors of pyarrow."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from warpdata.bytekit.ranges import Range, RangeReader, check_range, coalesce
from warpdata.errors import CorruptLayoutError, ManifestCorruptedError, TruncatedError
from warpdata.stores.blobs import AnyBlobReader, LocalBlobReader

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_MAX_FOOTER_BYTES = 256 << 20
_GAP_BYTES = 128 << 10
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of some ranges of a shard, in memory or mapped."""

    spans: tuple[tuple[int, memoryview], ...]


class ShardFile:
    """One parquet shard: its footer, and its row groups by column."""

    def __init__(self, reader: AnyBlobReader, tail: bytes | None = None) -> None:
        self._reader = reader
        self._tail = tail
        self._lock = threading.Lock()
        self._metadata: pq.FileMetaData | None = None
        self._ranges: dict[tuple[int, tuple[str, ...] | None], list[Range]] = {}
        self._leaves: dict[tuple[str, ...] | None, list[int]] = {}

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer, parsed once."""
        with self._lock:
            if self._metadata is None:
                tail = self._tail if self._tail is not None else read_tail(self._reader)
                self._metadata = parse_footer(tail, self._reader.name)
            return self._metadata

    def column_ranges(self, group: int, columns: Sequence[str] | None) -> list[Range]:
        """Which bytes of a row group hold these columns."""
        key = (group, None if columns is None else tuple(columns))
        found = self._ranges.get(key)
        if found is None:
            row_group = self.metadata.row_group(group)
            leaves = self._leaf_numbers(key[1])
            found = self._ranges[key] = [_chunk_range(row_group.column(leaf)) for leaf in leaves]
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

    def fetch(self, group: int, columns: Sequence[str] | None) -> Fetched:
        """The bytes of a row group's columns, in few reads at the same time."""
        return self.fetch_ranges(self.column_ranges(group, columns))

    def fetch_ranges(self, ranges: Sequence[Range]) -> Fetched:
        """The bytes of any ranges, near ones together."""
        for start, end in ranges:
            check_range(self._reader, start, end)
        spans = coalesce(ranges, max_gap_bytes=_GAP_BYTES)
        found = self._reader.read_many([(span.start, span.end) for span in spans])
        return Fetched(tuple((span.start, data) for span, data in zip(spans, found, strict=True)))

    def read(self, group: int, columns: Sequence[str] | None, fetched: Fetched | None = None) -> pa.Table:
        """A whole row group."""
        try:
            file = self._open(fetched or self.fetch(group, columns))
            return file.read_row_group(group, columns=_listed(columns), use_threads=True)
        except _ARROW_ERRORS as error:
            raise self._damaged(error) from None

    def stream(
        self, group: int, columns: Sequence[str] | None, rows: int, fetched: Fetched | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A row group in pieces of at most `rows` rows, decoded as they are asked for."""
        try:
            file = self._open(fetched or self.fetch(group, columns))
            yield from file.iter_batches(rows, row_groups=[group], columns=_listed(columns), use_threads=True)
        except _ARROW_ERRORS as error:
            raise self._damaged(error) from None

    def matching_groups(self, groups: Sequence[int], expression: Any) -> list[int]:
        """The row groups whose statistics do not rule out an expression."""
        metadata = self.metadata
        tail = self._tail if self._tail is not None else read_tail(self._reader)
        try:
            fragment = pads.ParquetFileFormat().make_fragment(pa.BufferReader(_footer_file(tail)))
            kept = {group.id for group in fragment.subset(expression).row_groups}
        except _ARROW_ERRORS:
            kept = set(range(metadata.num_row_groups))
        return [group for group in groups if group in kept]

    def _open(self, fetched: Fetched) -> pq.ParquetFile:
        if isinstance(self._reader, LocalBlobReader):
            # The pages were checked when they were fetched; the mapping spares a copy.
            source = pa.BufferReader(pa.py_buffer(self._reader._file.read(0, self._reader.size)))
        else:
            source = pa.PythonFile(_FetchedFile(fetched, self._reader), mode="r")
        return pq.ParquetFile(
            source, metadata=self.metadata, pre_buffer=False, page_checksum_verification=True
        )

    def _damaged(self, error: Exception) -> CorruptLayoutError:
        return CorruptLayoutError(f"damaged parquet shard ({_first_line(error)})", path=self._reader.name)


def _chunk_range(chunk: Any) -> Range:
    """Where a column chunk lies, its dictionary included."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


class _FetchedFile:
    """What pyarrow sees as a file: ranges that are here, read by position."""

    def __init__(self, fetched: Fetched, reader: RangeReader) -> None:
        self._spans = fetched.spans
        self._reader = reader
        self._position = 0
        self.closed = False

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        end = self._reader.size if size < 0 else min(start + size, self._reader.size)
        self._position = end
        for span_start, data in self._spans:
            if span_start <= start and end <= span_start + data.nbytes:
                return data[start - span_start : end - span_start]
        return self._reader.read(start, end)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, self._reader.size)[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._reader.size

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
    if guess[-4:] != _MAGIC:
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
    return pa.py_buffer(_MAGIC + tail)


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


def schema_from_columns(columns: dict[str, list[Any]]) -> pa.Schema:
    """The schema of plain columns."""
    return pa.table(columns).schema
