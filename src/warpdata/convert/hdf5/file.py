"""HDF5 files, read by slice and written in order. The adapter of h5py."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.io.commit import commit_file, map_os_errors
from warpdata.bytekit.io.ranges import RangeFile, RangeReader
from warpdata.bytekit.process.forks import run_in_child
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.stepped import Rows
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
    UnsupportedDtypeError,
)

if TYPE_CHECKING:
    from typing import Self

MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_CHUNK_BYTES = 1 << 30
MAX_DEPTH = 32
MAX_MEMBERS = 1 << 22
_KEPT_GROUPS = 256
_FOREIGN = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)
"""What h5py raises over bytes that are wrong."""


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError.for_extra("h5py", "hdf5") from None
    return h5py


class Contents(NamedTuple):
    """What lies below a group, by paths relative to it."""

    shapes: dict[str, tuple[int, ...]]
    attributes: dict[str, dict[str, Any]]
    """Of the group itself (""), of its arrays and of groups that hold any; those without attributes are left out."""


def _above(path: str) -> list[str]:
    """The groups that a path goes through."""
    pieces = path.split("/")[:-1]
    return ["/".join(pieces[: length + 1]) for length in range(len(pieces))]


class Hdf5File:
    """An HDF5 file open for reading; opened again in another process."""

    def __init__(self, source: str | os.PathLike[str] | RangeReader) -> None:
        self.source = os.path.abspath(source) if isinstance(source, str | os.PathLike) else source
        self.name = self.source if isinstance(self.source, str) else self.source.name
        self._file: Any = None
        self._groups: dict[str, Any] = {}
        """Groups that were gone through, checked; they hold no values."""
        self._arrays: dict[str, Any] = {}
        """The arrays of the last group whose contents were asked for: whoever asks opens them next."""
        self._check_magic()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """In a forked child: the handle is the parent's, so it is left alone and opened anew."""
        handle, self._file = self._file, None
        if handle is not None:
            _LEFT_TO_PARENT.append((handle, self._groups, self._arrays))
        self._groups, self._arrays = {}, {}

    def _check_magic(self) -> None:
        if isinstance(self.source, str):
            if not os.path.isfile(self.source):
                raise BlobNotFoundError("no such file", path=self.source)
            with open(self.source, "rb") as file:
                head = file.read(len(MAGIC))
        else:
            head = bytes(self.source.read(0, min(len(MAGIC), self.source.size)))
        if head != MAGIC:
            if MAGIC.startswith(head):
                raise TruncatedError("the file ends before its contents do", path=self.name)
            raise BadMagicError("not an HDF5 file", path=self.name)

    @property
    def handle(self) -> Any:
        """The file as h5py has it, opened when first asked for."""
        if self._file is None:
            h5py = _h5py()
            with reading(self.name):
                place = self.source if isinstance(self.source, str) else RangeFile(self.source)
                self._file = h5py.File(place, "r")
            weakref.finalize(self, _close, self._file).atexit = False
        return self._file

    def names(self, path: str = "/") -> list[str]:
        """The names inside a group."""
        with reading(self.name, path):
            group = self._at(path)
            if not isinstance(group, _h5py().Group):
                raise CorruptLayoutError(f"{path!r} is no group", path=self.name)
            if len(group) > MAX_MEMBERS:
                raise LimitExceededError(f"{len(group)} members in {path!r}", path=self.name)
            return list(group)

    def has(self, path: str) -> bool:
        """Whether there is a group or an array at a path."""
        with reading(self.name, path):
            return path in self.handle

    def is_group(self, path: str) -> bool:
        """Whether there is a group at a path."""
        with reading(self.name, path):
            return path in self.handle and isinstance(self._at(path), _h5py().Group)

    def is_empty(self, path: str) -> bool:
        """Whether an array has a type only and no values."""
        with reading(self.name, path):
            return getattr(self._at(path), "shape", ()) is None

    def attributes(self, path: str) -> dict[str, Any]:
        """The attributes of a group or an array, as JSON can keep them."""
        with reading(self.name, path):
            return self._attributes_of(self._at(path), path)

    def _attributes_of(self, item: Any, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        h5py = _h5py()
        for key, value in item.attrs.items():
            name = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
            if isinstance(value, h5py.Empty):
                found[name] = {"__empty__": value.dtype.str}
                continue
            try:
                found[name] = packed(value)
            except TypeError:
                raise UnsupportedDtypeError(
                    f"attribute {name!r} of {path!r} holds what cannot be kept", path=self.name
                ) from None
        return found

    def arrays(self, path: str) -> list[str]:
        """The paths of all arrays below a group, relative to it; links that leave the file are refused."""
        with reading(self.name, path):
            return [found for found, _ in self._walk(self._at(path), "", 0, count())]

    def contents(self, path: str) -> Contents:
        """All arrays below a group with their shapes, and all attributes, in one walk."""
        with reading(self.name, path):
            top = self._at(path)
            self._arrays = {}
            shapes: dict[str, tuple[int, ...]] = {}
            attributes: dict[str, dict[str, Any]] = {}
            for found, item in self._walk(top, "", 0, count()):
                self._check_values(item, f"{path}/{found}")
                self._arrays[f"/{path.strip('/')}/{found}"] = item
                shapes[found] = tuple(int(size) for size in item.shape)
                attributes[found] = self._attributes_of(item, f"{path}/{found}")
            for group in {above for found in shapes for above in _above(found)}:
                attributes[group] = self._attributes_of(self._at(f"{path}/{group}"), f"{path}/{group}")
            named = {name: each for name, each in sorted(attributes.items()) if each}
            return Contents(shapes, {"": self._attributes_of(top, path), **named})

    def _walk(self, group: Any, prefix: str, depth: int, counted: Iterator[int]) -> Iterator[tuple[str, Any]]:
        h5py = _h5py()
        if depth > MAX_DEPTH:
            raise LimitExceededError("groups nested too deeply, or inside themselves", path=self.name)
        for name in group:
            if next(counted) >= MAX_MEMBERS:
                raise LimitExceededError("too many arrays", path=self.name)
            self._check_link(group, name)
            item = group[name]
            if isinstance(item, h5py.Group):
                yield from self._walk(item, f"{prefix}{name}/", depth + 1, counted)
            elif isinstance(item, h5py.Dataset) and item.shape is not None:  # h5py.Empty holds no values
                yield f"{prefix}{name}", item

    def _check_link(self, group: Any, name: str) -> None:
        if isinstance(group.get(name, getlink=True), _h5py().ExternalLink):
            raise CorruptLayoutError(
                f"{group.name.rstrip('/')}/{name} is a link to another file, which is not followed",
                path=self.name,
                hint="Copy the data into one file (`h5repack`) and read that.",
            )

    def rows(self, path: str) -> Hdf5Rows:
        """An array by rows."""
        return Hdf5Rows(self, path)

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of an array."""
        with reading(self.name, path):
            return tuple(int(size) for size in self.dataset(path).shape)

    def whole(self, path: str, max_bytes: int = 16 << 20) -> Any:
        """A small array, or a single value, as numpy has it."""
        with reading(self.name, path):
            dataset = self.dataset(path)
            if dataset.size * max(1, dataset.dtype.itemsize) > max_bytes:
                raise LimitExceededError(f"{path!r} is larger than metadata can be", path=self.name)
            return dataset[()]

    def dataset(self, path: str) -> Any:
        """An array as h5py has it, checked: its bytes lie in this file and no chunk is absurd."""
        found = self._at(path)
        if not isinstance(found, _h5py().Dataset):
            raise CorruptLayoutError(f"{path!r} is no array", path=self.name)
        self._check_values(found, path)
        return found

    def _check_values(self, found: Any, path: str) -> None:
        if found.external or found.is_virtual:
            raise CorruptLayoutError(f"the values of {path!r} lie in another file", path=self.name)
        if found.chunks is not None:
            size = int(np.prod(found.chunks, dtype=object)) * found.dtype.itemsize
            if size > MAX_CHUNK_BYTES:
                raise LimitExceededError(f"{path!r} has chunks of {size} bytes", path=self.name)

    def _at(self, path: str) -> Any:
        group, walked = self.handle, ""
        for part in filter(None, path.split("/")):
            walked = f"{walked}/{part}"
            known = self._groups.get(walked)
            if known is None:
                known = self._arrays.get(walked)
            if known is None:
                if part not in group:
                    raise CorruptLayoutError(f"there is no {path!r} in the file", path=self.name)
                self._check_link(group, part)
                known = group[part]
                if isinstance(known, _h5py().Group):
                    self._keep(walked, known)
            group = known
        return group

    def _keep(self, path: str, group: Any) -> None:
        if len(self._groups) >= _KEPT_GROUPS:
            del self._groups[next(iter(self._groups))]
        self._groups[path] = group

    def close(self) -> None:
        """Close the file."""
        handle, self._file = self._file, None
        self._groups, self._arrays = {}, {}
        if handle is not None:
            _close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Hdf5File, (self.source,))


_LEFT_TO_PARENT: list[Any] = []
"""Handles a forked child must not close: they are not its own."""


def _close(handle: Any) -> None:
    with contextlib.suppress(Exception):  # nothing was written, so nothing can be lost
        handle.close()


@contextlib.contextmanager
def reading(name: str, where: str = "") -> Iterator[None]:
    """Turn h5py's errors about a file into ours."""
    place = f"{where!r} " if where and where != "/" else ""
    try:
        yield
    except (
        CorruptLayoutError,
        LimitExceededError,
        UnsupportedDtypeError,
        BlobNotFoundError,
        MissingExtraError,
    ):
        raise
    except _FOREIGN as error:
        text = str(error) or type(error).__name__
        if "truncated file" in text:
            raise TruncatedError("the HDF5 file is cut", path=name) from None
        raise CorruptLayoutError(f"{place}cannot be read ({text[:200]})", path=name) from None


class Hdf5Rows(Rows):
    """An array of an HDF5 file by rows; numbers, text or byte strings."""

    def __init__(self, file: Hdf5File, path: str) -> None:
        self._owner = file
        self._path = path
        self._open: tuple[Any, Any] | None = None
        with reading(file.name, path):
            found = file.dataset(path)
            if not found.shape:
                raise CorruptLayoutError(f"{path!r} is a single value, not rows", path=file.name)
            self.count, self.row_shape = int(found.shape[0]), tuple(int(size) for size in found.shape[1:])
            self.dtype, self.kind = _numpy_type(found, file.name, path)
            self._open = (file.handle, found)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), and nothing else of the file."""
        with reading(self._owner.name, self._path):
            found = self._dataset()[start:stop]
        if len(found) != stop - start:
            raise TruncatedError(f"{self._path!r} has fewer rows than it says", path=self._owner.name)
        if self.kind == "text":
            return _texts(found, self._path, self._owner.name)
        if self.kind == "bytes":
            out = np.empty(len(found), object)
            out[:] = [each.tobytes() if isinstance(each, np.ndarray) else bytes(each) for each in found]
            return out
        return np.asarray(found, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Hdf5Rows, (self._owner, self._path))

    def _dataset(self) -> Any:
        handle = self._owner.handle
        if self._open is None or self._open[0] is not handle:
            self._open = (handle, self._owner.dataset(self._path))
        return self._open[1]


def _numpy_type(found: Any, name: str, path: str) -> tuple[np.dtype[Any], Any]:
    h5py = _h5py()
    dtype = found.dtype
    text = h5py.check_string_dtype(dtype)
    inner = h5py.check_vlen_dtype(dtype)
    if text is not None or (inner is not None and np.dtype(inner) == np.uint8):
        if found.ndim != 1:
            raise UnsupportedDtypeError(f"{path!r} holds tables of text or bytes", path=name)
        return np.dtype(object), "text" if text is not None else "bytes"
    base = h5py.check_enum_dtype(dtype)
    try:
        return dtype_of(dtype.newbyteorder("<")).dtype, None
    except ValueError:
        fact = f"{path!r} holds {dtype}" if base is None else f"{path!r} holds names of {dtype}"
        raise UnsupportedDtypeError(fact, path=name, hint="Leave it out with a mapping.") from None


def _texts(found: Any, path: str, name: str) -> NDArray[Any]:
    out = np.empty(len(found), object)
    try:
        out[:] = [each.decode() if isinstance(each, bytes) else str(each) for each in found]
    except UnicodeDecodeError:
        raise CorruptLayoutError(f"{path!r} holds text that is not UTF-8", path=name) from None
    return out


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[Hdf5Out]:
    """A new HDF5 file that appears whole or not at all; what is there already is not overwritten."""
    h5py = _h5py()
    with commit_file(path, replace=False, durable=durable) as new, map_os_errors(path):
        with os.fdopen(os.dup(new.fd), "w+b", buffering=0) as place, h5py.File(place, "w") as file:
            yield Hdf5Out(file)
        new.position = os.fstat(new.fd).st_size


class Hdf5Out:
    """An HDF5 file being written."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def attribute(self, path: str, name: str, value: Any) -> None:
        """Set an attribute of a group or an array, as `Hdf5File.attributes` gave it or as numpy has it."""
        target = self._file.require_group(path) if path not in self._file else self._file[path]
        if isinstance(value, Mapping) and "__empty__" in value:
            target.attrs[name] = _h5py().Empty(np.dtype(value["__empty__"]))
            return
        plain = unpacked(value)
        if isinstance(plain, np.ndarray) and plain.dtype == object:
            target.attrs.create(name, plain, dtype=_h5py().string_dtype())
            return
        target.attrs[name] = plain

    def take(self, path: str | os.PathLike[str], group: str, target: str) -> None:
        """Copy a group out of another file: its arrays as they are stored there."""
        above, _, name = target.rpartition("/")
        with _h5py().File(path, "r") as other:
            other.copy(group, self._file.require_group(above) if above else self._file, name=name)

    def group(self, path: str) -> None:
        """Make a group, where there is none."""
        self._file.require_group(path)

    def array(self, path: str, values: Any) -> None:
        """Write a small array at once."""
        self._file.create_dataset(path, data=values)

    def stream(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: Any,
        blocks: Iterator[NDArray[Any]],
        *,
        compression: str | None = None,
        chunks: Any = None,
        is_text: bool = False,
        is_bytes: bool = False,
    ) -> None:
        """Write an array block by block."""
        h5py = _h5py()
        kind = h5py.string_dtype() if is_text else h5py.vlen_dtype(np.uint8) if is_bytes else dtype
        options: dict[str, Any] = {}
        if compression is not None and shape[0]:
            options = {"compression": compression, "chunks": chunks or True}
        elif chunks is not None and shape[0]:
            options = {"chunks": chunks}
        target = self._file.create_dataset(path, shape=shape, dtype=kind, **options)
        at = 0
        for block in blocks:
            if is_bytes:
                for offset, value in enumerate(block):
                    target[at + offset] = np.frombuffer(value, np.uint8)
            else:
                target[at : at + len(block)] = block
            at += len(block)
        if at != shape[0]:
            raise CorruptLayoutError(f"{path!r} got {at} rows of {shape[0]}")
