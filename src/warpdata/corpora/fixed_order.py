"""Read pieces in the fixed order, a bounded number of bytes ahead of the cursor, and copy rows out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from warpdata.corpora.batch import Rows
from warpdata.corpora.pieces import Piece, PieceReader
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.worker import OrderedWorker, SharedWork
from warpdata.errors import ResidencyError

PIECE_BYTES = 4 << 20
NEAR_BYTES = 16 << 20
GROUP_BYTES = 16 << 20
SPLIT_BYTES = 4 << 20
SHARE_BYTES = 1 << 20
LOAD_GROUPS = 64
"""Copies of at least the first many bytes are shared by two threads, in parts of the second, unless the machine
is busy with other work: then a second thread only makes the first one wait. That is looked at now and then."""

_CORES = os.cpu_count() or 1


@dataclass(slots=True)
class Held:
    """A piece that is in memory, and how many of its rows have been given."""

    piece: Piece
    rows: Rows
    used: int = 0


def piece_rows(shards: ShardSet, prefetch_bytes: int) -> int:
    """Rows of a piece: about 2 MiB, at most the window, and whole checksummed runs where there are any."""
    rows = max(1, min(PIECE_BYTES, max(1, prefetch_bytes)) // max(1, shards.row_bytes))
    if shards.run_rows:
        rows = max(1, rows // shards.run_rows) * shards.run_rows
    return rows


@dataclass(slots=True)
class Copy:
    """Rows of a held piece, from its row `start` on, that go to `out`."""

    held: Held
    start: int
    out: Rows


class FixedOrderReader:
    """The rows of a corpus one after the other; memory stays within a few windows."""

    def __init__(self, shards: ShardSet, pieces: PieceReader, prefetch_bytes: int) -> None:
        self._shards = shards
        self._pieces = pieces
        self._prefetch_bytes = prefetch_bytes
        self._piece_rows = piece_rows(shards, prefetch_bytes)
        self._row_bytes = shards.row_bytes
        self._group_rows = max(1, GROUP_BYTES // max(1, self._row_bytes))
        self._ahead: OrderedWorker[Rows] | None = None
        self._second: SharedWork | None = None
        self._is_idle = True
        self._groups = 0
        self._skip = 0
        self.seek(0, 0)

    def seek(self, shard: int, row: int) -> None:
        """Go on at a row of a shard; what was read ahead is dropped."""
        self._drop_ahead()
        self._plan = self._pieces_from(shard, row)
        self._next: Piece | None = next(self._plan, None)
        self._waiting: deque[tuple[Piece, bool]] = deque()
        self._waiting_bytes = 0
        self._held: Held | None = None
        self._lent: list[Held] = []
        self._cursor = (shard, row)

    def read(self, shard: int, row: int, out: Rows) -> None:
        """Fill `out` with the rows of `shard` from `row` on, which must be where the cursor is."""
        if (shard, row) != self._cursor:
            self.seek(shard, row)
        done = self._copy_held(out)
        while done < len(out):
            copies, finished = self._gather(out, done)
            self._copy(copies)
            done += sum(len(copy.out) for copy in copies)
            self._release(finished)
        self._cursor = (shard, row + len(out))

    def _copy_held(self, out: Rows) -> int:
        """The short way for a small batch that lies inside the piece at hand."""
        held, take = self._held or self._claim(), len(out)
        if len(held.rows) - held.used < take or take * self._row_bytes >= SPLIT_BYTES:
            self._held = held
            return 0
        self._pieces.copy(held.piece, held.rows, held.used, out)
        finished: list[Held] = []
        self._use(held, take, finished)
        self._release(finished)
        return take

    def pass_over(self, shard: int, row: int, count: int) -> None:
        """Bring rows in that the caller sees in place; those of the call before are released."""
        if (shard, row) != self._cursor:
            self.seek(shard, row)
        self._release(self._lent)
        self._lent = []
        while count > 0:
            held = self._held or self._claim()
            take = min(len(held.rows) - held.used, count)
            self._use(held, take, self._lent)
            count, row = count - take, row + take
        self._cursor = (shard, row)

    def _release(self, finished: list[Held]) -> None:
        for held in finished:
            self._pieces.release(held.piece, held.rows)

    def _use(self, held: Held, take: int, finished: list[Held]) -> None:
        held.used += take
        self._held = held if held.used < len(held.rows) else None
        if self._held is None:
            finished.append(held)

    def _gather(self, out: Rows, done: int) -> tuple[list[Copy], list[Held]]:
        """Claim pieces for the next few MiB of `out`: what to copy, and which pieces are then used up."""
        copies: list[Copy] = []
        finished: list[Held] = []
        room = self._group_rows
        while done < len(out) and room > 0:
            held = self._held or self._claim()
            take = min(len(held.rows) - held.used, len(out) - done, room)
            copies.append(Copy(held, held.used, out[done : done + take]))
            done, room = done + take, room - take
            self._use(held, take, finished)
        return copies, finished

    def _claim(self) -> Held:
        """The next piece of the plan, from the read-ahead."""
        self._read_ahead()
        if not self._waiting:
            raise ResidencyError("the read-ahead is empty before the end of the corpus")
        piece, is_near = self._waiting.popleft()
        self._waiting_bytes -= self._bytes(piece)
        rows = self._pieces.load(piece) if is_near else self._worker().take()
        if len(rows) != piece.end - piece.start:
            raise ResidencyError(f"{len(rows)} rows came for a piece of {piece.end - piece.start}")
        self._read_ahead()
        skip, self._skip = self._skip, 0
        return Held(piece, rows, skip)

    def _read_ahead(self) -> None:
        """Queue pieces until the window is full; at least one is always on its way."""
        while self._next is not None:
            piece, size = self._next, self._bytes(self._next)
            if self._waiting and self._waiting_bytes + size > self._prefetch_bytes:
                return
            is_near = self._pieces.is_near(piece)
            self._next = next(self._plan, None)
            if is_near:
                piece = self._extended(piece)
            else:
                self._worker().submit(partial(self._pieces.fetch, piece))
            self._waiting.append((piece, is_near))
            self._waiting_bytes += self._bytes(piece)

    def _extended(self, piece: Piece) -> Piece:
        """A near piece together with the near ones after it: they cost nothing to have, so take many at once."""
        while (
            self._next is not None
            and self._next.shard == piece.shard
            and self._bytes(piece) + self._bytes(self._next) <= NEAR_BYTES
            and self._pieces.is_near(self._next)
        ):
            piece = Piece(piece.shard, piece.start, self._next.end)
            self._next = next(self._plan, None)
        return piece

    def _worker(self) -> OrderedWorker[Rows]:
        if self._ahead is None or not self._ahead.is_alive:
            self._ahead = OrderedWorker("warpdata-read-ahead")
        return self._ahead

    def _pieces_from(self, shard: int, row: int) -> Iterator[Piece]:
        """Pieces lie on a fixed grid in each shard, so that a seek reads the same ones."""
        step = self._piece_rows
        self._skip = row % step
        return (
            Piece(index, start, min(start + step, info.n_rows))
            for index, info in enumerate(self._shards.shards[shard:], shard)
            for start in range(row - row % step if index == shard else 0, info.n_rows, step)
        )

    def _bytes(self, piece: Piece) -> int:
        return (piece.end - piece.start) * self._row_bytes

    def _copy(self, copies: list[Copy]) -> None:
        """Decode into the output, in two threads when there is enough to share."""
        size = sum(len(copy.out) for copy in copies) * self._row_bytes
        if _CORES < 2 or size < SPLIT_BYTES:
            self._copy_all(copies)
            return
        if not self._groups % LOAD_GROUPS:
            self._is_idle = os.getloadavg()[0] < _CORES + 0.5
        self._groups += 1
        if self._is_idle:
            self._copy_shared(copies)
        else:
            self._copy_all(copies)

    def _copy_shared(self, copies: list[Copy]) -> None:
        if self._second is None or not self._second.is_alive:
            self._second = SharedWork("warpdata-copy")
        step = max(1, SHARE_BYTES // max(1, self._row_bytes))
        self._second.run(partial(self._copy_all, [part]) for part in cut_copies(copies, step))

    def _copy_all(self, copies: list[Copy]) -> None:
        for copy in copies:
            self._pieces.copy(copy.held.piece, copy.held.rows, copy.start, copy.out)

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def close(self) -> None:
        """Stop the threads and give back files and buffers."""
        self.seek(0, 0)
        if self._second is not None:
            self._second.close()
        self._pieces.close()


def cut_copies(copies: list[Copy], step: int) -> list[Copy]:
    """The same copies in parts of at most `step` rows."""
    return [
        Copy(copy.held, copy.start + start, copy.out[start : start + step])
        for copy in copies
        for start in range(0, len(copy.out), step)
    ]


def new_ids(first: int, count: int) -> Rows:
    """The ids of consecutive rows."""
    return np.arange(first, first + count, dtype=np.uint64)
