"""Tags that differ in case only: the disk of a local catalog may take them for one, where no other store does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from warpdata.bytekit.io.commit import make_folders
from warpdata.bytekit.io.filenames import folded, keep_apart
from warpdata.catalog.names import DatasetName
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore


def keep_tags_apart(store: BlobStore, name: DatasetName, tags: Sequence[str]) -> None:
    """ConflictError where one of these tags would be written over another one."""
    local = _local(store)
    if local is None or not tags:
        return
    prefix = name.tag_key("").removesuffix(".json")
    there = [info.key.removeprefix(prefix).removesuffix(".json") for info in local.list(prefix)]
    taken = {folded(tag): tag for tag in there}
    make_folders(local.folder)
    for tag in tags:
        if tag not in there:
            keep_apart(tag, taken, local.folder)


def is_another_tag(store: BlobStore, name: DatasetName, tag: str) -> bool:
    """Whether what the disk finds under this tag has another name."""
    local = _local(store)
    if local is None:
        return False
    path = local.path(name.tag_key(tag))
    with contextlib.suppress(OSError):  # whoever reads it says what is wrong
        return f"{tag}.json" not in os.listdir(path.parent)
    return False


def _local(store: BlobStore) -> LocalStore | None:
    inner = store.inner if isinstance(store, ReliableStore) else store
    return inner if isinstance(inner, LocalStore) else None
