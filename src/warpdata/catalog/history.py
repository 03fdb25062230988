"""What a catalog knows of a dataset over time: versions, tags, and the datasets of a workspace."""

from __future__ import annotations

from dataclasses import dataclass

from warpdata.catalog.access import Access, Catalog
from warpdata.catalog.names import DatasetName, check_tag, is_dataset_name, parse_name
from warpdata.catalog.pointer import Pointer, move_pointer, read_pointer
from warpdata.catalog.resolve import Resolver
from warpdata.errors import BlobNotFoundError, OfflineError, StoreError
from warpdata.formats.manifest.model import HASH, Manifest
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.parallel import run_parallel


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
    tags = list_tags(catalog, name)
    hashes = _version_hashes(store, name) or _parents(resolver, catalog, name, latest)
    found = [
        _version(resolver.manifest(catalog, name, version), tags, latest) for version in sorted(set(hashes))
    ]
    return sorted(found, key=lambda v: (v.created_at or "", v.is_latest), reverse=True)


def list_tags(catalog: Catalog, name: DatasetName) -> dict[str, str]:
    """Tag -> version; nothing where a catalog cannot be listed."""
    store = _store(catalog)
    prefix = f"{name.folder}tags/"
    try:
        keys = [info.key for info in store.list(prefix)]
    except StoreError:
        return {}
    found = {key.removeprefix(prefix).removesuffix(".json"): read_pointer(store, key).pointer for key in keys}
    return {tag: pointer.version for tag, pointer in found.items() if pointer is not None}


def set_tag(access: Access, catalog: Catalog, name: DatasetName, tag: str) -> Pointer:
    """Point a tag at the version `name` stands for; a tag that points elsewhere moves."""
    version = Resolver(access).resolve(name).manifest.version_hash
    key = name.tag_key(check_tag(tag))
    store = _store(catalog)
    return move_pointer(store, key, version, read_pointer(store, key))


def delete_tag(catalog: Catalog, name: DatasetName, tag: str) -> None:
    """Remove a tag; the version stays."""
    key = name.tag_key(check_tag(tag))
    store = _store(catalog)
    store.head(key)
    store.delete(key)


def list_datasets(catalog: Catalog, workspace: str = "") -> list[ListedDataset]:
    """The datasets of a workspace (or of all) and their latest versions: pointers only, no data."""
    store = _store(catalog)
    prefix = f"datasets/{workspace.rstrip('/')}/" if workspace.strip("/") else "datasets/"
    keys = [info.key for info in store.list(prefix)]
    names = [key.split("/")[1:3] for key in keys if key.count("/") == 3 and key.endswith("/latest.json")]
    ids = [parse_name("/".join(parts)) for parts in names if is_dataset_name("/".join(parts))]
    pointers = run_parallel(lambda name: read_pointer(store, name.latest_key).pointer, ids)
    return [
        ListedDataset(name.dataset_id, pointer.version, pointer.sequence)
        for name, pointer in zip(ids, pointers, strict=True)
        if pointer is not None
    ]


def _version_hashes(store: BlobStore, name: DatasetName) -> list[str]:
    try:
        keys = [info.key for info in store.list(f"{name.folder}versions/")]
    except StoreError:
        return []
    names = [key.rpartition("/")[2] for key in keys]
    return [n.removesuffix(".json") for n in names if HASH.fullmatch(n.removesuffix(".json"))]


def _parents(resolver: Resolver, catalog: Catalog, name: DatasetName, latest: Pointer | None) -> list[str]:
    found: list[str] = []
    version = latest.version if latest else None
    while version is not None and version not in found:
        try:
            manifest = resolver.manifest(catalog, name, version)
        except BlobNotFoundError:
            break
        found.append(version)
        parent = manifest.metadata.get("parent")
        version = parent if isinstance(parent, str) and HASH.fullmatch(parent) else None
    return found


def _version(manifest: Manifest, tags: dict[str, str], latest: Pointer | None) -> Version:
    parent = manifest.metadata.get("parent")
    return Version(
        version=manifest.version_hash,
        created_at=manifest.created_at,
        rows=manifest.total_rows,
        bytes=manifest.total_bytes,
        message=str(manifest.metadata.get("message", "")),
        parent=parent if isinstance(parent, str) else None,
        tags=tuple(sorted(tag for tag, version in tags.items() if version == manifest.version_hash)),
        is_latest=latest is not None and latest.version == manifest.version_hash,
    )


def _store(catalog: Catalog) -> BlobStore:
    if catalog.store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    return catalog.store
