"""The versions and tags of a dataset in small files: for catalogs that cannot be listed, and for long histories.

The newest versions and all tags are in one file; when it grows long, the older half of its versions moves into a
page of its own, so that a publisher reads and writes a bounded number of bytes however long the history is. With each
version stands what a list of versions shows of it, so that nobody has to open every manifest for that.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warpdata.bytekit.checksum import sha256_hex
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
_PAGE_VERSIONS = 128
_MAX_VERSIONS = 2 * _PAGE_VERSIONS
"""How many versions the first file names at most."""

_MAX_MESSAGE = 200
"""What is known of a version with a longer message is not written down: the list is to stay short."""


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
    older: tuple[str, ...] = ()
    """Hashes of the pages that name the versions before these, newest page first."""
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
    """What was written down last, all pages of it; None where nothing was."""
    return _read(store, name, None)


def read_newest(store: BlobStore, name: DatasetName, count: int) -> Roster | None:
    """The same, but only as many pages as name the `count` versions that were written down last."""
    return _read(store, name, count)


def _read(store: BlobStore, name: DatasetName, count: int | None) -> Roster | None:
    for _ in range(_TRIES):
        blob = _held(store, name)
        if blob is None:
            return None
        newest = _unpacked(blob, f"{store.address}/{name.roster_key}")
        missing = None if count is None else max(0, count - len(newest.versions))
        wanted = newest.older if missing is None else newest.older[: -(-missing // _PAGE_VERSIONS)]
        try:
            return _joined(newest, map_in_threads(lambda sha256: _page(store, name, sha256), wanted))
        except BlobNotFoundError as error:  # the list was written anew meanwhile, in other pages
            gone = error
    raise ManifestCorruptedError("a page of the list of versions is gone", path=gone.path)


def _joined(newest: Roster, pages: Sequence[Roster]) -> Roster:
    """The versions of some pages, which come newest first, before those of the first file."""
    parts = [*reversed(pages), newest]
    about: dict[str, About] = {}
    for each in parts:
        about |= each.about
    return Roster(tuple(v for each in parts for v in each.versions), newest.tags, about=about)


def written_tags(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """The tags as they were written down last."""
    blob = _held(store, name)
    return {} if blob is None else _unpacked(blob, f"{store.address}/{name.roster_key}").tags


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
        is_known = version in known or (parent is None and bool(held.older))
        versions = held.versions if is_known else (*held.versions, version)
        mine = own if version in versions else {}
        return replace(
            held,
            versions=versions,
            tags=held.tags | dict.fromkeys(tags, version),
            about={**held.about, **mine},
        )

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
    except (StoreError, ManifestCorruptedError) as error:  # a damaged tag
        _log.warning("the list of versions was not written: %s", error)


def _paged(store: BlobStore, name: DatasetName, roster: Roster) -> Roster:
    """The same with the oldest versions moved into pages while there are too many."""
    versions, older, pages = roster.versions, roster.older, []
    while len(versions) > _MAX_VERSIONS:
        body = dump_json(_lines(versions[:_PAGE_VERSIONS], roster.about)) + b"\n"
        pages.append(body)
        versions, older = versions[_PAGE_VERSIONS:], (sha256_hex(body), *older)
    map_in_threads(lambda body: _put_page(store, name, body), pages)
    about = {each: roster.about[each] for each in versions if each in roster.about}
    return replace(roster, versions=versions, older=older, about=about)


def _put_page(store: BlobStore, name: DatasetName, body: bytes) -> None:
    with contextlib.suppress(ConflictError):  # it is there, and the same by its name
        store.put_if_absent(name.page_key(sha256_hex(body)), body)


def _packed(roster: Roster) -> bytes:
    fields: dict[str, object] = {**_lines(roster.versions, roster.about), "tags": roster.tags}
    if roster.older:
        fields["older"] = list(roster.older)
    return dump_json(fields) + b"\n"


def _lines(versions: Sequence[str], about: Mapping[str, About]) -> dict[str, object]:
    """Versions and, in the same order, what is known of each."""
    found = [about.get(version) for version in versions]
    fields: dict[str, object] = {"versions": list(versions)}
    if any(found):
        fields["about"] = [
            each and [each.created_at, each.rows, each.bytes, each.parent, each.message] for each in found
        ]
    return fields


def _page(store: BlobStore, name: DatasetName, sha256: str) -> Roster:
    path = f"{store.address}/{name.page_key(sha256)}"
    blob = store.get(name.page_key(sha256), max_bytes=MAX_MANIFEST_BYTES)
    assert blob is not None
    if sha256_hex(blob.data) != sha256:
        raise ManifestCorruptedError("a page of the list of versions is damaged", path=path)
    return _read_lines(_object(blob, path), path)


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
    return replace(_read_lines(raw, path), tags=tags, older=_hashes(raw.get("older", []), path))


def _read_lines(raw: Mapping[str, Any], path: str) -> Roster:
    versions, found = _hashes(raw.get("versions"), path), raw.get("about")
    if found is None:
        return Roster(versions, {})
    if not isinstance(found, list) or len(found) != len(versions):
        raise ManifestCorruptedError("the list of versions says something of others", path=path)
    about = {v: _about(each, path) for v, each in zip(versions, found, strict=True) if each is not None}
    return Roster(versions, {}, about=about)


def _about(fields: Any, path: str) -> About:
    match fields:
        case [str() | None as created_at, int(rows), int(size), str() | None as parent, str(message)] if (
            parent is None or HASH.fullmatch(parent)
        ):
            return About(created_at, rows, size, parent, message)
    raise ManifestCorruptedError("the list of versions is damaged", path=path)


def _object(blob: Blob, path: str) -> Mapping[str, Any]:
    try:
        return parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of versions is not JSON ({error})", path=path) from None


def _hashes(found: Any, path: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(v, str) and HASH.fullmatch(v) for v in found):
        raise ManifestCorruptedError("the list of versions names none", path=path)
    return tuple(found)
