"""Publish a version: upload missing blobs, put the manifest, move the pointers (SPEC.md of formats/manifest)."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from warpdata.bytekit.checksum import RunningSha256, sha256_hex
from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import HASH_PREFIX, DatasetName, check_tag
from warpdata.catalog.publish import pointers
from warpdata.catalog.publish.signing import SUFFIX as SIGNATURE
from warpdata.catalog.publish.signing import sign_version
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    DatasetError,
    ManifestCorruptedError,
    OfflineError,
    PointerMovedError,
    TruncatedError,
    require_integer,
    require_kind,
    suggests,
)
from warpdata.formats.manifest.codec import pack_manifest, parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_PART_BYTES
from warpdata.formats.manifest.model import (
    BlobRef,
    Manifest,
    Packed,
    PartedShards,
    PartSource,
    blob_key,
    check_uri,
)
from warpdata.stores.blobstore import (
    BlobStore,
    Chunks,
    FileDigest,
    ReliableStore,
    check_sha256,
    check_unchanged,
    checked_chunks,
)
from warpdata.stores.local import LocalStore

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
        self.append(Upload(sha256_hex(data), len(data), lambda: iter([data])))
        return BlobRef(self[-1].sha256, self[-1].size)

    def add_file(self, path: Path, digest: FileDigest, *, is_own: bool, name: str | None = None) -> BlobRef:
        """Add a file; one of the caller's that changed since it was added is refused, even if it is there already."""
        if not is_own:
            check_unchanged(path, digest)
        self.append(upload_file(path, digest, is_staged=is_own))
        return BlobRef(digest.sha256, digest.size, name=name)

    def add_list(self, packed: Packed[S]) -> Sequence[S]:
        """Add the new parts of a list of shards."""
        for data in packed.blobs.values():
            self.add_bytes(data)
        return packed.shards


def upload_file(path: Path, digest: FileDigest, *, is_staged: bool) -> Upload:
    """A file of this machine; one that changed since it was hashed is refused while it is sent."""
    staged = (path, digest) if is_staged else None
    return Upload(digest.sha256, digest.size, lambda: checked_chunks(path, digest), staged)


def upload_blob(store: BlobStore | None, key: str, blob: BlobRef) -> Upload:
    """A blob of another store; bytes with another hash are never stored."""
    if store is None:
        raise OfflineError("a blob must be copied from a catalog that is not reachable offline", path=key)
    return upload_read(_range_reader(store, key), f"{store.address}/{key}", blob)


def upload_read(read: ReadRange, label: str, blob: BlobRef) -> Upload:
    """A blob that is read by range; bytes with another hash are never stored."""
    return Upload(blob.hash, blob.byte_size, lambda: _checked_chunks(read, label, blob.hash, blob.byte_size))


def upload_missing(
    store: BlobStore, uploads: Sequence[Upload], options: PublishOptions
) -> list[tuple[Upload, bool]]:
    """Put the blobs that are missing or have a wrong size, and with `repair` those with wrong bytes.

    Returns the blobs that were put, and whether each replaced a damaged one.
    """
    by_hash = {upload.sha256: upload for upload in uploads}
    workers, progress = options.workers, options.progress
    many = workers if workers <= 1 else max(workers, MAX_PARALLEL)
    sizes = stored_sizes(store, [upload.key for upload in by_hash.values()], workers=many)
    todo = [upload for upload in by_hash.values() if options.repair or sizes[upload.key] != upload.size]
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
    return [(u, sizes[u.key] is not None) for u, was_sent in zip(todo, flags, strict=True) if was_sent]


def stored_sizes(store: BlobStore, keys: Sequence[str], *, workers: int) -> dict[str, int | None]:
    """The size of each blob in the store, None for missing ones."""

    def size_of(key: str) -> int | None:
        try:
            return store.head(key).size
        except BlobNotFoundError:
            return None

    if len(keys) <= _MAX_HEADS:
        return dict(zip(keys, map_in_threads(size_of, keys, workers), strict=True))
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


_MAX_RETRIES = 1_000_000
_MAX_WORKERS = 1000
_PAUSE_S = 0.1
_MAX_PAUSE_S = 4.0


class VersionKeywords(TypedDict, total=False):
    """Fields of PublishOptions that verbs take which make a version of their own."""

    message: str
    tags: str | Sequence[str]
    sign_key: str | os.PathLike[str] | None
    retries: int


class PublishKeywords(VersionKeywords, total=False):
    """Fields of PublishOptions as keyword arguments."""

    set_latest: bool
    expect_latest: str | None
    repair: bool
    progress: Progress | None
    workers: int


