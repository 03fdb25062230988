"""Row groups of parquet shards through a range reader. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warpdata.bytekit.io.ranges import Range, RangeFile, RangeReader, Span, check_range, coalesce
from warpdata.bytekit.process.forks import ThreadLock, cached_property
from warpdata.errors import CorruptLayoutError, DatasetError, ManifestCorruptedError, UnsupportedDtypeError
from warpdata.formats.episodedir.layout import PARQUET_MAGIC
from warpdata.sql.columns import (
    ARROW_ERRORS,
    Positions,
    engine_columns,
    fields_in,
    first_line,
    names_by_place,
    parse_footer,
    read_tail,
    rows_at,
)
from warpdata.sql.engine import RowMatcher, parse_condition, pushed_down
from warpdata.stores.blobs import BlobReader, RangeBytes

if TYPE_CHECKING:
    from warpdata.catalog.table import Table

_GAP_BYTES = 128 << 10
_GROUP_BYTES = 1 << 20
_GROUP_ROWS = 1 << 16
"""Neighbouring row groups of the file are read as one while they are not larger together."""
_LARGE_BYTES = 4 << 20
_LAZY_BUFFER_BYTES = 256 << 10
_MAX_BUFFER_BYTES = 4 << 20
"""Of a remote group that is at least so large, the first rows are read page by page with buffers of these sizes."""
_OLD_SLACK_BYTES = 100
"""Old files of one writer state column chunks this much too short, and readers allow for it."""

_MOST_FLOATS = 3
"""With more float columns in a condition, row groups are not ruled out."""

READS_NULL_LISTS = int(pa.__version__.partition(".")[0]) >= 26
"""Before, Arrow refused what it had written itself: lists of a fixed size of which some are null."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of some spans of a shard, in memory or mapped."""

    spans: list[Span]
    held: RangeBytes


