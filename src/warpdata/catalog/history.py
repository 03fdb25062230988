"""What a catalog knows of a dataset over time: versions, tags, and the datasets of a workspace."""

from __future__ import annotations

from dataclasses import dataclass

from warpdata.bytekit.background import map_in_threads
from warpdata.catalog.access import Access, Catalog
from warpdata.catalog.claims import keeping
from warpdata.catalog.names import DatasetName, check_tag, is_dataset_name, parse_name
from warpdata.catalog.pointer import Pointer, move_pointer, read_pointer
from warpdata.catalog.resolve import Resolver
from warpdata.catalog.roster import Roster, listed_roster, note_version, read_roster, write_roster
from warpdata.errors import BlobNotFoundError, OfflineError, StoreError, UnavailableError, nearest
from warpdata.formats.manifest.model import Manifest
from warpdata.stores.blobstore import BlobStore


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


def list_versions(access: Access, catalog: Catalog, name: DatasetName) -> list[Version]:
    """Every version, newest first; where a catalog cannot be listed, the line of parents from the latest."""
    store = _store(catalog)
    latest = read_pointer(store, name.latest_key).pointer
    resolver = Resolver(access)
    roster = roster_of(store, name)
    hashes = roster.versions or resolver.line(catalog, name)
    tags: dict[str, list[str]] = {}
    for tag, version in roster.tags.items():
        tags.setdefault(version, []).append(tag)

    def look(version: str) -> Version | None:
        try:
            return _version(resolver.manifest(catalog, name, version), tags, latest)
        except BlobNotFoundError:  # deleted meanwhile
            return None

    found = [version for version in map_in_threads(look, sorted(set(hashes))) if version is not None]
    return sorted(found, key=lambda v: (v.created_at or "", v.is_latest), reverse=True)


def list_tags(catalog: Catalog, name: DatasetName) -> dict[str, str]:
    """Tag -> version; where a catalog cannot be listed, as its last writer wrote them down."""
    return roster_of(_store(catalog), name).tags


def roster_of(store: BlobStore, name: DatasetName) -> Roster:
    """Versions and tags as the catalog shows them, or as they were written down where it cannot be listed."""
    try:
        return listed_roster(store, name)
    except UnavailableError:
        raise
    except StoreError:
        return read_roster(store, name) or Roster((), {})


def set_tag(access: Access, catalog: Catalog, name: DatasetName, tag: str) -> Pointer:
    """Point a tag at the version `name` stands for; a tag that points elsewhere moves."""
    version = Resolver(access).resolve(name).manifest.version_hash
    return tag_version(_store(catalog), name, version, check_tag(tag))


def tag_version(store: BlobStore, name: DatasetName, version: str, tag: str) -> Pointer:
    """Point a tag at a version that is there, and stays there meanwhile."""
    key = name.tag_key(tag)
    with keeping(store, name.version_keys(version)):
        store.head(name.version_key(version))
        pointer = move_pointer(store, key, version, read_pointer(store, key))
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
    write_roster(store, name)


def list_datasets(catalog: Catalog, workspace: str = "") -> list[ListedDataset]:
    """The datasets of a workspace (or of all) and their latest versions: pointers only, no data."""
    store = _store(catalog)
    prefix = f"datasets/{workspace.rstrip('/')}/" if workspace.strip("/") else "datasets/"
    keys = [info.key for info in store.list(prefix)]
    names = [key.split("/")[1:3] for key in keys if key.count("/") == 3 and key.endswith("/latest.json")]
    ids = [parse_name("/".join(parts)) for parts in names if is_dataset_name("/".join(parts))]
    pointers = map_in_threads(lambda name: read_pointer(store, name.latest_key).pointer, ids)
    return [
        ListedDataset(name.dataset_id, pointer.version, pointer.sequence)
        for name, pointer in zip(ids, pointers, strict=True)
        if pointer is not None
    ]


def _version(manifest: Manifest, tags: dict[str, list[str]], latest: Pointer | None) -> Version:
    parent = manifest.metadata.get("parent")
    return Version(
        version=manifest.version_hash,
        created_at=manifest.created_at,
        rows=manifest.total_rows,
        bytes=manifest.total_bytes,
        message=str(manifest.metadata.get("message", "")),
        parent=parent if isinstance(parent, str) else None,
        tags=tuple(sorted(tags.get(manifest.version_hash, ()))),
        is_latest=latest is not None and latest.version == manifest.version_hash,
    )


def _store(catalog: Catalog) -> BlobStore:
    if catalog.store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    return catalog.store
