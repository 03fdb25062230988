"""Runs of rows as they come off the disk: what every reader of them keeps to, and the checks they share."""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.dtype import DType
from warpdata.bytekit.io.ranges import read_at
from warpdata.bytekit.view import byte_view
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import decode_part, raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.errors import BlobNotFoundError, ChecksumError, PermissionError_, StoreError, TruncatedError
from warpdata.formats.gamsae.reader import ShardInfo

Copier = Callable[[int, Rows], None]
"""Fills its second argument with decoded rows of a span, from the row of the first on."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int


class SpanReader(Protocol):
    """Brings spans in, and takes them back when they have been read."""

    def read_near(self, shard: int, row: int, out: Rows) -> int:
        """Fill `out` as far as that needs no waiting; how many rows came."""

    def passed(self, shard: int, start: int, end: int) -> None:
        """Rows [start, end) that were read near are behind the cursor."""

    def is_near(self, span: RowSpan) -> bool:
        """True if `load` would not wait for anything, so that no thread is needed for it."""

    def load(self, span: RowSpan) -> Rows:
        """The raw rows of a span that is near."""

    def fetch(self, span: RowSpan) -> Rows:
        """The raw rows of a span that is not; called from the threads that read ahead, several at a time."""

    def copier(self, span: RowSpan, rows: Rows) -> Copier:
        """What copies rows out of a loaded span: made once for many batches."""

    def release(self, span: RowSpan, rows: Rows) -> None:
        """The span is behind the cursor."""

    def close(self) -> None:
        """Give back files and buffers."""


class FarSpans(ABC):
    """A reader of which nothing is near: every span comes from a disk or a network, and is decoded as it is copied."""

    _dtype: DType

    def read_near(self, shard: int, row: int, out: Rows) -> int:  # noqa: ARG002
        """Nothing is near."""
        return 0

    def passed(self, shard: int, start: int, end: int) -> None:  # noqa: B027
        """Nothing was read near."""

    def is_near(self, span: RowSpan) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def copier(self, span: RowSpan, rows: Rows) -> Copier:  # noqa: ARG002
        """Decode rows of the span."""
        return partial(decode_part, rows, self._dtype)

    def load(self, span: RowSpan) -> Rows:
        """The same as `fetch`."""
        return self.fetch(span)

    @abstractmethod
    def fetch(self, span: RowSpan) -> Rows:
        """Bring the rows of a span."""


class CheckedSpans:
    """Spans whose runs are compared with corpus.json the first time they are read."""

    def __init__(self, inner: SpanReader, shards: ShardSet) -> None:
        assert shards.run_crcs is not None
        self._inner = inner
        self._shards = shards
        self._seen = [np.zeros(len(crcs), np.bool_) for crcs in shards.run_crcs]

    def read_near(self, shard: int, row: int, out: Rows) -> int:
        """Pass it on where nothing is left to check."""
        return self._inner.read_near(shard, row, out) if self._is_seen(shard, row, row + len(out)) else 0

    def passed(self, shard: int, start: int, end: int) -> None:
        """Pass it on."""
        self._inner.passed(shard, start, end)

    def is_near(self, span: RowSpan) -> bool:
        """True if there is nothing to read from the disk and nothing left to check."""
        return self._is_seen(span.shard, span.start, span.end) and self._inner.is_near(span)

    def _is_seen(self, shard: int, start: int, end: int) -> bool:
        step = self._shards.run_rows
        return bool(self._seen[shard][start // step : -(-end // step)].all())

    def load(self, span: RowSpan) -> Rows:
        """Everything in it was checked before."""
        return self._inner.load(span)

    def fetch(self, span: RowSpan) -> Rows:
        """Load the span and check every run of it not checked before."""
        rows = self._inner.load(span) if self._inner.is_near(span) else self._inner.fetch(span)
        check_runs(self._shards, span, rows, self._seen[span.shard])
        return rows

    def copier(self, span: RowSpan, rows: Rows) -> Copier:
        """Pass it on."""
        return self._inner.copier(span, rows)

    def release(self, span: RowSpan, rows: Rows) -> None:
        """Pass it on."""
        self._inner.release(span, rows)

    def close(self) -> None:
        """Pass it on."""
        self._inner.close()


def check_runs(shards: ShardSet, span: RowSpan, rows: Rows, seen: Rows) -> None:
    """Compare the whole runs inside a span with their CRC32C, and remember those that passed."""
    assert shards.run_crcs is not None
    step, info = shards.run_rows, shards.shards[span.shard]
    for run in range(-(-span.start // step), len(seen)):
        start, end = run * step, min((run + 1) * step, info.n_rows)
        if end > span.end:
            break
        if seen[run]:
            continue
        found = crc32c(byte_view(rows[start - span.start : end - span.start]))
        if found != int(shards.run_crcs[span.shard][run]):
            raise ChecksumError(f"rows {start} to {end} of the shard were changed", path=info.name)
        seen[run] = True


def open_shard(path: str, flags: int = 0) -> int:
    """A descriptor of a shard file, or our error."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        raise BlobNotFoundError("no such shard", path=path) from None
    except PermissionError:
        raise PermissionError_("this shard may not be read", path=path) from None
    except OSError as error:
        if flags and error.errno == errno.EINVAL:
            raise  # the file system has no such way of reading
        raise StoreError(f"cannot open ({error.strerror})", path=path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError("this shard is no file any more", path=path)
    return fd


def read_rows(fd: int, out: Rows, offset: int, info: ShardInfo) -> None:
    """Let the kernel fill a contiguous matrix with the bytes of a file from `offset` on, or say that it was cut."""
    raw = out.view(raw_dtype(info.dtype))  # bf16 is no buffer by itself
    try:
        count = read_at(fd, raw, offset)
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=info.name) from None
    if count != out.nbytes:
        raise now_truncated(info, offset + out.nbytes, offset + count)


def now_truncated(info: ShardInfo, expected: int, actual: int) -> TruncatedError:
    """The file became shorter after its header was read."""
    fact = f"shard was cut after it was opened: {expected} bytes are needed, file has {actual}"
    return TruncatedError(fact, expected=expected, actual=actual, path=info.name)
