"""A table in a shuffled order: the same positions for any number of ranks, a few blocks of rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.catalog.table import BatchStream, StreamRequest, Table
from warpdata.corpora.torch_epochs import Place, PlainStep
from warpdata.errors import nearest
from warpdata.loading.ranks import rank_and_world
from warpdata.loading.tables import fetch
from warpdata.loading.tables.batches import batches_of, exact_batches
from warpdata.loading.tables.share import check_identity
from warpdata.loading.tables.stream import MAX_BATCH_ROWS, TableStream, checked_limit
from warpdata.ordering.blocks import BlockOrder, BlockShape
from warpdata.ordering.epoch import rank_slice
from warpdata.ordering.state import MAX_EPOCH, MAX_POSITION, MAX_SEED, checked_integer
from warpdata.ordering.tail import check_filled, check_tail
from warpdata.stores.readahead import ReadAhead

if TYPE_CHECKING:
    import pyarrow as pa

STATE_FORMAT = 3
_BLOCK_BYTES = 1 << 20
_POOL_BYTES = 256 << 20
_KNOWN = ("blocks", "full")


def open_stream(table: Table, request: StreamRequest) -> BatchStream:
    """A stream over a table, in row order or shuffled."""
    return ShuffledStream(table, request) if request.shuffle else TableStream(table, request)


class ShuffledStream:
    """Record batches of a view of a table in a shuffled order, with a state under 400 bytes that fits any world.

    A global batch is `batch_size` rows of each rank: positions [t·B·world, (t+1)·B·world) of the epoch.
    """

    def __init__(self, table: Table, request: StreamRequest) -> None:
        size = checked_integer("batch_size", request.batch_size, MAX_BATCH_ROWS, least=1)
        if request.shuffle is not True and request.shuffle not in _KNOWN:
            near = nearest(str(request.shuffle), _KNOWN)
            raise ValueError(f"shuffle is True, 'blocks', 'full' or False, not {request.shuffle!r}.{near}")
        check_tail(request.tail)
        self._table = table
        self._request = replace(request, batch_size=size, limit=checked_limit(request.limit))
        self._rank, self._world = rank_and_world(request.shard)
        self._seed = checked_integer("seed", request.seed, MAX_SEED)
        self._epoch = checked_integer("epoch", request.epoch, MAX_EPOCH)
        self._position = 0
        self._workers = fetch.worker_count(table, request.prefetch)
        self._iterator: Iterator[tuple[PlainStep, pa.RecordBatch]] | None = None

    @cached_property
    def _rows(self) -> NDArray[np.int64] | None:
        """Which rows of the table the view has; None where it has all of them."""
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
        group = max(fetch.group_rows(self._table, 0), default=1) if part.shards else 1
        rows = max(16, _BLOCK_BYTES // row_bytes, group)
        return BlockShape(total, rows, int(np.clip(_POOL_BYTES // (rows * row_bytes), 4, 64)))

    @property
    def epoch(self) -> int:
        """The epoch that the stream gives."""
        return self._epoch

    @property
    def position(self) -> int:
        """Rows of the epoch that all ranks together are past."""
        return self._position

    @property
    def total(self) -> int:
        """Rows of an epoch."""
        return self.shape.total_rows

    def __iter__(self) -> ShuffledStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._iterator is None:
            self._iterator = self.read_steps(self._epoch, self._position)
        try:
            step, batch = next(self._iterator)
        except StopIteration:
            # Of the last step there may be no row for this rank; it is past it like all others.
            size, steps = self._request.batch_size * self._world, self.steps_left(self._position)
            self._position = min(self.total, self._position + steps * size)
            raise
        except BaseException:
            self._iterator = None  # asked again, it goes on where it failed
            raise
        self._position = step.after
        return batch

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()  # type: ignore[attr-defined]
            self._iterator = None

    def steps_left(self, position: int) -> int:
        """How many steps the ranks take from a position of an epoch on."""
        left, size = self.total - position, self._request.batch_size * self._world
        return left // size if self._request.tail == "drop" else -(-left // size)

    def read_steps(
        self, epoch: int, position: int, worker: int = 0, workers: int = 1
    ) -> Iterator[tuple[PlainStep, pa.RecordBatch]]:
        """This rank's slices of the global batches from a position on; of several workers each gives every n-th."""
        size, steps = self._request.batch_size * self._world, self.steps_left(position)
        mine = range(worker, steps, workers)
        with closing(self._ahead(epoch, [position + step * size for step in mine])) as ahead:
            pieces = (batch for table in ahead for batch in batches_of(table))
            for step, batch in zip(mine, exact_batches(pieces, self._request.batch_size), strict=False):
                settled = position + (step // workers + 1) * workers * size
                after = position + (step + 1) * size
                yield PlainStep(min(self.total, after), min(self.total, settled)), batch

    def _ahead(self, epoch: int, starts: Sequence[int]) -> ReadAhead[Any, None, pa.Table]:
        return ReadAhead(
            lambda _: lambda: None, lambda rows, _: self._taken(rows), self._pools(epoch, starts),
            workers=min(2, self._workers), cost=len, max_cost=1 << 62, cores=2,
        )  # fmt: skip

    def _pools(self, epoch: int, starts: Sequence[int]) -> Iterator[NDArray[np.int64]]:
        """The rows of this rank in order, as many at a time as share their blocks."""
        size = self._request.batch_size * self._world
        order = BlockOrder(self.shape, self._seed, epoch)
        at_once = (
            max(1, self.shape.block_rows * self.shape.blocks_in_play // size)
            if self.shape.block_rows > 1
            else 64
        )
        for first in range(0, len(starts), at_once):
            found = [self._mine(start) for start in starts[first : first + at_once]]
            ids = order.rows_at(np.concatenate(found) % max(1, self.total))
            yield ids if self._rows is None else self._rows[ids]

    def _mine(self, start: int) -> NDArray[np.int64]:
        """The positions of this rank in the global batch that begins at `start`; padding comes from the beginning."""
        size, total = self._request.batch_size * self._world, self.total
        count = min(size, total - start)
        if self._request.tail == "pad" and count < size:
            count = size
            check_filled(self._request.batch_size, total, self._table.row_bytes)
        low, high = rank_slice(count, self._rank, self._world)
        positions = np.arange(start + low, start + high, dtype=np.int64)
        return np.where(positions < total, positions, positions - total)

    def _taken(self, rows: NDArray[np.int64]) -> pa.Table:
        whole = Table(self._table.dataset, self._table.name, self._table.files, self._table.columns)
        return whole.take(rows)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: the same on every rank that made as many steps, and valid for any number of ranks."""
        return self._state(self._epoch, self._position)

    @property
    def place(self) -> Place:
        """Epoch and position."""
        return (self._epoch, self._position)

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place; at the end of an epoch that is the beginning of the next, unless a worker is."""
        epoch, position = place
        is_over = position > 0 and not is_worker and not self.steps_left(position)
        return self._state(epoch + 1, 0) if is_over else self._state(epoch, position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT, **self._identity(), "order": self.shape.fingerprint(), "seed": self._seed,
            "epoch": epoch, "position": position, "batch_size": self._request.batch_size, "world": self._world,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on after the rows a state, or those of all ranks, were taken at.

        Ranks may have made different numbers of steps: with the same batch size each goes on by itself. Another batch
        size gives other rows to each rank, so it takes the states of all ranks, which must be of one step.
        """
        place = self.checked_state(state)
        self.close()
        self._epoch, self._position = place

    def checked_state(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Place:
        """Where a state of this stream, or those of all ranks, stand, or ValueError that names what differs."""
        if isinstance(state, list | tuple) and state:
            places = {self._checked_place(each) for each in state}
            if len(places) > 1:
                rows = ", ".join(f"row {position} of epoch {epoch}" for epoch, position in sorted(places))
                raise ValueError(f"the states of the ranks are not of one step: they stand at {rows}")
            return places.pop()
        place = self._checked_place(state)
        assert isinstance(state, Mapping)
        size, world = (state.get(name) for name in ("batch_size", "world"))
        if world != 1 and size != self._request.batch_size and place[1] > 0:
            raise ValueError(
                f"the state of one of {world} ranks has batch_size {size}, not {self._request.batch_size}: another rank"
                " may be at another step. Give the states of all ranks: load_state_dict([state_0, state_1, …])"
            )
        return place

    def _checked_place(self, state: Any) -> Place:
        if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
            raise ValueError(f"this is no state of a shuffled stream of format {STATE_FORMAT}")
        check_identity(state, {**self._identity(), "order": self.shape.fingerprint(), "seed": self._seed})
        epoch = checked_integer("epoch", state.get("epoch"), MAX_EPOCH)
        position = checked_integer("position", state.get("position"), MAX_POSITION)
        if position > self.total:
            raise ValueError(f"the state stands at row {position} of {self.total}")
        return (epoch, position)

    def _identity(self) -> dict[str, Any]:
        return {**self._table.identity, "limit": self._request.limit}
