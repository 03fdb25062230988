"""Blobs of a catalog that no version uses: listed always, deleted only when asked and old enough."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import Catalog
from warpdata.catalog.names import VERSION_SUFFIXES
from warpdata.catalog.publish.claims import (
    KEEP,
    LIFETIME_S,
    Claim,
    deletes_versions_now,
    dropping,
    pause,
    sweep_claims,
    time_s,
)
from warpdata.catalog.publish.dataset_list import check_catalog
from warpdata.catalog.publish.transfer import stored_parts
from warpdata.errors import BlobNotFoundError, OfflineError, UnavailableError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.formats.manifest.parts import unseen_blobs
from warpdata.formats.manifest.reader import parse_manifest
from warpdata.stores.blobstore import BlobInfo, BlobStore
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

DEFAULT_GRACE_S = 7 * 24 * 3600.0
"""A killed publisher finds its blobs again when it is run again; younger blobs stay for it."""

_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}")
"""What else lies there was not put there by a publisher."""

_FOLDERS = ("blobs", "datasets", "claims", "probe")
"""The folders of a catalog; what lies beside them belongs to somebody else."""

_ROUND = 20_000
"""How many keys are claimed and removed at a time: publishers that need one of them wait for so long."""

_STEP = 1000
"""How many keys are removed before the claim is looked at again."""


@dataclass(frozen=True, slots=True)
class RemoteGarbage:
    """What no version uses."""

    blobs: tuple[str, ...]
    bytes: int
    young_blobs: int
    versions: int
    temporary_files: int
    is_deleted: bool
    leftovers: tuple[str, ...] = ()
    """Cards and signatures of versions that are gone."""
    dead_claims: int = 0


@dataclass(slots=True)
class _Uses:
    """What the manifests of a catalog name, each of them read once."""

    workers: int
    keys: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    beside: dict[str, BlobInfo] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    """Parts of manifests that were gone through: versions share most of theirs."""

    def read(self, store: BlobStore) -> None:
        """Read the manifests that were not seen yet; one that cannot be read stops everything."""
        new = []
        for info in store.list("datasets/"):
            version = _version_of(info.key)
            if version is not None and info.key.endswith(f"/{version}.json"):
                new += [info.key] if info.key not in self.versions else []
            elif version is not None:
                self.beside[info.key] = info
        for key, blobs in zip(
            new, map_in_threads(lambda k: _blobs_of(store, k, self.parts), new, self.workers), strict=True
        ):
            if blobs is not None:
                self.versions.add(key)
                self.keys |= blobs

    def has(self, key: str) -> bool:
        """Whether a version needs this key, or it is about a version that is there."""
        version = _version_of(key)
        return key in self.keys if version is None else _manifest_of(key, version) in self.versions


def collect(
    catalog: Catalog, *, delete: bool = False, grace_s: float = DEFAULT_GRACE_S, workers: int = MAX_PARALLEL
) -> RemoteGarbage:
    """Find unused blobs; any unreadable manifest stops everything before a blob is touched."""
    store = catalog.store
    if store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    check_catalog(store)
    uses = _Uses(workers)
    uses.read(store)
    now_s = time_s(store, must_ask=delete)
    before_s = now_s - grace_s
    unused = [i for i in store.list("blobs/sha256/") if _BLOB.fullmatch(i.key) and not uses.has(i.key)]
    old = [info for info in unused if info.modified_s < before_s]
    beside = [i for i in uses.beside.values() if not uses.has(i.key) and i.modified_s < before_s]
    inner = store.inner if isinstance(store, ReliableStore) else store
    # No claim names what is being written: who has not gone on for as long as a claim counts is dead.
    dead_s = min(before_s, now_s - LIFETIME_S[KEEP])
    stale = inner.stale_temps(dead_s, _FOLDERS) if isinstance(inner, LocalStore) else []
    dead = 0
    if delete:
        dead = sweep_claims(store)
        gone = _remove(store, uses, [info.key for info in [*beside, *old]])
        old, beside = ([info for info in infos if info.key in gone] for infos in (old, beside))
        for path in stale:
            path.unlink(missing_ok=True)
    return RemoteGarbage(
        tuple(info.key for info in old), sum(info.size for info in old), len(unused) - len(old),
        len(uses.versions), len(stale), delete, tuple(info.key for info in beside), dead,
    )  # fmt: skip


def _remove(store: BlobStore, uses: _Uses, keys: Sequence[str]) -> set[str]:
    """Remove keys that nobody uses or is about to use, a round at a time; those that went."""
    pending, gone = list(keys), set()
    while pending:
        batch, pending = pending[:_ROUND], pending[_ROUND:]
        with dropping(store, batch) as (claim, free):
            if deletes_versions_now(claim):
                # Of versions that come and go meanwhile, no listing shows one state; they have the right of way.
                pending = [*batch, *pending]
                pause()
                continue
            # Only now: a publisher that had let go of its claim by then has its manifest there.
            uses.read(store)
            doomed = [key for key in batch if key in free and not uses.has(key)]
            done = _delete(store, doomed, claim)
        if doomed and not done:
            raise UnavailableError("reading the catalog takes longer than a claim counts", path=store.address)
        gone.update(doomed[:done])
        pending = doomed[done:] + pending
    return gone


def _delete(store: BlobStore, keys: Sequence[str], claim: Claim) -> int:
    """Delete keys in order as long as the claim counts; how many went."""
    done = 0
    while done < len(keys) and claim.is_fresh:
        step = keys[done : done + _STEP]
        store.delete_all(step)
        done += len(step)
    return done


def _blobs_of(store: BlobStore, key: str, seen_parts: set[str]) -> set[str] | None:
    """The blobs a manifest names, but for those in parts that were seen; None when its version was deleted meanwhile.

    A part that cannot be read stops everything, so whatever is in `seen_parts` is accounted for in the end.
    """
    try:
        blob = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        return None
    assert blob is not None
    source = stored_parts(store)
    manifest = parse_manifest(blob.data, expected_hash=_version_of(key), parts=source)
    return {ref.key for ref in unseen_blobs(manifest, seen_parts)}


def _version_of(key: str) -> str | None:
    """The version a key below `datasets/` is about, if it is about one."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != "datasets" or parts[3] != "versions":
        return None
    version, _, suffix = parts[4].partition(".")
    return version if HASH.fullmatch(version) and f".{suffix}" in VERSION_SUFFIXES else None


def _manifest_of(key: str, version: str) -> str:
    return f"{key.rpartition('/')[0]}/{version}.json"
