"""Give me bytes [start, end): the one interface between formats and wherever bytes live."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.process.forks import Reopens
from warpdata.errors import FormatError, TruncatedError

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer


Range = tuple[int, int]
T = TypeVar("T")


class Closing:
    """Closed at the end of its `with` block."""

    def close(self) -> None:
        """Close what is held open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


DEFAULT_GAP_BYTES = 64 << 10
DEFAULT_SPAN_BYTES = 16 << 20


@runtime_checkable
class RangeReader(Protocol):
    """Random access to a sequence of bytes that does not change while it is open."""

    @property
    def name(self) -> str:
        """What to call these bytes in an error message: a path or an address."""

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), read-only, or TruncatedError."""

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, in the same order."""

    def close(self) -> None:
        """Give back what is held open; views handed out stay valid."""


@dataclass(frozen=True, slots=True)
class Span:
    """One read that serves several ranges: its bounds and the positions of the ranges it serves."""

    start: int
    end: int
    members: tuple[int, ...]


def coalesce(
    ranges: Sequence[Range],
    *,
    max_gap_bytes: int = DEFAULT_GAP_BYTES,
    max_span_bytes: int = DEFAULT_SPAN_BYTES,
) -> list[Span]:
    """Group ranges into few reads: joined over small gaps, never longer than a span may be."""
    spans: list[Span] = []
    members: list[int] = []
    low = high = 0
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        start, end = ranges[index]
        joined = max(high, end)
        if members and start - high <= max_gap_bytes and joined - low <= max_span_bytes:
            members.append(index)
            high = joined
            continue
        if members:
            spans.append(Span(low, high, tuple(members)))
        members, low, high = [index], start, end
    if members:
        spans.append(Span(low, high, tuple(members)))
    return spans


def read_coalesced(reader: RangeReader, ranges: Sequence[Range]) -> list[memoryview]:
    """Serve many ranges with few reads of `reader`."""
    out: dict[int, memoryview] = {}
    for span in coalesce(ranges):
        data = reader.read(span.start, span.end)
        for member in span.members:
            start, end = ranges[member]
            out[member] = data[start - span.start : end - span.start]
    return [out[index] for index in range(len(ranges))]


def check_range(reader: RangeReader, start: int, end: int) -> None:
    """Raise unless [start, end) is inside the reader's bytes."""
    if start < 0 or end < start:
        raise ValueError(f"no such byte range: [{start}, {end})")
    if end > reader.size:
        raise TruncatedError(f"bytes [{start}, {end}) are past the end at {reader.size}", path=reader.name)


class BytesRangeReader:
    """Ranges of a buffer in memory."""

    is_local = True

    def __init__(self, data: Buffer, name: str = "<bytes>") -> None:
        self._view = byte_view(data).toreadonly()
        self.name = name
        self.size = self._view.nbytes

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), without a copy."""
        check_range(self, start, end)
        return self._view[start:end]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, without a copy."""
        return [self.read(start, end) for start, end in ranges]

    def close(self) -> None:
        """Nothing is held open."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (BytesRangeReader, (bytes(self._view), self.name))


class PartRangeReader:
    """A stretch of another reader's bytes as bytes of their own."""

    def __init__(self, reader: RangeReader, offset: int, size: int, name: str) -> None:
        self._reader = reader
        self._offset = offset
        self.size = size
        self.name = name

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end) of the stretch."""
        check_range(self, start, end)
        return self._reader.read(self._offset + start, self._offset + end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        for start, end in ranges:
            check_range(self, start, end)
        return self._reader.read_many([(self._offset + start, self._offset + end) for start, end in ranges])

    def resident(self, start: int, end: int) -> memoryview | None:
        """A view of the bytes [start, end) if they are in a cache on this machine."""
        return resident(self._reader, self._offset + start, self._offset + end)

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget cached copies of the bytes [start, end) of the stretch."""
        return drop_cached(self._reader, self._offset + start, self._offset + end)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Bring ranges into the cache of the reader behind it, if there is one."""
        prefetch(self._reader, [(self._offset + start, self._offset + end) for start, end in ranges])

    def close(self) -> None:
        """The reader behind it stays open."""


def read_into(reader: RangeReader, start: int, out: memoryview) -> None:
    """Fill `out` with the bytes from `start` on; a reader of files does it without a copy in between."""
    method = getattr(reader, "read_into", None)
    if method is None:
        out[:] = reader.read(start, start + out.nbytes)
    else:
        method(start, out)


def resident(reader: RangeReader, start: int, end: int) -> memoryview | None:
    """A view of bytes that come from elsewhere, if all of them are in a cache on this machine; else None."""
    method = getattr(reader, "resident", None)
    view: memoryview | None = None if method is None else method(start, end)
    return view


def drop_cached(reader: RangeReader, start: int, end: int) -> bool:
    """Forget cached copies of the bytes [start, end); False if reading them again is useless.

    It is useless without a cache, and for bytes that this reader dropped before.
    """
    drop = getattr(reader, "drop_cached", None)
    return bool(drop is not None and drop(start, end))


def retry_damaged(reader: RangeReader, call: Callable[[], T], ranges: Sequence[Range] | None = None) -> T:
    """Return `call()`, which reads and verifies bytes of a reader.

    After a FormatError cached copies of these ranges (all by default) are dropped and `call` runs once more: a damaged
    response of a server must not be refused for ever because it was cached.
    """
    try:
        return call()
    except FormatError:
        wanted = [(0, reader.size)] if ranges is None else ranges
        if not any([drop_cached(reader, start, end) for start, end in wanted]):
            raise
    return call()


def prefetch(reader: RangeReader, ranges: Sequence[Range]) -> None:
    """Bring ranges, all at the same time, to where the next read costs nothing, if there is such a place."""
    method = getattr(reader, "prefetch", None)
    if method is not None and ranges:
        method(ranges)


class JoinedRangeReader:
    """The bytes of several readers, one after the other."""

    def __init__(self, parts: Sequence[RangeReader], name: str) -> None:
        self._parts = list(parts)
        self._starts = [0, *itertools.accumulate(part.size for part in self._parts)]
        self.size = self._starts[-1]
        self.name = name

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end); copied if they span several parts."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range; every part is read once."""
        pieces: list[list[memoryview]] = [[] for _ in ranges]
        for start, end in ranges:
            check_range(self, start, end)
        for begin, part in zip(self._starts, self._parts, strict=False):
            cut = [(max(start - begin, 0), min(end - begin, part.size)) for start, end in ranges]
            wanted = [number for number, (low, high) in enumerate(cut) if low < high]
            views = part.read_many([cut[number] for number in wanted]) if wanted else []
            for number, piece in zip(wanted, views, strict=True):
                pieces[number].append(piece)
        return [views[0] if len(views) == 1 else memoryview(b"".join(views)) for views in pieces]

    def close(self) -> None:
        """Close all parts."""
        for part in self._parts:
            part.close()


