"""Files by name below one place: the interface between folder formats and wherever their files live."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from warpdata.bytekit.io.ranges import RangeReader

if TYPE_CHECKING:
    from typing_extensions import Buffer


_BUFFER_BYTES = 1 << 20


@runtime_checkable
class FolderReader(Protocol):
    """Read access to the files below one place; a name may have `/` in it."""

    @property
    def name(self) -> str:
        """What to call the place in an error message."""

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def names(self) -> list[str]:
        """The names of all files below the place, or a StoreError where it cannot tell."""


class SubFolder:
    """The files of a place whose names begin with `prefix/`; their names are known, so nothing is listed."""

    def __init__(self, base: FolderReader, prefix: str, names: Sequence[str]) -> None:
        address, mark, settings = base.name.partition("?")
        self.name = f"{address.rstrip('/')}/{prefix}{mark}{settings}"
        self._base = base
        self._prefix = prefix
        self._names = list(names)

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError."""
        return self._base.open(f"{self._prefix}/{name}")

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return name in self._names

    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._names)


class RangeFile(io.RawIOBase):
    """A range reader as a file object, for libraries that want one."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer at the end."""
        return bytes(self._next(self._reader.size if size < 0 else size))

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer with the next bytes; how many there were."""
        target = memoryview(buffer).cast("B")
        found = self._next(target.nbytes)
        target[: found.nbytes] = found
        return found.nbytes

    def _next(self, size: int) -> memoryview:
        start = min(self._position, self._reader.size)
        self._position = min(start + size, self._reader.size)
        return self._reader.read(start, self._position)


def buffered(reader: RangeReader) -> io.BufferedReader:
    """A range reader as a buffered file, for reading from start to end."""
    return io.BufferedReader(RangeFile(reader), _BUFFER_BYTES)
