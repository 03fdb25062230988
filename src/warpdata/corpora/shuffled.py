"""Rows in a reproducible shuffled order: exactly once per epoch, bounded memory, any number of ranks."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypedDict

import numpy as np

from warpdata.bytekit.io.ranges import Closing
from warpdata.bytekit.process.forks import Reopens
from warpdata.corpora.rows import RowBatch, Rows, check_out, decode_rows, output_dtype, raw_dtype
from warpdata.corpora.spans import RowSpan
from warpdata.errors import LimitExceededError, require_kind, suggests
from warpdata.ordering.blocks import I64, BlockOrder, BlockShape, ShuffleQuality
from warpdata.ordering.epochs import MAX_POSITION, EpochStream, Place, Step, Tail, rank_slice
from warpdata.ordering.torch import TorchEpochs, as_iterable_dataset, imported_torch

if TYPE_CHECKING:
    from warpdata.corpora.source import FixedOrderSource


BLOCK_BYTES = 1 << 20
PLAN_CHARS = 6
"""Few enough that any state is under 100 bytes of JSON."""


class ShuffleKeywords(TypedDict, total=False):
    """Keyword arguments of ShuffledRows, except the size of batches."""

    seed: int
    epoch: int
    rank: int
    world: int
    block_rows: int | None
    window_blocks: int
    tail: Tail
    dtype: str | type | np.dtype[Any] | None


class TorchBatch(NamedTuple):
    """A batch of tensors, and the position of the epoch after it."""

    rows: Any
    row_ids: Any
    position: int


def default_block_rows(source: FixedOrderSource) -> int:
    """Rows of a block: a checksummed run, or about 1 MiB."""
    return source.shards.run_rows or max(1, BLOCK_BYTES // max(1, source.shards.row_bytes))


class ShuffledRows(Reopens, EpochStream, Closing):
    """Batches of a shuffled corpus; the order depends on (seed, epoch, shape) and on nothing else.

    Rank r of `world` ranks gets its share of every global batch of `batch_size` rows. Iterating continues at the
    state, to the end of the epoch, and is then at the beginning of the next. `block_rows` rows are read at a time (by
    default about 1 MiB; 1 shuffles all rows with each other), and `window_blocks` blocks are mixed with each other:
    more shuffle better and take more memory. `tail="pad"` fills the last batch with the first rows of the epoch.
    """

    @suggests
    def __init__(
        self,
        source: FixedOrderSource,
        *,
        batch_size: int = 1024,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        block_rows: int | None = None,
        window_blocks: int = 64,
        tail: Tail = "short",
        dtype: str | type | np.dtype[Any] | None = None,
    ) -> None:
        if not hasattr(source, "shards"):
            raise TypeError(
                f"rows come from an open corpus (wd.open_corpus), not from {type(source).__name__}"
            )
        block_rows = default_block_rows(source) if block_rows is None else block_rows
        numbers = {"seed": seed, "rank": rank, "world": world, "batch_size": batch_size}
        for name, value in {**numbers, "block_rows": block_rows, "window_blocks": window_blocks}.items():
            require_kind(name, value, SupportsIndex, "a whole number")
        rank, world = operator.index(rank), operator.index(world)
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        if min(batch_size, window_blocks, block_rows) < 1:
            raise ValueError("batch_size, block_rows and window_blocks are at least 1")
        super().__init__(seed, epoch, rank, world, tail)
        self.source = source
        self.batch_size = operator.index(batch_size)
        self._shards = source.shards
        self._dtype = output_dtype(source.options.dtype if dtype is None else dtype, self._shards.dtype)
        if self._shards.total_rows > MAX_POSITION:
            raise LimitExceededError(f"{self._shards.total_rows} rows are more than a shuffle can count")
        self.shape = BlockShape(
            self._shards.total_rows, operator.index(block_rows), operator.index(window_blocks)
        )
        self._out: Rows | None = None

    @property
    def total(self) -> int:
        """Rows of an epoch."""
        return self.shape.total_rows

    @property
    def global_batch(self) -> int:
        """Rows of a batch of all ranks together."""
        return self.batch_size

    def identity(self) -> dict[str, Any]:
        """A fingerprint of the rows and of the shape of the shuffle."""
        return {"plan": self.shape.fingerprint()[:PLAN_CHARS]}

    def order(self) -> BlockOrder:
        """The pure order of the current epoch."""
        return BlockOrder(self.shape, self.seed, self._epoch)

    def shuffle_quality(self) -> ShuffleQuality:
        """How far this shuffle is from a uniform one."""
        return self.order().quality(self.batch_size)

    def batches_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        return self.steps_left(0)

    def next_batch(self, out: Rows | None = None) -> RowBatch | None:
        """The next batch of this rank, or None at the end of the epoch (then the next epoch begins)."""
        self._out = out
        batch: RowBatch | None = self.next_step()
        if batch is None:
            self.set_epoch(self._epoch + 1)
        return batch

    def __iter__(self) -> Iterator[RowBatch]:
        return iter(self.next_batch, None)

    def read_steps(
        self, place: Place, worker: int = 0, workers: int = 1
    ) -> Generator[tuple[Step, RowBatch], None, None]:
        """Steps of this rank with their batches from a place on; of several workers each reads every n-th.

        Rows of one pool ascend by id within a batch, so that a rank touches its part of the blocks alone.
        """
        pools = _PoolReader(self.source, BlockOrder(self.shape, self.seed, place[0]), self.rank, self.world)
        try:
            for step in self.steps(place, worker, workers):
                positions = self.batch_positions(step.start, self._shards.width * self._dtype.itemsize)
                mine = rank_slice(len(positions), self.rank, self.world)
                count = mine.stop - mine.start
                out, self._out = self._out, None
                if out is None:
                    rows = np.empty((count, self._shards.width), self._dtype)
                elif check_out(out, self._shards.width, self._dtype) < count:
                    raise ValueError(f"out has {len(out)} rows, the batch {count}")
                else:
                    rows = out[:count]
                ids = np.empty(count, np.int64)
                raw = rows
                if rows.dtype != raw_dtype(self._shards.dtype) or not rows.flags.c_contiguous:
                    raw = np.empty(rows.shape, raw_dtype(self._shards.dtype))
                done = 0
                for pool, piece in pools.pieces(positions):
                    part = piece[max(0, mine.start - done) : max(0, mine.stop - done)]
                    here = slice(max(0, done - mine.start), max(0, done - mine.start) + len(part))
                    ids[here] = part
                    pools.enter(pool, len(part))
                    pools.read(part, raw[here])
                    done += len(piece)
                if raw is not rows:
                    decode_rows(raw, rows, self._shards.dtype)
                yield step, RowBatch(rows, ids.view(np.uint64))
        finally:
            pools.close()

    def to_tensors(self, step: Step, batch: RowBatch) -> TorchBatch:
        """A batch of tensors over the same memory."""
        torch = imported_torch()
        ids = torch.from_numpy(batch.row_ids.view("int64"))
        return TorchBatch(torch.from_numpy(batch.rows), ids, step.after)

    def __repr__(self) -> str:
        return (
            f"<ShuffledRows of {self.source!r}, seed {self.seed}, epoch {self.epoch}, "
            f"row {self.position}, rank {self.rank} of {self.world}>"
        )

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter modules may be gone, and the system frees threads and files.
        if hasattr(self, "_batches") and not is_over():
            self.close()


class RowBlocks:
    """Rows of a corpus by id, read in blocks that stay in memory until they are released."""

    def __init__(self, source: FixedOrderSource, block_rows: int) -> None:
        self._rows = source.open_rows(in_order=False)
        self.block_rows = block_rows
        self._firsts = source.shards.first_rows()
        self._ends = self._firsts + np.array(source.shards.shard_rows, np.int64)
        self.held: dict[int, None] = {}
        """Blocks that were prefetched or read, the one used last at the end."""

    def read(self, ids: I64, out: Rows) -> None:
        """Copy stored rows by ascending id."""
        cuts = np.flatnonzero(np.diff(ids // self.block_rows)) + 1
        for low, high in pairwise([0, *cuts.tolist(), len(ids)] if len(ids) else []):
            block = int(ids[low]) // self.block_rows
            self.held.pop(block, None)
            self.held[block] = None
            for span, first in self._spans(block):
                edges = ids[low:high].searchsorted([first, first + span.end - span.start])
                start, stop = (low + edges).tolist()
                if start < stop:
                    rows = self._rows.read(span)
                    rows.take(ids[start:stop] - first, axis=0, out=out[start:stop], mode="clip")

    def prefetch(self, block: int) -> None:
        """Start to read a block."""
        if block not in self.held:
            self.held[block] = None
            for span, _ in self._spans(block):
                self._rows.prefetch(span)

    def release(self, block: int) -> None:
        """Free the memory of a block."""
        self.held.pop(block, None)
        for span, _ in self._spans(block):
            self._rows.release(span)

    def _spans(self, block: int) -> Iterator[tuple[RowSpan, int]]:
        """The rows of a block in each shard that holds some, and the id of the first."""
        first = block * self.block_rows
        end = min(first + self.block_rows, int(self._ends[-1]))
        shard = int(self._ends.searchsorted(first, "right"))
        while first < end:
            stop, base = min(end, int(self._ends[shard])), int(self._firsts[shard])
            if stop > first:
                yield RowSpan(shard, first - base, stop - base), first
            first, shard = stop, shard + 1

    def close(self) -> None:
        """Close the reader of the rows."""
        self._rows.close()


class _PoolReader(RowBlocks):
    """Rows of the blocks in play; the blocks of the next pool are prefetched while this one is read."""

    def __init__(self, source: FixedOrderSource, order: BlockOrder, rank: int, world: int) -> None:
        super().__init__(source, order.shape.block_rows)
        self._order = order
        self._rank, self._world = rank, world
        self._pool = -1
        self._coming: deque[int] = deque()
        """Blocks of the next pool that are still to be prefetched."""

    def pieces(self, positions: I64) -> Iterator[tuple[int, I64]]:
        """The row ids of positions, by pool; those of one pool ascend."""
        if self.block_rows == 1:
            yield 0, np.sort(self._order.rows_at(positions))
            return
        start = 0
        while start < len(positions):
            first = int(positions[start])
            pool = self._order.pool_at(first)
            run = positions[start : start + self._order.pool_end(pool) - first]
            jumps = np.flatnonzero(np.diff(run) != 1)  # padding begins again at the first row
            run = run[: int(jumps[0]) + 1] if len(jumps) else run
            yield pool, np.sort(self._order.rows_at(run))
            start += len(run)

    def enter(self, pool: int, n_rows: int) -> None:
        """Release the blocks of the pool before, and prefetch some of the next in step with the rows read."""
        if self.block_rows == 1:
            for block in list(self.held):
                self.release(block)
            return
        if pool != self._pool:
            mine = self._share(pool)
            for block in set(self.held) - set(mine):
                self.release(block)
            for block in mine:
                self.prefetch(block)
            self._coming = deque(self._share(pool + 1))
            self._pool = pool
        share = n_rows * self._world // self.block_rows + 1
        for _ in range(min(share, len(self._coming))):
            self.prefetch(self._coming.popleft())

    def _share(self, pool: int) -> list[int]:
        """The blocks of a pool that this rank will need: batches ascend, so a rank stays in its part of them."""
        blocks = self._order.pool_blocks(pool)
        mine = rank_slice(len(blocks), self._rank, self._world)
        return [int(block) for block in blocks[max(0, mine.start - 1) : mine.stop + 1]]


def torch_dataset(rows: ShuffledRows) -> Any:
    """An IterableDataset over the shuffled corpus; use its `loader`, or DataLoader(dataset, batch_size=None)."""
    return as_iterable_dataset(CorpusDataset)(rows)


class CorpusDataset(TorchEpochs):
    """Batches of tensors in the order of the shuffle, for any number of workers."""

    _hint = (
        "use dataset.state_after(batch), iterate dataset.loader(num_workers=…), or torchdata's "
        "StatefulDataLoader"
    )

    def state_after(self, batch: TorchBatch) -> dict[str, Any]:
        """The state to continue with after this batch of the pass begun last; read-ahead does not count."""
        epoch, _ = self._passes.start
        passed = max(0, self._passes.number() - 1)
        return self._source.state_at((epoch + passed, int(batch.position)))
