"""Garbage collection: blobs of a catalog that no version references and that are older than the grace period."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from warpdata.bytekit.process.threads import MAX_PARALLEL, map_in_threads
from warpdata.catalog.access import Catalog
from warpdata.catalog.manage.versions import time_for
from warpdata.catalog.names import VERSION_SUFFIXES
from warpdata.catalog.publish.listing import check_catalog
from warpdata.catalog.publish.pointer import PROBE, removing
from warpdata.catalog.publish.transfer import stored_parts
from warpdata.errors import BlobNotFoundError, UnavailableError
from warpdata.formats.manifest.codec import parse_manifest
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.formats.manifest.parts import unseen_blobs
from warpdata.stores.blobstore import BlobInfo, BlobStore
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

DEFAULT_GRACE_S = 7 * 24 * 3600.0
"""A killed publisher finds its blobs again when it runs again; younger blobs stay for it."""

_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}")
_FOLDERS = ("blobs", "datasets", "probe")
"""The folders of a catalog; other files beside them are not ours."""
_TEMP_S = 24 * 3600.0
"""Unfinished files of a folder are not written to for at least this long before they are removed."""
_ROUND = 20_000
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
        for key, blobs in zip(
            new, map_in_threads(lambda k: self._blobs(store, k), new, self.workers), strict=True
        ):
            if blobs is not None:
                self.versions.add(key)
                self.keys |= blobs

    def _blobs(self, store: BlobStore, key: str) -> set[str] | None:
        """The blobs of a manifest, but for those in parts that were read; None if it was deleted meanwhile."""
        try:
            blob = store.get(key, max_bytes=MAX_MANIFEST_BYTES)
        except BlobNotFoundError:
            return None
        assert blob is not None
        version = key.rpartition("/")[2].removesuffix(".json")
        manifest = parse_manifest(blob.data, expected_hash=version, parts=stored_parts(store))
        return {ref.key for ref in unseen_blobs(manifest, self.parts)}

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
            batch = [key for key in keys[:_ROUND] if key not in used]
            done = 0
            while done < len(batch) and may_remove():
                store.delete_all(batch[done : done + _STEP])
                done += len(batch[done : done + _STEP])
        if batch and not done:
            raise UnavailableError(
                "reading the catalog takes longer than the removal lock lasts", path=store.address
            )
        gone.update(batch[:done])
        keys = batch[done:] + keys[_ROUND:]
    return gone


def _manifest_key(key: str) -> str | None:
    """The manifest that a key below `datasets/` is, or is beside of; None for any other key."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != "datasets" or parts[3] != "versions":
        return None
    version, _, suffix = parts[4].partition(".")
    is_file = HASH.fullmatch(version) and f".{suffix}" in VERSION_SUFFIXES
    return f"{key.rpartition('/')[0]}/{version}.json" if is_file else None
