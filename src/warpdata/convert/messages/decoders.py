"""Decoders of messages, and a summary of the values of each field, from which its signal is declared.

A decoder gives one value per message and field (`Values`). The adapter of google.protobuf, whose descriptors a
recording carries: a field that a message leaves out has its default, fields of repeated messages are lists over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json
from warpdata.convert.messages import LogChannel, Payloads
from warpdata.convert.messages.cdr import CdrDecoder, Values, parse_definition
from warpdata.errors import CorruptLayoutError, FormatError, MissingExtraError, WarpError
from warpdata.timeline.ragged import as_objects

MAX_PADDING_FACTOR = 8
"""Lists of several lengths are padded unless that makes them this many times larger."""
MAX_PADDED_LENGTH = 1 << 16
EMPTY = "always empty"
_MAX_JSON_FIELDS = 4096
_PROTOBUF_NUMBERS = {1: "<i4", 2: "<i8", 3: "<u4", 4: "<u8", 5: "<f8", 6: "<f4", 7: "|b1", 8: "<i4"}
"""CPPTYPE of a field -> dtype; an enum is its number."""
_PROTOBUF_MESSAGE, _PROTOBUF_BYTES = 10, 12
"""CPPTYPE of messages; TYPE of bytes, which share their CPPTYPE with strings."""
_MAX_DEPTH, _MAX_FIELDS, _MAX_FILES = 24, 1 << 16, 4096


class Decoder(Protocol):
    """Reads messages of one type."""

    leaves_out: bool
    """Whether messages can hold fields that are not decoded."""

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message."""


def open_decoder(channel: LogChannel, path: str) -> Decoder:
    """Decoder for the messages of a channel; FormatError if there is none."""
    where = f"{path} ({channel.topic})"
    encodings = (channel.message_encoding, channel.schema_encoding)
    if encodings == ("cdr", "ros2msg"):
        text = channel.schema_data.decode("utf-8", "replace")
        return CdrDecoder(parse_definition(channel.schema, text), where)
    if encodings == ("protobuf", "protobuf"):
        return ProtobufDecoder(channel.schema, channel.schema_data, where)
    if channel.message_encoding == "json":
        return JsonDecoder(where)
    if channel.message_encoding == "cdr" and not channel.schema_data:
        fact = f"recording has no definition of {channel.schema!r} (warpdata[ros] has those that ROS ships)"
        raise FormatError(fact)
    fact = f"unsupported encoding: {encodings[0] or 'no'} messages of {encodings[1] or 'no'} schemas"
    raise FormatError(fact)


# Summaries.


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """Properties that the values of a field have in common."""

    kind: Literal["numbers", "ragged", "text", "bytes", "texts", "names", "skipped"]
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
            reason = EMPTY
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
        is_utf8 = all(
            value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value) for value in values
        )
        return FieldSummary("text" if is_utf8 else "bytes", count=count)
    if types and types <= {bytes, memoryview}:
        return FieldSummary("bytes", count=count)
    if types == {tuple}:
        is_same = all(value == values[0] for value in values)
        return FieldSummary("names" if is_same else "texts", count=count, names=values[0] if is_same else ())
    if types == {np.ndarray}:
        summaries = [FieldSummary("numbers", array.dtype.str, array.shape, array.size, 1) for array in values]
        merged = summaries[0]
        for summary in summaries[1:]:
            merged = merged.merge(summary)
        return merged
    return FieldSummary("skipped", reason="type changes")


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
    return as_objects(values)


def _stack(values: Sequence[Any]) -> Values:
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


# JSON.


class JsonDecoder:
    """Flattens objects: `a/b` is member `b` of member `a`; a message that is no object is the field `value`."""

    leaves_out = False

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
            if len(names) > _MAX_JSON_FIELDS:
                raise FormatError(f"messages have more than {_MAX_JSON_FIELDS} fields", path=self._path)
        return {name: _stack([row.get(name) for row in rows]) for name in names}


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


# Protobuf.


