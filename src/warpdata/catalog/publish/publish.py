"""Publish a version: upload missing blobs, put the manifest, move the pointers (SPEC.md of formats/manifest)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from warpdata.bytekit.checksum import RunningSha256, sha256_hex
from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import Access, DatasetName, check_tag, is_hash_prefix, writable_store
from warpdata.catalog.publish.pointers import (
    PointerState,
    about_manifest,
    make_cards,
    move_pointer,
    note_dataset,
    note_version,
    read_pointer,
    removal_count,
)
from warpdata.catalog.publish.signing import SUFFIX as SIGNATURE
from warpdata.catalog.publish.signing import sign_version
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    DatasetError,
    ManifestCorruptedError,
    OfflineError,
    TruncatedError,
)
from warpdata.formats.manifest.codec import Packed, PartSource, pack_manifest, parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_PART_BYTES
from warpdata.formats.manifest.model import BlobRef, LongList, Manifest, blob_key, check_uri
from warpdata.ordering.limits import checked_integer
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


T = TypeVar("T")

_MAX_RETRIES = 1_000_000
_MAX_WORKERS = 1000
_PAUSE_S = 0.1
_MAX_PAUSE_S = 4.0


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a version is published."""

    set_latest: bool = True
    tags: tuple[str, ...] = ()
    message: str = ""
    sign_key: Path | None = None
    retries: int = 0
    """How often to try again when another publisher moved `latest` meanwhile."""
    expect_latest: str | None = None
    """The version `latest` must still point at; by default what it was when publishing began."""
    repair: bool = False
    """Read back every blob that is there already and replace damaged ones, the manifest too."""
    progress: Progress | None = None
    workers: int = 4

    def __post_init__(self) -> None:
        for tag in self.tags:
            check_tag(tag)
        checked_integer("retries", self.retries, _MAX_RETRIES)
        checked_integer("workers", self.workers, _MAX_WORKERS, least=1)
        if self.expect_latest is not None and not is_hash_prefix(self.expect_latest):
            expected = "the hash of a version, of which 8 digits are enough"
            raise ValueError(f"expect_latest is {expected}, not {self.expect_latest!r}")


@dataclass(frozen=True, slots=True)
class Published:
    """Result of publishing."""

    dataset_id: str
    version: str
    catalog: str
    blobs_sent: int
    bytes_sent: int
    blobs_present: int
    is_new: bool
    is_latest: bool
    signed_by: str | None = None
    blobs_replaced: int = 0
    """Sent blobs that replaced damaged ones."""

    def __str__(self) -> str:
        return f"{self.dataset_id}@{self.version}"

    def with_sent(self, sent: Sequence[Upload]) -> Published:
        """The result with blobs that were sent before."""
        return replace(
            self,
            blobs_sent=self.blobs_sent + len(sent),
            bytes_sent=self.bytes_sent + sum(upload.size for upload in sent),
            blobs_present=max(0, self.blobs_present - len(sent)),
        )


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The manifest of a version and the files beside it."""

    version: str
    manifest: bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """By the suffix that replaces `.json`."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version that is complete in a catalog."""

    is_new: bool
    sent: Sent
    manifest: bytes
    """The manifest in the catalog: a version that was there before keeps its notes."""


def publish(
    access: Access, name: DatasetName, manifest: Manifest, uploads: Sequence[Upload], options: PublishOptions
) -> Published:
    """Store a version and point `latest` at it. Readers see the old state or the new one."""
    store = writable_store(access)
    removals = removal_count(store)
    seen = read_pointer(store, name.latest_key)
    return publish_after(store, name, seen, removals, manifest, uploads, options)


def publish_after(
    store: BlobStore,
    name: DatasetName,
    seen: PointerState,
    removals: int,
    manifest: Manifest,
    uploads: Sequence[Upload],
    options: PublishOptions,
) -> Published:
    """Publish a version that was built when `latest` was `seen` and `removals` removals had begun."""
    _check_expected(seen, options, name)
    manifest = _with_notes(manifest, seen, options)
    packed = pack_manifest(manifest)
    manifest = replace(manifest, version_hash=parse_manifest(packed).version_hash)
    version = manifest.version_hash
    files = VersionFiles(version, packed, make_cards(manifest))
    signers: list[str] = []

    def move(stored: StoredVersion) -> PointerState:
        if options.sign_key is not None:
            _check_notes(manifest, stored.manifest, name)
            signers.append(sign_version(store, name, version, stored.manifest, options.sign_key))
        before = move_latest(store, name, version, seen, options) if options.set_latest else seen
        for tag in options.tags:
            move_pointer(store, name.tag_key(tag), version, read_pointer(store, name.tag_key(tag)))
        return before

    stored, before = store_version(store, name, files, uploads, options, removals, move)
    parent = before.pointer.version if before.pointer else None
    # A version that was there before keeps its notes; a new one that was overtaken follows the overtaking one.
    about = about_manifest(manifest if stored.is_new else parse_manifest(stored.manifest))
    about = replace(about, parent=parent) if stored.is_new else about
    note_version(store, name, version, parent=parent, tags=options.tags, about=about)
    sent = stored.sent.uploads
    return Published(
        dataset_id=name.dataset_id,
        version=version,
        catalog=store.address,
        blobs_sent=len(sent),
        bytes_sent=sum(upload.size for upload in sent),
        blobs_present=len({upload.sha256 for upload in uploads} - {upload.sha256 for upload in sent}),
        is_new=stored.is_new,
        is_latest=options.set_latest,
        signed_by=signers[-1] if signers else None,
        blobs_replaced=len(stored.sent.replaced),
    )


