"""The file a camera is encoded into: append-only, and it knows which frames are completely inside."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from warpdata.bytekit import system
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.commit import os_error
from warpdata.errors import StoreError
from warpdata.formats.episodedir import boxes


class Packet(NamedTuple):
    """One encoded frame that is completely in the file."""

    offset: int
    size: int
    crc32c: int


class VideoSink:
    """Takes what the muxer writes; `take` gives the frames that became complete since the last call."""

    def __init__(self, path: str, suffix: str, *, append_at: int | None = None) -> None:
        self.path = path
        self.failure: StoreError | None = None
        self._is_mp4 = suffix == ".mp4"
        self._skips_header = append_at is not None
        self._held = bytearray()
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if append_at is None else 0)
        self._fd = os.open(path, flags, 0o666)
        self._origin = 0
        if append_at is not None:
            os.ftruncate(self._fd, append_at)
            os.lseek(self._fd, append_at, os.SEEK_SET)
            self._origin = append_at

    def write(self, data: bytes) -> int:
        """Append what the muxer gives; after a failure nothing more is written."""
        if self.failure is None:
            self._held += data
            if not self._skips_header:
                self._put(data)
            elif self._drop_header():
                self._put(bytes(self._held))
        return len(data)

    def take(self) -> list[Packet]:
        """The frames that are now completely in the file."""
        if self.failure is not None:
            raise self.failure
        find: Callable[[bytes, int], tuple[list[boxes.Place], int]]
        find = boxes.mp4_packets if self._is_mp4 else boxes.mkv_packets
        held = bytes(self._held)
        places, used = find(held, self._origin)
        origin = self._origin
        found = [
            Packet(p.offset, p.size, crc32c(held[p.offset - origin : p.offset - origin + p.size]))
            for p in places
        ]
        del self._held[:used]
        self._origin += used
        return found

    def sync(self) -> None:
        """Make the file survive power loss."""
        try:
            system.sync_data(self._fd)
        except OSError as error:
            raise os_error(error, self.path) from error

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _drop_header(self) -> bool:
        """When going on with a video, drop the header of the continuation; True once frames begin."""
        held = bytes(self._held)
        start = boxes.first_media_box(held, b"moof") if self._is_mp4 else boxes.first_cluster(held)
        if start < 0:
            return False
        del self._held[:start]
        self._skips_header = False
        return True

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.failure = os_error(error, self.path)
