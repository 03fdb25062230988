"""Versions that are no longer wanted: taken out of a catalog, after which `gc-remote` reclaims their blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpdata.catalog.access import Access, writable_catalog
from warpdata.catalog.claims import dropping, time_s, wait_for_collectors
from warpdata.catalog.names import DatasetName
from warpdata.catalog.pointer import read_pointer
from warpdata.catalog.roster import listed_roster, listed_tags, write_roster
from warpdata.errors import ConflictError, DatasetError, DatasetNotFoundError
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import BlobStore

_ROUND = 1000
"""How many versions are claimed and deleted at a time: who needs one of them waits for so long."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Versions that were deleted, or would be."""

    dataset_id: str
    versions: tuple[str, ...]
    kept: int
    is_deleted: bool


def delete_versions(access: Access, name: DatasetName, prefixes: Sequence[str]) -> Expired:
    """Delete versions by the beginnings of their hashes; what `latest` or a tag points at is refused."""
    store = _store(access)
    every = listed_roster(store, name).versions
    chosen = tuple(dict.fromkeys(_one_version(name, every, prefix) for prefix in prefixes))
    pointed = _pointed(store, name)
    for version in chosen:
        if version in pointed:
            hint = "Move or delete what points at it first (`warp tags delete`), or publish another version."
            fact = f"{pointed[version]} points at version {version[:12]}"
            raise DatasetError(fact, path=name.dataset_id, hint=hint)
    gone = _delete(store, name, chosen)
    if left := set(chosen) - set(gone):
        fact = f"version {min(left)[:12]} is being published or tagged right now"
        raise ConflictError(fact, path=name.dataset_id, hint="Run the command again later.")
    return Expired(name.dataset_id, gone, len(every) - len(gone), is_deleted=True)


def expire_versions(
    access: Access,
    name: DatasetName,
    *,
    keep_last: int = 0,
    older_than_s: float = 0.0,
    delete: bool = False,
) -> Expired:
    """The versions beyond the newest `keep_last` that are older than a time and that nothing points at.

    A version is as old as its manifest in the catalog, by the clock of the store.
    """
    if keep_last < 0 or older_than_s < 0:
        raise ValueError("keep_last and older_than are not negative")
    store = _store(access)
    infos = [
        info
        for info in store.list(f"{name.folder}versions/")
        if HASH.fullmatch(info.key.rpartition("/")[2].removesuffix(".json"))
    ]
    if not infos:
        raise DatasetNotFoundError(f"dataset {name.dataset_id} is not published", path=store.address)
    newest_first = sorted(infos, key=lambda info: (info.modified_s, info.key), reverse=True)
    before_s = time_s(store, must_ask=delete) - older_than_s
    pointed = _pointed(store, name)
    old = [info.key.rpartition("/")[2].removesuffix(".json")
           for info in newest_first[keep_last:] if info.modified_s <= before_s]  # fmt: skip
    chosen = tuple(version for version in old if version not in pointed)
    if delete:
        chosen = _delete(store, name, chosen)
    return Expired(name.dataset_id, chosen, len(infos) - len(chosen), delete)


def _delete(store: BlobStore, name: DatasetName, versions: Sequence[str]) -> tuple[str, ...]:
    """Delete those of the versions that nobody needs now, a round at a time; manifests go first."""
    gone: list[str] = []
    if not versions:
        return ()
    try:
        for start in range(0, len(versions), _ROUND):
            gone += _delete_round(store, name, versions[start : start + _ROUND])
    finally:
        write_roster(store, name)
    return tuple(gone)


def _delete_round(store: BlobStore, name: DatasetName, versions: Sequence[str]) -> list[str]:
    keys = [key for version in versions for key in name.version_keys(version)]
    with dropping(store, keys) as (claim, free):
        wait_for_collectors(claim)
        # Only now: whoever let go of a claim before has moved its pointers.
        pointed = _pointed(store, name)
        chosen = [v for v in versions if name.version_key(v) in free and v not in pointed]
        if not claim.is_fresh:
            raise ConflictError("deleting took too long", path=name.dataset_id, hint="Run the command again.")
        store.delete_all([name.version_key(version) for version in chosen])
        store.delete_all([key for version in chosen for key in name.version_keys(version)[1:]])
    return chosen


def _pointed(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """Version -> what points at it."""
    found = {version: f"tag {tag!r}" for tag, version in listed_tags(store, name).items()}
    latest = read_pointer(store, name.latest_key).pointer
    if latest is not None:
        found[latest.version] = "latest"
    return found


def _one_version(name: DatasetName, every: Sequence[str], prefix: str) -> str:
    found = [version for version in every if version.startswith(prefix)]
    if len(found) > 1:
        raise ValueError(f"{prefix} is the beginning of several versions; give more digits")
    if not found or len(prefix) < 8:
        hint = f"Run `warp versions list {name.dataset_id}` to see them."
        raise DatasetNotFoundError(f"no version {prefix} of {name.dataset_id}", hint=hint)
    return found[0]


def _store(access: Access) -> BlobStore:
    store = writable_catalog(access).store
    assert store is not None
    return store
