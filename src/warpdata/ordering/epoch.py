"""The order of one epoch: blocks are permuted, dealt to sections, and mixed inside windows.

Position p of the epoch belongs to section (L − 1 − p mod L): after p rows section l has given floor((p + l) / L).
So the rows [a, b) of an epoch are the same set whatever the batch size, the rank or the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from warpdata.bytekit.lazy import cached_property
from warpdata.ordering.shape import ShuffleShape
from warpdata.ordering.splitmix import I64, keyed_permutation, stream_key

BLOCKS_STREAM = 1
WINDOW_STREAM = 2


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of one shard, by global row id."""

    first_row: int
    n_rows: int


class Segment(NamedTuple):
    """A piece of a batch: rows [start, end) of one window, and where in the batch they go."""

    need: int
    """The section position at which the window begins: segments sort in the order windows are needed."""
    section: int
    window: int
    start: int
    end: int
    out_row: int
    ends_window: bool


class EpochOrder:
    """Every row of a corpus exactly once, in an order that is a pure function of (shape, seed, epoch)."""

    def __init__(self, shape: ShuffleShape, seed: int, epoch: int) -> None:
        self.shape = shape
        self.seed = seed
        self.epoch = epoch
        self.total_rows = shape.total_rows
        self._bounds: dict[int, I64] = {}
        self._current: dict[int, tuple[int, int, int]] = {}

    @cached_property
    def _blocks(self) -> tuple[I64, I64]:
        """First row of each block in its permuted place, and where it begins in the concatenated order."""
        first, rows = cut_blocks(self.shape)
        order = keyed_permutation(len(first), stream_key(self.seed, self.epoch, BLOCKS_STREAM))
        starts = np.zeros(len(first) + 1, np.int64)
        np.cumsum(rows[order], out=starts[1:])
        return first[order], starts

    def section_start(self, section: int) -> int:
        """Where a section begins in the concatenated order of blocks."""
        whole, rest = divmod(self.total_rows, self.shape.sections)
        return whole * section + max(0, section - (self.shape.sections - rest))

    def section_position(self, section: int, position: int) -> int:
        """How many rows a section has given after `position` rows of the epoch."""
        return (position + section) // self.shape.sections

    def window_bounds(self, section: int) -> I64:
        """Section positions at which the windows of a section begin, and its end: cut only between blocks."""
        found = self._bounds.get(section)
        if found is None:
            found = self._bounds[section] = self._cut_windows(section)
        return found

    def _cut_windows(self, section: int) -> I64:
        starts = self._blocks[1]
        low, high = self.section_start(section), self.section_start(section + 1)
        first, last = np.searchsorted(starts, low, "right"), np.searchsorted(starts, high, "left")
        stagger = section % self.shape.section_blocks
        inner = starts[first + stagger : last : self.shape.section_blocks]
        return np.concatenate([[low], inner, [high]]).astype(np.int64) - low

    def window_runs(self, section: int, window: int) -> list[Run]:
        """The runs of rows a window holds, in the concatenated order."""
        first_rows, starts = self._blocks
        bounds, base = self.window_bounds(section), self.section_start(section)
        low, high = base + int(bounds[window]), base + int(bounds[window + 1])
        begin = int(np.searchsorted(starts, low, "right")) - 1
        runs = []
        while low < high:
            end = min(high, int(starts[begin + 1]))
            if end > low:
                runs.append(Run(int(first_rows[begin]) + low - int(starts[begin]), end - low))
            low, begin = end, begin + 1
        return runs

    def window_permutation(self, section: int, window: int) -> I64:
        """In which order the rows of a window are given."""
        bounds = self.window_bounds(section)
        key = stream_key(self.seed, self.epoch, WINDOW_STREAM, section, window)
        return keyed_permutation(int(bounds[window + 1] - bounds[window]), key)

    def window_row_ids(self, section: int, window: int) -> I64:
        """The row ids of a window in the order they are given."""
        return run_row_ids(self.window_runs(section, window))[self.window_permutation(section, window)]

    def segments(self, start: int, end: int, low: int, high: int) -> list[Segment]:
        """Rows [low, high) of the section-major batch of positions [start, end), in the order windows begin."""
        found: list[Segment] = []
        out = -low
        for section in range(self.shape.sections):
            begin, stop = self.section_position(section, start), self.section_position(section, end)
            if out + stop - begin > 0:
                found += self._section_segments(section, (begin, stop), (out, high - low))
            out += stop - begin
            if out >= high - low:
                break
        found.sort()
        return found

    def _section_segments(
        self, section: int, span: tuple[int, int], out: tuple[int, int]
    ) -> Iterator[Segment]:
        """The part of section positions `span` that lands in rows [0, limit) of the batch, cut at windows."""
        first, limit = out
        shift = first - span[0]
        begin, stop = max(span[0], -shift), min(span[1], limit - shift)
        while begin < stop:
            window, base, edge = self._window_at(section, begin)
            until = min(stop, edge)
            yield Segment(base, section, window, begin - base, until - base, begin + shift, span[1] >= edge)
            begin = until

    def _window_at(self, section: int, position: int) -> tuple[int, int, int]:
        """Number, begin and end of the window that holds a section position; the last answer is remembered."""
        found = self._current.get(section)
        if found is None or not found[1] <= position < found[2]:
            bounds = self.window_bounds(section)
            window = int(np.searchsorted(bounds, position, "right")) - 1
            found = self._current[section] = (window, int(bounds[window]), int(bounds[window + 1]))
        return found

    def row_ids(self, start: int, end: int, low: int = 0, high: int | None = None) -> I64:
        """The ids of rows [low, high) of the batch of positions [start, end), without reading anything."""
        high = end - start if high is None else high
        ids = np.empty(high - low, np.int64)
        for part in self.segments(start, end, low, high):
            given = self.window_row_ids(part.section, part.window)[part.start : part.end]
            ids[part.out_row : part.out_row + len(given)] = given
        return ids


def cut_blocks(shape: ShuffleShape) -> tuple[I64, I64]:
    """First row id and number of rows of every block; a block never crosses a shard."""
    rows = np.array(shape.shard_rows, np.int64)
    counts = -(-rows // shape.block_rows)
    shard_of = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    first = within * shape.block_rows
    return (np.cumsum(rows) - rows)[shard_of] + first, np.minimum(shape.block_rows, rows[shard_of] - first)


def run_row_ids(runs: list[Run]) -> I64:
    """The ids of all rows of some runs, in their order."""
    ids = [np.arange(run.first_row, run.first_row + run.n_rows, dtype=np.int64) for run in runs]
    return ids[0] if len(ids) == 1 else np.concatenate(ids)


def rank_slice(n_rows: int, rank: int, world: int) -> tuple[int, int]:
    """The rows of a batch that one rank serves; equal for all ranks when the world divides the batch."""
    return n_rows * rank // world, n_rows * (rank + 1) // world
