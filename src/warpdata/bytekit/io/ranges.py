"""Give me bytes [start, end): the one interface between formats and wherever bytes live."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from warpdata.bytekit.io.open_files import Claim, OpenFiles
from warpdata.bytekit.process import system
from warpdata.bytekit.reopen import Reopens
from warpdata.bytekit.view import byte_view
from warpdata.errors import BlobChangedError, BlobNotFoundError, PermissionError_, StoreError, TruncatedError

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

Range = tuple[int, int]

DEFAULT_GAP_BYTES = 64 << 10
DEFAULT_SPAN_BYTES = 16 << 20
COPY_BELOW_BYTES = 64 << 10
"""Copying this much is quicker than faulting in its pages."""


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
        """Exactly the bytes of each range, in the order asked."""

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
    """Raise unless [start, end) lies inside the reader's bytes."""
    if start < 0 or end < start:
        raise ValueError(f"no such byte range: [{start}, {end})")
    if end > reader.size:
        raise TruncatedError(f"bytes [{start}, {end}) lie past the end at {reader.size}", path=reader.name)


def read_at(fd: int, out: Buffer | NDArray[Any], offset: int) -> int:
    """Fill `out` from `offset` of a file on; how many bytes came, fewer only where the file ends.

    One call of the system gives at most 2 GiB, and less whenever it likes.
    """
    view = byte_view(out)
    done = 0
    while done < view.nbytes:
        count = system.read_into(fd, view[done:], offset + done)
        if not count:
            break
        done += count
    return done


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
        """A view of the bytes [start, end) if they lie in a cache on this machine."""
        return resident(self._reader, self._offset + start, self._offset + end)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Bring ranges into the cache of the reader behind it, if there is one."""
        prefetch(self._reader, [(self._offset + start, self._offset + end) for start, end in ranges])

    def close(self) -> None:
        """The reader behind it stays open."""


def read_into(reader: RangeReader, start: int, out: memoryview) -> None:
    """Fill `out` with the bytes from `start` on; a reader of files does it without a copy in between."""
    ask = getattr(reader, "read_into", None)
    if ask is None:
        out[:] = reader.read(start, start + out.nbytes)
    else:
        ask(start, out)


def resident(reader: RangeReader, start: int, end: int) -> memoryview | None:
    """A view of bytes that come from elsewhere, if all of them lie in a cache on this machine; else None."""
    ask = getattr(reader, "resident", None)
    found: memoryview | None = None if ask is None else ask(start, end)
    return found


def drop_cached(reader: RangeReader, start: int, end: int) -> bool:
    """Forget copies of the bytes [start, end) on this machine; False if there are none and reading again is useless."""
    drop = getattr(reader, "drop_cached", None)
    return bool(drop is not None and drop(start, end))


def prefetch(reader: RangeReader, ranges: Sequence[Range]) -> None:
    """Bring ranges, all at the same time, to where the next read costs nothing, if there is such a place."""
    ask = getattr(reader, "prefetch", None)
    if ask is not None and ranges:
        ask(ranges)


class JoinedRangeReader:
    """The bytes of several readers, one after the other."""

    def __init__(self, parts: Sequence[RangeReader], name: str) -> None:
        self._parts = list(parts)
        self._starts = [0, *itertools.accumulate(part.size for part in self._parts)]
        self.size = self._starts[-1]
        self.name = name

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end); copied where they lie in more than one part."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range; every part is asked once for all it has of them."""
        pieces: list[list[memoryview]] = [[] for _ in ranges]
        for start, end in ranges:
            check_range(self, start, end)
        for begin, part in zip(self._starts, self._parts, strict=False):
            cut = [(max(start - begin, 0), min(end - begin, part.size)) for start, end in ranges]
            wanted = [number for number, (low, high) in enumerate(cut) if low < high]
            found = part.read_many([cut[number] for number in wanted]) if wanted else []
            for number, piece in zip(wanted, found, strict=True):
                pieces[number].append(piece)
        return [each[0] if len(each) == 1 else memoryview(b"".join(each)) for each in pieces]

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

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        check_range(self, start, end)
        if end - start >= _FAR_PAGE_BYTES or start == end:
            return self._reader.read(start, end)
        first, last = start // _FAR_PAGE_BYTES, (end - 1) // _FAR_PAGE_BYTES
        found = [self._page(number) for number in range(first, last + 1)]
        data = found[0] if first == last else memoryview(b"".join(found))
        return data[start - first * _FAR_PAGE_BYTES : end - first * _FAR_PAGE_BYTES]

    def _page(self, number: int) -> memoryview:
        # Two threads may both fetch a page; what they keep is the same.
        found = self._pages.get(number)
        if found is None:
            start = number * _FAR_PAGE_BYTES
            found = self._reader.read(start, min(start + _FAR_PAGE_BYTES, self.size))
            self._pages[number] = found
            while len(self._pages) > _FAR_PAGES:
                with contextlib.suppress(KeyError):
                    self._pages.popitem(last=False)
        return found

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range: those whose pages are here from there, the others in one go."""
        near = [
            end - start < _FAR_PAGE_BYTES and start // _FAR_PAGE_BYTES in self._pages for start, end in ranges
        ]
        far = iter(
            self._reader.read_many([each for each, is_near in zip(ranges, near, strict=True) if not is_near])
        )
        return [
            self.read(*each) if is_near else next(far) for each, is_near in zip(ranges, near, strict=True)
        ]

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget the pages in memory, and copies of the bytes [start, end) below."""
        self._pages.clear()
        drop_cached(self._reader, start, end)
        return True

    def close(self) -> None:
        """Close what it reads from."""
        self._pages.clear()
        self._reader.close()


