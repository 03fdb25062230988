"""Identity of the content of episodes, equal in every form they are stored in, and hashes of single signals."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c, sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.formats.episodedir.documents import plain_static
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_BLOCK_BYTES = 8 << 20


def content_of(episode: Episode) -> str:
    """The identity of what an episode holds.

    Of a recording its own identity, which it keeps when it is packed or published, and which edits change. Of any other
    episode the checksums of its values and times and its static items, which a shard states without being read.
    """
    return stated_content(episode) or _values_identity(episode)


def stated_content(episode: Episode) -> str | None:
    """The identity where no values have to be read for it; else None."""
    uid = episode.meta.get("uid")
    if isinstance(uid, str) and uid:
        return f"recording:{uid}"
    is_stated = all(_stated_sum(signal) is not None for signal in episode.signals.values())
    return _values_identity(episode) if is_stated else None


def _values_identity(episode: Episode) -> str:
    signals: dict[str, list[Any]] = {}
    for name, signal in sorted(episode.signals.items()):
        meta, times = signal.meta, crc32c(byte_view(np.ascontiguousarray(signal.timestamps)))
        signals[name] = [meta.dtype.name, list(meta.shape), len(signal), times, _values_sum(signal)]
    static = {name: plain_static(name, value) for name, value in sorted(episode.static.items())}
    return f"values:{sha256_hex(dump_json({'signals': signals, 'static': static}))[:32]}"


def _stated_sum(signal: Signal) -> int | None:
    """CRC-32C of all values where a shard states it."""
    return signal.checksum() if isinstance(signal, BlockSignal) else None


def _values_sum(signal: Signal) -> int:
    """CRC-32C of all values as bytes; a block of a shard states it, everything else is read once."""
    total = _stated_sum(signal)
    if total is not None:
        return total
    total = 0
    if signal.meta.rows is not None:
        for value, _ in signal:
            total = crc32c(value.tobytes(), crc32c(len(value).to_bytes(8, "little"), total))
        return total
    if signal.meta.is_object and not isinstance(signal, VideoSignal):
        return crc32c(dump_json([value if isinstance(value, str) else value.hex() for value, _ in signal]))
    if isinstance(signal, VideoSignal):
        with contextlib.closing(signal.video_bytes()) as reader:
            for start in range(0, reader.size, _BLOCK_BYTES):
                total = crc32c(reader.read(start, min(start + _BLOCK_BYTES, reader.size)), total)
        return total
    for rows in signal.blocks(_BLOCK_BYTES):
        total = crc32c(byte_view(np.ascontiguousarray(rows)), total)
    return total


class ContentSum(NamedTuple):
    """Bytes of a signal and their hash, one of two kinds: of two signals with the same sum every value is the same."""

    bytes: int
    sha256: str = ""
    """Of the values as little-endian bytes; of text, each with its length before it."""
    xxh3_128: str = ""
    """Of the encoded frames of a camera in decoding order: hashed as fast as they are copied."""


def sum_of(signal: Signal) -> ContentSum:
    """The sum of all values of a signal."""
    run = encoded_run(signal)
    if run is not None:
        size, digest = run.hash()
        return ContentSum(size, xxh3_128=digest)
    if not signal.meta.is_object:
        return sum_of_rows(signal.blocks(_BLOCK_BYTES))
    sha256, size, is_ragged = hashlib.sha256(), 0, signal.meta.rows is not None
    for value, _ in signal:
        raw = value.encode() if isinstance(value, str) else value.tobytes() if is_ragged else bytes(value)
        sha256.update(len(raw).to_bytes(8, "little") + raw)
        size += 8 + len(raw)
    return ContentSum(size, sha256.hexdigest())


def sum_of_rows(blocks: Iterable[NDArray[Any]]) -> ContentSum:
    """The sum of numbers that come in blocks of rows."""
    running = RowsSum()
    for block in blocks:
        running.add(block)
    return running.result()


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

    def result(self) -> ContentSum:
        """The sum of everything so far."""
        return ContentSum(self._size, self._digest.hexdigest())
