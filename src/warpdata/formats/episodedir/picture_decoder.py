"""Decode single pictures, JPEG and PNG, to the very pixels that Pillow shows. The adapter of Pillow."""

from __future__ import annotations

import functools
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import CorruptLayoutError, MissingExtraError
from warpdata.formats.episodedir.images import FrameShape
from warpdata.formats.episodedir.layout import PNG_MAGIC

_TO_RGB = ("L", "P", "1", "RGBA")
"""Kinds of 8-bit pictures whose colours are exact as RGB; alpha is no colour."""


class PictureDecoder:
    """Turns encoded pictures into arrays, each for itself; asked as a `VideoDecoder` is."""

    def __init__(self, codec: str, shape: FrameShape) -> None:
        self._shape = shape
        self._codec = codec
        self._open = _opener(codec)

    def feed(self, number: int, packet: bytes) -> Iterator[tuple[int, Any]]:
        """The picture of one packet, at once; it is not decoded before `pixels` asks for it."""
        yield number, packet

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Nothing is ever held back."""
        yield from ()

    def reset(self) -> None:
        """No picture needs another."""

    def close(self) -> None:
        """Nothing is held."""

    def pixels(self, picture: bytes, out: NDArray[Any]) -> None:
        """Decode a picture into `out`; one of another size than the camera's is refused before memory is taken."""
        if self._codec == "png":
            check_png(picture)
        shape = self._shape
        try:
            image = self._open(io.BytesIO(picture))
            if image.size != (shape.width, shape.height):
                raise CorruptLayoutError(f"a picture of {image.size[0]}x{image.size[1]}, expected {shape}")
            image.load()
            if shape.channels and image.mode in _TO_RGB:
                image = image.convert("RGB")
            values = np.asarray(image)
        except CorruptLayoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the readers of Pillow raise whatever damage leads them to
            raise CorruptLayoutError(f"the picture does not decode ({error})") from None
        if values.shape != shape.shape or not _fits(values, shape.dtype):
            raise CorruptLayoutError(f"a picture of {values.dtype}{list(values.shape)}, expected {shape}")
        out[...] = values


def _fits(values: NDArray[Any], dtype: str) -> bool:
    """Whether pixels are of this type; Pillow before 11 gives 16-bit gray as 32 bits."""
    return values.dtype.newbyteorder("=") == dtype or (values.dtype == np.int32 and dtype == "uint16")


def check_png(data: bytes) -> None:
    """Raise unless a PNG picture is whole and every part of it has its checksum, which Pillow does not ask for."""
    view, at = memoryview(data), len(PNG_MAGIC)
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(view[at : at + 4], "big")
        if end > len(data):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise CorruptLayoutError("a PNG picture was changed after it was written: a checksum is wrong")
        if data[at + 4 : at + 8] == b"IEND":
            return
        at = end
    raise CorruptLayoutError("a PNG picture is cut short")


@functools.cache
def _opener(codec: str) -> Callable[[io.BytesIO], Any]:
    """The reader of one format, which no other bytes can reach; opening reads the head only."""
    try:
        from PIL.JpegImagePlugin import JpegImageFile  # noqa: PLC0415
        from PIL.PngImagePlugin import PngImageFile  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError.for_extra("Pillow", "video") from None
    found: Callable[[io.BytesIO], Any] = PngImageFile if codec == "png" else JpegImageFile
    return found
