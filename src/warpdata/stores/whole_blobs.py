"""Whole blobs brought into the cache behind the reader's back: one thread, never in the way of a read."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable

from warpdata.bytekit.forks import tell_in_child
from warpdata.errors import WarpError
from warpdata.stores.blobs import BlobReader
from warpdata.stores.cache import PageCache

_log = logging.getLogger("warpdata.stores")
_STEP_BYTES = 4 << 20


class WholeBlobFetcher:
    """Fetches the rest of blobs of which something was read, as long as the cache has room for them."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._start()
        tell_in_child(self)

    def _start(self) -> None:
        """Fresh state: a forked child has none of its parent's threads."""
        self._wanted: queue.SimpleQueue[BlobReader] = queue.SimpleQueue()
        self._asked: set[str] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    def want(self, readers: Iterable[object]) -> None:
        """Bring these blobs here when there is time; returns at once."""
        for reader in readers:
            if isinstance(reader, BlobReader) and reader.address.sha256 not in self._asked:
                self._asked.add(reader.address.sha256)
                self._wanted.put(reader)
        if self._thread is None and not self._wanted.empty():
            self._thread = threading.Thread(target=self._run, name="warp-hoard", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop after the step under way."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                reader = self._wanted.get(timeout=0.2)
                self._load(reader)
            except queue.Empty:
                continue
            except WarpError as error:
                # What is only hoarded may be missing: whoever needs it will be told.
                _log.debug("not hoarded: %s", error)

    def _load(self, reader: BlobReader) -> None:
        if not self._cache.has_room(reader.missing_bytes()):
            return
        for start in range(0, reader.size, _STEP_BYTES):
            if self._closed.is_set():
                return
            reader.prefetch([(start, min(start + _STEP_BYTES, reader.size))])
