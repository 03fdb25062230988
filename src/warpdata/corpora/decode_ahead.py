"""Batches decoded before they are asked for: every second one, by a second thread, where a core is idle."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.process.system import has_idle_core
from warpdata.bytekit.process.threads import Task, TaskThread
from warpdata.corpora.batch import Rows

DEPTH = 2
AHEAD_BATCHES = 2 * DEPTH
"""So many batches are under way in the thread; the last of them lies this far ahead of the cursor."""
FIRST_BATCH = 4
TURNS = 32
"""Who reads fewer batches in a row needs no thread; whether a core is idle is looked at once in so many."""
MIN_BYTES = 512 << 10
MAX_BYTES = 8 << 20
"""Smaller batches take less time than the hand-over, larger ones are shared by two threads anyway."""

ReadNear = Callable[[int, int, Rows], int]
_CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    shard: int
    row: int
    n_rows: int
    task: Task[Rows | None]


class DecodeAhead:
    """Decodes every second batch of a sequential reader; the caller's thread decodes those between.

    Nothing depends on it: a batch it does not have, in time or at all, is read as if it did not exist.
    """

    def __init__(self, read_near: ReadNear, width: int, dtype: npt.DTypeLike) -> None:
        self._read_near = read_near
        self._width = width
        self._dtype = np.dtype(dtype)
        self._batches: deque[_Batch] = deque()
        self._runner: TaskThread | None = None
        self._next_row = 0
        self._turns = 0
        self._pause = FIRST_BATCH

    def take(self, shard: int, row: int, n_rows: int) -> Rows | None:
        """These rows if the thread has them or is just decoding them; else they are the caller's to read."""
        if not self._batches:
            return None
        batch = self._batches[0]
        if (batch.shard, batch.n_rows) != (shard, n_rows) or batch.row < row or not self._is_alive():
            self.drop()
            return None
        if batch.row > row:
            return None
        self._batches.popleft()
        return None if batch.task.cancel() else batch.task.wait()

    def go_on(self, shard: int, row: int, n_rows: int, end: int) -> None:
        """Keep the thread busy with the batches of `n_rows` rows after the one at `row`, up to row `end`."""
        if not self._batches:
            if not self._may_begin():
                return
            self._next_row, self._turns = row + n_rows, TURNS
        while len(self._batches) < DEPTH and self._turns and self._next_row + n_rows <= end:
            self._send(shard, self._next_row, n_rows)
            self._next_row += 2 * n_rows
            self._turns -= 1

    def _may_begin(self) -> bool:
        if self._pause:
            self._pause -= 1
            return False
        if _CORES > 1 and has_idle_core(_CORES):
            return True
        self._pause = TURNS
        return False

    def _send(self, shard: int, row: int, n_rows: int) -> None:
        if self._runner is None or not self._runner.is_alive:
            self._runner = TaskThread("warpdata-decode")
        task = self._runner.send(partial(self._decode, shard, row, n_rows))
        self._batches.append(_Batch(shard, row, n_rows, task))

    def _decode(self, shard: int, row: int, n_rows: int) -> Rows | None:
        """The rows as a new array, or None if not all of them are near."""
        rows = np.empty((n_rows, self._width), self._dtype)
        return rows if self._read_near(shard, row, rows) == n_rows else None

    def _is_alive(self) -> bool:
        return self._runner is not None and self._runner.is_alive

    def drop(self) -> None:
        """Forget what was decoded ahead; afterwards the thread touches no rows."""
        is_alive = bool(self._batches) and self._is_alive()
        while self._batches:
            task = self._batches.popleft().task
            if is_alive and not task.cancel():
                task.wait()

    def close(self) -> None:
        """Stop the thread."""
        self.drop()
        if self._runner is not None:
            self._runner.close()
