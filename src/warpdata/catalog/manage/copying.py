"""Versions from one catalog to another: the same bytes, so the same hashes and signatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from warpdata.catalog.access import Access, Catalog, writable_catalog
from warpdata.catalog.manage.history import list_versions, roster_of
from warpdata.catalog.names import VERSION_SUFFIXES, DatasetName
from warpdata.catalog.publish.pointer import move_pointer, read_pointer
from warpdata.catalog.publish.publish import PublishOptions, VersionFiles, move_latest, storing
from warpdata.catalog.publish.roster import write_roster
from warpdata.catalog.publish.transfer import Progress, Upload, upload_blob
from warpdata.catalog.read.resolve import Resolver
from warpdata.errors import BlobNotFoundError, DatasetError, OfflineError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.parts import unseen_blobs
from warpdata.formats.manifest.reader import parse_manifest
from warpdata.stores.blobstore import BlobStore


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy brought over."""

    dataset_id: str
    source: str
    target: str
    versions: tuple[str, ...]
    blobs_sent: int
    bytes_sent: int
    is_latest: bool
    tags: Mapping[str, str] = field(default_factory=dict)


def copy_dataset(
    source: Access,
    target: Access,
    name: DatasetName,
    *,
    all_versions: bool = False,
    set_latest: bool | None = None,
    tags: bool = True,
    progress: Progress | None = None,
    workers: int = 4,
) -> Copied:
    """Bring a version, or all of them, into another catalog: what is missing there is streamed and checked.

    `latest` moves there unless one version was named by hash or tag; `set_latest` decides otherwise.
    """
    store = writable_catalog(target).store
    assert store is not None
    resolver = Resolver(source)
    found = resolver.resolve(name)
    wanted = found.manifest.version_hash
    catalog = found.catalog
    versions = [wanted]
    if all_versions:
        versions = [v.version for v in reversed(list_versions(source, catalog, name)) if v.version != wanted]
        versions.append(wanted)
    named = roster_of(_asked(catalog), name).tags if tags else {}
    moves = str(name) == name.dataset_id if set_latest is None else set_latest
    options = PublishOptions(retries=5, progress=progress, workers=workers)
    sent: list[Upload] = []
    moved: dict[str, str] = {}
    brought = _Brought()
    for version in versions:
        files, uploads = _read(source, resolver, catalog, name, version, brought)
        bases = tuple(name.version_key(each) for each in brought.by(version))
        with storing(store, name, files, uploads, replace(options, bases=bases)) as stored:
            sent += stored.uploads
            if version == wanted and moves:
                stored.keep()
                move_latest(store, name, version, read_pointer(store, name.latest_key), options)
            for tag in (tag for tag, pointed in named.items() if pointed == version):
                stored.keep()
                move_pointer(store, name.tag_key(tag), version, read_pointer(store, name.tag_key(tag)))
                moved[tag] = version
    write_roster(store, name)
    size = sum(upload.size for upload in sent)
    return Copied(
        name.dataset_id, catalog.address, store.address, tuple(versions), len(sent), size, moves, moved
    )


class _Brought(set[str]):
    """Parts that versions brought along: there as long as those versions are, which is claimed where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, str] = {}
        self._used: set[str] = set()

    def __contains__(self, part: object) -> bool:
        if part in self._owners:
            self._used.add(self._owners[str(part)])
        return super().__contains__(part)

    def by(self, version: str) -> list[str]:
        """The versions whose parts this one has too; what it has beside them is its own from now on."""
        used, self._used = sorted(self._used), set()
        self._owners |= dict.fromkeys(self - self._owners.keys(), version)
        return used


def _read(
    source: Access,
    resolver: Resolver,
    catalog: Catalog,
    name: DatasetName,
    version: str,
    seen_parts: set[str],
) -> tuple[VersionFiles, list[Upload]]:
    """The files of a version and where its blobs come from, but for those below parts that were seen."""
    data = resolver.fetched(catalog, name, version)
    manifest = parse_manifest(data, expected_hash=version, parts=source.parts(catalog))
    blobs = list({blob.hash: blob for blob in unseen_blobs(manifest, seen_parts)}.values())
    if any(blob.is_elsewhere for blob in blobs):
        fact = f"version {version[:12]} names blobs outside its catalog, which no copy of it would hold"
        raise DatasetError(fact, path=name.dataset_id, hint="Publish it anew with DatasetBuilder.keep().")
    uploads = [upload_blob(*source.place(catalog, blob), blob) for blob in blobs]
    store = _asked(catalog)
    beside = {}
    for suffix in VERSION_SUFFIXES[1:]:
        try:
            held = store.get(name.version_key(version, suffix), max_bytes=MAX_MANIFEST_BYTES)
        except BlobNotFoundError:
            continue
        assert held is not None
        beside[suffix] = bytes(held.data)
    return VersionFiles(version, data, beside), uploads


def _asked(catalog: Catalog) -> BlobStore:
    if catalog.store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    return catalog.store
