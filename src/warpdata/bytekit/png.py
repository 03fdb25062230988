"""Pictures as PNG files, for places that show or store pictures and have no library for them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import UnsupportedDtypeError

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_GRAY, _COLOUR = 0, 2


def encode_png(pixels: NDArray[Any]) -> bytes:
    """HxW or HxWx3 bytes, or HxW of 16 bits, as a PNG, without loss; a last axis of 1 is gray too."""
    plane = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    is_colour = plane.ndim == 3 and plane.shape[2] == 3 and plane.dtype == np.uint8
    is_gray = plane.ndim == 2 and plane.dtype in (np.uint8, np.uint16)
    if not (is_colour or is_gray) or 0 in plane.shape:
        raise UnsupportedDtypeError(
            f"a picture is uint8 HxW or HxWx3, or uint16 HxW, not {pixels.dtype} {pixels.shape}",
            hint="Turn the frames into one of these.",
        )
    height, width = plane.shape[:2]
    lines = plane.astype(plane.dtype.newbyteorder(">"), copy=False).reshape(height, -1).view(np.uint8)
    rows = np.zeros((height, 1 + lines.shape[1]), np.uint8)  # every row begins with its filter: none
    rows[:, 1:] = lines
    bits = plane.dtype.itemsize * 8
    head = (
        width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + bytes([bits, _COLOUR if is_colour else _GRAY, 0, 0, 0])
    )
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return PNG_MAGIC + b"".join(map(_chunk, chunks))


def _chunk(named: tuple[bytes, bytes]) -> bytes:
    name, data = named
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
