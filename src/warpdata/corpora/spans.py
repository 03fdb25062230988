"""Stored rows of shards by span: views of mapped files, or ranges fetched by threads, checked against corpus.json."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import PerProcess
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.corpora.rows import Rows, decode_rows, raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.errors import ChecksumError, TruncatedError, UnavailableError, WarpError
from warpdata.formats.gamsae.shard import ShardInfo
from warpdata.stores.blobstore import RetryPolicy

MAX_OPEN_FILES = 32
STORE_READERS = 8
RETRIES = RetryPolicy(attempts=5, first_wait_s=0.05)
_SCRATCH_BYTES = 1 << 20
"""Rows that are decoded at a time: they stay in the cache of a processor."""


class RowSpan(NamedTuple):
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int


class ShardRows(ABC):
    """Reads spans of stored rows in any order; runs of rows are checked the first time they are read."""

    def __init__(self, shards: ShardSet, *, verify: bool) -> None:
        self._infos = shards.shards
        self._run_rows = shards.run_rows
        self._crcs = shards.run_crcs if verify else None
        self._checked = [np.zeros(len(crcs), np.bool_) for crcs in self._crcs or ()]

    @abstractmethod
    def prefetch(self, span: RowSpan) -> None:
        """Start to bring in a span that will be read soon."""

    @abstractmethod
    def release(self, span: RowSpan) -> None:
        """Free the memory of a span that was read or prefetched."""

    @abstractmethod
    def close(self) -> None:
        """Free files, threads and memory."""

    @abstractmethod
    def read(self, span: RowSpan) -> Rows:
        """The stored rows of a span, checked, valid until it is released."""

    def read_into(self, span: RowSpan, first: int, out: Rows) -> None:
        """Fill `out` with the values of rows of a span from `first` on."""
        decode_rows(self.read(span)[first - span.start :][: len(out)], out, self._infos[span.shard].dtype)

    def _read_checked(self, span: RowSpan, load: Callable[[RowSpan], Rows]) -> Rows:
        """The rows of a span; if some of its runs are unchecked, all of their rows are loaded and checked."""
        whole, rows_per_run = span, self._run_rows
        if not self._is_checked(span):
            end = min(-(-span.end // rows_per_run) * rows_per_run, self._infos[span.shard].n_rows)
            whole = RowSpan(span.shard, span.start // rows_per_run * rows_per_run, end)
        rows = load(whole)
        if whole is not span:
            self._check(whole, rows)
        return rows[span.start - whole.start : span.end - whole.start]

    def _is_checked(self, span: RowSpan) -> bool:
        """Whether no run of a span is to be checked any more."""
        if self._crcs is None or span.start == span.end:
            return True
        runs = slice(span.start // self._run_rows, -(-span.end // self._run_rows))
        return bool(self._checked[span.shard][runs].all())

    def _check(self, span: RowSpan, rows: Rows) -> None:
        """Compare whole runs with their CRC-32C and remember those that match."""
        assert self._crcs is not None
        checked = self._checked[span.shard]
        for start in range(span.start, span.end, self._run_rows):
            run, end = start // self._run_rows, min(start + self._run_rows, span.end)
            if not checked[run]:
                actual = crc32c(byte_view(rows[start - span.start : end - span.start]))
                expected = int(self._crcs[span.shard][run])
                if actual != expected:
                    raise ChecksumError(
                        f"crc32c mismatch in rows {start} to {end}: expected {expected:08x}, got {actual:08x}",
                        path=self._infos[span.shard].name,
                    )
                checked[run] = True


class MappedSpans(ShardRows):
    """Spans of local files: as views of memory mappings, or copied by positioned reads, which cost no page faults."""

    def __init__(self, shards: ShardSet, *, verify: bool) -> None:
        super().__init__(shards, verify=verify)
        self._open: OrderedDict[int, tuple[MmapRangeReader, Rows]] = OrderedDict()
        rows = max(1, _SCRATCH_BYTES // max(1, shards.row_bytes))
        self._scratch = np.empty((rows, shards.width), raw_dtype(shards.dtype))

    def read(self, span: RowSpan) -> Rows:
        """A view of the mapping; a truncated file is an error, not a signal."""
        return self._read_checked(span, self._view)

    def _view(self, span: RowSpan) -> Rows:
        reader, rows = self._mapped(span.shard)
        reader.check_not_truncated()
        return rows[span.start : span.end]

    def _mapped(self, shard: int) -> tuple[MmapRangeReader, Rows]:
        info, mapped = self._infos[shard], self._open.pop(shard, None)
        if mapped is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.popitem(last=False)
            reader = MmapRangeReader(info.name)
            data = reader.read(info.data_offset, info.row_offset(info.n_rows))
            rows = np.frombuffer(data, raw_dtype(info.dtype)).reshape(info.n_rows, info.width)
            mapped = reader, rows
        self._open[shard] = mapped
        return mapped

    def read_into(self, span: RowSpan, first: int, out: Rows) -> None:
        """Fill `out` with the values of rows of a span from `first` on."""
        if not self._is_checked(span):
            self.read(span)
            self.release(span)
        reader, info = self._mapped(span.shard)[0], self._infos[span.shard]
        if out.dtype == info.dtype.dtype and out.flags.c_contiguous:
            reader.read_into(info.row_offset(first), byte_view(out))
            return
        count = len(self._scratch)
        for start in range(0, len(out), count):
            part = out[start : start + count]
            rows = self._scratch[: len(part)]
            reader.read_into(info.row_offset(first + start), byte_view(rows))
            decode_rows(rows, part, info.dtype)

    def prefetch(self, span: RowSpan) -> None:
        """Ask the system to read the span into the page cache."""
        _will_read(self._infos[span.shard], span, lambda: self._mapped(span.shard)[0])

    def release(self, span: RowSpan) -> None:
        """Unmap the pages of the span; they stay in the page cache."""
        if span.shard in self._open:
            rows = self._open[span.shard][1][span.start : span.end]
            system.release_pages(rows.ctypes.data, rows.nbytes)

    def close(self) -> None:
        """Drop the mappings; one with a view left lives as long as the view."""
        self._open.clear()


def _will_read(info: ShardInfo, span: RowSpan, open_reader: Callable[[], RangeReader]) -> None:
    """Ask the system to read the bytes of a span into the page cache."""
    with suppress(WarpError):  # reading the span reports it
        reader = open_reader()
        if isinstance(reader, FileRangeReader):
            reader.will_read(info.row_offset(span.start), info.row_offset(span.end))


class FetchedSpans(ShardRows):
    """Spans copied through range readers and kept until they are released.

    Threads fetch from a store ahead of the caller; of local files (`is_local`) the page cache reads ahead.
    """

    def __init__(
        self,
        shards: ShardSet,
        open_reader: Callable[[int], RangeReader],
        *,
        verify: bool,
        is_local: bool = False,
    ) -> None:
        super().__init__(shards, verify=verify)
        self._open_reader = open_reader
        self._is_local = is_local
        self._threads = ThreadPool(STORE_READERS, "warp-rows")
        self._fetched: PerProcess[dict[RowSpan, Future[Rows]]] = PerProcess(dict)

    def read(self, span: RowSpan) -> Rows:
        """Wait for the span; if its prefetch failed or there was none, it is fetched now."""
        fetched = self._fetched()
        if span in fetched:
            try:
                return fetched[span].result()
            except UnavailableError:
                self.release(span)
            except BaseException:
                self.release(span)
                raise
        future: Future[Rows] = Future()
        future.set_result(self._fetch_checked(span))
        fetched[span] = future
        return future.result()

    def prefetch(self, span: RowSpan) -> None:
        """Start to bring in a span that will be read soon."""
        fetched = self._fetched()
        if self._is_local:
            _will_read(self._infos[span.shard], span, partial(self._open_reader, span.shard))
        elif span not in fetched:
            fetched[span] = self._threads.submit(self._fetch_checked, span)

    def _fetch_checked(self, span: RowSpan) -> Rows:
        reader = self._open_reader(span.shard)
        return retry_damaged(reader, lambda: self._read_checked(span, self._fetch))

    def _fetch(self, span: RowSpan) -> Rows:
        info = self._infos[span.shard]
        start, end = info.row_offset(span.start), info.row_offset(span.end)
        data = read_with_retries(partial(self._open_reader(span.shard).read, start, end))
        return np.frombuffer(data, raw_dtype(info.dtype)).reshape(span.end - span.start, info.width)

    def release(self, span: RowSpan) -> None:
        """Forget the span."""
        future = self._fetched().pop(span, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Stop the threads; the range readers stay open."""
        self._fetched.reset()
        self._threads.close()


def read_with_retries(read: Callable[[], memoryview]) -> memoryview:
    """Repeat a read while the store is unavailable: readers of callers need not do so themselves."""
    return RETRIES.run(read, lambda error, _: isinstance(error, TruncatedError))
