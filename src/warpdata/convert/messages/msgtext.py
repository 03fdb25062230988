"""The text of ROS message definitions: fields of a type, and of the types it is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import FormatError

PRIMITIVES = {
    "bool": "u1", "byte": "u1", "char": "u1", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2",
    "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "float32": "f4", "float64": "f8",
}  # fmt: skip
"""Type -> what numpy calls it; `bool` is one byte."""
TEXTS = ("string", "wstring")
_TIMES = ("time", "duration")
_MAX_DEPTH = 32
_MAX_TYPES = 4096
_MAX_FIELDS = 1 << 16
_SEPARATOR = re.compile(r"^={3,}\s*$", re.MULTILINE)
_FIELD = re.compile(
    r"^([A-Za-z][\w/]*)(?:<=\d+)?(\[(?:<=)?\d{0,18}\])?\s+([A-Za-z]\w*)\s*(=.*|\s.*)?$", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class MessageField:
    """One field: a primitive, a string or a type; once, a fixed number of times (`count`), or any number (-1)."""

    name: str
    type: str
    count: int | None
    of: Struct | None = None

    @property
    def is_sequence(self) -> bool:
        """Whether its length stands before it."""
        return self.count == -1


@dataclass(frozen=True)
class Struct:
    """A message type."""

    name: str
    fields: tuple[MessageField, ...]

    @cached_property
    def total(self) -> int:
        """How many fields there are, those of the types inside counted wherever they stand."""
        return sum(1 + (each.of.total if each.of is not None else 0) for each in self.fields)


def parse_definition(name: str, text: str) -> Struct:
    """A type with everything it is made of, from the text that recorders store; FormatError where it is none."""
    main, *others = _SEPARATOR.split(text)
    bodies = {_plain(name): main}
    for part in others:
        head, _, body = part.strip().partition("\n")
        if not head.startswith("MSG:"):
            raise FormatError(f"a definition of {name!r} does not say of which type")
        bodies[_plain(head[4:].strip())] = body
    if len(bodies) > _MAX_TYPES:
        raise FormatError(f"the definition of {name!r} has {len(bodies)} types")
    return _struct(_plain(name), bodies, {}, 0)


def _plain(name: str) -> str:
    """`pkg/Type`, however it was written."""
    parts = name.split("/")
    return f"{parts[0]}/{parts[-1]}" if len(parts) > 1 else name


def _struct(name: str, bodies: dict[str, str], known: dict[str, Struct], depth: int) -> Struct:
    if name in known:
        return known[name]
    if depth > _MAX_DEPTH:
        raise FormatError(f"type {name!r} is nested too deeply, or inside itself")
    package = name.partition("/")[0]
    fields = []
    for line in bodies[name].splitlines():
        stated = line.partition("#")[0].strip()
        if not stated or _is_constant(stated):
            continue
        found = _FIELD.match(stated)
        if found is None:
            raise FormatError(f"the definition of {name!r} has a line that is no field: {stated[:60]!r}")
        kind, bounds, label, _ = found.groups()
        fields.append(_field(label, kind, bounds, package, bodies, known, depth))
    known[name] = Struct(name, tuple(fields))
    if known[name].total > _MAX_FIELDS:
        raise FormatError(f"type {name!r} has more than {_MAX_FIELDS} fields")
    return known[name]


def _is_constant(line: str) -> bool:
    """`uint8 X=1`; a `=` inside the default of a string is none."""
    return re.match(r"^[\w/<=]+\s+[A-Z][A-Z0-9_]*\s*=", line) is not None


def _field(
    label: str,
    kind: str,
    bounds: str | None,
    package: str,
    bodies: dict[str, str],
    known: dict[str, Struct],
    depth: int,
) -> MessageField:
    count = None
    if bounds is not None:
        inner = bounds[1:-1]
        count = -1 if not inner or inner.startswith("<=") else int(inner)
    if kind in PRIMITIVES or kind in TEXTS:
        return MessageField(label, kind, count)
    if kind in _TIMES:
        return MessageField(
            label,
            kind,
            count,
            Struct(kind, (MessageField("sec", "int32", None), MessageField("nanosec", "uint32", None))),
        )
    chosen = _named(kind, package, bodies)
    if chosen is None and _plain(kind) in ("builtin_interfaces/Time", "builtin_interfaces/Duration"):
        stamp = Struct(
            _plain(kind), (MessageField("sec", "int32", None), MessageField("nanosec", "uint32", None))
        )
        return MessageField(label, kind, count, stamp)
    if chosen is None:
        raise FormatError(f"type {kind!r} of field {label!r} is not defined")
    return MessageField(label, kind, count, _struct(chosen, bodies, known, depth + 1))


def _named(kind: str, package: str, bodies: dict[str, str]) -> str | None:
    """The full name of a type that a field names."""
    wanted = [_plain(kind)] if "/" in kind else [f"{package}/{kind}", kind]
    if kind == "Header":
        wanted.append("std_msgs/Header")
    return next((each for each in wanted if each in bodies), None)
