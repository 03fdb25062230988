"""Spans read past the page cache: for corpora larger than memory, and for files that may change."""

from __future__ import annotations

import contextlib
import errno
import os

import numpy as np

from warpdata.bytekit.process import system
from warpdata.corpora import spans
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import FarSpans, RowSpan, now_truncated
from warpdata.errors import StoreError

DIRECT_ALIGN = 4096


class DirectSpans(FarSpans):
    """Spans read past the page cache into a few reused buffers: for corpora larger than memory."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._dtype = shards.dtype
        self._files: dict[int, int] = {}
        self._free: list[memoryview] = []
        self._is_direct = bool(system.DIRECT)

    def fetch(self, span: RowSpan) -> Rows:
        """Read the blocks of the disk that hold the span and see the rows inside them."""
        info = self._shards.shards[span.shard]
        start, end = info.row_offset(span.start), info.row_offset(span.end)
        low = start // DIRECT_ALIGN * DIRECT_ALIGN
        size = -(-(end - low) // DIRECT_ALIGN) * DIRECT_ALIGN
        buffer = self._buffer(size)
        got = self._fill(span.shard, buffer[:size], low)
        if low + got < end:
            raise now_truncated(info, end, low + got)
        count = (span.end - span.start) * info.width
        flat = np.frombuffer(buffer, raw_dtype(info.dtype), count=count, offset=start - low)
        return flat.reshape(span.end - span.start, info.width)

    def _fill(self, shard: int, view: memoryview, offset: int) -> int:
        got, fd, may_fall_back = 0, self._fd(shard), True
        while got < view.nbytes:
            try:
                count = system.read_into(fd, view[got:], offset + got)
            except OSError as error:
                if error.errno != errno.EINVAL or not may_fall_back:
                    raise StoreError(f"cannot read ({error.strerror})", path=self._name(shard)) from None
                self._is_direct = may_fall_back = False
                system.through_cache(fd)  # it stays open: other threads read from it
                continue
            if not count or (got + count) % DIRECT_ALIGN:
                return got + count
            got += count
        if not self._is_direct:
            system.was_read(fd, offset, view.nbytes)
        return got

    def release(self, span: RowSpan, rows: Rows) -> None:
        """Take the buffer back; close the file after its last span."""
        base = rows.base
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if isinstance(base, memoryview):
            self._free.append(base)
        if span.end >= self._shards.shards[span.shard].n_rows:
            self._close_file(span.shard)

    def close(self) -> None:
        """Close the files."""
        for shard in list(self._files):
            self._close_file(shard)
        self._free.clear()

    def _buffer(self, size: int) -> memoryview:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while self._free:
                buffer = self._free.pop()
                if buffer.nbytes >= size:
                    return buffer
        return system.in_large_pages(size)

    def _fd(self, shard: int) -> int:
        fd = self._files.get(shard)
        if fd is None:
            made = self._opened(shard)
            fd = self._files.setdefault(shard, made)
            if fd != made:  # another thread was first
                os.close(made)
        return fd

    def _opened(self, shard: int) -> int:
        """The file past the page cache, or, where the file system cannot, through it, dropped behind us."""
        if self._is_direct:
            try:
                return spans.open_shard(self._name(shard), system.DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_direct = False
        fd = spans.open_shard(self._name(shard))
        system.bypass_cache(fd)
        return fd

    def _close_file(self, shard: int) -> None:
        fd = self._files.pop(shard, None)
        if fd is not None:
            os.close(fd)

    def _name(self, shard: int) -> str:
        return self._shards.shards[shard].name
