"""Runs of rows read in any order into buffers that are given: what a shuffle reads with."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Protocol

import numpy as np

from warpdata.bytekit.process import system
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import RowSpan, SpanReader, check_runs, open_shard, read_rows

MAX_OPEN_FILES = 16


class RunReader(Protocol):
    """Fills a buffer with a run of rows."""

    def hint(self, span: RowSpan) -> None:
        """These rows will be asked for soon."""

    def read(self, span: RowSpan, out: Rows) -> None:
        """Fill `out` with the raw rows of the span."""

    def close(self) -> None:
        """Give back files and buffers."""


class FileRuns:
    """Runs through the page cache; the disk is told early what comes next."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards.shards
        self._open: OrderedDict[int, int] = OrderedDict()

    def hint(self, span: RowSpan) -> None:
        """Ask the system to start reading."""
        info = self._shards[span.shard]
        size = (span.end - span.start) * info.row_bytes
        system.will_read(self._fd(span.shard), info.row_offset(span.start), size)

    def read(self, span: RowSpan, out: Rows) -> None:
        """Let the kernel copy the rows into the buffer."""
        info = self._shards[span.shard]
        read_rows(self._fd(span.shard), out, info.row_offset(span.start), info)

    def _fd(self, shard: int) -> int:
        fd = self._open.pop(shard, None)
        if fd is None:
            if len(self._open) >= MAX_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            fd = open_shard(self._shards[shard].name)
            system.will_read_at_random(fd)
        self._open[shard] = fd
        return fd

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])


class FarRuns:
    """Runs that a span reader fetches past the page cache or from a store."""

    def __init__(self, spans: SpanReader) -> None:
        self._spans = spans

    def hint(self, span: RowSpan) -> None:
        """Nothing to announce: what fetches it waits for it."""

    def read(self, span: RowSpan, out: Rows) -> None:
        """Fetch the rows and copy them."""
        rows = self._spans.fetch(span)
        np.copyto(out, rows)
        self._spans.release(RowSpan(span.shard, span.start, span.start), rows)

    def close(self) -> None:
        """Pass it on."""
        self._spans.close()


class CheckedRuns:
    """Runs compared with corpus.json the first time any row of them is read by one of the readers that share `seen`."""

    def __init__(self, inner: RunReader, shards: ShardSet, seen: list[Rows]) -> None:
        self._inner = inner
        self._shards = shards
        self._seen = seen

    def hint(self, span: RowSpan) -> None:
        """Pass it on."""
        self._inner.hint(span)

    def read(self, span: RowSpan, out: Rows) -> None:
        """Read the span; a run that is only partly in it is read whole, once, to be checked."""
        self._inner.read(span, out)
        seen = self._seen[span.shard]
        check_runs(self._shards, span, out, seen)
        step = self._shards.run_rows
        for run in {span.start // step, max(span.start, span.end - 1) // step}:
            if run < len(seen) and not seen[run]:
                self._check_whole(span.shard, run)

    def _check_whole(self, shard: int, run: int) -> None:
        info, step = self._shards.shards[shard], self._shards.run_rows
        whole = RowSpan(shard, run * step, min((run + 1) * step, info.n_rows))
        rows = np.empty((whole.end - whole.start, info.width), raw_dtype(info.dtype))
        self._inner.read(whole, rows)
        check_runs(self._shards, whole, rows, self._seen[shard])

    def close(self) -> None:
        """Pass it on."""
        self._inner.close()
