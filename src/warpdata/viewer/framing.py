"""Typed arrays on the wire: a small JSON head, then the bytes of every array, each at a multiple of eight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.jsontext import dump_json

MAGIC = b"WDA1"
_HEAD_BYTES = 8
"""The magic, and the length of the JSON behind it as a little-endian u32."""
_MAX_SAFE = 1 << 53

DTYPES = {"uint8": "u1", "uint16": "u2", "float32": "f4", "float64": "f8"}
"""The element types a browser has typed arrays for and that are sent."""


def framed(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
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
        return {str(key): sendable(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [sendable(each) for each in value]
    if isinstance(value, np.ndarray):
        return sendable(value.tolist()) if value.size <= 1024 else f"<array {value.dtype}{list(value.shape)}>"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value if value is None or isinstance(value, bool | str) else str(value)
