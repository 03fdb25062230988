"""Record batches of a view of a table, in row order or shuffled, with a state to continue from.

An adapter of pyarrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.process.threads import CORES, ReadAhead
from warpdata.catalog.dataset import ReadPlan
from warpdata.catalog.read.rowgroups import RowFilter
from warpdata.catalog.table import BatchStream, StreamRequest, Table
from warpdata.errors import DatasetError, nearest, require_integer, require_word
from warpdata.loading.ranks import rank_and_world
from warpdata.loading.tables.share import (
    STATE_FORMAT,
    ReaderProgress,
    RowRanges,
    Share,
    begin_share,
    group_ranges,
    parse_share,
    resume_share,
    rows_between,
    total_rows,
    whole_table,
)
from warpdata.ordering.blocks import BlockOrder, BlockShape, check_shuffle
from warpdata.ordering.epochs import TAILS, EpochStream, Place, Step, Tail, check_filled, rank_slice
from warpdata.sql.engine import OWN_COLUMNS

if TYPE_CHECKING:
    from warpdata.catalog.read.rowgroups import Fetched

_POSITION = f"{OWN_COLUMNS}position__"
_DECODE_ROWS = 65_536
_AHEAD_BYTES = 512 << 20
_REMOTE_WORKERS = 12
_BLOCK_BYTES = 1 << 20
_POOL_BYTES = 256 << 20
MAX_BATCH_ROWS = (1 << 63) - 1
"""A batch of "short" and "drop" has no more rows than the table, so any size is allowed."""


def open_stream(table: Table, request: StreamRequest) -> BatchStream:
    """A stream over a table, in row order or shuffled."""
    return ShuffledStream(table, request) if request.shuffle else TableStream(table, request)


def exact_batches(pieces: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `size`; slices share memory, only rows across a border are copied."""
    held: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        at = 0
        if held:
            at = min(size - count, piece.num_rows)
            held.append(piece.slice(0, at))
            count += at
            if count < size:
                continue
            yield _join(held)
            held, count = [], 0
        while piece.num_rows - at >= size:
            yield piece.slice(at, size)
            at += size
        if at < piece.num_rows:
            held, count = [piece.slice(at)], piece.num_rows - at
    if held:
        yield _join(held)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _first_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows; nothing is read after them."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, rows)
        rows -= batch.num_rows


class GroupSlice(NamedTuple):
    """Rows [start, end) of one row group; `position` counts the rows of the share before them."""

    shard: int
    group: int
    start: int
    end: int
    position: int


