"""The hash and the page sums of a file in one pass, and a second pass that notices any change since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.files import FileRangeReader, FileStamp, check_regular
from warpdata.bytekit.io.ranges import Range, check_range, read_coalesced
from warpdata.errors import ChecksumError, StoreError
from warpdata.stores.cache.layout import PAGE_BYTES

if TYPE_CHECKING:
    from typing import Self

_CHUNK_BYTES = 4 << 20
_CHANGED_HINT = "Add it again once nobody writes to it any more."


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file was when it was looked at."""

    sha256: str
    size: int
    page_sums: NDArray[np.uint32] = field(repr=False)
    stamp: FileStamp | None = field(default=None, repr=False, compare=False)
    """What the file system said of the file meanwhile; another stamp may mean other bytes."""


def digest_file(path: Path) -> FileDigest:
    """Hash a file and sum its pages, in bounded memory."""
    running = RunningSha256()
    sums: list[int] = []
    size = 0
    before = _stamp(path)
    for chunk in _chunks(path):
        running.update(chunk)
        sums += _sums(chunk)
        size += chunk.nbytes
    if _stamp(path) != before:
        raise ChecksumError("the file changed while it was read", path=path, hint=_CHANGED_HINT)
    return FileDigest(running.hexdigest(), size, np.array(sums, np.uint32), before)


def check_unchanged(path: Path, digest: FileDigest) -> None:
    """Raise ChecksumError when the file is not the one that was hashed any more."""
    if _stamp(path) != digest.stamp and digest_file(path).sha256 != digest.sha256:
        raise ChecksumError("the file changed since it was added", path=path, hint=_CHANGED_HINT)


class DigestedFile:
    """Ranges of a file that must be as it was hashed: every page that is read is checked."""

    def __init__(self, path: Path, digest: FileDigest) -> None:
        self._file = FileRangeReader(path)
        self._digest = digest
        self.name = self._file.name
        self.size = self._file.size
        if self.size != digest.size:
            raise self._changed()

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), or ChecksumError when they are not those that were hashed."""
        check_range(self, start, end)
        if start == end:
            return memoryview(b"")
        first, last = start // PAGE_BYTES, -(-end // PAGE_BYTES)
        pages = self._file.read(first * PAGE_BYTES, min(last * PAGE_BYTES, self.size))
        if not np.array_equal(np.array(_sums(pages), np.uint32), self._digest.page_sums[first:last]):
            raise self._changed()
        return pages[start - first * PAGE_BYTES : end - first * PAGE_BYTES]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return read_coalesced(self, ranges)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _changed(self) -> ChecksumError:
        return ChecksumError("the file changed since it was added", path=self.name, hint=_CHANGED_HINT)


def digest_bytes(data: bytes) -> FileDigest:
    """The digest of bytes in memory."""
    running = RunningSha256()
    running.update(data)
    return FileDigest(running.hexdigest(), len(data), np.array(_sums(memoryview(data)), np.uint32))


def checked_chunks(path: Path, digest: FileDigest) -> Iterator[memoryview]:
    """The file again, chunk by chunk; a byte that changed is an error before its chunk is handed out."""
    position = 0
    for chunk in _chunks(path):
        first = position // PAGE_BYTES
        sums = np.array(_sums(chunk), np.uint32)
        position += chunk.nbytes
        if not np.array_equal(sums, digest.page_sums[first : first + len(sums)]):
            raise ChecksumError("the file changed while it was published", path=path, hint=_CHANGED_HINT)
        if position > digest.size:
            break
        yield chunk
    if position != digest.size:
        raise ChecksumError("the file changed while it was published", path=path, hint=_CHANGED_HINT)


def _sums(chunk: memoryview) -> list[int]:
    return [crc32c(chunk[i : i + PAGE_BYTES]) for i in range(0, chunk.nbytes, PAGE_BYTES)]


def _chunks(path: Path) -> Iterator[memoryview]:
    """The file in chunks of whole pages; each is only valid until the next is asked for."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    check_regular(path)
    try:
        with path.open("rb", buffering=0) as source:
            while count := _fill(source, buffer):
                yield buffer[:count]
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


def _stamp(path: Path) -> FileStamp:
    try:
        return FileStamp.of_path(path)
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


def _fill(source: object, buffer: memoryview) -> int:
    filled = 0
    while filled < buffer.nbytes and (count := source.readinto(buffer[filled:])):  # type: ignore[attr-defined]
        filled += count
    return filled
