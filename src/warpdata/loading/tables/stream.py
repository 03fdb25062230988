"""A pass over a table: exact batches, a share of the rows, and a state to go on from."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warpdata.catalog.dataset import ReadPlan
from warpdata.catalog.read.rowfilter import RowFilter
from warpdata.catalog.table import StreamRequest, Table
from warpdata.errors import DatasetError
from warpdata.loading.ranks import rank_and_world
from warpdata.loading.tables import fetch
from warpdata.loading.tables.batches import batches_of, cut_batches, exact_batches, joined, with_positions
from warpdata.loading.tables.row_ranges import RowRanges, first_rows, remaining, total_rows, whole_table
from warpdata.loading.tables.share import STATE_FORMAT, ReaderProgress, ReaderSplit, parse_share
from warpdata.ordering.limits import Tail, check_filled, check_tail, checked_integer
from warpdata.sql.sqltext import OWN_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION = f"{OWN_COLUMNS}position__"
_DECODE_ROWS = 65_536
MAX_BATCH_ROWS = (1 << 63) - 1
"""A batch of "short" and "drop" has no more rows than there are, so any size is allowed."""


class TableStream:
    """Record batches of a view of a table, in row order; `state_dict` works at any time.

    Ranks split the rows; the readers of a rank (DataLoader workers) split what is the rank's. This is one reader.
    """

    def __init__(self, table: Table, request: StreamRequest, reader: int = 0, readers: int = 1) -> None:
        size = checked_integer("batch_size", request.batch_size, MAX_BATCH_ROWS, least=1)
        check_tail(request.tail)
        self._table = table
        self._request = replace(request, batch_size=size, limit=checked_limit(request.limit))
        self._reader = reader
        rank, world = rank_and_world(request.shard)
        self._is_alone = world * readers == 1
        if request.tail != "short" and table.is_filtered and not self._is_alone:
            raise ValueError(
                "equal steps of several ranks or workers cannot be known beforehand with a filter"
            )
        tail: Tail = "short" if table.is_filtered else request.tail
        self._split = ReaderSplit(rank, world, readers, size, tail, self._group_rows)
        self._everything = self._all_rows()
        self._share = self._split.begin(self._everything)
        self._iterator: Iterator[pa.RecordBatch] | None = None
        self._workers = fetch.worker_count(table, request.prefetch)
        self._check_share()

    def __iter__(self) -> TableStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._iterator is None:
            self._iterator = self._batches()
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except BaseException:
            # The next call goes on where this one failed; an end would look like the end of the rows.
            self._iterator = None
            raise

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: enough to go on at the next row; with those of all ranks, in another world too."""
        return self.state_of({self._reader: self._progress})

    def state_of(self, progress: dict[int, ReaderProgress]) -> dict[str, Any]:
        """The state of this rank with its readers at these places."""
        share = replace(self._share, progress=progress)
        return {"format": STATE_FORMAT, **self._identity(), **share.to_dict()}

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from a state of this rank, or from the states of all ranks of any world."""
        states = list(state) if isinstance(state, list | tuple) else [state]
        if not states:
            raise ValueError("give the state of this rank, or the states of all ranks")
        identity, rows = self._identity(), [shard.row_count for shard in self._table.part.shards]
        share = self._split.resume([parse_share(one, identity, rows) for one in states], self._everything)
        if self._reader not in share.progress:
            raise ValueError(f"the state does not say where reader {self._reader} of {share.readers} is")
        self.close()
        self._share = share

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()  # type: ignore[attr-defined]
            self._iterator = None

    def steps(self) -> int | None:
        """How many batches are left, where that is known without reading."""
        if self._table.is_filtered:
            return None
        return -(-(self._part()[1] - self._progress.rows) // self._request.batch_size)

    @property
    def progress(self) -> dict[int, ReaderProgress]:
        """How far every reader of this rank is, as far as this one knows."""
        return dict(self._share.progress)

    @property
    def _progress(self) -> ReaderProgress:
        return self._share.progress[self._reader]

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return self._filtered_batches() if self._table.is_filtered else self._plain_batches()

    def _plain_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the part, and after them those that pad it."""
        source = itertools.chain(self._plain(self._left()), self._padding(*self._repeats()))
        for batch in exact_batches(source, self._request.batch_size):
            self._advance(self._progress.rows + batch.num_rows, batch.num_rows)
            yield batch

    def _filtered_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that satisfy the filter; only the last batch can be short, and is dropped or filled on request."""
        size, tail = self._request.batch_size, self._request.tail
        source = self._matches(self._left(), self._progress.rows, self._share.given)
        for batch in exact_batches(source, size):
            if tail == "drop" and batch.num_rows < size:
                return
            self._advance(int(batch.column(_POSITION)[batch.num_rows - 1].as_py()) + 1, batch.num_rows)
            whole = batch.drop_columns([_POSITION])
            if tail == "pad" and batch.num_rows < size:
                whole = joined([whole, *self._padding(0, size - batch.num_rows)])
            yield whole

    def _advance(self, rows: int, given: int) -> None:
        self._share = self._share.at(self._reader, ReaderProgress(rows, self._progress.given + given))

    def _padding(self, start: int, rows: int) -> Iterator[pa.RecordBatch]:
        """`rows` rows of this rank from the beginning of the pass, again and again, without the first `start`."""
        ranges = self._split.begin(self._everything).ranges
        if rows > 0:
            found = self._share.given if self._table.is_filtered else total_rows(ranges)
            check_filled(self._request.batch_size, found, self._table.row_bytes)
        start %= max(1, total_rows(ranges))
        while rows > 0:
            is_filtered = self._table.is_filtered
            again = first_rows(remaining(ranges, start), rows)  # no more is read than is given
            source = self._matches(ranges, 0, 0) if is_filtered else self._plain(again)
            for batch in cut_batches(source, rows):
                rows -= batch.num_rows
                yield batch.drop_columns([_POSITION]) if is_filtered else batch
            start = 0

    def _plain(self, ranges: RowRanges) -> Iterator[pa.RecordBatch]:
        """Rows straight from parquet: no SQL in between."""
        columns = self._table.columns
        first_rows = min(max(self._request.batch_size, 1024), _DECODE_ROWS)
        for batch in fetch.stream_rows(self._table, ranges, columns, first_rows, self._workers):
            yield batch if columns is None else batch.select(list(columns))

    def _matches(self, ranges: RowRanges, began: int, given: int) -> Iterator[pa.RecordBatch]:
        """Rows that satisfy the filter, up to the limit; where several share it, it ended the ranges already."""
        limit = self._request.limit
        found = self._filtered(ranges, began)
        return found if limit is None or not self._is_alone else cut_batches(found, limit - given)

    def _filtered(self, ranges: RowRanges, began: int) -> Iterator[pa.RecordBatch]:
        """Rows that satisfy the predicate, each with its position: `began` rows of the part come before `ranges`."""
        table = self._table
        names = None if table.columns is None else list(table.columns)
        with contextlib.closing(RowFilter(table)) as condition:
            wanted = None if names is None else sorted({*names, *condition.columns})
            slices = self._matching(table, ranges, condition.pruning)
            for part, loaded in fetch.load_groups(table, slices, wanted, self._workers):
                first = table.files.first_row(part.shard, part.group) + part.start
                kept = condition.keep(with_positions(loaded, began + part.position, _POSITION), first)
                yield from batches_of(kept if names is None else kept.select([*names, _POSITION]))

    def _matching(self, table: Table, ranges: RowRanges, expression: Any) -> Iterator[fetch.GroupSlice]:
        """The row groups of some ranges whose statistics do not rule the predicate out."""
        for shard, parts in itertools.groupby(fetch.group_slices(table, ranges), lambda part: part.shard):
            slices = list(parts)
            groups = [part.group for part in slices]
            if expression is not None:
                groups = table.files.file(shard).matching_groups(groups, expression)
            yield from (part for part in slices if part.group in groups)

    def _part(self) -> tuple[RowRanges, int]:
        return self._share.part(self._reader, self._group_rows)

    def _left(self) -> RowRanges:
        """What this reader still has to read."""
        return remaining(self._part()[0], self._progress.rows)

    def _repeats(self) -> tuple[int, int]:
        """How many rows were repeated to pad, and how many are still to be."""
        ranges, gives = self._part()
        own, done = total_rows(ranges), self._progress.rows
        return max(0, done - own), max(0, gives - max(done, own))

    def _to_read(self) -> tuple[RowRanges, bool]:
        """The rows that are left and those that pad them, and whether that is all: not where rows come a third time."""
        own = self._split.begin(self._everything).ranges
        repeated, missing = self._repeats()
        again = first_rows(remaining(own, repeated % max(1, total_rows(own))), missing)
        return (*self._left(), *again), total_rows(again) == missing

    def _group_rows(self, shard: int) -> Sequence[int]:
        return fetch.group_rows(self._table, shard)

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {**self._table.identity, "limit": self._request.limit}

    def _all_rows(self) -> RowRanges:
        """The rows all ranks share: a limit counts over all of them, and after the filter."""
        limit, shards = self._request.limit, [shard.row_count for shard in self._table.part.shards]
        if limit is None or not self._table.is_filtered:
            return whole_table(shards, limit)
        return whole_table(shards, None if self._is_alone else self._rows_for(limit))

    def _rows_for(self, limit: int) -> int:
        """How many rows from the beginning hold the first `limit` matches; every rank finds the same."""
        narrow = self._table.select(())
        alone = TableStream(narrow, StreamRequest(batch_size=_DECODE_ROWS, limit=limit))
        for _ in alone:
            pass
        return alone._progress.rows if alone._share.given >= limit else self._table.row_count

    def _check_share(self) -> None:
        rows = total_rows(self._everything)
        if rows and not self._share.ranges:
            fact = f"rank {self._split.rank} of {self._split.world} has no rows: they share {rows}"
            raise DatasetError(fact, hint="Use fewer ranks for this table.")


def checked_limit(limit: int | None) -> int | None:
    """A limit of rows as a plain int: it stands in states, which are JSON."""
    return None if limit is None else checked_integer("limit", limit, MAX_BATCH_ROWS)


def plan_read(table: Table, request: StreamRequest) -> ReadPlan:
    """What a pass will read: exact, because the footers are known, and so is what the cache has and can keep."""
    stream = TableStream(table, request)
    ranges, is_all = stream._to_read()
    slices = list(fetch.group_slices(table, ranges))
    groups: dict[int, list[int]] = {}
    for part in slices:
        groups.setdefault(part.shard, []).append(part.group)
    files = {number: table.files.file(number) for number in groups}
    costs = [size for s, own in groups.items() for size in files[s].costs(own, table.columns)]
    readers = [file.reader for file in files.values()]
    return ReadPlan(
        rows=sum(s.end - s.start for s in slices),
        row_groups=len(slices),
        requests=len(costs),
        bytes_to_read=sum(costs),
        is_exact=is_all and table.dataset.access.is_settled(readers, sum(costs)),
    )
