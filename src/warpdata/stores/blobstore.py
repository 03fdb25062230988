"""The interface of every store: named blobs, read by range, written whole or not at all; digests of files to store."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c
from warpdata.bytekit.io.files import FileRangeReader, FileStamp, check_regular
from warpdata.bytekit.io.ranges import Range, check_range, read_coalesced
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.errors import BlobChangedError, ChecksumError, StoreError, TruncatedError

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

Chunks = Callable[[], "Iterator[Buffer]"]
"""Bytes one piece after the other, from the beginning at each call."""

PageSums = NDArray[np.uint32]
"""CRC-32C of each page of a blob."""

PAGE_BYTES = 64 << 10
"""Ranges are fetched, checked and kept in pages of this size."""
MAX_KEY_BYTES = 1000
_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[^\x00-\x1f\x7f/\\]+(?:/(?!\Z)|\Z))+")
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """Size, tag and time of a blob, known without reading it."""

    key: str
    size: int
    etag: str | None
    modified_s: float


@dataclass(frozen=True, slots=True)
class Blob:
    """The whole of one small blob."""

    data: memoryview
    info: BlobInfo


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The hash, the size and the page sums of a file, with its stamp while it was hashed."""

    sha256: str
    size: int
    page_sums: PageSums = field(repr=False)
    stamp: FileStamp | None = field(default=None, repr=False, compare=False)


@runtime_checkable
class BlobStore(Protocol):
    """Named immutable blobs and a few small pointers that move by compare-and-swap."""

    address: str
    """The address of this store without credentials: safe to print."""
    is_local: bool
    """Whether reading needs no network."""

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, in the order requested, or TruncatedError.

        BlobChangedError if the blob is no longer the one that `same_as` describes.
        """

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under an unused name, or ConflictError."""
        return self.compare_and_swap(key, data, None)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Store a file under a name that holds its hash; a file that changed meanwhile is refused."""
        self.put_stream(key, lambda: checked_chunks(path, digest), digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:  # noqa: ARG002
        """Store `size` bytes chunk by chunk under a name that holds their hash, replacing a blob of this name.

        `chunks` may be called again for a retry; an error it raises leaves everything as it was.
        """
        raise self._read_only(key)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:  # noqa: ARG002
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        raise self._read_only(key)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        raise self._unlisted(prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` (empty, or ended by a slash) that have blobs below them, in order.

        Costs what there is directly below it, however many blobs are deeper. One whose blobs are gone may be shown.
        """
        raise self._unlisted(prefix)

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        raise self._read_only(key)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs; absent ones are skipped."""
        for key in keys:
            self.delete(key)

    def close(self) -> None:
        """Close connections."""

    def _read_only(self, key: str) -> StoreError:
        """The error of a store that cannot be written."""
        hint = "Publish to a folder or an object store; an http catalog is read only."
        return StoreError("this catalog is read only", path=blob_name(self.address, key), hint=hint)

    def _unlisted(self, prefix: str) -> StoreError:
        """The error of a store that cannot be listed."""
        hint = "Name the dataset, or use the folder or object store behind this address, which can be listed."
        return StoreError("an http catalog cannot be listed", path=blob_name(self.address, prefix), hint=hint)


def check_key(key: str) -> str:
    """The key itself if it is a safe relative name, else ValueError."""
    if not _KEY.fullmatch(key) or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"not a safe blob name: {key!r}")
    return key


def check_lengths(views: Sequence[memoryview], ranges: Sequence[Range], name: str) -> list[memoryview]:
    """The views if each is as long as its range; a short response is an error, never short data."""
    for view, (start, end) in zip(views, ranges, strict=True):
        if view.nbytes != end - start:
            raise TruncatedError(f"bytes [{start}, {end}) came back as {view.nbytes} bytes", path=name)
    return list(views)


def check_size(chunks: Iterator[Buffer], size: int, name: str) -> Iterator[memoryview]:
    """The chunks, which must be `size` bytes together, or TruncatedError."""
    total = 0
    for chunk in chunks:
        view = memoryview(chunk)
        total += view.nbytes
        if total > size:
            break
        yield view
    if total != size:
        raise TruncatedError(f"expected {size} bytes to store, got {total}", path=name)


def is_strong(etag: str | None) -> TypeGuard[str]:
    """Whether equal tags mean equal bytes; a weak tag only promises equal meaning."""
    return etag is not None and not etag.startswith("W/")


def check_same(current: BlobInfo, same_as: BlobInfo | None, name: str) -> None:
    """BlobChangedError unless a blob is the one that was opened, by size and tag; by time if there are no tags."""
    if same_as is None:
        return
    if same_as.etag is None or current.etag is None:
        is_same = same_as.modified_s == current.modified_s
    else:
        is_same = same_as.etag == current.etag
    if not is_same or same_as.size != current.size:
        raise BlobChangedError("the blob was replaced since it was opened", path=name)


def blob_name(address: str, key: str) -> str:
    """The name of a blob in messages."""
    return f"{address.rstrip('/')}/{key}"


def check_sha256(expected: str, actual: str, name: str) -> None:
    """ChecksumError unless the hashes are equal."""
    if expected != actual:
        raise ChecksumError(f"sha256 mismatch: expected {expected[:12]}…, got {actual[:12]}…", path=name)


def page_count(blob_bytes: int) -> int:
    """The number of pages of a blob."""
    return -(-blob_bytes // PAGE_BYTES)


def page_checksums(data: memoryview) -> list[int]:
    """CRC-32C of each page of bytes that begin at a page."""
    return [crc32c(data[i : i + PAGE_BYTES]) for i in range(0, data.nbytes, PAGE_BYTES)]


def digest_file(path: Path) -> FileDigest:
    """Hash a file and sum its pages, in bounded memory."""
    running, sums, size = RunningSha256(), list[int](), 0
    before = _stamp(path)
    for chunk in _chunks(path):
        running.update(chunk)
        sums += page_checksums(chunk)
        size += chunk.nbytes
    if _stamp(path) != before:
        raise _changed("while it was read", path)
    return FileDigest(running.hexdigest(), size, np.array(sums, np.uint32), before)


def check_unchanged(path: Path, digest: FileDigest) -> None:
    """ChecksumError if the file is not the one that was hashed any more."""
    if _stamp(path) != digest.stamp and digest_file(path).sha256 != digest.sha256:
        raise _changed("since it was added", path)


def checked_chunks(path: Path, digest: FileDigest) -> Iterator[memoryview]:
    """The file again, chunk by chunk; a byte that changed is an error before its chunk is returned."""
    position = 0
    for chunk in _chunks(path):
        first = position // PAGE_BYTES
        sums = np.array(page_checksums(chunk), np.uint32)
        position += chunk.nbytes
        if not np.array_equal(sums, digest.page_sums[first : first + len(sums)]):
            raise _changed("while it was published", path)
        if position > digest.size:
            break
        yield chunk
    if position != digest.size:
        raise _changed("while it was published", path)


class DigestedFile:
    """Ranges of a file that must be as it was hashed: every page that is read is checked."""

    def __init__(self, path: Path, digest: FileDigest) -> None:
        self._file = FileRangeReader(path)
        self._sums = digest.page_sums
        self.name, self.size = self._file.name, self._file.size
        if self.size != digest.size:
            raise _changed("since it was added", self.name)

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), or ChecksumError when they are not those that were hashed."""
        check_range(self, start, end)
        if start == end:
            return memoryview(b"")
        first, last = start // PAGE_BYTES, -(-end // PAGE_BYTES)
        pages = self._file.read(first * PAGE_BYTES, min(last * PAGE_BYTES, self.size))
        if not np.array_equal(np.array(page_checksums(pages), np.uint32), self._sums[first:last]):
            raise _changed("since it was added", self.name)
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


