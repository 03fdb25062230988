"""JSON out of untrusted bytes: bounded, strict, and never a foreign exception."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpdata.errors import CorruptLayoutError, LimitExceededError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_JSON_BYTES = 64 << 20

_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def parse_json_object(
    data: Buffer, *, max_bytes: int = MAX_JSON_BYTES, allow_nan: bool = False
) -> dict[str, Any]:
    """Parse a JSON object; anything else, a duplicate key, NaN, a number too large or absurd nesting is a FormatError.

    `allow_nan` takes the words NaN and Infinity, which other programs write though JSON has none.
    """
    value = parse_json(data, max_bytes=max_bytes, allow_nan=allow_nan)
    if not isinstance(value, dict):
        raise CorruptLayoutError(f"JSON is a {type(value).__name__}, an object was expected")
    return value


def parse_json(data: Buffer, *, max_bytes: int = MAX_JSON_BYTES, allow_nan: bool = False) -> Any:
    """Parse any JSON value, as strictly as `parse_json_object` does."""
    raw = bytes(data)
    if len(raw) > max_bytes:
        raise LimitExceededError(f"JSON of {len(raw)} bytes, at most {max_bytes} are allowed")
    try:
        is_utf8 = raw[:1] in b"{[" and raw[1:2] != b"\0"
        text = raw.decode("utf-8" if is_utf8 else json.detect_encoding(raw), "surrogatepass").strip(_SPACE)
        value, end = (_LENIENT if allow_nan else _STRICT).raw_decode(text)
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        return value
    except (ValueError, RecursionError) as error:
        raise CorruptLayoutError(f"not valid JSON ({error})") from None


def dump_json(value: object) -> bytes:
    """Compact JSON with the keys in the order given; NaN and infinities are refused."""
    return _COMPACT.encode(value).encode()


def plain_json(value: Any, levels: int | None = None) -> Any:
    """The value as JSON gives it back: tuples are lists.

    A key that is no string is a ValueError, and so is a value inside more lists and objects than `levels`.
    """
    if not isinstance(value, Mapping | list | tuple):
        return value
    if levels == 0:
        raise ValueError("it is nested too deeply")
    deeper = None if levels is None else levels - 1
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r:.40} is not a string")
        return {key: plain_json(item, deeper) for key, item in value.items()}
    return [plain_json(item, deeper) for item in value]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """Too large a number would be an infinity, which no count, size or time can be made of."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.20} is too large for a number")
    return value


_SPACE = " \t\n\r"
# Making a decoder costs more than most of the texts it is made for.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite
)
_LENIENT = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=float)


def escape_unprintable(text: str) -> str:
    """JSON text in which no character steers a terminal: what cannot be printed is escaped."""
    if text.isascii():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
