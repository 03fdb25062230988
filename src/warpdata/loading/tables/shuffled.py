"""A table in a shuffled order: the same positions for any number of ranks, a few blocks of rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.threads import ReadAhead
from warpdata.catalog.table import BatchStream, StreamRequest, Table
from warpdata.errors import nearest
from warpdata.loading.ranks import rank_and_world
from warpdata.loading.tables import fetch
from warpdata.loading.tables.batches import batches_of, exact_batches
from warpdata.loading.tables.stream import MAX_BATCH_ROWS, TableStream, checked_limit
from warpdata.ordering.blocks import BlockOrder, BlockShape
from warpdata.ordering.epochs import EpochStream, Step, rank_slice
from warpdata.ordering.state import checked_integer

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 20
_POOL_BYTES = 256 << 20
_KNOWN = ("blocks", "full")


def open_stream(table: Table, request: StreamRequest) -> BatchStream:
    """A stream over a table, in row order or shuffled."""
    return ShuffledStream(table, request) if request.shuffle else TableStream(table, request)


class ShuffledStream(EpochStream):
    """Record batches of a view of a table in a shuffled order, with a state under 400 bytes that fits any world.

    A global batch is `batch_size` rows of each rank: positions [t·B·world, (t+1)·B·world) of the epoch.
    """

    def __init__(self, table: Table, request: StreamRequest) -> None:
        size = checked_integer("batch_size", request.batch_size, MAX_BATCH_ROWS, least=1)
        if request.shuffle is not True and request.shuffle not in _KNOWN:
            near = nearest(str(request.shuffle), _KNOWN)
            raise ValueError(f"shuffle is True, 'blocks', 'full' or False, not {request.shuffle!r}.{near}")
        super().__init__(request.seed, request.epoch, *rank_and_world(request.shard), request.tail)
        self._table = table
        self._request = replace(request, batch_size=size, limit=checked_limit(request.limit))
        self._workers = fetch.worker_count(table, request.prefetch)
        self._iterator: Iterator[tuple[Step, pa.RecordBatch]] | None = None

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
    def total(self) -> int:
        """Rows of an epoch."""
        return self.shape.total_rows

    @property
    def global_batch(self) -> int:
        """Rows of a step of all ranks together."""
        return self._request.batch_size * self.world

    def identity(self) -> dict[str, Any]:
        """The version of the table, the view of it, and the shape of the shuffle."""
        return {
            **self._table.identity,
            "limit": self._request.limit,
            "order": self.shape.fingerprint(),
        }

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch given last; a stream is one epoch, so its end is no beginning of the next."""
        return self.state_at(self.place, is_worker=True)

    def __iter__(self) -> ShuffledStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._iterator is None:
            self._iterator = self.read_steps(self._epoch, self._position)
        try:
            step, batch = next(self._iterator)
        except StopIteration:
            # The last step may have no row for this rank, which is past it like all others.
            steps = self.steps_left(self._position)
            self._position = min(self.total, self._position + steps * self.global_batch)
            raise
        except BaseException:
            self._iterator = None  # the next call goes on where this one failed
            raise
        self._position = step.after
        return batch

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()  # type: ignore[attr-defined]
            self._iterator = None

    def read_steps(
        self, epoch: int, position: int, worker: int = 0, workers: int = 1
    ) -> Iterator[tuple[Step, pa.RecordBatch]]:
        """This rank's slices of the global batches from a position on; of several workers each gives every n-th."""
        size, steps = self.global_batch, self.steps_left(position)
        mine = range(worker, steps, workers)
        with closing(self._ahead(epoch, [position + step * size for step in mine])) as ahead:
            pieces = (batch for table in ahead for batch in batches_of(table))
            for step, batch in zip(mine, exact_batches(pieces, self._request.batch_size), strict=False):
                settled = position + (step // workers + 1) * workers * size
                after = position + (step + 1) * size
                yield Step(min(self.total, after), min(self.total, settled)), batch

    def _ahead(self, epoch: int, starts: Sequence[int]) -> ReadAhead[Any, None, pa.Table]:
        return ReadAhead(
            lambda _: lambda: None,
            lambda rows, _: self._taken(rows),
            self._pools(epoch, starts),
            workers=min(2, self._workers),
            cost=len,
            max_cost=1 << 62,
            cores=2,
        )

    def _pools(self, epoch: int, starts: Sequence[int]) -> Iterator[NDArray[np.int64]]:
        """The rows of this rank in order, as many at a time as share their blocks."""
        size = self.global_batch
        order = BlockOrder(self.shape, self.seed, epoch)
        at_once = (
            max(1, self.shape.block_rows * self.shape.blocks_in_play // size)
            if self.shape.block_rows > 1
            else 64
        )
        for first in range(0, len(starts), at_once):
            positions = [self._share(start) for start in starts[first : first + at_once]]
            ids = order.rows_at(np.concatenate(positions))
            yield ids if self._rows is None else self._rows[ids]

    def _share(self, start: int) -> NDArray[np.int64]:
        """The positions of this rank in the global batch that begins at `start`."""
        positions = self.batch_positions(start, self._table.row_bytes)
        return positions[slice(*rank_slice(len(positions), self.rank, self.world))]

    def _taken(self, rows: NDArray[np.int64]) -> pa.Table:
        whole = Table(self._table.dataset, self._table.name, self._table.files, self._table.columns)
        return whole.take(rows)
