"""Blobs of a catalog that no version uses: listed always, deleted only when asked and old enough."""

from __future__ import annotations

import time
from dataclasses import dataclass

from warpdata.catalog.access import Catalog
from warpdata.errors import OfflineError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.formats.manifest.reader import parse_manifest
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

DEFAULT_GRACE_S = 7 * 24 * 3600.0
"""A publisher uploads blobs before their manifest: younger blobs may be about to be used."""


@dataclass(frozen=True, slots=True)
class RemoteGarbage:
    """What no version uses."""

    blobs: tuple[str, ...]
    bytes: int
    young_blobs: int
    versions: int
    temporary_files: int
    is_deleted: bool


def collect(catalog: Catalog, *, delete: bool = False, grace_s: float = DEFAULT_GRACE_S) -> RemoteGarbage:
    """Find unused blobs; any unreadable manifest stops everything before a blob is touched."""
    store = catalog.store
    if store is None:
        raise OfflineError("the catalog cannot be asked", path=catalog.address)
    before_s = time.time() - grace_s
    used, versions = _used(catalog)
    unused = [info for info in store.list("blobs/sha256/") if info.key.rpartition("/")[2] not in used]
    old = [info for info in unused if info.modified_s < before_s]
    inner = store.inner if isinstance(store, ReliableStore) else store
    stale = inner.stale_temps(before_s) if isinstance(inner, LocalStore) else []
    if delete:
        # Versions published while we listed are looked at again before anything goes.
        used, versions = _used(catalog)
        old = [info for info in old if info.key.rpartition("/")[2] not in used]
        for info in old:
            store.delete(info.key)
        for path in stale:
            path.unlink(missing_ok=True)
    total = sum(info.size for info in old)
    keys = tuple(info.key for info in old)
    return RemoteGarbage(keys, total, len(unused) - len(old), versions, len(stale), delete)


def _used(catalog: Catalog) -> tuple[set[str], int]:
    assert catalog.store is not None
    used: set[str] = set()
    versions = 0
    for info in catalog.store.list("datasets/"):
        parts = info.key.split("/")
        version = parts[-1].removesuffix(".json")
        if len(parts) == 5 and parts[3] == "versions" and HASH.fullmatch(version):
            blob = catalog.store.get(info.key, max_bytes=MAX_MANIFEST_BYTES)
            assert blob is not None
            used |= parse_manifest(blob.data, expected_hash=version).blobs().keys()
            versions += 1
    return used, versions
