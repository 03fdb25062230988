"""Ranges of local files, with a bounded number of open descriptors."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import stat
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.io.ranges import (
    BytesRangeReader,
    Closing,
    Range,
    RangeReader,
    check_range,
    read_coalesced,
)
from warpdata.bytekit.process import system
from warpdata.errors import BlobChangedError, BlobNotFoundError, PermissionError_, StoreError, TruncatedError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer


T = TypeVar("T")

MOST_OPEN = 512
SHARE_OF_ALLOWED = 3, 8
"""How much they may take of what the system allows: decoders, caches and the user's own files need the rest."""


class _Descriptor:
    """A descriptor that closes with the last reference to it; a thread that reads holds one."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class OpenFiles:
    """Readers with descriptors of higher numbers; beyond the most that may be open, those opened first close theirs."""

    def __init__(self, most_open: int | None = None, low: int | None = None) -> None:
        part, whole = SHARE_OF_ALLOWED
        half = min(MOST_OPEN, system.allowed_descriptors() * part // whole) // 2
        self.low = half if low is None else low
        """Descriptors below this number need not be added."""
        self.most_open = half if most_open is None else most_open
        self._numbers = itertools.count()
        self._readers: dict[int, weakref.ref[LocalRangeReader]] = {}

    def add(self, reader: LocalRangeReader) -> int:
        """Register a reader whose file is open; returns the number to remove it by."""
        number = next(self._numbers)
        self._readers[number] = weakref.ref(reader, lambda _: self.remove(number))
        if len(self._readers) > self.most_open:
            for older in list(self._readers)[: -self.most_open]:
                known = self._readers.pop(older, None)
                if known is not None and (other := known()) is not None:
                    other.release()
        return number

    def remove(self, number: int) -> None:
        """Forget a reader that was closed."""
        self._readers.pop(number, None)


COPY_BELOW_BYTES = 64 << 10
"""Copying this much is quicker than faulting in its pages."""


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


class FileRangeReader(Closing):
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
        out = np.empty(end - start, np.uint8).data
        self._fill_from(fd, start, out)
        return out.toreadonly()

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, near ones in one read."""
        return read_coalesced(self, ranges)

    def read_into(self, start: int, out: memoryview) -> None:
        """Exactly the bytes from `start` on that fill `out`, without memory of their own."""
        self._fill_from(self._fd, start, out)

    def will_read(self, start: int, end: int) -> None:
        """Advise the system to read these bytes soon."""
        with contextlib.suppress(OSError):  # reading them reports it
            self._with_fd(lambda fd: system.will_read(fd, start, end - start))

    def _with_fd(self, call: Callable[[int], T]) -> T:
        """Return `call(descriptor)`, which stays open meanwhile."""
        return call(self._fd)

    def _fill_from(self, fd: int, start: int, out: memoryview) -> None:
        check_range(self, start, start + out.nbytes)
        try:
            count = read_at(fd, out, start)
        except OSError as error:
            raise _unreadable(error, self.name) from None
        if count < out.nbytes:
            raise TruncatedError(
                f"the file now ends at {start + count}, before {start + out.nbytes}", path=self.name
            )

    def stat(self) -> os.stat_result:
        """The status of the open file, even if its name belongs to another file now."""
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise _unreadable(error, self.name) from None

    def twin(self) -> FileRangeReader:
        """Another reader of the open file, even if its name belongs to another file now."""
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

    def __del__(self) -> None:
        # At the very end of the interpreter modules are gone, and the system closes the file.
        # What is collected with it may close it after this.
        if self._fd >= 0 and os is not None:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __reduce__(self) -> tuple[type[FileRangeReader], tuple[str]]:
        return (type(self), (self.name,))


