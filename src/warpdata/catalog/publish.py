"""Make a version visible: blobs first, the manifest next, the pointer last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpdata.catalog.access import Access, writable_catalog
from warpdata.catalog.card import write_cards
from warpdata.catalog.names import DatasetName, check_tag
from warpdata.catalog.pointer import PointerState, move_pointer, read_pointer
from warpdata.catalog.signing import sign_version
from warpdata.errors import BlobNotFoundError, ConflictError, ManifestCorruptedError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import Manifest, blob_key
from warpdata.formats.manifest.reader import check_portable, parse_manifest
from warpdata.formats.manifest.writer import pack_manifest
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.digest import FileDigest
from warpdata.stores.parallel import run_parallel

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Upload:
    """One file that becomes a blob."""

    path: Path
    digest: FileDigest


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
    progress: Progress | None = None
    workers: int = 4


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

    def __str__(self) -> str:
        return f"{self.dataset_id}@{self.version}"


def publish(
    access: Access, name: DatasetName, manifest: Manifest, uploads: Sequence[Upload], options: PublishOptions
) -> Published:
    """Store a version; at every moment readers see the old state or the new one."""
    for tag in options.tags:
        check_tag(tag)
    catalog = writable_catalog(access)
    store = catalog.store
    assert store is not None
    seen = read_pointer(store, name.latest_key)
    _check_expected(seen, options, name)
    manifest = _with_notes(manifest, seen, options)
    packed = pack_manifest(manifest)
    version = parse_manifest(packed).version_hash
    manifest = replace(manifest, version_hash=version)
    sent = _send_blobs(store, uploads, _known_blobs(store, name, seen), options)
    is_new = _put_manifest(store, name, version, packed)
    if is_new:
        write_cards(store, name, manifest)
    signed_by = sign_version(store, name, version, options.sign_key) if options.sign_key else None
    _move_pointers(store, name, version, seen, options)
    return Published(
        name.dataset_id, version, catalog.address, len(sent), sum(u.digest.size for u in sent),
        len({u.digest.sha256 for u in uploads}) - len(sent), is_new, options.set_latest, signed_by,
    )  # fmt: skip


def _check_expected(seen: PointerState, options: PublishOptions, name: DatasetName) -> None:
    now = seen.pointer.version if seen.pointer else None
    if options.expect_latest is not None and now != options.expect_latest:
        fact = f"latest is {now and now[:12]}, not {options.expect_latest[:12]} as expected"
        raise ConflictError(fact, path=name.dataset_id)


def _with_notes(manifest: Manifest, seen: PointerState, options: PublishOptions) -> Manifest:
    notes: dict[str, Any] = dict(manifest.metadata)
    if options.message:
        notes["message"] = options.message
    if seen.pointer is not None:
        notes["parent"] = seen.pointer.version
    for blob in manifest.blobs().values():
        if blob.uri is not None:
            check_portable(blob.uri)
    return replace(manifest, metadata=notes)


def _known_blobs(store: BlobStore, name: DatasetName, seen: PointerState) -> set[str]:
    """Blobs of the version that is latest now: they are there, no need to ask one by one."""
    if seen.pointer is None:
        return set()
    try:
        blob = store.get(name.version_key(seen.pointer.version), max_bytes=MAX_MANIFEST_BYTES)
        return set() if blob is None else set(parse_manifest(blob.data).blobs())
    except (BlobNotFoundError, ManifestCorruptedError):
        return set()


def _send_blobs(
    store: BlobStore, uploads: Sequence[Upload], known: set[str], options: PublishOptions
) -> list[Upload]:
    wanted = {u.digest.sha256: u for u in uploads if u.digest.sha256 not in known}
    total = sum(u.digest.size for u in wanted.values())
    done = [0]

    def send(upload: Upload) -> bool:
        sent = not _is_there(store, upload.digest)
        if sent:
            store.put_file(blob_key(upload.digest.sha256), upload.path, upload.digest)
        done[0] += upload.digest.size
        if options.progress is not None:
            options.progress(done[0], total)
        return sent

    flags = run_parallel(send, list(wanted.values()), workers=options.workers)
    return [upload for upload, sent in zip(wanted.values(), flags, strict=True) if sent]


def _is_there(store: BlobStore, digest: FileDigest) -> bool:
    try:
        return store.head(blob_key(digest.sha256)).size == digest.size
    except BlobNotFoundError:
        return False


def _put_manifest(store: BlobStore, name: DatasetName, version: str, packed: bytes) -> bool:
    try:
        store.put_if_absent(name.version_key(version), packed)
    except ConflictError:
        return False
    return True


def _move_pointers(
    store: BlobStore, name: DatasetName, version: str, seen: PointerState, options: PublishOptions
) -> None:
    if options.set_latest:
        _move_latest(store, name, version, seen, options.retries)
    for tag in options.tags:
        key = name.tag_key(tag)
        move_pointer(store, key, version, read_pointer(store, key))


def _move_latest(store: BlobStore, name: DatasetName, version: str, seen: PointerState, retries: int) -> None:
    for attempt in range(retries + 1):
        try:
            move_pointer(store, name.latest_key, version, seen)
            return
        except ConflictError:
            if attempt == retries:
                raise
            seen = read_pointer(store, name.latest_key)
