"""Pieces as views of memory mappings: the default for local corpora."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpdata.bytekit import pages
from warpdata.bytekit.view import byte_view
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import decode_rows, raw_dtype
from warpdata.corpora.pieces import Piece, now_truncated, open_shard, read_exactly
from warpdata.corpora.shards import ShardSet
from warpdata.formats.gamsae.reader import ShardInfo

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Mapping:
    fd: int
    size: Callable[[], int]
    rows: Rows


class MappedPieces:
    """Pieces as views of memory mappings: populated ahead when they are not cached, unmapped behind."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards.shards
        self._open: dict[int, _Mapping] = {}
        self._probe = [bytearray(1)]

    def is_near(self, piece: Piece) -> bool:
        """True if the last byte is in the page cache: faults then cost less than a thread."""
        offset = self._shards[piece.shard].row_offset(piece.end) - 1
        try:
            return os.preadv(self._mapping(piece.shard).fd, self._probe, max(0, offset), _NOWAIT) == 1
        except OSError:
            return False

    def load(self, piece: Piece) -> Rows:
        """Hand out a view; a file that was cut is an error, not a signal."""
        mapping, info = self._mapping(piece.shard), self._shards[piece.shard]
        self._require(mapping, info, piece.end)
        return mapping.rows[piece.start : piece.end]

    def fetch(self, piece: Piece) -> Rows:
        """Load a piece that is not cached: fault it in with one call that reads in long runs."""
        view = self.load(piece)
        pages.populate(view.ctypes.data, view.nbytes)
        return view

    def copy(self, piece: Piece, rows: Rows, start: int, out: Rows) -> None:
        """Where no decoding is needed let the kernel copy: it pays for no page of ours."""
        info = self._shards[piece.shard]
        if out.dtype == info.dtype.dtype and out.flags.c_contiguous and out.nbytes:
            offset = info.row_offset(piece.start + start)
            read_exactly(self._mapping(piece.shard).fd, byte_view(out), offset, info)
        else:
            self._require(self._mapping(piece.shard), info, piece.start + start + len(out))
            decode_rows(rows[start : start + len(out)], out, info.dtype)

    @staticmethod
    def _require(mapping: _Mapping, info: ShardInfo, end_row: int) -> None:
        """Touching a page that was cut off would kill the process: look before every copy."""
        end, size = info.row_offset(end_row), mapping.size()
        if size < end:
            raise now_truncated(info, end, size)

    def view(self, shard: int) -> Rows:
        """All rows of a shard as a view of its mapping."""
        return self._mapping(shard).rows

    def release(self, piece: Piece, rows: Rows) -> None:
        """Unmap the pages of the piece; drop the mapping after the last one."""
        pages.release(rows.ctypes.data, rows.nbytes)
        if piece.end >= self._shards[piece.shard].n_rows:
            self._drop(piece.shard)

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
            found = self._open[shard] = _map_shard(self._shards[shard])
        return found


def _map_shard(info: ShardInfo) -> _Mapping:
    """Map a shard file and see its payload as a matrix of raw elements."""
    fd = open_shard(info.name)
    try:
        size, end = os.fstat(fd).st_size, info.row_offset(info.n_rows)
        if size < end:
            raise now_truncated(info, end, size)
        mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else mmap.mmap(-1, 1)
        return _Mapping(fd, lambda: os.fstat(fd).st_size, _matrix(mapping, info))
    except BaseException:
        os.close(fd)
        raise


def _matrix(mapping: mmap.mmap, info: ShardInfo) -> Rows:
    dtype = raw_dtype(info.dtype)
    if not info.payload_bytes:
        return np.zeros((info.n_rows, info.width), dtype)
    flat = np.frombuffer(mapping, dtype, count=info.n_rows * info.width, offset=info.data_offset)
    return flat.reshape(info.n_rows, info.width)
