"""HDF5 files, read by slice and written in order. The adapter of h5py."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file, map_os_errors
from warpdata.bytekit.io.ranges import RangeFile, RangeReader
from warpdata.bytekit.process.forks import PerProcess
from warpdata.convert.place import Place, foreign_errors
from warpdata.convert.receipt import packed, unpacked
from warpdata.convert.stepped import Rows, numeric_type
from warpdata.convert.tables.mapping import ArrayFile, EpisodeSpan, FileMapping, by_number
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
    UnsupportedDtypeError,
)
from warpdata.timeline.meta import OBJECT, Kind, RowType
from warpdata.timeline.ragged import as_objects

MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_CHUNK_BYTES = 1 << 30
MAX_DEPTH = 32
MAX_MEMBERS = 1 << 22
ROW_SHAPE = "row_shape"
"""Attribute of an array of varying length: the shape of the rows, which are stored flat."""
_FOREIGN = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError),
    *(AttributeError, OverflowError, MemoryError),
)
"""Exceptions of h5py for damaged bytes."""


def load_h5py() -> Any:
    """The library, or MissingExtraError."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError.for_extra("h5py", "hdf5") from None
    return h5py


@contextlib.contextmanager
def _translated(name: str, path: str = "") -> Iterator[None]:
    where = f"{path!r} " if path.strip("/") else ""
    try:
        with foreign_errors(_FOREIGN, f"{where}cannot be read", name):
            yield
    except CorruptLayoutError as error:
        if "truncated file" in error.message:
            raise TruncatedError("the HDF5 file is truncated", path=name) from None
        raise


def _open_file(source: str | RangeReader, name: str) -> Any:
    with _translated(name):
        return load_h5py().File(source if isinstance(source, str) else RangeFile(source), "r")


