"""From a name to an intact manifest: catalogs in order, ETags for what moves, the cache for what does not."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from warpdata.bytekit import commit
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.access import Access, Catalog
from warpdata.catalog.names import DatasetName
from warpdata.catalog.pointer import Pointer, unpack_pointer
from warpdata.catalog.signing import check_signature
from warpdata.errors import (
    BlobNotFoundError,
    DatasetNotFoundError,
    FormatError,
    ManifestCorruptedError,
    OfflineError,
    StoreError,
    WarpError,
)
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH, Manifest
from warpdata.formats.manifest.reader import parse_manifest

_log = logging.getLogger("warpdata.catalog")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A manifest, the catalog it came from, and whether its pointer was only remembered."""

    manifest: Manifest
    catalog: Catalog
    is_remembered: bool = False


class Resolver:
    """Finds manifests through the catalogs of an access."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._memory = _Memory(access)

    def resolve(self, name: DatasetName) -> Resolved:
        """The manifest a name stands for, from the first catalog that has it."""
        for catalog in self._access.catalogs:
            found = self._resolve_in(catalog, name)
            if found is not None:
                return found
        where = ", ".join(catalog.address for catalog in self._access.catalogs)
        if self._access.is_offline:
            raise OfflineError(f"{name} was never seen on this machine", path=where)
        hint = "Check the spelling of workspace and name, or run `warp list-remote` to see the names."
        raise DatasetNotFoundError(f"dataset {name} is not published", path=where, hint=hint)

    def manifest(self, catalog: Catalog, name: DatasetName, version: str) -> Manifest:
        """One version's manifest, from the cache or the catalog, checked against its hash."""
        kept = self._memory.manifest(name, version)
        if kept is not None:
            return kept
        if catalog.store is None:
            raise OfflineError(f"the manifest of {name.dataset_id}@{version[:12]} is not in the cache")
        key = name.version_key(version)
        blob = catalog.store.get(key, max_bytes=MAX_MANIFEST_BYTES)
        assert blob is not None
        try:
            manifest = parse_manifest(blob.data, expected_hash=version)
        except ManifestCorruptedError as error:
            raise ManifestCorruptedError(
                str(error), path=f"{catalog.address}/{key}", hint=error.hint
            ) from None
        if manifest.dataset_id != name.dataset_id:
            raise ManifestCorruptedError(f"the manifest is of {manifest.dataset_id}", path=key)
        self._check_signature(catalog, name, version)
        if not catalog.store.is_local:
            self._memory.keep_manifest(name, version, blob.data)
        return manifest

    def _check_signature(self, catalog: Catalog, name: DatasetName, version: str) -> None:
        options = self._access.options
        if options.verify != "off" and catalog.store is not None:
            check_signature(catalog.store, name, version, options.verify, options.trusted_keys)

    def _resolve_in(self, catalog: Catalog, name: DatasetName) -> Resolved | None:
        try:
            version, remembered = self._version(catalog, name)
            return Resolved(self.manifest(catalog, name, version), catalog, remembered)
        except (BlobNotFoundError, LookupError):
            return None

    def _version(self, catalog: Catalog, name: DatasetName) -> tuple[str, bool]:
        if name.hash_prefix is not None:
            return self._by_prefix(catalog, name, name.hash_prefix), False
        key = name.tag_key(name.tag) if name.tag else name.latest_key
        pointer, remembered = self._pointer(catalog, key)
        return pointer.version, remembered

    def _pointer(self, catalog: Catalog, key: str) -> tuple[Pointer, bool]:
        """The pointer now; offline, the one seen last."""
        if catalog.store is not None and catalog.store.is_local:
            blob = catalog.store.get(key, max_bytes=MAX_POINTER_BYTES)
            assert blob is not None
            return unpack_pointer(blob.data, key), False
        kept = self._memory.pointer(catalog, key)
        if catalog.store is None:
            if kept is None:
                raise LookupError(key)
            _log.warning("offline: %s is as it was seen last", key)
            return kept[1], True
        blob = catalog.store.get(key, max_bytes=MAX_POINTER_BYTES, unless_etag=kept[0] if kept else None)
        if blob is None:
            assert kept is not None
            return kept[1], False
        pointer = unpack_pointer(blob.data, f"{catalog.address}/{key}")
        self._memory.keep_pointer(catalog, key, blob.info.etag, blob.data)
        return pointer, False

    def _by_prefix(self, catalog: Catalog, name: DatasetName, prefix: str) -> str:
        if HASH.fullmatch(prefix):
            return prefix
        found = set(self._memory.versions(name, prefix))
        if catalog.store is not None and not found:
            listed = catalog.store.list(name.version_key(prefix, ""))
            found = {info.key.rpartition("/")[2].split(".")[0] for info in listed}
        if len(found) > 1:
            raise ValueError(f"{prefix} is the beginning of several versions; give more digits")
        if not found:
            raise LookupError(prefix)
        return found.pop()


class _Memory:
    """What the cache folder remembers of catalogs: manifests for ever, pointers with their ETags."""

    def __init__(self, access: Access) -> None:
        everything_here = all(c.store is not None and c.store.is_local for c in access.catalogs)
        writes = access.cache is not None and not everything_here
        self._folder = Path(os.path.expanduser(access.options.cache_dir)) if writes else None

    def manifest(self, name: DatasetName, version: str) -> Manifest | None:
        path = self._manifest_path(name, version)
        if path is None or not path.exists():
            return None
        try:
            return parse_manifest(path.read_bytes(), expected_hash=version)
        except (ManifestCorruptedError, OSError):
            path.unlink(missing_ok=True)
            return None

    def keep_manifest(self, name: DatasetName, version: str, data: memoryview) -> None:
        self._keep(self._manifest_path(name, version), data)

    def versions(self, name: DatasetName, prefix: str) -> list[str]:
        path = self._manifest_path(name, prefix)
        return [] if path is None else [p.stem for p in path.parent.glob(f"{prefix}*.json")]

    def pointer(self, catalog: Catalog, key: str) -> tuple[str | None, Pointer] | None:
        path = self._pointer_path(catalog, key)
        if path is None or not path.exists():
            return None
        try:
            raw = parse_json_object(path.read_bytes(), max_bytes=MAX_POINTER_BYTES)
            return raw.get("etag"), unpack_pointer(dump_json(raw.get("pointer")), str(path))
        except (WarpError, OSError):
            path.unlink(missing_ok=True)
            return None

    def keep_pointer(self, catalog: Catalog, key: str, etag: str | None, data: memoryview) -> None:
        pointer = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        self._keep(self._pointer_path(catalog, key), dump_json({"etag": etag, "pointer": pointer}))

    def _manifest_path(self, name: DatasetName, version: str) -> Path | None:
        return self._folder and self._folder / "manifests" / name.dataset_id / f"{version}.json"

    def _pointer_path(self, catalog: Catalog, key: str) -> Path | None:
        place = hashlib.sha256(catalog.address.encode()).hexdigest()[:16]
        return self._folder and self._folder / "pointers" / place / key

    def _keep(self, path: Path | None, data: memoryview | bytes) -> None:
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            commit.write_file(path, data, durable=False)
        except (OSError, StoreError, FormatError):
            _log.debug("the cache cannot keep %s", path)
