"""The compressors of Zarr v2 by their JSON, output bounded before anything is allocated. The adapter of numcodecs."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.codec import decode as decode_bytes
from warpdata.bytekit.codec import encode as encode_bytes
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError, MissingExtraError

_BLOSC_HEAD, _LZ4_HEAD = 16, 4
DEFAULT: Mapping[str, Any] = {"id": "zstd", "level": 3}
"""What every numcodecs reads and needs nothing but zstd to write."""


def decode(
    config: Mapping[str, Any] | None, data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The elements of a chunk, flat; exactly as many as the chunk has."""
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    name = "none" if config is None else str(config.get("id"))
    if name.startswith("imagecodecs_"):
        return _picture(name, data, shape, dtype)
    raw = _bytes(name, data, size)
    if len(raw) != size:
        raise CorruptLayoutError(f"a chunk holds {len(raw)} bytes, not {size}")
    return np.frombuffer(raw, dtype)


def _bytes(name: str, data: bytes, size: int) -> bytes:
    if name == "none":
        return data
    if name == "zstd":
        return decode_bytes("zstd", data, size)
    if name == "lz4":
        if len(data) < _LZ4_HEAD or int.from_bytes(data[:_LZ4_HEAD], "little") != size:
            raise CorruptLayoutError(f"an lz4 chunk does not hold the {size} bytes of its array")
        return decode_bytes("lz4", data[_LZ4_HEAD:], size)
    if name == "blosc":
        return _blosc(data, size)
    if name in ("zlib", "gzip", "bz2", "lzma"):
        return _stream(name, data, size)
    raise FormatError(
        f"chunks are compressed with {name!r}, which is not known here",
        hint="Write the array again with blosc, zstd, zlib or no compressor.",
    )


def _stream(name: str, data: bytes, size: int) -> bytes:
    try:
        if name == "bz2":
            return bz2.BZ2Decompressor().decompress(data, size + 1)
        if name == "lzma":
            return lzma.LZMADecompressor().decompress(data, size + 1)
        return zlib.decompressobj(47).decompress(data, size + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise CorruptLayoutError(f"a damaged {name} chunk ({error})") from None


def _blosc(data: bytes, size: int) -> bytes:
    if len(data) < _BLOSC_HEAD or int.from_bytes(data[12:16], "little") != len(data):
        raise CorruptLayoutError("a blosc chunk is cut, or none")
    if int.from_bytes(data[4:8], "little") != size:
        raise LimitExceededError(f"a blosc chunk does not hold the {size} bytes of its array")
    try:
        from numcodecs import blosc
    except ImportError:
        raise MissingExtraError.for_extra("numcodecs", "zarr") from None
    try:
        return bytes(blosc.decompress(data))
    except (RuntimeError, ValueError, TypeError, SystemError, MemoryError) as error:
        raise CorruptLayoutError(f"a damaged blosc chunk ({error})") from None


def _picture(name: str, data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        import imagecodecs
    except ImportError:
        raise MissingExtraError.for_extra("imagecodecs", "jxl") from None
    call = getattr(imagecodecs, f"{name.removeprefix('imagecodecs_')}_decode", None)
    if call is None or name not in (
        "imagecodecs_jpegxl",
        "imagecodecs_jpeg2k",
        "imagecodecs_jpeg",
        "imagecodecs_png",
    ):
        raise FormatError(f"chunks are compressed with {name!r}, which is not known here")
    squeezed = tuple(side for side in shape if side != 1)
    try:
        found = np.asarray(call(data, out=np.empty(squeezed, dtype)))
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise CorruptLayoutError(f"a damaged picture ({error})") from None
    if found.size != int(np.prod(shape, dtype=object)) or found.dtype != dtype:
        raise CorruptLayoutError(
            f"a picture of {found.dtype}{list(found.shape)} in a chunk of {dtype}{list(shape)}"
        )
    return found.reshape(-1)


def encode(config: Mapping[str, Any] | None, chunk: NDArray[Any]) -> bytes:
    """A chunk as it is stored."""
    raw = np.ascontiguousarray(chunk)
    if config is None:
        return raw.tobytes()
    if config["id"] == "zstd":
        return encode_bytes("zstd", byte_view(raw), int(config.get("level", 3)) or None)
    if config["id"] in ("zlib", "gzip"):
        made = zlib.compressobj(int(config.get("level", 1)), wbits=15 if config["id"] == "zlib" else 31)
        return made.compress(byte_view(raw)) + made.flush()
    return _blosc_encoded(config, raw)


def _blosc_encoded(config: Mapping[str, Any], raw: NDArray[Any]) -> bytes:
    """Without threads, because those make other bytes each time."""
    import numcodecs

    before, numcodecs.blosc.use_threads = numcodecs.blosc.use_threads, False
    try:
        return bytes(numcodecs.get_codec(dict(config)).encode(raw))
    finally:
        numcodecs.blosc.use_threads = before
