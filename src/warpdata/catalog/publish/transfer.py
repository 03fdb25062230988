"""Blobs on their way into a catalog: which are missing, which are damaged, where their bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from warpdata.bytekit.checksum import RunningSha256, sha256_hex
from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    DatasetError,
    OfflineError,
    TruncatedError,
)
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_PART_BYTES
from warpdata.formats.manifest.model import BlobRef, blob_key
from warpdata.formats.manifest.parts import Packed, PartSource
from warpdata.stores.blobstore import (
    BlobInfo,
    BlobStore,
    Chunks,
    FileDigest,
    check_sha256,
    check_unchanged,
    checked_chunks,
)
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

S = TypeVar("S", bound=BlobRef)

Progress = Callable[[int, int], None]
ReadRange = Callable[[int, int], memoryview]

_STEP_BYTES = 8 << 20
_SMALL_BYTES = 1 << 20
"""Blobs of at most this size are sent many at a time: a request costs more than its bytes."""
_MAX_HEADS = 1000
"""More blobs than this are looked up by listing the blob area, which returns a thousand at a time."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One blob of a version, and the source of its bytes."""

    sha256: str
    size: int
    chunks: Chunks | None = None
    """None: it must be in the catalog already."""
    staged: tuple[Path, FileDigest] | None = None
    """A finished file of our own, which a local catalog takes without a copy."""

    @property
    def key(self) -> str:
        """The name of the blob in a catalog."""
        return blob_key(self.sha256)


class Uploads(list[Upload]):
    """The blobs of a version that is being built."""

    def add_bytes(self, data: bytes) -> BlobRef:
        """Add a small blob in memory."""
        self.append(upload_bytes(data))
        return BlobRef(self[-1].sha256, self[-1].size)

    def add_file(self, path: Path, digest: FileDigest, *, is_own: bool, name: str | None = None) -> BlobRef:
        """Add a file; one of the caller's that changed since it was added is refused, even if it is there already."""
        if not is_own:
            check_unchanged(path, digest)
        self.append(upload_file(path, digest, is_staged=is_own))
        return BlobRef(digest.sha256, digest.size, name=name)

    def add_list(self, packed: Packed[S]) -> Sequence[S]:
        """Add the new parts of a list of shards."""
        self.extend(upload_bytes(data) for data in packed.blobs.values())
        return packed.shards


@dataclass(frozen=True, slots=True)
class Sent:
    """Blobs that were put, and those of them that replaced damaged ones."""

    uploads: tuple[Upload, ...] = ()
    replaced: tuple[Upload, ...] = ()

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.uploads + other.uploads, self.replaced + other.replaced)


def upload_file(path: Path, digest: FileDigest, *, is_staged: bool) -> Upload:
    """A file of this machine; one that changed since it was hashed is refused while it is sent."""
    staged = (path, digest) if is_staged else None
    return Upload(digest.sha256, digest.size, lambda: checked_chunks(path, digest), staged)


def upload_bytes(data: bytes) -> Upload:
    """A small blob in memory."""
    return Upload(sha256_hex(data), len(data), lambda: iter([data]))


def upload_blob(store: BlobStore | None, key: str, blob: BlobRef) -> Upload:
    """A blob of another store; bytes with another hash are never stored."""
    if store is None:
        raise OfflineError("a blob must be copied from a catalog that is not reachable offline", path=key)
    return upload_read(_range_reader(store, key), f"{store.address}/{key}", blob)


def upload_read(read: ReadRange, label: str, blob: BlobRef) -> Upload:
    """A blob that is read by range; bytes with another hash are never stored."""
    return Upload(blob.hash, blob.byte_size, lambda: _checked_chunks(read, label, blob.hash, blob.byte_size))


