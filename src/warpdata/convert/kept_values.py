"""Values of foreign metadata as JSON and back, each with its exact type: what we do not use must come out again."""

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
    """A value as JSON holds it; numpy's keep dtype and shape, bytes stay bytes."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, np.ndarray | np.generic):
        return _packed_array(np.asarray(value))
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): packed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [packed(each) for each in value]
    raise TypeError(f"a {type(value).__name__} cannot be kept as metadata")


def _utf8(text: str) -> str:
    """The text; bytes that were no UTF-8 are written out as `\\xff`, because JSON has no place for them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _packed_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.nbytes > MAX_VALUE_BYTES:
        raise LimitExceededError(f"an item of metadata of {array.nbytes} bytes")
    if array.dtype.kind in "OU":
        texts = [
            each.decode("utf-8", "backslashreplace") if isinstance(each, bytes) else _utf8(str(each))
            for each in array.ravel()
        ]
        return {_STRINGS: texts, "shape": list(array.shape)}
    if array.dtype.kind not in "biufcS":
        raise TypeError(f"an array of {array.dtype} cannot be kept as metadata")
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_ARRAY: raw, "dtype": array.dtype.str, "shape": list(array.shape)}


def unpacked(value: Any) -> Any:
    """What `packed` was given; anything it did not make is a CorruptLayoutError."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    try:
        if _ARRAY in value:
            found = np.frombuffer(base64.b64decode(value[_ARRAY]), np.dtype(value["dtype"]))
            found = found.reshape(value["shape"])
            return found[()] if not value["shape"] else found
        if _STRINGS in value:
            texts = np.empty(len(value[_STRINGS]), object)
            texts[:] = value[_STRINGS]
            return texts.reshape(value["shape"])
        if _BYTES in value:
            return base64.b64decode(value[_BYTES])
        if _FLOAT in value:
            return float(value[_FLOAT])
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise CorruptLayoutError(f"a damaged item of kept metadata ({error})") from None
    return {key: unpacked(each) for key, each in value.items()}
