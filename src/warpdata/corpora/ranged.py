"""Spans fetched through range readers: a store, memory, or files by positioned reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from warpdata.bytekit.ranges import RangeReader
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import FarSpans, RowSpan
from warpdata.errors import UnavailableError


class RangedSpans(FarSpans):
    """Spans fetched through range readers; what fails for a moment is tried again, never skipped."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], *, retries: int = 4, backoff_s: float = 0.05
    ) -> None:
        self._shards = shards.shards
        self._dtype = shards.dtype
        self._readers = readers
        self._retries = retries
        self._backoff_s = backoff_s

    def fetch(self, span: RowSpan) -> Rows:
        """Fetch exactly the bytes of the span."""
        info = self._shards[span.shard]
        start, end = info.row_offset(span.start), info.row_offset(span.end)
        data = self._read(self._readers[span.shard], start, end)
        return np.frombuffer(data, raw_dtype(info.dtype)).reshape(span.end - span.start, info.width)

    def _read(self, reader: RangeReader, start: int, end: int) -> memoryview:
        return read_with_retries(lambda: reader.read(start, end), self._retries, self._backoff_s)

    def release(self, span: RowSpan, rows: Rows) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """The readers belong to whoever opened them."""


def read_with_retries(read: Callable[[], memoryview], retries: int, backoff_s: float) -> memoryview:
    """Try a read again while the store is unavailable, waiting longer each time."""
    for attempt in range(retries):
        try:
            return read()
        except UnavailableError:
            time.sleep(backoff_s * 2**attempt)
    return read()
