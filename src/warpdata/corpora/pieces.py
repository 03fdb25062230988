"""Runs of rows as they come off the disk: from a mapping, past the page cache, or from a range reader."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from warpdata.bytekit import pages
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.ranges import RangeReader
from warpdata.bytekit.view import byte_view
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import decode_rows, raw_dtype
from warpdata.corpora.shards import ShardSet
from warpdata.errors import BlobNotFoundError, ChecksumError, StoreError, TruncatedError, UnavailableError
from warpdata.formats.gamsae.reader import ShardInfo

DIRECT_ALIGN = 4096
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, end) of one shard."""

    shard: int
    start: int
    end: int


class PieceReader(Protocol):
    """Brings pieces in, and takes them back when they have been read."""

    def is_near(self, piece: Piece) -> bool:
        """True if `load` would not wait for anything, so that no thread is needed for it."""

    def load(self, piece: Piece) -> Rows:
        """The raw rows of a piece that is near."""

    def fetch(self, piece: Piece) -> Rows:
        """The raw rows of a piece that is not; called from the read-ahead thread."""

    def copy(self, piece: Piece, rows: Rows, start: int, out: Rows) -> None:
        """Decode rows of a loaded piece, from its row `start` on, into `out`."""

    def release(self, piece: Piece, rows: Rows) -> None:
        """The piece is behind the cursor."""

    def close(self) -> None:
        """Give back files and buffers."""


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


class DirectPieces:
    """Pieces read past the page cache into a few reused buffers: for corpora larger than memory."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._dtype = shards.dtype
        self._files: dict[int, int] = {}
        self._free: list[mmap.mmap] = []
        self._is_direct = hasattr(os, "O_DIRECT")

    def is_near(self, piece: Piece) -> bool:  # noqa: ARG002
        """Never: every piece comes from the disk."""
        return False

    def copy(self, piece: Piece, rows: Rows, start: int, out: Rows) -> None:  # noqa: ARG002
        """Decode rows of the piece."""
        decode_rows(rows[start : start + len(out)], out, self._dtype)

    def load(self, piece: Piece) -> Rows:
        """The same as `fetch`."""
        return self.fetch(piece)

    def fetch(self, piece: Piece) -> Rows:
        """Read the blocks of the disk that hold the piece and see the rows inside them."""
        info = self._shards.shards[piece.shard]
        start, end = info.row_offset(piece.start), info.row_offset(piece.end)
        low = start // DIRECT_ALIGN * DIRECT_ALIGN
        size = -(-(end - low) // DIRECT_ALIGN) * DIRECT_ALIGN
        buffer = self._buffer(size)
        got = self._fill(piece.shard, memoryview(buffer)[:size], low)
        if low + got < end:
            raise now_truncated(info, end, low + got)
        count = (piece.end - piece.start) * info.width
        flat = np.frombuffer(buffer, raw_dtype(info.dtype), count=count, offset=start - low)
        return flat.reshape(piece.end - piece.start, info.width)

    def _fill(self, shard: int, view: memoryview, offset: int) -> int:
        got = 0
        while got < view.nbytes:
            try:
                count = os.preadv(self._fd(shard), [view[got:]], offset + got)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise StoreError(f"cannot read ({error.strerror})", path=self._name(shard)) from None
                self._fall_back()
                continue
            if not count or (got + count) % DIRECT_ALIGN:
                return got + count
            got += count
        if not self._is_direct:
            os.posix_fadvise(self._fd(shard), offset, view.nbytes, os.POSIX_FADV_DONTNEED)
        return got

    def release(self, piece: Piece, rows: Rows) -> None:
        """Take the buffer back; close the file after its last piece."""
        base = rows.base
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if isinstance(base, memoryview):
            base = base.obj
        if isinstance(base, mmap.mmap):
            self._free.append(base)
        if piece.end >= self._shards.shards[piece.shard].n_rows:
            self._close_file(piece.shard)

    def close(self) -> None:
        """Close the files."""
        for shard in list(self._files):
            self._close_file(shard)
        self._free.clear()

    def _buffer(self, size: int) -> mmap.mmap:
        while self._free:
            buffer = self._free.pop()
            if len(buffer) >= size:
                return buffer
        return mmap.mmap(-1, max(size, DIRECT_ALIGN))

    def _fd(self, shard: int) -> int:
        fd = self._files.get(shard)
        if fd is None:
            flags = os.O_DIRECT if self._is_direct else 0
            try:
                fd = open_shard(self._name(shard), flags)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._fall_back()
                return self._fd(shard)
            self._files[shard] = fd
        return fd

    def _fall_back(self) -> None:
        """This file system has no direct reads: go through the page cache and drop it behind us."""
        self._is_direct = False
        self.close()

    def _close_file(self, shard: int) -> None:
        fd = self._files.pop(shard, None)
        if fd is not None:
            os.close(fd)

    def _name(self, shard: int) -> str:
        return self._shards.shards[shard].name


class RangedPieces:
    """Pieces fetched through range readers; what fails for a moment is tried again, never skipped."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], *, retries: int = 4, backoff_s: float = 0.05
    ) -> None:
        self._shards = shards.shards
        self._dtype = shards.dtype
        self._readers = readers
        self._retries = retries
        self._backoff_s = backoff_s

    def is_near(self, piece: Piece) -> bool:  # noqa: ARG002
        """Never: a range may come from far away."""
        return False

    def copy(self, piece: Piece, rows: Rows, start: int, out: Rows) -> None:  # noqa: ARG002
        """Decode rows of the piece."""
        decode_rows(rows[start : start + len(out)], out, self._dtype)

    def load(self, piece: Piece) -> Rows:
        """The same as `fetch`."""
        return self.fetch(piece)

    def fetch(self, piece: Piece) -> Rows:
        """Fetch exactly the bytes of the piece."""
        info = self._shards[piece.shard]
        start, end = info.row_offset(piece.start), info.row_offset(piece.end)
        data = self._read(self._readers[piece.shard], start, end)
        return np.frombuffer(data, raw_dtype(info.dtype)).reshape(piece.end - piece.start, info.width)

    def _read(self, reader: RangeReader, start: int, end: int) -> memoryview:
        return read_with_retries(lambda: reader.read(start, end), self._retries, self._backoff_s)

    def release(self, piece: Piece, rows: Rows) -> None:
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


