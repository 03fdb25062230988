"""CDR, the wire form of ROS 2 messages, decoded for many messages at once.

Where the fields of a message lie follows from the lengths of its strings and sequences alone. One message is walked
through; all that have the same lengths in the same places are then read together, as columns of one matrix of bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.messages.columns import Values
from warpdata.convert.messages.log import Ints, Payloads
from warpdata.convert.messages.msgtext import PRIMITIVES, TEXTS, MessageField, Struct
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError

HEAD_BYTES = 4
_PLAIN = {(0, 0): (">", 8), (0, 1): ("<", 8), (0, 6): (">", 4), (0, 7): ("<", 4)}
"""Encapsulation -> byte order and largest alignment: CDR, and plain CDR2."""
_BLOBS = ("uint8", "byte", "char")
_MAX_SLOTS = 1 << 18
_KEPT_LAYOUTS = 64
_MAX_PADDING = 7
_MATRIX_BYTES = 32 << 20


@dataclass(slots=True)
class _Leaf:
    """A field that holds values: where they lie in one message."""

    type: str
    depth: int
    """How many lengths there are above and at the field."""
    is_blob: bool = False
    slots: list[tuple[int, int]] = field(default_factory=list)
    """Offset and number of elements; of strings, of bytes."""
    dims: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the value in one message; None where it is not a box."""
        if not self.slots:
            return (0,) * self.depth
        if len(self.dims) != 1:
            return None
        (found,) = self.dims
        total = len(self.slots) if self.type in TEXTS else sum(count for _, count in self.slots)
        return found if math.prod(found) == total else None


