"""A pass over a table: exact batches, a share of the rows, and a state to go on from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.ranges import coalesce
from warpdata.catalog.dataset import ReadPlan
from warpdata.catalog.rowfilter import RowFilter
from warpdata.catalog.table import StreamRequest, Table
from warpdata.errors import DatasetError
from warpdata.loading import fetch
from warpdata.loading.batch import batches_of, exact_batches, padded, with_positions
from warpdata.loading.pieces import Piece, Pieces, merged, remaining, share_of, total_rows, whole_table
from warpdata.loading.ranks import rank_and_world

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION = "__warp_position__"
_STATE_VERSION = 1
_DECODE_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Share:
    """What this rank reads: the pieces it began with and how many of their rows are done."""

    pieces: Pieces
    done_rows: int = 0


class TableStream:
    """Record batches of a view of a table, in row order; ask it for its state at any time."""

    def __init__(self, table: Table, request: StreamRequest) -> None:
        if request.batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        if request.even not in (None, "drop", "pad"):
            raise ValueError(f"even is {request.even!r}; use drop or pad")
        self._table = table
        self._request = request
        self._rank, self._world = rank_and_world(request.shard)
        if request.even and table.is_filtered and self._world > 1:
            raise ValueError("equal steps of several ranks cannot be known beforehand with a filter")
        self._everything = self._all_rows()
        self._share = _Share(self._share_of(self._everything))
        self._steps_done = 0
        self._rows_out = 0
        self._iterator: Iterator[pa.RecordBatch] | None = None
        self._workers = fetch.worker_count(table, request.prefetch)
        self._check_share()

    def __iter__(self) -> TableStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._iterator is None:
            self._iterator = self._batches()
        return next(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: enough to go on at the next row, also with another number of ranks."""
        return {
            "format": _STATE_VERSION,
            "dataset": self._table.dataset.id,
            "version": self._table.dataset.version,
            "table": self._table.name,
            "filter": self._table.condition,
            "rank": self._rank,
            "world": self._world,
            "pieces": [[p.shard, p.start, p.end] for p in self._share.pieces],
            "rows": self._share.done_rows,
            "rows_out": self._rows_out,
            "limit": self._request.limit,
        }

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from a state of this rank, or from the states of all ranks of another world."""
        self.close()
        states = [state] if isinstance(state, dict) else list(state)
        for one in states:
            self._check_state(one)
        if len(states) == 1 and states[0]["world"] == self._world and states[0]["rank"] == self._rank:
            self._share = _Share(_pieces(states[0]["pieces"]), int(states[0]["rows"]))
        else:
            self._share = _Share(self._share_of(self._left_of(states)))
        self._rows_out = (
            sum(int(one["rows_out"]) for one in states) if self._world == 1 else self._own_rows(states)
        )

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()  # type: ignore[attr-defined]
            self._iterator = None

    def steps(self) -> int | None:
        """How many batches are left, where that is known without reading."""
        if self._table.is_filtered:
            return None
        own = -(-total_rows(self._left()) // self._request.batch_size)
        if self._request.even is None:
            return own
        counts = [total_rows(self._share_of(self._everything, r)) for r in range(self._world)]
        size = self._request.batch_size
        return min(counts) // size if self._request.even == "drop" else -(-max(counts) // size)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        size, even = self._request.batch_size, self._request.even
        steps = self.steps() if even else None
        last = None
        count = 0
        source = self._filtered() if self._table.is_filtered else self._plain()
        for batch in exact_batches(source, size):
            if count == steps or self._is_at_limit() or (even == "drop" and batch.num_rows < size):
                return
            count += 1
            last = self._advanced(batch)
            yield padded(last, size) if even == "pad" else last
        while steps is not None and count < steps and last is not None:
            count += 1
            yield padded(last, size)

    def _plain(self) -> Iterator[pa.RecordBatch]:
        """Rows straight from parquet: no engine in between."""
        columns = self._table.columns
        first_rows = min(max(self._request.batch_size, 1024), _DECODE_ROWS)
        batches = fetch.stream_rows(self._table, self._left(), columns, first_rows, self._workers)
        for batch in batches:
            yield batch if columns is None else batch.select(list(columns))

    def _filtered(self) -> Iterator[pa.RecordBatch]:
        """Rows that satisfy the predicate, with the position of each in the share."""
        table = self._table
        names = None if table.columns is None else list(table.columns)
        began = self._share.done_rows
        with contextlib.closing(RowFilter(table)) as condition:
            wanted = None if names is None else sorted({*names, *condition.columns})
            slices = self._matching(table, condition.pruning)
            for part, loaded in fetch.load_groups(table, slices, wanted, self._workers):
                first = table.files.first_row(part.shard, part.group) + part.start
                kept = condition.keep(with_positions(loaded, began + part.position, _POSITION), first)
                yield from batches_of(kept if names is None else kept.select([*names, _POSITION]))

    def _matching(self, table: Table, expression: Any) -> Iterator[fetch.GroupSlice]:
        """The row groups of the share whose statistics do not rule the predicate out."""
        for part in fetch.group_slices(table, self._left()):
            file = table.files.file(part.shard)
            if expression is None or file.matching_groups([part.group], expression):
                yield part

    def _advanced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Note how far the stream is, and take the note out of the batch."""
        if not self._table.is_filtered:
            done = self._share.done_rows + batch.num_rows
        else:
            if self._request.limit is not None:
                batch = batch.slice(0, max(0, self._request.limit - self._rows_out))
            done = int(batch.column(_POSITION)[batch.num_rows - 1].as_py()) + 1
            batch = batch.drop_columns([_POSITION])
        self._share = _Share(self._share.pieces, done)
        self._rows_out += batch.num_rows
        return batch

    def _is_at_limit(self) -> bool:
        limit = self._request.limit
        return self._table.is_filtered and limit is not None and self._rows_out >= limit

    def _left(self) -> Pieces:
        return remaining(self._share.pieces, self._share.done_rows)

    def _share_of(self, pieces: Pieces, rank: int | None = None) -> Pieces:
        rows = lambda shard: fetch.group_rows(self._table, shard)  # noqa: E731
        return share_of(pieces, rows, self._rank if rank is None else rank, self._world)

    def _left_of(self, states: list[dict[str, Any]]) -> Pieces:
        """What nobody has read yet, given the states of all ranks, or of one of ranks that go in step."""
        world = int(states[0]["world"])
        if len(states) not in (1, world) or len({s["rank"] for s in states}) != len(states):
            raise ValueError(f"give the state of one rank or of all {world}")
        if len(states) == world:
            return merged([remaining(_pieces(s["pieces"]), int(s["rows"])) for s in states])
        rows = lambda shard: fetch.group_rows(self._table, shard)  # noqa: E731
        parts = [share_of(self._everything, rows, rank, world) for rank in range(world)]
        return merged([remaining(part, int(states[0]["rows"])) for part in parts])

    def _own_rows(self, states: list[dict[str, Any]]) -> int:
        return int(states[0]["rows_out"]) if len(states) == 1 else 0

    def _all_rows(self) -> Pieces:
        """The rows all ranks share: a limit counts over all of them, and after the filter."""
        limit, shards = self._request.limit, [shard.row_count for shard in self._table.part.shards]
        if limit is not None and limit < 0:
            raise ValueError("limit must not be negative")
        if limit is None or not self._table.is_filtered:
            return whole_table(shards, limit)
        return whole_table(shards) if self._world == 1 else whole_table(shards, self._rows_for(limit))

    def _rows_for(self, limit: int) -> int:
        """How many rows from the beginning hold the first `limit` matches; every rank finds the same."""
        narrow = self._table.select(())
        alone = TableStream(narrow, StreamRequest(batch_size=_DECODE_ROWS, limit=limit))
        for _ in alone:
            pass
        return alone._share.done_rows if alone._rows_out >= limit else self._table.row_count

    def _check_share(self) -> None:
        if not self._share.pieces and total_rows(self._everything) and self._world > 1:
            rows = total_rows(self._everything)
            fact = f"rank {self._rank} of {self._world} has no rows: the table has {rows}"
            raise DatasetError(fact, hint="Use fewer ranks or workers for this table.")

    def _check_state(self, state: dict[str, Any]) -> None:
        mine = self.state_dict()
        for key in ("format", "dataset", "version", "table", "filter", "limit"):
            if state.get(key) != mine[key]:
                found = f"its {key} is {state.get(key)!r}, not {mine[key]!r}"
                raise ValueError(f"the state is of another stream: {found}")


def _pieces(raw: Sequence[Sequence[int]]) -> Pieces:
    return tuple(Piece(int(a), int(b), int(c)) for a, b, c in raw)


def plan_read(table: Table, request: StreamRequest) -> ReadPlan:
    """What a pass will read: exact, because the footers are known."""
    stream = TableStream(table, request)
    slices = list(fetch.group_slices(table, stream._left()))
    ranges = [table.files.file(s.shard).column_ranges(s.group, table.columns) for s in slices]
    spans = [span for one in ranges for span in coalesce(one, max_gap_bytes=128 << 10)]
    return ReadPlan(
        rows=sum(s.end - s.start for s in slices),
        row_groups=len(slices),
        requests=len(spans),
        bytes_to_read=sum(span.end - span.start for span in spans),
    )