class TableReader:
    """Row groups of a table read ahead of the consumer: the first one at once, the rest by a bounded pool."""

    def __init__(self, table: Table, prefetch: str | int | None) -> None:
        self.table = table
        self.workers = _worker_count(table, prefetch)

    def group_rows(self, shard: int) -> Sequence[int]:
        """The rows of each row group of a shard."""
        return self.table.files.file(shard).group_rows

    def slices(self, ranges: RowRanges) -> Iterator[GroupSlice]:
        """The row groups of some ranges in order, found as they are needed."""
        position = 0
        for part, group, first in group_ranges(ranges, self.group_rows):
            yield GroupSlice(part.shard, group, part.start - first, part.end - first, position)
            position += part.end - part.start

    def stream(
        self, ranges: RowRanges, columns: Sequence[str] | None, first_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of some ranges in order; reading ahead begins once the first batch is out."""
        slices = self.slices(ranges)
        first = next(slices, None)
        if first is None:
            return
        file = self.table.files.file(first.shard)
        needed = min(first.end, first.start + first_rows)
        if file.is_worth_paging(first.group, columns, needed):
            yield from file.first_rows(first.group, columns, needed).slice(first.start).to_batches()
            begun = self._small_steps(first._replace(start=needed), columns, first_rows)
        else:
            begun = self._small_steps(first, columns, first_rows)
            yield from itertools.islice(begun, 1)
        if self.workers:
            self.table.files.bring_whole(part.shard for part in ranges)
        with closing(self.load(slices, columns)) as loaded:
            yield from begun
            for _, rows in loaded:
                yield from rows.to_batches()

    def _small_steps(
        self, part: GroupSlice, columns: Sequence[str] | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """One row group in small steps, so that the first batch comes as soon as it can."""
        at = 0
        if part.start == part.end:
            return
        for batch in self.table.files.file(part.shard).stream(part.group, columns, rows):
            start, end = max(part.start - at, 0), min(part.end - at, batch.num_rows)
            at += batch.num_rows
            if start < end:
                yield batch.slice(start, end - start)
            if at >= part.end:
                return

    def load(
        self, slices: Iterator[GroupSlice], columns: Sequence[str] | None
    ) -> ReadAhead[GroupSlice, Fetched, tuple[GroupSlice, pa.Table]]:
        """Row groups as tables, read ahead, each with its slice."""
        files = self.table.files

        def decode(part: GroupSlice, fetched: Fetched) -> tuple[GroupSlice, pa.Table]:
            whole = files.file(part.shard).read(part.group, columns, fetched)
            return part, whole.slice(part.start, part.end - part.start)

        def cost(part: GroupSlice) -> int:
            ranges = files.file(part.shard).column_ranges(part.group, columns)
            return sum(end - start for start, end in ranges)

        return ReadAhead(
            lambda part: files.file(part.shard).ask(part.group, columns),
            decode,
            slices,
            workers=self.workers,
            cost=cost,
            max_cost=_AHEAD_BYTES,
            is_here=lambda part: files.file(part.shard).is_here(part.group, columns),
        )


def _worker_count(table: Table, prefetch: str | int | None) -> int:
    """How many threads read ahead: 0 if prefetch is off, more if each read waits for a network."""
    options = table.dataset.access.options
    wanted = options.prefetch if prefetch is None else prefetch
    if wanted in ("off", 0, "0", "none"):
        return 0
    if isinstance(wanted, int) or (isinstance(wanted, str) and wanted.isdigit()):
        if int(wanted) < 0:
            raise ValueError(f"prefetch is {wanted}; a number of row groups is not negative")
        return min(int(wanted), 64)
    if wanted not in ("auto", "aggressive"):
        near = nearest(str(wanted), ("auto", "off", "aggressive"))
        raise ValueError(f"prefetch is {wanted!r}; use auto, off, aggressive or a number.{near}")
    store = table.dataset.catalog.store
    count = CORES + 1 if store is not None and store.is_local else _REMOTE_WORKERS
    return count * 2 if wanted == "aggressive" or options.mode == "hybrid" else count


def _checked_request(request: StreamRequest) -> StreamRequest:
    """The request with plain numbers, because states are JSON."""
    size = require_integer("batch_size", request.batch_size, MAX_BATCH_ROWS, least=1)
    require_word("tail", request.tail, TAILS)
    limit = None if request.limit is None else require_integer("limit", request.limit, MAX_BATCH_ROWS)
    return replace(request, batch_size=size, limit=limit)


class TableStream:
    """Record batches of a view of a table, in row order; `state_dict` works at any time.

    Ranks split the rows; the readers of a rank (DataLoader workers) split the rows of the rank. This is one reader.
    """

    def __init__(self, table: Table, request: StreamRequest, reader: int = 0, readers: int = 1) -> None:
        self._table = table
        self._request = request = _checked_request(request)
        self._reader = reader
        rank, world = rank_and_world(request.shard)
        self._is_alone = world * readers == 1
        if request.tail != "short" and table.is_filtered and not self._is_alone:
            raise ValueError(
                "equal steps of several ranks or workers cannot be known beforehand with a filter"
            )
        tail: Tail = "short" if table.is_filtered else request.tail
        self._groups = TableReader(table, request.prefetch)
        progress = {number: ReaderProgress() for number in range(readers)}
        self._empty = Share(rank, world, (), 0, request.batch_size, tail, readers, progress)
        self._everything = self._all_rows()
        self._share = begin_share(self._empty, self._everything, self._groups.group_rows)
        self._first_share = self._share.ranges
        self._iterator: Generator[pa.RecordBatch, None, None] | None = None
        rows = total_rows(self._everything)
        if rows and not self._share.ranges:
            fact = f"rank {rank} of {world} has no rows: they share {rows}"
            raise DatasetError(fact, hint="Use fewer ranks for this table.")

    def __iter__(self) -> TableStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._iterator is None:
            self._iterator = self._filtered_batches() if self._table.is_filtered else self._plain_batches()
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except BaseException:
            # The next call continues where this one failed; an end would look like the end of the rows.
            self._iterator = None
            raise

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: enough to continue at the next row; with those of all ranks, in another world too."""
        return self.state_of({self._reader: self._progress})

    def state_of(self, progress: dict[int, ReaderProgress]) -> dict[str, Any]:
        """The state of this rank with this progress of its readers."""
        share = replace(self._share, progress=progress)
        return {"format": STATE_FORMAT, **self._identity(), **share.to_dict()}

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Continue from a state of this rank, or from the states of all ranks of any world."""
        states = list(state) if isinstance(state, list | tuple) else [state]
        if not states:
            raise ValueError("load the state of this rank, or the states of all ranks")
        identity, rows = self._identity(), [shard.row_count for shard in self._table.part.shards]
        shares = [parse_share(one, identity, rows) for one in states]
        share = resume_share(self._empty, shares, self._everything, self._groups.group_rows)
        if self._reader not in share.progress:
            raise ValueError(f"the state lacks reader {self._reader} of {share.readers}")
        self.close()
        self._share = share

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    @property
    def progress(self) -> dict[int, ReaderProgress]:
        """How far every reader of this rank is, as far as this one knows."""
        return dict(self._share.progress)

    @property
    def _progress(self) -> ReaderProgress:
        return self._share.progress[self._reader]

    def _plain_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows of the part, and after them those that pad it."""
        source = itertools.chain(self._plain(self._left()), self._padding(*self._repeats()))
        for batch in exact_batches(source, self._request.batch_size):
            self._advance(self._progress.rows + batch.num_rows, batch.num_rows)
            yield batch

    def _filtered_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows that satisfy the filter; only the last batch can be short, and is dropped or filled on request."""
        size, tail = self._request.batch_size, self._request.tail
        source = self._matches(self._left(), self._progress.rows, self._share.given)
        for batch in exact_batches(source, size):
            if tail == "drop" and batch.num_rows < size:
                return
            self._advance(int(batch.column(_POSITION)[batch.num_rows - 1].as_py()) + 1, batch.num_rows)
            whole = batch.drop_columns([_POSITION])
            if tail == "pad" and batch.num_rows < size:
                whole = _join([whole, *self._padding(0, size - batch.num_rows)])
            yield whole

    def _advance(self, rows: int, given: int) -> None:
        progress = ReaderProgress(rows, self._progress.given + given)
        self._share = replace(self._share, progress={**self._share.progress, self._reader: progress})

    def _padding(self, start: int, rows: int) -> Iterator[pa.RecordBatch]:
        """`rows` rows of this rank from the beginning of the pass, repeated, without the first `start`."""
        ranges, is_filtered = self._first_share, self._table.is_filtered
        if rows > 0:
            available = self._share.given if is_filtered else total_rows(ranges)
            check_filled(self._request.batch_size, available, self._table.row_bytes)
        start %= max(1, total_rows(ranges))
        while rows > 0:
            again = rows_between(ranges, start, start + rows)
            source = self._matches(ranges, 0, 0) if is_filtered else self._plain(again)
            for batch in _first_rows(source, rows):
                rows -= batch.num_rows
                yield batch.drop_columns([_POSITION]) if is_filtered else batch
            start = 0

    def _plain(self, ranges: RowRanges) -> Iterator[pa.RecordBatch]:
        """Rows straight from parquet: no SQL in between."""
        columns = self._table.columns
        first_rows = min(max(self._request.batch_size, 1024), _DECODE_ROWS)
        for batch in self._groups.stream(ranges, columns, first_rows):
            yield batch if columns is None else batch.select(list(columns))

    def _matches(self, ranges: RowRanges, began: int, given: int) -> Iterator[pa.RecordBatch]:
        """Rows that satisfy the filter, up to the limit; with several readers the limit ended the ranges already."""
        limit, matches = self._request.limit, self._filtered(ranges, began)
        return matches if limit is None or not self._is_alone else _first_rows(matches, limit - given)

    def _filtered(self, ranges: RowRanges, began: int) -> Iterator[pa.RecordBatch]:
        """Rows that satisfy the predicate, each with its position: `began` rows of the part come before `ranges`."""
        table = self._table
        names = None if table.columns is None else list(table.columns)
        with closing(RowFilter(table)) as condition:
            wanted = None if names is None else sorted({*names, *condition.columns})
            slices = self._possible_groups(ranges, condition.pruning)
            with closing(self._groups.load(slices, wanted)) as loaded:
                for part, rows in loaded:
                    first, at = (
                        table.files.first_row(part.shard, part.group) + part.start,
                        began + part.position,
                    )
                    positions = pa.array(range(at, at + rows.num_rows), pa.int64())
                    kept = condition.keep(rows.append_column(_POSITION, positions), first)
                    yield from (kept if names is None else kept.select([*names, _POSITION])).to_batches()

    def _possible_groups(self, ranges: RowRanges, expression: Any) -> Iterator[GroupSlice]:
        """The row groups of some ranges whose statistics do not rule the predicate out."""
        for shard, parts in itertools.groupby(self._groups.slices(ranges), lambda part: part.shard):
            slices = list(parts)
            groups = [part.group for part in slices]
            if expression is not None:
                groups = self._table.files.file(shard).matching_groups(groups, expression)
            yield from (part for part in slices if part.group in groups)

    def _part(self) -> tuple[RowRanges, int]:
        return self._share.part(self._reader, self._groups.group_rows)

    def _left(self) -> RowRanges:
        """The rows this reader still has to read."""
        return rows_between(self._part()[0], self._progress.rows)

    def _repeats(self) -> tuple[int, int]:
        """How many rows were repeated to pad, and how many are still to be."""
        ranges, gives = self._part()
        own, done = total_rows(ranges), self._progress.rows
        return max(0, done - own), max(0, gives - max(done, own))

    def _identity(self) -> dict[str, Any]:
        """The part of a state that must agree."""
        return {**self._table.identity, "limit": self._request.limit}

    def _all_rows(self) -> RowRanges:
        """The rows all ranks share: a limit counts over all of them, and after the filter."""
        limit, shards = self._request.limit, [shard.row_count for shard in self._table.part.shards]
        if limit is None or not self._table.is_filtered:
            return whole_table(shards, limit)
        if self._is_alone:
            return whole_table(shards)
        # How many rows from the beginning hold the first `limit` matches: every rank finds the same.
        alone = TableStream(self._table.select(()), StreamRequest(batch_size=_DECODE_ROWS, limit=limit))
        for _ in alone:
            pass
        return whole_table(shards, alone._progress.rows if alone._share.given >= limit else None)

    def plan_read(self) -> ReadPlan:
        """The reads of the rest of the pass: exact, because footers and the contents of the cache are known."""
        table, own = self._table, self._first_share
        repeated, missing = self._repeats()
        at = repeated % max(1, total_rows(own))
        again = rows_between(own, at, at + missing)
        slices = list(self._groups.slices((*self._left(), *again)))
        groups: dict[int, list[int]] = {}
        for part in slices:
            groups.setdefault(part.shard, []).append(part.group)
        files = {number: table.files.file(number) for number in groups}
        costs = [
            size for s, own_groups in groups.items() for size in files[s].costs(own_groups, table.columns)
        ]
        readers = [file.reader for file in files.values()]
        # Rows that come a third time are not counted.
        is_exact = total_rows(again) == missing and table.dataset.access.is_settled(readers, sum(costs))
        return ReadPlan(
            rows=sum(part.end - part.start for part in slices),
            row_groups=len(slices),
            requests=len(costs),
            bytes_to_read=sum(costs),
            is_exact=is_exact,
        )


def plan_read(table: Table, request: StreamRequest) -> ReadPlan:
    """The reads of a pass over a table."""
    return TableStream(table, request).plan_read()


class ShuffledStream(EpochStream):
    """Record batches of a view of a table in a shuffled order, with a state under 400 bytes that fits any world.

    A global batch is `batch_size` rows of each rank: positions [t·B·world, (t+1)·B·world) of the epoch.
    """

    def __init__(self, table: Table, request: StreamRequest) -> None:
        check_shuffle(request.shuffle)
        self._table = table
        self._request = _checked_request(request)
        self._groups = TableReader(table, request.prefetch)
        super().__init__(request.seed, request.epoch, *rank_and_world(request.shard), request.tail)

    @cached_property
    def _rows(self) -> NDArray[np.int64] | None:
        """The rows of the table that the view has; None for all of them."""
        return self._table.row_numbers() if self._table.is_filtered else None

    @cached_property
    def shape(self) -> BlockShape:
        """Blocks of about a row group, so that each is decoded few times; a function of the version alone."""
        part, limit = self._table.part, self._request.limit
        total = part.row_count if self._rows is None else len(self._rows)
        total = total if limit is None else min(limit, total)
        if self._request.shuffle == "full":
            return BlockShape(total, 1, 1)
        row_bytes = max(1, part.byte_size // max(1, part.row_count))
        group = max(self._groups.group_rows(0), default=1) if part.shards else 1
        rows = max(16, _BLOCK_BYTES // row_bytes, group)
        return BlockShape(total, rows, int(np.clip(_POOL_BYTES // (rows * row_bytes), 4, 64)))

    @property
    def total(self) -> int:
        """Rows of an epoch."""
        return self.shape.total_rows

    @property
    def global_batch(self) -> int:
        """Rows of a step of all ranks together."""
        return self._request.batch_size * self.world

    def identity(self) -> dict[str, Any]:
        """The version of the table, the view of it, and the shape of the shuffle."""
        return {**self._table.identity, "limit": self._request.limit, "order": self.shape.fingerprint()}

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch; a stream is one epoch, so its end is no beginning of the next."""
        return self.state_at(self.place, is_worker=True)

    def __iter__(self) -> ShuffledStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self.next_step()
        if batch is None:
            # The last step may have no row for this rank, which is past it like all others.
            while (end := self.batch_end(self._epoch, self._position)) is not None:
                self._position = end
            raise StopIteration
        return batch

    def read_steps(
        self, place: Place, worker: int = 0, workers: int = 1
    ) -> Generator[tuple[Step, pa.RecordBatch], None, None]:
        """This rank's slices of the global batches from a place on; of several workers each gives every n-th."""
        order = BlockOrder(self.shape, self.seed, place[0])
        pool_rows = self.shape.block_rows * self.shape.blocks_in_play
        at_once = max(1, pool_rows // self.global_batch) if self.shape.block_rows > 1 else 64
        whole = Table(self._table.dataset, self._table.name, self._table.columns)

        def pools() -> Iterator[tuple[list[Step], NDArray[np.int64]]]:
            """Steps that share their blocks, with the rows of this rank."""
            steps = self.steps(place, worker, workers)
            while some := list(itertools.islice(steps, at_once)):
                ids = order.rows_at(np.concatenate([self._share(step.start) for step in some]))
                yield some, ids if self._rows is None else self._rows[ids]

        ahead: ReadAhead[Any, None, tuple[list[Step], pa.Table]] = ReadAhead(
            lambda _: lambda: None,
            lambda pool, _: (pool[0], whole.take(pool[1])),
            pools(),
            workers=min(2, self._groups.workers),
            cost=lambda pool: len(pool[1]),
            max_cost=1 << 62,
            cores=2,
        )
        with closing(ahead):
            for steps, rows in ahead:
                batches = exact_batches(iter(rows.to_batches()), self._request.batch_size)
                yield from zip(steps, batches, strict=False)

    def _share(self, start: int) -> NDArray[np.int64]:
        """The positions of this rank in the global batch that begins at `start`."""
        positions = self.batch_positions(start, self._table.row_bytes)
        return positions[rank_slice(len(positions), self.rank, self.world)]
