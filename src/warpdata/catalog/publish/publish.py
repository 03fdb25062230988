"""Make a version visible: blobs first, the manifest next, the pointer last."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, writable_catalog
from warpdata.catalog.build.card import cards
from warpdata.catalog.names import DatasetName, check_tag, is_hash_prefix
from warpdata.catalog.publish.claims import Claim, keeping
from warpdata.catalog.publish.dataset_list import note_dataset
from warpdata.catalog.publish.pointer import PointerState, move_pointer, read_pointer
from warpdata.catalog.publish.roster import about_manifest, note_version
from warpdata.catalog.publish.signing import SUFFIX as SIGNATURE
from warpdata.catalog.publish.signing import sign_version
from warpdata.catalog.publish.transfer import Progress, Sent, Upload, put_in_place, send
from warpdata.errors import BlobNotFoundError, ConflictError, ManifestCorruptedError, PointerMovedError
from warpdata.formats.manifest.fields import check_uri
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import ArtifactPart, LongList, Manifest, TablePart
from warpdata.formats.manifest.reader import parse_manifest
from warpdata.formats.manifest.writer import pack_manifest
from warpdata.ordering.limits import checked_integer
from warpdata.stores.blobstore import BlobStore

_MOST_RETRIES = 1_000_000
_PAUSE_S = 0.1
_MAX_PAUSE_S = 4.0
_MOST_WORKERS = 1000


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """What publishing may do beside storing the version."""

    set_latest: bool = True
    tags: tuple[str, ...] = ()
    message: str = ""
    sign_key: Path | None = None
    retries: int = 0
    """How often to move `latest` after all when somebody else moved it meanwhile."""
    expect_latest: str | None = None
    """The version `latest` must still point at; by default what it was when publishing began."""
    bases: tuple[str, ...] = ()
    """Manifests of this catalog whose blobs the version shares: as long as they are there, so are the blobs."""
    repair: bool = False
    """Read back every blob that is there already and replace those that are damaged, the manifest too."""
    progress: Progress | None = None
    workers: int = 4

    def __post_init__(self) -> None:
        checked_integer("retries", self.retries, _MOST_RETRIES)
        checked_integer("workers", self.workers, _MOST_WORKERS, least=1)
        if self.expect_latest is not None and not is_hash_prefix(self.expect_latest):
            raise ValueError(
                "expect_latest is the hash of a version, of which 8 digits are enough, "
                f"not {self.expect_latest!r}"
            )


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did."""

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
    """How many of those sent took the place of damaged ones."""

    def __str__(self) -> str:
        return f"{self.dataset_id}@{self.version}"


