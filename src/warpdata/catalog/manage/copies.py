"""Copies of versions: brought into another catalog, or used to replace damaged blobs of a version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import VERSION_SUFFIXES, Access, DatasetName, writable_store
from warpdata.catalog.build.parts import list_paths
from warpdata.catalog.manage.versions import list_versions, versions_and_tags
from warpdata.catalog.publish import pointers, publish
from warpdata.catalog.read.resolve import Resolver, missing_manifest
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    DatasetError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    PointerMovedError,
    StoreError,
    TruncatedError,
    WarpError,
)
from warpdata.formats.manifest.codec import parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import BlobRef, Manifest, unseen_blobs
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.blobstore import BlobStore, digest_file

_TRIES = 6


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a copy."""

    dataset_id: str
    source: str
    target: str
    versions: tuple[str, ...]
    blobs_sent: int
    bytes_sent: int
    is_latest: bool
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mended:
    """Result of a repair."""

    dataset_id: str
    version: str
    blobs: int
    replaced: tuple[str, ...]
    lost: tuple[str, ...]
    """Damaged or missing blobs of which no copy was found."""
    is_manifest_replaced: bool = False


def copy_dataset(
    source: Access,
    target: Access,
    name: DatasetName,
    *,
    all_versions: bool = False,
    set_latest: bool | None = None,
    tags: bool = True,
    progress: publish.Progress | None = None,
    workers: int = 4,
) -> Copied:
    """Bring a version, or all of them, into another catalog: missing blobs are streamed and checked.

    `latest` moves there unless one version was named by hash or tag; `set_latest` decides otherwise.
    """
    store = writable_store(target)
    resolver = Resolver(source)
    resolved = resolver.resolve(name)
    newest, catalog = resolved.manifest.version_hash, resolved.catalog
    versions = [newest]
    if all_versions:
        older = [v.version for v in reversed(list_versions(source, catalog, name)) if v.version != newest]
        versions = [*older, newest]
    tagged = versions_and_tags(catalog.online_store, name).tags if tags else {}
    moves_latest = str(name) == name.dataset_id if set_latest is None else set_latest
    options = publish.PublishOptions(progress=progress, workers=workers)
    publication, copied_tags = publish.Publication(store, name, options), {}
    seen_parts: set[str] = set()
    removals = pointers.removal_count(store)
    for version in versions:
        files = {".json": resolver.manifest_bytes(catalog, name, version)}
        for suffix in VERSION_SUFFIXES[1:]:
            key = name.version_key(version, suffix)
            if (held := pointers.get_small(catalog.online_store, key, MAX_MANIFEST_BYTES)) is not None:
                files[suffix] = bytes(held.data)
        manifest = parse_manifest(files[".json"], expected_hash=version, parts=source.parts(catalog))
        if (now := pointers.removal_count(store)) != removals:
            removals = now
            seen_parts.clear()
        blobs = {blob.hash: blob for blob in unseen_blobs(manifest, seen_parts)}
        if any(blob.is_elsewhere for blob in blobs.values()):
            fact = f"version {version[:12]} names blobs outside its catalog, which no copy of it would hold"
            raise DatasetError(
                fact, path=name.dataset_id, hint="Publish it again with DatasetBuilder.keep()."
            )

        def source_of(blob: BlobRef) -> publish.Upload:
            return publish.upload_blob(*source.place(catalog, blob), blob)

        uploads = [source_of(blob) for blob in blobs.values()]
        with publication.store_version(version, files, uploads, removals, source_of):
            if version == newest and moves_latest:
                _move_latest_after_others(store, name, version)
            for tag in (tag for tag, pointed in tagged.items() if pointed == version):
                key, copied_tags[tag] = name.tag_key(tag), version
                pointers.move_pointer(store, key, version, pointers.read_pointer(store, key))
    pointers.rewrite_list(store, name)
    sent = publication.sent
    return Copied(
        dataset_id=name.dataset_id,
        source=catalog.address,
        target=store.address,
        versions=tuple(versions),
        blobs_sent=len(sent),
        bytes_sent=sum(upload.size for upload, _ in sent),
        is_latest=moves_latest,
        tags=copied_tags,
    )


def _move_latest_after_others(store: BlobStore, name: DatasetName, version: str) -> None:
    for attempt in range(_TRIES):
        try:
            return pointers.move_latest(store, name, version, pointers.read_pointer(store, name.latest_key))
        except PointerMovedError:
            if attempt + 1 == _TRIES:
                raise
            publish.pause(attempt)
    return None


