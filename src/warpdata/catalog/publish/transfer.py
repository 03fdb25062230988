"""Bytes on their way into a catalog: what is there already, what is sent, what is damaged and replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from warpdata.formats.manifest.parts import PartSource
from warpdata.stores.blobstore import BlobInfo, BlobStore, Chunks, FileDigest, check_sha256, checked_chunks
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

Progress = Callable[[int, int], None]

_STEP_BYTES = 8 << 20
_LITTLE_BYTES = 1 << 20
"""Blobs of at most this size are sent many at a time: a request costs more than its bytes."""
_ASK_ONE_BY_ONE = 1000
"""More blobs than this are looked up by listing the blob area, which shows a thousand at a time."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One blob a version needs, and where its bytes come from."""

    sha256: str
    size: int
    chunks: Chunks | None = None
    """None: it must be in the catalog already."""
    staged: tuple[Path, FileDigest] | None = None
    """A finished file of our own, which a folder may take without a copy."""

    @property
    def key(self) -> str:
        """Its name in a catalog."""
        return blob_key(self.sha256)


@dataclass(frozen=True, slots=True)
class Sent:
    """Which blobs were put, and which of them in place of damaged ones."""

    uploads: tuple[Upload, ...]
    replaced: tuple[Upload, ...]


def upload_file(path: Path, digest: FileDigest, *, is_staged: bool) -> Upload:
    """A file on this machine; one that changed since it was hashed is refused while it is sent."""
    staged = (path, digest) if is_staged else None
    return Upload(digest.sha256, digest.size, lambda: checked_chunks(path, digest), staged)


def upload_bytes(data: bytes) -> Upload:
    """A small blob that is in memory."""
    return Upload(sha256_hex(data), len(data), lambda: iter([data]))


def upload_blob(store: BlobStore | None, key: str, blob: BlobRef) -> Upload:
    """A blob of another store; bytes that do not have its hash are never stored."""
    if store is None:
        raise OfflineError("a blob has to be copied from a catalog that may not be asked", path=key)
    label = f"{store.address}/{key}"
    return upload_read(lambda start, end: store.get_ranges(key, [(start, end)])[0], label, blob)


def upload_read(read: Callable[[int, int], memoryview], label: str, blob: BlobRef) -> Upload:
    """A blob that is read range by range from anywhere; bytes that do not have its hash are never stored."""
    return Upload(blob.hash, blob.byte_size, lambda: _checked_blob(read, label, blob.hash, blob.byte_size))


def send(
    store: BlobStore,
    uploads: Sequence[Upload],
    *,
    repair: bool = False,
    progress: Progress | None = None,
    workers: int = 4,
) -> Sent:
    """Put the blobs that are missing or have a wrong size, and with `repair` those with wrong bytes."""
    wanted = {upload.sha256: upload for upload in uploads}
    sizes = stored_sizes(store, [upload.key for upload in wanted.values()], workers=_many(workers))
    todo = list(wanted.values()) if repair else [u for u in wanted.values() if sizes[u.key] != u.size]
    total = sum(upload.size for upload in todo)
    done = [0]

    def bring(upload: Upload) -> bool:
        is_sound = sizes[upload.key] == upload.size and is_intact(
            store, upload
        )  # sizes differ unless repairing
        if not is_sound:
            put_blob(store, upload)
        done[0] += upload.size
        if progress is not None:
            progress(done[0], total)
        return not is_sound

    is_little = max((upload.size for upload in todo), default=0) <= _LITTLE_BYTES
    flags = map_in_threads(bring, todo, workers=_many(workers) if is_little else workers)
    sent = tuple(upload for upload, was_sent in zip(todo, flags, strict=True) if was_sent)
    return Sent(sent, tuple(upload for upload in sent if sizes[upload.key] is not None))


def _many(workers: int) -> int:
    """Threads for what takes time and no bandwidth; one stays one."""
    return workers if workers <= 1 else max(workers, MAX_PARALLEL)


def stored_sizes(store: BlobStore, keys: Sequence[str], *, workers: int) -> dict[str, int | None]:
    """The size of each blob in the store, None for those that are not there."""
    if len(keys) <= _ASK_ONE_BY_ONE:
        return dict(zip(keys, map_in_threads(lambda key: _size(store, key), keys, workers), strict=True))
    prefixes = sorted({f"{key.rpartition('/')[0]}/" for key in keys})
    listed = map_in_threads(lambda prefix: list(store.list(prefix)), prefixes, workers)
    found = {info.key: info.size for infos in listed for info in infos}
    return {key: found.get(key) for key in keys}


def stored_parts(store: BlobStore) -> PartSource:
    """Fetches parts of manifests straight from a store."""

    def fetch(refs: Sequence[BlobRef]) -> list[memoryview]:
        return map_in_threads(lambda ref: _whole(store, ref), refs)

    return fetch


def _whole(store: BlobStore, ref: BlobRef) -> memoryview:
    blob = store.get(ref.key, max_bytes=MAX_PART_BYTES)
    assert blob is not None
    return blob.data


def is_intact(store: BlobStore, upload: Upload) -> bool:
    """Read a stored blob and compare it with its hash."""
    key = upload.key
    try:
        for _ in _checked_blob(
            lambda start, end: store.get_ranges(key, [(start, end)])[0], key, upload.sha256, upload.size
        ):
            pass
    except (ChecksumError, TruncatedError, BlobNotFoundError):
        return False
    return True


def _checked_blob(
    read: Callable[[int, int], memoryview], label: str, sha256: str, size: int
) -> Iterator[memoryview]:
    """The bytes of a blob; the last of them only once all are known to have their hash."""
    running = RunningSha256()
    for start in range(0, size, _STEP_BYTES):
        end = min(start + _STEP_BYTES, size)
        chunk = read(start, end)
        running.update(chunk)
        if end == size:
            check_sha256(sha256, running.hexdigest(), label)
        yield chunk


def put_blob(store: BlobStore, upload: Upload) -> None:
    """Put one blob in place of whatever is there."""
    if upload.chunks is None:
        hint = "Repair that version first (`warp repair`), or add or store the part again."
        fact = "a blob that is to be kept is missing or damaged"
        raise DatasetError(fact, path=f"{store.address}/{upload.key}", hint=hint)
    inner = store.inner if isinstance(store, ReliableStore) else store
    if upload.staged is not None and isinstance(inner, LocalStore):
        inner.adopt_file(upload.key, *upload.staged)
    else:
        store.put_stream(upload.key, upload.chunks, upload.size)


def put_in_place(store: BlobStore, key: str, data: bytes, seen: BlobInfo) -> None:
    """Put a small file in place of one that was seen; a conflict whose result is our own write is none."""
    try:
        store.compare_and_swap(key, data, seen.etag)
    except ConflictError:
        held = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
        if held is None or held.data != data:
            raise


def _size(store: BlobStore, key: str) -> int | None:
    try:
        return store.head(key).size
    except BlobNotFoundError:
        return None
