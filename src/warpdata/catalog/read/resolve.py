"""From a name to an intact manifest: catalogs in order, ETags for pointers, the cache for manifests."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from warpdata.bytekit.io import commit
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.access import LATEST, Access, Catalog, DatasetName
from warpdata.catalog.publish.pointers import get_small, read_list
from warpdata.catalog.publish.signing import SUFFIX as SIGNATURE
from warpdata.catalog.publish.signing import Signature, check_signature
from warpdata.errors import (
    BlobNotFoundError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    RollbackError,
    StoreError,
    UnavailableError,
    WarpError,
)
from warpdata.formats.manifest.codec import Pointer, parse_manifest, unpack_pointer
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_POINTER_BYTES
from warpdata.formats.manifest.model import HASH, Manifest

_log = logging.getLogger("warpdata.catalog")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A manifest, the catalog it came from, and whether its pointer comes from the cache only."""

    manifest: Manifest
    catalog: Catalog
    is_remembered: bool = False
    signature: Signature | None = None
    """The signer, if the signature was checked."""


class Resolver:
    """Finds manifests through the catalogs of an access."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._memory = _Memory(access)

    @property
    def checks_signatures(self) -> bool:
        """Whether signatures are read: without trusted keys no request is spent on them."""
        options = self._access.options
        return options.verify == "require" or (options.verify != "off" and bool(options.trusted_keys))

    def resolve(self, name: DatasetName) -> Resolved:
        """The manifest of a name, from the first catalog that has it."""
        for catalog in self._access.catalogs:
            resolved = self._resolve_in(catalog, name)
            if resolved is not None:
                return resolved
        addresses = ", ".join(catalog.address for catalog in self._access.catalogs)
        if self._access.is_offline:
            raise OfflineError(f"{name} was never seen on this machine", path=addresses)
        hint = "Check the spelling of workspace and name, or run `warp catalog list` to see the names."
        if name.hash_prefix or name.tag:
            hint = f"Run `warp versions list {name.dataset_id}` to see its versions."
            if name.tag and set(name.tag) <= set("0123456789abcdef"):
                hint += " A hash is given by its first 8 characters or more; this is taken for a tag."
        raise DatasetNotFoundError(f"dataset {name} is not published", path=addresses, hint=hint)

    def manifest(self, catalog: Catalog, name: DatasetName, version: str) -> Manifest:
        """One version's manifest, from the cache or the catalog, checked against its hash."""
        return self._open(catalog, name, version)[0]

    def manifest_bytes(self, catalog: Catalog, name: DatasetName, version: str) -> bytes:
        """The bytes of a manifest in the catalog, checked against its hash."""
        blob = catalog.online_store.get(name.version_key(version), max_bytes=MAX_MANIFEST_BYTES)
        assert blob is not None
        self._check(catalog, name, version, blob.data, is_cached=False)
        return bytes(blob.data)

    def version(self, catalog: Catalog, name: DatasetName) -> str:
        """The version of a name in one catalog, even if its manifest is damaged."""
        try:
            return self._version(catalog, name)[0]
        except (BlobNotFoundError, LookupError):
            raise DatasetNotFoundError(f"dataset {name} is not published", path=catalog.address) from None

    def line_of_parents(self, catalog: Catalog, name: DatasetName) -> list[str]:
        """The latest version, its parent, and so on: for catalogs without any list."""
        line: dict[str, None] = {}
        with contextlib.suppress(BlobNotFoundError):
            version: str | None = self._pointer(catalog, name.latest_key)[0].version
            while version is not None and version not in line:
                manifest = self.manifest(catalog, name, version)
                line[version] = None
                parent = manifest.metadata.get("parent")
                version = parent if isinstance(parent, str) and HASH.fullmatch(parent) else None
        return list(line)

    def _resolve_in(self, catalog: Catalog, name: DatasetName) -> Resolved | None:
        missing = ""
        while True:
            try:
                version, is_remembered = self._version(catalog, name)
            except (BlobNotFoundError, LookupError):
                return None
            try:
                manifest, signature = self._open(catalog, name, version)
                return Resolved(manifest, catalog, is_remembered, signature)
            except BlobNotFoundError:
                if name.hash_prefix is not None:
                    return None
                if version == missing:
                    path = f"{catalog.address}/{name.version_key(version)}"
                    raise missing_manifest(name, version, path) from None
                missing = version  # the pointer may have moved on, and the version been deleted

    def _open(self, catalog: Catalog, name: DatasetName, version: str) -> tuple[Manifest, Signature | None]:
        cached = self._memory.manifest(name, version)
        if cached is not None:
            try:
                return self._check(catalog, name, version, cached, is_cached=True)
            except ManifestCorruptedError:  # the catalog may have other notes, or by now a signature
                if catalog.store is None:
                    raise
        if catalog.store is None:
            raise OfflineError(f"the manifest of {name.dataset_id}@{version[:12]} is not in the cache")
        blob = catalog.store.get(name.version_key(version), max_bytes=MAX_MANIFEST_BYTES)
        assert blob is not None
        checked = self._check(catalog, name, version, blob.data, is_cached=False)
        if not catalog.store.is_local:
            self._memory.keep(self._memory.path_of(name, version), blob.data)
        return checked

    def _check(
        self, catalog: Catalog, name: DatasetName, version: str, data: memoryview, *, is_cached: bool
    ) -> tuple[Manifest, Signature | None]:
        """The manifest of some bytes with the right hash, name and signature."""
        path = f"{catalog.address}/{name.version_key(version)}"
        try:
            manifest = parse_manifest(data, expected_hash=version, parts=self._access.parts(catalog))
        except ManifestCorruptedError as error:
            raise ManifestCorruptedError(str(error), path=path, hint=error.hint) from None
        if manifest.dataset_id != name.dataset_id:
            raise ManifestCorruptedError(f"the manifest is of {manifest.dataset_id}", path=path)
        if not self.checks_signatures:
            return manifest, None
        options = self._access.options
        signed = self._signature_file(catalog, name, version, is_cached=is_cached)
        if signed is None and options.verify != "require":
            return manifest, None
        return manifest, check_signature(signed, data, name, version, options.trusted_keys)

    def _signature_file(
        self, catalog: Catalog, name: DatasetName, version: str, *, is_cached: bool
    ) -> memoryview | None:
        """The signature of a manifest, from where the manifest came, or None."""
        path = self._memory.path_of(name, version, SIGNATURE)
        cached = _read_file(path) if is_cached else None
        if cached is not None:
            return cached
        if catalog.store is None:
            if self._access.options.verify != "require":
                return None
            raise OfflineError(f"the signature of {name.dataset_id}@{version[:12]} is not in the cache")
        blob = get_small(catalog.store, name.version_key(version, SIGNATURE))
        if blob is None:
            return None
        if not catalog.store.is_local:
            self._memory.keep(path, blob.data)
        return blob.data

    def _version(self, catalog: Catalog, name: DatasetName) -> tuple[str, bool]:
        if name.hash_prefix is None:
            key = name.tag_key(name.tag) if name.tag else name.latest_key
            pointer, is_remembered = self._pointer(catalog, key)
            return pointer.version, is_remembered
        version = self._by_prefix(catalog, name, name.hash_prefix)
        if len(self._access.catalogs) > 1 and catalog.store is not None:
            # A cached manifest may come from another catalog, and the blobs are only there.
            catalog.store.head(name.version_key(version))
        return version, False

    def _pointer(self, catalog: Catalog, key: str) -> tuple[Pointer, bool]:
        """The pointer now; offline, the one that was read last."""
        path = f"{catalog.address}/{key}"
        store, is_local = catalog.store, catalog.store is not None and catalog.store.is_local
        etag, remembered = (None, None) if is_local else self._memory.pointer(catalog, key)
        if store is None:
            if remembered is None:
                raise LookupError(key)
            _log.warning("offline: %s is as it was read last", key)
            return remembered, True
        blob = store.get(key, max_bytes=MAX_POINTER_BYTES, unless_etag=etag)
        if blob is None:
            assert remembered is not None
            return remembered, False
        pointer = unpack_pointer(blob.data, path)
        if is_local:
            return pointer, False
        if remembered is not None and key.endswith(LATEST) and not self._access.options.accept_rollback:
            _check_not_older(remembered, pointer, path)
        raw = parse_json_object(blob.data, max_bytes=MAX_POINTER_BYTES)
        entry = dump_json({"etag": blob.info.etag, "pointer": raw})
        self._memory.keep(self._memory.pointer_path(catalog, key), entry)
        return pointer, False

    def _by_prefix(self, catalog: Catalog, name: DatasetName, prefix: str) -> str:
        if HASH.fullmatch(prefix):
            return prefix
        path = self._memory.path_of(name, prefix)
        stems = [] if path is None else [p.stem for p in path.parent.glob(f"{prefix}*.json")]
        matches = {stem for stem in stems if HASH.fullmatch(stem)}
        if catalog.store is not None and not matches:
            matches = {v for v in self._listed_versions(catalog, name, prefix) if v.startswith(prefix)}
        if len(matches) > 1:
            raise ValueError(f"{prefix} is the beginning of several versions; give more digits")
        if not matches:
            raise LookupError(prefix)
        return matches.pop()

    def _listed_versions(self, catalog: Catalog, name: DatasetName, prefix: str) -> list[str]:
        """Versions that may have a prefix: from a listing, or from the written list, or the line of parents."""
        store = catalog.online_store
        try:
            infos = store.list(name.version_key(prefix, ""))
            return [info.key.rpartition("/")[2].split(".")[0] for info in infos]
        except UnavailableError:
            raise
        except StoreError as cannot_list:
            written = read_list(store, name)
            versions = list(written.versions) if written is not None else self.line_of_parents(catalog, name)
            if written is None and not any(version.startswith(prefix) for version in versions):
                hint = "Give all 64 digits, or publish again: that writes the list of versions."
                raise StoreError(f"{prefix} cannot be looked up: {cannot_list.message}", hint=hint) from None
            return versions


