"""Text and JSON channels: one value of any length per step, as UTF-8 bytes and where each of them ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import DType, dtype_named
from warpdata.bytekit.jsontext import dump_json, parse_json, plain_json
from warpdata.errors import CorruptLayoutError, FormatError, SchemaMismatchError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.schema import ChannelRows, TensorSpec

_STEPS_AT_ONCE = 64
"""Few enough that long values do not fill the memory: a value has no size before it is encoded."""


class ValueType(DType):
    """What a text or JSON channel holds: a Python value per step, so `.data` is an array of objects."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(object)

    def __reduce__(self) -> tuple[Any, ...]:
        return (value_type, (self.name,))


TEXT, JSON = ValueType("text"), ValueType("json")
CONTENT_TYPES = {"text": layout.CONTENT_TEXT, "json": layout.CONTENT_JSON}


def value_type(name: str) -> ValueType:
    """The type of text or of JSON channels by name."""
    return {"text": TEXT, "json": JSON}[name]


def is_text(dtype: DType) -> bool:
    """Whether a channel holds text or JSON instead of numbers."""
    return isinstance(dtype, ValueType)


def text_spec(name: str) -> TensorSpec:
    """One value per step."""
    return TensorSpec(value_type(name), ())


def guess_encoding(array: NDArray[Any]) -> str | None:
    """`text` for strings and `json` for objects, where every value is one; else None."""
    if array.dtype.kind == "U":
        return "text"
    values = array.ravel().tolist() if array.dtype == object else []
    if values and all(isinstance(each, str) for each in values):
        return "text"
    return "json" if values and all(isinstance(each, dict) for each in values) else None


def value_array(encoding: str, values: Iterable[Any]) -> NDArray[Any]:
    """Values as an array of objects, each of them checked; ValueError if one cannot be stored."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    out = np.empty(len(listed), object)
    for index, each in enumerate(listed):
        encode_value(encoding, each)
        out[index] = plain_json(each)
    return out


def encode_value(encoding: str, value: Any) -> bytes:
    """The bytes of one value, or ValueError."""
    if encoding == "text":
        if not isinstance(value, str):
            raise ValueError(f"text was expected, not {type(value).__name__}")
        return value.encode()
    try:
        return dump_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def decode_value(encoding: str, data: bytes, block: str, path: str) -> Any:
    """The value behind the bytes of one step, or CorruptLayoutError."""
    try:
        return data.decode() if encoding == "text" else parse_json(data)
    except UnicodeDecodeError:
        raise CorruptLayoutError("holds text that is not UTF-8", block=block, path=path) from None
    except FormatError as error:
        raise type(error)(error.message, block=block, path=path) from None


class TextRows:
    """Values out of a block of bytes and a block of ends."""

    def __init__(self, data: ChannelRows, ends: ChannelRows, encoding: str, block: str, path: str) -> None:
        self._path = path
        self._data = data
        self._ends = ends
        self._encoding = encoding
        self._block = block
        self.spec = text_spec(encoding)
        self.length = ends.length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Values [start, end), reading only their bytes."""
        out = np.empty(end - start, object)
        if start == end:
            return out
        known = self._ends.rows(max(0, start - 1), end).tolist()
        bounds = known if start else [0, *known]
        whole = self._data.length
        in_order = all(low <= high for low, high in itertools.pairwise(bounds))
        if (
            not in_order
            or bounds[0] < 0
            or bounds[-1] > whole
            or (end == self.length and bounds[-1] != whole)
        ):
            raise CorruptLayoutError(
                "the ends of its values are not those of its bytes", block=self._block, path=self._path
            )
        data = self._data.rows(bounds[0], bounds[-1]).tobytes()
        for index in range(end - start):
            low, high = bounds[index] - bounds[0], bounds[index + 1] - bounds[0]
            out[index] = decode_value(self._encoding, data[low:high], self._block, self._path)
        return out


class EncodedRows:
    """The values of a text or JSON channel as bytes, encoded a window at a time; `ends` says where each ends."""

    spec = TensorSpec(dtype_named("u8"), ())

    def __init__(self, rows: ChannelRows, block: str) -> None:
        self._rows = rows
        self._encoding = str(rows.spec.dtype)
        self._block = block
        sizes = np.zeros(rows.length, np.int64)
        for start in range(0, rows.length, _STEPS_AT_ONCE):
            values = self._encoded(start, min(start + _STEPS_AT_ONCE, rows.length))
            sizes[start : start + len(values)] = [len(each) for each in values]
        self._last: tuple[range, bytes] = range(0), b""
        self.ends = np.cumsum(sizes)
        self.length = int(self.ends[-1]) if rows.length else 0

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Bytes [start, end) of all values joined."""
        if start >= end:
            return np.zeros(0, np.uint8)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, end, side="left"))
        if self._last[0] != range(first, last + 1):
            self._last = range(first, last + 1), b"".join(self._encoded(first, last + 1))
        offset = int(self.ends[first - 1]) if first else 0
        # One value may be many windows long: it is encoded once for those inside it.
        return np.frombuffer(self._last[1], np.uint8)[start - offset : end - offset]

    def _encoded(self, start: int, end: int) -> list[bytes]:
        try:
            return [encode_value(self._encoding, each) for each in self._rows.rows(start, end).tolist()]
        except ValueError as error:
            raise SchemaMismatchError(str(error), block=self._block) from None
