"""Spans as views of memory mappings: the default for local corpora."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdata.bytekit.dtype import DType
from warpdata.bytekit.io import pages
from warpdata.bytekit.process import system
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import decode_rows, raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.spans import Copier, RowSpan, now_truncated, open_shard, read_rows
from warpdata.formats.gamsae.reader import ShardInfo


@dataclass(frozen=True, slots=True, eq=False)
class _Mapping:
    fd: int
    rows: Rows
    address: int
    """Where the first row lies in memory."""
    dtype: DType
    stored: np.dtype[Any]
    offset: int
    """Where the first row lies in the file."""
    row_bytes: int


class MappedSpans:
    """Spans as views of memory mappings: populated ahead when they are not cached, unmapped behind."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards.shards
        self._open: dict[int, _Mapping] = {}
        self._probe = bytearray(1)

    def read_near(self, shard: int, row: int, out: Rows) -> int:
        """Take what the page cache has: the kernel copies it, unless it must be decoded."""
        mapping = self._open.get(shard) or self._mapping(shard)
        row_bytes = mapping.row_bytes
        if out.dtype == mapping.stored and out.flags.c_contiguous and out.nbytes:
            raw = out.view(mapping.rows.dtype)
            return system.read_cached(mapping.fd, raw.data, mapping.offset + row * row_bytes) // row_bytes
        end = row + len(out)
        if not system.read_cached(mapping.fd, self._probe, mapping.offset + end * row_bytes - 1):
            return 0
        decode_rows(mapping.rows[row:end], out, mapping.dtype)
        return end - row

    def passed(self, shard: int, start: int, end: int) -> None:
        """Unmap pages behind the cursor; drop the mapping after the last row."""
        if end >= self._shards[shard].n_rows:
            self._drop(shard)
        elif shard in self._open:
            mapping = self._open[shard]
            size = mapping.row_bytes
            pages.release(mapping.address + start * size, (end - start) * size)

    def is_near(self, span: RowSpan) -> bool:
        """True if the last byte is in the page cache: faults then cost less than a thread."""
        offset = self._shards[span.shard].row_offset(span.end) - 1
        return system.read_cached(self._mapping(span.shard).fd, self._probe, offset) == 1

    def load(self, span: RowSpan) -> Rows:
        """Hand out a view; a file that was cut is an error, not a signal."""
        mapping, info = self._mapping(span.shard), self._shards[span.shard]
        self._require(mapping, info, info.row_offset(span.end))
        return mapping.rows[span.start : span.end]

    def fetch(self, span: RowSpan) -> Rows:
        """Load a span that is not cached: fault it in with one call that reads in long runs."""
        view = self.load(span)
        address = self._mapping(span.shard).address
        pages.populate(address + span.start * view.strides[0], view.nbytes)
        return view

    def copier(self, span: RowSpan, rows: Rows) -> Copier:
        """Where no decoding is needed the kernel copies: it pays for no page of ours."""
        mapping, info = self._mapping(span.shard), self._shards[span.shard]
        stored, first, row_bytes = info.dtype, info.row_offset(span.start), info.row_bytes

        def copy(start: int, out: Rows) -> None:
            if out.dtype == stored.dtype and out.flags.c_contiguous:
                read_rows(mapping.fd, out, first + start * row_bytes, info)
            else:
                end = start + len(out)
                self._require(mapping, info, first + end * row_bytes)
                decode_rows(rows[start:end], out, stored)

        return copy

    @staticmethod
    def _require(mapping: _Mapping, info: ShardInfo, end: int) -> None:
        """Touching a page that was cut off would kill the process: look before every copy."""
        size = os.fstat(mapping.fd).st_size
        if size < end:
            raise now_truncated(info, end, size)

    def view(self, shard: int) -> Rows:
        """All rows of a shard as a view of its mapping."""
        return self._mapping(shard).rows

    def release(self, span: RowSpan, rows: Rows) -> None:
        """Unmap the pages of the span; drop the mapping after the last one."""
        address = self._mapping(span.shard).address
        pages.release(address + span.start * rows.strides[0], rows.nbytes)
        if span.end >= self._shards[span.shard].n_rows:
            self._drop(span.shard)

    def close(self) -> None:
        """Drop the mappings; one that still has a view lives until the view is gone."""
        for shard in list(self._open):
            self._drop(shard)

    def _drop(self, shard: int) -> None:
        mapping = self._open.pop(shard, None)
        if mapping is not None:
            os.close(mapping.fd)

    def _mapping(self, shard: int) -> _Mapping:
        found = self._open.get(shard)
        if found is None:
            made = _map_shard(self._shards[shard])
            found = self._open.setdefault(shard, made)
            if found is not made:  # the thread that shares the work was first
                os.close(made.fd)
        return found


def _map_shard(info: ShardInfo) -> _Mapping:
    """Map a shard file and see its payload as a matrix of raw elements."""
    fd = open_shard(info.name)
    try:
        size, end = os.fstat(fd).st_size, info.row_offset(info.n_rows)
        if size < end:
            raise now_truncated(info, end, size)
        mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else mmap.mmap(-1, 1)
        rows = _matrix(mapping, info)
        address = rows.ctypes.data
        return _Mapping(fd, rows, address, info.dtype, info.dtype.dtype, info.data_offset, info.row_bytes)
    except BaseException:
        os.close(fd)
        raise


def _matrix(mapping: mmap.mmap, info: ShardInfo) -> Rows:
    dtype = raw_dtype(info.dtype)
    if not info.payload_bytes:
        return np.zeros((info.n_rows, info.width), dtype)
    flat = np.frombuffer(mapping, dtype, count=info.n_rows * info.width, offset=info.data_offset)
    return flat.reshape(info.n_rows, info.width)
