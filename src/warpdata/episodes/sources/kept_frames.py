"""Decoded frames kept for windows that overlap: a stretch of a video is decoded once while a shuffle works on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.block_cache import KEPT
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.formats.episodedir.frame_index import FrameIndex
from warpdata.formats.episodedir.frame_reader import FrameReader
from warpdata.timeline.meta import SignalMeta

Int64s = NDArray[np.int64]

STRETCH_BYTES = 128 << 10
"""What is decoded at once where a group of pictures is larger than `GROUP_BYTES`."""
GROUP_BYTES = 512 << 10


class FrameStretches:
    """The frames of a camera in stretches, each a group of pictures or a part of one; the last ones used are kept."""

    def __init__(
        self, index: FrameIndex, meta: SignalMeta, decoder: Callable[[], AbstractContextManager[FrameReader]]
    ) -> None:
        self._starts = stretch_starts(index, meta.row_bytes)
        self._shape = meta.shape
        self._dtype = meta.dtype
        self._decoder = decoder
        self._owner = KEPT.new_owner()
        self._lock = ThreadLock()
        weakref.finalize(self, KEPT.forget, self._owner).atexit = False

    def copy_runs(self, starts: Int64s, out: NDArray[Any], places: Int64s) -> None:
        """The frames from each start on, as many as a row of `out` holds, to that place of it."""
        width = out.shape[1]
        first = self._starts.searchsorted(starts, "right") - 1
        last = self._starts.searchsorted(starts + (width - 1), "right") - 1
        wanted = {
            n for low, high in zip(first.tolist(), last.tolist(), strict=True) for n in range(low, high + 1)
        }
        found = self._found(wanted)
        for start, place, low, high in zip(
            starts.tolist(), places.tolist(), first.tolist(), last.tolist(), strict=True
        ):
            row = out[place]
            for number in range(low, high + 1):
                base, frames = found[number]
                begin, stop = max(start, base), min(start + width, base + len(frames))
                row[begin - start : stop - start] = frames[begin - base : stop - base]

    def copy(self, numbers: Int64s, out: NDArray[Any]) -> None:
        """Single frames."""
        at = (self._starts.searchsorted(numbers, "right") - 1).tolist()
        found = self._found(set(at))
        for row, (number, stretch) in enumerate(zip(numbers.tolist(), at, strict=True)):
            base, frames = found[stretch]
            out[row] = frames[number - base]

    def not_kept(self, numbers: Int64s) -> Int64s:
        """Which of these frames would have to be decoded."""
        at = self._starts.searchsorted(numbers, "right") - 1
        kept = KEPT.of(self._owner)
        missing = [each for each in np.unique(at).tolist() if each not in kept]
        return numbers[np.isin(at, missing)]

    def _found(self, wanted: set[int]) -> dict[int, tuple[int, NDArray[Any]]]:
        """These stretches: the number of their first frame, and their frames."""
        found = self._those_kept(wanted)
        if len(found) < len(wanted):
            with self._lock:  # another thread may have decoded them while this one waited
                missing = sorted(wanted - found.keys())
                found |= self._those_kept(missing)
                found |= self._decoded([each for each in missing if each not in found])
        return found

    def _those_kept(self, wanted: Iterable[int]) -> dict[int, tuple[int, NDArray[Any]]]:
        found = {}
        for number in wanted:
            kept = KEPT.get(self._owner, number)
            if kept is not None:
                frames = np.frombuffer(kept, self._dtype).reshape(-1, *self._shape)
                found[number] = (int(self._starts[number]), frames)
        return found

    def _decoded(self, missing: list[int]) -> dict[int, tuple[int, NDArray[Any]]]:
        """Decode stretches, all with one pass through the video."""
        found: dict[int, tuple[int, NDArray[Any]]] = {}
        for number in missing:
            low, high = int(self._starts[number]), int(self._starts[number + 1])
            found[number] = (low, np.empty((high - low, *self._shape), self._dtype))
        if found:
            numbers = np.concatenate([np.arange(low, low + len(each)) for low, each in found.values()])
            with self._decoder() as reader:
                reader.frames_into(numbers, [row for _, each in found.values() for row in each])
        for number, (_, frames) in found.items():
            KEPT.put(self._owner, number, frames.data.cast("B"))
        return found


def stretch_starts(index: FrameIndex, frame_bytes: int) -> Int64s:
    """The first frame of every stretch, and the number of frames: groups of pictures, cut where they are large."""
    count = len(index.ts_ns)
    step = max(1, STRETCH_BYTES // max(1, frame_bytes))
    if index.keyframe is None:
        return np.append(np.arange(0, count, step, dtype=np.int64), count)
    keys = np.append(np.flatnonzero(index.keyframe), count).astype(np.int64)
    parts = [np.zeros(1, np.int64)]
    for low, high in zip(keys[:-1].tolist(), keys[1:].tolist(), strict=True):
        is_large = (high - low) * frame_bytes > GROUP_BYTES
        parts.append(np.arange(low, high, step if is_large else high - low, dtype=np.int64))
    return np.append(np.unique(np.concatenate(parts)), count)
