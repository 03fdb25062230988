"""Pictures that lie encoded in foreign files, as rows."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.stepped import Rows
from warpdata.errors import UnsupportedDtypeError

_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


class PictureRows(Rows):
    """JPEG or PNG pictures: rows of bytes, or of bytes padded to one length."""

    def __init__(self, rows: Rows, *, has_axis: bool = False) -> None:
        self._rows = rows
        self.has_axis = has_axis
        self.count, self.dtype, self.row_shape = rows.count, np.dtype(object), ()

    @property
    def is_pictures(self) -> bool:
        """Always."""
        return True

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The pictures as they lie in the file, without padding."""
        return [without_padding(bytes(each)) for each in self._rows.read(start, stop)]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The pictures as bytes."""
        out = np.empty(stop - start, object)
        out[:] = self.encoded(start, stop)
        return out


def without_padding(data: bytes) -> bytes:
    """A picture without zeros behind it."""
    if data.startswith(_JPEG) and data.endswith(b"\0"):
        end = data.rfind(_JPEG_END)
        return data[: end + 2] if end >= 0 else data
    return data


def png_of(frame: NDArray[Any]) -> bytes:
    """A frame as a PNG picture, without loss: gray of 8 or 16 bits, or RGB of 8."""
    depth = {"uint8": 8, "uint16": 16}.get(frame.dtype.name, 0)
    plane = frame[..., 0] if frame.ndim == 3 and frame.shape[2] == 1 else frame
    colour = {(2, 8): 0, (2, 16): 0, (3, 8): 2}.get((plane.ndim, depth))
    if colour is None or (plane.ndim == 3 and plane.shape[2] != 3):
        raise UnsupportedDtypeError(f"a frame of {frame.dtype}{list(frame.shape)} is no PNG picture")
    height, width = plane.shape[:2]
    lines = np.zeros((height, 1 + width * (3 if colour else 1) * depth // 8), np.uint8)
    lines[:, 1:] = plane.astype(plane.dtype.newbyteorder(">"), copy=False).reshape(height, -1).view(np.uint8)
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((depth, colour, 0, 0, 0))
    data = zlib.compress(lines.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (head, data, b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
