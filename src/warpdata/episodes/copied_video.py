"""The frames of another program's videos copied into a new file: read once for the copy, the checksums and the hash."""

from __future__ import annotations

import contextlib
import os

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.bulk_file import BulkFile, Later
from warpdata.bytekit.checksum import RunningXxh3128, crc32c
from warpdata.bytekit.commit import map_os_errors
from warpdata.bytekit.ranges import RangeReader, read_into
from warpdata.episodes.content_sums import ContentSum
from warpdata.episodes.encoded import CameraCopy, Stretches
from warpdata.formats.episodedir.frame_index import FrameIndex


def copy_camera(
    copy: CameraCopy, target: str | os.PathLike[str], later: Later | None = None
) -> tuple[FrameIndex, ContentSum]:
    """Write the video of a camera as a new file; returns its index and the sum of its frames.

    `later` may do the last part of the writing.
    """
    digest = RunningXxh3128()
    with map_os_errors(target), BulkFile(target, copy.video_bytes, later) as out:
        out.write(copy.head)
        sums = [_copy(each, out, digest) for each in copy.stretches]
        out.write(copy.tail)
    total = sum(int(each.size.sum()) for each in copy.stretches)
    found = ContentSum(total, xxh3_128=digest.digest().hex())
    return copy.complete(np.concatenate(sums)), found


def _copy(stretches: Stretches, out: BulkFile, digest: RunningXxh3128) -> NDArray[np.uint32]:
    packets = _Packets(stretches, digest)
    with contextlib.closing(stretches.video.video_bytes()) as reader:
        for start, stop in stretches.ranges:
            _copy_range(reader, start, stop, out, packets)
    return packets.found()


def _copy_range(reader: RangeReader, start: int, stop: int, out: BulkFile, packets: _Packets) -> None:
    while start < stop:
        room = out.room()
        piece = room[: min(room.nbytes, stop - start)]
        read_into(reader, start, piece)
        packets.see(start, piece)
        out.filled(piece.nbytes)
        start += piece.nbytes


class _Packets:
    """The checksum of each packet and the hash of all, from pieces of a file in order that are cut anywhere."""

    def __init__(self, stretches: Stretches, digest: RunningXxh3128) -> None:
        self._starts = stretches.offset.tolist()
        self._ends = (stretches.offset + stretches.size).tolist()
        self._sums = [0] * len(self._starts)
        self._next = 0
        self._digest = digest

    def see(self, start: int, piece: memoryview) -> None:
        """Take the bytes of packets out of a piece that begins at `start` of the file."""
        stop, number, sums = start + piece.nbytes, self._next, self._sums
        low = high = start  # bytes of packets that lie together and are not in the hash yet
        while number < len(sums) and self._starts[number] < stop:
            first, last = max(self._starts[number], start), min(self._ends[number], stop)
            sums[number] = crc32c(piece[first - start : last - start], sums[number])
            if first != high:
                self._digest.update(piece[low - start : high - start])
                low = first
            high = last
            if self._ends[number] > stop:
                break
            number += 1
        self._digest.update(piece[low - start : high - start])
        self._next = number

    def found(self) -> NDArray[np.uint32]:
        """The checksum of each packet in the order of the file."""
        return np.array(self._sums, np.uint32)
