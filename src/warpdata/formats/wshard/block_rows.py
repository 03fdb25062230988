"""Rows of a block that stays in its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.wshard.pieces import PieceChecksums
from warpdata.formats.wshard.schema import TensorSpec

if TYPE_CHECKING:
    from warpdata.formats.wshard.reader import ShardReader


_GAP_BYTES = 64 << 10


class BlockRows:
    """Rows of a block that stays in its shard."""

    is_stored = True
    _array: NDArray[Any] | None = None
    _mapped: NDArray[Any] | None = None
    _is_checked = False
    _pieces: PieceChecksums | None = None

    def __init__(self, shard: ShardReader, block: str, spec: TensorSpec, length: int) -> None:
        self._shard = shard
        self.block = block
        self.spec = spec
        self.length = length

    @property
    def shard(self) -> ShardReader:
        """Where the block lies."""
        return self._shard

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); all of them come verified against the checksum of the block."""
        if start == 0 and end == self.length:
            data = np.frombuffer(self._shard.whole(self.block), self.spec.dtype.dtype)
            return data.reshape(self.length, *self.spec.shape)
        if self._array is not None:
            self._shard.check_not_truncated()
            self._shard.verify_rows(self.block, self.spec.row_bytes, start, end)
            return self._array[start:end]
        if (mapped := self._shard.mapped(self.block)) is not None:
            self._array = np.frombuffer(mapped, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
            return self.rows(start, end)
        return self._shard.rows_as(self.block, self.spec, start, end)

    def read_windows(
        self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64] | None = None
    ) -> None:
        """Rows from each start on, as many as a row of `out` holds, into that row of it (or the one `places` names).

        All of them in one call: a raw block is copied from where it lies, a frame of a compressed one is decoded once.
        """
        width = out.shape[1]
        if len(starts) and (int(starts.min()) < 0 or int(starts.max()) + width > self.length):
            raise IndexError(
                f"windows of {width} rows outside the {self.length} rows of block {self.block!r}"
            )
        targets = range(len(starts)) if places is None else places.tolist()
        mapped = self.mapped_rows()
        if mapped is not None:
            rows, check = mapped
            for start, place in zip(starts.tolist(), targets, strict=True):
                if check is not None:
                    check(start, start + width)
                out[place] = rows[start : start + width]
            return
        if self._shard.is_seekable(self.block) and out.flags.c_contiguous:
            size = self.spec.row_bytes
            parts = out.reshape(len(out), -1).view(np.uint8)
            for start, place in zip(starts.tolist(), targets, strict=True):
                self._shard.copy_frames(self.block, start * size, parts[place])
            return
        for low, high, members in _near_together(starts, width, self._gap_rows()):
            run = self.rows(low, high)
            for member in members:
                start = int(starts[member]) - low
                out[targets[member]] = run[start : start + width]

    def rows_kept(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Single rows of a block in frames, which are kept for those that lie near; None of any other block."""
        if not self._shard.is_seekable(self.block):
            return None
        out = np.empty((len(rows), 1, *self.spec.shape), self.spec.dtype.dtype)
        self.read_windows(rows, out)
        return out[:, 0]

    def mapped_rows(self) -> tuple[NDArray[Any], Callable[[int, int], bool] | None] | None:
        """All rows where they lie, and what checks a run of them before it is used; None where they lie elsewhere."""
        if self._mapped is None:
            if not self.spec.row_bytes or not self.length:
                return None
            found = self._shard.mapped(self.block) or self._shard.small_view(self.block)
            if found is None:
                return None
            self._mapped = np.frombuffer(found, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
        else:
            self._shard.check_not_truncated()
        return self._mapped, None if self._is_checked else self._check

    def _check(self, start: int, end: int) -> bool:
        """Raise unless these rows are as they were written; returns whether that is known of all rows now."""
        if not self._is_checked and (self._pieces is None or not self._pieces.is_checked(start, end)):
            self._shard.verify_rows(self.block, self.spec.row_bytes, start, end)
            self._is_checked = self._shard.is_verified(self.block)
            self._pieces = None if self._is_checked else self._shard.pieces(self.block, self.spec.row_bytes)
        return self._is_checked

    @property
    def is_far(self) -> bool:
        """Whether reading waits for a network."""
        return not self._shard.is_local

    def bring(self, rows: NDArray[np.int64]) -> None:
        """Bring what holds these rows into a cache, if there is one and they lie far."""
        if self.is_far and self.spec.row_bytes:
            runs = [(low, high) for low, high, _ in _near_together(np.unique(rows), 1, self._gap_rows())]
            self._shard.bring(self.block, self.spec.row_bytes, runs)

    def _gap_rows(self) -> int:
        """How many rows between two windows are read along with them rather than apart."""
        return _GAP_BYTES // max(1, self.spec.row_bytes)

    def checksum(self) -> int:
        """CRC-32C of all rows, as the file states it."""
        return self._shard.block(self.block).crc32c

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_mapped": None, "_is_checked": False, "_pieces": None}


def _near_together(starts: NDArray[np.int64], width: int, gap: int) -> Iterator[tuple[int, int, list[int]]]:
    """Windows joined where they overlap or nearly touch: first row, end, and which of them lie inside."""
    order = np.argsort(starts, kind="stable")
    firsts = starts[order]
    cuts = np.flatnonzero(firsts[1:] > np.maximum.accumulate(firsts[:-1] + width) + gap) + 1
    for members in np.split(order, cuts):
        if len(members):
            yield int(starts[members[0]]), int(starts[members[-1]]) + width, members.tolist()
