"""ROS 2 messages: definitions of their types, and a decoder of CDR for many messages at once.

The offsets of all fields follow from the lengths of strings and sequences. One message is walked; all messages with the
same lengths in the same places are then read together, as columns of one matrix of bytes.

The adapter of rosbags, whose definitions of the types that ROS ships are used for bags that carry none. Its parser is
not used: it knows no `wstring` and no CRLF, renames fields, and takes ten times as long.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.messages import Ints, Payloads
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError

Values = NDArray[Any] | list[Any]
"""Numbers of one shape as an array; otherwise a list of str, bytes, tuples of str, or arrays of several lengths."""

# Definitions.

PRIMITIVES = {
    **dict.fromkeys(("bool", "byte", "char"), "u1"),
    **{f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"f{size}" for size in (4, 8)},
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
def ros_definition(name: str) -> str | None:
    """Definition of a type that ROS ships, with the types it uses; None for other types and without rosbags."""
    try:
        from rosbags.typesys import Stores, TypesysError, get_typestore
    except ImportError:
        return None
    try:
        text: str = get_typestore(Stores.LATEST).generate_msgdef(name, ros_version=2)[0]
    except TypesysError:
        return None
    return text


# CDR.

_HEAD_BYTES = 4
_ENCODINGS = {(0, 0): (">", 8), (0, 1): ("<", 8), (0, 6): (">", 4), (0, 7): ("<", 4)}
"""Encapsulation -> byte order and largest alignment: CDR and plain CDR2."""
_BLOB_TYPES = ("uint8", "byte", "char")
_MAX_SLOTS = 1 << 18
_MAX_LAYOUTS = 64
_MAX_PADDING = 7
_COMPARED_BYTES = 4 << 20

Matrix = NDArray[np.uint8]
"""One message per row."""


@dataclass(slots=True)
class _Leaf:
    """A field that holds values, with their offsets in one message."""

    type: str
    depth: int
    """Number of lengths above and at the field."""
    is_blob: bool
    slots: list[tuple[int, int]] = field(default_factory=list)
    """Offset and number of elements; for strings, of bytes."""
    dims: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the value in one message; None if it is no rectangular array."""
        if not self.slots:
            return (0,) * self.depth
        if len(self.dims) != 1:
            return None
        (shape,) = self.dims
        total = len(self.slots) if self.type in TEXTS else sum(count for _, count in self.slots)
        return shape if math.prod(shape) == total else None


