"""`tf.train.Example`: named lists of bytes, floats or whole numbers, from the wire and onto it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.varint import decode_varints, encode_varints
from warpdata.convert.rlds.wire import DELIMITED, FIXED32, VARINT, wire_fields
from warpdata.errors import CorruptLayoutError, FormatError

Kind = Literal["bytes", "floats", "ints", "nothing"]

_KINDS: dict[int, Kind] = {1: "bytes", 2: "floats", 3: "ints"}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_EMPTY = np.empty(0, np.int64)


class Values(NamedTuple):
    """One list of an Example."""

    kind: Kind
    entries: Sequence[memoryview] = ()
    """Of bytes: one view per entry."""
    numbers: NDArray[Any] = _EMPTY
    """Of floats f32, of whole numbers i64 as they are parsed."""

    def __len__(self) -> int:
        return len(self.entries) if self.kind == "bytes" else len(self.numbers)


def parse_example(data: memoryview, where: str) -> dict[str, Values]:
    """Every list of an Example by its name; views of the bytes that are given."""
    found: dict[str, Values] = {}
    try:
        for number, _, features in _fields(data):
            if number != 1:
                continue
            for entry_number, _, entry in _fields(_view(features)):
                if entry_number == 1:
                    name, values = _entry(_view(entry))
                    found[name] = values
    except FormatError as error:
        raise CorruptLayoutError(f"not a tf.train.Example: {error.message}", path=where) from None
    return found


def _entry(data: memoryview) -> tuple[str, Values]:
    name, values = "", Values("nothing")
    for number, _, value in _fields(data):
        if number == 1:
            try:
                name = bytes(_view(value)).decode()
            except UnicodeDecodeError:
                raise CorruptLayoutError("a name is not UTF-8") from None
        elif number == 2:
            for kind, _, listed in _fields(_view(value)):
                if kind in _KINDS:
                    values = _values(_KINDS[kind], _view(listed))
    return name, values


def _values(kind: Kind, data: memoryview) -> Values:
    if kind == "bytes":
        return Values(kind, _entries(data))
    parts = [(wire, value) for number, wire, value in _fields(data) if number == 1]
    if kind == "floats":
        return Values(kind, numbers=_joined([_floats(wire, value) for wire, value in parts], np.float32))
    return Values(kind, numbers=_joined([_ints(wire, value) for wire, value in parts], np.int64))


_ENTRY = 1 << 3 | DELIMITED


def _entries(data: memoryview) -> list[memoryview]:
    """The entries of a list of bytes, of which an episode has one for every step: no call for each."""
    found, at, end = [], 0, len(data)
    while at < end:
        if data[at] != _ENTRY:
            return [_view(value) for number, _, value in _fields(data) if number == 1]
        at += 1
        size = shift = 0
        while at < end:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift >= _MOST_BITS:
                break
        else:
            raise CorruptLayoutError("a list of bytes is cut short")
        if byte >= 0x80 or size > end - at:
            raise CorruptLayoutError("an entry of a list of bytes is longer than it")
        found.append(data[at : at + size])
        at += size
    return found


_MOST_BITS = 70


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _floats(wire: int, value: memoryview | int) -> NDArray[Any]:
    if wire not in (DELIMITED, FIXED32) or len(_view(value)) % 4:
        raise CorruptLayoutError("a list of floats has no whole number of them")
    return np.frombuffer(_view(value), "<f4")


def _ints(wire: int, value: memoryview | int) -> NDArray[Any]:
    if wire == VARINT:
        return np.array([value], np.uint64).view(np.int64)
    if wire != DELIMITED:
        raise CorruptLayoutError("a list of whole numbers holds another kind")
    return decode_varints(_view(value)).view(np.int64)


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """The fields of a message: number, wire type, and the bytes or the number."""
    for number, wire, value, start, stop in wire_fields(data):
        yield number, wire, value if wire == VARINT else data[start:stop]


def _view(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise CorruptLayoutError("a number where bytes were expected")
    return value


def build_example(features: Mapping[str, Values]) -> bytes:
    """An Example with these lists, in the order of their names: equal lists give equal bytes."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _list(features[name]))) for name in sorted(features)
    )
    return _field(1, entries)


def _list(values: Values) -> bytes:
    if values.kind == "nothing":
        return b""
    if values.kind == "bytes":
        inside = b"".join(_field(1, entry) for entry in values.entries)
    elif not len(values.numbers):
        inside = b""
    elif values.kind == "floats":
        inside = _field(1, np.ascontiguousarray(values.numbers, "<f4").tobytes())
    else:
        inside = _field(1, encode_varints(np.ascontiguousarray(values.numbers, np.int64).view(np.uint64)))
    return _field(_NUMBERS[values.kind], inside)


def _field(number: int, data: bytes | memoryview) -> bytes:
    return b"".join((_small(number << 3 | DELIMITED), _small(len(data)), data))


def _small(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_values(entries: Sequence[bytes]) -> Values:
    """A list of bytes."""
    return Values("bytes", [memoryview(entry) for entry in entries])
