"""The wire of protobuf: the fields of a message as they lie there, whatever they mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warpdata.errors import CorruptLayoutError

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


class WireField(NamedTuple):
    """One field as it lies in a message."""

    number: int
    wire: int
    value: int
    """Of a number, the number itself as unsigned."""
    start: int
    stop: int
    """Of bytes, where they lie."""


def wire_fields(data: bytes | memoryview, start: int = 0, stop: int | None = None) -> Iterator[WireField]:
    """The fields of a message in the order they lie there; CorruptLayoutError where it is none."""
    at, end = start, len(data) if stop is None else stop
    while at < end:
        key, at = varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield WireField(number, wire, value, at, at)
            continue
        size = 8 if wire == FIXED64 else 4
        if wire == DELIMITED:
            size, at = varint(data, at, end)
        elif wire not in (FIXED64, FIXED32):
            raise CorruptLayoutError(f"a protobuf message with a field of kind {wire}")
        if not number or size > end - at:
            raise CorruptLayoutError("a field of a protobuf message is longer than it")
        value = 0 if wire == DELIMITED else int.from_bytes(data[at : at + size], "little")
        yield WireField(number, wire, value, at, at + size)
        at += size


def varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise CorruptLayoutError("a protobuf message holds a number without an end, or of more than 64 bits")
