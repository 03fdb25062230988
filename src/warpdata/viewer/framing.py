"""What browsers understand: typed arrays behind a small JSON head, values as JSON, names of video codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.jsontext import dump_json
from warpdata.formats.episodedir.documents import Stream

MAGIC = b"WDA1"
_HEAD_BYTES = 8
"""The magic, and the length of the JSON behind it as a little-endian u32."""
_MAX_SAFE = 1 << 53

_START_CODE = b"\x00\x00\x01"

DTYPES = {"uint8": "u1", "uint16": "u2", "float32": "f4", "float64": "f8"}
"""The element types a browser has typed arrays for and that are sent."""


def pack_arrays(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays and a JSON head as one body."""
    places: dict[str, dict[str, Any]] = {}
    at = 0
    for name, array in arrays.items():
        at = align_up(at, 8)
        places[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "at": at}
        at += array.nbytes
    text = dump_json(sendable({**head, "arrays": places}))
    start = align_up(_HEAD_BYTES + len(text), 8)
    body = bytearray(start + at)
    body[:4] = MAGIC
    body[4:8] = len(text).to_bytes(4, "little")
    body[8 : 8 + len(text)] = text
    for name, array in arrays.items():
        low = start + places[name]["at"]
        body[low : low + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
    return bytes(body)


def sendable(value: Any) -> Any:
    """A value as JSON for a browser: no NaN, whole numbers past 2^53 as text, bytes by their length."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < _MAX_SAFE else str(value)
    if isinstance(value, Mapping):
        return {str(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [sendable(item) for item in value]
    if isinstance(value, np.ndarray):
        return sendable(value.tolist()) if value.size <= 1024 else f"<array {value.dtype}{list(value.shape)}>"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value if value is None or isinstance(value, bool | str) else str(value)


@dataclass(frozen=True, slots=True)
class WebCodec:
    """The name of a codec with its profile, and its description; empty where frames carry it themselves."""

    name: str
    description: bytes


def web_codec(stream: Stream) -> WebCodec | None:
    """The codec for WebCodecs; None where browsers do not decode it, so frames are sent as pixels."""
    extra = stream.extradata
    if stream.codec == "h264" and stream.pix_fmt in ("yuv420p", "yuvj420p"):
        if len(extra) >= 4 and extra[0] == 1:  # the box avcC
            return WebCodec(f"avc1.{extra[1]:02x}{extra[2]:02x}{extra[3]:02x}", extra)
        at = extra.find(_START_CODE)
        return (
            None if at < 0 or len(extra) < at + 7 else WebCodec(f"avc1.{extra[at + 4 : at + 7].hex()}", b"")
        )
    if stream.codec == "av1" and stream.pix_fmt == "yuv420p" and len(extra) >= 4:
        profile, level, tier = extra[1] >> 5, extra[1] & 31, "H" if extra[2] & 0x80 else "M"
        return WebCodec(f"av01.{profile}.{level:02d}{tier}.08", b"")
    if stream.codec == "vp9" and stream.pix_fmt == "yuv420p":
        return WebCodec("vp09.00.41.08", b"")
    return WebCodec("vp8", b"") if stream.codec == "vp8" else None
