"""Files below an address in a store, read by range; in another process they are opened again by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpdata.bytekit.io.ranges import FarRangeReader, RangeReader
from warpdata.bytekit.process.forks import run_in_child
from warpdata.errors import BlobNotFoundError
from warpdata.stores.blobstore import BlobInfo, BlobStore, blob_name
from warpdata.stores.cache.blobs import BlobAddress, BlobReader
from warpdata.stores.cache.page_cache import PageCache

Connect = Callable[[str], BlobStore]
"""From an address to an open store; a function of a module, so that it can be pickled by name."""

OpenCache = Callable[[], PageCache | None]
"""The page cache of this process, if one is used; a function of a module too."""


class StoreFolder:
    """The files below one address."""

    def __init__(self, address: str, connect: Connect, open_cache: OpenCache | None = None) -> None:
        self.name = address
        self._connect = connect
        self._open_cache = open_cache
        self._opened: BlobStore | None = None
        run_in_child(self.in_child)

    @property
    def store(self) -> BlobStore:
        """The store of this process: connections and threads do not survive a fork."""
        if self._opened is None:
            self._opened = self._connect(self.name)
        return self._opened

    def in_child(self) -> None:
        """Connect again."""
        self._opened = None

    @property
    def cache(self) -> PageCache | None:
        """Where pages of its files are kept on this machine, if anywhere."""
        return None if self._open_cache is None else self._open_cache()

    def file(self, name: str) -> StoreFile:
        """The reader of a file, or BlobNotFoundError."""
        return StoreFile(self, name, self.store.head(name))

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError; without a cache the last pages stay in memory."""
        found = self.file(name)
        return found if found.is_cached or self.store.is_local else FarRangeReader(found)

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
        return StoreFolder(f"{address.rstrip('/')}/{name}{mark}{settings}", self._connect, self._open_cache)

    def close(self) -> None:
        """Give back connections; the next read makes new ones."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreFolder, (self.name, self._connect, self._open_cache))


class StoreFile(BlobReader):
    """Ranges of one file of a folder as it was when it was opened, through the page cache if there is one.

    Whoever replaces the file meanwhile makes reading it an error: bytes of two files are never mixed.
    """

    def __init__(self, folder: StoreFolder, key: str, info: BlobInfo) -> None:
        self._folder = folder
        name = blob_name(folder.name.partition("?")[0], key)
        store = folder.store
        cache = None if store.is_local else folder.cache
        super().__init__(BlobAddress("", info.size, key, name, info), store, cache)

    @property
    def is_cached(self) -> bool:
        """Whether what was read is found again on this machine."""
        return self._cache is not None and self._cache_name is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreFile, (self._folder, self.address.key, self.address.same_as))
