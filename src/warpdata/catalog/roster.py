"""The versions and tags of a dataset in small files, for readers of catalogs that cannot be listed.

The newest versions and all tags are in one file; when it grows long, the older half of its versions moves into a
page of its own, so that a publisher reads and writes a bounded number of bytes however long the history is.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpdata.bytekit.background import map_in_threads
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.names import DatasetName
from warpdata.catalog.pointer import read_pointer
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")
_TRIES = 20
_PAUSE_S = 0.2
_PAGE_VERSIONS = 500
_MAX_VERSIONS = 2 * _PAGE_VERSIONS
"""How many versions the first file names at most."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Which versions there are, and which of them the tags name."""

    versions: tuple[str, ...]
    tags: dict[str, str]
    older: tuple[str, ...] = ()
    """Hashes of the pages that name the versions before these, newest page first."""


def listed_roster(store: BlobStore, name: DatasetName) -> Roster:
    """What the catalog itself shows now, oldest version first; a StoreError where it cannot be listed."""
    found = []
    for info in store.list(f"{name.folder}versions/"):
        version = info.key.rpartition("/")[2].removesuffix(".json")
        if HASH.fullmatch(version):
            found.append((info.modified_s, version))
    prefix = name.tag_key("").removesuffix(".json")
    tags = {}
    for info in store.list(prefix):
        pointer = read_pointer(store, info.key).pointer
        if pointer is not None:
            tags[info.key.removeprefix(prefix).removesuffix(".json")] = pointer.version
    return Roster(tuple(version for _, version in sorted(found)), tags)


def read_roster(store: BlobStore, name: DatasetName) -> Roster | None:
    """What was written down last, all pages of it; None where nothing was."""
    blob = _held(store, name)
    if blob is None:
        return None
    newest = _unpacked(blob, f"{store.address}/{name.roster_key}")
    pages = map_in_threads(lambda sha256: _page(store, name, sha256), newest.older)
    older = tuple(version for page in reversed(pages) for version in page)
    return Roster((*older, *newest.versions), newest.tags)


def note_version(
    store: BlobStore, name: DatasetName, version: str, *, parent: str | None, tags: Sequence[str] = ()
) -> None:
    """Write down a version and the tags that were moved to it, without looking at all the others.

    Where the one before it is not written down either, somebody died before he could: then all are listed.
    """

    def changed(held: Roster) -> Roster:
        known = set(held.versions)
        if parent is not None and parent not in known:
            return listed_roster(store, name)
        is_known = version in known or (parent is None and bool(held.older))
        versions = held.versions if is_known else (*held.versions, version)
        return replace(held, versions=versions, tags=held.tags | dict.fromkeys(tags, version))

    _change(store, name, changed)


def write_roster(store: BlobStore, name: DatasetName) -> None:
    """Write down what the catalog shows now; the next writer makes good what this one could not."""
    _change(store, name, lambda _: listed_roster(store, name))


def _change(store: BlobStore, name: DatasetName, changed: Callable[[Roster], Roster]) -> None:
    try:
        for attempt in range(_TRIES):
            held = _held(store, name)
            before = None if held is None else _readable(held, f"{store.address}/{name.roster_key}")
            after = changed(before) if before is not None else listed_roster(store, name)
            if before is not None and after == before:
                return
            after = _paged(store, name, after)
            body = _packed(after)
            if held is not None and bytes(held.data) == body:
                return
            try:
                store.compare_and_swap(name.roster_key, body, held.info.etag if held else None)
                for sha256 in set(before.older if before else ()) - set(after.older):
                    store.delete(name.page_key(sha256))
                return
            except ConflictError:
                time.sleep(random.uniform(0, _PAUSE_S * min(attempt, 5)))
    except StoreError as error:
        _log.warning("the list of versions was not written: %s", error)


def _paged(store: BlobStore, name: DatasetName, roster: Roster) -> Roster:
    """The same with the oldest versions moved into pages while there are too many."""
    while len(roster.versions) > _MAX_VERSIONS:
        page = roster.versions[:_PAGE_VERSIONS]
        body = dump_json({"versions": list(page)}) + b"\n"
        sha256 = sha256_hex(body)
        with contextlib.suppress(ConflictError):  # it is there, and the same by its name
            store.put_if_absent(name.page_key(sha256), body)
        roster = replace(roster, versions=roster.versions[_PAGE_VERSIONS:], older=(sha256, *roster.older))
    return roster


def _packed(roster: Roster) -> bytes:
    fields: dict[str, object] = {"versions": list(roster.versions), "tags": roster.tags}
    if roster.older:
        fields["older"] = list(roster.older)
    return dump_json(fields) + b"\n"


def _page(store: BlobStore, name: DatasetName, sha256: str) -> tuple[str, ...]:
    path = f"{store.address}/{name.page_key(sha256)}"
    blob = store.get(name.page_key(sha256), max_bytes=MAX_MANIFEST_BYTES)
    assert blob is not None
    if sha256_hex(blob.data) != sha256:
        raise ManifestCorruptedError("a page of the list of versions is damaged", path=path)
    return _hashes(_object(blob, path).get("versions"), path)


def _held(store: BlobStore, name: DatasetName) -> Blob | None:
    try:
        return store.get(name.roster_key, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        return None


def _readable(blob: Blob, path: str) -> Roster | None:
    """What was written down; None where it is damaged, so that it is written anew."""
    try:
        return _unpacked(blob, path)
    except ManifestCorruptedError as error:
        _log.warning("%s", error)
        return None


def _unpacked(blob: Blob, path: str) -> Roster:
    raw = _object(blob, path)
    tags = raw.get("tags")
    if not isinstance(tags, dict):
        raise ManifestCorruptedError("the list of versions names none", path=path)
    _hashes(list(tags.values()), path)
    return Roster(_hashes(raw.get("versions"), path), tags, _hashes(raw.get("older", []), path))


def _object(blob: Blob, path: str) -> Mapping[str, Any]:
    try:
        return parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of versions is not JSON ({error})", path=path) from None


def _hashes(found: Any, path: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(v, str) and HASH.fullmatch(v) for v in found):
        raise ManifestCorruptedError("the list of versions names none", path=path)
    return tuple(found)
