"""What a signal holds as a hash: of two signals with the same sum every value is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningXxh3128
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.timeline.signal import Signal

_BLOCK_BYTES = 8 << 20


class ContentSum(NamedTuple):
    """How many bytes a signal has and their hash, the one or the other."""

    bytes: int
    sha256: str = ""
    """Of the values as little-endian bytes; of text, each with its length before it."""
    xxh3_128: str = ""
    """Of the encoded frames of a camera in decoding order: hashed as fast as they are copied."""


def sum_of(signal: Signal) -> ContentSum:
    """The sum of all values of a signal."""
    run = encoded_run(signal)
    if run is not None:
        return _frames(run)
    if not signal.meta.is_object:
        return sum_of_rows(_blocks(signal))
    digest, size = hashlib.sha256(), 0
    for value, _ in signal:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        digest.update(len(raw).to_bytes(8, "little") + raw)
        size += 8 + len(raw)
    return ContentSum(size, digest.hexdigest())


def _frames(run: EncodedRun) -> ContentSum:
    digest, size = RunningXxh3128(), 0
    for piece in run.packet_bytes():
        digest.update(piece)
        size += len(piece)
    return ContentSum(size, xxh3_128=digest.digest().hex())


def sum_of_rows(blocks: Iterator[NDArray[Any]] | list[NDArray[Any]]) -> ContentSum:
    """The sum of numbers that come in blocks of rows."""
    running = RowsSum()
    for block in blocks:
        running.add(block)
    return running.found()


class RowsSum:
    """The running sum of numbers."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, block: NDArray[Any]) -> None:
        """Add the next rows."""
        rows = np.ascontiguousarray(block)
        if rows.dtype.byteorder == ">":
            rows = rows.astype(rows.dtype.newbyteorder("<"))
        self._digest.update(rows.reshape(-1).view(np.uint8).data)
        self._size += rows.nbytes

    def found(self) -> ContentSum:
        """The sum of everything so far."""
        return ContentSum(self._size, self._digest.hexdigest())


def _blocks(signal: Signal) -> Iterator[NDArray[Any]]:
    step = max(1, _BLOCK_BYTES // max(1, signal.meta.row_bytes))
    for start in range(0, len(signal), step):
        yield signal.rows(start, start + step)
