"""Values of foreign metadata as JSON and back, with their exact types."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from warpdata.errors import CorruptLayoutError, LimitExceededError

_ARRAY, _BYTES, _FLOAT, _STRINGS = "__array__", "__bytes__", "__float__", "__strings__"
MAX_VALUE_BYTES = 16 << 20
"""A larger item of metadata is refused: it would be copied with every episode."""


def packed(value: Any) -> Any:
    """A value as JSON holds it: arrays keep dtype and shape, bytes stay bytes, invalid UTF-8 becomes `\\xff`."""
    if isinstance(value, np.ndarray | np.generic):
        return _packed_array(np.asarray(value))
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): packed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [packed(item) for item in value]
    raise TypeError(f"unsupported type of metadata: {type(value).__name__}")


def _packed_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.nbytes > MAX_VALUE_BYTES:
        raise LimitExceededError(f"an item of metadata of {array.nbytes} bytes")
    if array.dtype.kind in "OU":
        texts = [
            item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else packed(str(item))
            for item in array.ravel()
        ]
        return {_STRINGS: texts, "shape": list(array.shape)}
    if array.dtype.kind not in "biufcS":
        raise TypeError(f"unsupported type of metadata: an array of {array.dtype}")
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_ARRAY: raw, "dtype": array.dtype.str, "shape": list(array.shape)}


def unpacked(value: Any) -> Any:
    """The value that `packed` was given; CorruptLayoutError if the JSON is damaged."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    try:
        if _ARRAY in value:
            array = np.frombuffer(base64.b64decode(value[_ARRAY]), np.dtype(value["dtype"]))
            array = array.reshape(value["shape"])
            return array if value["shape"] else array[()]
        if _STRINGS in value:
            texts = np.empty(len(value[_STRINGS]), object)
            texts[:] = value[_STRINGS]
            return texts.reshape(value["shape"])
        if _BYTES in value:
            return base64.b64decode(value[_BYTES])
        if _FLOAT in value:
            return float(value[_FLOAT])
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise CorruptLayoutError(f"damaged item of kept metadata ({error})") from None
    return {key: unpacked(item) for key, item in value.items()}
