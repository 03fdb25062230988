"""Pictures that lie encoded in foreign files: decoded when looked at, handed on as they are when converted."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.catalog.media import decode_pil
from warpdata.convert.stepped import Rows, image_kind
from warpdata.errors import CorruptLayoutError
from warpdata.timeline.meta import Kind

_NATURAL = ("RGB", "L", "RGBA", "I;16")
_MAGICS = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"RIFF": "webp", b"\xff\x0a": "jxl", b"\0\0\0\x0cJXL ": "jxl"}
_JPEG_END = b"\xff\xd9"


class PictureRows(Rows):
    """Rows of encoded pictures, all of one size; as bytes, or as rows of bytes padded to one length."""

    def __init__(self, rows: Rows, place: str) -> None:
        self._rows = rows
        self._place = place
        self.count = rows.count

    @cached_property
    def _first(self) -> NDArray[Any]:
        if not self.count:
            return np.empty((0, 0, 3), np.uint8)
        return picture_array(self.encoded(0, 1)[0], self._place)

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """The type of a pixel, from the first picture."""
        return self._first.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The size of a picture, from the first one."""
        return self._first.shape

    @property
    def kind(self) -> Kind | None:  # type: ignore[override]
        """An image, where our images can have this shape."""
        return image_kind(self.dtype, self.row_shape)

    @property
    def media(self) -> str:
        """How the pictures are encoded: jpeg, png, webp or jxl."""
        return media_of(self.encoded(0, 1)[0]) if self.count else "jpeg"

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The pictures as they lie in the file, without padding."""
        found = self._rows.read(start, stop)
        return [_unpadded(each if isinstance(each, bytes) else each.tobytes()) for each in found]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The pictures decoded."""
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        for at, data in enumerate(self.encoded(start, stop)):
            picture = picture_array(data, self._place)
            if picture.shape != self.row_shape or picture.dtype != self.dtype:
                raise CorruptLayoutError(
                    f"picture {start + at} is {list(picture.shape)}, the first one {list(self.row_shape)}", path=self._place
                )
            out[at] = picture
        return out


def _unpadded(data: bytes) -> bytes:
    """A JPEG without the zeros behind it."""
    if data[:2] == b"\xff\xd8" and data[-1:] == b"\0":
        end = data.rfind(_JPEG_END)
        return data[: end + 2] if end >= 0 else data
    return data


def media_of(data: bytes) -> str:
    """How a picture is encoded, by its first bytes; nothing where they say nothing."""
    return next((name for magic, name in _MAGICS.items() if data.startswith(magic)), "")


def picture_array(data: bytes, place: str) -> NDArray[Any]:
    """The pixels of an encoded picture; one that claims an absurd size is refused."""
    image = decode_pil(data, place)
    found = np.asarray(image if image.mode in _NATURAL else image.convert("RGB"))
    return found.astype("<u2") if found.dtype.kind == "u" and found.dtype.itemsize == 2 else found