def mend_version(
    access: Access,
    name: DatasetName,
    *,
    sources: Sequence[Access] = (),
    files: Sequence[str | Path] = (),
    progress: publish.Progress | None = None,
    workers: int = 4,
) -> Mended:
    """Read every blob of a version and replace damaged and missing ones.

    The bytes come from the cache of this machine, from other catalogs, and from files; they must have the hash.
    """
    store = writable_store(access)
    version = Resolver(access).version(access.catalogs[0], name)
    copies = _Copies(access, f"{name.dataset_id}@{version[:12]}", sources, files)
    replaced: list[str] = []

    def fetch_parts(refs: Sequence[BlobRef]) -> Sequence[memoryview]:
        """Parts of the manifest; a damaged one is replaced first, because nothing below it is known."""
        for ref in refs:
            if not publish.is_blob_intact(store, publish.Upload(ref.hash, ref.byte_size)):
                if not copies.restore(store, ref):
                    fact = "a part of the manifest is damaged or missing, and no copy of it was found"
                    hint = "Name a catalog that has the version (--from), or files with its bytes."
                    raise ManifestCorruptedError(fact, path=f"{store.address}/{ref.key}", hint=hint)
                replaced.append(ref.hash)
        return [memoryview(data) for data in publish.stored_parts(store)(refs)]

    manifest_file, was_damaged = _mended_manifest(store, name, version, sources)
    manifest: Manifest = parse_manifest(manifest_file, parts=fetch_parts)
    blobs = [blob for blob in manifest.blobs().values() if not blob.is_elsewhere]
    total, done = sum(blob.byte_size for blob in blobs), [0]

    def check(blob: BlobRef) -> bool:
        is_good = publish.is_blob_intact(store, publish.Upload(blob.hash, blob.byte_size))
        done[0] += blob.byte_size
        if progress is not None:
            progress(done[0], total)
        return is_good

    lost: list[str] = []
    for blob, is_good in zip(blobs, map_in_threads(check, blobs, workers), strict=True):
        if not is_good:
            (replaced if copies.restore(store, blob) else lost).append(blob.hash)
    return Mended(name.dataset_id, version, len(blobs), tuple(replaced), tuple(lost), was_damaged)


def _mended_manifest(
    store: BlobStore, name: DatasetName, version: str, sources: Sequence[Access]
) -> tuple[bytes, bool]:
    """The manifest, and whether it was damaged and replaced by that of another catalog."""
    key = name.version_key(version)
    held = pointers.get_small(store, key, MAX_MANIFEST_BYTES)
    if held is None:
        if name.hash_prefix is None:
            raise missing_manifest(name, version, f"{store.address}/{key}")
        raise DatasetNotFoundError(f"dataset {name} is not published", path=store.address)
    try:
        parse_manifest(held.data, expected_hash=version)
        return bytes(held.data), False
    except ManifestCorruptedError as error:
        for source in sources:
            for catalog in source.catalogs:
                with contextlib.suppress(BlobNotFoundError, ManifestCorruptedError):
                    data = Resolver(source).manifest_bytes(catalog, name, version)
                    pointers.replace_small(store, key, data, held)
                    return data, True
        hint = "Name a catalog that has the version (--from), or publish it again."
        raise ManifestCorruptedError(error.message, path=f"{store.address}/{key}", hint=hint) from None


class _Copies:
    """Where the bytes of a blob may be found: files first, then the cache, then other catalogs."""

    def __init__(
        self, access: Access, label: str, sources: Sequence[Access], files: Sequence[str | Path]
    ) -> None:
        self._cache = access.cache
        self._label = label
        self._stores = [c.store for source in sources for c in source.catalogs if c.store is not None]
        self._files: dict[int, list[Path]] = {}
        for store in self._stores:
            with contextlib.suppress(StoreError):  # one that cannot be listed
                pointers.check_catalog(store)
        for path in (path for one in files for path in list_paths(one)):
            for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
                self._files.setdefault(file.stat().st_size, []).append(file)

    def _uploads(self, blob: BlobRef) -> Iterator[publish.Upload]:
        for path in self._files.get(blob.byte_size, []):
            digest = digest_file(path)
            if digest.sha256 == blob.hash:
                yield publish.upload_file(path, digest, is_staged=False)
        if self._cache is not None and blob.byte_size:
            address = BlobAddress(blob.hash, blob.byte_size, blob.key, self._label)
            yield publish.upload_read(BlobReader(address, None, self._cache).read, self._label, blob)
        for store in self._stores:
            yield publish.upload_blob(store, blob.key, blob)

    def restore(self, store: BlobStore, blob: BlobRef) -> bool:
        """Whether a copy was found and put; an error other than a missing copy is raised if none was."""
        cause: WarpError | None = None
        for upload in self._uploads(blob):
            try:
                publish.put_blob(store, upload)
                return True
            except (BlobNotFoundError, ChecksumError, TruncatedError, OfflineError):
                continue
            except WarpError as error:
                cause = cause or error
        if cause is not None:
            raise cause
        return False
