"""Piece checksums: verify a window of a large raw block without reading all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c, join_crc32c
from warpdata.errors import ChecksumError, CorruptLayoutError
from warpdata.formats.wshard import layout

if TYPE_CHECKING:
    from typing import Self


def rows_per_piece(row_bytes: int) -> int:
    """How many rows one checksum covers."""
    return max(1, layout.PIECE_BYTES // max(1, row_bytes))


class PieceChecksums:
    """One CRC32C per piece of a raw block, and which pieces this reader has checked already."""

    def __init__(self, rows: int, checksums: NDArray[np.uint32]) -> None:
        self.rows = rows
        self.checksums = checksums
        self._checked = bytearray(len(checksums))

    @classmethod
    def unpack(cls, data: memoryview, path: str) -> Self:
        """Read an `aux/crc32c/…` block."""
        size = layout.PIECES_HEADER.size
        if len(data) < size or len(data) % 4:
            raise CorruptLayoutError("a list of piece checksums has an odd size", path=path)
        (rows,) = layout.PIECES_HEADER.unpack(data[:size])
        if rows == 0:
            raise CorruptLayoutError("a list of piece checksums has pieces of no rows", path=path)
        return cls(rows, np.frombuffer(data[size:], "<u4"))

    def pack(self) -> bytes:
        """The bytes of an `aux/crc32c/…` block."""
        return layout.PIECES_HEADER.pack(self.rows) + self.checksums.astype("<u4").tobytes()

    def is_checked(self, start_row: int, end_row: int) -> bool:
        """Whether every piece of these rows was checked by this reader."""
        return self._checked.find(0, start_row // self.rows, -(-end_row // self.rows)) < 0

    @property
    def is_all_checked(self) -> bool:
        """Whether every piece was checked by this reader."""
        return self._checked.find(0) < 0

    def joined(self, piece_bytes: int, raw_size: int) -> int:
        """The checksum of the whole block, from those of its pieces."""
        *full, last = self.checksums.tolist()
        whole = 0
        for checksum in full:
            whole = join_crc32c(whole, checksum, piece_bytes)
        return join_crc32c(whole, last, raw_size - len(full) * piece_bytes)

    def span(self, start: int, end: int, row_bytes: int, raw_size: int) -> tuple[int, int]:
        """The bytes to read so that [start, end) is covered by whole unchecked pieces."""
        piece = self.rows * row_bytes
        first, last = start // piece, -(-end // piece)
        if self._checked.find(0, first, last) < 0:
            return start, end
        return first * piece, min(last * piece, raw_size)

    def check(self, data: memoryview, offset: int, row_bytes: int, block: str, path: str) -> None:
        """Verify the pieces that `data`, which begins at `offset` of the block, covers."""
        piece = self.rows * row_bytes
        if offset % piece:
            return
        for start in range(0, len(data), piece):
            index = (offset + start) // piece
            if not self._checked[index]:
                if crc32c(data[start : start + piece]) != self.checksums[index]:
                    raise ChecksumError(f"piece {index} does not match its checksum", block=block, path=path)
                self._checked[index] = 1
