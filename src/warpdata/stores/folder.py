"""Files below an address in a store, read by range; in another process they are opened again by address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from warpdata.bytekit.forks import tell_in_child
from warpdata.bytekit.ranges import Range, check_range, coalesce
from warpdata.errors import BlobNotFoundError
from warpdata.stores.blobstore import BlobStore, blob_name
from warpdata.stores.meter import Spent
from warpdata.stores.reliable import ReliableStore

Connect = Callable[[str], BlobStore]
"""From an address to an open store; a function of a module, so that it can be pickled by name."""

PART_BYTES = 1 << 20
"""Longer reads are cut into parts that are asked for at the same time."""


class StoreFolder:
    """The files below one address."""

    def __init__(self, address: str, connect: Connect) -> None:
        self.name = address
        self._connect = connect
        self._opened: BlobStore | None = None
        tell_in_child(self)

    @property
    def store(self) -> BlobStore:
        """The store of this process: connections and threads do not survive a fork."""
        if self._opened is None:
            self._opened = self._connect(self.name)
        return self._opened

    def in_child(self) -> None:
        """Connect again."""
        self._opened = None

    def open(self, name: str) -> StoreFile:
        """The bytes of a file, or BlobNotFoundError."""
        return StoreFile(self, name, self.store.head(name).size)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        try:
            self.store.head(name)
        except BlobNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of all files, where the store can list them."""
        return [info.key for info in self.store.list("")]

    def below(self, name: str) -> StoreFolder:
        """The folder of this name inside this one."""
        address, mark, settings = self.name.partition("?")
        return StoreFolder(f"{address.rstrip('/')}/{name}{mark}{settings}", self._connect)

    def close(self) -> None:
        """Give back connections; the next read makes new ones."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreFolder, (self.name, self._connect))


class StoreFile:
    """Ranges of one file of a folder."""

    def __init__(self, folder: StoreFolder, key: str, size: int) -> None:
        self.name = blob_name(folder.name.partition("?")[0], key)
        self.size = size
        self._folder = folder
        self._key = key

    @property
    def spent(self) -> Spent | None:
        """What reading from the store has cost so far, if the store counts it."""
        store = self._folder.store
        return store.meter.spent if isinstance(store, ReliableStore) else None

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end); a long range in parts that are on their way together."""
        check_range(self, start, end)
        cuts = [*range(start, end, PART_BYTES), end] if end > start else [start, end]
        parts = self._folder.store.get_ranges(self._key, list(pairwise(cuts)))
        return (parts[0] if len(parts) == 1 else memoryview(b"".join(parts))).toreadonly()

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, near ones in one request."""
        for start, end in ranges:
            check_range(self, start, end)
        spans = coalesce(ranges)
        found = self._folder.store.get_ranges(self._key, [(span.start, span.end) for span in spans])
        out = [memoryview(b"")] * len(ranges)
        for span, data in zip(spans, found, strict=True):
            for member in span.members:
                start, end = ranges[member]
                out[member] = data[start - span.start : end - span.start].toreadonly()
        return out

    def close(self) -> None:
        """Nothing is held open."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreFolder.open, (self._folder, self._key))
