"""The frames of another program's videos copied into a new file: read once for the copy, the checksums and the hash."""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left, bisect_right
from typing import BinaryIO

import numpy as np

from warpdata.bytekit.checksum import RunningXxh3128, crc32c
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.episodes.forms.content_sums import ContentSum
from warpdata.episodes.sources.encoded import CameraCopy, Stretches
from warpdata.formats.episodedir.frame_index import FrameIndex

_PIECE_BYTES = 512 << 10
"""What is hashed and written while it is still in the cache of the processor."""


def copy_camera(copy: CameraCopy, target: str | os.PathLike[str]) -> tuple[FrameIndex, ContentSum]:
    """Write the video of a camera as a new file; returns its index and the sum of its frames."""
    digest = RunningXxh3128()
    sums: list[int] = []
    with map_os_errors(target), open(target, "xb") as out:
        out.write(copy.head)
        for each in copy.stretches:
            sums += _copy(each, out, digest)
        out.write(copy.tail)
    total = sum([int(each.size.sum()) for each in copy.stretches])
    found = ContentSum(total, xxh3_128=digest.digest().hex())
    return copy.complete(np.array(sums, np.uint32)), found


def _copy(stretches: Stretches, out: BinaryIO, digest: RunningXxh3128) -> list[int]:
    """Copy the bytes; the checksum of each packet in the order of the file."""
    packets = _Packets(stretches, digest)
    reader = stretches.video.video_bytes()
    try:
        for start, stop in stretches.ranges:
            for at in range(start, stop, _PIECE_BYTES):
                piece = reader.read(at, min(at + _PIECE_BYTES, stop))
                packets.see(at, piece)
                out.write(piece)
    finally:
        reader.close()
    return packets.sums


class _Packets:
    """The checksum of each packet and the hash of all, from pieces of a file in order that are cut anywhere."""

    def __init__(self, stretches: Stretches, digest: RunningXxh3128) -> None:
        ends = stretches.offset + stretches.size
        self._starts, self._ends = stretches.offset.tolist(), ends.tolist()
        is_gap = stretches.offset[1:] != ends[:-1]
        self._gaps = (np.flatnonzero(is_gap) + 1).tolist()
        """The packets that do not follow the one before at once."""
        self.sums: list[int] = []
        """Of the packets that are complete, in the order of the file."""
        self._begun = 0
        """The checksum of what pieces before had of the next packet."""
        self._digest = digest

    def see(self, start: int, piece: memoryview) -> None:
        """Take the bytes of packets out of a piece that begins at `start` of the file."""
        stop, first = start + piece.nbytes, len(self.sums)
        last = bisect_right(self._ends, stop, first)  # those before it end in this piece
        at, starts, ends = first, self._starts, self._ends
        if first < last and starts[first] < start:
            self.sums.append(crc32c(piece[: ends[first] - start], self._begun))
            self._begun, at = 0, first + 1
        self.sums += [
            crc32c(piece[low - start : high - start])
            for low, high in zip(starts[at:last], ends[at:last], strict=True)
        ]
        if last < len(ends) and starts[last] < stop:
            self._begun = crc32c(piece[max(0, starts[last] - start) :], self._begun)
            last += 1
        self._hash(start, stop, piece, first, last)

    def _hash(self, start: int, stop: int, piece: memoryview, first: int, last: int) -> None:
        """Add the packets [first, last), as far as they lie in the piece, in as large parts as lie together."""
        if first == last:
            return
        cuts = self._gaps[bisect_right(self._gaps, first) : bisect_left(self._gaps, last)]
        for low, high in itertools.pairwise([first, *cuts, last]):
            begin, end = max(self._starts[low], start), min(self._ends[high - 1], stop)
            self._digest.update(piece[begin - start : end - start])
