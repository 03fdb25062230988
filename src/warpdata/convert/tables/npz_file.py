"""NPZ archives: arrays read one by one, never a pickle; sizes are checked before anything is allocated."""

from __future__ import annotations

import io
import lzma
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view, dtype_of
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.lazy import BLOCK_CACHE, cached_property
from warpdata.convert.corpora.npy import npy_header
from warpdata.convert.place import Place, check_inside
from warpdata.convert.stepped import Rows
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError, nearest

MAX_ARRAY_BYTES = 4 << 30
MAX_MEMBERS = 1 << 16
_DEFLATE_RATIO = 1040
"""Deflate cannot expand by more: a member that claims it is a bomb."""
_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)


class NpzFile:
    """The arrays of one archive; the last ones used stay decoded, within the budget of the process."""

    def __init__(self, place: Place, file: str = "") -> None:
        self._place, self._file = place, file
        self.name = f"{place.name}/{file}" if file else place.name
        self._owner = BLOCK_CACHE.new_owner()
        weakref.finalize(self, BLOCK_CACHE.forget, self._owner).atexit = False

    @cached_property
    def _entries(self) -> dict[str, zipfile.ZipInfo]:
        with self._archive() as archive:
            infos = archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise LimitExceededError(f"{len(infos)} members", path=self.name)
        found: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            name = check_inside(info.filename, self.name)
            if name.endswith(".npy"):
                key = name.removesuffix(".npy")
                if key in found:
                    raise CorruptLayoutError(f"{name!r} is there twice", path=self.name)
                found[key] = info
        return found

    def _archive(self) -> zipfile.ZipFile:
        reader = self._place.open(self._file)
        try:
            return zipfile.ZipFile(RangeFile(reader))
        except _ERRORS as error:
            reader.close()
            raise CorruptLayoutError(f"not a readable archive of arrays ({error})", path=self.name) from None

    @property
    def keys(self) -> list[str]:
        """The names of the arrays, as they are in the file."""
        return list(self._entries)

    def header(self, key: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Shape, order and dtype of an array; an array of objects, which would be a pickle, is refused."""
        if key not in self._entries:
            raise CorruptLayoutError(
                f"there is no array {key!r}; there are {', '.join(self.keys)}.{nearest(key, self.keys)}",
                path=self.name,
            )
        head = self._read(key, 1 << 16)
        shape, is_fortran, dtype = npy_header(io.BytesIO(head), f"{self.name}:{key}")
        if dtype.hasobject:
            raise UnsupportedDtypeError(
                f"{key!r} holds Python objects, which are read by running code in them", path=self.name,
                hint="Write the file again with arrays of numbers; nothing here reads a pickle.",
            )  # fmt: skip
        entry = self._entries[key]
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > min(
            MAX_ARRAY_BYTES, entry.file_size
        ) or entry.file_size > entry.compress_size * _DEFLATE_RATIO + (1 << 16):
            raise LimitExceededError(
                f"{key!r} claims {size} bytes in {entry.compress_size} compressed ones", path=self.name
            )
        return shape, is_fortran, dtype

    def _read(self, key: str, limit: int) -> bytes:
        entry = self._entries[key]
        try:
            with self._archive() as archive, archive.open(entry) as member:
                return member.read(min(limit, entry.file_size))
        except _ERRORS as error:
            raise CorruptLayoutError(f"array {key!r} is damaged ({error})", path=self.name) from None

    def array(self, key: str) -> NDArray[Any]:
        """A whole array."""
        shape, is_fortran, dtype = self.header(key)
        kept = BLOCK_CACHE.get(self._owner, key)
        if kept is None:
            raw = self._read(key, MAX_ARRAY_BYTES + (1 << 16))
            stream = io.BytesIO(raw)
            npy_header(stream, self.name)
            size = int(np.prod(shape, dtype=object)) * dtype.itemsize
            kept = byte_view(raw)[stream.tell() : stream.tell() + size]
            if kept.nbytes != size:
                raise CorruptLayoutError(f"array {key!r} is cut", path=self.name)
            BLOCK_CACHE.put(self._owner, key, kept)
        flat = np.frombuffer(kept, dtype)
        return flat.reshape(shape, order="F" if is_fortran else "C")

    def rows(self, key: str) -> NpzRows:
        """An array by rows."""
        return NpzRows(self, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return (NpzFile, (self._place, self._file))


class NpzRows(Rows):
    """An array of an archive by rows: numbers or text."""

    def __init__(self, file: NpzFile, key: str) -> None:
        self._owner, self._key = file, key
        shape, _, dtype = file.header(key)
        if not shape:
            raise CorruptLayoutError(f"{key!r} is a single value, not rows", path=file.name)
        self.count, self.row_shape = shape[0], shape[1:]
        if dtype.kind in "US" and not self.row_shape:
            self.dtype, self.kind = np.dtype(object), "text" if dtype.kind == "U" else "bytes"
            return
        try:
            self.dtype = dtype_of(dtype.newbyteorder("<")).dtype
        except ValueError:
            raise UnsupportedDtypeError(f"{key!r} holds {dtype}", path=file.name) from None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the array, which is decoded whole: the archive has no other way."""
        found = self._owner.array(self._key)[start:stop]
        if self.kind is not None:
            out = np.empty(len(found), object)
            out[:] = found.tolist()
            return out
        return found.astype(self.dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (NpzRows, (self._owner, self._key))


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as one compressed archive, one after the other."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            entry = zipfile.ZipInfo(f"{key}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=array.nbytes > 1 << 30) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
