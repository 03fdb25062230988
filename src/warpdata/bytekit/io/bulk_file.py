"""Large new files written past the page cache where the file system allows it: bytes that are on their way to the disk
are not copied once more on the way, and what others read stays in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from warpdata.bytekit.buffers import BUFFERS
from warpdata.bytekit.process import system
from warpdata.bytekit.view import byte_view

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

DIRECT_FROM_BYTES = 1 << 20
"""Smaller files go through the page cache: to wait for the disk would cost more than to copy them."""
_BUFFER_BYTES = 4 << 20
_PIECE_BYTES = 512 << 10
"""As much as stays in the cache of the processor while it is looked at."""
_ALIGNED = 4096
Later = Callable[[Callable[[], None]], None]
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class BulkFile:
    """A file that does not exist yet, written from front to back; the caller turns errors of the system into ours.

    A file that is left with an error is closed as far as it got: it belongs into a folder that is committed as a whole.
    `later` is given the last part of the work, which is mostly to wait for the disk; whoever gives it sees to its end.
    """

    def __init__(self, path: str | os.PathLike[str], size_bytes: int, later: Later | None = None) -> None:
        self._later = later
        self._is_direct = False
        self._fd = -1
        if size_bytes >= DIRECT_FROM_BYTES:
            self._fd = system.open_past_cache(path, _FLAGS)
            self._is_direct = self._fd >= 0
        if self._fd < 0:
            self._fd = os.open(path, _FLAGS, 0o666)
        # From the beginning of a large page on: the device then takes few large pieces instead of many small pages.
        memory = BUFFERS.array((_BUFFER_BYTES + system.LARGE_PAGE_BYTES,), np.dtype(np.uint8))
        first = -memory.__array_interface__["data"][0] % system.LARGE_PAGE_BYTES
        self._view = memory[first : first + _BUFFER_BYTES].data
        self._held = 0
        self._written = 0

    @property
    def position(self) -> int:
        """How many bytes the file has so far."""
        return self._written + self._held

    def room(self) -> memoryview:
        """Memory to be filled from its beginning with what comes next, a piece of moderate size; see `filled`."""
        return self._view[self._held : min(self._held + _PIECE_BYTES, _BUFFER_BYTES)]

    def filled(self, count: int) -> None:
        """The first `count` bytes of the room are the next ones of the file."""
        self._held += count
        if self._held == _BUFFER_BYTES:
            self._flush()

    def write(self, data: Buffer) -> None:
        """Append all of `data`."""
        view = byte_view(data)
        while view.nbytes:
            room = self.room()
            count = min(room.nbytes, view.nbytes)
            room[:count] = view[:count]
            self.filled(count)
            view = view[count:]

    def _flush(self) -> None:
        size = self._held
        whole = size - size % _ALIGNED if self._is_direct else size
        self._put(self._view[:whole])
        if (
            whole < size
        ):  # padded and cut off again, the last block would have to be read from the disk once more
            self._leave_direct()
            self._put(self._view[whole:size])
        self._written += size
        self._held = 0

    def _put(self, rest: memoryview) -> None:
        while rest.nbytes:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except OSError:
                if not self._is_direct:
                    raise
                self._leave_direct()  # a file system may say only now that it cannot

    def _leave_direct(self) -> None:
        if self._is_direct:
            system.through_cache(self._fd)
            self._is_direct = False

    def finish(self) -> None:
        """Write what is left, and close the file; now, or where `later` does it."""
        if self._later is None or not self._is_direct:
            self._finish()
        else:
            self._later(self._finish)

    def _finish(self) -> None:
        try:
            self._flush()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the file as it is."""
        fd, self._fd = self._fd, -1
        self._view = memoryview(b"")
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.let_go()
