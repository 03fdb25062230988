"""The hash and the page sums of a file in one pass, and a second pass that notices any change since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.errors import ChecksumError, StoreError
from warpdata.stores.layout import PAGE_BYTES

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file was when it was looked at."""

    sha256: str
    size: int
    page_sums: NDArray[np.uint32] = field(repr=False)


def digest_file(path: Path) -> FileDigest:
    """Hash a file and sum its pages, in bounded memory."""
    running = RunningSha256()
    sums: list[int] = []
    size = 0
    for chunk in _chunks(path):
        running.update(chunk)
        sums += _sums(chunk)
        size += chunk.nbytes
    return FileDigest(running.hexdigest(), size, np.array(sums, np.uint32))


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
            raise ChecksumError("the file changed while it was published", path=path)
        if position > digest.size:
            break
        yield chunk
    if position != digest.size:
        raise ChecksumError("the file changed while it was published", path=path)


def _sums(chunk: memoryview) -> list[int]:
    return [crc32c(chunk[i : i + PAGE_BYTES]) for i in range(0, chunk.nbytes, PAGE_BYTES)]


def _chunks(path: Path) -> Iterator[memoryview]:
    """The file in chunks of whole pages; each is only valid until the next is asked for."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        with path.open("rb", buffering=0) as source:
            while count := _fill(source, buffer):
                yield buffer[:count]
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


def _fill(source: object, buffer: memoryview) -> int:
    filled = 0
    while filled < buffer.nbytes and (count := source.readinto(buffer[filled:])):  # type: ignore[attr-defined]
        filled += count
    return filled
