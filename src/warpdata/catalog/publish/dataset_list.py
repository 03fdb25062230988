"""The datasets of a catalog in one small file, for catalogs that cannot be listed.

It is written when a dataset gets its first version, so it costs other publishers nothing.
"""

from __future__ import annotations

import logging
import random
import re
import time

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.names import DatasetName
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    DatasetError,
    FormatError,
    ManifestCorruptedError,
    StoreError,
)
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import DATASET_ID
from warpdata.stores.blobstore import Blob, BlobStore

_log = logging.getLogger("warpdata.catalog")

KEY = "datasets.json"
_FAN = re.compile(r"[0-9a-f]{2}")
"""The folders that blobs are spread over, by the beginning of their hash."""

_TRIES = 20
_PAUSE_S = 0.2


def listed_datasets(store: BlobStore, workspace: str = "") -> list[str]:
    """The names the catalog shows now, of one workspace or of all; a StoreError where it cannot be listed."""
    workspaces = [workspace] if workspace else store.folders("datasets/")
    below = map_in_threads(lambda each: store.folders(f"datasets/{each}/"), workspaces)
    names = [f"{each}/{name}" for each, found in zip(workspaces, below, strict=True) for name in found]
    return [name for name in names if DATASET_ID.fullmatch(name)]


def check_catalog(store: BlobStore) -> None:
    """DatasetError for a place where nothing was ever published, before anybody goes through all that lies there."""
    if is_empty(store):
        hint = "Check the address: a catalog is the folder or prefix that datasets were published to."
        raise DatasetError("this is no catalog: nothing was published here", path=store.address, hint=hint)


def is_empty(store: BlobStore) -> bool:
    """Whether nothing was ever published here; a store that cannot be listed says so in its own words."""
    return not any(_FAN.fullmatch(each) for each in store.folders("blobs/sha256/")) and _held(store) is None


def written_datasets(store: BlobStore) -> list[str] | None:
    """The names that were written down, or None where none were."""
    blob = _held(store)
    return None if blob is None else _names(blob, f"{store.address}/{KEY}")


def note_dataset(store: BlobStore, name: DatasetName) -> None:
    """Write down a dataset that is new; the next writer makes good what this one could not."""
    try:
        for attempt in range(_TRIES):
            held = _held(store)
            body = dump_json({"datasets": sorted({*listed_datasets(store), name.dataset_id})}) + b"\n"
            if held is not None and bytes(held.data) == body:
                return
            try:
                store.compare_and_swap(KEY, body, held.info.etag if held else None)
                return
            except ConflictError:
                time.sleep(random.uniform(0, _PAUSE_S * min(attempt, 5)))
    except StoreError as error:
        _log.warning("the list of datasets was not written: %s", error)


def _held(store: BlobStore) -> Blob | None:
    try:
        return store.get(KEY, max_bytes=MAX_MANIFEST_BYTES)
    except BlobNotFoundError:
        return None


def _names(blob: Blob, path: str) -> list[str]:
    try:
        found = parse_json_object(blob.data, max_bytes=MAX_MANIFEST_BYTES).get("datasets")
    except FormatError as error:
        raise ManifestCorruptedError(f"the list of datasets is not JSON ({error})", path=path) from None
    if not isinstance(found, list) or not all(isinstance(n, str) and DATASET_ID.fullmatch(n) for n in found):
        raise ManifestCorruptedError("the list of datasets names none", path=path)
    return found