class CheckedPieces:
    """Pieces whose runs are compared with corpus.json the first time they are read."""

    def __init__(self, inner: PieceReader, shards: ShardSet) -> None:
        assert shards.run_crcs is not None
        self._inner = inner
        self._shards = shards
        self._seen = [np.zeros(len(crcs), np.bool_) for crcs in shards.run_crcs]

    def is_near(self, piece: Piece) -> bool:
        """True if there is nothing to read from the disk and nothing left to check."""
        step = self._shards.run_rows
        seen = self._seen[piece.shard][piece.start // step : -(-piece.end // step)]
        return bool(seen.all()) and self._inner.is_near(piece)

    def load(self, piece: Piece) -> Rows:
        """Everything in it was checked before."""
        return self._inner.load(piece)

    def fetch(self, piece: Piece) -> Rows:
        """Load the piece and check every run of it not checked before."""
        rows = self._inner.fetch(piece)
        check_runs(self._shards, piece, rows, self._seen[piece.shard])
        return rows

    def copy(self, piece: Piece, rows: Rows, start: int, out: Rows) -> None:
        """Pass it on."""
        self._inner.copy(piece, rows, start, out)

    def release(self, piece: Piece, rows: Rows) -> None:
        """Pass it on."""
        self._inner.release(piece, rows)

    def close(self) -> None:
        """Pass it on."""
        self._inner.close()


def check_runs(shards: ShardSet, piece: Piece, rows: Rows, seen: Rows) -> None:
    """Compare the whole runs inside a piece with their CRC32C, and remember those that passed."""
    assert shards.run_crcs is not None
    step, info = shards.run_rows, shards.shards[piece.shard]
    for run in range(-(-piece.start // step), len(seen)):
        start, end = run * step, min((run + 1) * step, info.n_rows)
        if end > piece.end:
            break
        if seen[run]:
            continue
        found = crc32c(byte_view(rows[start - piece.start : end - piece.start]))
        if found != int(shards.run_crcs[piece.shard][run]):
            raise ChecksumError(f"rows {start} to {end} of the shard were changed", path=info.name)
        seen[run] = True


def open_shard(path: str, flags: int = 0) -> int:
    """A descriptor of a shard file, or our error."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        raise BlobNotFoundError("no such shard", path=path) from None


def read_exactly(fd: int, view: memoryview, offset: int, info: ShardInfo) -> None:
    """Fill `view` with the bytes of a file from `offset` on, or say that it was cut."""
    end = offset + view.nbytes
    while view.nbytes:
        try:
            count = os.preadv(fd, [view], end - view.nbytes)
        except OSError as error:
            raise StoreError(f"cannot read ({error.strerror})", path=info.name) from None
        if not count:
            raise now_truncated(info, end, end - view.nbytes)
        view = view[count:]


def now_truncated(info: ShardInfo, expected: int, actual: int) -> TruncatedError:
    """The file became shorter after its header was read."""
    fact = f"shard was cut after it was opened: {expected} bytes are needed, file has {actual}"
    return TruncatedError(fact, expected=expected, actual=actual, path=info.name)
