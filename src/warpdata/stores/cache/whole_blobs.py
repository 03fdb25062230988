"""Whole blobs brought into the cache behind the reader's back: one thread, never in the way of a read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.threads import QueueThread
from warpdata.errors import WarpError
from warpdata.stores.cache.blobs import BlobReader
from warpdata.stores.cache.page_cache import PageCache

_log = logging.getLogger("warpdata.stores")
_STEP_BYTES = 4 << 20


class WholeBlobFetcher:
    """Fetches the rest of blobs of which something was read, as long as the cache has room for them."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._start()
        run_in_child(self.in_child)

    def _start(self) -> None:
        self._asked: set[str] = set()
        self._closed = threading.Event()
        self._thread: QueueThread[BlobReader] | None = None

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    def want(self, readers: Iterable[object]) -> None:
        """Bring these blobs here when there is time; returns at once."""
        for reader in readers:
            if isinstance(reader, BlobReader) and reader.address.sha256 not in self._asked:
                self._asked.add(reader.address.sha256)
                if self._thread is None:
                    self._thread = QueueThread(self._bring, "warp-whole-blobs")
                self._thread.put(reader)

    def close(self) -> None:
        """Stop after the step under way."""
        self._closed.set()
        if self._thread is not None:
            self._thread.close(wait=False)

    def _bring(self, reader: BlobReader) -> None:
        try:
            self._load(reader)
        except WarpError as error:
            # What nobody asked for yet may be missing: whoever needs it will be told.
            _log.debug("not brought here: %s", error)

    def _load(self, reader: BlobReader) -> None:
        if self._closed.is_set() or not self._cache.has_room(reader.missing_bytes()):
            return
        for start in range(0, reader.size, _STEP_BYTES):
            if self._closed.is_set():
                return
            reader.prefetch([(start, min(start + _STEP_BYTES, reader.size))])
