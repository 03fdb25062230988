"""Open decoders of the whole process: the last ones used stay open, however many cameras there are."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import tell_in_child
from warpdata.formats.episodedir.frame_reader import FrameReader

MOST_OPEN = min(128, max(2, system.allowed_descriptors() // 8))
"""Decoders, and files, that may be open while nobody uses them: as many as a shuffle has blocks of images in play.

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
        tell_in_child(self)

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
