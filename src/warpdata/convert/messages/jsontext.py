"""JSON messages: what each field is follows from the messages themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdata.bytekit.jsontext import parse_json
from warpdata.convert.messages.columns import Values, gathered
from warpdata.convert.messages.log import Payloads
from warpdata.errors import FormatError, WarpError

_MAX_FIELDS = 4096


class JsonDecoder:
    """Objects, flattened: `a/b` is the member `b` of the member `a`; a value that is no object is `value`."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message; of one that some messages leave out, None where it is missing."""
        rows: list[dict[str, Any]] = []
        names: dict[str, None] = {}
        for message in messages.each():
            found: dict[str, Any] = {}
            try:
                told = parse_json(bytes(message), allow_nan=True)
            except (WarpError, ValueError) as error:
                raise FormatError(f"a message is not JSON ({error})", path=self._path) from None
            _flatten(told, "", found)
            rows.append(found)
            names.update(dict.fromkeys(found))
            if len(names) > _MAX_FIELDS:
                raise FormatError(f"messages with more than {_MAX_FIELDS} fields", path=self._path)
        return {name: gathered([row.get(name) for row in rows]) for name in names}


def _flatten(value: Any, above: str, out: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{above}{key}/", out)
        return
    name = above[:-1] or "value"
    out[name] = _leaf(value)


def _leaf(value: Any) -> Any:
    """Lists of numbers as arrays, lists of strings as tuples; other lists cannot be held."""
    if not isinstance(value, list):
        return value
    if value and all(isinstance(each, str) for each in value):
        return tuple(value)
    flat = [value]
    while flat and all(isinstance(each, list) for each in flat):
        flat = [inner for each in flat for inner in each]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in flat):
        return np.array(value, np.bool_) if flat and all(isinstance(each, bool) for each in value) else None
    try:
        whole = all(isinstance(each, int) for each in flat) and bool(flat)
        return np.array(value, "<i8" if whole else "<f8")
    except (ValueError, OverflowError, TypeError):
        return None
