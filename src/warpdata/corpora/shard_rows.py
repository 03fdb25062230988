"""Stored rows of shards: views of mapped files, or ranges of a store, each run checked once against corpus.json."""

from __future__ import annotations

import mmap
import os
import stat
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import numpy as np

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import read_at
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import PerProcess
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.corpora.batch import Rows, decode_rows, raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.formats.gamsae.reader import ShardInfo

MAX_OPEN_FILES = 32
STORE_READERS = 8
RETRIES = 4
BACKOFF_S = 0.05


class RowSpan(NamedTuple):
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int


class ShardRows(ABC):
    """Reads spans of stored rows in any order."""

    def __init__(self, shards: ShardSet, *, verify: bool) -> None:
        self._infos = shards.shards
        self._run_rows = shards.run_rows
        self._crcs = shards.run_crcs if verify else None
        self._checked = [np.zeros(len(crcs), np.bool_) for crcs in self._crcs or ()]

    @abstractmethod
    def read(self, span: RowSpan) -> Rows:
        """The stored rows of a span, valid until it is released."""

    def decode(self, span: RowSpan, start: int, out: Rows) -> None:
        """Fill `out` with decoded rows of a span, beginning at row `start` of the shard."""
        stored = self.read(span)[start - span.start :][: len(out)]
        decode_rows(stored, out, self._infos[span.shard].dtype)

    @abstractmethod
    def prefetch(self, span: RowSpan) -> None:
        """Start to bring in a span that will be read soon."""

    @abstractmethod
    def release(self, span: RowSpan) -> None:
        """Free the memory of a span that was read or prefetched."""

    @abstractmethod
    def close(self) -> None:
        """Free files, threads and memory."""

    def _unchecked_runs(self, span: RowSpan) -> RowSpan | None:
        """The span extended to whole checksummed runs; None where all of them were checked before."""
        if self._crcs is None or span.start == span.end:
            return None
        first, last = span.start // self._run_rows, -(-span.end // self._run_rows)
        if self._checked[span.shard][first:last].all():
            return None
        end = min(last * self._run_rows, self._infos[span.shard].n_rows)
        return RowSpan(span.shard, first * self._run_rows, end)

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
    """Spans as views of memory mappings; the page cache holds what was prefetched."""

    def __init__(self, shards: ShardSet, *, verify: bool) -> None:
        super().__init__(shards, verify=verify)
        self._open: OrderedDict[int, _Mapping] = OrderedDict()

    def read(self, span: RowSpan) -> Rows:
        """A view of the mapping; a file that was truncated is an error, not a signal."""
        mapping = self._mapping(span.shard)
        whole = self._unchecked_runs(span)
        mapping.require((whole or span).end)
        if whole is not None:
            self._check(whole, mapping.rows[whole.start : whole.end])
        return mapping.rows[span.start : span.end]

    def decode(self, span: RowSpan, start: int, out: Rows) -> None:
        """Fill `out`; the kernel copies checked rows of the same type, which maps no page."""
        is_same = out.dtype == self._infos[span.shard].dtype.dtype and out.flags.c_contiguous
        if is_same and self._unchecked_runs(span) is None:
            mapping = self._mapping(span.shard)
            mapping.copy(RowSpan(span.shard, start, start + len(out)), out.view(mapping.rows.dtype))
        else:
            super().decode(span, start, out)

    def prefetch(self, span: RowSpan) -> None:
        """Ask the system to read the span into the page cache."""
        self._mapping(span.shard).will_read(span)

    def release(self, span: RowSpan) -> None:
        """Unmap the pages of the span; they stay in the page cache."""
        mapping = self._open.get(span.shard)
        if mapping is not None:
            mapping.release(span)

    def close(self) -> None:
        """Drop the mappings; one with a view left lives as long as the view."""
        self._open.clear()

    def _mapping(self, shard: int) -> _Mapping:
        mapping = self._open.pop(shard, None)
        if mapping is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.popitem(last=False)
            mapping = _Mapping(self._infos[shard])
        self._open[shard] = mapping
        return mapping


class CopiedSpans(MappedSpans):
    """Spans copied from files, for spans in any order: mapped pages around them would pile up in memory."""

    def __init__(self, shards: ShardSet, *, verify: bool) -> None:
        super().__init__(shards, verify=verify)
        self._copies: dict[RowSpan, Rows] = {}

    def read(self, span: RowSpan) -> Rows:
        """A copy of the rows, kept until the span is released."""
        rows = self._copies.get(span)
        if rows is None:
            mapping = self._mapping(span.shard)
            rows, whole = mapping.copy(span), self._unchecked_runs(span)
            if whole is not None:
                self._check(whole, rows if whole == span else mapping.copy(whole))
            self._copies[span] = rows
        return rows

    def release(self, span: RowSpan) -> None:
        """Free the copy."""
        self._copies.pop(span, None)

    def close(self) -> None:
        """Free files and copies."""
        super().close()
        self._copies.clear()


