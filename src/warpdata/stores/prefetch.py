"""Reading ahead in blobs: sequential prefetch across blobs, and whole blobs fetched in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import accumulate
from queue import SimpleQueue

from warpdata.bytekit.io.ranges import Range, total_bytes
from warpdata.bytekit.process.forks import ThreadLock, run_in_child
from warpdata.bytekit.process.threads import ThreadPool, start_thread
from warpdata.errors import WarpError
from warpdata.stores.blobs import BlobReader
from warpdata.stores.blobstore import PAGE_BYTES
from warpdata.stores.pagecache import PageCache

_log = logging.getLogger("warpdata.stores")
_SPAN_BYTES = 2 << 20
_FIRST_BYTES = 4 << 20
_MAX_BYTES = 32 << 20
_WORKERS = 8
_MANY_RANGES = 8
"""This many neighbours in one read mean that the next read continues where it ends; fewer must do so twice."""
_WHOLE_STEP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes [start, end) of all blobs in a row that are being fetched; no data if they are here already."""

    start: int
    end: int
    data: Future[memoryview] | None

    def wait(self) -> memoryview | None:
        """The bytes once they are here; None if they did not come: the reader requests them again and fails."""
        try:
            return None if self.data is None else self.data.result()
        except (WarpError, CancelledError):
            return None


class SequentialReads:
    """Fetches what follows sequential reads of some blobs, within a bound on memory."""

    def __init__(self, open_reader: Callable[[int], BlobReader], sizes: Sequence[int]) -> None:
        self._open_reader = open_reader
        self._sizes = list(sizes)
        self._bases = [0, *accumulate(sizes)]
        self._lock = ThreadLock()
        self._threads = ThreadPool(_WORKERS, "warp-follow")
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Forget what is being fetched: a forked child has none of its parent's threads."""
        self._spans: list[_Span] = []
        self._read_to = -1
        self._window = _FIRST_BYTES

    def note(self, reads: Sequence[tuple[int, Range]]) -> None:
        """Note a read of (blob, range)s that is about to be made; if it is sequential, fetch what follows it."""
        ranges = [(self._bases[blob] + start, self._bases[blob] + end) for blob, (start, end) in reads]
        start, end = min(ranges)[0], max(range_end for _, range_end in ranges)
        is_dense = len(ranges) >= _MANY_RANGES and 2 * total_bytes(ranges) >= end - start
        with self._lock:
            follows = 0 <= start - self._read_to <= PAGE_BYTES
            self._read_to = end
            if not follows and not is_dense:
                self._spans, self._window = [], _FIRST_BYTES
                return
            spans = [span for span in self._spans if start < span.end and span.start <= end + _MAX_BYTES]
            frontier = max((span.end for span in spans), default=end)
            stop = min(end + self._window, self._bases[-1])
            while frontier < stop:
                blob = next(i for i, base in enumerate(self._bases[1:]) if frontier < base)
                base = self._bases[blob]
                low = (frontier - base) // PAGE_BYTES * PAGE_BYTES
                high = min(low + _SPAN_BYTES, self._sizes[blob])
                reader = self._open_reader(blob)
                is_here = reader.has([(low, high)])
                data = None if is_here else self._threads.submit(reader.read, low, high)
                spans.append(_Span(base + low, base + high, data))
                frontier = base + high
            self._spans, self._window = spans, min(self._window * 2, _MAX_BYTES)

    def take(self, blob: int, ranges: Sequence[Range]) -> list[memoryview | None]:
        """The ranges that were fetched ahead; None for those that were not."""
        if all(span.data is None for span in self._spans):
            return [None] * len(ranges)
        return [self._take(self._bases[blob], part) for part in ranges]

    def close(self) -> None:
        """Fetch nothing more; requests under way end by themselves."""
        with self._lock:
            self._spans = []
            self._threads.close()

    def _take(self, base: int, part: Range) -> memoryview | None:
        """A range out of the spans that hold it, joined where it crosses from one into the next."""
        at, end = base + part[0], base + part[1]
        pieces: list[memoryview] = []
        for span in self._spans:
            if span.start <= at < min(end, span.end):
                data = span.wait()
                if data is None:
                    return None
                pieces.append(data[at - span.start : end - span.start])
                at = min(end, span.end)
        if at < end or not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class SequentialReader:
    """One of the blobs as a range reader that reads ahead after sequential reads."""

    def __init__(self, reads: SequentialReads, blob: int, reader: BlobReader) -> None:
        self._reads = reads
        self._blob = blob
        self._reader = reader
        self.name = reader.name
        self.size = reader.size

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        self._reads.note([(self._blob, part) for part in ranges])
        views = self._reads.take(self._blob, ranges)
        return [
            self._reader.read(*p) if view is None else view for p, view in zip(ranges, views, strict=True)
        ]

    def close(self) -> None:
        """The reader behind it stays open."""


class WholeBlobFetcher:
    """Fetches the rest of blobs that were read in part, in one background thread, while the cache has room."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Start again."""
        self._requested: set[str] = set()
        self._queue: SimpleQueue[BlobReader | None] = SimpleQueue()
        self._closed = threading.Event()

    def request(self, readers: Iterable[BlobReader]) -> None:
        """Fetch these blobs when there is time; returns at once."""
        for reader in readers:
            if not reader.is_local and reader.address.sha256 not in self._requested:
                if not self._requested:
                    start_thread(self._run, "warp-whole-blobs")
                self._requested.add(reader.address.sha256)
                self._queue.put(reader)

    def close(self) -> None:
        """Stop after the request under way."""
        self._closed.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (reader := self._queue.get()) is not None:
            self._fetch(reader)
            del reader

    def _fetch(self, reader: BlobReader) -> None:
        try:
            if self._closed.is_set() or not self._cache.has_room(reader.missing_bytes()):
                return
            for start in range(0, reader.size, _WHOLE_STEP_BYTES):
                if self._closed.is_set():
                    return
                reader.prefetch([(start, min(start + _WHOLE_STEP_BYTES, reader.size))])
        except WarpError as error:
            _log.debug("not fetched in the background: %s", error)  # a reader that needs it raises the error
