"""Versions, tags and datasets of a catalog: list, tag and delete them; collect blobs that no version references."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import (
    VERSION_SUFFIXES,
    Access,
    Catalog,
    DatasetName,
    check_tag,
    parse_name,
    writable_store,
)
from warpdata.catalog.publish.pointers import (
    PROBE,
    Version,
    VersionList,
    about_manifest,
    check_catalog,
    get_small,
    list_datasets_of,
    list_store,
    list_stored_tags,
    move_pointer,
    note_version,
    read_dataset_list,
    read_list,
    read_pointer,
    removal_count,
    removing,
    rewrite_list,
    store_time_s,
)
from warpdata.catalog.publish.publish import stored_parts
from warpdata.catalog.read.resolve import Resolver
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    DatasetError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    StoreError,
    UnavailableError,
    nearest,
)
from warpdata.formats.manifest.codec import Pointer, parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH, unseen_blobs
from warpdata.stores.blobstore import BlobInfo, BlobStore, ReliableStore
from warpdata.stores.local import LocalStore

R = TypeVar("R")

_ROUND = 1000
"""Versions that are deleted while the removal lock is held once: publishers wait meanwhile."""


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """One dataset of a catalog."""

    dataset_id: str
    version: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Versions that were deleted, or would be."""

    dataset_id: str
    versions: tuple[str, ...]
    kept: int
    is_deleted: bool