def _changed(when: str, path: str | Path) -> ChecksumError:
    return ChecksumError(
        f"the file changed {when}", path=path, hint="Add it again once no program writes to it."
    )


def _chunks(path: Path) -> Iterator[memoryview]:
    """The file in chunks of whole pages; each is only valid until the next one."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    check_regular(path)
    try:
        with path.open("rb") as source:
            while count := source.readinto(buffer):
                yield buffer[:count]
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


def _stamp(path: Path) -> FileStamp:
    try:
        return FileStamp.of(path)
    except OSError as error:
        raise StoreError(f"cannot read ({error.strerror})", path=path) from None


_MAX_FILES = 1024
_SETTLED_NS, _COARSE_SETTLED_NS = 100_000_000, 2_500_000_000
"""A file younger than this may change again within one tick of its clock, so it is not remembered."""
_seen_lock = ThreadLock()
_seen: OrderedDict[tuple[str, FileStamp], NDArray[np.bool_]] = OrderedDict()


def checked_pages(name: str, stamp: FileStamp, count: int) -> NDArray[np.bool_]:
    """A flag for each page, shared by every reader of the same unchanged file; set it after checking."""
    is_coarse = stamp.changed_ns % 1_000_000_000 == 0
    if time.time_ns() - stamp.changed_ns < (_COARSE_SETTLED_NS if is_coarse else _SETTLED_NS):
        return np.zeros(count, bool)
    with _seen_lock:
        flags = _seen.setdefault((name, stamp), np.zeros(count, bool))
        _seen.move_to_end((name, stamp))
        if len(_seen) > _MAX_FILES:
            _seen.popitem(last=False)
        return flags
