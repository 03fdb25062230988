"""Derived files of a catalog: lists for readers that cannot list it, and a card and Croissant metadata of each version.

Each version in the list has what a listing of versions shows, so that no manifest needs to be opened for it.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish.pointer import read_pointer
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    DatasetError,
    FormatError,
    ManifestCorruptedError,
    StoreError,
)
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import DATASET_ID, HASH, LongList, Manifest
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")

DATASETS_KEY = "datasets.json"
_FAN = re.compile(r"[0-9a-f]{2}")
"""The folders of blobs, by the first digits of their hash."""
_TRIES = 20
_PAUSE_S = 0.2
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
class About:
    """Details of one version in a list."""

    created_at: str | None
    rows: int
    bytes: int
    parent: str | None
    message: str


@dataclass(frozen=True, slots=True)
class VersionList:
    """The versions of a dataset, oldest first, and its tags."""

    versions: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, About] = field(default_factory=dict)
    """Details of some of the versions."""


def about_manifest(manifest: Manifest) -> About:
    """The details of a version from its manifest."""
    parent = manifest.metadata.get("parent")
    return About(
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
    blob = _get(store, name.list_key)
    return None if blob is None else _parse_list(blob, f"{store.address}/{name.list_key}")


def note_version(
    store: BlobStore,
    name: DatasetName,
    version: str,
    *,
    parent: str | None,
    tags: Sequence[str],
    about: About | None,
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
    blob = _get(store, DATASETS_KEY)
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


def note_dataset(store: BlobStore, name: DatasetName) -> None:
    """Add a new dataset to the written list of datasets."""

    def change(_: Blob | None) -> bytes:
        return dump_json({"datasets": sorted({*list_datasets_of(store), name.dataset_id})}) + b"\n"

    _update(store, DATASETS_KEY, change)


def check_catalog(store: BlobStore) -> None:
    """DatasetError for an address to which nothing was ever published."""
    if is_empty(store):
        hint = "Check the address: a catalog is the folder or prefix that datasets were published to."
        raise DatasetError("this is no catalog: nothing was published here", path=store.address, hint=hint)


def is_empty(store: BlobStore) -> bool:
    """Whether nothing was ever published here; StoreError if the store cannot be listed."""
    has_blobs = any(_FAN.fullmatch(folder) for folder in store.folders("blobs/sha256/"))
    return not has_blobs and _get(store, DATASETS_KEY) is None


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
            fields["about"] = [about and astuple(about) for about in details]
        return dump_json(fields) + b"\n"

    _update(store, name.list_key, changed)


def _update(store: BlobStore, key: str, change: Callable[[Blob | None], bytes]) -> None:
    """Swap a derived file; a failure is logged, because the next publisher writes the file again."""
    try:
        for attempt in range(_TRIES):
            held = _get(store, key)
            body = change(held)
            if held is not None and bytes(held.data) == body:
                return
            try:
                store.compare_and_swap(key, body, held.info.etag if held else None)
                return
            except ConflictError:
                time.sleep(random.uniform(0, _PAUSE_S * min(attempt, 5)))
    except (StoreError, ManifestCorruptedError) as error:
        _log.warning("%s was not written: %s", key, error)


def _get(store: BlobStore, key: str) -> Blob | None:
    try:
        return store.get(key, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        return None


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
    about = {v: _parse_about(row, path) for v, row in zip(versions, details, strict=True) if row is not None}
    return VersionList(tuple(versions), tags, about)


def _parse_about(row: Any, path: str) -> About:
    match row:
        case [str() | None as created_at, int(rows), int(size), str() | None as parent, str(message)] if (
            parent is None or HASH.fullmatch(parent)
        ):
            return About(created_at, rows, size, parent, message)
    raise ManifestCorruptedError("the list of versions has invalid details", path=path)


def make_cards(manifest: Manifest) -> dict[str, bytes]:
    """The card and the metadata of a version, by the suffix of their names beside the manifest."""
    metadata = json.dumps(_croissant(manifest), indent=1)
    return {".card.md": _card(manifest).encode() + b"\n", ".croissant.json": metadata.encode() + b"\n"}


def _card(manifest: Manifest) -> str:
    """A page about the version in Markdown."""
    notes = manifest.metadata
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
    lines += [f'ds = wd.dataset("{manifest.dataset_id}@{manifest.version_hash[:12]}")', "```"]
    return "\n".join(lines)


def _croissant(manifest: Manifest) -> dict[str, Any]:
    """MLCommons Croissant metadata of the version; the files of long lists are left out."""
    notes = manifest.metadata
    shards = {n: () if isinstance(t.shards, LongList) else t.shards for n, t in manifest.tables.items()}
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
                        "dataType": _croissant_type(str(field["type"])),
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


def _croissant_type(kind: str) -> str:
    return _CROISSANT_TYPES.get(kind, "sc:Integer" if "int" in kind else "sc:Text")
