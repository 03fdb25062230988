"""Protobuf messages by the descriptors that a recording carries; no generated code and no protobuf library.

A field that a message leaves out has its default. Repeated messages are lists of their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warpdata.convert.messages.columns import Values, gathered
from warpdata.convert.messages.log import Payloads
from warpdata.convert.wire import DELIMITED, FIXED32, FIXED64, VARINT, WireField, varint, wire_fields
from warpdata.errors import CorruptLayoutError, FormatError

_FIXED = {1: "<f8", 2: "<f4", 6: "<u8", 7: "<u4", 15: "<i4", 16: "<i8"}
_VARINTS = {3: "<i8", 4: "<u8", 5: "<i4", 8: "|b1", 13: "<u4", 14: "<i4", 17: "<i4", 18: "<i8"}
_STRING, _GROUP, _MESSAGE, _BYTES = 9, 10, 11, 12
_REPEATED = 3
_MAX_DEPTH = 24
_MAX_FIELDS = 1 << 16


@dataclass(slots=True)
class _FieldType:
    name: str
    number: int
    type: int
    is_repeated: bool
    of: _MessageType | None = None
    of_name: str = ""


@dataclass(slots=True)
class _MessageType:
    name: str
    fields: dict[int, _FieldType] = field(default_factory=dict)


@dataclass(slots=True)
class _Leaf:
    """A field that holds values, by the way to it."""

    path: str
    type: int
    depth: int


class ProtobufDecoder:
    """Messages of one type out of a set of descriptors."""

    def __init__(self, name: str, descriptors: bytes, path: str = "") -> None:
        self._path = path
        try:
            types = _types_of(descriptors)
        except (UnicodeDecodeError, CorruptLayoutError) as error:
            raise FormatError(f"the descriptors of {name!r} are damaged ({error})", path=path) from None
        if name not in types:
            raise FormatError(f"the descriptors have no message {name!r}", path=path)
        self._type = types[name]
        self._leaves: dict[str, _Leaf] = {}
        self._inside: set[str] = set()
        """The ways to all messages whose fields are leaves."""
        self._declare(self._type, "", 0, ())

    def _declare(self, kind: _MessageType, above: str, depth: int, inside: tuple[str, ...]) -> None:
        if kind.name in inside or len(inside) > _MAX_DEPTH:
            return  # a type inside itself has no end: what lies there stays in the message
        self._inside.add(above)
        for each in kind.fields.values():
            if len(self._leaves) + len(self._inside) > _MAX_FIELDS:
                raise FormatError(
                    f"message {self._type.name!r} has more than {_MAX_FIELDS} fields", path=self._path
                )
            more = depth + each.is_repeated
            if each.of is not None:
                self._declare(each.of, f"{above}{each.name}/", more, (*inside, kind.name))
                continue
            path = f"{above}{each.name}"
            if path in self._leaves:
                raise FormatError(f"message {self._type.name!r} has two fields {path!r}", path=self._path)
            self._leaves[path] = _Leaf(path, each.type, more)

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message."""
        rows: dict[str, list[Any]] = {name: [] for name in self._leaves}
        for message in messages.each():
            found: dict[str, list[Any]] = {name: [] for name in self._leaves}
            try:
                self._read(bytes(message), self._type, "", found, 0)
            except CorruptLayoutError as error:
                raise CorruptLayoutError(error.message, path=self._path) from None
            for name, leaf in self._leaves.items():
                rows[name].append(_value(leaf, found[name]))
        return {name: gathered(values) for name, values in rows.items()}

    def _read(
        self, data: bytes, kind: _MessageType, above: str, out: Mapping[str, list[Any]], depth: int
    ) -> None:
        seen: set[int] = set()
        for wire in wire_fields(data):
            each = kind.fields.get(wire.number)
            if each is None or not _is_of(each, wire):
                continue
            path = f"{above}{each.name}"
            if each.of is not None:
                if f"{path}/" in self._inside:
                    self._read(data[wire.start : wire.stop], each.of, f"{path}/", out, depth + 1)
            else:
                if wire.number in seen and not each.is_repeated:
                    out[path].pop()  # the last one counts
                out[path].extend(_values(each, wire, data))
            seen.add(wire.number)
        # Inside of a list, every element has every field.
        for each in kind.fields.values():
            if each.number not in seen and not each.is_repeated and depth:
                self._default(each, f"{above}{each.name}", out)

    def _default(self, each: _FieldType, path: str, out: Mapping[str, list[Any]]) -> None:
        if each.of is None:
            out[path].append(_zero(each.type))
        elif f"{path}/" in self._inside:
            for inner in each.of.fields.values():
                if not inner.is_repeated:
                    self._default(inner, f"{path}/{inner.name}", out)


