"""Text of ROS message definitions: the fields of a type and of the types inside it.

The parser of rosbags is not used for these: it knows no `wstring` and no CRLF, renames fields, and takes ten times as
long. Its definitions of the types that ROS ships are used for bags that carry none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from warpdata.errors import FormatError

PRIMITIVES = {
    "bool": "u1",
    "byte": "u1",
    "char": "u1",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "int64": "i8",
    "uint64": "u8",
    "float32": "f4",
    "float64": "f8",
}
"""Type -> numpy type code; `bool` is one byte."""
TEXTS = ("string", "wstring")
_TIME_TYPES = ("time", "duration", "builtin_interfaces/Time", "builtin_interfaces/Duration")
_MAX_DEPTH = 32
_MAX_TYPES = 4096
_MAX_FIELDS = 1 << 16
_SEPARATOR = re.compile(r"^={3,}\s*$", re.MULTILINE)
_FIELD = re.compile(
    r"([A-Za-z][\w/]*)(?:<=\d+)?(?:\[((?:<=)?\d{0,18})\])?\s+([A-Za-z]\w*)\s*(=.*|\s.*)?", re.DOTALL
)
_CONSTANT = re.compile(r"[\w/<=]+\s+[A-Z][A-Z0-9_]*\s*=")


@dataclass(frozen=True, slots=True)
class MessageField:
    """A primitive, a string or a struct: one value (`count` None), a fixed number, or a sequence (-1)."""

    name: str
    type: str
    count: int | None
    struct: Struct | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    """A message type."""

    fields: tuple[MessageField, ...]
    total: int
    """Number of fields, those of inner types counted at every use."""


_TIME = Struct((MessageField("sec", "int32", None), MessageField("nanosec", "uint32", None)), 2)


def parse_definition(name: str, text: str) -> Struct:
    """Parse the definition of a type, followed by those of the types it uses, as recorders store it."""
    main, *others = _SEPARATOR.split(text)
    bodies = {_short_name(name): main}
    for part in others:
        head, _, body = part.strip().partition("\n")
        if not head.startswith("MSG:"):
            raise FormatError(f"definition of {name!r} has a part without 'MSG: <type>'")
        bodies[_short_name(head[4:].strip())] = body
    if len(bodies) > _MAX_TYPES:
        raise FormatError(f"definition of {name!r} has {len(bodies)} types (limit {_MAX_TYPES})")
    return _parse_struct(_short_name(name), bodies, {}, 0)


def _short_name(name: str) -> str:
    """`pkg/msg/Type` as `pkg/Type`."""
    parts = name.split("/")
    return f"{parts[0]}/{parts[-1]}" if len(parts) > 1 else name


def _parse_struct(name: str, bodies: dict[str, str], parsed: dict[str, Struct], depth: int) -> Struct:
    if name in parsed:
        return parsed[name]
    if depth > _MAX_DEPTH:
        raise FormatError(f"type {name!r} is nested too deeply or contains itself")
    fields = []
    for text in bodies[name].splitlines():
        line = text.partition("#")[0].strip()
        if not line or _CONSTANT.match(line):
            continue
        match = _FIELD.fullmatch(line)
        if match is None:
            raise FormatError(f"invalid line in the definition of {name!r}: {line[:60]!r}")
        kind, bounds, label, _ = match.groups()
        count = None if bounds is None else int(bounds) if bounds.isdigit() else -1
        struct = None
        if kind not in PRIMITIVES and kind not in TEXTS:
            inner = _resolve_type(kind, name.partition("/")[0], bodies)
            struct = _parse_struct(inner, bodies, parsed, depth + 1) if inner is not None else _TIME
        fields.append(MessageField(label, kind, count, struct))
    total = sum(1 if field.struct is None else 1 + field.struct.total for field in fields)
    if total > _MAX_FIELDS:
        raise FormatError(f"type {name!r} has more than {_MAX_FIELDS} fields")
    parsed[name] = Struct(tuple(fields), total)
    return parsed[name]


def _resolve_type(kind: str, package: str, bodies: dict[str, str]) -> str | None:
    """Name under which the type of a field is defined; None for times, which need no definition."""
    candidates = [_short_name(kind)] if "/" in kind else [f"{package}/{kind}", kind]
    if kind == "Header":
        candidates.append("std_msgs/Header")
    for candidate in candidates:
        if candidate in bodies:
            return candidate
    if _short_name(kind) in _TIME_TYPES:
        return None
    raise FormatError(f"type {kind!r} is not defined")


@cache
def _type_store() -> Any | None:
    try:
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        return None
    return get_typestore(Stores.LATEST)


@cache
def ros_definition(name: str) -> str | None:
    """Definition of a type that ROS ships, with the types it uses; None for other types and without rosbags."""
    store = _type_store()
    if store is None:
        return None
    from rosbags.typesys import TypesysError

    try:
        text: str = store.generate_msgdef(name, ros_version=2)[0]
    except TypesysError:
        return None
    return text