class ShardFile:
    """One parquet shard: its footer, and its row groups by column; small neighbouring groups are read as one."""

    def __init__(
        self,
        reader: BlobReader,
        tail: bytes | None = None,
        touched: Callable[[Iterable[BlobReader]], None] = lambda _: None,
        expected: tuple[int, pa.Schema] | None = None,
    ) -> None:
        self.reader = reader
        self._tail = tail
        self._touched = touched
        self._expected = expected
        self._lock = ThreadLock()
        self._metadata: pq.FileMetaData | None = None
        self._schema: pa.Schema = pa.schema([])
        self._ranges: dict[tuple[int, tuple[str, ...] | None], list[Range]] = {}
        self._leaves: dict[tuple[str, ...] | None, list[int]] = {}

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer, parsed once; ManifestCorruptedError if the manifest has other rows or another schema."""
        with self._lock:
            if self._metadata is None:
                metadata = parse_footer(self._footer, self.reader.name)
                if self.reader.is_local:  # its pages are checked when they are held
                    self.reader.hold([(self.reader.size - len(self._footer), self.reader.size)])
                self._schema = metadata.schema.to_arrow_schema()
                if self._expected is not None:
                    self._compare(metadata, self._schema, *self._expected)
                self._metadata = metadata
            return self._metadata

    @property
    def _footer(self) -> bytes:
        if self._tail is None:
            self._tail = read_tail(self.reader)
        return self._tail

    def _compare(self, metadata: pq.FileMetaData, stored: pa.Schema, rows: int, schema: pa.Schema) -> None:
        if metadata.num_rows != rows:
            fact = f"row_count mismatch: the manifest has {rows} rows, the shard {metadata.num_rows}"
        elif stored.equals(schema):
            return
        elif stored.names == schema.names:
            fields = next((f, g) for f, g in zip(schema, stored, strict=True) if not f.equals(g))
            column = f"schema mismatch in column {fields[0].name!r}"
            fact = f"{column}: the manifest has {fields[0]}, the shard {fields[1]}"
        else:
            fact = f"schema mismatch: the manifest has columns {schema.names}, the shard {stored.names}"
        raise ManifestCorruptedError(fact, path=self.reader.name)

    @cached_property
    def _groups(self) -> list[tuple[range, int, int]]:
        """Row groups, small neighbours joined: (their numbers in the file, rows, bytes)."""
        joined: list[tuple[range, int, int]] = []
        metadata = self.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
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
        """The first row of each group in the shard."""
        return [0, *itertools.accumulate(self.group_rows)][: len(self.group_rows)]

    def group_bytes(self, group: int) -> int:
        """The bytes of a group in memory."""
        return self._groups[group][2]

    def column_ranges(self, group: int, columns: Sequence[str] | None) -> list[Range]:
        """The bytes of these columns of a row group."""
        key = (group, None if columns is None else tuple(columns))
        if key not in self._ranges:
            metadata, (numbers, _, size) = self.metadata, self._groups[group]
            slack = _OLD_SLACK_BYTES if metadata.created_by.startswith("parquet-mr") else 0
            leaves = self._leaf_numbers(key[1])

            def chunk_range(number: int, leaf: int) -> Range:
                chunk = metadata.row_group(number).column(leaf)
                start = chunk.data_page_offset
                if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                    start = chunk.dictionary_page_offset
                return start, min(start + chunk.total_compressed_size + slack, self.reader.size)

            def ranges_of(chosen: Sequence[int]) -> list[Range]:
                return [chunk_range(number, leaf) for number in chosen for leaf in leaves]

            ranges = ranges_of(numbers if len(numbers) < 3 else (numbers[0], numbers[-1]))
            if len(numbers) > 2 and ranges:
                # The gaps between small groups are read in any case: one range holds them all.
                low, high = min(start for start, _ in ranges), max(end for _, end in ranges)
                is_dense = size <= _GAP_BYTES * len(numbers) and high - low <= 2 * _GROUP_BYTES
                ranges = [(low, high)] if is_dense else ranges_of(numbers)
            self._ranges[key] = ranges
        return self._ranges[key]

    def _leaf_numbers(self, columns: tuple[str, ...] | None) -> list[int]:
        """The positions of the parquet columns that make up these columns."""
        if columns not in self._leaves:
            schema = self.metadata.schema
            paths = [schema.column(i).path for i in range(len(schema))]
            names = None if columns is None else set(columns)
            self._leaves[columns] = [
                i for i, path in enumerate(paths) if names is None or {path, path.split(".", 1)[0]} & names
            ]
        return self._leaves[columns]

    def is_here(self, group: int, columns: Sequence[str] | None) -> bool:
        """Whether the bytes of a row group's columns need not be fetched."""
        return self.reader.has(self.column_ranges(group, columns))

    def costs(self, groups: Sequence[int], columns: Sequence[str] | None) -> list[int]:
        """The bytes of each request when these row groups are fetched one after the other."""
        return self.reader.costs([[(s.start, s.end) for s in self._spans(g, columns)] for g in groups])

    def _spans(self, group: int, columns: Sequence[str] | None) -> list[Span]:
        ranges = self.column_ranges(group, columns)
        for start, end in ranges:
            check_range(self.reader, start, end)
        return coalesce(ranges, max_gap_bytes=_GAP_BYTES)

    def ask(self, group: int, columns: Sequence[str] | None) -> Callable[[], Fetched]:
        """A function that fetches the bytes of a row group's columns: near ones together, all at the same time."""
        spans = self._spans(group, columns)
        hold = self.reader.claim([(span.start, span.end) for span in spans])

        def fetch() -> Fetched:
            held = hold()
            self._touched([self.reader])
            return Fetched(spans, held)

        return fetch

    def read(self, group: int, columns: Sequence[str] | None, fetched: Fetched | None = None) -> pa.Table:
        """A whole group, from its bytes if they were fetched before."""
        names = None if columns is None else list(columns)
        with self._translated_errors():
            file = self._open(fetched or self.ask(group, columns)())
            tables = [
                file.read_row_groups(numbers, columns=names, use_threads=False)
                for numbers in self._decoded_together(group)
            ]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def stream(self, group: int, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        """A group in batches of at most `rows` rows, decoded one by one."""
        return self._iter_batches(self._open(self.ask(group, columns)()), group, columns, rows)

    def is_worth_paging(self, group: int, columns: Sequence[str] | None, rows: int) -> bool:
        """Whether the first `rows` rows of a group should be read page by page instead of fetching all of it."""
        ranges = self.column_ranges(group, columns)
        if self.reader.is_local or 4 * rows > self.group_rows[group]:
            return False
        return sum(end - start for start, end in ranges) >= _LARGE_BYTES and not self.reader.has(ranges)

    def first_rows(self, group: int, columns: Sequence[str] | None, rows: int) -> pa.Table:
        """The first `rows` rows of a group, read page by page."""
        sizes = [end - start for start, end in self.column_ranges(group, columns)]
        expected = max(sizes) * rows // self.group_rows[group]  # of the largest column: a few requests for it
        buffer_bytes = min(max(_LAZY_BUFFER_BYTES, expected // 4), _MAX_BUFFER_BYTES)
        file = self._open(Fetched([], RangeBytes([])), buffer_bytes)
        batches: list[pa.RecordBatch] = []
        for batch in self._iter_batches(file, group, columns, rows):
            batches.append(batch)
            if sum(batch.num_rows for batch in batches) >= rows:
                break
        self._touched([self.reader])
        return pa.Table.from_batches(batches).slice(0, rows)

    def _iter_batches(
        self, file: pq.ParquetFile, group: int, columns: Sequence[str] | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        names = None if columns is None else list(columns)
        with self._translated_errors():
            for numbers in self._decoded_together(group):
                yield from file.iter_batches(rows, row_groups=numbers, columns=names, use_threads=False)

    def _decoded_together(self, group: int) -> list[list[int]]:
        """Row groups of the file that Arrow can decode in one call: it cannot join those of nested columns."""
        numbers = list(self._groups[group][0])
        types = self._schema.types if len(numbers) > 1 else ()
        has_nested = any(pa.types.is_nested(getattr(kind, "storage_type", kind)) for kind in types)
        return [[number] for number in numbers] if has_nested else [numbers]

    def matching_groups(self, groups: Sequence[int], expression: Any) -> list[int]:
        """The row groups whose statistics do not rule out an expression."""
        import pyarrow.dataset as pads  # costs as much as everything else that is imported to read

        _ = self.metadata
        footer, form = pa.py_buffer(PARQUET_MAGIC + self._footer), pads.ParquetFileFormat()
        looked_at, kept = fields_in(expression, self._schema.names), set[int]()
        if names_by_place(str(expression)) or len(set(looked_at)) < len(looked_at):
            return list(groups)
        fields = [self._schema.field(name) for name in looked_at]
        leaves = [leaf for field in fields for leaf in _float_leaves((field.name,), field.type)]
        if len(leaves) > _MOST_FLOATS:
            return list(groups)
        # Statistics leave NaN out, so every choice of floats that are NaN is a case of its own.
        for chosen in itertools.chain.from_iterable(
            itertools.combinations(leaves, count) for count in range(len(leaves) + 1)
        ):
            known = functools.reduce(operator.and_, chosen, pc.scalar(True))
            try:
                fragment = form.make_fragment(pa.BufferReader(footer), partition_expression=known)
                kept.update(group.id for group in fragment.subset(expression).row_groups)
            except ARROW_ERRORS:
                return list(groups)
        return [group for group in groups if not kept.isdisjoint(self._groups[group][0])]

    def _open(self, fetched: Fetched, buffer_bytes: int = 0) -> pq.ParquetFile:
        """The file, reading from fetched bytes, or page by page with a buffer."""
        whole = fetched.held.whole
        source = (
            pa.PythonFile(_FetchedFile(fetched, self.reader), mode="r")
            if whole is None
            else pa.BufferReader(pa.py_buffer(whole))
        )
        with self._translated_errors():
            return pq.ParquetFile(
                source,
                metadata=self.metadata,
                pre_buffer=False,
                buffer_size=buffer_bytes,
                page_checksum_verification=True,
            )

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except ARROW_ERRORS as error:
            if not READS_NULL_LISTS and "Expected all lists to be of size" in str(error):
                fact = f"pyarrow {pa.__version__} cannot read lists of a fixed size of which some are null"
                hint = "Install pyarrow 26 or newer."
                raise UnsupportedDtypeError(fact, path=self.reader.name, hint=hint) from None
            fact = f"damaged parquet shard ({first_line(error)})"
            raise CorruptLayoutError(fact, path=self.reader.name) from None


class RowFilter:
    """The conditions of a view, applied to one piece of its table after the other; types never change."""

    def __init__(self, view: Table) -> None:
        self._view = view
        self._expression = view.expression
        names = view.files.schema.names
        self.columns: list[str] = fields_in(self._expression, names)
        """The columns the conditions look at."""
        self.pruning: Any = self._expression
        """An Arrow expression that rules out whole row groups, or None."""
        self._matcher: RowMatcher | None = None
        self._matches: Positions | None = None
        if view.predicate is None:
            return
        condition = parse_condition(view.predicate)
        if condition.has_subquery:
            # A subquery is about whole tables: one query finds all rows.
            self._matches = view.rows_where(condition)
            return
        used = condition.columns_of(names)
        for name in used:
            if names.count(name) > 1:
                hint = "Publish the table again with other names."
                raise DatasetError(f"table {view.name!r} has two columns called {name!r}", hint=hint)
        columns = engine_columns(view.files.schema.field(name) for name in used)
        self._matcher = RowMatcher(condition, columns, names)
        self._matcher.check()
        self.columns = list(dict.fromkeys([*self.columns, *used]))
        pushed = pushed_down(condition, columns)
        if pushed is not None:
            self.pruning = pushed if self.pruning is None else self.pruning & pushed

    def keep(self, piece: pa.Table, first_row: int) -> pa.Table:
        """The rows of a piece that satisfy the conditions; `first_row` is where in the table it begins."""
        kept = None
        if self._matches is not None:
            low, high = np.searchsorted(self._matches, [first_row, first_row + piece.num_rows])
            kept = self._matches[low:high] - first_row
        if self._matcher is not None:
            kept = self._matcher.positions(piece)
        if self._expression is not None:
            import pyarrow.dataset as pads

            try:
                looked_at = piece.select(fields_in(self._expression, self._view.files.schema.names))
                answers = pads.dataset(looked_at).to_table(columns={"kept": self._expression})["kept"]
                holds = pc.fill_null(answers, False).to_numpy()
            except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
                raise DatasetError(f"the filter does not fit table {self._view.name!r}: {error}") from None
            kept = np.flatnonzero(holds) if kept is None else kept[holds[kept]]
        return piece if kept is None else rows_at(piece, kept)

    def close(self) -> None:
        """Close the engine."""
        if self._matcher is not None:
            self._matcher.close()


def _float_leaves(path: tuple[str, ...], kind: pa.DataType) -> Iterator[Any]:
    """That a column of floats is NaN, for it or for each one inside a struct."""
    if pa.types.is_floating(kind):
        yield pc.field(*path) == pa.scalar(float("nan")).cast(kind)
    for field in kind if pa.types.is_struct(kind) else ():
        yield from _float_leaves((*path, field.name), field.type)


class _FetchedFile(RangeFile):
    """Fetched ranges as a file for pyarrow, which takes views of them."""

    def __init__(self, fetched: Fetched, reader: RangeReader) -> None:
        super().__init__(reader)
        starts = [span.start for span in fetched.spans]
        self._spans = list(zip(starts, fetched.held.views, strict=True))

    def read(self, size: int = -1) -> memoryview:  # type: ignore[override]
        start, size = self._position, self._reader.size if size < 0 else size
        end = min(start + size, self._reader.size)
        for span_start, data in self._spans:
            if span_start <= start and end <= span_start + data.nbytes:
                self._position = end
                return data[start - span_start : end - span_start]
        return self._next(size)
