"""The file a camera is encoded into: append-only, and it knows which frames are completely inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
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
        self._origin = append_at or 0
        self._file = AppendFile.open(path, end=self._origin)

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
        find: Callable[[bytes, int], tuple[list[boxes.PacketPlace], int]]
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
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

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
        try:
            self._file.append(data)
        except StoreError as error:
            self.failure = error
