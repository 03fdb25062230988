"""Rows in a reproducible shuffled order: exactly once per epoch, bounded memory, any number of ranks."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, Unpack

import numpy as np

from warpdata.corpora.batch import RowBatch, Rows
from warpdata.corpora.decode import decode_rows, output_dtype, raw_dtype
from warpdata.corpora.options import options_of
from warpdata.corpora.pool import Window, WindowPool
from warpdata.errors import LimitExceededError, require_kind
from warpdata.ordering.epoch import EpochOrder, Segment, rank_slice
from warpdata.ordering.quality import ShuffleQuality, measure_quality
from warpdata.ordering.shape import DEFAULT_WINDOW_BLOCKS, ShuffleShape, default_block_rows, shuffle_shape
from warpdata.ordering.state import MAX_POSITION, PLAN_CHARS, OrderState, parse_state
from warpdata.ordering.tail import Tail, check_filled, check_tail

if TYPE_CHECKING:
    from typing import Self

    from warpdata.corpora.source import FixedOrderSource


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions [start, end) of the epoch, of which this rank serves rows [low, high)."""

    start: int
    end: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Planned:
    n_rows: int
    position_after: int
    parts: tuple[tuple[int, list[Segment]], ...]
    """The segments of each part, with its first row inside the batch."""


_WHOLE = (
    "seed", "epoch", "rank", "world", "batch_size", "block_rows", "window_blocks", "sections", "worker", "workers",
)  # fmt: skip


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
    """Rows read at a time; about 1 MiB unless told."""
    window_blocks: int = DEFAULT_WINDOW_BLOCKS
    """Blocks in play over all ranks: more shuffle better and take more memory."""
    sections: int | None = None
    """Stretches of the permuted blocks that every batch draws from equally; chosen from `batch_size` unless told."""
    tail: Tail = "short"
    """What becomes of a last batch that is not full; `pad` fills it with the first rows of the epoch."""
    dtype: str | type | np.dtype[Any] | None = None
    """What rows come as; the source's choice unless told."""
    worker: int = 0
    workers: int = 1
    """This process gives batches worker, worker + workers, … counted from where the stream stands."""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None:
                require_kind(name, value, SupportsIndex, "a whole number")
                object.__setattr__(self, name, operator.index(value))  # numpy's own would overflow
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world}")
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker {self.worker} of {self.workers}")
        check_tail(self.tail)


class OrderKeywords(TypedDict, total=False):
    """The fields of ShuffleOptions as keyword arguments, but for the size of batches."""

    seed: int
    epoch: int
    rank: int
    world: int
    block_rows: int | None
    window_blocks: int
    sections: int | None
    tail: str
    dtype: str | type | np.dtype[Any] | None
    worker: int
    workers: int


class ShuffleKeywords(OrderKeywords, total=False):
    """The fields of ShuffleOptions as keyword arguments."""

    batch_size: int