_FAR_PAGE_BYTES = 256 << 10
_FAR_PAGES = 32


class FarRangeReader(Reopens):
    """Ranges of a reader that answers slowly: small ones come out of large pages, the last of which are kept."""

    def __init__(self, reader: RangeReader) -> None:
        self.name = reader.name
        self.size = reader.size
        self._reader = reader
        self._pages: OrderedDict[int, memoryview] = OrderedDict()
        self._dropped: set[Range] = set()

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        check_range(self, start, end)
        if end - start >= _FAR_PAGE_BYTES or start == end:
            return self._reader.read(start, end)
        first, last = start // _FAR_PAGE_BYTES, (end - 1) // _FAR_PAGE_BYTES
        pages = []
        for number in range(first, last + 1):
            page = self._pages.get(number)
            if page is None:  # two threads may both fetch a page; what they keep is the same
                low = number * _FAR_PAGE_BYTES
                page = self._pages[number] = self._reader.read(low, min(low + _FAR_PAGE_BYTES, self.size))
                while len(self._pages) > _FAR_PAGES:
                    with contextlib.suppress(KeyError):
                        self._pages.popitem(last=False)
            pages.append(page)
        data = pages[0] if first == last else memoryview(b"".join(pages))
        return data[start - first * _FAR_PAGE_BYTES : end - first * _FAR_PAGE_BYTES]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range: those whose pages are here from there, the others in one go."""
        near = [
            end - start < _FAR_PAGE_BYTES and start // _FAR_PAGE_BYTES in self._pages for start, end in ranges
        ]
        far = iter(
            self._reader.read_many([part for part, is_near in zip(ranges, near, strict=True) if not is_near])
        )
        return [
            self.read(*part) if is_near else next(far) for part, is_near in zip(ranges, near, strict=True)
        ]

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget the pages in memory, and cached copies of the bytes [start, end)."""
        self._pages.clear()
        drop_cached(self._reader, start, end)
        is_first = (start, end) not in self._dropped
        self._dropped.add((start, end))
        return is_first

    def close(self) -> None:
        """Close what it reads from."""
        self._pages.clear()
        self._reader.close()


def check_not_truncated(reader: RangeReader) -> None:
    """Raise TruncatedError if a mapped file was cut since it was opened; other readers notice when they read."""
    check = getattr(reader, "check_not_truncated", None)
    if check is not None:
        check()


def total_bytes(ranges: Iterable[Range]) -> int:
    """Total bytes of the ranges."""
    return sum(end - start for start, end in ranges)


_BUFFER_BYTES = 1 << 20


@runtime_checkable
class FolderReader(Protocol):
    """Read access to the files below one place; a name may have `/` in it."""

    @property
    def name(self) -> str:
        """What to call the place in an error message."""

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def names(self) -> list[str]:
        """The names of all files below the place, or a StoreError if it cannot be listed."""


class SubFolder:
    """The files of a place whose names begin with `prefix/`; their names are known, so nothing is listed."""

    def __init__(self, base: FolderReader, prefix: str, names: Sequence[str]) -> None:
        address, mark, settings = base.name.partition("?")
        self.name = f"{address.rstrip('/')}/{prefix}{mark}{settings}"
        self._base = base
        self._prefix = prefix
        self._names = list(names)

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError."""
        return self._base.open(f"{self._prefix}/{name}")

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return name in self._names

    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._names)


class RangeFile(io.RawIOBase):
    """A range reader as a file object, for libraries that want one."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer at the end."""
        return bytes(self._next(self._reader.size if size < 0 else size))

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer with the next bytes; how many there were."""
        target = memoryview(buffer).cast("B")
        data = self._next(target.nbytes)
        target[: data.nbytes] = data
        return data.nbytes

    def _next(self, size: int) -> memoryview:
        start = min(self._position, self._reader.size)
        self._position = min(start + size, self._reader.size)
        return self._reader.read(start, self._position)


def open_buffered(reader: RangeReader) -> io.BufferedReader:
    """A range reader as a buffered file, for reading from start to end."""
    return io.BufferedReader(RangeFile(reader), _BUFFER_BYTES)
