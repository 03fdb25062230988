"""A folder of blobs at an address, to read from: its names, and each blob as a RangeReader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from warpdata.bytekit.ranges import Range, check_range
from warpdata.stores.address import StoreOptions, open_store
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.reliable import ReliableStore

PART_BYTES = 1 << 20
"""Longer reads are cut into parts that are asked for at the same time."""


class BlobFolder:
    """The blobs directly below an address; every process that reads makes its own connections."""

    def __init__(self, address: str, options: StoreOptions | None = None) -> None:
        self.address = address
        self._options = options or StoreOptions()
        self._opened: tuple[int, BlobStore] | None = None

    @property
    def store(self) -> BlobStore:
        """The open store of this process, with retries."""
        if self._opened is None or self._opened[0] != os.getpid():
            store = ReliableStore(open_store(self.address, self._options))
            self._opened = (os.getpid(), store)
        return self._opened[1]

    def names(self) -> list[str]:
        """The names of the blobs, those in folders below left out."""
        return [info.key for info in self.store.list("") if "/" not in info.key]

    def blob(self, name: str) -> FolderBlob:
        """Ranges of one blob, or BlobNotFoundError."""
        return FolderBlob(self, name, self.store.head(name).size)

    def close(self) -> None:
        """Give back connections; the next read makes new ones."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (BlobFolder, (self.address, self._options))


class FolderBlob:
    """Ranges of one blob of a folder."""

    def __init__(self, folder: BlobFolder, key: str, size: int) -> None:
        self.folder = folder
        self.key = key
        self.size = size
        self.name = f"{folder.address.partition('?')[0].rstrip('/')}/{key}"

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end); long ranges in parts that are on their way together."""
        check_range(self, start, end)
        cuts = [*range(start, end, PART_BYTES), end] if end > start else [start, end]
        parts = self.folder.store.get_ranges(self.key, list(pairwise(cuts)))
        return (parts[0] if len(parts) == 1 else memoryview(b"".join(parts))).toreadonly()

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, asked for together."""
        for start, end in ranges:
            check_range(self, start, end)
        found = self.folder.store.get_ranges(self.key, ranges)
        return [view.toreadonly() for view in found]

    def close(self) -> None:
        """The connections belong to the folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (FolderBlob, (self.folder, self.key, self.size))
