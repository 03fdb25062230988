"""Reads on behind whoever goes through blobs in order: the next bytes are under way before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import accumulate

from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.errors import WarpError
from warpdata.stores.cache.blobs import AnyBlobReader, LocalBlobReader
from warpdata.stores.cache.layout import PAGE_BYTES

_SPAN_BYTES = 2 << 20
_FIRST_BYTES = 4 << 20
_MAX_BYTES = 32 << 20
_WORKERS = 8
_MANY_RANGES = 8
"""So many neighbours in one read say that the next read goes on where it ends; fewer must do so twice."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes on their way: where they lie in the line of all blobs, and those of their own blob."""

    start: int
    end: int
    data: Future[memoryview] | None


class SequentialReads:
    """What comes after a sequential read of some blobs, fetched ahead within a bound on memory."""

    def __init__(self, open_reader: Callable[[int], AnyBlobReader], sizes: Sequence[int]) -> None:
        self._open_reader = open_reader
        self._sizes = list(sizes)
        self._bases = [0, *accumulate(sizes)]
        self._lock = ThreadLock()
        self._threads = ThreadPool(_WORKERS, "warp-follow")
        self._start()
        run_in_child(self.in_child)

    def _start(self) -> None:
        """Fresh state: a forked child has none of its parent's threads."""
        self._spans: list[_Span] = []
        self._read_to = -1
        self._window = _FIRST_BYTES

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    def go_on(self, wanted: Sequence[tuple[int, Range]]) -> None:
        """Note a read of (blob, range)s that is about to be made; if it goes in order, ask for what follows it."""
        ranges = [(self._bases[blob] + start, self._bases[blob] + end) for blob, (start, end) in wanted]
        start, end = min(ranges)[0], max(range_end for _, range_end in ranges)
        with self._lock:
            follows = 0 <= start - self._read_to <= PAGE_BYTES
            self._read_to = end
            if follows or _is_dense(ranges, end - start):
                self._ask(start, end)
            else:
                self._spans, self._window = [], _FIRST_BYTES

    def served(self, blob: int, ranges: Sequence[Range]) -> list[memoryview | None]:
        """The ranges that were asked for ahead; None for those that were not."""
        if all(span.data is None for span in self._spans):
            return [None] * len(ranges)
        return [self._find(self._bases[blob], wanted) for wanted in ranges]

    def close(self) -> None:
        """Ask for nothing more; what is under way ends by itself."""
        with self._lock:
            self._spans = []
            self._threads.close()

    def _find(self, base: int, wanted: Range) -> memoryview | None:
        """A range out of the spans that hold it, joined where it crosses from one into the next."""
        at, end = base + wanted[0], base + wanted[1]
        pieces: list[memoryview] = []
        for span in self._spans:
            if span.start <= at < min(end, span.end):
                data = _arrived(span)
                if data is None:
                    return None
                pieces.append(data[at - span.start : end - span.start])
                at = min(end, span.end)
        if at < end or not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _ask(self, start: int, end: int) -> None:
        """Have the window after `end` under way, and let go of what lies before `start`."""
        kept = [span for span in self._spans if start < span.end and span.start <= end + _MAX_BYTES]
        frontier = max((span.end for span in kept), default=end)
        stop = min(end + self._window, self._bases[-1])
        while frontier < stop:
            span = self._span_at(frontier)
            kept.append(span)
            frontier = span.end
        self._spans = kept
        self._window = min(self._window * 2, _MAX_BYTES)

    def _span_at(self, position: int) -> _Span:
        """The span that goes on at a position, begun unless its bytes are here."""
        blob = next(i for i, base in enumerate(self._bases[1:]) if position < base)
        base = self._bases[blob]
        low = (position - base) // PAGE_BYTES * PAGE_BYTES
        high = min(low + _SPAN_BYTES, self._sizes[blob])
        reader = self._open_reader(blob)
        if isinstance(reader, LocalBlobReader) or reader.has([(low, high)]):
            return _Span(base + low, base + high, None)
        return _Span(base + low, base + high, self._threads.submit(reader.read, low, high))


class SequentialReader:
    """One of the blobs as a range reader that reads on behind sequential reads."""

    def __init__(self, reads: SequentialReads, blob: int, reader: AnyBlobReader) -> None:
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
        self._reads.go_on([(self._blob, wanted) for wanted in ranges])
        found = self._reads.served(self._blob, ranges)
        return [
            self._reader.read(*r) if view is None else view for r, view in zip(ranges, found, strict=True)
        ]

    def close(self) -> None:
        """The reader behind it stays open."""


def _arrived(span: _Span) -> memoryview | None:
    """The bytes of a span once they are here; None where they did not come."""
    try:
        return None if span.data is None else span.data.result()
    except (WarpError, CancelledError):
        # Whoever needs these bytes asks for them anew and is told what is wrong.
        return None


def _is_dense(ranges: Sequence[Range], span_bytes: int) -> bool:
    """Whether so many ranges fill most of where they lie that they are neighbours."""
    return len(ranges) >= _MANY_RANGES and 2 * sum(end - start for start, end in ranges) >= span_bytes
