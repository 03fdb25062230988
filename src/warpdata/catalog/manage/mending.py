"""Blobs of a version that are damaged or gone, replaced from wherever the same bytes still are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, writable_catalog
from warpdata.catalog.build.packing import listed
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish.claims import keeping
from warpdata.catalog.publish.dataset_list import check_catalog
from warpdata.catalog.publish.transfer import (
    Progress,
    Upload,
    is_intact,
    put_blob,
    put_in_place,
    stored_parts,
    upload_blob,
    upload_file,
    upload_read,
)
from warpdata.catalog.read.resolve import Resolver, gone_manifest
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    StoreError,
    TruncatedError,
    WarpError,
)
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import BlobRef, Manifest
from warpdata.formats.manifest.reader import parse_manifest
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.blobstore import BlobStore, digest_file

_NO_COPY = (BlobNotFoundError, ChecksumError, TruncatedError, OfflineError)
"""What a place says that does not have the bytes of a blob, or not all of them."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What was wrong with a version, and what still is."""

    dataset_id: str
    version: str
    blobs: int
    replaced: tuple[str, ...]
    lost: tuple[str, ...]
    """Blobs that are damaged or missing and of which no copy was found."""
    is_manifest_replaced: bool = False


def mend_version(
    access: Access,
    name: DatasetName,
    *,
    sources: Sequence[Access] = (),
    files: Sequence[str | Path] = (),
    progress: Progress | None = None,
    workers: int = 4,
) -> Mended:
    """Read every blob of a version and replace what is damaged or missing.

    The bytes come from the cache of this machine, from other catalogs, and from files; only such as have the hash.
    """
    catalog = writable_catalog(access)
    store = catalog.store
    assert store is not None
    version = Resolver(access).version(catalog, name)
    copies = _Copies(access, name, version, sources, files)
    parts = _Parts(store, copies)
    # Nobody deletes a version that is claimed, and nobody collects what the manifest names as long as it is there.
    with keeping(store, name.version_keys(version)):
        manifest, was_damaged = _manifest(store, name, version, sources, parts)
        blobs = [blob for blob in manifest.blobs().values() if not blob.is_elsewhere]
        damaged = _damaged(store, blobs, progress, workers)
        flags = [_replace(store, blob, copies) for blob in damaged]
    replaced = (*parts.replaced, *(blob.hash for blob, good in zip(damaged, flags, strict=True) if good))
    lost = tuple(blob.hash for blob, good in zip(damaged, flags, strict=True) if not good)
    return Mended(name.dataset_id, version, len(blobs), replaced, lost, was_damaged)


def _manifest(
    store: BlobStore, name: DatasetName, version: str, sources: Sequence[Access], parts: _Parts
) -> tuple[Manifest, bool]:
    """The manifest, replaced by an intact one of another catalog if need be."""
    key = name.version_key(version)
    try:
        held = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        if name.hash_prefix is None:
            raise gone_manifest(name, version, f"{store.address}/{key}") from None
        raise DatasetNotFoundError(f"dataset {name} is not published", path=store.address) from None
    assert held is not None
    try:
        return parse_manifest(held.data, expected_hash=version, parts=parts), False
    except ManifestCorruptedError as error:
        for source in sources:
            for catalog in source.catalogs:
                try:
                    data = Resolver(source).fetched(catalog, name, version)
                except (BlobNotFoundError, ManifestCorruptedError):
                    continue
                put_in_place(store, key, data, held.info)
                return parse_manifest(data, parts=parts), True
        if error.path is not None:
            raise
        hint = "Name a catalog that has the version (--from), or publish it again."
        raise ManifestCorruptedError(error.message, path=f"{store.address}/{key}", hint=hint) from None


def _damaged(
    store: BlobStore, blobs: Sequence[BlobRef], progress: Progress | None, workers: int
) -> list[BlobRef]:
    total, done = sum(blob.byte_size for blob in blobs), [0]

    def look(blob: BlobRef) -> bool:
        good = is_intact(store, Upload(blob.hash, blob.byte_size))
        done[0] += blob.byte_size
        if progress is not None:
            progress(done[0], total)
        return good

    flags = map_in_threads(look, blobs, workers)
    return [blob for blob, good in zip(blobs, flags, strict=True) if not good]


def _replace(store: BlobStore, blob: BlobRef, copies: _Copies) -> bool:
    """Whether a copy was found and put there; what kept one from being read or put is raised where none was."""
    cause: WarpError | None = None
    for upload in copies.of(blob):
        try:
            put_blob(store, upload)
        except _NO_COPY:
            continue
        except WarpError as error:
            cause = cause or error
            continue
        return True
    if cause is not None:
        raise cause
    return False


class _Parts:
    """Fetches parts of a manifest; one that is damaged or gone is replaced first, or nothing below it is known."""

    def __init__(self, store: BlobStore, copies: _Copies) -> None:
        self._store = store
        self._copies = copies
        self.replaced: list[str] = []

    def __call__(self, refs: Sequence[BlobRef]) -> Sequence[memoryview]:
        fetch = stored_parts(self._store)
        for ref in refs:
            if not is_intact(self._store, Upload(ref.hash, ref.byte_size)):
                if not _replace(self._store, ref, self._copies):
                    fact = "a part of the manifest is damaged or gone, and no copy of it was found"
                    hint = "Name a catalog that has the version (--from), or files with its bytes."
                    raise ManifestCorruptedError(fact, path=f"{self._store.address}/{ref.key}", hint=hint)
                self.replaced.append(ref.hash)
        return [memoryview(data) for data in fetch(refs)]


class _Copies:
    """Where the bytes of a blob may be found, nearest first."""

    def __init__(
        self,
        access: Access,
        name: DatasetName,
        version: str,
        sources: Sequence[Access],
        files: Sequence[str | Path],
    ) -> None:
        self._access = access
        self._sources = sources
        self._by_size: dict[int, list[Path]] = {}
        self._label = f"{name.dataset_id}@{version[:12]}"
        for catalog in (each for source in sources for each in source.catalogs):
            with contextlib.suppress(StoreError):  # one that cannot be listed
                if catalog.store is not None:
                    check_catalog(catalog.store)
        for path in (found for one in files for found in listed(one)):
            every = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            for file in every:
                self._by_size.setdefault(file.stat().st_size, []).append(file)

    def of(self, blob: BlobRef) -> Iterator[Upload]:
        """Copies of a blob; some of them may turn out not to be."""
        for path in self._by_size.get(blob.byte_size, []):
            digest = digest_file(path)
            if digest.sha256 == blob.hash:
                yield upload_file(path, digest, is_staged=False)
        if self._access.cache is not None and blob.byte_size:
            address = BlobAddress(blob.hash, blob.byte_size, blob.key, self._label)
            yield upload_read(BlobReader(address, None, self._access.cache).read, self._label, blob)
        for source in self._sources:
            for catalog in source.catalogs:
                if catalog.store is not None:
                    yield upload_blob(catalog.store, blob.key, blob)