def _is_of(each: _FieldType, wire: WireField) -> bool:
    """Whether a field lies there as its type says; one that does not is unknown, as for every reader of protobuf."""
    if each.of is not None or each.type in (_STRING, _BYTES):
        return wire.wire == DELIMITED
    if wire.wire == DELIMITED:
        return each.is_repeated
    if each.type in _VARINTS:
        return wire.wire == VARINT
    return wire.wire == (FIXED64 if _dtype(each.type).itemsize == 8 else FIXED32)


def _zero(kind: int) -> Any:
    if kind == _STRING:
        return ""
    return b"" if kind == _BYTES else _dtype(kind).type(0)


def _dtype(kind: int) -> np.dtype[Any]:
    return np.dtype(_FIXED.get(kind) or _VARINTS[kind])


def _value(leaf: _Leaf, found: list[Any]) -> Any:
    """The value of a field in one message."""
    if leaf.type == _STRING:
        return tuple(found) if leaf.depth else (found[-1] if found else "")
    if leaf.type == _BYTES:
        return None if leaf.depth else (found[-1] if found else b"")
    if leaf.depth > 1:
        return None
    values = np.array(found, _dtype(leaf.type))
    return values if leaf.depth else (values[-1:] if len(values) else np.zeros(1, values.dtype)).reshape(())


def _values(each: _FieldType, wire: WireField, data: bytes) -> list[Any]:
    if each.type == _STRING:
        return [data[wire.start : wire.stop].decode("utf-8", "surrogateescape")]
    if each.type == _BYTES:
        return [data[wire.start : wire.stop]]
    if wire.wire != DELIMITED:
        return [_number(each.type, wire.value)]
    if each.type in _FIXED:
        dtype = _dtype(each.type)
        if (wire.stop - wire.start) % dtype.itemsize:
            raise CorruptLayoutError("a packed field of a protobuf message is cut")
        return list(np.frombuffer(data[wire.start : wire.stop], dtype))
    found, at = [], wire.start
    while at < wire.stop:
        value, at = varint(data, at, wire.stop)
        found.append(_number(each.type, value))
    return found


def _number(kind: int, raw: int) -> Any:
    dtype = _dtype(kind)
    if kind in (17, 18):
        raw = (raw >> 1) ^ -(raw & 1)
    if kind in _FIXED:
        return np.frombuffer(
            (raw & ((1 << 8 * dtype.itemsize) - 1)).to_bytes(dtype.itemsize, "little"), dtype
        )[0]
    if dtype.kind == "b":
        return np.bool_(raw != 0)
    bits = 8 * dtype.itemsize
    raw &= (1 << bits) - 1
    return dtype.type(raw - (1 << bits) if dtype.kind == "i" and raw >> (bits - 1) else raw)


# Descriptors, which are protobuf messages themselves.


def _types_of(descriptors: bytes) -> dict[str, _MessageType]:
    types: dict[str, _MessageType] = {}
    for file in wire_fields(descriptors):
        if file.number != 1 or file.wire != DELIMITED:
            continue
        parts = [each for each in wire_fields(descriptors, file.start, file.stop) if each.wire == DELIMITED]
        package = next((_text(descriptors, each) for each in parts if each.number == 2), "")
        for each in parts:
            if each.number == 4:
                _add_type(descriptors, each, package, types, 0)
    for kind in types.values():
        for named in kind.fields.values():
            if named.type in (_MESSAGE, _GROUP):
                named.of = types.get(named.of_name)
    for kind in types.values():
        kind.fields = {
            number: each
            for number, each in kind.fields.items()
            if each.of is not None
            or each.type in _FIXED
            or each.type in _VARINTS
            or each.type in (_STRING, _BYTES)
        }
    return types


def _add_type(data: bytes, at: WireField, above: str, types: dict[str, _MessageType], depth: int) -> None:
    parts = [each for each in wire_fields(data, at.start, at.stop) if each.wire == DELIMITED]
    name = next((_text(data, each) for each in parts if each.number == 1), "")
    kind = _MessageType(f"{above}.{name}" if above else name)
    if depth > _MAX_DEPTH or len(types) > _MAX_FIELDS:
        raise CorruptLayoutError("descriptors are nested too deeply")
    types[kind.name] = kind
    for each in parts:
        if each.number == 3:
            _add_type(data, each, kind.name, types, depth + 1)
        elif each.number == 2:
            made = _field_type(data, each)
            kind.fields[made.number] = made


def _field_type(data: bytes, at: WireField) -> _FieldType:
    name, of_name, number, label, kind = "", "", 0, 0, 0
    for each in wire_fields(data, at.start, at.stop):
        if each.number == 1:
            name = _text(data, each)
        elif each.number == 6:
            of_name = _text(data, each).removeprefix(".")
        elif each.number == 3:
            number = each.value
        elif each.number == 4:
            label = each.value
        elif each.number == 5:
            kind = each.value
    return _FieldType(name, number, kind, label == _REPEATED, None, of_name)


def _text(data: bytes, at: WireField) -> str:
    return data[at.start : at.stop].decode()
