"""What a catalog knows of a dataset over time: versions, tags, and the datasets of a workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, Catalog
from warpdata.catalog.names import DatasetName, check_tag, parse_name
from warpdata.catalog.publish.claims import keeping
from warpdata.catalog.publish.dataset_list import check_catalog, listed_datasets, written_datasets
from warpdata.catalog.publish.pointer import Pointer, move_pointer, read_pointer
from warpdata.catalog.publish.roster import (
    About,
    Roster,
    about_manifest,
    drop_tag,
    listed_roster,
    listed_tags,
    note_version,
    read_roster,
    written_about,
    written_tags,
)
from warpdata.catalog.read.resolve import Resolver
from warpdata.errors import (
    BlobNotFoundError,
    DatasetError,
    ManifestCorruptedError,
    OfflineError,
    StoreError,
    UnavailableError,
    nearest,
)
from warpdata.stores.blobstore import BlobStore

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Version:
    """One published version."""

    version: str
    created_at: str | None
    rows: int
    bytes: int
    message: str
    parent: str | None
    tags: tuple[str, ...] = ()
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """One dataset of a catalog."""

    dataset_id: str
    version: str
    sequence: int


def list_versions(
    access: Access, catalog: Catalog, name: DatasetName, *, limit: int | None = None
) -> list[Version]:
    """Every version, newest first, or the newest `limit` of them, for which not all are looked at.

    Where a catalog cannot be listed, they are those that are written down, or the line of parents from the latest.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is at least 1, not {limit}")
    store = _store(catalog)
    latest = read_pointer(store, name.latest_key).pointer
    resolver = Resolver(access)
    roster = _newest(store, name, latest, limit) or roster_of(store, name)
    hashes = roster.versions or tuple(reversed(resolver.line(catalog, name)))
    # Whoever checks signatures looks at what is signed.
    known = {} if resolver.checks_signatures else roster.about or written_about(store, name)
    tags: dict[str, list[str]] = {}
    for tag, version in roster.tags.items():
        tags.setdefault(version, []).append(tag)

    def look(version: str) -> Version | None:
        try:
            about = known.get(version) or about_manifest(resolver.manifest(catalog, name, version))
        except BlobNotFoundError:  # deleted meanwhile
            return None
        return _version(version, about, tags, latest)

    # Oldest first as they are known; those of one moment stay in that order.
    found = [version for version in map_in_threads(look, hashes) if version is not None]
    places = _places(found)
    found.sort(key=lambda v: (places[v.version][0], v.is_latest, places[v.version][1]))
    return found[::-1][:limit]


def _places(versions: Sequence[Version]) -> dict[str, tuple[str, int]]:
    """When each version was made, and how many of that moment it goes on from: it is never older than its parent.

    Whoever is overtaken goes on from a version that may have been built after its own.
    """
    known = {each.version: each for each in versions}
    places: dict[str, tuple[str, int]] = {}
    for each in versions:
        line: list[Version] = []
        at: Version | None = each
        while at is not None and at.version not in places:
            line.append(at)
            places[at.version] = (at.created_at or "", 0)
            at = known.get(at.parent or "")
        for child in reversed(line):
            moment, after = places.get(child.parent or "", ("", -1))
            if moment >= (child.created_at or ""):
                places[child.version] = (moment, after + 1)
    return places


def list_tags(catalog: Catalog, name: DatasetName) -> dict[str, str]:
    """Tag -> version; where a catalog cannot be listed, as its last writer wrote them down."""
    store = _store(catalog)
    return _listed_or(lambda: listed_tags(store, name), lambda: written_tags(store, name))


def roster_of(store: BlobStore, name: DatasetName) -> Roster:
    """Versions and tags as the catalog shows them, or as they were written down where it cannot be listed."""
    return _listed_or(lambda: listed_roster(store, name), lambda: read_roster(store, name) or Roster((), {}))


def _listed_or(listed: Callable[[], R], written: Callable[[], R]) -> R:
    try:
        return listed()
    except UnavailableError:
        raise
    except StoreError:
        return written()


def _newest(store: BlobStore, name: DatasetName, latest: Pointer | None, limit: int | None) -> Roster | None:
    """The newest versions as they are written down; None where all are wanted, or the list is behind."""
    if limit is None or latest is None:
        return None
    try:
        found = read_roster(store, name)
    except ManifestCorruptedError:
        return None
    if found is None or latest.version not in found.versions:
        return None
    tags = _listed_or(lambda: listed_tags(store, name), lambda: found.tags)
    return replace(found, versions=found.versions[-limit:], tags=tags)


def set_tag(access: Access, catalog: Catalog, name: DatasetName, tag: str) -> Pointer:
    """Point a tag at the version `name` stands for; a tag that points elsewhere moves."""
    found = Resolver(access).resolve(name)
    if found.catalog.place != catalog.place:
        fact = f"{name} is in {found.catalog.address}, but tags are set in {catalog.address}"
        raise DatasetError(fact, hint="Name its catalog alone (--catalog), or copy it first (`warp copy`).")
    return tag_version(_store(catalog), name, found.manifest.version_hash, check_tag(tag))


def tag_version(store: BlobStore, name: DatasetName, version: str, tag: str) -> Pointer:
    """Point a tag at a version that is there, and stays there meanwhile."""
    key = name.tag_key(tag)
    with keeping(store, name.version_keys(version)) as claim:
        seen = read_pointer(store, key)
        store.head(name.version_key(version))
        while not claim.is_fresh:
            claim.renew()
            store.head(name.version_key(version))
        pointer = move_pointer(store, key, version, seen)
    note_version(store, name, version, parent=None, tags=(tag,))
    return pointer


def delete_tag(catalog: Catalog, name: DatasetName, tag: str) -> None:
    """Remove a tag; the version stays."""
    key = name.tag_key(check_tag(tag))
    store = _store(catalog)
    try:
        store.head(key)
    except BlobNotFoundError:
        tags = list_tags(catalog, name)
        hint = f"It has: {', '.join(sorted(tags)) or 'none'}.{nearest(tag, tags)}"
        raise BlobNotFoundError(f"{name.dataset_id} has no tag {tag!r}", hint=hint) from None
    store.delete(key)
    drop_tag(store, name, tag)


def list_datasets(catalog: Catalog, workspace: str = "") -> list[ListedDataset]:
    """The datasets of a workspace (or of all) and their latest versions: pointers only, however many versions.

    Where a catalog cannot be listed, they are those that are written down.
    """
    store = _store(catalog)
    chosen = workspace.strip("/")
    try:
        check_catalog(store)
        names = listed_datasets(store, chosen)
    except UnavailableError:
        raise
    except StoreError:
        written = written_datasets(store)
        if written is None:
            raise
        names = [each for each in written if not chosen or each.startswith(f"{chosen}/")]
    ids = [parse_name(each) for each in names]
    pointers = map_in_threads(lambda name: read_pointer(store, name.latest_key).pointer, ids)
    return [
        ListedDataset(name.dataset_id, pointer.version, pointer.sequence)
        for name, pointer in zip(ids, pointers, strict=True)
        if pointer is not None
    ]


def _version(version: str, about: About, tags: dict[str, list[str]], latest: Pointer | None) -> Version:
    return Version(
        version=version,
        created_at=about.created_at,
        rows=about.rows,
        bytes=about.bytes,
        message=about.message,
        parent=about.parent,
        tags=tuple(sorted(tags.get(version, ()))),
        is_latest=latest is not None and latest.version == version,
    )


def _store(catalog: Catalog) -> BlobStore:
    if catalog.store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    return catalog.store
