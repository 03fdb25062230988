"""Plain `.npz` files: an episode per file, or all in one with a mapping. In only; never a pickle."""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import os
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.io.ranges import RangeFile, RangeReader
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.place import Place, check_inside, foreign_errors
from warpdata.convert.stepped import Rows, numeric_type
from warpdata.convert.tables.mapping import ArrayFile, MappedEpisodes, MappingSource
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError, nearest
from warpdata.timeline.meta import OBJECT
from warpdata.timeline.ragged import as_objects

MAX_ARRAY_BYTES = 4 << 30
MAX_MEMBERS = 1 << 16
_HEADER_BYTES = 1 << 16
_DEFLATE_RATIO = 1040
"""Deflate cannot expand by more: a member that claims it is a bomb."""
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)
"""Exceptions of zipfile for damaged archives."""
_HEADER_ERRORS = (*ZIP_ERRORS, SyntaxError, TypeError, MemoryError, tokenize.TokenError)
"""Exceptions of numpy for a damaged header."""


def read(source: Any, *, mapping: MappingSource = None, fps: float | None = None) -> Episodes:
    """The episodes of a `.npz` file, or of all those in a folder.

    A file is an episode, unless the mapping names the ends of episodes in it. An array of objects, which would be a
    pickle, is refused.
    """
    return Episodes(MappedEpisodes(Place.of(source), (".npz",), NpzFile.at, mapping, fps))


class NpzFile(ArrayFile):
    """The arrays of one archive; the ones used last stay decompressed, within the budget of the process."""

    def __init__(self, open_file: Callable[[], RangeReader], name: str) -> None:
        self._open_file, self.name = open_file, name
        self._headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._owner = BLOCK_CACHE.new_owner()
        weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False

    @classmethod
    def at(cls, place: Place, file: str = "") -> NpzFile:
        """An archive in a folder, or the file that a place is."""
        return cls(partial(place.open, file), f"{place.name}/{file}" if file else place.name)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with contextlib.closing(self._open_file()) as reader:
            with foreign_errors(ZIP_ERRORS, "not a readable archive of arrays", self.name):
                archive = zipfile.ZipFile(RangeFile(reader))
            with archive:
                yield archive

    @cached_property
    def _entries(self) -> dict[str, zipfile.ZipInfo]:
        with self._archive() as archive:
            infos = archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise LimitExceededError(f"{len(infos)} members", path=self.name)
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            name = check_inside(info.filename, self.name)
            if name.endswith(".npy") and entries.setdefault(name.removesuffix(".npy"), info) is not info:
                raise CorruptLayoutError(f"duplicate member {name!r}", path=self.name)
        return entries

    def paths(self, _group: str = "") -> list[str]:
        """The names of the arrays, in the order of the file."""
        return list(self._entries)

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of an array."""
        return self._header(path)[0]

    def _header(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array; one of objects, or larger than its bytes can be, is refused."""
        if key not in self._headers:
            if key not in self._entries:
                listed = f"{', '.join(self._entries)}.{nearest(key, self._entries)}"
                raise CorruptLayoutError(f"there is no array {key!r}; there are {listed}", path=self.name)
            entry = self._entries[key]
            shape, _, dtype = npy_header(io.BytesIO(self._read(key, _HEADER_BYTES)), f"{self.name}:{key}")
            size = math.prod(shape) * dtype.itemsize
            most = entry.compress_size * _DEFLATE_RATIO + (1 << 16)
            if size > min(MAX_ARRAY_BYTES, entry.file_size) or entry.file_size > most:
                fact = f"{key!r} claims {size} bytes in {entry.compress_size} compressed ones"
                raise LimitExceededError(fact, path=self.name)
            self._headers[key] = shape, dtype
        return self._headers[key]

    def _read(self, key: str, limit: int) -> bytes:
        entry = self._entries[key]
        with (
            foreign_errors(ZIP_ERRORS, f"array {key!r} is damaged", self.name),
            self._archive() as archive,
            archive.open(entry) as member,
        ):
            return member.read(min(limit, entry.file_size))

    def whole(self, path: str) -> NDArray[Any]:
        """A whole array."""
        self._header(path)
        kept = BLOCK_CACHE.get(self._owner, path)
        if kept is None:
            kept = byte_view(self._read(path, MAX_ARRAY_BYTES + _HEADER_BYTES))
            BLOCK_CACHE.put(self._owner, path, kept)
        return npy_array(kept, f"{self.name}:{path}")

    def rows(self, path: str) -> Rows:
        """An array of numbers or text by rows; it is decompressed whole."""
        shape, dtype = self._header(path)
        if not shape:
            raise CorruptLayoutError(f"{path!r} is a single value, not rows", path=self.name)
        if dtype.kind in "US" and len(shape) == 1:
            read = partial(self._read_rows, path, OBJECT)
            return Rows.objects(shape[0], "text" if dtype.kind == "U" else "bytes", read)
        own = numeric_type(dtype, "", f"{self.name}:{path}")
        return Rows(shape[0], own, shape[1:], partial(self._read_rows, path, own))

    def _read_rows(self, path: str, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
        rows = self.whole(path)[start:stop]
        return as_objects(rows.tolist()) if dtype == OBJECT else rows.astype(dtype, copy=False)


def npy_header(file: IO[bytes], path: str | os.PathLike[str]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of a .npy file, which is read up to its values; one of objects is refused."""
    with foreign_errors(_HEADER_ERRORS, "not a .npy file", os.fspath(path)):
        is_first = np.lib.format.read_magic(file) == (1, 0)
        formats = np.lib.format
        read_header = formats.read_array_header_1_0 if is_first else formats.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        fact = "the array holds Python objects, which are read by running code in them"
        hint = "Write the file again with arrays of numbers; pickles are never read."
        raise UnsupportedDtypeError(fact, path=path, hint=hint)
    return tuple(int(size) for size in shape), bool(is_fortran), dtype


def npy_array(data: Any, path: str) -> NDArray[Any]:
    """The array in the bytes of a .npy file, without a copy."""
    stream = io.BytesIO(data[:_HEADER_BYTES])
    shape, is_fortran, dtype = npy_header(stream, path)
    size = math.prod(shape) * dtype.itemsize
    if len(data) - stream.tell() < size:
        raise CorruptLayoutError("the array is truncated", path=path)
    flat = np.frombuffer(data, dtype, size // dtype.itemsize if dtype.itemsize else 0, stream.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as one compressed archive, with equal bytes for equal arrays."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            entry = zipfile.ZipInfo(f"{key}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=array.nbytes > 1 << 30) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