def _check_not_older(before: Pointer, now: Pointer, path: str) -> None:
    """RollbackError if a catalog shows a state that was already replaced."""
    is_other = now.sequence == before.sequence and now.version != before.version
    if now.sequence < before.sequence or is_other:
        raise RollbackError(
            f"latest is {now.version[:12]} (move {now.sequence}), but this machine has seen"
            f" {before.version[:12]} (move {before.sequence})",
            path=path,
            hint="Contact the owner of the catalog. If it was restored or made again on purpose, open the dataset once"
            " with accept_rollback=True or WARP_ACCEPT_ROLLBACK=1; the newer version opens by its hash.",
        )


def missing_manifest(name: DatasetName, version: str, path: str) -> ManifestCorruptedError:
    """The error for a pointer to a version that is not there."""
    pointer = f"tag {name.tag!r}" if name.tag else "latest"
    fact = f"{pointer} of {name.dataset_id} points at version {version[:12]}, whose manifest is gone"
    hint = "Copy the version from a catalog that has it (`warp copy`), or publish it again."
    return ManifestCorruptedError(fact, path=path, hint=hint)


class _Memory:
    """Manifests and pointers in the cache folder.

    Mode "remote" writes nothing and reads only the remembered `latest`, which must not get older.
    """

    def __init__(self, access: Access) -> None:
        is_all_local = all(c.store is not None and c.store.is_local for c in access.catalogs)
        self._access = access
        self._folder = None if is_all_local else Path(access.options.cache_dir)
        self._is_used = access.options.mode != "remote" and not is_all_local

    def path_of(self, name: DatasetName, version: str, suffix: str = ".json") -> Path | None:
        if self._folder is None or not self._is_used:
            return None
        return self._folder / "manifests" / name.dataset_id / f"{version}{suffix}"

    def pointer_path(self, catalog: Catalog, key: str) -> Path | None:
        place = hashlib.sha256(catalog.place.encode()).hexdigest()[:16]
        if key != key.lower():  # some disks do not distinguish tags that differ in case only
            key += f"-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self._folder and self._folder / "pointers" / place / key

    def manifest(self, name: DatasetName, version: str) -> memoryview | None:
        """The bytes of an intact manifest; a damaged one is removed."""
        path = self.path_of(name, version)
        data = _read_file(path)
        if data is not None:
            try:
                parse_manifest(data, expected_hash=version)
            except ManifestCorruptedError:
                self._remove(path)
                return None
        return data

    def pointer(self, catalog: Catalog, key: str) -> tuple[str | None, Pointer | None]:
        """The ETag, if the entry may replace a response, and the pointer; a damaged entry is removed."""
        path = self.pointer_path(catalog, key)
        data = _read_file(path)
        if data is None:
            return None, None
        try:
            raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
            pointer = unpack_pointer(dump_json(raw.get("pointer")), str(path))
        except (WarpError, ValueError):
            self._remove(path)
            return None, None
        etag = raw.get("etag")
        return etag if isinstance(etag, str) and self._is_used else None, pointer

    def keep(self, path: Path | None, data: memoryview | bytes) -> None:
        """Write an entry; a cache that cannot be written is reported once."""
        if path is None or not self._is_used:
            return
        try:
            with commit.map_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                commit.write_file(path, data, durable=False)
        except StoreError as error:
            if self._access.cache is not None:
                self._access.cache.complain(error)

    def _remove(self, path: Path | None) -> None:
        if path is not None and self._is_used:
            with contextlib.suppress(OSError):  # a cache that can only be read keeps it
                path.unlink()


def _read_file(path: Path | None) -> memoryview | None:
    """A file; None if it is missing or cannot be read now."""
    try:
        return None if path is None else memoryview(path.read_bytes())
    except OSError:
        return None
