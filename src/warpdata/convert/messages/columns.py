"""Values of one field over many messages, and what kind of signal can hold them.

A decoder gives one value per message and field (`Values`). A `FieldSummary` describes the values of all messages; the
signal is declared from it without reading the values again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any] | list[Any]
"""Numbers of one shape as an array; otherwise a list of str, bytes, tuples of str, or arrays of several lengths."""

MAX_PADDING_FACTOR = 8
"""Lists of several lengths are padded unless that makes them this many times larger."""
MAX_PADDED_LENGTH = 1 << 16

FieldKind = Literal["numbers", "ragged", "text", "bytes", "texts", "names", "skipped"]


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """What the values of a field have in common."""

    kind: FieldKind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of one value; for lists of several lengths the longest."""
    items: int = 0
    """Total number of elements, to judge the cost of padding."""
    count: int = 0
    names: tuple[str, ...] = ()
    """The list of strings that is the same in every message."""
    reason: str = ""
    """Why no signal can hold the field."""

    def merge(self, other: FieldSummary) -> FieldSummary:
        """Summary of the messages of both."""
        if "skipped" in (self.kind, other.kind):
            return self if self.kind == "skipped" else other
        count, items = self.count + other.count, self.items + other.items
        kinds = {self.kind, other.kind}
        if kinds == {"names"} and self.names == other.names:
            return replace(self, count=count)
        if kinds <= {"names", "texts"}:
            return FieldSummary("texts", count=count)
        if kinds <= {"text", "bytes"}:
            return FieldSummary("bytes" if "bytes" in kinds else "text", count=count)
        if not kinds <= {"numbers", "ragged"}:
            return FieldSummary("skipped", reason="type changes")
        dtypes = {self.dtype, other.dtype}
        if dtypes == {"<i8", "<f8"}:  # JSON writes whole floats as integers
            dtypes = {"<f8"}
        if len(dtypes) > 1 or len(self.shape) != len(other.shape) or self.shape[1:] != other.shape[1:]:
            return FieldSummary("skipped", reason="type or shape changes")
        if kinds == {"numbers"} and self.shape == other.shape:
            return FieldSummary("numbers", dtypes.pop(), self.shape, items, count)
        longest = max(self.shape[0], other.shape[0])
        return FieldSummary("ragged", dtypes.pop(), (longest, *self.shape[1:]), items, count)

    def finish(self, count: int) -> FieldSummary:
        """Final summary for `count` messages; fields that are missing, empty or too uneven are skipped."""
        reason = ""
        if self.kind != "skipped" and self.count != count:
            reason = "missing in some messages"
        elif self.kind in ("numbers", "ragged") and 0 in self.shape:
            reason = "always empty"
        elif self.kind == "ragged":
            padded = int(np.prod(self.shape, dtype=object)) * count
            if padded > MAX_PADDING_FACTOR * (self.items + 64) or self.shape[0] > MAX_PADDED_LENGTH:
                reason = "length changes too much"
        return FieldSummary("skipped", reason=reason) if reason else self


def summarize(values: Values) -> FieldSummary:
    """Summary of the values of one field."""
    count = len(values)
    if isinstance(values, np.ndarray):
        return FieldSummary("numbers", values.dtype.str, values.shape[1:], values.size, count)
    types = {type(value) for value in values}
    if types == {str}:
        is_utf8 = all(value.isascii() or _is_utf8(value) for value in values)
        return FieldSummary("text" if is_utf8 else "bytes", count=count)
    if types and types <= {bytes, memoryview}:
        return FieldSummary("bytes", count=count)
    if types == {tuple}:
        is_same = all(value == values[0] for value in values)
        return (
            FieldSummary("names", count=count, names=values[0])
            if is_same
            else FieldSummary("texts", count=count)
        )
    if types == {np.ndarray}:
        summaries = [FieldSummary("numbers", array.dtype.str, array.shape, array.size, 1) for array in values]
        merged = summaries[0]
        for summary in summaries[1:]:
            merged = merged.merge(summary)
        return merged
    return FieldSummary("skipped", reason="type changes")


def _is_utf8(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def list_lengths(values: Values) -> NDArray[np.int64]:
    """Length of each list."""
    if isinstance(values, np.ndarray):
        return np.full(len(values), values.shape[1], np.int64)
    return np.fromiter(map(len, values), np.int64, len(values))


def to_array(values: Values, summary: FieldSummary) -> NDArray[Any]:
    """Values as the signal of the field holds them: shorter lists are padded with zeros."""
    if summary.kind in ("numbers", "ragged"):
        if isinstance(values, np.ndarray) and values.shape[1:] == summary.shape:
            return values.astype(summary.dtype, copy=False)
        padded = np.zeros((len(values), *summary.shape), summary.dtype)
        for row, value in enumerate(values):
            padded[row, : len(value)] = value
        return padded
    if summary.kind == "texts":
        values = [json.dumps(list(value)) for value in values]
    elif summary.kind == "bytes":
        values = [
            value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
            for value in values
        ]
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def stack_values(values: Sequence[Any]) -> Values:
    """Python values, one per message, as an array if all are numbers of one type and shape; else as a list."""
    types = {type(value) for value in values}
    if types == {np.ndarray}:
        first = values[0]
        if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
            return np.stack(values)
    elif types == {bool}:
        return np.array(values, np.bool_)
    elif types and types <= {int, float}:
        try:
            return np.array(values, "<i8" if types == {int} else "<f8")
        except OverflowError:  # an integer that fits no type
            return list(values)
    return list(values)