class _Mapping:
    """One shard file in memory."""

    def __init__(self, info: ShardInfo) -> None:
        self._info = info
        self._fd = _open_file(info.name)
        self.require(info.n_rows)
        dtype, size = raw_dtype(info.dtype), os.fstat(self._fd).st_size
        self.rows: Rows = np.zeros((info.n_rows, info.width), dtype)
        if info.payload_bytes:
            try:
                data = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
            except OSError as error:
                raise StoreError(f"cannot map the shard ({error.strerror})", path=info.name) from None
            flat = np.frombuffer(data, dtype, count=info.n_rows * info.width, offset=info.data_offset)
            self.rows = flat.reshape(info.n_rows, info.width)
        self._address = self.rows.ctypes.data

    def require(self, n_rows: int) -> None:
        """TruncatedError if the file ends before this row: touching a missing page would kill the process."""
        self._require_bytes(self._info.row_offset(n_rows), os.fstat(self._fd).st_size)

    def _require_bytes(self, expected: int, actual: int) -> None:
        if actual < expected:
            raise TruncatedError(
                f"shard was truncated after it was opened: expected {expected} bytes, file has {actual}",
                expected=expected,
                actual=actual,
                path=self._info.name,
            )

    def copy(self, span: RowSpan, out: Rows | None = None) -> Rows:
        """The stored rows of a span in memory of their own, or in `out`."""
        rows = np.empty((span.end - span.start, self._info.width), self.rows.dtype) if out is None else out
        start = self._info.row_offset(span.start)
        try:
            count = read_at(self._fd, rows, start)
        except OSError as error:
            raise StoreError(f"cannot read ({error.strerror})", path=self._info.name) from None
        self._require_bytes(start + rows.nbytes, start + count)
        return rows

    def will_read(self, span: RowSpan) -> None:
        """Tell the system which bytes are needed soon."""
        size = (span.end - span.start) * self._info.row_bytes
        system.will_read(self._fd, self._info.row_offset(span.start), size)

    def release(self, span: RowSpan) -> None:
        """Unmap the pages of a span."""
        size = self._info.row_bytes
        system.release_pages(self._address + span.start * size, (span.end - span.start) * size)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter the module `os` may be gone.
        if hasattr(self, "_fd"):
            close(self._fd)


def _open_file(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BlobNotFoundError("no such shard", path=path) from None
    except PermissionError:
        raise PermissionError_("this shard may not be read", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot open the shard ({error.strerror})", path=path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError("this shard is not a file any more", path=path)
    return fd


class StoreSpans(ShardRows):
    """Spans fetched through range readers by threads, kept until they are released."""

    def __init__(self, shards: ShardSet, readers: Sequence[RangeReader], *, verify: bool) -> None:
        super().__init__(shards, verify=verify)
        self._readers = readers
        self._threads = ThreadPool(STORE_READERS, "warp-rows")
        self._spans: PerProcess[dict[RowSpan, Future[Rows]]] = PerProcess(dict)

    def read(self, span: RowSpan) -> Rows:
        """Wait for the span; one that could not be prefetched is fetched once more."""
        for attempt in range(2):
            self.prefetch(span)
            try:
                return self._spans()[span].result()
            except BaseException as error:
                self.release(span)
                if attempt or not isinstance(error, UnavailableError):
                    raise
        raise AssertionError("unreachable")

    def prefetch(self, span: RowSpan) -> None:
        """Fetch the span in a thread."""
        spans = self._spans()
        if span not in spans:
            spans[span] = self._threads.submit(self._fetch, span)

    def _fetch(self, span: RowSpan) -> Rows:
        whole = self._unchecked_runs(span)
        wanted = whole or span
        info = self._infos[span.shard]
        start, end = info.row_offset(wanted.start), info.row_offset(wanted.end)
        data = read_with_retries(partial(self._readers[span.shard].read, start, end))
        rows = np.frombuffer(data, raw_dtype(info.dtype)).reshape(wanted.end - wanted.start, info.width)
        if whole is not None:
            self._check(whole, rows)
        return rows[span.start - wanted.start : span.end - wanted.start]

    def release(self, span: RowSpan) -> None:
        """Forget the span."""
        future = self._spans().pop(span, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Stop the threads; the range readers stay open."""
        self._spans.reset()
        self._threads.close()


def read_with_retries(read: Callable[[], memoryview]) -> memoryview:
    """Repeat a read while the store is unavailable, waiting longer each time."""
    for attempt in range(RETRIES):
        try:
            return read()
        except UnavailableError:
            time.sleep(BACKOFF_S * 2**attempt)
    return read()