@dataclass(slots=True)
class _Layout:
    """Offsets of all fields in messages with certain lengths."""

    size: int
    order: str
    offsets: Ints
    """Of the bytes that all messages of the layout share: the encapsulation and all lengths."""
    shared: NDArray[np.uint8]
    leaves: dict[str, _Leaf]
    tail: str | None
    """The bytes after `size`; their length, which is the last four bytes before, is not part of the layout."""

    def select(self, messages: Payloads, rows: Ints) -> NDArray[np.bool_]:
        """Which of these messages have this layout."""
        starts, sizes = messages.starts[rows], messages.sizes[rows]
        mask: NDArray[np.bool_] = sizes >= self.size if self.tail is not None else sizes == self.size
        candidates = np.flatnonzero(mask)
        step = max(1, _COMPARED_BYTES // len(self.offsets))
        for low in range(0, len(candidates), step):
            some = candidates[low : low + step]
            mask[some] = (messages.data[starts[some][:, None] + self.offsets] == self.shared).all(axis=1)
        return mask

    def read(self, messages: Payloads, rows: Ints) -> dict[str, Values]:
        """Fields of messages of this layout."""
        starts = messages.starts[rows]
        if len(rows) > 1 and bool((np.diff(starts) == self.size).all()):
            begin = int(starts[0])
            matrix = messages.data[begin : begin + self.size * len(rows)].reshape(len(rows), self.size)
        else:
            matrix = messages.data[starts[:, None] + np.arange(self.size)]
        values: dict[str, Values] = {}
        for name, leaf in self.leaves.items():
            shape = leaf.shape
            if name == self.tail:
                raw = np.ascontiguousarray(matrix[:, -4:])
                sizes = raw.view(f"{self.order}u4").reshape(-1).astype(np.int64)
                rest = messages.sizes[rows] - self.size - sizes
                if ((rest < 0) | (rest > _MAX_PADDING)).any():
                    raise CorruptLayoutError("size of a message does not match its last field")
                values[name] = Payloads(messages.data, messages.starts[rows] + self.size, sizes).split()
            elif shape is None:
                values[name] = [None] * len(rows)
            elif leaf.type in TEXTS:
                columns = [_read_strings(leaf.type, matrix, *slot, self.order) for slot in leaf.slots]
                values[name] = (
                    columns[0] if leaf.depth == 0 else list(zip(*columns, strict=True)) or [()] * len(rows)
                )
            elif leaf.is_blob:
                begin, count = leaf.slots[0]
                values[name] = [row.tobytes() for row in matrix[:, begin : begin + count]]
            else:
                values[name] = _read_numbers(leaf, shape, matrix, self.order)
        return values


class CdrDecoder:
    """Messages of one type."""

    leaves_out = False

    def __init__(self, struct: Struct, path: str = "") -> None:
        self._struct, self._path = struct, path
        self._layouts: list[_Layout] = []
        last = struct.fields[-1] if struct.fields else None
        is_blob = last is not None and last.count == -1 and last.type in _BLOB_TYPES
        self._tail = last.name if is_blob and last is not None else None

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message; CorruptLayoutError if a message does not match the type."""
        parts: dict[str, list[tuple[Ints, Values]]] = {name: [] for name in _declare(self._struct)}
        rest = np.arange(len(messages.starts))
        known = iter(list(self._layouts))
        while len(rest):
            layout = next(known, None)
            if layout is None:
                start, size = int(messages.starts[rest[0]]), int(messages.sizes[rest[0]])
                walk = _Walk(messages.data[start : start + size].tobytes(), self._tail, self._path)
                layout = walk.run(self._struct)
                self._layouts += [layout] if len(self._layouts) < _MAX_LAYOUTS else []
            mask = layout.select(messages, rest)
            rows, rest = rest[mask], rest[~mask]
            if len(rows):
                for name, values in layout.read(messages, rows).items():
                    parts[name].append((rows, values))
        return {name: _merge(pieces, len(messages.starts)) for name, pieces in parts.items()}


def _declare(struct: Struct, prefix: str = "", depth: int = 0) -> dict[str, _Leaf]:
    """All fields that hold values, without offsets."""
    leaves: dict[str, _Leaf] = {}
    for part in struct.fields:
        name, inner = f"{prefix}{part.name}", depth + (part.count is not None)
        if part.struct is not None:
            leaves |= _declare(part.struct, f"{name}/", inner)
        else:
            is_blob = depth == 0 and part.count == -1 and part.type in _BLOB_TYPES
            leaves[name] = _Leaf(part.type, inner, is_blob)
    return leaves


class _Walk:
    """Reads one message from front to back and notes the offsets of its fields."""

    def __init__(self, data: bytes, tail: str | None, path: str) -> None:
        self._data, self._tail, self._path = data, tail, path
        if len(data) < _HEAD_BYTES or (data[0], data[1]) not in _ENCODINGS:
            raise FormatError("message is not CDR", path=path)
        self._order, self._max_align = _ENCODINGS[data[0], data[1]]
        self._at = _HEAD_BYTES
        self._length_offsets: list[int] = []
        self._slot_count = 0
        self._tail_offset = -1
        self._leaves: dict[str, _Leaf] = {}

    def run(self, struct: Struct) -> _Layout:
        """Layout of the message, which must have no bytes beyond its type."""
        self._leaves = _declare(struct)
        self._walk_struct(struct, "", ())
        rest = len(self._data) - self._at
        if rest > _MAX_PADDING:
            raise CorruptLayoutError(f"message has {rest} bytes more than its type", path=self._path)
        lengths = np.array(self._length_offsets, np.int64)
        offsets = np.concatenate([np.arange(2), (lengths[:, None] + np.arange(4)).reshape(-1)])
        shared = np.frombuffer(self._data, np.uint8)[offsets]
        if self._tail_offset < 0:
            return _Layout(len(self._data), self._order, offsets, shared, self._leaves, None)
        return _Layout(self._tail_offset + 4, self._order, offsets, shared, self._leaves, self._tail)

    def _walk_struct(self, struct: Struct, prefix: str, dims: tuple[int, ...]) -> None:
        if not struct.fields:
            self._skip(1, 1)
        for part in struct.fields:
            count = 1 if part.count is None else part.count
            if count == -1:
                count = self._read_length(is_tail=not prefix and part.name == self._tail)
            own_dims = dims if part.count is None else (*dims, count)
            if part.struct is None:
                self._walk_values(part, self._leaves[f"{prefix}{part.name}"], count, own_dims)
                continue
            for _ in range(count):
                self._count_slot()
                self._walk_struct(part.struct, f"{prefix}{part.name}/", own_dims)

    def _walk_values(self, part: MessageField, leaf: _Leaf, count: int, dims: tuple[int, ...]) -> None:
        if part.type in TEXTS:
            for _ in range(count):
                size = self._read_length()
                leaf.slots.append((self._skip(1, size * (2 if part.type == "wstring" else 1)), size))
                self._count_slot()
        elif count:
            width = int(PRIMITIVES[part.type][1])
            leaf.slots.append((self._skip(width, width * count), count))
            self._count_slot()
        elif not leaf.slots or leaf.is_blob:
            leaf.slots.append((self._at, 0))
        leaf.dims.add(dims)

    def _count_slot(self) -> None:
        self._slot_count += 1
        if self._slot_count > _MAX_SLOTS:
            raise LimitExceededError(f"message has more than {_MAX_SLOTS} values", path=self._path)

    def _read_length(self, *, is_tail: bool = False) -> int:
        at = self._skip(4, 4)
        length = int.from_bytes(self._data[at : at + 4], "little" if self._order == "<" else "big")
        if length > len(self._data) - self._at:
            fact = f"length {length} in a message of {len(self._data)} bytes"
            raise CorruptLayoutError(fact, path=self._path)
        if is_tail:
            self._tail_offset = at
        else:
            self._length_offsets.append(at)
        return length

    def _skip(self, align: int, size: int) -> int:
        """Offset of the next value; the walk continues after it."""
        begin = self._at + -(self._at - _HEAD_BYTES) % min(align, self._max_align)
        if begin + size > len(self._data):
            raise CorruptLayoutError("message ends before its last field", path=self._path)
        self._at = begin + size
        return begin


def _read_numbers(leaf: _Leaf, shape: tuple[int, ...], matrix: Matrix, order: str) -> NDArray[Any]:
    kind = PRIMITIVES[leaf.type]
    width = int(kind[1])
    slices = [matrix[:, at : at + width * count] for at, count in leaf.slots]
    raw = slices[0] if len(slices) == 1 else np.concatenate([matrix[:, :0], *slices], axis=1)
    values = np.ascontiguousarray(raw).view(f"{order}{kind}").astype(f"<{kind}", copy=False)
    if leaf.type == "bool":
        values = values != 0
    return values.reshape(len(matrix), *shape)


def _read_strings(kind: str, matrix: Matrix, at: int, size: int, order: str) -> list[str]:
    part = matrix[:, at : at + size * (2 if kind == "wstring" else 1)]
    if len(part) > 1 and bool((part == part[0]).all()):
        return _read_strings(kind, matrix[:1], at, size, order) * len(part)
    if kind == "wstring":
        codec = "utf-16-le" if order == "<" else "utf-16-be"
        return [row.tobytes().decode(codec, "replace") for row in part]
    return [row.tobytes().removesuffix(b"\0").decode("utf-8", "surrogateescape") for row in part]


def _merge(parts: list[tuple[Ints, Values]], count: int) -> Values:
    """Values of all layouts in the order of the messages."""
    if len(parts) == 1:
        return parts[0][1]
    arrays = [values for _, values in parts if isinstance(values, np.ndarray)]
    if arrays and len(arrays) == len(parts) and len({values.shape[1:] for values in arrays}) == 1:
        merged = np.empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        for rows, values in parts:
            merged[rows] = values
        return merged
    items: list[Any] = [None] * count
    for rows, values in parts:
        for row, value in zip(rows.tolist(), values, strict=True):
            items[row] = value
    return items
