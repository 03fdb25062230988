"""From a name to an intact manifest: catalogs in order, ETags for what moves, the cache for what does not."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from warpdata.bytekit.io import commit
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.access import Access, Catalog
from warpdata.catalog.alike_tags import is_another_tag
from warpdata.catalog.names import LATEST, DatasetName
from warpdata.catalog.pointer import Pointer, unpack_pointer
from warpdata.catalog.roster import read_roster
from warpdata.catalog.signing import SUFFIX as SIGNATURE
from warpdata.catalog.signing import Signature, check_has_trust, check_signature
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
    signature: Signature | None = None
    """Who signed it, where that was checked."""


class Resolver:
    """Finds manifests through the catalogs of an access."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._memory = _Memory(access)

    @property
    def checks_signatures(self) -> bool:
        """Whether signatures are looked at: nobody to trust means nothing to learn, and no request is spent on it."""
        options = self._access.options
        return options.verify != "off" and (options.verify == "require" or bool(options.trusted_keys))

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
        if name.hash_prefix or name.tag:
            hint = f"Run `warp versions list {name.dataset_id}` to see its versions."
            if name.tag == "latest":
                hint = f"The newest version is {name.dataset_id}, without a tag."
            elif name.tag and set(name.tag) <= set("0123456789abcdef"):
                hint += " A hash is given by its first 8 characters or more; this is taken for a tag."
        raise DatasetNotFoundError(f"dataset {name} is not published", path=where, hint=hint)

    def manifest(self, catalog: Catalog, name: DatasetName, version: str) -> Manifest:
        """One version's manifest, from the cache or the catalog, checked against its hash."""
        return self._checked(catalog, name, version)[0]

    def fetched(self, catalog: Catalog, name: DatasetName, version: str) -> bytes:
        """The very bytes of a manifest as they lie in the catalog, checked like any other."""
        if catalog.store is None:
            raise OfflineError("the catalog cannot be asked", path=catalog.address)
        blob = catalog.store.get(name.version_key(version), max_bytes=MAX_MANIFEST_BYTES)
        assert blob is not None
        self._judged(catalog, name, version, blob.data, is_kept=False)
        return bytes(blob.data)

    def version(self, catalog: Catalog, name: DatasetName) -> str:
        """The version a name stands for in one catalog, whatever state its manifest is in."""
        try:
            return self._version(catalog, name)[0]
        except (BlobNotFoundError, LookupError):
            raise DatasetNotFoundError(f"dataset {name} is not published", path=catalog.address) from None

    def _checked(
        self, catalog: Catalog, name: DatasetName, version: str
    ) -> tuple[Manifest, Signature | None]:
        kept = self._memory.manifest(name, version)
        if kept is not None:
            try:
                return self._judged(catalog, name, version, kept, is_kept=True)
            except ManifestCorruptedError:
                # Other catalogs may have the version with other notes, or by now a signature.
                if catalog.store is None:
                    raise
        if catalog.store is None:
            raise OfflineError(f"the manifest of {name.dataset_id}@{version[:12]} is not in the cache")
        blob = catalog.store.get(name.version_key(version), max_bytes=MAX_MANIFEST_BYTES)
        assert blob is not None
        judged = self._judged(catalog, name, version, blob.data, is_kept=False)
        if not catalog.store.is_local:
            self._memory.keep_manifest(name, version, blob.data)
        return judged

    def _judged(
        self, catalog: Catalog, name: DatasetName, version: str, data: memoryview, *, is_kept: bool
    ) -> tuple[Manifest, Signature | None]:
        """A manifest out of bytes that are what they should be and signed as they should be."""
        key = name.version_key(version)
        try:
            manifest = parse_manifest(data, expected_hash=version, parts=self._access.parts(catalog))
        except ManifestCorruptedError as error:
            raise ManifestCorruptedError(
                str(error), path=f"{catalog.address}/{key}", hint=error.hint
            ) from None
        if manifest.dataset_id != name.dataset_id:
            raise ManifestCorruptedError(f"the manifest is of {manifest.dataset_id}", path=key)
        return manifest, self._signature(catalog, name, version, data, is_kept=is_kept)

    def _signature(
        self, catalog: Catalog, name: DatasetName, version: str, data: memoryview, *, is_kept: bool
    ) -> Signature | None:
        options = self._access.options
        is_required = options.verify == "require"
        if not self.checks_signatures:
            return None
        signed = self._signature_file(catalog, name, version, is_kept=is_kept)
        if is_required:
            check_has_trust(signed, name, options.trusted_keys)
        if signed is None and not is_required:
            return None
        return check_signature(signed, data, name, version, options.trusted_keys)

    def _signature_file(
        self, catalog: Catalog, name: DatasetName, version: str, *, is_kept: bool
    ) -> memoryview | None:
        """The signature beside a manifest, from where the manifest came; None where there is none."""
        kept = self._memory.signature(name, version) if is_kept else None
        if kept is not None:
            return kept
        if catalog.store is None:
            if self._access.options.verify != "require":
                return None
            raise OfflineError(f"the signature of {name.dataset_id}@{version[:12]} is not in the cache")
        try:
            blob = catalog.store.get(name.version_key(version, SIGNATURE), max_bytes=MAX_POINTER_BYTES)
        except BlobNotFoundError:
            return None
        assert blob is not None
        if not catalog.store.is_local:
            self._memory.keep_signature(name, version, blob.data)
        return blob.data

    def _resolve_in(self, catalog: Catalog, name: DatasetName) -> Resolved | None:
        missing = ""
        while True:
            try:
                version, remembered = self._version(catalog, name)
            except (BlobNotFoundError, LookupError):
                return None
            try:
                manifest, signature = self._checked(catalog, name, version)
                return Resolved(manifest, catalog, remembered, signature)
            except BlobNotFoundError:
                if name.hash_prefix is not None:
                    return None
                if version == missing:
                    raise gone_manifest(
                        name, version, f"{catalog.address}/{name.version_key(version)}"
                    ) from None
                # The pointer may have moved on since it was read, and the version been deleted.
                missing = version

    def _version(self, catalog: Catalog, name: DatasetName) -> tuple[str, bool]:
        if name.hash_prefix is not None:
            version = self._by_prefix(catalog, name, name.hash_prefix)
            if len(self._access.catalogs) > 1 and catalog.store is not None:
                # A manifest in the cache does not say which of them it came from, and the blobs are only there.
                catalog.store.head(name.version_key(version))
            return version, False
        if name.tag and catalog.store is not None and is_another_tag(catalog.store, name, name.tag):
            raise LookupError(name.tag)
        key = name.tag_key(name.tag) if name.tag else name.latest_key
        pointer, remembered = self._pointer(catalog, key)
        return pointer.version, remembered

    def _pointer(self, catalog: Catalog, key: str) -> tuple[Pointer, bool]:
        """The pointer now; offline, the one seen last."""
        if catalog.store is not None and catalog.store.is_local:
            blob = catalog.store.get(key, max_bytes=MAX_POINTER_BYTES)
            assert blob is not None
            return unpack_pointer(blob.data, f"{catalog.address}/{key}"), False
        kept = self._memory.pointer(catalog, key)
        if catalog.store is None:
            if kept is None:
                raise LookupError(key)
            _log.warning("offline: %s is as it was seen last", key)
            return kept[1], True
        etag = kept[0] if kept is not None and self._memory.is_used else None
        blob = catalog.store.get(key, max_bytes=MAX_POINTER_BYTES, unless_etag=etag)
        if blob is None:
            assert kept is not None
            return kept[1], False
        pointer = unpack_pointer(blob.data, f"{catalog.address}/{key}")
        if kept is not None and key.endswith(LATEST):
            self._check_not_older(kept[1], pointer, f"{catalog.address}/{key}")
        self._memory.keep_pointer(catalog, key, blob.info.etag, blob.data)
        return pointer, False

    def _by_prefix(self, catalog: Catalog, name: DatasetName, prefix: str) -> str:
        if HASH.fullmatch(prefix):
            return prefix
        found = set(self._memory.versions(name, prefix))
        if catalog.store is not None and not found:
            found = {
                version for version in self._versions(catalog, name, prefix) if version.startswith(prefix)
            }
        if len(found) > 1:
            raise ValueError(f"{prefix} is the beginning of several versions; give more digits")
        if not found:
            raise LookupError(prefix)
        return found.pop()

    def _versions(self, catalog: Catalog, name: DatasetName, prefix: str) -> list[str]:
        """Versions that may begin so: listed, or written down where a catalog cannot be listed."""
        store = catalog.store
        assert store is not None
        try:
            return [
                info.key.rpartition("/")[2].split(".")[0] for info in store.list(name.version_key(prefix, ""))
            ]
        except UnavailableError:
            raise
        except StoreError as cannot_list:
            roster = read_roster(store, name)
            found = list(roster.versions) if roster is not None else self.line(catalog, name)
            if not any(version.startswith(prefix) for version in found) and roster is None:
                hint = "Give all 64 digits, or publish again: that writes the list of versions."
                raise StoreError(f"{prefix} cannot be looked up: {cannot_list.message}", hint=hint) from None
            return found

    def line(self, catalog: Catalog, name: DatasetName) -> list[str]:
        """The latest version and its line of parents: what can be found where nothing is written down."""
        found: dict[str, None] = {}
        with contextlib.suppress(BlobNotFoundError):
            version: str | None = self._pointer(catalog, name.latest_key)[0].version
            while version is not None and version not in found:
                manifest = self.manifest(catalog, name, version)
                found[version] = None
                parent = manifest.metadata.get("parent")
                version = parent if isinstance(parent, str) and HASH.fullmatch(parent) else None
        return list(found)

    def _check_not_older(self, before: Pointer, now: Pointer, path: str) -> None:
        """Whoever shows us a state we saw replaced already shows us the past."""
        is_older = now.sequence < before.sequence
        is_other = now.sequence == before.sequence and now.version != before.version
        if self._access.options.accept_rollback or not (is_older or is_other):
            return
        fact = (
            f"latest is {now.version[:12]} (move {now.sequence}), but this machine has seen"
            f" {before.version[:12]} (move {before.sequence})"
        )
        hint = (
            "Ask who runs the catalog. If it was restored or made anew on purpose, open the dataset once with"
            " accept_rollback=True or WARP_ACCEPT_ROLLBACK=1; the newer version opens by its hash."
        )
        raise RollbackError(fact, path=path, hint=hint)