class FileRangeReader:
    """Ranges of a local file through positioned reads: safe for files that another process may cut."""

    _fd = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._fd, self.size = _open_file(self.name)

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end), copied out of the file."""
        return self._read_from(self._fd, start, end)

    def _read_from(self, fd: int, start: int, end: int) -> memoryview:
        check_range(self, start, end)
        pieces: list[bytes] = []
        position = start
        while position < end:
            try:
                piece = system.read_some(fd, end - position, position)
            except OSError as error:
                raise _unreadable(error, self.name) from None
            if not piece:
                raise TruncatedError(f"the file now ends at {position}, before {end}", path=self.name)
            pieces.append(piece)
            position += len(piece)
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, near ones in one read."""
        return read_coalesced(self, ranges)

    def read_into(self, start: int, out: memoryview) -> None:
        """Exactly the bytes from `start` on that fill `out`, without memory of their own."""
        self._fill_from(self._fd, start, out)

    def _fill_from(self, fd: int, start: int, out: memoryview) -> None:
        check_range(self, start, start + out.nbytes)
        while out.nbytes:
            try:
                count = system.read_into(fd, out, start)
            except OSError as error:
                raise _unreadable(error, self.name) from None
            if not count:
                raise TruncatedError(
                    f"the file now ends at {start}, {out.nbytes} bytes too soon", path=self.name
                )
            start, out = start + count, out[count:]

    def stat(self) -> os.stat_result:
        """What the system says of the file that is open, whatever has its name by now."""
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise _unreadable(error, self.name) from None

    def twin(self) -> FileRangeReader:
        """Another reader of the file that is open, whatever has its name by now."""
        other = FileRangeReader.__new__(FileRangeReader)
        other.name, other.size = self.name, self.size
        try:
            other._fd = os.dup(self._fd)
        except OSError as error:
            raise StoreError(f"cannot open again ({error.strerror})", path=self.name) from None
        return other

    def follow(self) -> None:
        """See what this process appended to the file since it was opened."""
        self.size = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At the very end of the interpreter modules are gone, and the system closes the file.
        # What is collected with it may close it after this.
        if self._fd >= 0 and os is not None:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __reduce__(self) -> tuple[type[FileRangeReader], tuple[str]]:
        return (FileRangeReader, (self.name,))


