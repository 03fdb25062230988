"""The versions and tags of a dataset in one small file, for readers of catalogs that cannot be listed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.names import DatasetName
from warpdata.catalog.pointer import read_pointer
from warpdata.errors import BlobNotFoundError, ConflictError, FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import HASH
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Roster:
    """Which versions there are, and which of them the tags name."""

    versions: tuple[str, ...]
    tags: dict[str, str]


def listed_roster(store: BlobStore, name: DatasetName) -> Roster:
    """What the catalog itself shows now; a StoreError where it cannot be listed."""
    names = [info.key.rpartition("/")[2] for info in store.list(f"{name.folder}versions/")]
    versions = [n.removesuffix(".json") for n in names if HASH.fullmatch(n.removesuffix(".json"))]
    prefix = name.tag_key("").removesuffix(".json")
    tags = {}
    for info in store.list(prefix):
        pointer = read_pointer(store, info.key).pointer
        if pointer is not None:
            tags[info.key.removeprefix(prefix).removesuffix(".json")] = pointer.version
    return Roster(tuple(sorted(versions)), tags)


def read_roster(store: BlobStore, name: DatasetName) -> Roster | None:
    """What was written down last; None where nothing was."""
    blob = _held(store, name)
    return None if blob is None else _unpacked(blob, f"{store.address}/{name.roster_key}")


def write_roster(store: BlobStore, name: DatasetName) -> None:
    """Write down what the catalog shows now; the next writer makes good what this one could not."""
    try:
        for _ in range(_TRIES):
            held = _held(store, name)
            roster = listed_roster(store, name)
            body = dump_json({"versions": list(roster.versions), "tags": roster.tags}) + b"\n"
            if held is not None and bytes(held.data) == body:
                return
            try:
                store.compare_and_swap(name.roster_key, body, held.info.etag if held else None)
                return
            except ConflictError:
                continue
    except StoreError as error:
        _log.warning("the list of versions was not written: %s", error)


def _held(store: BlobStore, name: DatasetName) -> Blob | None:
    try:
        return store.get(name.roster_key, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        return None


def _unpacked(blob: Blob, path: str) -> Roster:
    try:
        raw = parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of versions is not JSON ({error})", path=path) from None
    versions, tags = raw.get("versions"), raw.get("tags")
    if not (
        isinstance(versions, list)
        and isinstance(tags, dict)
        and all(isinstance(v, str) and HASH.fullmatch(v) for v in [*versions, *tags.values()])
    ):
        raise ManifestCorruptedError("the list of versions names none", path=path)
    return Roster(tuple(versions), tags)
