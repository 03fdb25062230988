"""The identity of the content of an episode, the same in every form it is stored in."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c, sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.forms.packed import PackedRows
from warpdata.episodes.sources.shard_episode import ChannelSignal
from warpdata.episodes.sources.signals import VideoSignal
from warpdata.formats.episodedir.documents import plain_static
from warpdata.formats.wshard.rows import BlockRows
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_STEP_BYTES = 16 << 20


def content_of(episode: Episode) -> str:
    """The identity of what an episode holds.

    Of a recording its own identity, which it keeps when it is packed or published, and which edits change. Of any other
    episode the checksums of its values and times and its static items, which a shard states without being read.
    """
    stated = stated_content(episode)
    return _of_values(episode) if stated is None else stated


def stated_content(episode: Episode) -> str | None:
    """The same where no values have to be read for it; else None."""
    uid = episode.meta.get("uid")
    if isinstance(uid, str) and uid:
        return f"recording:{uid}"
    return _of_values(episode) if all(_is_stated(each) for each in episode.signals.values()) else None


def _of_values(episode: Episode) -> str:
    signals = {name: _signal_content(signal) for name, signal in sorted(episode.signals.items())}
    static = {name: plain_static(name, value) for name, value in sorted(episode.static.items())}
    return f"values:{sha256_hex(dump_json({'signals': signals, 'static': static}))[:32]}"


def _is_stated(signal: Signal) -> bool:
    return _stated_sum(signal) is not None


def _stated_sum(signal: Signal) -> int | None:
    """CRC-32C of all values where a shard states it."""
    if isinstance(signal, PackedRows):
        return signal.checksum()
    rows = signal.row_source if isinstance(signal, ChannelSignal) else None
    return rows.checksum() if isinstance(rows, BlockRows) else None


def _signal_content(signal: Signal) -> list[Any]:
    meta = signal.meta
    times = crc32c(byte_view(np.ascontiguousarray(signal.timestamps)))
    return [meta.dtype.name, list(meta.shape), len(signal), times, _values_sum(signal)]


def _values_sum(signal: Signal) -> int:
    """CRC-32C of all values as bytes; a block of a shard states it, everything else is read once."""
    stated = _stated_sum(signal)
    if stated is not None:
        return stated
    if isinstance(signal, VideoSignal):
        reader = signal.video_bytes()
        try:
            return _bytes_sum(reader)
        finally:
            reader.close()
    if signal.meta.is_object:
        return crc32c(dump_json([value if isinstance(value, str) else value.hex() for value, _ in signal]))
    total, step = 0, max(1, _STEP_BYTES // max(1, signal.meta.row_bytes))
    for start in range(0, len(signal), step):
        total = crc32c(byte_view(np.ascontiguousarray(signal.rows(start, start + step))), total)
    return total


def _bytes_sum(reader: Any) -> int:
    total = 0
    for start in range(0, reader.size, _STEP_BYTES):
        total = crc32c(reader.read(start, min(start + _STEP_BYTES, reader.size)), total)
    return total
