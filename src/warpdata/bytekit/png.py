"""Pictures as PNG files, for places that show pictures and have no library for them."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_GRAY, _COLOUR = 0, 2


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """HxW or HxWx3 bytes as a PNG; anything else is a ValueError."""
    is_colour = pixels.ndim == 3 and pixels.shape[2] == 3
    if pixels.dtype != np.uint8 or not (is_colour or pixels.ndim == 2) or 0 in pixels.shape:
        raise ValueError(f"a picture is uint8 HxW or HxWx3, not {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape[:2]
    rows = np.zeros(
        (height, 1 + width * (3 if is_colour else 1)), np.uint8
    )  # every row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = (
        width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + bytes([8, _COLOUR if is_colour else _GRAY, 0, 0, 0])
    )
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return PNG_MAGIC + b"".join(map(_chunk, chunks))


def _chunk(named: tuple[bytes, bytes]) -> bytes:
    name, data = named
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
