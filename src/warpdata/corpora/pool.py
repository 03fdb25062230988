"""The windows of a shuffle in memory: filled ahead in the order they are needed, reused when used up."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np

from warpdata.bytekit.process.forks import PerProcess
from warpdata.bytekit.process.threads import OrderedQueue
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.runs import RunReader
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import RowSpan
from warpdata.errors import ResidencyError
from warpdata.ordering.epoch import EpochOrder, Run, run_row_ids
from warpdata.ordering.splitmix import I64

SLAB_WINDOWS = 8
"""Windows whose buffers are made at a time."""

AHEAD_SHARE = 3 / 8
"""Windows that are filled before they are needed, of all sections: many sections need their next window in the same
batch, and with fewer filled by then the disk rests between two such batches."""

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

    Each reader fills windows in a thread of its own, one after another, and only moves bytes: everything computed
    happens with the caller, so they do not fight for the interpreter.
    """

    def __init__(self, order: EpochOrder, shards: ShardSet, readers: Sequence[RunReader]) -> None:
        self._order = order
        self._readers = readers
        self._width = shards.width
        self._dtype = raw_dtype(shards.dtype)
        self._bases: list[int] = shards.first_rows().tolist()
        self._idle = PerProcess(lambda: _queue_of(readers))
        self._workers: OrderedQueue[Rows] = OrderedQueue("warpdata-shuffle", len(readers))
        self._ahead = max(len(readers), int(AHEAD_SHARE * order.shape.sections))
        self._free: list[Rows] = []
        self._asked: deque[_Asked] = deque()
        self._filling: deque[_Asked] = deque()

    @property
    def is_hungry(self) -> bool:
        """True while more windows could be asked for without waiting."""
        return len(self._asked) < self._ahead

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
        buffer = self._workers.take()
        asked = self._filling.popleft()
        self._pump()
        order, ids = self._order.window_permutation(*key), run_row_ids(asked.runs)
        return Window(key, buffer, buffer[: len(ids)], order, ids[order])

    def release(self, window: Window) -> None:
        """The window is used up: its buffer serves again."""
        self._free.append(window.buffer)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._workers.close()
        for reader in self._readers:
            reader.close()

    def _pump(self) -> None:
        """Keep every reader busy, a bounded number of windows ahead."""
        while self._asked and len(self._filling) < self._ahead:
            asked = self._asked.popleft()
            self._workers.submit(partial(_fill, self._idle, asked.spans, self._buffer()))
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


def _queue_of(readers: Sequence[RunReader]) -> SimpleQueue[RunReader]:
    queue: SimpleQueue[RunReader] = SimpleQueue()
    for reader in readers:
        queue.put(reader)
    return queue


def _fill(idle_readers: PerProcess[SimpleQueue[RunReader]], spans: list[RowSpan], buffer: Rows) -> Rows:
    """Fill a buffer through a reader that no other thread uses; there are as many readers as threads."""
    idle, done = idle_readers(), 0
    reader = idle.get()
    try:
        for span in spans:
            reader.hint(span)
        for span in spans:
            count = span.end - span.start
            reader.read(span, buffer[done : done + count])
            done += count
    finally:
        idle.put(reader)
    return buffer