def gone_manifest(name: DatasetName, version: str, path: str) -> ManifestCorruptedError:
    """The error for a pointer to a version that is not there."""
    pointer = f"tag {name.tag!r}" if name.tag else "latest"
    fact = f"{pointer} of {name.dataset_id} points at version {version[:12]}, whose manifest is gone"
    hint = "Copy the version from a catalog that has it (`warp copy`), or publish it again."
    return ManifestCorruptedError(fact, path=path, hint=hint)


class _Memory:
    """What the cache folder remembers of catalogs: manifests for ever, pointers with their ETags.

    Who reads without the cache only looks at what it says of `latest`: that must not grow older.
    """

    def __init__(self, access: Access) -> None:
        everything_here = all(c.store is not None and c.store.is_local for c in access.catalogs)
        self._cache = access.cache
        self._folder = None if everything_here else Path(os.path.expanduser(access.options.cache_dir))
        self.is_used = access.cache is not None and not everything_here
        """Whether anything is written here, or taken from here for the catalog's own word."""

    def manifest(self, name: DatasetName, version: str) -> memoryview | None:
        """The bytes of a manifest that is intact; a damaged one is forgotten."""
        path = self._manifest_path(name, version)
        data = None if path is None else _read(path)
        if path is None or data is None:
            return None
        try:
            parse_manifest(data, expected_hash=version)
        except ManifestCorruptedError:
            self._forget(path)
            return None
        return data

    def signature(self, name: DatasetName, version: str) -> memoryview | None:
        path = self._manifest_path(name, version, SIGNATURE)
        return None if path is None else _read(path)

    def keep_signature(self, name: DatasetName, version: str, data: memoryview) -> None:
        self._keep(self._manifest_path(name, version, SIGNATURE), data)

    def keep_manifest(self, name: DatasetName, version: str, data: memoryview) -> None:
        self._keep(self._manifest_path(name, version), data)

    def versions(self, name: DatasetName, prefix: str) -> list[str]:
        path = self._manifest_path(name, prefix)
        names = [] if path is None else [p.stem for p in path.parent.glob(f"{prefix}*.json")]
        return [name for name in names if HASH.fullmatch(name)]

    def pointer(self, catalog: Catalog, key: str) -> tuple[str | None, Pointer] | None:
        path = self._pointer_path(catalog, key)
        data = None if path is None else _read(path)
        if path is None or data is None:
            return None
        try:
            raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
            etag = raw.get("etag")
            known = etag if isinstance(etag, str) else None
            return known, unpack_pointer(dump_json(raw.get("pointer")), str(path))
        except (WarpError, ValueError):
            self._forget(path)
            return None

    def keep_pointer(self, catalog: Catalog, key: str, etag: str | None, data: memoryview) -> None:
        pointer = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        self._keep(self._pointer_path(catalog, key), dump_json({"etag": etag, "pointer": pointer}))

    def _manifest_path(self, name: DatasetName, version: str, suffix: str = ".json") -> Path | None:
        if self._folder is None or not self.is_used:
            return None
        return self._folder / "manifests" / name.dataset_id / f"{version}{suffix}"

    def _pointer_path(self, catalog: Catalog, key: str) -> Path | None:
        place = hashlib.sha256(catalog.place.encode()).hexdigest()[:16]
        if key != key.lower():  # a disk may take it for the file of a tag that differs in case only
            key += f"-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self._folder and self._folder / "pointers" / place / key

    def _forget(self, path: Path) -> None:
        """Remove what is damaged; a cache that can only be read keeps it."""
        if self.is_used:
            with contextlib.suppress(OSError):
                path.unlink()

    def _keep(self, path: Path | None, data: memoryview | bytes) -> None:
        if path is None or not self.is_used:
            return
        try:
            with commit.map_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                commit.write_file(path, data, durable=False)
        except StoreError as error:
            if self._cache is not None:
                self._cache.complain(error)


def _read(path: Path) -> memoryview | None:
    """A remembered file; None where it is not there or cannot be read now."""
    try:
        return memoryview(path.read_bytes())
    except OSError:
        return None
