"""Publish a version: upload missing blobs, put the manifest, move the pointers (SPEC.md of formats/manifest)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, writable_store
from warpdata.catalog.names import DatasetName, check_tag, is_hash_prefix
from warpdata.catalog.publish.listing import about_manifest, make_cards, note_dataset, note_version
from warpdata.catalog.publish.pointer import PointerState, move_pointer, read_pointer, removal_count
from warpdata.catalog.publish.signing import SUFFIX as SIGNATURE
from warpdata.catalog.publish.signing import sign_version
from warpdata.catalog.publish.transfer import Progress, Sent, Upload, replace_file, send, stored_parts
from warpdata.errors import BlobNotFoundError, ConflictError, ManifestCorruptedError
from warpdata.formats.manifest.codec import pack_manifest, parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import BlobRef, LongList, Manifest, check_uri
from warpdata.ordering.epochs import checked_integer
from warpdata.stores.blobstore import BlobStore

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