class FileStamp(NamedTuple):
    """What is another one as soon as a file's bytes may be others."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, fd: int) -> FileStamp:
        """The stamp of an open file."""
        return cls._made(os.fstat(fd))

    @classmethod
    def of_path(cls, path: str | os.PathLike[str]) -> FileStamp:
        """The stamp of the file of this name now."""
        return cls._made(os.stat(path))

    @classmethod
    def _made(cls, found: os.stat_result) -> FileStamp:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class MmapRangeReader(Reopens):
    """Ranges of a local file as views of a memory mapping: no copy, pages come as they are touched."""

    is_local = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        fd, self.size = _open_file(self.name)
        try:
            self.stamp = FileStamp.of(fd)
            self._view = _mapped(fd, self.size, self.name)
        finally:
            os.close(fd)

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end) as a view of the mapping."""
        check_range(self, start, end)
        self.check_not_truncated()
        return self._view[start:end]

    def check_not_truncated(self) -> None:
        """Raise TruncatedError if the file was cut since it was mapped: touching lost pages would end the process."""
        try:
            stamp = FileStamp.of_path(self.name)
        except OSError:
            return  # without its name the mapped file stays as it is
        if stamp[:2] == self.stamp[:2]:
            _check_size(stamp.size, self.size, self.name)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range as views of the mapping."""
        return [self.read(start, end) for start, end in ranges]

    def close(self) -> None:
        """Drop the mapping once no view of it is left."""
        self._view = memoryview(b"")
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OPEN_FILES = OpenFiles()


class LocalRangeReader(FileRangeReader):
    """Ranges of a local file: small ones by one positioned read, large ones as views of a mapping.

    Where very many are open, its descriptor is closed to make room for others, and opened when it is read again.
    """

    is_local = True
    _view: memoryview | None = None
    _stamp: FileStamp | None = None
    """Of the file whose descriptor was closed to make room."""
    _claim: Claim | None = None
    """To a descriptor that others may close; no claim is needed to one that they may not."""
    _put_off: tuple[int, ...] = ()
    """Descriptors that a thread was reading from when they were to be closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._fd, self.size = _open_file(self.name)
        if self._fd >= OPEN_FILES.low:
            self._reading: list[None] = []
            self._claim = OPEN_FILES.add(self._fd, self)

    @classmethod
    def of_file(cls, file: io.RawIOBase | io.BufferedIOBase) -> LocalRangeReader:
        """The bytes of a file that is open already; its position does not matter and does not change."""
        if file.writable():
            file.flush()
        reader = cls.__new__(cls)
        name = getattr(file, "name", None)
        reader.name = name if isinstance(name, str) else "<open file>"
        reader._fd = os.dup(file.fileno())
        reader.size = _regular_size(reader._fd, reader.name)
        return reader

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end): a copy below 64 KiB, else a view of the mapping."""
        count = end - start
        if count > COPY_BELOW_BYTES:
            return self.view(start, end)
        if self._claim is None:
            try:
                if (
                    0 <= start <= end <= self.size
                    and len(piece := system.read_little(self._fd, count, start)) == count
                ):
                    return memoryview(piece)
            except OSError as error:
                raise _unreadable(error, self.name) from None
            return self._read_from(self._fd, start, end)
        with self._descriptor() as fd:
            return self._read_from(fd, start, end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return [self.read(start, end) for start, end in ranges]

    def read_into(self, start: int, out: memoryview) -> None:
        """Exactly the bytes from `start` on that fill `out`, without memory of their own."""
        with self._descriptor() as fd:
            self._fill_from(fd, start, out)

    def view(self, start: int, end: int) -> memoryview:
        """The bytes [start, end) as a view of the mapping, however few they are."""
        check_range(self, start, end)
        view = self._view
        if view is None:
            with self._descriptor() as fd:
                view = self._view = _mapped(fd, self.size, self.name)
        else:
            self.check_not_truncated()
        return view[start:end]

    def check_not_truncated(self) -> None:
        """Raise TruncatedError if the file was cut since it was opened: touching lost pages would end the process."""
        if self._claim is None:
            _check_size(os.fstat(self._fd).st_size, self.size, self.name)
            return
        with self._descriptor() as fd:
            _check_size(os.fstat(fd).st_size, self.size, self.name)

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        """The descriptor, which stays open at least for as long as the block runs."""
        if self._claim is None:
            yield self._fd
            return
        reading = self._reading
        reading.append(None)
        try:
            fd = self._fd
            yield fd if fd >= 0 else self._opened()
        finally:
            reading.pop()

    def _opened(self) -> int:
        """Open the file again after its descriptor was closed to make room; it must still be the same one."""
        with OPEN_FILES.lock:
            if self._fd < 0 and self._put_off:
                *rest, self._fd = self._put_off
                self._put_off = tuple(rest)
                self._claim = OPEN_FILES.add(self._fd, self)
            elif self._fd < 0:
                if self._stamp is None:
                    raise StoreError("the file is closed", path=self.name)
                fd, _ = _open_file(self.name)
                if FileStamp.of(fd)[:4] != self._stamp[:4]:  # a new link or mode is no other file
                    os.close(fd)
                    raise BlobChangedError("it was replaced since it was opened", path=self.name)
                self._fd = fd
                self._claim = OPEN_FILES.add(fd, self)
            return self._fd

    def let_go(self) -> None:
        """Close the descriptor to make room for others, now or when nobody reads from it any more."""
        fd, self._stamp = self._fd, FileStamp.of(self._fd)
        self._fd = -1
        # Whoever reads says so before he looks which descriptor there is.
        if self._reading:
            self._put_off += (fd,)
        else:
            os.close(fd)

    def close(self) -> None:
        """Close the file, and drop the mapping once no view of it is left."""
        with OPEN_FILES.lock:
            self._close_descriptors()
            self._view = self._stamp = None
            self._claim, self._reading = [], []

    def _close_descriptors(self) -> None:
        if self._claim is None or OPEN_FILES.take_back(self._fd, self._claim):
            super().close()
        late, self._put_off = self._put_off, ()
        for fd in late:
            os.close(fd)

    def __del__(self) -> None:
        if self._claim is None:
            super().__del__()
        elif os is not None:
            self._close_descriptors()

    def __reduce__(self) -> tuple[type[FileRangeReader], tuple[str]]:
        return (LocalRangeReader, (self.name,))


def _mapped(fd: int, size: int, name: str) -> memoryview:
    _check_size(os.fstat(fd).st_size, size, name)
    try:
        return system.map_to_read(fd, size)
    except OSError as error:
        raise StoreError(f"cannot be mapped into memory ({error.strerror})", path=name) from None


def _check_size(actual: int, expected: int, name: str) -> None:
    if actual < expected:
        raise TruncatedError(f"the file was truncated: expected {expected} bytes, got {actual}", path=name)


def check_not_truncated(reader: RangeReader) -> None:
    """Raise TruncatedError if a mapped file was cut since it was opened; other readers notice when they read."""
    check = getattr(reader, "check_not_truncated", None)
    if check is not None:
        check()


def total_bytes(ranges: Iterable[Range]) -> int:
    """How many bytes the ranges ask for together."""
    return sum(end - start for start, end in ranges)


_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def kind_of_file(mode: int) -> str:
    """What stands at a path where a regular file was expected, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def check_regular(path: str | os.PathLike[str]) -> None:
    """StoreError where a pipe, a device or the like is at this path: opening it could wait for ever.

    What is not there, or may not be looked at, is left to whoever opens it.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise _not_regular(mode, path)


def open_source(source: object) -> RangeReader:
    """A reader over whatever bytes a caller has: a path, bytes, a binary file that is open, or a reader."""
    if isinstance(source, str | os.PathLike):
        return LocalRangeReader(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return BytesRangeReader(source)
    if isinstance(source, io.BytesIO):
        return BytesRangeReader(source.getvalue(), "<BytesIO>")
    if isinstance(source, io.RawIOBase | io.BufferedIOBase) and _has_descriptor(source):
        return LocalRangeReader.of_file(source)
    if isinstance(source, RangeReader):
        return source
    raise TypeError(
        f"bytes come from a path, a bytes object, a file opened in binary mode or a RangeReader, "
        f"not from {type(source).__name__}"
    )


def _has_descriptor(file: io.RawIOBase | io.BufferedIOBase) -> bool:
    try:
        return file.fileno() >= 0
    except (OSError, ValueError):
        return False


def _open_file(path: str) -> tuple[int, int]:
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such file", path=path) from None
    except PermissionError:
        raise PermissionError_("this file may not be read", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot open ({error.strerror})", path=path) from None
    except ValueError:
        raise ValueError(f"invalid path {path!r:.80}: it contains a NUL byte") from None
    return fd, _regular_size(fd, path)


def _not_regular(mode: int, path: str | os.PathLike[str]) -> StoreError:
    hint = "Name a regular file, or a link to one."
    return StoreError(f"not a regular file but {kind_of_file(mode)}", path=path, hint=hint)


def _unreadable(error: OSError, path: str) -> StoreError:
    """The error for a disk that fails, or a file on a network that is gone."""
    return StoreError(f"cannot read ({error.strerror})", path=path)


def _regular_size(fd: int, path: str) -> int:
    """The size of an open regular file; anything else is closed and refused."""
    try:
        found = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise _unreadable(error, path) from None
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise _not_regular(found.st_mode, path)
    return found.st_size
