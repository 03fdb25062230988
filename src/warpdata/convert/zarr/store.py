"""Zarr v2 trees, in a folder or a zip archive: groups, attributes, and arrays by rows."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import run_in_child
from warpdata.convert.place import Place, check_inside
from warpdata.convert.stepped import Rows
from warpdata.convert.zarr.codecs import decode
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    LimitExceededError,
    UnsupportedDtypeError,
    UnsupportedVersionError,
    WarpError,
)

MAX_CHUNK_BYTES = 1 << 30
MAX_JSON_BYTES = 16 << 20
MAX_SIDE = 1 << 40
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)
"""What a damaged member of an archive raises."""
ZIP_MAGIC = b"PK\x03\x04"


class ZarrStore:
    """The files of a Zarr tree by key."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._zip: zipfile.ZipFile | None = None
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """In a forked child: the archive is opened anew, its position is the parent's."""
        self._zip = None

    @property
    def name(self) -> str:
        """Where it lies."""
        return self.place.name

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """The bytes of a key, None where it is not there; longer ones than can be are refused."""
        check_inside(key, self.name)
        if self.place.is_file:
            return self._zipped(key, max_bytes)
        if not self.place.exists(key):
            return None
        reader = self.place.open(key)
        try:
            if reader.size > max_bytes:
                raise LimitExceededError(
                    f"{key!r} has {reader.size} bytes, at most {max_bytes} are possible", path=self.name
                )
            return bytes(reader.read(0, reader.size))
        finally:
            reader.close()

    def documents(self) -> list[str]:
        """The keys of all files that are no chunks: what groups and arrays there are."""
        names = self._archive.namelist() if self.place.is_file else self.place.names()
        return sorted({name for name in names if name.rpartition("/")[2].startswith(".z")})

    @property
    def _archive(self) -> zipfile.ZipFile:
        if self._zip is None:
            reader = self.place.open()
            try:
                self._zip = zipfile.ZipFile(RangeFile(reader))
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
                raise CorruptLayoutError(f"not a readable zip archive ({error})", path=self.name) from None
        return self._zip

    def _zipped(self, key: str, max_bytes: int) -> bytes | None:
        archive = self._archive
        try:
            entry = archive.getinfo(key)
        except KeyError:
            return None
        if entry.file_size > max_bytes or entry.flag_bits & 1:
            raise LimitExceededError(
                f"{key!r} claims {entry.file_size} bytes, at most {max_bytes} are possible", path=self.name
            )
        try:
            with archive.open(entry) as file:
                data = file.read(entry.file_size)
                if len(data) != entry.file_size or file.read(1):
                    raise CorruptLayoutError(f"{key!r} is not as long as it says", path=self.name)
                return data
        except _DAMAGED as error:
            raise CorruptLayoutError(f"{key!r} is damaged ({error})", path=self.name) from None

    def json(self, key: str) -> dict[str, Any] | None:
        """A JSON document of the tree, None where it is not there."""
        data = self.get(key, MAX_JSON_BYTES)
        if data is None:
            return None
        try:
            return parse_json_object(data, allow_nan=True)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(f"{key!r}: {error.message}", path=self.name) from None

    def array(self, path: str) -> ZarrRows:
        """An array by rows."""
        return ZarrRows(self, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (ZarrStore, (self.place,))


class ZarrRows(Rows):
    """An array of a Zarr tree by rows; the chunks that hold them are decoded, the last one is kept."""

    def __init__(self, store: ZarrStore, path: str) -> None:
        self._store = store
        self.path = path
        about = store.json(f"{path}/.zarray")
        if about is None:
            raise BlobNotFoundError(f"there is no array {path!r}", path=store.name)
        self.about = about
        self._parse(about)
        self._kept: tuple[tuple[int, ...], NDArray[Any]] | None = None

    def _parse(self, about: Mapping[str, Any]) -> None:
        if about.get("zarr_format") != 2:
            raise UnsupportedVersionError(f"{self.path!r} is not Zarr v2", path=self._store.name)
        try:
            self.shape = tuple(_side(side) for side in about["shape"])
            self.chunks = tuple(_side(side) for side in about["chunks"])
            stored = np.dtype(about["dtype"]) if isinstance(about["dtype"], str) else None
            compressor, filters, order = (
                about.get("compressor"),
                about.get("filters"),
                about.get("order", "C"),
            )
            separator = about.get("dimension_separator", ".")
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLayoutError(
                f"'{self.path}/.zarray' is damaged ({error})", path=self._store.name
            ) from None
        is_sound = len(self.shape) == len(self.chunks) and 0 not in self.chunks and order in ("C", "F")
        if not is_sound or separator not in (".", "/") or not isinstance(compressor, dict | None):
            raise CorruptLayoutError(f"'{self.path}/.zarray' contradicts itself", path=self._store.name)
        if filters:
            raise UnsupportedDtypeError(
                f"{self.path!r} has filters, which are not known here", path=self._store.name
            )
        self._stored, self._compressor, self._order, self._separator = (
            self._checked(stored),
            compressor,
            order,
            separator,
        )
        self._fill = _fill(about.get("fill_value"), self.dtype, self.path, self._store.name)
        self.count, self.row_shape = (self.shape[0] if self.shape else 1), self.shape[1:]

    def _checked(self, stored: np.dtype[Any] | None) -> np.dtype[Any]:
        try:
            if stored is None:
                raise ValueError
            self.dtype = dtype_of(stored.newbyteorder("<")).dtype
        except ValueError:
            raise UnsupportedDtypeError(
                f"{self.path!r} holds {self.about.get('dtype')!r}", path=self._store.name
            ) from None
        size = math.prod(self.chunks) * stored.itemsize
        if size > MAX_CHUNK_BYTES:
            raise LimitExceededError(f"{self.path!r} has chunks of {size} bytes", path=self._store.name)
        return stored

    def whole(self, max_bytes: int = 64 << 20) -> NDArray[Any]:
        """A small array, also one with a single value."""
        if math.prod(self.shape) * self.dtype.itemsize > max_bytes:
            raise LimitExceededError(f"{self.path!r} is larger than metadata can be", path=self._store.name)
        if not self.shape:
            return self._chunk(()).reshape(())
        return self.read(0, self.count)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop) out of the chunks that hold them."""
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        deep = self.chunks[0]
        across = [
            range(-(-side // chunk)) for side, chunk in zip(self.row_shape, self.chunks[1:], strict=True)
        ]
        for number in range(start // deep, -(-stop // deep)):
            low, high = max(start, number * deep), min(stop, (number + 1) * deep)
            for rest in np.ndindex(*(len(each) for each in across)):
                chunk = self._chunk((number, *rest))
                target: list[slice] = [slice(low - start, high - start)]
                taken: list[slice] = [slice(low - number * deep, high - number * deep)]
                for at, side, size in zip(rest, self.row_shape, self.chunks[1:], strict=True):
                    target.append(slice(at * size, min((at + 1) * size, side)))
                    taken.append(slice(0, min((at + 1) * size, side) - at * size))
                out[tuple(target)] = chunk[tuple(taken)]
        return out

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """The key of a chunk."""
        return f"{self.path}/{self._separator.join(map(str, index)) or '0'}"

    def _chunk(self, index: tuple[int, ...]) -> NDArray[Any]:
        kept = self._kept
        if kept is not None and kept[0] == index:
            return kept[1]
        key = self.chunk_key(index)
        size = math.prod(self.chunks) * self._stored.itemsize
        data = self._store.get(key, 2 * size + (1 << 16))
        if data is None:
            made = np.full(self.chunks, self._fill, self.dtype)
        else:
            try:
                flat = decode(self._compressor, data, self.chunks, self._stored)
            except WarpError as error:
                raise type(error)(
                    f"chunk {key!r}: {error.message}", path=self._store.name, hint=error.hint
                ) from None
            made = flat.reshape(self.chunks, order=self._order)
            made = made if made.dtype == self.dtype else made.astype(self.dtype)
        self._kept = (index, made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return (ZarrRows, (self._store, self.path))


def _side(side: Any) -> int:
    if not isinstance(side, int) or isinstance(side, bool) or not 0 <= side <= MAX_SIDE:
        raise ValueError(f"a side of {side!r}")
    return side


def _fill(value: Any, dtype: np.dtype[Any], path: str, name: str) -> Any:
    try:
        if value is None:
            return dtype.type(0)
        if not isinstance(value, str | int | float):
            raise TypeError
        return dtype.type(float(value) if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        raise CorruptLayoutError(f"the fill value {value!r:.40} of {path!r} is none", path=name) from None
