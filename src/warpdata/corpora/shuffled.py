"""Rows in a reproducible shuffled order: exactly once per epoch, bounded memory, any number of ranks."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypedDict, Unpack

import numpy as np

from warpdata.bytekit.process.forks import Reopens
from warpdata.corpora.batch import RowBatch, Rows, decode_rows, output_dtype, raw_dtype
from warpdata.corpora.options import options_of
from warpdata.corpora.shard_rows import RowSpan
from warpdata.corpora.torch import TorchEpochs, as_iterable_dataset, imported_torch
from warpdata.errors import LimitExceededError, require_kind
from warpdata.ordering.blocks import BlockOrder, BlockShape
from warpdata.ordering.epochs import EpochStream, Place, Step, rank_slice
from warpdata.ordering.quality import ShuffleQuality
from warpdata.ordering.splitmix import I64
from warpdata.ordering.state import MAX_POSITION
from warpdata.ordering.tail import Tail, check_tail

if TYPE_CHECKING:
    from typing import Self

    from warpdata.corpora.source import FixedOrderSource


DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_WINDOW_BLOCKS = 64
PLAN_CHARS = 6
"""Few enough that any state is under 100 bytes of JSON."""


_WHOLE = (
    "seed",
    "epoch",
    "rank",
    "world",
    "batch_size",
    "block_rows",
    "window_blocks",
)


@dataclass(frozen=True, slots=True)
class ShuffleOptions:
    """How a corpus is shuffled and which share of it this process serves."""

    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world: int = 1
    batch_size: int = 1024
    """Rows of the global batch: all ranks together."""
    block_rows: int | None = None
    """Rows read at a time; by default about 1 MiB. 1 shuffles all rows with each other."""
    window_blocks: int = DEFAULT_WINDOW_BLOCKS
    """Blocks that are mixed with each other: more shuffle better and take more memory."""
    tail: Tail = "short"
    """What becomes of a last batch that is not full; `pad` fills it with the first rows of the epoch."""
    dtype: str | type | np.dtype[Any] | None = None
    """What rows come as; by default as the source gives them."""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None:
                require_kind(name, value, SupportsIndex, "a whole number")
                object.__setattr__(self, name, operator.index(value))  # numpy's own would overflow
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world}")
        if min(self.batch_size, self.window_blocks, 1 if self.block_rows is None else self.block_rows) < 1:
            raise ValueError("batch_size, block_rows and window_blocks are at least 1")
        check_tail(self.tail)


class OrderKeywords(TypedDict, total=False):
    """The fields of ShuffleOptions as keyword arguments, but for the size of batches."""

    seed: int
    epoch: int
    rank: int
    world: int
    block_rows: int | None
    window_blocks: int
    tail: str
    dtype: str | type | np.dtype[Any] | None


class ShuffleKeywords(OrderKeywords, total=False):
    """The fields of ShuffleOptions as keyword arguments."""

    batch_size: int


class TorchBatch(NamedTuple):
    """A batch of tensors, and the position of the epoch after it."""

    rows: Any
    row_ids: Any
    position: int


class ShuffledRows(Reopens, EpochStream):
    """Batches of a shuffled corpus; the order depends on (seed, epoch, shape) and on nothing else.

    Rank r of `world` ranks gets its share of every global batch of `batch_size` rows. Iterating goes on where
    the state is, to the end of the epoch, and is then at the beginning of the next. Keyword arguments are the
    fields of ShuffleOptions.
    """

    def __init__(
        self,
        source: FixedOrderSource,
        options: ShuffleOptions | None = None,
        **changes: Unpack[ShuffleKeywords],
    ) -> None:
        if not hasattr(source, "shards"):
            raise TypeError(
                f"rows come from an open corpus (wd.open_corpus), not from {type(source).__name__}"
            )
        chosen = options_of(ShuffleOptions, changes, options)
        super().__init__(chosen.seed, chosen.epoch, chosen.rank, chosen.world, chosen.tail)
        self.source = source
        self.options = chosen
        self.batch_size = chosen.batch_size
        self._shards = source.shards
        self._dtype = output_dtype(
            source.options.dtype if chosen.dtype is None else chosen.dtype, self._shards.dtype
        )
        blocks = chosen.block_rows
        if blocks is None:
            blocks = self._shards.run_rows or max(1, DEFAULT_BLOCK_BYTES // max(1, self._shards.row_bytes))
        if self._shards.total_rows > MAX_POSITION:
            raise LimitExceededError(f"{self._shards.total_rows} rows are more than a shuffle can count")
        self.shape = BlockShape(self._shards.total_rows, blocks, chosen.window_blocks)
        self._steps: Iterator[tuple[Step, RowBatch]] | None = None
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
        if self._steps is None:
            self._steps = self.read_steps(self.place)
        self._out = out
        try:
            step, batch = next(self._steps)
        except StopIteration:
            self.set_epoch(self._epoch + 1)
            return None
        except BaseException:
            self.close()  # the next call reads this very batch again
            raise
        self._position = step.after
        return batch

    def __iter__(self) -> Iterator[RowBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def read_steps(self, place: Place, worker: int = 0, workers: int = 1) -> Iterator[tuple[Step, RowBatch]]:
        """Batches of this rank from a place on; of several workers each gives every n-th."""
        epoch, position = place
        size, total = self.batch_size, self.total
        pools = _PoolReader(self.source, BlockOrder(self.shape, self.seed, epoch), self.rank, self.world)
        try:
            for number in range(worker, self.steps_left(position), workers):
                after = position + (number + 1) * size
                settled = position + (number // workers + 1) * workers * size
                batch = self._batch(pools, position + number * size)
                yield Step(min(total, after), min(total, settled)), batch
        finally:
            pools.close()

    def tensor_steps(self, place: Place, worker: int, workers: int) -> Iterator[tuple[Step, TorchBatch]]:
        """Batches of tensors from a place on."""
        torch = imported_torch()
        for step, batch in self.read_steps(place, worker, workers):
            ids = torch.from_numpy(batch.row_ids.view("int64"))
            yield step, TorchBatch(torch.from_numpy(batch.rows), ids, step.after)

    def _batch(self, pools: _PoolReader, start: int) -> RowBatch:
        """This rank's slice of the global batch that begins at a position.

        Rows of one pool ascend by id within the batch, so that a rank touches its part of the blocks alone.
        """
        positions = self.batch_positions(start, self._shards.width * self._dtype.itemsize)
        low, high = rank_slice(len(positions), self.rank, self.world)
        rows = self._target(high - low)
        ids = np.empty(high - low, np.int64)
        raw = rows
        if rows.dtype != raw_dtype(self._shards.dtype) or not rows.flags.c_contiguous:
            raw = np.empty(rows.shape, raw_dtype(self._shards.dtype))
        done = 0
        for pool, piece in pools.pieces(positions):
            mine = piece[max(0, low - done) : max(0, high - done)]
            first = max(0, done - low)
            ids[first : first + len(mine)] = mine
            pools.read(pool, mine, raw[first : first + len(mine)])
            done += len(piece)
        if raw is not rows:
            decode_rows(raw, rows, self._shards.dtype)
        return RowBatch(rows, ids.view(np.uint64))

    def _target(self, n_rows: int) -> Rows:
        out, self._out = self._out, None
        if out is None:
            return np.empty((n_rows, self._shards.width), self._dtype)
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        if out.ndim != 2 or out.shape[1] != self._shards.width or out.dtype != self._dtype:
            raise ValueError(f"out must be a matrix of width {self._shards.width} and dtype {self._dtype}")
        if len(out) < n_rows:
            raise ValueError(f"out has {len(out)} rows, the batch {n_rows}")
        return out[:n_rows]

    def close(self) -> None:
        """Stop reading ahead; the source stays open."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return (
            f"<ShuffledRows of {self.source!r}, seed {self.seed}, epoch {self.epoch}, "
            f"row {self.position}, rank {self.rank} of {self.world}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter modules may be gone, and the system frees threads and files.
        if hasattr(self, "_steps") and not is_over():
            self.close()