class FileStamp(NamedTuple):
    """What is another one as soon as a file's bytes may be others."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, file: int | str | os.PathLike[str]) -> FileStamp:
        """The stamp of an open file, or of the one that has a name now."""
        status = os.stat(file)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


OPEN_FILES = OpenFiles()


class LocalRangeReader(FileRangeReader):
    """Ranges of a local file: small ones by one positioned read, large ones as views of a mapping.

    Where very many are open, its descriptor is closed to make room for others, and opened when it is read again.
    """

    is_local = True
    copied_bytes = COPY_BELOW_BYTES
    _is_own = True
    """Whether no other descriptor shares the position of this one."""
    _view: memoryview | None = None
    _shared: _Descriptor | None = None
    """The descriptor, if it may be closed to make room; `_fd` is not used then."""
    _stamp: FileStamp | None = None
    """Of the file whose descriptor was closed to make room."""
    _number = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._fd, self.size = _open_file(self.name)
        if self._fd >= OPEN_FILES.low:
            fd, self._fd = self._fd, -1
            self._share(fd)

    @classmethod
    def of_file(cls, file: io.RawIOBase | io.BufferedIOBase) -> LocalRangeReader:
        """The bytes of a file that is open already; its position does not matter and does not change."""
        if file.writable():
            file.flush()
        reader = cls.__new__(cls)
        name = getattr(file, "name", None)
        reader.name = name if isinstance(name, str) else "<open file>"
        reader._fd, reader._is_own = os.dup(file.fileno()), False
        reader.size = _regular_size(reader._fd, reader.name)
        return reader

    @property
    def stamp(self) -> FileStamp:
        """The stamp of the open file."""
        return self._with_fd(FileStamp.of)

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end): a copy of at most `copied_bytes`, else a view of the mapping."""
        count = end - start
        if count > self.copied_bytes:
            return self.view(start, end)
        if self._fd < 0:
            held = self._hold()
            return self._read_from(held.fd, start, end)
        try:
            if 0 <= start <= end <= self.size:
                piece = system.read_little(self._fd, count, start)
                if len(piece) == count:
                    return memoryview(piece)
        except OSError as error:
            raise _unreadable(error, self.name) from None
        return self._read_from(self._fd, start, end)

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return [self.read(start, end) for start, end in ranges]

    def read_into(self, start: int, out: memoryview) -> None:
        """Exactly the bytes from `start` on that fill `out`, without memory of their own."""
        self._with_fd(lambda fd: self._fill_from(fd, start, out))

    def view(self, start: int, end: int) -> memoryview:
        """The bytes [start, end) as a view of the mapping, however few they are."""
        check_range(self, start, end)
        view = self._view
        if view is None:
            view = self._view = self._with_fd(lambda fd: _mapped(fd, self.size, self.name))
        else:
            self.check_not_truncated()
        return view[start:end]

    def check_not_truncated(self) -> None:
        """Raise TruncatedError if the file was cut since it was opened: touching lost pages would end the process."""
        if self._fd >= 0:
            # Quicker than asking for the status; of a file that the user opened it would move the position.
            size = system.size_by_seeking(self._fd) if self._is_own else os.fstat(self._fd).st_size
            if size < self.size:
                _check_size(os.fstat(self._fd).st_size, self.size, self.name)
            return
        with contextlib.suppress(BlobNotFoundError):  # a mapped file whose name is gone stays as it is
            self._with_fd(lambda fd: _check_size(os.fstat(fd).st_size, self.size, self.name))

    def _with_fd(self, call: Callable[[int], T]) -> T:
        if self._fd >= 0:
            return call(self._fd)
        held = self._hold()
        return call(held.fd)

    def _hold(self) -> _Descriptor:
        """The shared descriptor; the file is opened again if need be, and must still be the same one."""
        held = self._shared
        if held is None:
            if self._stamp is None:
                raise StoreError("the file is closed", path=self.name)
            fd, _ = _open_file(self.name)
            if FileStamp.of(fd)[:4] != self._stamp[:4]:  # a new link or mode is no other file
                os.close(fd)
                raise BlobChangedError("the blob was replaced since it was opened", path=self.name)
            held = self._share(fd)
        return held

    def _share(self, fd: int) -> _Descriptor:
        held = self._shared = _Descriptor(fd)
        OPEN_FILES.remove(self._number)  # of a thread that opened the file at the same time
        self._number = OPEN_FILES.add(self)
        return held

    def release(self) -> None:
        """Close the descriptor to make room for others, now or after the running reads."""
        held = self._shared
        if held is not None:
            self._stamp = FileStamp.of(held.fd)
            self._shared = None

    def close(self) -> None:
        """Close the file, and drop the mapping once no view of it is left."""
        super().close()
        OPEN_FILES.remove(self._number)
        self._view = self._stamp = self._shared = None


class MmapRangeReader(LocalRangeReader):
    """Ranges of a local file as views of a memory mapping, small ones too: no copy, pages come as they are touched."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end) as a view of the mapping."""
        return self.view(start, end)


def _mapped(fd: int, size: int, name: str) -> memoryview:
    _check_size(os.fstat(fd).st_size, size, name)
    try:
        return system.map_to_read(fd, size)
    except OSError as error:
        raise StoreError(f"cannot be mapped into memory ({error.strerror})", path=name) from None


def _check_size(actual: int, expected: int, name: str) -> None:
    if actual < expected:
        raise TruncatedError(f"the file was truncated: expected {expected} bytes, got {actual}", path=name)


_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def kind_of_file(mode: int) -> str:
    """What stands at a path where a regular file was expected, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def check_regular(path: str | os.PathLike[str]) -> None:
    """StoreError where a pipe, a device or the like is at this path: opening it could wait for ever.

    A missing or unreadable path is left to the call that opens it.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise _not_regular(mode, path)


def open_source(source: object) -> RangeReader:
    """A reader over a source of bytes: a path, bytes, a binary file that is open, or a reader."""
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


def check_path(path: str | os.PathLike[str]) -> str:
    """The text of a path, or ValueError for one that no system has."""
    text = os.fspath(path)
    if "\0" in text:
        raise ValueError(f"invalid path {text!r:.80}: it contains a NUL byte") from None
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise ValueError(f"invalid path {text!r:.80}: no file name can contain {bad!r:.20}") from None
    return text


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path; ValueError where no file can have it."""
    return Path(os.path.abspath(check_path(path)))


def real_path(path: str | os.PathLike[str]) -> str:
    """The one name of a file, also where it was found through a link."""
    return os.path.realpath(check_path(path))


def _open_file(path: str) -> tuple[int, int]:
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise BlobNotFoundError("no such file", path=path) from None
    except PermissionError:
        raise PermissionError_("this file may not be read", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot open ({error.strerror})", path=path) from None
    except ValueError:
        check_path(path)
        raise
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
        status = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise _unreadable(error, path) from None
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _not_regular(status.st_mode, path)
    return status.st_size