class _Leaf(NamedTuple):
    """A field that holds values: the path to it from the message, as names and whether each part is repeated."""

    path: Sequence[tuple[str, bool]]
    dtype: str | None
    is_bytes: bool

    def read(self, message: Any) -> Any:
        """Value in one message; None for lists of bytes and for lists of lists of numbers."""
        depth = sum(is_repeated for _, is_repeated in self.path)
        if depth == 0:
            for name, _ in self.path:
                message = getattr(message, name)
            return message
        if self.is_bytes or (self.dtype is not None and depth > 1):
            return None
        values: Iterable[Any] = [message]
        for name, is_repeated in self.path:
            members = [getattr(value, name) for value in values]
            values = [item for items in members for item in items] if is_repeated else members
        return tuple(values) if self.dtype is None else np.array(values, self.dtype)


class ProtobufDecoder:
    """Messages of one type of a FileDescriptorSet."""

    def __init__(self, name: str, descriptors: bytes, path: str = "") -> None:
        self._name, self._path = name, path
        self._leaves: dict[str, _Leaf] = {}
        self._message_count = 0
        self.leaves_out = False
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
        except ImportError:
            raise MissingExtraError.for_extra("protobuf", "mcap") from None
        self._decode_error = message.DecodeError
        pool = descriptor_pool.DescriptorPool()
        try:
            _add_files(pool, descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
            self._type: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except KeyError:
            raise FormatError(f"descriptors have no message {name!r}", path=path) from None
        except (message.DecodeError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"corrupted descriptors of {name!r} ({error})", path=path) from None
        self._declare_fields([self._type.DESCRIPTOR], [])

    def _declare_fields(self, types: list[Any], above: list[tuple[str, bool]]) -> None:
        """Collect the fields below the last of `types`, each of which is inside the one before."""
        self._message_count += 1
        for field in types[-1].fields:
            if len(self._leaves) + self._message_count > _MAX_FIELDS:
                fact = f"message {self._name!r} has more than {_MAX_FIELDS} fields"
                raise FormatError(fact, path=self._path)
            is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
            path = [*above, (field.name, is_repeated)]
            if field.cpp_type != _PROTOBUF_MESSAGE:
                dtype, is_bytes = _PROTOBUF_NUMBERS.get(field.cpp_type), field.type == _PROTOBUF_BYTES
                self._leaves["/".join(part for part, _ in path)] = _Leaf(path, dtype, is_bytes)
            elif field.message_type not in types and len(types) <= _MAX_DEPTH:
                self._declare_fields([*types, field.message_type], path)
            else:  # a type inside itself has no end: its fields stay in the messages
                self.leaves_out = True

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message."""
        columns: dict[str, list[Any]] = {name: [] for name in self._leaves}
        try:
            for data in messages.split():
                message = self._type.FromString(bytes(data))
                for name, leaf in self._leaves.items():
                    columns[name].append(leaf.read(message))
            return {
                name: np.array(columns[name], leaf.dtype)
                if leaf.dtype is not None and not any(is_repeated for _, is_repeated in leaf.path)
                else _stack(columns[name])
                for name, leaf in self._leaves.items()
            }
        except (self._decode_error, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"corrupted protobuf message ({error})", path=self._path) from None


def _add_files(pool: Any, files: Sequence[Any]) -> None:
    """Add file descriptors to a pool, each after the files it imports."""
    waiting = {file.name: file for file in files[:_MAX_FILES]}
    while waiting:
        ready = [name for name, file in waiting.items() if waiting.keys().isdisjoint(file.dependency)]
        if not ready:
            raise ValueError("files import each other")
        for name in ready:
            file = waiting.pop(name)
            _make_maps_plain(file.message_type)
            pool.Add(file)


def _make_maps_plain(types: Iterable[Any]) -> None:
    """Declare maps as what they are on the wire: repeated messages of a key and a value."""
    for kind in types:
        kind.options.ClearField("map_entry")
        _make_maps_plain(kind.nested_type)
