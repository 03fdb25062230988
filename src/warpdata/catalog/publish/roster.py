"""The list of versions and tags of a dataset in one file: for catalogs that cannot be listed, and for short listings.

With each version stands what a list of versions shows of it, so that listing does not open every manifest.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish.pointer import read_pointer
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH, Manifest
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")
_TRIES = 20
_PAUSE_S = 0.2
_MAX_MESSAGE = 200
"""Versions with a longer message are listed without details, so that the list stays short."""


@dataclass(frozen=True, slots=True)
class About:
    """What a list of versions shows of one of them."""

    created_at: str | None
    rows: int
    bytes: int
    parent: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Roster:
    """Which versions there are, and which of them the tags name."""

    versions: tuple[str, ...]
    tags: dict[str, str]
    about: Mapping[str, About] = field(default_factory=dict)
    """What is written down of some of the versions."""


def about_manifest(manifest: Manifest) -> About:
    """What a list of versions shows of a manifest."""
    parent = manifest.metadata.get("parent")
    return About(
        manifest.created_at, manifest.total_rows, manifest.total_bytes,
        parent if isinstance(parent, str) and HASH.fullmatch(parent) else None,
        str(manifest.metadata.get("message", "")),
    )  # fmt: skip


def listed_roster(store: BlobStore, name: DatasetName) -> Roster:
    """What the catalog itself shows now, oldest version first; a StoreError where it cannot be listed."""
    found = []
    for info in store.list(f"{name.folder}versions/"):
        version = info.key.rpartition("/")[2].removesuffix(".json")
        if HASH.fullmatch(version):
            found.append((info.modified_s, version))
    return Roster(tuple(version for _, version in sorted(found)), listed_tags(store, name))


def listed_tags(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """The tags the catalog shows now and their versions; a StoreError where it cannot be listed."""
    prefix = name.tag_key("").removesuffix(".json")
    keys = [info.key for info in store.list(prefix)]
    pointers = map_in_threads(lambda key: read_pointer(store, key).pointer, keys)
    return {
        key.removeprefix(prefix).removesuffix(".json"): pointer.version
        for key, pointer in zip(keys, pointers, strict=True)
        if pointer is not None
    }


def read_roster(store: BlobStore, name: DatasetName) -> Roster | None:
    """The list as it was written last; None if there is none."""
    blob = _held(store, name)
    return None if blob is None else _unpacked(blob, f"{store.address}/{name.roster_key}")


def written_tags(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """The tags as they were written last."""
    roster = read_roster(store, name)
    return {} if roster is None else roster.tags


def written_about(store: BlobStore, name: DatasetName) -> Mapping[str, About]:
    """What is written down of versions; nothing where that is damaged."""
    try:
        found = read_roster(store, name)
    except ManifestCorruptedError as error:
        _log.warning("%s", error)
        return {}
    return {} if found is None else found.about


def note_version(
    store: BlobStore,
    name: DatasetName,
    version: str,
    *,
    parent: str | None,
    tags: Sequence[str] = (),
    about: About | None = None,
) -> None:
    """Write down a version and the tags that were moved to it, without looking at all the others.

    Where the one before it is not written down either, somebody died before he could: then all are listed.
    """
    own = {} if about is None or len(about.message) > _MAX_MESSAGE else {version: about}

    def changed(held: Roster) -> Roster:
        known = set(held.versions)
        if parent is not None and parent not in known:
            return _listed(store, name, own)
        versions = held.versions if version in known else (*held.versions, version)
        moved = dict.fromkeys(tags, version)
        return replace(held, versions=versions, tags=held.tags | moved, about={**held.about, **own})

    _change(store, name, changed, lambda: _listed(store, name, own))


def write_roster(store: BlobStore, name: DatasetName) -> None:
    """Write down what the catalog shows now; the next writer makes good what this one could not."""
    _change(store, name, lambda _: _listed(store, name), lambda: _listed(store, name))


def drop_tag(store: BlobStore, name: DatasetName, tag: str) -> None:
    """Write down that a tag is gone."""

    def changed(held: Roster) -> Roster:
        return replace(held, tags={each: version for each, version in held.tags.items() if each != tag})

    _change(store, name, changed, lambda: _listed(store, name))


def _listed(store: BlobStore, name: DatasetName, own: Mapping[str, About] | None = None) -> Roster:
    """What the catalog shows now, with what was written down of it."""
    found = listed_roster(store, name)
    known = {**written_about(store, name), **(own or {})}
    return replace(found, about={v: known[v] for v in found.versions if v in known})


def _change(
    store: BlobStore, name: DatasetName, changed: Callable[[Roster], Roster], anew: Callable[[], Roster]
) -> None:
    """Swap the list for another one, or make one `anew` where there is none that can be read."""
    try:
        for attempt in range(_TRIES):
            held = _held(store, name)
            before = None if held is None else _readable(held, f"{store.address}/{name.roster_key}")
            after = changed(before) if before is not None else anew()
            if before is not None and after == before:
                return
            body = _packed(after)
            if held is not None and bytes(held.data) == body:
                return
            try:
                store.compare_and_swap(name.roster_key, body, held.info.etag if held else None)
                return
            except ConflictError:
                time.sleep(random.uniform(0, _PAUSE_S * min(attempt, 5)))
    except (StoreError, ManifestCorruptedError) as error:  # a damaged tag
        _log.warning("the list of versions was not written: %s", error)


def _packed(roster: Roster) -> bytes:
    """The JSON of a list: versions and, in the same order, what is known of each."""
    details = [roster.about.get(version) for version in roster.versions]
    fields: dict[str, object] = {"versions": list(roster.versions), "tags": roster.tags}
    if any(details):
        fields["about"] = [d and [d.created_at, d.rows, d.bytes, d.parent, d.message] for d in details]
    return dump_json(fields) + b"\n"


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
    try:
        raw = parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of versions is not JSON ({error})", path=path) from None
    versions, tags, details = _hashes(raw.get("versions"), path), raw.get("tags"), raw.get("about")
    if not isinstance(tags, dict):
        raise ManifestCorruptedError("the list of versions has no tags", path=path)
    _hashes(list(tags.values()), path)
    if details is None:
        return Roster(versions, tags)
    if not isinstance(details, list) or len(details) != len(versions):
        raise ManifestCorruptedError("the list of versions has details of others", path=path)
    known = zip(versions, details, strict=True)
    return Roster(versions, tags, {v: _about(fields, path) for v, fields in known if fields is not None})


def _about(fields: Any, path: str) -> About:
    match fields:
        case [str() | None as created_at, int(rows), int(size), str() | None as parent, str(message)] if (
            parent is None or HASH.fullmatch(parent)
        ):
            return About(created_at, rows, size, parent, message)
    raise ManifestCorruptedError("the list of versions is damaged", path=path)


def _hashes(found: Any, path: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(v, str) and HASH.fullmatch(v) for v in found):
        raise ManifestCorruptedError("the list of versions holds something that is not a hash", path=path)
    return tuple(found)