def list_versions(
    access: Access, catalog: Catalog, name: DatasetName, *, limit: int | None = None
) -> list[Version]:
    """Every version, newest first, or the newest `limit` of them, for which not all are read.

    If the catalog cannot be listed, they are those of the written list, or the line of parents of `latest`.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is at least 1, not {limit}")
    store = catalog.online_store
    latest = read_pointer(store, name.latest_key).pointer
    resolver = Resolver(access)
    listed = _newest(store, name, latest, limit) or versions_and_tags(store, name)
    hashes = listed.versions or tuple(reversed(resolver.line_of_parents(catalog, name)))
    # With signatures the details come from signed manifests only.
    known = {} if resolver.checks_signatures else listed.about
    tags: dict[str, list[str]] = {}
    for tag, version in listed.tags.items():
        tags.setdefault(version, []).append(tag)

    def describe(version: str) -> Version | None:
        try:
            about = known.get(version) or about_manifest(resolver.manifest(catalog, name, version))
        except BlobNotFoundError:  # deleted meanwhile
            return None
        is_latest = latest is not None and latest.version == version
        return replace(about, tags=tuple(sorted(tags.get(version, ()))), is_latest=is_latest)

    # Oldest first, by the time of the store: a version is stored after the one it follows.
    return [version for version in map_in_threads(describe, hashes) if version is not None][::-1][:limit]


def _newest(
    store: BlobStore, name: DatasetName, latest: Pointer | None, limit: int | None
) -> VersionList | None:
    """The newest versions of the written list; None if all are wanted or the list is behind `latest`."""
    written = None
    if limit is not None and latest is not None:
        with contextlib.suppress(ManifestCorruptedError):
            written = read_list(store, name)
    if written is None or latest is None or limit is None or latest.version not in written.versions:
        return None
    tags = _listed_or(lambda: list_stored_tags(store, name), lambda: written.tags)
    return replace(written, versions=written.versions[-limit:], tags=tags)


def versions_and_tags(store: BlobStore, name: DatasetName) -> VersionList:
    """Versions and tags from a listing, or from the written list if the store cannot be listed."""
    return _listed_or(lambda: list_store(store, name), lambda: read_list(store, name) or VersionList())


def list_tags(catalog: Catalog, name: DatasetName) -> dict[str, str]:
    """Tag -> version."""
    store = catalog.online_store
    written = lambda: (read_list(store, name) or VersionList()).tags  # noqa: E731 - read only if it is needed
    return dict(_listed_or(lambda: list_stored_tags(store, name), written))


def _listed_or(listed: Callable[[], R], written: Callable[[], R]) -> R:
    try:
        return listed()
    except UnavailableError:
        raise
    except StoreError:
        return written()


def list_datasets(catalog: Catalog, workspace: str = "") -> list[ListedDataset]:
    """The datasets of a workspace, or of all, and their latest versions."""
    store, workspace = catalog.online_store, workspace.strip("/")
    try:
        check_catalog(store)
        names = list_datasets_of(store, workspace)
    except UnavailableError:
        raise
    except StoreError:
        if (written := read_dataset_list(store)) is None:
            raise
        names = [name for name in written if not workspace or name.startswith(f"{workspace}/")]
    pointers = map_in_threads(lambda name: read_pointer(store, parse_name(name).latest_key).pointer, names)
    return [
        ListedDataset(name, pointer.version, pointer.sequence)
        for name, pointer in zip(names, pointers, strict=True)
        if pointer is not None
    ]


def set_tag(access: Access, catalog: Catalog, name: DatasetName, tag: str) -> Pointer:
    """Point a tag at the version `name` resolves to; a tag that points elsewhere moves."""
    resolved = Resolver(access).resolve(name)
    if resolved.catalog.place != catalog.place:
        fact = f"{name} is in {resolved.catalog.address}, but tags are set in {catalog.address}"
        raise DatasetError(fact, hint="Name its catalog alone (--catalog), or copy it first (`warp copy`).")
    return tag_version(catalog.online_store, name, resolved.manifest.version_hash, check_tag(tag))


def tag_version(store: BlobStore, name: DatasetName, version: str, tag: str) -> Pointer:
    """Point a tag at a version; DatasetNotFoundError if the version is deleted meanwhile."""
    key = name.tag_key(tag)
    removals = removal_count(store)
    seen = read_pointer(store, key)
    store.head(name.version_key(version))
    pointer = move_pointer(store, key, version, seen)
    if removal_count(store) != removals:
        try:
            store.head(name.version_key(version))
        except BlobNotFoundError:
            store.delete(key)
            fact = f"version {version[:12]} of {name.dataset_id} was deleted while it was tagged"
            raise DatasetNotFoundError(fact, path=store.address) from None
    note_version(store, name, version, parent=None, tags=(tag,), about=None)
    return pointer


def delete_tag(catalog: Catalog, name: DatasetName, tag: str) -> None:
    """Remove a tag; the version stays."""
    key = name.tag_key(check_tag(tag))
    store = catalog.online_store
    try:
        store.head(key)
    except BlobNotFoundError:
        tags = list_tags(catalog, name)
        hint = f"It has: {', '.join(sorted(tags)) or 'none'}.{nearest(tag, tags)}"
        raise BlobNotFoundError(f"{name.dataset_id} has no tag {tag!r}", hint=hint) from None
    store.delete(key)
    rewrite_list(store, name)


def delete_versions(access: Access, name: DatasetName, prefixes: Sequence[str]) -> Expired:
    """Delete versions by the beginnings of their hashes; a version that `latest` or a tag points at is refused."""
    store = writable_store(access)
    every = [_version_of(info) for info in _manifests(store, name)]
    chosen: dict[str, None] = {}
    for prefix in prefixes:
        matches = [version for version in every if version.startswith(prefix)]
        if len(matches) > 1:
            raise ValueError(f"{prefix} is the beginning of several versions; give more digits")
        if not matches or len(prefix) < 8:
            hint = f"Run `warp versions list {name.dataset_id}` to see them."
            raise DatasetNotFoundError(f"no version {prefix} of {name.dataset_id}", hint=hint)
        chosen[matches[0]] = None
    pointers = _pointed(store, name)
    for version in chosen:
        if version in pointers:
            hint = "Move or delete what points at it first (`warp tags delete`), or publish another version."
            fact = f"{pointers[version]} points at version {version[:12]}"
            raise DatasetError(fact, path=name.dataset_id, hint=hint)
    gone = _delete(store, name, tuple(chosen))
    if left := chosen.keys() - set(gone):
        fact = f"version {min(left)[:12]} is being published or tagged right now"
        raise ConflictError(fact, path=name.dataset_id, hint="Run the command again later.")
    return Expired(name.dataset_id, gone, len(every) - len(gone), is_deleted=True)


def expire_versions(
    access: Access, name: DatasetName, *, keep_last: int = 0, older_than_s: float = 0.0, delete: bool = False
) -> Expired:
    """The versions beyond the newest `keep_last` that are older than a time and that nothing points at.

    A version is as old as its manifest in the catalog, by the clock of the store.
    """
    if keep_last < 0 or older_than_s < 0:
        raise ValueError("keep_last and older_than are not negative")
    store = writable_store(access)
    infos = sorted(_manifests(store, name), key=lambda info: (info.modified_s, info.key), reverse=True)
    if not infos:
        raise DatasetNotFoundError(f"dataset {name.dataset_id} is not published", path=store.address)
    before_s = time_for(store, is_writing=delete) - older_than_s
    pointers = _pointed(store, name)
    old = [_version_of(info) for info in infos[keep_last:] if info.modified_s <= before_s]
    chosen = tuple(version for version in old if version not in pointers)
    if delete:
        chosen = _delete(store, name, chosen)
    return Expired(name.dataset_id, chosen, len(infos) - len(chosen), delete)


def time_for(store: BlobStore, *, is_writing: bool) -> float:
    """The time of the store; a caller that only looks and may not write gets the time of this machine instead."""
    try:
        return store_time_s(store)
    except StoreError:
        if is_writing:
            raise
        return time.time()


def _delete(store: BlobStore, name: DatasetName, versions: Sequence[str]) -> tuple[str, ...]:
    """Delete those of the versions that nothing points at; manifests go first."""
    gone: list[str] = []
    try:
        for start in range(0, len(versions), _ROUND):
            with removing(store) as may_remove:
                pointers = _pointed(store, name)  # inside the lock: a later move is checked by its publisher
                chosen = [v for v in versions[start : start + _ROUND] if v not in pointers]
                if not may_remove():
                    hint = "Run the command again."
                    raise ConflictError("deleting took too long", path=name.dataset_id, hint=hint)
                store.delete_all([name.version_key(version) for version in chosen])
                beside = VERSION_SUFFIXES[1:]
                store.delete_all([name.version_key(v, suffix) for v in chosen for suffix in beside])
            gone += chosen
    finally:
        if versions:
            rewrite_list(store, name)
    return tuple(gone)


def _manifests(store: BlobStore, name: DatasetName) -> list[BlobInfo]:
    return [info for info in store.list(f"{name.folder}versions/") if HASH.fullmatch(_version_of(info))]


def _version_of(info: BlobInfo) -> str:
    return info.key.rpartition("/")[2].removesuffix(".json")


def _pointed(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """Version -> what points at it."""
    pointers = {version: f"tag {tag!r}" for tag, version in list_stored_tags(store, name).items()}
    latest = read_pointer(store, name.latest_key).pointer
    return pointers if latest is None else {**pointers, latest.version: "latest"}


DEFAULT_GRACE_S = 7 * 24 * 3600.0
"""A killed publisher finds its blobs again when it runs again; younger blobs stay for it."""

_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}")
_FOLDERS = ("blobs", "datasets", "probe")
"""The folders of a catalog; other files beside them are not ours."""
_TEMP_S = 24 * 3600.0
"""Unfinished files of a folder are not written to for at least this long before they are removed."""
_REMOVED_AT_ONCE = 20_000
"""Keys that are removed while the lock is held once: publishers wait meanwhile."""
_STEP = 1000


@dataclass(frozen=True, slots=True)
class RemoteGarbage:
    """What no version references."""

    blobs: tuple[str, ...]
    bytes: int
    young_blobs: int
    versions: int
    temporary_files: int
    is_deleted: bool
    leftovers: tuple[str, ...] = ()
    """Cards and signatures of versions that are gone."""


@dataclass(slots=True)
class _References:
    """The blobs that manifests of a catalog reference; each manifest is read once."""

    workers: int
    keys: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    beside: dict[str, BlobInfo] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    """Parts of manifests that were read: versions share most of theirs."""

    def read(self, store: BlobStore) -> None:
        """Read the manifests that are new; one that cannot be read stops the collection."""
        new = []
        for info in store.list("datasets/"):
            manifest = _manifest_key(info.key)
            if manifest == info.key and manifest not in self.versions:
                new.append(manifest)
            elif manifest is not None and manifest != info.key:
                self.beside[info.key] = info

        def read_manifest(key: str) -> None:
            blob = get_small(store, key, MAX_MANIFEST_BYTES)
            if blob is None:  # deleted meanwhile
                return
            version = key.rpartition("/")[2].removesuffix(".json")
            manifest = parse_manifest(blob.data, expected_hash=version, parts=stored_parts(store))
            self.keys.update([ref.key for ref in unseen_blobs(manifest, self.parts)])
            self.versions.add(key)

        map_in_threads(read_manifest, new, self.workers)

    def __contains__(self, key: str) -> bool:
        manifest = _manifest_key(key)
        return key in self.keys if manifest is None else manifest in self.versions


def collect(
    catalog: Catalog, *, delete: bool = False, grace_s: float = DEFAULT_GRACE_S, workers: int = MAX_PARALLEL
) -> RemoteGarbage:
    """List unreferenced blobs, and delete those older than the grace period if `delete` is set."""
    store = catalog.online_store
    check_catalog(store)
    used = _References(workers)
    used.read(store)
    now_s = time_for(store, is_writing=delete)
    before_s = now_s - grace_s
    unused = [
        info for info in store.list("blobs/sha256/") if _BLOB.fullmatch(info.key) and info.key not in used
    ]
    old = [info for info in unused if info.modified_s < before_s]
    leftovers = [i for i in used.beside.values() if i.key not in used and i.modified_s < before_s]
    probes = [info for info in store.list(PROBE) if info.modified_s < now_s - _TEMP_S]
    inner = store.inner if isinstance(store, ReliableStore) else store
    temps = (
        inner.stale_temps(min(before_s, now_s - _TEMP_S), _FOLDERS) if isinstance(inner, LocalStore) else []
    )
    if delete:
        gone = _remove(store, used, [info.key for info in [*leftovers, *old, *probes]])
        old, leftovers = ([info for info in infos if info.key in gone] for infos in (old, leftovers))
        for path in temps:
            path.unlink(missing_ok=True)
    return RemoteGarbage(
        blobs=tuple(info.key for info in old),
        bytes=sum(info.size for info in old),
        young_blobs=len(unused) - len(old),
        versions=len(used.versions),
        temporary_files=len(temps),
        is_deleted=delete,
        leftovers=tuple(info.key for info in leftovers),
    )


def _remove(store: BlobStore, used: _References, keys: list[str]) -> set[str]:
    """Remove those of the keys that no version references, a round at a time; returns them."""
    gone: set[str] = set()
    while keys:
        with removing(store) as may_remove:
            used.read(
                store
            )  # inside the lock: a publisher that puts its manifest later checks its blobs again
            batch = [key for key in keys[:_REMOVED_AT_ONCE] if key not in used]
            done = 0
            while done < len(batch) and may_remove():
                store.delete_all(batch[done : done + _STEP])
                done += len(batch[done : done + _STEP])
        if batch and not done:
            raise UnavailableError(
                "reading the catalog takes longer than the removal lock lasts", path=store.address
            )
        gone.update(batch[:done])
        keys = batch[done:] + keys[_REMOVED_AT_ONCE:]
    return gone


def _manifest_key(key: str) -> str | None:
    """The manifest that a key below `datasets/` is, or is beside of; None for any other key."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != "datasets" or parts[3] != "versions":
        return None
    version, _, suffix = parts[4].partition(".")
    is_file = HASH.fullmatch(version) and f".{suffix}" in VERSION_SUFFIXES
    return f"{key.rpartition('/')[0]}/{version}.json" if is_file else None