class Hdf5File(ArrayFile):
    """An HDF5 file open for reading; every process opens it for itself."""

    def __init__(self, place: Place, name: str = "") -> None:
        """`name` is the file in a folder; empty if the place is the file."""
        reader = place.open(name)
        self.name = str(reader.name)
        head = bytes(reader.read(0, min(len(MAGIC), reader.size)))
        if head != MAGIC:
            if MAGIC.startswith(head):
                raise TruncatedError("the file ends before its contents do", path=self.name)
            raise BadMagicError("not an HDF5 file", path=self.name)
        source: str | RangeReader = reader
        if place.path is not None:
            reader.close()
            source = self.name
        self._handle = PerProcess(partial(_open_file, source, self.name))
        self._datasets: PerProcess[dict[str, Any]] = PerProcess(dict)
        """The arrays of the group that was listed last: they are opened next."""

    def _errors(self, path: str) -> contextlib.AbstractContextManager[None]:
        return _translated(self.name, path)

    def names(self, path: str = "/") -> list[str]:
        """The names inside a group."""
        with self._errors(path):
            group = self._at(path)
            if not isinstance(group, load_h5py().Group):
                raise CorruptLayoutError(f"{path!r} is not a group", path=self.name)
            if len(group) > MAX_MEMBERS:
                raise LimitExceededError(f"{len(group)} members in {path!r}", path=self.name)
            return list(group)

    def is_group(self, path: str) -> bool:
        """Whether there is a group at a path."""
        with self._errors(path):
            return path in self._handle() and isinstance(self._at(path), load_h5py().Group)

    def attributes(self, path: str) -> dict[str, Any]:
        """The attributes of a group or an array, as JSON can keep them."""
        h5py = load_h5py()
        attributes: dict[str, Any] = {}
        with self._errors(path):
            for key, value in self._at(path).attrs.items():
                name = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
                try:
                    is_empty = isinstance(value, h5py.Empty)
                    attributes[name] = {"__empty__": value.dtype.str} if is_empty else packed(value)
                except TypeError:
                    fact = f"attribute {name!r} of {path!r} holds a value that cannot be kept"
                    raise UnsupportedDtypeError(fact, path=self.name) from None
        return attributes

    def attributes_below(self, group: str, arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The attributes of a group (""), and of the arrays and groups inside that have any, by relative path."""
        paths = {"/".join(path.split("/")[:end]) for path in arrays for end in range(1, path.count("/") + 2)}
        below = {path: self.attributes(f"{group}/{path}") for path in sorted(paths)}
        return {"": self.attributes(group or "/"), **{path: each for path, each in below.items() if each}}

    def arrays(self, path: str) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays below a group, by relative path; arrays without values are left out."""
        datasets = self._datasets()
        datasets.clear()
        with self._errors(path):
            below = dict(self._walk(self._at(path), "", 0, iter(range(MAX_MEMBERS))))
            for relative, item in below.items():
                self._check_values(item, f"{path}/{relative}")
                datasets[f"/{path.strip('/')}/{relative}".replace("//", "/")] = item
            return {relative: tuple(map(int, item.shape)) for relative, item in below.items()}

    def _walk(self, group: Any, prefix: str, depth: int, budget: Iterator[int]) -> Iterator[tuple[str, Any]]:
        h5py = load_h5py()
        if depth > MAX_DEPTH:
            raise LimitExceededError("groups nested too deeply, or inside themselves", path=self.name)
        for name in group:
            if next(budget, None) is None:
                raise LimitExceededError("too many arrays", path=self.name)
            item = self._member(group, name)
            if isinstance(item, h5py.Group):
                yield from self._walk(item, f"{prefix}{name}/", depth + 1, budget)
            elif isinstance(item, h5py.Dataset) and item.shape is not None:
                yield f"{prefix}{name}", item

    def _member(self, group: Any, name: str) -> Any:
        """A member of a group; a link to another file is refused."""
        if isinstance(group.get(name, getlink=True), load_h5py().ExternalLink):
            fact = f"{group.name.rstrip('/')}/{name} is a link to another file, which is not followed"
            hint = "Copy the data into one file (`h5repack`) and read that."
            raise CorruptLayoutError(fact, path=self.name, hint=hint)
        return group[name]

    def _at(self, path: str) -> Any:
        item = self._handle()
        for part in filter(None, path.split("/")):
            if part not in item:
                raise CorruptLayoutError(f"there is no {path!r} in the file", path=self.name)
            item = self._member(item, part)
        return item

    def dataset(self, path: str) -> Any:
        """An array of h5py, checked: its bytes are in this file and no chunk is absurd."""
        with self._errors(path):
            item = self._datasets().get(f"/{path.strip('/')}")
            if item is None:
                item = self._at(path)
                if not isinstance(item, load_h5py().Dataset):
                    raise CorruptLayoutError(f"{path!r} is not an array", path=self.name)
                self._check_values(item, path)
            return item

    def _check_values(self, item: Any, path: str) -> None:
        if item.external or item.is_virtual:
            raise CorruptLayoutError(f"the values of {path!r} are in another file", path=self.name)
        if item.chunks is not None:
            size = int(np.prod(item.chunks, dtype=object)) * item.dtype.itemsize
            if size > MAX_CHUNK_BYTES:
                raise LimitExceededError(f"{path!r} has chunks of {size} bytes", path=self.name)

    def paths(self, group: str = "") -> list[str]:
        """The arrays below a group, by relative path."""
        return list(self.arrays(group))

    def shape(self, path: str) -> tuple[int, ...] | None:
        """The shape of an array; None if it has a type only and no values."""
        shape = self.dataset(path).shape
        return None if shape is None else tuple(map(int, shape))

    def whole(self, path: str, max_bytes: int = 16 << 20) -> Any:
        """A small array, or a single value."""
        with self._errors(path):
            dataset = self.dataset(path)
            if dataset.size * max(1, dataset.dtype.itemsize) > max_bytes:
                raise LimitExceededError(f"{path!r} is larger than metadata can be", path=self.name)
            return dataset[()]

    def rows(self, path: str) -> Rows:
        """An array of numbers, text or byte strings by rows."""
        h5py, opened = load_h5py(), PerProcess(partial(self.dataset, path))
        with self._errors(path):
            dataset = opened()
            if not dataset.shape:
                raise CorruptLayoutError(f"{path!r} is a single value, not rows", path=self.name)
            count, *shape = map(int, dataset.shape)
            is_text = h5py.check_string_dtype(dataset.dtype) is not None
            inner = h5py.check_vlen_dtype(dataset.dtype)
            if is_text or (
                inner is not None and np.dtype(inner) == np.uint8 and ROW_SHAPE not in dataset.attrs
            ):
                if shape:
                    raise UnsupportedDtypeError(f"{path!r} holds tables of text or bytes", path=self.name)
                kind: Kind = "text" if is_text else "bytes"
                return Rows.objects(count, kind, partial(self._read_rows, opened, path, OBJECT))
            stored = dataset.dtype if inner is None or shape else np.dtype(inner)
            dtype = numeric_type(stored, repr(path), self.name, "Leave it out with a mapping.")
            if inner is not None:
                sides = tuple(np.atleast_1d(dataset.attrs.get(ROW_SHAPE, ())).astype(np.int64).tolist())
                if any(side < 1 for side in sides):
                    raise CorruptLayoutError(f"{path!r} has rows of {list(sides)}", path=self.name)
                read = partial(self._read_ragged, opened, path, dtype, sides)
                return Rows(count, dtype, sides, read, "ragged")
            return Rows(count, dtype, tuple(shape), partial(self._read_rows, opened, path, dtype))

    def _read_rows(
        self, opened: PerProcess[Any], path: str, dtype: np.dtype[Any], start: int, stop: int
    ) -> NDArray[Any]:
        """Rows [start, stop), and nothing else of the file."""
        with self._errors(path):
            dataset = opened()
            rows = dataset[start:stop]
            if len(rows) != stop - start:
                raise TruncatedError(f"{path!r} has fewer rows than it states", path=self.name)
            if dtype != OBJECT:
                return np.asarray(rows, dtype)
            if load_h5py().check_string_dtype(dataset.dtype) is None:  # text is of varying length too
                return as_objects(bytes(row) for row in rows)
        try:
            return as_objects(row.decode() if isinstance(row, bytes) else str(row) for row in rows)
        except UnicodeDecodeError:
            raise CorruptLayoutError(f"{path!r} holds text that is not UTF-8", path=self.name) from None

    def _read_ragged(
        self,
        opened: PerProcess[Any],
        path: str,
        dtype: np.dtype[Any],
        sides: tuple[int, ...],
        start: int,
        stop: int,
    ) -> NDArray[Any]:
        """Values [start, stop) of an array of varying length."""
        with self._errors(path):
            return as_objects(np.asarray(row, dtype).reshape(-1, *sides) for row in opened()[start:stop])

    def spans(self, mapping: FileMapping) -> list[EpisodeSpan] | None:
        """The groups that a pattern names, `*` for any name."""
        if mapping.ends is not None or not (mapping.episodes or "").strip("/"):
            return None
        groups, pattern = [""], str(mapping.episodes).strip("/")
        for part in pattern.split("/"):
            matcher = re.compile(re.escape(part).replace(r"\*", "[^/]*"))
            groups = [
                f"{group}/{name}"
                for group in groups
                for name in sorted(self.names(group or "/"), key=by_number)
                if matcher.fullmatch(name) and self.is_group(f"{group}/{name}")
            ]
        if not groups:
            listed = ", ".join(self.names("/")[:20])
            fact, hint = (
                f"no group is called {pattern!r}; there are {listed}",
                "Name the groups in the mapping.",
            )
            raise CorruptLayoutError(fact, path=self.name, hint=hint)
        return [EpisodeSpan(group.rpartition("/")[2], group) for group in groups]


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[Hdf5Out]:
    """A new HDF5 file that appears whole or not at all; an existing file is not overwritten."""
    h5py = load_h5py()
    with commit_file(path, replace=False, durable=durable) as new, map_os_errors(path):
        with os.fdopen(os.dup(new.fd), "w+b", buffering=0) as place, h5py.File(place, "w") as file:
            yield Hdf5Out(file)
        new.position = os.fstat(new.fd).st_size


class Hdf5Out:
    """An HDF5 file being written."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def attribute(self, path: str, name: str, value: Any) -> None:
        """Set an attribute of a group or an array, from the JSON of `Hdf5File.attributes` or from a plain value."""
        target = self._file.require_group(path) if path not in self._file else self._file[path]
        if isinstance(value, Mapping) and "__empty__" in value:
            target.attrs[name] = load_h5py().Empty(np.dtype(value["__empty__"]))
            return
        plain = unpacked(value)
        is_text = isinstance(plain, np.ndarray) and plain.dtype == object
        target.attrs.create(name, plain, dtype=load_h5py().string_dtype() if is_text else None)

    def take(self, path: str | os.PathLike[str], group: str, target: str) -> None:
        """Copy a group from another file: its arrays as they are stored there."""
        above, _, name = target.rpartition("/")
        with load_h5py().File(path, "r") as other:
            other.copy(group, self._file.require_group(above) if above else self._file, name=name)

    def group(self, path: str) -> None:
        """Make a group, if there is none."""
        self._file.require_group(path)

    def array(self, path: str, values: Any) -> None:
        """Write a small array at once."""
        self._file.create_dataset(path, data=values)

    def stream(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: Any,
        blocks: Iterator[Any],
        kind: str = "",
        is_compressed: bool = False,
    ) -> None:
        """Write an array block by block: numbers, rows of `kind` text or bytes, or values of varying length.

        Compressed ones are compressed by single rows.
        """
        h5py = load_h5py()
        rows = dtype if isinstance(dtype, RowType) else None
        dtype = dtype if rows is None else h5py.vlen_dtype(rows.dtype)
        dtype = {"text": h5py.string_dtype(), "bytes": h5py.vlen_dtype(np.uint8)}.get(kind, dtype)
        options = {"compression": "gzip", "chunks": (1, *shape[1:])} if is_compressed and shape[0] else {}
        target = self._file.create_dataset(path, shape=shape, dtype=dtype, **options)
        if rows is not None:
            target.attrs[ROW_SHAPE] = np.array(rows.shape, np.int64)
        start = 0
        for block in blocks:
            if kind == "bytes" or rows is not None:
                for number, value in enumerate(block):
                    flat = np.frombuffer(value, np.uint8) if rows is None else value.reshape(-1)
                    target[start + number] = flat
            else:
                target[start : start + len(block)] = block
            start += len(block)
        if start != shape[0]:
            raise CorruptLayoutError(f"{path!r} got {start} rows of {shape[0]}")