def send(
    store: BlobStore,
    uploads: Sequence[Upload],
    *,
    repair: bool = False,
    progress: Progress | None = None,
    workers: int = 4,
) -> Sent:
    """Put the blobs that are missing or have a wrong size, and with `repair` those with wrong bytes."""
    by_hash = {upload.sha256: upload for upload in uploads}
    many = workers if workers <= 1 else max(workers, MAX_PARALLEL)
    sizes = stored_sizes(store, [upload.key for upload in by_hash.values()], workers=many)
    todo = [upload for upload in by_hash.values() if repair or sizes[upload.key] != upload.size]
    total = sum(upload.size for upload in todo)
    done = [0]

    def put(upload: Upload) -> bool:
        is_intact = sizes[upload.key] == upload.size and is_blob_intact(store, upload)
        if not is_intact:
            put_blob(store, upload)
        done[0] += upload.size
        if progress is not None:
            progress(done[0], total)
        return not is_intact

    is_small = max((upload.size for upload in todo), default=0) <= _SMALL_BYTES
    flags = map_in_threads(put, todo, workers=many if is_small else workers)
    sent = tuple(upload for upload, was_sent in zip(todo, flags, strict=True) if was_sent)
    return Sent(sent, tuple(upload for upload in sent if sizes[upload.key] is not None))


def stored_sizes(store: BlobStore, keys: Sequence[str], *, workers: int) -> dict[str, int | None]:
    """The size of each blob in the store, None for missing ones."""
    if len(keys) <= _MAX_HEADS:
        return dict(zip(keys, map_in_threads(lambda key: _size(store, key), keys, workers), strict=True))
    prefixes = sorted({f"{key.rpartition('/')[0]}/" for key in keys})
    listings = map_in_threads(lambda prefix: list(store.list(prefix)), prefixes, workers)
    sizes = {info.key: info.size for listing in listings for info in listing}
    return {key: sizes.get(key) for key in keys}


def stored_parts(store: BlobStore) -> PartSource:
    """Fetches parts of manifests straight from a store."""

    def fetch(ref: BlobRef) -> memoryview:
        blob = store.get(ref.key, max_bytes=MAX_PART_BYTES)
        assert blob is not None
        return blob.data

    return lambda refs: map_in_threads(fetch, refs)


def is_blob_intact(store: BlobStore, upload: Upload) -> bool:
    """Whether a stored blob has its hash; reads all of it."""
    try:
        for _ in _checked_chunks(_range_reader(store, upload.key), upload.key, upload.sha256, upload.size):
            pass
    except (ChecksumError, TruncatedError, BlobNotFoundError):
        return False
    return True


def put_blob(store: BlobStore, upload: Upload) -> None:
    """Put one blob, in place of a damaged one if there is one."""
    if upload.chunks is None:
        hint = "Repair that version first (`warp repair`), or add or store the part again."
        fact = "a blob that is to be kept is missing or damaged"
        raise DatasetError(fact, path=f"{store.address}/{upload.key}", hint=hint)
    inner = store.inner if isinstance(store, ReliableStore) else store
    if upload.staged is not None and isinstance(inner, LocalStore):
        inner.adopt_file(upload.key, *upload.staged)
    else:
        store.put_stream(upload.key, upload.chunks, upload.size)


def replace_file(store: BlobStore, key: str, data: bytes, seen: BlobInfo) -> None:
    """Replace a small file as it was seen; a lost response to our own write is no conflict."""
    try:
        store.compare_and_swap(key, data, seen.etag)
    except ConflictError:
        held = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
        if held is None or held.data != data:
            raise


def _range_reader(store: BlobStore, key: str) -> ReadRange:
    return lambda start, end: store.get_ranges(key, [(start, end)])[0]


def _checked_chunks(read: ReadRange, label: str, sha256: str, size: int) -> Iterator[memoryview]:
    """The bytes of a blob; the last of them only after the hash of all was checked."""
    running = RunningSha256()
    for start in range(0, size, _STEP_BYTES):
        end = min(start + _STEP_BYTES, size)
        chunk = read(start, end)
        running.update(chunk)
        if end == size:
            check_sha256(sha256, running.hexdigest(), label)
        yield chunk


def _size(store: BlobStore, key: str) -> int | None:
    try:
        return store.head(key).size
    except BlobNotFoundError:
        return None