@suggests
@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a version is published."""

    set_latest: bool = True
    tags: Sequence[str] = ()
    message: str = ""
    sign_key: str | os.PathLike[str] | None = None
    retries: int = 0
    """How often to try again when another publisher moved `latest` meanwhile."""
    expect_latest: str | None = None
    """The version `latest` must still point at; by default what it was when publishing began."""
    repair: bool = False
    """Read back every blob that is there already and replace damaged ones, the manifest too."""
    progress: Progress | None = None
    workers: int = 4

    def __post_init__(self) -> None:
        tags = (self.tags,) if isinstance(self.tags, str) else tuple(self.tags)
        object.__setattr__(self, "tags", tuple(map(check_tag, tags)))
        require_kind("message", self.message, str, "a text")
        if self.message.encode("utf-8", "replace").decode() != self.message:
            raise ValueError(f"message is not valid Unicode: {self.message!r}")
        require_integer("retries", self.retries, _MAX_RETRIES)
        require_integer("workers", self.workers, _MAX_WORKERS, least=1)
        latest: object = self.expect_latest
        if latest is not None and not (isinstance(latest, str) and HASH_PREFIX.fullmatch(latest)):
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


Build = Callable[[str | None], tuple[Manifest, Sequence[Upload]]]
"""Makes the version to publish, given the one that `latest` points at, and lists the blobs that may be new."""


def publish(
    store: BlobStore, name: DatasetName, build: Build, options: PublishOptions, early: Sequence[Upload] = ()
) -> Published:
    """Store a version and point `latest` at it; if another publisher was faster, build and store it again.

    Readers see the old state or the new one. `early` are the blobs that are needed in any case: they are sent first.
    """
    publication = Publication(store, name, options)
    publication.upload_missing(early)
    for attempt in range(options.retries + 1):
        is_last = attempt == options.retries
        removals = pointers.removal_count(store)
        seen = pointers.read_pointer(store, name.latest_key)
        try:
            manifest, uploads = build(seen.version)
            # If it is overtaken already, do not store a version that would never be the latest.
            if is_last or pointers.read_pointer(store, name.latest_key).pointer == seen.pointer:
                return publication.publish_after(seen, removals, manifest, uploads)
        except (PointerMovedError, DatasetError, BlobNotFoundError):
            # An overtaken version may also be deleted and its blobs collected, so that something of it is missing.
            if is_last or pointers.read_pointer(store, name.latest_key).pointer == seen.pointer:
                raise
        pause(attempt)
    raise AssertionError("the last attempt returns or raises")


class Publication:
    """The versions of a dataset that one publisher brings into a catalog, and what was sent for them."""

    def __init__(self, store: BlobStore, name: DatasetName, options: PublishOptions) -> None:
        self.store, self.name, self.options = store, name, options
        self.sent: list[tuple[Upload, bool]] = []
        """The blobs that were put, and whether each replaced a damaged one."""
        self.is_new = False
        self.manifest = b""
        """The manifest in the catalog: a version that was there before keeps its notes."""

    def upload_missing(self, uploads: Sequence[Upload]) -> None:
        """Put blobs that are not there."""
        self.sent += upload_missing(self.store, uploads, self.options)

    def publish_after(
        self, seen: pointers.PointerState, removals: int, manifest: Manifest, uploads: Sequence[Upload]
    ) -> Published:
        """Publish a version that was built when `latest` was `seen` and `removals` removals had begun."""
        store, name, options = self.store, self.name, self.options
        expected = options.expect_latest
        if expected is not None and not (seen.version or "").startswith(expected):
            fact = f"latest is {seen.version and seen.version[:12]}, not {expected[:12]} as expected"
            raise ConflictError(fact, path=name.dataset_id)
        manifest = _with_notes(manifest, seen, options)
        packed = pack_manifest(manifest)
        manifest = replace(manifest, version_hash=parse_manifest(packed).version_hash)
        version, signer = manifest.version_hash, None
        files = {".json": packed, **pointers.make_cards(manifest)}
        with self.store_version(version, files, uploads, removals):
            if options.sign_key is not None:
                signer = self._sign(manifest, Path(options.sign_key))
            if options.set_latest:
                pointers.move_latest(store, name, version, seen)
            for key in map(name.tag_key, options.tags):
                pointers.move_pointer(store, key, version, pointers.read_pointer(store, key))
        # A version that was there before keeps its notes; a new one that was overtaken follows the overtaking one.
        about = pointers.about_manifest(manifest if self.is_new else parse_manifest(self.manifest))
        about = replace(about, parent=seen.version) if self.is_new else about
        pointers.note_version(store, name, version, parent=seen.version, tags=options.tags, about=about)
        sent = {upload.sha256: upload.size for upload, _ in self.sent}
        return Published(
            dataset_id=name.dataset_id,
            version=version,
            catalog=store.address,
            blobs_sent=len(sent),
            bytes_sent=sum(sent.values()),
            blobs_present=len({upload.sha256 for upload in uploads} - sent.keys()),
            is_new=self.is_new,
            is_latest=options.set_latest,
            signed_by=signer,
            blobs_replaced=sum(was_damaged for _, was_damaged in self.sent),
        )

    def _sign(self, manifest: Manifest, key_file: Path) -> str:
        """Sign the stored manifest; ConflictError if its notes are not ours, because the signature would cover them."""
        ours, theirs = ({**m.metadata, "parent": None} for m in (manifest, parse_manifest(self.manifest)))
        if odd := sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)):
            fact = f"this version is published with another {' and '.join(odd)}, which would be signed"
            hint = "Give the same notes and message as then, or publish without signing."
            raise ConflictError(fact, path=self.name.dataset_id, hint=hint)
        return sign_version(self.store, self.name, manifest.version_hash, self.manifest, key_file)

    @contextlib.contextmanager
    def store_version(
        self,
        version: str,
        files: Mapping[str, bytes],
        uploads: Sequence[Upload],
        removals: int,
        source_of: Callable[[BlobRef], Upload] = lambda blob: Upload(blob.hash, blob.byte_size),
    ) -> Iterator[None]:
        """Upload blobs, then put the manifest and the files beside it, given by their suffixes.

        Inside the `with` block pointers may be moved to the version.
        If something was removed from the catalog since `removals` was read, every blob of the version is checked
        again, before and after the block. `source_of` has the bytes of blobs that are not in `uploads`.
        """
        self.put_version(version, files, uploads)

        def settle(seen: int) -> int:
            while (now := pointers.removal_count(self.store)) != seen:
                seen = now
                manifest = parse_manifest(files[".json"], parts=stored_parts(self.store))
                known = {upload.sha256 for upload in uploads}
                others = [b for b in manifest.blobs().values() if b.hash not in known and not b.is_elsewhere]
                self.put_version(version, files, [*uploads, *map(source_of, others)])
            return seen

        removals = settle(removals)
        yield
        settle(removals)

    def put_version(self, version: str, files: Mapping[str, bytes], uploads: Sequence[Upload]) -> None:
        """Put the missing blobs, then the manifest and the files beside it."""
        self.upload_missing(uploads)
        self._put_manifest(version, files[".json"])
        # A signature covers the bytes of a manifest: it is of no use beside other notes.
        suffixes = [s for s in files if s != SIGNATURE or self.manifest == files[".json"]]

        def put_beside(suffix: str) -> None:
            with contextlib.suppress(ConflictError):
                self.store.put_if_absent(self.name.version_key(version, suffix), files[suffix])

        map_in_threads(put_beside, [s for s in suffixes if s != ".json"], self.options.workers)

    def _put_manifest(self, version: str, data: bytes) -> None:
        """Put the manifest unless it is there; a damaged one is replaced or an error."""
        store, key = self.store, self.name.version_key(version)
        held, self.manifest = None, data
        while held is None:
            with contextlib.suppress(ConflictError):
                store.put_if_absent(key, data)
                self.is_new = True
                return
            held = pointers.get_small(store, key, MAX_MANIFEST_BYTES)  # None if it was deleted in between
        try:
            parse_manifest(held.data, expected_hash=version)
            self.manifest = bytes(held.data)
        except ManifestCorruptedError as error:
            if not self.options.repair:
                hint = "Publish again with repair=True (`warp publish --repair`)."
                fact = f"the stored manifest is damaged ({error})"
                raise ManifestCorruptedError(fact, path=f"{store.address}/{key}", hint=hint) from None
            pointers.replace_small(store, key, data, held)


def utc_now() -> str:
    """The time of a new version."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def pause(attempt: int) -> None:
    """Sleep for a random time that grows with each attempt."""
    time.sleep(random.uniform(0, min(_MAX_PAUSE_S, _PAUSE_S * (attempt + 1))))


def _with_notes(manifest: Manifest, seen: pointers.PointerState, options: PublishOptions) -> Manifest:
    """The manifest with message and parent; blob addresses are checked."""
    notes: dict[str, Any] = dict(manifest.metadata)
    if options.message:
        notes["message"] = options.message
    if seen.version is not None:
        notes["parent"] = seen.version
    for part in manifest.parts:
        if not isinstance(part.shards, PartedShards):  # which has no addresses
            for blob in part.blobs():
                if blob.uri is not None:
                    check_uri(blob.uri)
    return replace(manifest, metadata=notes)