class _PoolReader:
    """Rows of the blocks in play; the blocks of the next pool are prefetched while this one is read."""

    def __init__(self, source: FixedOrderSource, order: BlockOrder, rank: int, world: int) -> None:
        self._rows = source.open_rows(in_order=False)
        self._order = order
        self._rank, self._world = rank, world
        self._block_rows = order.shape.block_rows
        self._bases = source.shards.first_rows()
        self._ends = self._bases + np.array(source.shards.shard_rows, np.int64)
        self._pool = -1
        self._held: set[int] = set()
        """Blocks that were prefetched or read, to be released with their pool."""
        self._coming: deque[int] = deque()
        """Blocks of the next pool that are still to be prefetched."""

    def pieces(self, positions: I64) -> Iterator[tuple[int, I64]]:
        """The row ids of positions, by pool; those of one pool ascend."""
        if self._block_rows == 1:
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

    def read(self, pool: int, ids: I64, out: Rows) -> None:
        """Copy rows by ascending id."""
        self._enter(pool, len(ids))
        cuts = np.flatnonzero(np.diff(ids // self._block_rows)) + 1
        edges = [0, *cuts.tolist(), len(ids)] if len(ids) else []
        for low, high in pairwise(edges):
            block = int(ids[low]) // self._block_rows
            self._held.add(block)
            for span, first in self._spans(block):
                start, stop = (
                    low + ids[low:high].searchsorted([first, first + span.end - span.start])
                ).tolist()
                if start < stop:
                    rows = self._rows.read(span)
                    rows.take(ids[start:stop] - first, axis=0, out=out[start:stop], mode="clip")

    def _enter(self, pool: int, n_rows: int) -> None:
        """Release the blocks of the pool before, and prefetch some of the next in step with the rows read."""
        if self._block_rows == 1:
            for block in list(self._held):
                self._release(block)
            return
        if pool != self._pool:
            mine = self._share(pool)
            for block in self._held - set(mine):
                self._release(block)
            for block in mine:
                self._prefetch(block)
            self._coming = deque(self._share(pool + 1))
            self._pool = pool
        share = n_rows * self._world // self._block_rows + 1
        for _ in range(min(share, len(self._coming))):
            self._prefetch(self._coming.popleft())

    def _share(self, pool: int) -> list[int]:
        """The blocks of a pool that this rank will need: batches ascend, so a rank stays in its part of them."""
        blocks = self._order.pool_blocks(pool)
        low, high = rank_slice(len(blocks), self._rank, self._world)
        return [int(block) for block in blocks[max(0, low - 1) : high + 1]]

    def _prefetch(self, block: int) -> None:
        if block not in self._held:
            self._held.add(block)
            for span, _ in self._spans(block):
                self._rows.prefetch(span)

    def _release(self, block: int) -> None:
        self._held.discard(block)
        for span, _ in self._spans(block):
            self._rows.release(span)

    def _spans(self, block: int) -> Iterator[tuple[RowSpan, int]]:
        """The rows of a block in each shard that holds some, and the id of the first."""
        first = block * self._block_rows
        end = min(first + self._block_rows, int(self._ends[-1]))
        shard = int(self._ends.searchsorted(first, "right"))
        while first < end:
            stop = min(end, int(self._ends[shard]))
            base = int(self._bases[shard])
            if stop > first:
                yield RowSpan(shard, first - base, stop - base), first
            first, shard = stop, shard + 1

    def close(self) -> None:
        """Close the reader of the rows."""
        self._rows.close()


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
        """The state to go on with after this batch of the pass begun last; read-ahead does not count."""
        epoch, _ = self._passes.start
        passed = max(0, self._passes.number() - 1)
        return self._source.state_at((epoch + passed, int(batch.position)))