def with_early(published: Published, sent: Sequence[Upload]) -> Published:
    """The same, with blobs that were sent before it was their version's turn."""
    return replace(
        published, blobs_sent=published.blobs_sent + len(sent),
        bytes_sent=published.bytes_sent + sum(upload.size for upload in sent),
        blobs_present=max(0, published.blobs_present - len(sent)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The files of one version beside its blobs."""

    version: str
    manifest: bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """What else lies beside the manifest, by the suffix that stands in place of `.json`."""
    sign: Callable[[bytes], str] | None = None
    """Puts a signature over the manifest as it lies there beside it, and gives the public key."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version that is in a catalog, whole."""

    is_new: bool
    sent: tuple[Sent, ...]
    manifest: bytes
    """The manifest as it lies there: of a version that was there before, with the notes it had."""
    signed_by: str | None
    keep: Callable[[], None]
    """See to it that the version is still there and claimed: called before each pointer is moved to it."""

    @property
    def uploads(self) -> list[Upload]:
        """Every blob that was put."""
        return [upload for sent in self.sent for upload in sent.uploads]


def publish(
    access: Access, name: DatasetName, manifest: Manifest, uploads: Sequence[Upload], options: PublishOptions
) -> Published:
    """Store a version; at every moment readers see the old state or the new one."""
    for tag in options.tags:
        check_tag(tag)
    catalog = writable_catalog(access)
    store = catalog.store
    assert store is not None
    return publish_after(store, name, read_pointer(store, name.latest_key), manifest, uploads, options)


def publish_after(
    store: BlobStore,
    name: DatasetName,
    seen: PointerState,
    manifest: Manifest,
    uploads: Sequence[Upload],
    options: PublishOptions,
) -> Published:
    """Publish to an open store if `latest` is still as it was seen; with retries, after it moved too."""
    _check_expected(seen, options, name)
    manifest = _with_notes(manifest, seen, options)
    packed = pack_manifest(manifest)
    version = parse_manifest(packed).version_hash
    manifest = replace(manifest, version_hash=version)
    key_file = options.sign_key

    def sign(stored: bytes) -> str:
        assert key_file is not None
        _check_notes(manifest, stored, name)
        return sign_version(store, name, version, stored, key_file)

    files = VersionFiles(version, packed, cards(manifest), None if key_file is None else sign)
    with storing(store, name, files, uploads, options) as stored:
        if options.set_latest:
            stored.keep()
            seen = move_latest(store, name, version, seen, options)
        for tag in options.tags:
            key = name.tag_key(tag)
            stored.keep()
            move_pointer(store, key, version, read_pointer(store, key))
    before = None if seen.pointer is None else seen.pointer.version
    # What lies there counts: a version that was there before has the notes it had. A new one that was overtaken on its
    # way names an older one than that which it came to follow.
    about = about_manifest(manifest if stored.is_new else parse_manifest(stored.manifest))
    about = replace(about, parent=before) if stored.is_new else about
    note_version(store, name, version, parent=before, tags=options.tags, about=about)
    sent = stored.uploads
    return Published(
        name.dataset_id, version, store.address, len(sent), sum(upload.size for upload in sent),
        len({upload.sha256 for upload in uploads} - {upload.sha256 for upload in sent}), stored.is_new,
        options.set_latest, stored.signed_by, sum(len(each.replaced) for each in stored.sent),
    )  # fmt: skip


@contextlib.contextmanager
def storing(
    store: BlobStore,
    name: DatasetName,
    files: VersionFiles,
    uploads: Sequence[Upload],
    options: PublishOptions,
) -> Iterator[StoredVersion]:
    """A version in the catalog, whole, and claimed: inside, pointers may be moved to it."""
    keys = {upload.key for upload in uploads} | set(name.version_keys(files.version)) | set(options.bases)
    with keeping(store, keys) as claim:

        def bring() -> StoredVersion:
            sent, is_new, manifest = _bring(store, name, files, uploads, options, claim)
            # A signature is over the very bytes of a manifest: it is of no use beside another spelling.
            if SIGNATURE in files.beside and manifest == files.manifest:
                _put_beside(store, name, files, SIGNATURE)
            signed_by = None if files.sign is None else files.sign(manifest)
            return StoredVersion(is_new, sent, manifest, signed_by, keep)

        def keep() -> None:
            if not claim.is_fresh:
                claim.renew()
                bring()

        yield bring()
        keep()  # should the last move itself have taken so long that a deleter went before it


def _put_beside(store: BlobStore, name: DatasetName, files: VersionFiles, suffix: str) -> bool:
    """Whether it was not there before."""
    try:
        store.put_if_absent(name.version_key(files.version, suffix), files.beside[suffix])
    except ConflictError:
        return False
    return True


def pause(attempt: int) -> None:
    """Wait for a random time that grows with each attempt, so that many publishers do not meet again."""
    time.sleep(random.uniform(0, min(_MAX_PAUSE_S, _PAUSE_S * (attempt + 1))))


def move_latest(
    store: BlobStore, name: DatasetName, version: str, seen: PointerState, options: PublishOptions
) -> PointerState:
    """Point `latest` at a version and give what it was; moved meanwhile, it is a conflict unless there are retries."""
    for attempt in range(options.retries + 1):
        try:
            move_pointer(store, name.latest_key, version, seen)
            if seen.pointer is None:
                note_dataset(store, name)
            return seen
        except ConflictError:
            if attempt == options.retries:
                raise
            pause(attempt)
            seen = read_pointer(store, name.latest_key)
            _check_expected(seen, options, name)
    raise AssertionError("the last attempt returns or raises")


def _bring(
    store: BlobStore,
    name: DatasetName,
    files: VersionFiles,
    uploads: Sequence[Upload],
    options: PublishOptions,
    claim: Claim,
) -> tuple[tuple[Sent, ...], bool, bytes]:
    """Blobs and manifest, all of them under one claim that was never taken for dead; the manifest as it lies there."""
    sent: list[Sent] = []
    is_new = False
    while True:
        sent.append(
            send(
                store, uploads, repair=options.repair, progress=options.progress, workers=options.workers
            )
        )  # fmt: skip
        _check_bases(store, options)
        if claim.is_fresh:
            puts: list[Callable[[], Any]] = [lambda: _put_manifest(store, name, files, repair=options.repair)]
            puts += [
                partial(_put_beside, store, name, files, each) for each in files.beside if each != SIGNATURE
            ]
            was_absent, held = map_in_threads(lambda put: put(), puts, options.workers)[0]
            is_new |= was_absent
            if claim.is_held() and held is not None:
                return tuple(sent), is_new, held
        # It took so long that a collector may have gone before us: claim anew and look at everything again.
        claim.renew()


def _check_bases(store: BlobStore, options: PublishOptions) -> None:
    """They were claimed before: if they are there now, nobody removes them, nor the blobs they name."""
    for key in options.bases:
        try:
            store.head(key)
        except BlobNotFoundError:
            fact = "the version this one goes on from was deleted meanwhile"
            hint = "Publish again: extend() goes on from the newest version; keep() needs one that is there."
            raise PointerMovedError(fact, path=f"{store.address}/{key}", hint=hint) from None


def _put_manifest(
    store: BlobStore, name: DatasetName, files: VersionFiles, *, repair: bool
) -> tuple[bool, bytes | None]:
    """Whether there was no manifest, and the one that lies there; None where that was deleted meanwhile.

    One that is damaged is replaced if asked.
    """
    key = name.version_key(files.version)
    try:
        store.put_if_absent(key, files.manifest)
        return True, files.manifest
    except ConflictError:
        try:
            held = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
        except BlobNotFoundError:
            return False, None
    assert held is not None
    try:
        parse_manifest(held.data, expected_hash=files.version)
    except ManifestCorruptedError as error:
        if not repair:
            hint = "Publish again with repair=True (`warp publish --repair`)."
            raise ManifestCorruptedError(
                f"the stored manifest is damaged ({error})", path=f"{store.address}/{key}", hint=hint
            ) from None
        put_in_place(store, key, files.manifest, held.info)
        return False, files.manifest
    return False, bytes(held.data)


def _check_expected(seen: PointerState, options: PublishOptions, name: DatasetName) -> None:
    now = seen.pointer.version if seen.pointer else None
    if options.expect_latest is not None and not (now or "").startswith(options.expect_latest):
        fact = f"latest is {now and now[:12]}, not {options.expect_latest[:12]} as expected"
        raise ConflictError(fact, path=name.dataset_id)


def _check_notes(manifest: Manifest, stored: bytes, name: DatasetName) -> None:
    """Whoever signs answers for the notes too: sign only what was said, not what lies there."""
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
    notes: dict[str, Any] = dict(manifest.metadata)
    if options.message:
        notes["message"] = options.message
    if seen.pointer is not None:
        notes["parent"] = seen.pointer.version
    parts: list[TablePart | ArtifactPart] = [*manifest.tables.values(), *manifest.artifacts.values()]
    for part in parts:
        if not isinstance(part.shards, LongList):  # which has no addresses
            for blob in part.blobs():
                if blob.uri is not None:
                    check_uri(blob.uri)
    return replace(manifest, metadata=notes)
