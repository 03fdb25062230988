"""A store in the memory of the process, with the same conditions as a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.ranges import BytesRangeReader, Range
from warpdata.errors import BlobNotFoundError, ConflictError, LimitExceededError
from warpdata.stores.blobstore import (
    Blob,
    BlobInfo,
    BlobStore,
    Chunks,
    FileDigest,
    blob_name,
    check_key,
    check_same,
    check_size,
    page_checksums,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class _StoredBlob:
    data: bytes
    info: BlobInfo


class MemoryStore(BlobStore):
    """Blobs in a dictionary, with the same conditions as a real store."""

    is_local = True

    def __init__(self, name: str = "scratch", now_s: Callable[[], float] | None = None) -> None:
        self.address = f"memory://{name}"
        self._now_s = now_s or (lambda: datetime.now(UTC).timestamp())
        self._blobs: dict[str, _StoredBlob] = {}
        self._lock = threading.Lock()
        self._writes = 0

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        return self._held(key).info

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        held = self._held(key)
        if unless_etag is not None and held.info.etag == unless_etag:
            return None
        if held.info.size > max_bytes:
            raise LimitExceededError(
                f"{held.info.size} bytes where {max_bytes} are allowed", path=self._name(key)
            )
        return Blob(memoryview(held.data), held.info)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range."""
        held = self._held(key)
        check_same(held.info, same_as, self._name(key))
        return BytesRangeReader(held.data, self._name(key)).read_many(ranges)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Store bytes chunk by chunk under a name that holds their hash."""
        data = b"".join(check_size(chunks(), size, self._name(key)))
        with self._lock:
            self._put(key, data)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        with self._lock:
            held = self._blobs.get(check_key(key))
            if (held.info.etag if held else None) != etag:
                raise ConflictError("the blob is not as expected", path=self._name(key))
            return self._put(key, bytes(data))

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        found = [held.info for key, held in sorted(self._blobs.items()) if key.startswith(prefix)]
        return iter(found)

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        below = (key.removeprefix(prefix).partition("/") for key in self._blobs if key.startswith(prefix))
        return sorted({name for name, slash, _ in below if slash})

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        with self._lock:
            self._blobs.pop(key, None)

    def close(self) -> None:
        """Nothing is held open."""

    def _put(self, key: str, data: bytes) -> BlobInfo:
        self._writes += 1
        info = BlobInfo(check_key(key), len(data), f"m{self._writes}", self._now_s())
        self._blobs[key] = _StoredBlob(data, info)
        return info

    def _held(self, key: str) -> _StoredBlob:
        held = self._blobs.get(check_key(key))
        if held is None:
            raise BlobNotFoundError("no such blob", path=self._name(key))
        return held

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def digest_bytes(data: bytes) -> FileDigest:
    """The digest of bytes in memory."""
    return FileDigest(sha256_hex(data), len(data), np.array(page_checksums(memoryview(data)), np.uint32))