class ShuffledRows:
    """Batches of a shuffled corpus; the order depends on (seed, epoch, shape) and on nothing else.

    Rank r of `world` ranks gets its share of every global batch of `batch_size` rows. Iterating goes on where
    the state says, to the end of the epoch, and then stands at the beginning of the next. Keyword arguments
    are the fields of ShuffleOptions.
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
        self.source = source
        self.options = chosen
        self.batch_size = chosen.batch_size
        self._shards = source.shards
        wanted = source.options.dtype if chosen.dtype is None else chosen.dtype
        self._dtype = output_dtype(wanted, self._shards.dtype)
        blocks = chosen.block_rows
        if blocks is None:
            blocks = self._shards.run_rows or default_block_rows(self._shards.row_bytes)
        self.shape: ShuffleShape = shuffle_shape(
            self._shards.shard_rows, batch_size=chosen.batch_size, block_rows=blocks,
            window_blocks=chosen.window_blocks, sections=chosen.sections,
        )  # fmt: skip
        if self.shape.total_rows > MAX_POSITION:
            raise LimitExceededError(f"{self.shape.total_rows} rows are more than a shuffle can count")
        plan = self.shape.fingerprint()[:PLAN_CHARS]
        self._state = OrderState(chosen.seed, chosen.epoch, 0, plan)
        self._stream: _EpochStream | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: under 100 bytes as JSON, the same on every rank."""
        return self._state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another stream over the same corpus stood, whatever its rank and world."""
        parsed = parse_state(state, self._state.plan)
        if parsed.position > self.shape.total_rows:
            raise ValueError(f"position {parsed.position} of {self.shape.total_rows} rows")
        self._close_stream()
        self._state = parsed

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._close_stream()
        self._state = OrderState(self._state.seed, epoch, 0, self._state.plan)

    @property
    def epoch(self) -> int:
        """The epoch the next batch belongs to."""
        return self._state.epoch

    @property
    def position(self) -> int:
        """Rows of this epoch that all ranks together have given."""
        return self._state.position

    def order(self) -> EpochOrder:
        """The pure order of the current epoch."""
        return EpochOrder(self.shape, self._state.seed, self._state.epoch)

    def shuffle_quality(self) -> ShuffleQuality:
        """How far this shuffle is from a uniform one."""
        return measure_quality(self.order(), self.batch_size)

    def batches_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        whole, rest = divmod(self.shape.total_rows, self.batch_size)
        return whole if self.options.tail == "drop" or not rest else whole + 1

    def next_batch(self, out: Rows | None = None) -> RowBatch | None:
        """The next batch of this rank, or None at the end of the epoch (then the next epoch begins)."""
        if self._stream is None:
            self._stream = _EpochStream(self)
        try:
            found = self._stream.next_batch(out)
        except BaseException:
            self._close_stream()  # the next call tries this very batch again
            raise
        if found is None:
            self.set_epoch(self._state.epoch + 1)
            return None
        batch, position = found
        self._state = OrderState(self._state.seed, self._state.epoch, position, self._state.plan)
        return batch

    def __iter__(self) -> Iterator[RowBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def parts(self, position: int) -> list[_Part]:
        """What the batch at `position` is made of for this rank; empty at the end of the epoch."""
        total, size = self.shape.total_rows, self.batch_size
        left = min(size, total - position)
        if left <= 0 or (self.options.tail == "drop" and left < size):
            return []
        spans = [(position, position + left)]
        filled = left
        if self.options.tail == "pad" and left < size:
            filled = size
            check_filled(filled // self.options.world, total, self._shards.width * self._dtype.itemsize)
        spans += [(0, min(total, filled - start)) for start in range(left, filled, total)]
        low, high = rank_slice(filled, self.options.rank, self.options.world)
        parts, first = [], 0
        for start, end in spans:
            rows = end - start
            parts.append(_Part(start, end, min(max(low - first, 0), rows), min(max(high - first, 0), rows)))
            first += rows
        return parts

    def close(self) -> None:
        """Stop reading ahead; the source stays open."""
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __repr__(self) -> str:
        return (
            f"<ShuffledRows of {self.source!r}, seed {self._state.seed}, epoch {self.epoch}, "
            f"row {self.position}, rank {self.options.rank} of {self.options.world}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # Where the interpreter ends, modules may be gone, and the system takes back threads and files.
        if hasattr(self, "_stream") and not is_over():
            self._close_stream()


class _EpochStream:
    """The batches of one rank from a position to the end of the epoch."""

    def __init__(self, owner: ShuffledRows) -> None:
        self._parts = owner.parts
        self._stride = owner.batch_size * owner.options.workers
        self._dtype = owner._dtype
        self._shards = owner._shards
        self._order = owner.order()
        self._pool = WindowPool(self._order, self._shards, owner.source.run_readers())
        self._held: dict[int, Window] = {}
        self._asked: dict[int, int] = {}
        self._plan_position = owner.position + owner.batch_size * owner.options.worker
        self._planned: deque[_Planned] = deque()
        self._raw: Rows = np.empty((0, self._shards.width), raw_dtype(self._shards.dtype))

    def next_batch(self, out: Rows | None) -> tuple[RowBatch, int] | None:
        """The next batch and the position after it, or None at the end."""
        self._plan_ahead()
        if not self._planned:
            return None
        plan = self._planned.popleft()
        rows, ids = self._target(plan.n_rows, out), np.empty(plan.n_rows, np.int64)
        raw = rows if self._is_raw(rows) else self._scratch(plan.n_rows)
        for number, (first, segments) in enumerate(plan.parts):
            if number:
                self._begin_again()
            for segment in segments:
                self._give(segment, raw, ids, first + segment.out_row)
        if raw is not rows:
            decode_rows(raw, rows, self._shards.dtype)
        self._plan_ahead()
        return RowBatch(rows, ids.view(np.uint64)), plan.position_after

    def _give(self, segment: Segment, raw: Rows, ids: Rows, at: int) -> None:
        """Copy the rows of a segment to their places, and drop the window after its last row."""
        window = self._window(segment)
        count = segment.end - segment.start
        places = window.order[segment.start : segment.end]
        window.rows.take(places, axis=0, out=raw[at : at + count], mode="clip")
        ids[at : at + count] = window.row_ids[segment.start : segment.end]
        if segment.ends_window:
            del self._held[segment.section]
            self._pool.release(window)

    def _window(self, segment: Segment) -> Window:
        held = self._held.get(segment.section)
        if held is not None and held.key[1] == segment.window:
            return held
        if held is not None:
            self._pool.release(held)
        while self._pool.is_hungry and self._plan_one():
            pass
        window = self._held[segment.section] = self._pool.claim((segment.section, segment.window))
        return window

    def _plan_ahead(self) -> None:
        while (not self._planned or self._pool.is_hungry) and self._plan_one():
            pass

    def _plan_one(self) -> bool:
        """Plan one more batch and ask for the windows it begins; False at the end of the epoch."""
        parts = self._parts(self._plan_position)
        if not parts:
            return False
        planned: list[tuple[int, list[Segment]]] = []
        n_rows = 0
        for number, part in enumerate(parts):
            if number:
                self._asked.clear()
            found = self._order.segments(part.start, part.end, part.low, part.high)
            self._ask(found)
            planned.append((n_rows, found))
            n_rows += part.high - part.low
        self._plan_position += self._stride
        self._planned.append(_Planned(n_rows, parts[0].end, tuple(planned)))
        return True

    def _begin_again(self) -> None:
        """What fills the last batch comes from the beginning of the epoch, in windows that are asked for anew."""
        for window in self._held.values():
            self._pool.release(window)
        self._held.clear()

    def _ask(self, segments: list[Segment]) -> None:
        for segment in segments:
            if self._asked.get(segment.section) != segment.window:
                self._asked[segment.section] = segment.window
                self._pool.ask((segment.section, segment.window))

    def _is_raw(self, rows: Rows) -> bool:
        return bool(rows.dtype == self._raw.dtype) and rows.flags.c_contiguous

    def _scratch(self, n_rows: int) -> Rows:
        if len(self._raw) < n_rows:
            self._raw = np.empty((n_rows, self._shards.width), self._raw.dtype)
        return self._raw[:n_rows]

    def _target(self, n_rows: int, out: Rows | None) -> Rows:
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
        """Stop reading ahead."""
        self._pool.close()
        self._held.clear()
