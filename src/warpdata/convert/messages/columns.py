"""What the fields of many messages become: numbers of one shape, text, bytes, or nothing that a signal can hold.

A decoder gives, for every field, a value per message (`Values`). What all messages agree on is a `Fact`; a signal is
made from it without its values being read again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any] | list[Any]
"""Numbers of one shape as an array; anything else as a list: str, bytes, lists of str, arrays of several lengths."""

MAX_PADDED = 8
"""Lists of several lengths are padded unless that makes them this many times larger."""
_MANY = 1 << 16

FactKind = Literal["numbers", "ragged", "text", "bytes", "texts", "names", "left"]


@dataclass(frozen=True, slots=True)
class Fact:
    """What a field is in all messages so far."""

    kind: FactKind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of one value; of lists of several lengths, that of the longest."""
    items: int = 0
    """How many numbers there are in all, to judge padding."""
    count: int = 0
    names: tuple[str, ...] = ()
    """The list of strings that is the same in every message."""
    why: str = ""

    def and_then(self, other: Fact) -> Fact:
        """What it is in the messages of both."""
        if self.kind == "left" or other.kind == "left":
            return self if self.kind == "left" else other
        count, items = self.count + other.count, self.items + other.items
        kinds = {self.kind, other.kind}
        if kinds == {"names"} and self.names == other.names:
            return replace(self, count=count)
        if kinds <= {"names", "texts"}:
            return Fact("texts", count=count)
        if kinds <= {"text", "bytes"}:
            return Fact("bytes" if "bytes" in kinds else "text", count=count)
        if not kinds <= {"numbers", "ragged"}:
            return Fact("left", why="its type changes")
        dtype = _wider(self.dtype, other.dtype)
        if dtype is None or len(self.shape) != len(other.shape) or self.shape[1:] != other.shape[1:]:
            return Fact("left", why="its type or shape changes")
        is_same = kinds == {"numbers"} and self.shape == other.shape
        if is_same:
            return Fact("numbers", dtype, self.shape, items, count)
        longest = max(self.shape[0], other.shape[0])
        return Fact("ragged", dtype, (longest, *self.shape[1:]), items, count)

    def settled(self) -> Fact:
        """The fact when all messages are known: padding that costs too much is none."""
        if self.kind == "ragged":
            padded = int(np.prod(self.shape, dtype=object)) * self.count
            if padded > MAX_PADDED * (self.items + 64) or self.shape[0] > _MANY:
                return Fact("left", why="its length changes too much")
        if self.kind in ("numbers", "ragged") and 0 in self.shape:
            return Fact("left", why="it is empty")
        return self


def _wider(one: str, other: str) -> str | None:
    """Whole numbers and floats of JSON go together as floats."""
    if one == other:
        return one
    return "<f8" if {one, other} == {"<i8", "<f8"} else None


def fact_of(values: Values) -> Fact:
    """What the values of one field have in common."""
    count = len(values)
    if isinstance(values, np.ndarray):
        return Fact("numbers", values.dtype.str, values.shape[1:], values.size, count)
    first = values[0] if values else None
    if isinstance(first, str) and all(isinstance(each, str) for each in values):
        is_text = all(_is_text(each) for each in values)
        return Fact("text" if is_text else "bytes", count=count)
    if isinstance(first, bytes | memoryview) and all(isinstance(each, bytes | memoryview) for each in values):
        return Fact("bytes", count=count)
    if isinstance(first, tuple) and all(isinstance(each, tuple) for each in values):
        is_same = all(each == first for each in values)
        return Fact("names", count=count, names=first) if is_same else Fact("texts", count=count)
    if isinstance(first, np.ndarray) and all(isinstance(each, np.ndarray) for each in values):
        found = Fact("numbers", first.dtype.str, first.shape, first.size, 1)
        for each in values[1:]:
            found = found.and_then(Fact("numbers", each.dtype.str, each.shape, each.size, 1))
        return found
    return Fact("left", why="its type changes")


def _is_text(value: str) -> bool:
    """Whether it is text that UTF-8 can hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value) if not value.isascii() else True


def lengths_of(values: Values) -> NDArray[np.int64]:
    """How long each list is."""
    if isinstance(values, np.ndarray):
        return np.full(len(values), values.shape[1], np.int64)
    return np.fromiter(map(len, values), np.int64, len(values))


def conformed(values: Values, fact: Fact) -> NDArray[Any]:
    """The values as the signal of a fact holds them."""
    if fact.kind in ("numbers", "ragged"):
        if isinstance(values, np.ndarray) and values.shape[1:] == fact.shape:
            return values.astype(fact.dtype, copy=False)
        out = np.zeros((len(values), *fact.shape), fact.dtype)
        for row, each in enumerate(values):
            out[row, : len(each)] = each
        return out
    found = np.empty(len(values), object)
    found[:] = [_object(each, fact.kind) for each in values]
    return found


def _object(value: Any, kind: FactKind) -> str | bytes:
    if kind == "texts":
        return json.dumps(list(value))
    if kind == "text":
        return str(value)
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def gathered(pieces: Sequence[Any]) -> Values:
    """Values given one by one: numbers of one type and shape as an array."""
    first = pieces[0] if pieces else None
    if isinstance(first, bool):
        if all(isinstance(each, bool) for each in pieces):
            return np.array(pieces, np.bool_)
    elif isinstance(first, int | float):
        return _numbers(pieces)
    elif isinstance(first, np.ndarray) and all(
        isinstance(each, np.ndarray) and each.shape == first.shape and each.dtype == first.dtype
        for each in pieces
    ):
        return np.stack(pieces)
    return list(pieces)


def _numbers(pieces: Sequence[Any]) -> Values:
    if all(isinstance(each, int) and not isinstance(each, bool) for each in pieces):
        if all(-(1 << 63) <= each < 1 << 63 for each in pieces):
            return np.array(pieces, "<i8")
    elif all(isinstance(each, int | float) and not isinstance(each, bool) for each in pieces):
        try:
            return np.array([float(each) for each in pieces], "<f8")
        except OverflowError:  # a whole number that is larger than any float
            return list(pieces)
    return list(pieces)
