"""Open decoders of the whole process: the last ones used stay open, however many cameras there are."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.formats.episodedir.frame_index import FrameIndex
from warpdata.formats.episodedir.frame_reader import FrameReader
from warpdata.timeline.meta import SignalMeta

MOST_OPEN = min(128, max(2, system.allowed_descriptors() // 8))
"""Decoders, and files, that may stay open unused: as many as a shuffle has blocks of images in play.

Where the system allows few descriptors, fewer: other files, caches and connections need theirs.
"""

ALWAYS_OPEN = 32
DECODER_BYTES = 96 << 20
"""What those beyond the first `ALWAYS_OPEN` may take together with them."""

FRAME_BYTES = 128 << 20
"""Decoded frames that all of them keep together."""


@dataclass(slots=True)
class _Entry:
    reader: FrameReader
    users: int = 0


class OpenCameras:
    """Decoders by camera; one that was closed to make room is opened again when its camera is used again."""

    def __init__(self, most_open: int = MOST_OPEN, frame_bytes: int = FRAME_BYTES) -> None:
        self.most_open = most_open
        self.frame_bytes = frame_bytes
        self._keys = itertools.count()
        self._begin()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """A forked child has decoders of its own."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Entry] = OrderedDict()
        self._gone: deque[int] = deque()

    def new_key(self) -> int:
        """A key for one more camera."""
        return next(self._keys)

    def gone(self, key: int) -> None:
        """Say that a camera is no longer there; any thread may, even one that is inside this object."""
        self._gone.append(key)

    @contextlib.contextmanager
    def use(self, key: int, opened: Callable[[], FrameReader]) -> Iterator[FrameReader]:
        """The decoder of a camera, which stays open at least for as long as the block runs."""
        with self._lock:
            entry = self._taken(key)
        if entry is None:
            made = opened()
            with self._lock:
                entry = self._taken(key)
                if entry is None:
                    entry = self._open[key] = _Entry(made, 1)
            if entry.reader is not made:  # another thread was quicker
                made.close()
        try:
            yield entry.reader
        finally:
            with self._lock:
                entry.users -= 1
                closing = self._surplus()
            for reader in closing:
                reader.close()

    def __len__(self) -> int:
        return len(self._open)

    def _taken(self, key: int) -> _Entry | None:
        entry = self._open.get(key)
        if entry is not None:
            entry.users += 1
            self._open.move_to_end(key)
        return entry

    def _room(self) -> int:
        """How many decoders may stay open: fewer of large pictures."""
        largest = max((entry.reader.decoder_bytes for entry in self._open.values()), default=1)
        return min(self.most_open, max(ALWAYS_OPEN, DECODER_BYTES // largest))

    def _surplus(self) -> list[FrameReader]:
        """Take out what is to be closed: cameras that are gone, then those unused for longest; frames go first."""
        gone = [self._open.pop(key, None) for key in [self._gone.popleft() for _ in range(len(self._gone))]]
        closing = [entry.reader for entry in gone if entry is not None]
        idle = [key for key, entry in self._open.items() if not entry.users]
        for key in idle[: max(0, len(self._open) - self._room())]:
            closing.append(self._open.pop(key).reader)
        kept = sum(entry.reader.kept_bytes for entry in self._open.values())
        for entry in list(self._open.values())[:-1]:
            if kept <= self.frame_bytes:
                break
            kept -= entry.reader.kept_bytes
            entry.reader.forget_frames()
        return closing


CAMERAS = OpenCameras()
"""The one of this process."""


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
        self._owner = BLOCK_CACHE.new_owner()
        self._lock = ThreadLock()
        weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False

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
        kept = BLOCK_CACHE.of(self._owner)
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
            kept = BLOCK_CACHE.get(self._owner, number)
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
            BLOCK_CACHE.put(self._owner, number, frames.data.cast("B"))
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
