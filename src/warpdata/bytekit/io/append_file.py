"""Files that only grow, by one writer. An append is there whole, or was never there.

After a crash there may be a torn record at the end: the caller passes the end of the last whole record (`records`
finds it in files of checksummed records), and the rest is cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Generic, TypeVar

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import map_os_errors, write_at
from warpdata.bytekit.io.files import read_at
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import run_in_child
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    TruncatedError,
    WriterClosedError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from warpdata.bytekit.io.ranges import RangeReader


Fields = TypeVar("Fields", bound=tuple[object, ...])


class GrowingFile:
    """The end of a growing file, held by its writer; a forked child has none of it.

    `path` and `position`, where the next record goes, are for reading.
    """

    def __init__(self, path: str | os.PathLike[str], fd: int, position: int) -> None:
        self.path = os.fspath(path)
        self.position = position
        self._fd = fd
        run_in_child(self.in_child)

    @property
    def is_open(self) -> bool:
        """Whether this process can append."""
        return self._fd >= 0

    def sync(self) -> None:
        """Make what was appended survive power loss."""
        with map_os_errors(self.path):
            system.sync_data(self._open_fd())

    def close(self) -> None:
        """Close the file; what was appended stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def in_child(self) -> None:
        """In a forked child: the file, and a lock on it, stay with the process that opened it."""
        GrowingFile.close(self)

    def read_into(self, out: Buffer, offset: int) -> None:
        """Fill `out` from `offset` on."""
        fd = self._open_fd()
        with map_os_errors(self.path):
            if read_at(fd, out, offset) != byte_view(out).nbytes:
                raise TruncatedError("the file ends before its record does", path=self.path)

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise WriterClosedError("this file was closed, or belongs to another process", path=self.path)
        return self._fd


class AppendFile(GrowingFile):
    """A growing file that is appended to with calls of the system."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, end: int | None = None) -> AppendFile:
        """Open a file, made if need be, to go on behind what it holds.

        With `end` everything behind that was torn off by a crash and is cut off.
        """
        with map_os_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            made = cls(path, fd, os.fstat(fd).st_size)
        if end is not None and end != made.position:
            made.cut(end)
        return made

    def append(self, *pieces: Buffer, sync: bool = False) -> int:
        """Add the pieces as one record, and with `sync` let it survive power loss; where it begins.

        On failure the file is as before.
        """
        start = self.position
        fd = self._open_fd()
        with map_os_errors(self.path):
            try:
                size = system.write_pieces(fd, pieces, start)
                if sync:
                    system.sync_data(fd)
            except BaseException:
                os.ftruncate(fd, start)
                raise
        self.position = start + size
        return start

    def cut(self, end: int) -> None:
        """Keep so much of the file, and go on behind it."""
        with map_os_errors(self.path):
            os.ftruncate(self._open_fd(), end)
        self.position = end

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Replace bytes that are there already: a header that counts what follows."""
        with map_os_errors(self.path):
            write_at(self._open_fd(), data, offset)


class SealedHeader(Generic[Fields]):
    """The header of a record: a magic first, and last the CRC32C of the header with 0 in its place."""

    def __init__(self, make: Callable[..., Fields], packing: Struct, magic: bytes) -> None:
        """`make` makes the fields of a header out of their values in order."""
        self.size = packing.size
        self._make = make
        self._packing = packing
        self._magic = magic

    def pack(self, *values: object) -> bytes:
        """The header with these values between magic and checksum."""
        unsealed = self._packing.pack(self._magic, *values, 0)
        return self._packing.pack(self._magic, *values, crc32c(unsealed))

    def unpack(self, data: Buffer, path: str | os.PathLike[str], at: int = 0) -> Fields:
        """The header that begins `at` in a file, if it is one and its checksum holds."""
        magic, *values, checksum = self._packing.unpack(data)
        if magic != self._magic:
            raise BadMagicError(f"no record begins at {at}", path=path)
        if self.pack(*values) != bytes(byte_view(data)):
            raise ChecksumError(f"the header at {at} was changed", path=path)
        return self._make(magic, *values, checksum)


def records(
    reader: RangeReader, start: int, sealed: SealedHeader[Fields], body_bytes: Callable[[Fields], int]
) -> Iterator[tuple[Fields, int, int]]:
    """The records from `start` to the end of the file, as header, start and end of the body.

    No body is read. The first invalid record is an error; callers that allow a torn tail stop there.
    """
    while start < reader.size:
        body = end = start + sealed.size
        if body <= reader.size:
            header = sealed.unpack(reader.read(start, body), reader.name, start)
            end = body + body_bytes(header)
        if end > reader.size:
            raise CorruptLayoutError(f"the record at {start} passes the end of the file", path=reader.name)
        yield header, body, end
        start = end
