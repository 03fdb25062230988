"""The windows of a shuffle in memory: filled ahead in the order they are needed, reused when used up."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np

from warpdata.bytekit.background import OrderedWorker
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.runs import RunReader
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import RowSpan
from warpdata.errors import ResidencyError
from warpdata.ordering.epoch import EpochOrder, Run, run_row_ids
from warpdata.ordering.splitmix import I64

SPARE_WINDOWS = 4
HINT_WINDOWS = 8
SLAB_WINDOWS = 8
"""How many windows are filled, and announced to the disk, before they are asked for."""

WindowKey = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One window: its rows as they lie on disk, the order they are given in, and their ids in that order."""

    key: WindowKey
    buffer: Rows
    rows: Rows
    order: I64
    row_ids: I64


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    key: WindowKey
    runs: list[Run]
    spans: list[RowSpan]


class WindowPool:
    """Windows of one epoch, claimed strictly in the order they were asked for.

    The thread only moves bytes: everything computed happens with the caller, so the two do not fight for the
    interpreter.
    """

    def __init__(self, order: EpochOrder, shards: ShardSet, runs: RunReader) -> None:
        self._order = order
        self._runs = runs
        self._width = shards.width
        self._dtype = raw_dtype(shards.dtype)
        self._bases: list[int] = shards.first_rows().tolist()
        self._worker: OrderedWorker[Rows | None] = OrderedWorker("warpdata-shuffle")
        self._free: list[Rows] = []
        self._asked: deque[_Asked] = deque()
        self._hinted: deque[_Asked] = deque()
        self._filling: deque[_Asked] = deque()

    @property
    def is_hungry(self) -> bool:
        """True while more windows could be asked for without waiting."""
        return len(self._asked) + len(self._hinted) < HINT_WINDOWS

    def ask(self, key: WindowKey) -> None:
        """This window will be claimed, after those asked for before."""
        runs = self._order.window_runs(*key)
        self._asked.append(_Asked(key, runs, self._spans(runs)))
        self._pump()

    def claim(self, key: WindowKey) -> Window:
        """The next window, which must be `key`."""
        self._pump()
        if not self._filling or self._filling[0].key != key:
            raise ResidencyError(f"window {key} was claimed out of its turn")
        while (buffer := self._worker.take()) is None:
            pass
        asked = self._filling.popleft()
        self._pump()
        order, ids = self._order.window_permutation(*key), run_row_ids(asked.runs)
        return Window(key, buffer, buffer[: len(ids)], order, ids[order])

    def release(self, window: Window) -> None:
        """The window is used up: its buffer serves again."""
        self._free.append(window.buffer)

    def close(self) -> None:
        """Stop the thread and close the files."""
        self._worker.close()
        self._runs.close()

    def _pump(self) -> None:
        """Announce the next windows to the disk, and fill a few of them."""
        while self._asked and len(self._hinted) < HINT_WINDOWS:
            asked = self._asked.popleft()
            self._worker.submit(partial(_hint, self._runs, asked.spans))
            self._hinted.append(asked)
        while self._hinted and len(self._filling) < SPARE_WINDOWS:
            asked = self._hinted.popleft()
            self._worker.submit(partial(_fill, self._runs, asked.spans, self._buffer()))
            self._filling.append(asked)

    def _buffer(self) -> Rows:
        """A free buffer; new ones come several at a time, because large arrays get large pages."""
        if not self._free:
            rows = self._order.shape.most_window_rows
            slab = np.empty((SLAB_WINDOWS, rows, self._width), self._dtype)
            self._free += list(slab)
        return self._free.pop()

    def _spans(self, runs: list[Run]) -> list[RowSpan]:
        spans = []
        for run in runs:
            shard = bisect_right(self._bases, run.first_row) - 1
            start = run.first_row - self._bases[shard]
            spans.append(RowSpan(shard, start, start + run.n_rows))
        return spans


def _hint(runs: RunReader, spans: list[RowSpan]) -> None:
    for span in spans:
        runs.hint(span)


def _fill(runs: RunReader, spans: list[RowSpan], buffer: Rows) -> Rows:
    done = 0
    for span in spans:
        count = span.end - span.start
        runs.read(span, buffer[done : done + count])
        done += count
    return buffer
