"""Small files of a catalog: pointers, the removal lock, lists of versions and datasets, cards.

SPEC.md of formats/manifest has the protocol and why it holds. Ages are differences of times of the store; the clock of
this machine only measures how long something took.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.system import seconds_with_sleep
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import DatasetName
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    DatasetError,
    FormatError,
    ManifestCorruptedError,
    PointerMovedError,
    StoreError,
)
from warpdata.formats.manifest.codec import Pointer, pack_pointer, unpack_pointer
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES, MAX_POINTER_BYTES
from warpdata.formats.manifest.model import DATASET_ID, HASH, Manifest, PartedShards
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")

REMOVALS_KEY = "removals.json"
PROBE = "probe/"
LIFETIME_S = 900.0
"""A lock that is older, by the store's clock, belongs to a dead process. Its holder stops after half of that.

Half is more than a request takes that is retried until it fails (`RetryPolicy`).
"""
_POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class PointerState:
    """A pointer as it was read: None while the name points nowhere."""

    pointer: Pointer | None
    etag: str | None

    @property
    def version(self) -> str | None:
        """The version it points at."""
        return None if self.pointer is None else self.pointer.version


def get_small(store: BlobStore, key: str, max_bytes: int = MAX_POINTER_BYTES) -> Blob | None:
    """A small file of a catalog, None if it is not there."""
    try:
        return store.get(key, max_bytes=max_bytes)
    except BlobNotFoundError:
        return None


def swap_small(store: BlobStore, key: str, data: bytes, held: Blob | None) -> bool:
    """Replace a small file as it was read; whether it has these bytes now, also if only the response was lost."""
    try:
        store.compare_and_swap(key, data, held.info.etag if held else None)
    except ConflictError:
        now = get_small(store, key, MAX_MANIFEST_BYTES)
        return now is not None and bytes(now.data) == data
    return True


def replace_small(store: BlobStore, key: str, data: bytes, held: Blob) -> None:
    """Replace a small file as it was read; ConflictError if it changed since."""
    if not swap_small(store, key, data, held):
        raise ConflictError("the file changed while it was to be replaced", path=f"{store.address}/{key}")


def read_pointer(store: BlobStore, key: str) -> PointerState:
    """The pointer in the store now."""
    blob = get_small(store, key)
    if blob is None:
        return PointerState(None, None)
    return PointerState(unpack_pointer(blob.data, f"{store.address}/{key}"), blob.info.etag)


def move_pointer(store: BlobStore, key: str, version: str, seen: PointerState) -> Pointer:
    """Point at `version`; PointerMovedError if the pointer moved since it was seen."""
    before = seen.pointer
    if before is not None and before.version == version:
        return before
    after = Pointer(version, before.sequence + 1 if before else 1, before.version if before else None)
    for is_last in (False, False, True):
        try:
            store.compare_and_swap(key, pack_pointer(after), seen.etag)
            return after
        except ConflictError:
            seen = read_pointer(store, key)
            now = seen.pointer
            follows = now is not None and (now.sequence, now.previous) == (after.sequence + 1, version)
            if now == after or follows:
                return after  # our own write, whose response was lost
            if now != before:
                break
            if is_last:  # the store refuses although nothing moved
                raise
    names = [pointer.version[:12] if pointer else "nothing" for pointer in (before, now)]
    fact = f"the pointer moved from {names[0]} to {names[1]} while {version[:12]} was being published"
    hint = "The version is stored. Look at the other one, then publish again or move the tag."
    raise PointerMovedError(fact, path=f"{store.address}/{key}", hint=hint)


def move_latest(store: BlobStore, name: DatasetName, version: str, seen: PointerState) -> None:
    """Point `latest` at a version; PointerMovedError if it moved since it was seen."""
    move_pointer(store, name.latest_key, version, seen)
    if seen.pointer is None:
        names = sorted({*list_datasets_of(store), name.dataset_id})
        _update(store, DATASETS_KEY, lambda _: dump_json({"datasets": names}) + b"\n")


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def removal_count(store: BlobStore) -> int:
    """How many removals began so far; returns once none is running."""
    is_waiting = False
    while True:
        count, is_running, _ = _read_lock(store)
        if not is_running:
            return count
        if not is_waiting:
            _log.warning("waiting: unused blobs of %s are being removed", store.address)
            is_waiting = True
        _sleep(_POLL_S)


@contextlib.contextmanager
def removing(store: BlobStore) -> Iterator[Callable[[], bool]]:
    """Hold the removal lock. Yields a function that returns whether the holder may still remove something."""
    owner = secrets.token_hex(12)
    while True:
        count, is_running, held = _read_lock(store)
        began_s = seconds_with_sleep()
        body = dump_json({"count": count + 1, "running": True, "owner": owner})
        if not is_running and swap_small(store, REMOVALS_KEY, body, held):
            break
        _sleep(_POLL_S)
    try:
        yield lambda: seconds_with_sleep() - began_s < LIFETIME_S / 2
    finally:
        try:
            held = get_small(store, REMOVALS_KEY)
            if held is not None and owner.encode() in bytes(held.data):
                body = dump_json({"count": count + 1, "running": False, "owner": owner})
                swap_small(store, REMOVALS_KEY, body, held)
        except StoreError as error:
            _log.warning("the removal lock stays until it expires: %s", error)


def store_time_s(store: BlobStore) -> float:
    """The time of the store, from a blob that is put for the purpose."""
    key = f"{PROBE}{secrets.token_hex(12)}"
    with contextlib.suppress(ConflictError):  # the name is random: the response was lost
        store.put_if_absent(key, b"clock\n")
    try:
        return store.head(key).modified_s
    finally:
        store.delete(key)


def _read_lock(store: BlobStore) -> tuple[int, bool, Blob | None]:
    """The number of removals, whether one is running, and the lock as it is stored."""
    held = get_small(store, REMOVALS_KEY)
    if held is None:
        return 0, False, None
    try:
        raw = parse_json_object(held.data, max_bytes=MAX_POINTER_BYTES)
    except FormatError:
        raw = {}
    count, is_running = raw.get("count"), raw.get("running")
    if type(count) is not int or type(is_running) is not bool:
        hint = "Delete it if no collector is running."
        raise ManifestCorruptedError(
            "the removal lock is damaged", path=f"{store.address}/{REMOVALS_KEY}", hint=hint
        )
    return count, is_running and store_time_s(store) - held.info.modified_s <= LIFETIME_S, held


DATASETS_KEY = "datasets.json"
_FAN = re.compile(r"[0-9a-f]{2}")
"""The folders of blobs, by the first digits of their hash."""
_TRIES = 20
_LIST_PAUSE_S = 0.2
_MAX_MESSAGE = 200
"""Versions with a longer message are listed without details, so that the list stays short."""


_CROISSANT_TYPES = {
    "bool": "sc:Boolean",
    "string": "sc:Text",
    "large_string": "sc:Text",
    "double": "sc:Float",
    "float": "sc:Float",
    "halffloat": "sc:Float",
}


@dataclass(frozen=True, slots=True)
class Version:
    """One published version."""

    version: str
    created_at: str | None
    rows: int
    bytes: int
    parent: str | None
    message: str
    tags: tuple[str, ...] = ()
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class VersionList:
    """The versions of a dataset, oldest first, and its tags."""

    versions: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Version] = field(default_factory=dict)
    """Details of some of the versions."""


def about_manifest(manifest: Manifest) -> Version:
    """The details of a version from its manifest."""
    parent = manifest.metadata.get("parent")
    return Version(
        manifest.version_hash,
        manifest.created_at,
        manifest.total_rows,
        manifest.total_bytes,
        parent if isinstance(parent, str) and HASH.fullmatch(parent) else None,
        str(manifest.metadata.get("message", "")),
    )


def list_store(store: BlobStore, name: DatasetName) -> VersionList:
    """Versions and tags from a listing of the store, with written details; StoreError if it cannot be listed."""
    versions = []
    for info in store.list(f"{name.folder}versions/"):
        version = info.key.rpartition("/")[2].removesuffix(".json")
        if HASH.fullmatch(version):
            versions.append((info.modified_s, version))
    try:  # stores with times of whole seconds: the written list has the order of versions of one second
        written = read_list(store, name) or VersionList()
    except ManifestCorruptedError as error:
        _log.warning("%s", error)
        written = VersionList()
    order = {version: number for number, version in enumerate(written.versions)}
    versions.sort(key=lambda pair: (pair[0], order.get(pair[1], len(order))))
    hashes = tuple(version for _, version in versions)
    about = {version: written.about[version] for version in hashes if version in written.about}
    return VersionList(hashes, list_stored_tags(store, name), about)


def list_stored_tags(store: BlobStore, name: DatasetName) -> dict[str, str]:
    """Tag -> version, from a listing of the store; StoreError if it cannot be listed."""
    prefix = name.tag_key("").removesuffix(".json")
    keys = [info.key for info in store.list(prefix)]
    pointers = map_in_threads(lambda key: read_pointer(store, key).pointer, keys)
    return {
        key.removeprefix(prefix).removesuffix(".json"): pointer.version
        for key, pointer in zip(keys, pointers, strict=True)
        if pointer is not None
    }


def read_list(store: BlobStore, name: DatasetName) -> VersionList | None:
    """The list as it was written last, or None."""
    blob = get_small(store, name.list_key, MAX_MANIFEST_BYTES)
    return None if blob is None else _parse_list(blob, f"{store.address}/{name.list_key}")


def note_version(
    store: BlobStore,
    name: DatasetName,
    version: str,
    *,
    parent: str | None,
    tags: Sequence[str],
    about: Version | None,
) -> None:
    """Add a version, and the tags that point at it, to the written list.

    If its parent is not in the list either, a publisher died before it could add it: then all are listed.
    """
    own = {} if about is None or len(about.message) > _MAX_MESSAGE else {version: about}

    def change(held: VersionList | None) -> VersionList:
        if held is None or (parent is not None and parent not in held.versions):
            listed = list_store(store, name)
            return replace(listed, about={**listed.about, **own})
        versions = held.versions if version in held.versions else (*held.versions, version)
        return VersionList(versions, {**held.tags, **dict.fromkeys(tags, version)}, {**held.about, **own})

    _change_list(store, name, change)


def rewrite_list(store: BlobStore, name: DatasetName) -> None:
    """Write the list from a listing of the store, after versions or tags were removed or copied."""
    _change_list(store, name, lambda _: list_store(store, name))


def list_datasets_of(store: BlobStore, workspace: str = "") -> list[str]:
    """Names of datasets from a listing, of one workspace or of all; StoreError if the store cannot be listed."""
    workspaces = [workspace] if workspace else store.folders("datasets/")
    listings = map_in_threads(lambda ws: store.folders(f"datasets/{ws}/"), workspaces)
    names = [f"{ws}/{name}" for ws, listing in zip(workspaces, listings, strict=True) for name in listing]
    return [name for name in names if DATASET_ID.fullmatch(name)]


def read_dataset_list(store: BlobStore) -> list[str] | None:
    """Names of datasets as they were written last, or None."""
    blob = get_small(store, DATASETS_KEY, MAX_MANIFEST_BYTES)
    if blob is None:
        return None
    path = f"{store.address}/{DATASETS_KEY}"
    try:
        names = parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES).get("datasets")
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of datasets is not JSON ({error})", path=path) from None
    if not isinstance(names, list) or not all(isinstance(n, str) and DATASET_ID.fullmatch(n) for n in names):
        raise ManifestCorruptedError("the list of datasets has an invalid name", path=path)
    return names


def check_catalog(store: BlobStore) -> None:
    """DatasetError for an address to which nothing was ever published."""
    if is_empty(store):
        hint = "Check the address: a catalog is the folder or prefix that datasets were published to."
        raise DatasetError("this is no catalog: nothing was published here", path=store.address, hint=hint)


def is_empty(store: BlobStore) -> bool:
    """Whether nothing was ever published here; StoreError if the store cannot be listed."""
    has_blobs = any(_FAN.fullmatch(folder) for folder in store.folders("blobs/sha256/"))
    return not has_blobs and get_small(store, DATASETS_KEY, MAX_MANIFEST_BYTES) is None


def _change_list(
    store: BlobStore, name: DatasetName, change: Callable[[VersionList | None], VersionList]
) -> None:
    """Swap the list for a changed one; a damaged list counts as missing."""

    def changed(blob: Blob | None) -> bytes:
        held = None
        if blob is not None:
            try:
                held = _parse_list(blob, f"{store.address}/{name.list_key}")
            except ManifestCorruptedError as error:
                _log.warning("%s", error)
        after = change(held)
        details = [after.about.get(version) for version in after.versions]
        fields: dict[str, object] = {"versions": list(after.versions), "tags": dict(after.tags)}
        if any(details):
            fields["about"] = [about and astuple(about)[1:6] for about in details]
        return dump_json(fields) + b"\n"

    _update(store, name.list_key, changed)


def _update(store: BlobStore, key: str, change: Callable[[Blob | None], bytes]) -> None:
    """Swap a derived file; a failure is logged, because the next publisher writes the file again."""
    try:
        for attempt in range(_TRIES):
            held = get_small(store, key, MAX_MANIFEST_BYTES)
            body = change(held)
            if (held is not None and bytes(held.data) == body) or swap_small(store, key, body, held):
                return
            time.sleep(random.uniform(0, _LIST_PAUSE_S * min(attempt, 5)))
    except (StoreError, ManifestCorruptedError) as error:
        _log.warning("%s was not written: %s", key, error)


def _parse_list(blob: Blob, path: str) -> VersionList:
    try:
        raw = parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of versions is not JSON ({error})", path=path) from None
    versions, tags, details = raw.get("versions"), raw.get("tags"), raw.get("about")
    if not isinstance(versions, list) or not isinstance(tags, dict):
        raise ManifestCorruptedError("the list of versions has no versions or no tags", path=path)
    if not all(
        isinstance(version, str) and HASH.fullmatch(version) for version in [*versions, *tags.values()]
    ):
        raise ManifestCorruptedError("the list of versions has an invalid hash", path=path)
    details = [None] * len(versions) if details is None else details
    if not isinstance(details, list) or len(details) != len(versions):
        raise ManifestCorruptedError("the list of versions has details of other versions", path=path)
    about = {}
    for version, row in zip(versions, details, strict=True):
        match row:
            case None:
                pass
            case [str() | None as created_at, int(rows), int(size), str() | None as parent, str(message)] if (
                parent is None or HASH.fullmatch(parent)
            ):
                about[version] = Version(version, created_at, rows, size, parent, message)
            case _:
                raise ManifestCorruptedError("the list of versions has invalid details", path=path)
    return VersionList(tuple(versions), tags, about)


def make_cards(manifest: Manifest) -> dict[str, bytes]:
    """The card and the metadata of a version, by the suffix of their names beside the manifest."""
    metadata, notes = json.dumps(_croissant(manifest), indent=1), manifest.metadata
    lines = [f"# {manifest.dataset_id}", "", str(notes.get("description", "")), ""]
    lines += [f"- version: `{manifest.version_hash}`", f"- rows: {manifest.total_rows}"]
    lines += [f"- bytes: {manifest.total_bytes}", f"- license: {notes.get('license', 'not stated')}", ""]
    for table, part in manifest.tables.items():
        lines += [f"## Table {table}: {part.row_count} rows", "", "| column | type |", "|---|---|"]
        lines += [f"| {field['name']} | {field['type']} |" for field in part.fields]
        lines.append("")
    for artifact, raw in manifest.artifacts.items():
        lines += [f"## Artifact {artifact}", "", f"{len(raw.shards)} shards of {raw.kind}", ""]
    lines += ["## Use", "", "```python", "import warpdata as wd", ""]
    lines += [f'ds = wd.dataset("{manifest.dataset_id}@{manifest.version_hash[:12]}")', "```", ""]
    return {".card.md": "\n".join(lines).encode(), ".croissant.json": metadata.encode() + b"\n"}


def _croissant(manifest: Manifest) -> dict[str, Any]:
    """MLCommons Croissant metadata of the version; the files of long lists are left out."""
    notes = manifest.metadata
    shards = {n: () if isinstance(t.shards, PartedShards) else t.shards for n, t in manifest.tables.items()}
    return {
        "@context": {
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "conformsTo": "http://purl.org/dc/terms/conformsTo",
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.dataset_id,
        "version": manifest.version_hash,
        "description": notes.get("description", ""),
        "license": notes.get("license", ""),
        "datePublished": manifest.created_at,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": blob.hash,
                "contentUrl": blob.uri or blob.key,
                "contentSize": f"{blob.byte_size} B",
                "sha256": blob.hash,
                "encodingFormat": "application/x-parquet",
            }
            for blobs in shards.values()
            for blob in blobs
        ],
        "cr:recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": name,
                "cr:field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"{name}/{field['name']}",
                        "dataType": _CROISSANT_TYPES.get(
                            str(field["type"]), "sc:Integer" if "int" in str(field["type"]) else "sc:Text"
                        ),
                        "source": [
                            {"fileObject": {"@id": shard.hash}, "extract": {"column": field["name"]}}
                            for shard in shards[name][:1]
                        ],
                    }
                    for field in part.fields
                ],
            }
            for name, part in manifest.tables.items()
        ],
    }
