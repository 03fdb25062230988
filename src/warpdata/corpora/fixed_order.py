"""Read spans in the fixed order, a bounded number of bytes ahead of the cursor, and copy rows out."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from warpdata.bytekit.process.system import has_idle_core
from warpdata.bytekit.process.threads import OrderedQueue, SharedWork
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode_ahead import AHEAD_BATCHES, MAX_BYTES, MIN_BYTES, DecodeAhead
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import Copier, RowSpan, SpanReader
from warpdata.errors import ResidencyError

SPAN_BYTES = 4 << 20
MAX_READERS = 4
"""Spans that are brought in at a time, if the window has room for so many: a disk that gets its next request only after
the last one was served rests between them."""
NEAR_BYTES = 16 << 20
RELEASE_BYTES = 16 << 20
GROUP_BYTES = 16 << 20
SPLIT_BYTES = 4 << 20
SHARE_BYTES = 2 << 20
LOAD_GROUPS = 16
"""Copies of at least the first many bytes are shared by two threads, in parts of the second, unless all
cores are busy: then a second thread only makes the first one wait. That is looked at once in so many copies."""

_CORES = os.cpu_count() or 1


@dataclass(slots=True)
class LoadedSpan:
    """A span that is in memory, and how many of its rows have been given."""

    span: RowSpan
    rows: Rows
    copy: Copier
    n_rows: int
    used: int = 0


def span_rows(shards: ShardSet, prefetch_bytes: int) -> int:
    """Rows of a span: about 4 MiB, at most the window, and whole checksummed runs where there are any."""
    rows = max(1, min(SPAN_BYTES, max(1, prefetch_bytes)) // max(1, shards.row_bytes))
    if shards.run_rows:
        rows = max(1, rows // shards.run_rows) * shards.run_rows
    return rows


@dataclass(slots=True)
class Copy:
    """Rows of a held span, from its row `start` on, that go to `out`."""

    held: LoadedSpan
    start: int
    out: Rows


class FixedOrderReader:
    """The rows of a corpus one after the other; memory stays within a few windows."""

    def __init__(
        self, shards: ShardSet, spans: SpanReader, prefetch_bytes: int, dtype: np.dtype[Any]
    ) -> None:
        """Rows are given as `dtype`."""
        self._shards = shards
        self._dtype = dtype
        self._width = shards.width
        self._decoded = DecodeAhead(spans.read_near, shards.width, dtype)
        self._may_decode = dtype != shards.dtype.dtype
        self._n_rows = shards.shard_rows
        self._spans = spans
        self._prefetch_bytes = prefetch_bytes
        self._span_rows = span_rows(shards, prefetch_bytes)
        self._row_bytes = shards.row_bytes
        self._readers = min(MAX_READERS, max(1, prefetch_bytes // max(1, self._span_rows * self._row_bytes)))
        self._split_rows = max(1, SPLIT_BYTES // max(1, self._row_bytes))
        self._share_rows = max(1, SHARE_BYTES // max(1, self._row_bytes))
        self._group_rows = max(1, GROUP_BYTES // max(1, self._row_bytes))
        self._ahead: OrderedQueue[Rows] | None = None
        self._second: SharedWork | None = None
        self._is_idle = True
        self._groups = 0
        self._skip = 0
        self._read_near = spans.read_near
        self._release_rows = max(1, RELEASE_BYTES // max(1, self._row_bytes))
        self._is_planned = True
        self.seek(0, 0)

    def seek(self, shard: int, row: int) -> None:
        """Go on at a row of a shard; what was read ahead is dropped."""
        self._drop_ahead()
        self._decoded.drop()
        if not self._is_planned:
            self._pass_near()
        self._plan: Iterator[RowSpan] = iter(())
        self._is_planned = False  # until something is not near
        self._next: RowSpan | None = None
        self._waiting: deque[tuple[RowSpan, bool]] = deque()
        self._waiting_bytes = 0
        self._held: LoadedSpan | None = None
        self._lent: list[LoadedSpan] = []
        self._shard, self._row = shard, row
        self._near_from(row)

    def _move(self, shard: int, row: int) -> None:
        """Seek, unless this is the next row anyway: then what was read ahead is what is wanted."""
        n_rows = self._n_rows
        is_next = row == 0 and self._row == n_rows[self._shard] and not any(n_rows[self._shard + 1 : shard])
        if self._is_planned and is_next and shard > self._shard:
            self._shard, self._row = shard, row
        else:
            self.seek(shard, row)

    def new_rows(self, shard: int, row: int, n_rows: int) -> Rows:
        """The rows of `shard` from `row` on as a new array, maybe decoded before this call."""
        is_near = not self._is_planned and row == self._row and shard == self._shard
        rows = self._decoded.take(shard, row, n_rows) if is_near else None
        if rows is None:
            rows = np.empty((n_rows, self._width), self._dtype)
            self.read(shard, row, rows)
        else:
            self._advance(row + n_rows)
        if self._may_decode and not self._is_planned and self._is_worth_decoding_ahead(n_rows, rows.nbytes):
            self._decoded.go_on(shard, row + n_rows, n_rows, self._n_rows[shard])
        return rows

    def _is_worth_decoding_ahead(self, n_rows: int, out_bytes: int) -> bool:
        ahead_bytes = AHEAD_BATCHES * n_rows * self._row_bytes
        return MIN_BYTES <= out_bytes <= MAX_BYTES and ahead_bytes <= self._prefetch_bytes

    def _advance(self, row: int) -> None:
        """The cursor is here; what lies behind it may be given back."""
        self._row = row
        if row >= self._near_limit:
            self._pass_near()

    def read(self, shard: int, row: int, out: Rows) -> None:
        """Fill `out` with the rows of `shard` from `row` on, which must be where the cursor is."""
        if row != self._row or shard != self._shard:
            self._move(shard, row)
        take = len(out)
        if self._is_planned:
            self._read_planned(shard, row, out)
        elif take >= self._split_rows:
            self._go_on(shard, row, out, self._read_near_shared(shard, row, out))
        elif (done := self._read_near(shard, row, out)) < take:
            self._go_on(shard, row, out, done)
        self._advance(row + take)

    def _read_planned(self, shard: int, row: int, out: Rows) -> None:
        held, take = self._held, len(out)
        if held is None:
            held = self._held = self._claim()
        if take >= self._split_rows or held.used + take > held.n_rows:
            self._read_spans(shard, row, out)
            return
        held.copy(held.used, out)  # the short way: a small batch inside one span
        held.used += take
        if held.used == held.n_rows:
            self._held = None
            self._spans.release(held.span, held.rows)

    def _go_on(self, shard: int, row: int, out: Rows, done: int) -> None:
        """Rows that lay in the page cache went straight to their place: read those that did not."""
        if done < len(out):
            self._row = row + done
            self._read_spans(shard, row + done, out[done:])

    def _read_near_shared(self, shard: int, row: int, out: Rows) -> int:
        """As many rows as are near, by two threads unless all cores are busy."""
        if not self._may_share():
            return self._read_near(shard, row, out)
        step = _equal_step(len(out), self._share_rows)
        counts = dict.fromkeys(range(0, len(out), step), 0)

        def read(start: int) -> None:
            counts[start] = self._read_near(shard, row + start, out[start : start + step])

        self._share(partial(read, start) for start in counts)
        short = [start + count for start, count in counts.items() if count < min(step, len(out) - start)]
        return short[0] if short else len(out)

    def _near_from(self, row: int) -> None:
        """Rows from here on are read near, until there is something to give back behind them."""
        self._near_first = row
        self._near_limit = min(row + self._release_rows, self._n_rows[self._shard])

    def _pass_near(self) -> None:
        """Give back what was read near, many pages at a time."""
        if self._row >= self._n_rows[self._shard]:
            self._decoded.drop()  # the mapping goes
        if self._near_first < self._row:
            self._spans.passed(self._shard, self._near_first, self._row)
        self._near_from(self._row)

    def _read_spans(self, shard: int, row: int, out: Rows) -> None:
        """The rest comes through spans, read ahead from here on."""
        self._plan_from(shard, row)
        done = 0
        while done < len(out):
            copies, finished = self._gather(out, done)
            self._copy(copies)
            done += sum(len(copy.out) for copy in copies)
            self._release(finished)

    def pass_over(self, shard: int, row: int, count: int) -> None:
        """Bring rows in that the caller sees in place; those of the call before are released."""
        if row != self._row or shard != self._shard:
            self._move(shard, row)
        self._release(self._lent)
        self._lent = []
        self._plan_from(shard, row)
        while count > 0:
            held = self._held or self._claim()
            take = min(held.n_rows - held.used, count)
            self._use(held, take, self._lent)
            count, row = count - take, row + take
        self._row = row

    def _release(self, finished: list[LoadedSpan]) -> None:
        for held in finished:
            self._spans.release(held.span, held.rows)

    def _use(self, held: LoadedSpan, take: int, finished: list[LoadedSpan]) -> None:
        held.used += take
        self._held = held if held.used < held.n_rows else None
        if self._held is None:
            finished.append(held)

    def _gather(self, out: Rows, done: int) -> tuple[list[Copy], list[LoadedSpan]]:
        """Claim spans for the next few MiB of `out`: what to copy, and which spans are then used up."""
        copies: list[Copy] = []
        finished: list[LoadedSpan] = []
        room = self._group_rows
        while done < len(out) and room > 0:
            held = self._held or self._claim()
            take = min(held.n_rows - held.used, len(out) - done, room)
            copies.append(Copy(held, held.used, out[done : done + take]))
            done, room = done + take, room - take
            self._use(held, take, finished)
        return copies, finished

    def _claim(self) -> LoadedSpan:
        """The next span of the plan, from the read-ahead."""
        self._read_ahead()
        if not self._waiting:
            raise ResidencyError("the read-ahead is empty before the end of the corpus")
        span, is_near = self._waiting.popleft()
        self._waiting_bytes -= self._bytes(span)
        rows = self._spans.load(span) if is_near else self._worker().take()
        if len(rows) != span.end - span.start:
            raise ResidencyError(f"{len(rows)} rows came for a span of {span.end - span.start}")
        self._read_ahead()
        skip, self._skip = self._skip, 0
        return LoadedSpan(span, rows, self._spans.copier(span, rows), len(rows), skip)

    def _read_ahead(self) -> None:
        """Queue spans until the window is full; at least one is always on its way."""
        while self._next is not None:
            span, size = self._next, self._bytes(self._next)
            if self._waiting and self._waiting_bytes + size > self._prefetch_bytes:
                return
            is_near = self._spans.is_near(span)
            self._next = next(self._plan, None)
            if is_near:
                span = self._extended(span)
            else:
                self._worker().submit(partial(self._spans.fetch, span))
            self._waiting.append((span, is_near))
            self._waiting_bytes += self._bytes(span)

    def _extended(self, span: RowSpan) -> RowSpan:
        """A near span together with the near ones after it: they cost nothing to have, so take many at once."""
        while (
            self._next is not None
            and self._next.shard == span.shard
            and self._bytes(span) + self._bytes(self._next) <= NEAR_BYTES
            and self._spans.is_near(self._next)
        ):
            span = RowSpan(span.shard, span.start, self._next.end)
            self._next = next(self._plan, None)
        return span

    def _worker(self) -> OrderedQueue[Rows]:
        if self._ahead is None or not self._ahead.is_alive:
            self._ahead = OrderedQueue("warpdata-read-ahead", self._readers)
        return self._ahead

    def _plan_from(self, shard: int, row: int) -> None:
        """Go over to spans. They lie on a fixed grid in each shard, so that a seek reads the same ones."""
        if self._is_planned:
            return
        self._decoded.drop()
        self._pass_near()
        self._near_limit = sys.maxsize
        step = self._span_rows
        self._skip = row % step
        self._plan = (
            RowSpan(index, start, min(start + step, info.n_rows))
            for index, info in enumerate(self._shards.shards[shard:], shard)
            for start in range(row - row % step if index == shard else 0, info.n_rows, step)
        )
        self._next, self._is_planned = next(self._plan, None), True

    def _bytes(self, span: RowSpan) -> int:
        return (span.end - span.start) * self._row_bytes

    def _copy(self, copies: list[Copy]) -> None:
        """Decode into the output, in two threads when there is enough to share."""
        if sum(len(copy.out) for copy in copies) < self._split_rows or not self._may_share():
            self._copy_all(copies)
        else:
            self._share(partial(self._copy_all, [part]) for part in cut_copies(copies, self._share_rows))

    def _may_share(self) -> bool:
        if not self._groups % LOAD_GROUPS:
            self._is_idle = _CORES > 1 and has_idle_core(_CORES)
        self._groups += 1
        return self._is_idle

    def _share(self, jobs: Iterable[Callable[[], None]]) -> None:
        if self._second is None or not self._second.is_alive:
            self._second = SharedWork("warpdata-copy")
        self._second.run(jobs)

    def _copy_all(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.held.copy(copy.start, copy.out)

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def close(self) -> None:
        """Stop the threads and give back files and buffers."""
        self.seek(0, 0)
        self._decoded.close()
        if self._second is not None:
            self._second.close()
        self._spans.close()


def _equal_step(rows: int, share_rows: int) -> int:
    """About as many rows, so that two threads have equally many equal parts: what is left over would make one wait."""
    return -(-rows // (2 * max(1, round(rows / (2 * share_rows)))))


def cut_copies(copies: list[Copy], step: int) -> list[Copy]:
    """The same copies in parts of at most `step` rows."""
    return [
        Copy(copy.held, copy.start + start, copy.out[start : start + step])
        for copy in copies
        for start in range(0, len(copy.out), step)
    ]