def store_version(
    store: BlobStore,
    name: DatasetName,
    files: VersionFiles,
    uploads: Sequence[Upload],
    options: PublishOptions,
    removals: int,
    move: Callable[[StoredVersion], T],
    source_of: Callable[[BlobRef], Upload] = lambda blob: Upload(blob.hash, blob.byte_size),
) -> tuple[StoredVersion, T]:
    """Put blobs and manifest, then call `move`, which moves pointers to the version.

    If something was removed from the catalog since `removals` was read, every blob of the version is checked again
    before and after the move. `source_of` has the bytes of blobs that are not in `uploads`.
    """
    stored = _put_version(store, name, files, uploads, options)

    def settle() -> None:
        nonlocal removals, stored
        while (now := removal_count(store)) != removals:
            removals = now
            manifest = parse_manifest(files.manifest, parts=stored_parts(store))
            known = {upload.sha256 for upload in uploads}
            others = [b for b in manifest.blobs().values() if b.hash not in known and not b.is_elsewhere]
            again = _put_version(store, name, files, [*uploads, *map(source_of, others)], options)
            stored = StoredVersion(stored.is_new or again.is_new, stored.sent + again.sent, again.manifest)

    settle()
    moved = move(stored)
    settle()
    return stored, moved


def move_latest(
    store: BlobStore, name: DatasetName, version: str, seen: PointerState, options: PublishOptions
) -> PointerState:
    """Point `latest` at a version and return its state before; ConflictError if it moved, unless there are retries."""
    for attempt in range(options.retries + 1):
        try:
            move_pointer(store, name.latest_key, version, seen)
            break
        except ConflictError:
            if attempt == options.retries:
                raise
            pause(attempt)
            seen = read_pointer(store, name.latest_key)
            _check_expected(seen, options, name)
    if seen.pointer is None:
        note_dataset(store, name)
    return seen


def pause(attempt: int) -> None:
    """Sleep for a random time that grows with each attempt."""
    time.sleep(random.uniform(0, min(_MAX_PAUSE_S, _PAUSE_S * (attempt + 1))))


def _put_version(
    store: BlobStore,
    name: DatasetName,
    files: VersionFiles,
    uploads: Sequence[Upload],
    options: PublishOptions,
) -> StoredVersion:
    """Put the missing blobs, then the manifest and the files beside it."""
    sent = send(store, uploads, repair=options.repair, progress=options.progress, workers=options.workers)
    is_new, manifest = _put_manifest(store, name, files, repair=options.repair)
    # A signature covers the bytes of a manifest: it is of no use beside other notes.
    suffixes = [s for s in files.beside if s != SIGNATURE or manifest == files.manifest]

    def put_beside(suffix: str) -> None:
        try:
            store.put_if_absent(name.version_key(files.version, suffix), files.beside[suffix])
        except ConflictError:
            return

    map_in_threads(put_beside, suffixes, options.workers)
    return StoredVersion(is_new, sent, manifest)


def _put_manifest(
    store: BlobStore, name: DatasetName, files: VersionFiles, *, repair: bool
) -> tuple[bool, bytes]:
    """Put the manifest unless it is there; returns whether it was missing, and the stored one."""
    key = name.version_key(files.version)
    while True:
        try:
            store.put_if_absent(key, files.manifest)
            return True, files.manifest
        except ConflictError:
            try:
                held = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
                break
            except BlobNotFoundError:  # deleted in between
                continue
    assert held is not None
    try:
        parse_manifest(held.data, expected_hash=files.version)
    except ManifestCorruptedError as error:
        if not repair:
            hint = "Publish again with repair=True (`warp publish --repair`)."
            fact = f"the stored manifest is damaged ({error})"
            raise ManifestCorruptedError(fact, path=f"{store.address}/{key}", hint=hint) from None
        replace_file(store, key, files.manifest, held.info)
        return False, files.manifest
    return False, bytes(held.data)


def _check_expected(seen: PointerState, options: PublishOptions, name: DatasetName) -> None:
    now = seen.pointer.version if seen.pointer else None
    if options.expect_latest is not None and not (now or "").startswith(options.expect_latest):
        fact = f"latest is {now and now[:12]}, not {options.expect_latest[:12]} as expected"
        raise ConflictError(fact, path=name.dataset_id)


def _check_notes(manifest: Manifest, stored: bytes, name: DatasetName) -> None:
    """ConflictError if the stored manifest has other notes than ours: a signature would cover them."""
    ours, theirs = (
        {key: value for key, value in notes.items() if key != "parent"}
        for notes in (manifest.metadata, parse_manifest(stored).metadata)
    )
    if ours != theirs:
        differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        fact = f"this version is published with another {' and '.join(differing)}, which would be signed"
        hint = "Give the same notes and message as then, or publish without signing."
        raise ConflictError(fact, path=name.dataset_id, hint=hint)


def _with_notes(manifest: Manifest, seen: PointerState, options: PublishOptions) -> Manifest:
    """The manifest with message and parent; blob addresses are checked."""
    notes: dict[str, Any] = dict(manifest.metadata)
    if options.message:
        notes["message"] = options.message
    if seen.pointer is not None:
        notes["parent"] = seen.pointer.version
    for part in manifest.parts:
        if not isinstance(part.shards, LongList):  # which has no addresses
            for blob in part.blobs():
                if blob.uri is not None:
                    check_uri(blob.uri)
    return replace(manifest, metadata=notes)
