"""A reader that counts what is read through it."""

from __future__ import annotations

from collections.abc import Sequence

from warpdata.bytekit.io.ranges import Range, RangeReader, coalesce, drop_cached
from warpdata.errors import TruncatedError


class CountingReader:
    """Any reader, with the number of reads and bytes it served; near ranges are read together."""

    def __init__(self, inner: RangeReader) -> None:
        self.inner = inner
        self.reads = 0
        self.bytes_read = 0

    @property
    def name(self) -> str:
        """The name of the bytes."""
        return self.inner.name

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self.inner.size

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        self.reads += 1
        self.bytes_read += end - start
        return self._whole(self.inner.read(start, end), start, end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range; neighbours share a read, nothing between them is fetched."""
        spans = coalesce(ranges, max_gap_bytes=0)
        found = self.inner.read_many([(span.start, span.end) for span in spans])
        out: dict[int, memoryview] = {}
        for span, data in zip(spans, found, strict=True):
            self.reads += 1
            self.bytes_read += span.end - span.start
            self._whole(data, span.start, span.end)
            for member in span.members:
                start, end = ranges[member]
                out[member] = data[start - span.start : end - span.start]
        return [out[index] for index in range(len(ranges))]

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget cached copies of the bytes [start, end)."""
        return drop_cached(self.inner, start, end)

    def _whole(self, data: memoryview, start: int, end: int) -> memoryview:
        """Less than was asked for would look like an older state of the file."""
        if len(data) != end - start:
            fact = f"{len(data)} of {end - start} bytes came from offset {start}"
            raise TruncatedError(
                fact, path=self.name, hint="Read again; the connection may have ended early."
            )
        return data

    def close(self) -> None:
        """Close the reader inside."""
        self.inner.close()