@dataclass(slots=True)
class _Layout:
    """Where everything lies in messages of these lengths."""

    size: int
    order: str
    head: bytes
    at: NDArray[np.int64]
    """Where the lengths stand."""
    lengths: NDArray[np.uint32]
    leaves: dict[str, _Leaf]
    tail: str | None
    """The bytes at the very end, whose length is not part of the layout."""
    tail_at: int = 0

    def members(self, messages: Payloads, rows: Ints) -> NDArray[np.bool_]:
        """Which of these messages have this layout."""
        starts, sizes = messages.starts[rows], messages.sizes[rows]
        found: NDArray[np.bool_] = sizes >= self.size if self.tail is not None else sizes == self.size
        at = np.concatenate([np.arange(2), (self.at[:, None] + np.arange(4)).reshape(-1)])
        wanted = np.frombuffer(self.head + self.lengths.astype(f"{self.order}u4").tobytes(), np.uint8)
        there = np.flatnonzero(found)
        step = max(1, _MATRIX_BYTES // max(1, 8 * len(at)))
        for low in range(0, len(there), step):
            some = there[low : low + step]
            found[some] = (messages.data[starts[some][:, None] + at] == wanted).all(axis=1)
        return found


class CdrDecoder:
    """Messages of one type."""

    def __init__(self, struct: Struct, path: str = "") -> None:
        self._struct, self._path = struct, path
        self._layouts: list[_Layout] = []
        self._fields: dict[str, _Leaf] = {}
        _declare(struct, "", 0, self._fields)
        last = struct.fields[-1] if struct.fields else None
        self._tail = last.name if last is not None and last.is_sequence and last.type in _BLOBS else None

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message; CorruptLayoutError where a message is not of this type."""
        pieces: dict[str, list[tuple[Ints, Values]]] = {name: [] for name in self._fields}
        left = np.arange(len(messages.starts))
        known = iter(list(self._layouts))
        while len(left):
            layout = next(known, None) or self._walk(messages, int(left[0]))
            mask = layout.members(messages, left)
            rows, left = left[mask], left[~mask]
            if not len(rows):
                continue
            for name, values in _columns(layout, messages, rows).items():
                pieces[name].append((rows, values))
        return {name: _together(parts, len(messages.starts)) for name, parts in pieces.items()}

    def _walk(self, messages: Payloads, row: int) -> _Layout:
        start, size = int(messages.starts[row]), int(messages.sizes[row])
        walk = _Walk(messages.data[start : start + size].tobytes(), self._tail, self._path)
        leaves: dict[str, _Leaf] = {}
        _declare(self._struct, "", 0, leaves)
        walk.struct(self._struct, "", (), leaves, is_top=True)
        layout = walk.layout(leaves)
        if len(self._layouts) < _KEPT_LAYOUTS:
            self._layouts.append(layout)
        return layout


def _declare(struct: Struct, above: str, depth: int, out: dict[str, _Leaf]) -> None:
    for each in struct.fields:
        name = f"{above}{each.name}"
        more = depth + (each.count is not None)
        if each.of is not None:
            _declare(each.of, f"{name}/", more, out)
        else:
            out[name] = _Leaf(
                each.type, more, is_blob=depth == 0 and each.is_sequence and each.type in _BLOBS
            )


class _Walk:
    """One message from front to back."""

    def __init__(self, data: bytes, tail: str | None, path: str) -> None:
        self._data, self._tail, self._path = data, tail, path
        if len(data) < HEAD_BYTES or (data[0], data[1]) not in _PLAIN:
            raise FormatError("a message is not in CDR", path=path)
        self._order, self._most = _PLAIN[data[0], data[1]]
        self._byteorder: Any = "little" if self._order == "<" else "big"
        self._at = HEAD_BYTES
        self._lengths: list[tuple[int, int]] = []
        self._slots = 0
        self._tail_at = -1

    def layout(self, leaves: dict[str, _Leaf]) -> _Layout:
        """What was found, when all of the message is accounted for."""
        rest = len(self._data) - self._at
        if rest < 0 or rest > _MAX_PADDING:
            raise CorruptLayoutError(f"a message has {rest} bytes more than its type", path=self._path)
        at = np.array([each[0] for each in self._lengths], np.int64)
        lengths = np.array([each[1] for each in self._lengths], np.uint32)
        has_tail = self._tail_at >= 0
        size = self._tail_at + 4 if has_tail else len(self._data)
        return _Layout(
            size, self._order, self._data[:2], at, lengths, leaves, self._tail if has_tail else None, self._tail_at
        )  # fmt: skip

    def struct(
        self,
        struct: Struct,
        above: str,
        dims: tuple[int, ...],
        leaves: dict[str, _Leaf],
        *,
        is_top: bool = False,
    ) -> None:
        """All fields of a type."""
        if not struct.fields:
            self._skip(1, 1)
        for each in struct.fields:
            self._field(each, f"{above}{each.name}", dims, leaves, is_top)

    def _field(
        self, each: MessageField, name: str, dims: tuple[int, ...], leaves: dict[str, _Leaf], is_top: bool
    ) -> None:
        count, own = 1, dims
        if each.count is not None:
            is_tail = is_top and each.name == self._tail
            count = self._length(is_tail) if each.is_sequence else each.count
            own = (*dims, count)
        if each.of is not None:
            for _ in range(count):
                self._count_slot()
                self.struct(each.of, f"{name}/", own, leaves)
            return
        leaf = leaves[name]
        if each.type in TEXTS:
            for _ in range(count):
                size = self._length()
                leaf.slots.append((self._skip(1, size * (2 if each.type == "wstring" else 1)), size))
                self._count_slot()
        elif count:
            width = int(PRIMITIVES[each.type][1])
            leaf.slots.append((self._skip(width, width * count), count))
            self._count_slot()
        elif not leaf.slots or leaf.is_blob:
            leaf.slots.append((self._at, 0))
        leaf.dims.add(own)

    def _count_slot(self) -> None:
        self._slots += 1
        if self._slots > _MAX_SLOTS:
            raise LimitExceededError(f"a message has more than {_MAX_SLOTS} values", path=self._path)

    def _length(self, is_tail: bool = False) -> int:
        at = self._skip(4, 4)
        found = int.from_bytes(self._data[at : at + 4], self._byteorder)
        if found > len(self._data) - self._at:
            raise CorruptLayoutError(
                f"a message states a length of {found} in {len(self._data)} bytes", path=self._path
            )
        if is_tail:
            self._tail_at = at
        else:
            self._lengths.append((at, found))
        return found

    def _skip(self, align: int, size: int) -> int:
        """Where the next value begins; it is behind it afterwards."""
        step = min(align, self._most)
        begin = self._at + -(self._at - HEAD_BYTES) % step
        if begin + size > len(self._data):
            raise CorruptLayoutError("a message ends before its last field", path=self._path)
        self._at = begin + size
        return begin


def _columns(layout: _Layout, messages: Payloads, rows: Ints) -> dict[str, Values]:
    """The fields of messages of one layout."""
    size = layout.size
    found: dict[str, Values] = {}
    starts = messages.starts[rows]
    if len(rows) > 1 and bool((np.diff(starts) == size).all()):
        begin = int(starts[0])
        matrix = messages.data[begin : begin + size * len(rows)].reshape(len(rows), size)
    else:
        matrix = messages.data[starts[:, None] + np.arange(size)]
    for name, leaf in layout.leaves.items():
        shape = leaf.shape
        if name == layout.tail:
            found[name] = _tails(layout, messages, rows, matrix)
        elif shape is None:
            found[name] = [None] * len(rows)
        elif leaf.type in TEXTS:
            found[name] = _texts(leaf, matrix, layout.order)
        elif leaf.is_blob:
            begin, count = leaf.slots[0]
            found[name] = [row.tobytes() for row in matrix[:, begin : begin + count]]
        else:
            found[name] = _numbers(leaf, shape, matrix, layout.order)
    return found


def _numbers(leaf: _Leaf, shape: tuple[int, ...], matrix: NDArray[np.uint8], order: str) -> NDArray[Any]:
    kind = PRIMITIVES[leaf.type]
    width = int(kind[1])
    slices = [matrix[:, at : at + width * count] for at, count in leaf.slots]
    raw = slices[0] if len(slices) == 1 else np.concatenate(slices, axis=1) if slices else matrix[:, :0]
    values = np.ascontiguousarray(raw).view(f"{order}{kind}").astype(f"<{kind}", copy=False)
    if leaf.type == "bool":
        values = values != 0
    return values.reshape(len(matrix), *shape)


def _texts(leaf: _Leaf, matrix: NDArray[np.uint8], order: str) -> list[Any]:
    columns = [_strings(leaf.type, matrix, at, size, order) for at, size in leaf.slots]
    if leaf.depth == 0:
        return columns[0]
    return list(zip(*columns, strict=True)) if columns else [()] * len(matrix)


def _strings(kind: str, matrix: NDArray[np.uint8], at: int, size: int, order: str) -> list[str]:
    part = matrix[:, at : at + size * (2 if kind == "wstring" else 1)]
    if len(part) > 1 and bool((part == part[0]).all()):
        return _strings(kind, matrix[:1], at, size, order) * len(part)
    if kind == "wstring":
        codec = "utf-16-le" if order == "<" else "utf-16-be"
        return [row.tobytes().decode(codec, "replace") for row in part]
    return [row.tobytes().removesuffix(b"\0").decode("utf-8", "surrogateescape") for row in part]


def _tails(layout: _Layout, messages: Payloads, rows: Ints, matrix: NDArray[np.uint8]) -> list[memoryview]:
    stated = np.ascontiguousarray(matrix[:, layout.tail_at : layout.tail_at + 4]).view(f"{layout.order}u4")
    sizes = stated.reshape(-1).astype(np.int64)
    starts = messages.starts[rows] + layout.size
    rest = messages.sizes[rows] - layout.size - sizes
    if ((rest < 0) | (rest > _MAX_PADDING)).any():
        raise CorruptLayoutError("a message ends before its last field, or behind it")
    return Payloads(messages.data, starts, sizes).each()


def _together(parts: list[tuple[Ints, Values]], count: int) -> Values:
    """The values of all layouts, in the order of the messages."""
    if len(parts) == 1:
        return parts[0][1]
    arrays = [values for _, values in parts if isinstance(values, np.ndarray)]
    if arrays and len(arrays) == len(parts) and len({each.shape[1:] for each in arrays}) == 1:
        out = np.empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        for rows, values in parts:
            out[rows] = values
        return out
    found: list[Any] = [None] * count
    for rows, values in parts:
        for row, value in zip(rows.tolist(), values, strict=True):
            found[row] = value
    return found
