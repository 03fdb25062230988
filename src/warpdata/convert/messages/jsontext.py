"""Decoder of JSON messages: types follow from the messages themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdata.bytekit.jsontext import parse_json
from warpdata.convert.messages.columns import Values, stack_values
from warpdata.convert.messages.log import Payloads
from warpdata.errors import FormatError, WarpError

_MAX_FIELDS = 4096


class JsonDecoder:
    """Flattens objects: `a/b` is member `b` of member `a`; a message that is no object is the field `value`."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message; None where a message lacks a field."""
        rows: list[dict[str, Any]] = []
        names: dict[str, None] = {}
        for message in messages.split():
            row: dict[str, Any] = {}
            try:
                _flatten(parse_json(bytes(message), allow_nan=True), "", row)
            except (WarpError, ValueError) as error:
                raise FormatError(f"message is not JSON ({error})", path=self._path) from None
            rows.append(row)
            names.update(dict.fromkeys(row))
            if len(names) > _MAX_FIELDS:
                raise FormatError(f"messages have more than {_MAX_FIELDS} fields", path=self._path)
        return {name: stack_values([row.get(name) for row in rows]) for name in names}


def _flatten(value: Any, prefix: str, row: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, member in value.items():
            _flatten(member, f"{prefix}{key}/", row)
    else:
        row[prefix[:-1] or "value"] = _convert_list(value) if isinstance(value, list) else value


def _convert_list(value: list[Any]) -> Any:
    """Numbers and flags as an array, strings as a tuple; None for other lists."""
    if value and all(isinstance(item, str) for item in value):
        return tuple(value)
    items = value
    while items and all(isinstance(item, list) for item in items):
        items = [inner for item in items for inner in item]
    types = {type(item) for item in items}
    if types == {bool} and items is value:
        return np.array(value, np.bool_)
    if not types <= {int, float}:
        return None
    try:
        return np.array(value, "<i8" if types == {int} else "<f8")
    except (ValueError, OverflowError):
        return None
