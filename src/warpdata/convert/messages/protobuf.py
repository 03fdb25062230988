"""Decoder of protobuf messages by the descriptors that a recording carries. The adapter of google.protobuf.

A field that a message leaves out has its default. Fields of repeated messages are lists over these messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from warpdata.convert.messages.columns import Values, stack_values
from warpdata.convert.messages.log import Payloads
from warpdata.errors import CorruptLayoutError, FormatError, MissingExtraError

_NUMBERS = {1: "<i4", 2: "<i8", 3: "<u4", 4: "<u8", 5: "<f8", 6: "<f4", 7: "|b1", 8: "<i4"}
"""CPPTYPE of a field -> dtype; an enum is its number."""
_MESSAGE = 10
_BYTES = 12
"""TYPE of bytes; they share their CPPTYPE with strings."""
_MAX_DEPTH = 24
_MAX_FIELDS = 1 << 16
_MAX_FILES = 4096


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
        self._type = self._load_type(descriptors)
        self._leaves: dict[str, _Leaf] = {}
        self._message_count = 0
        self._declare_fields([self._type.DESCRIPTOR], [])

    def _load_type(self, descriptors: bytes) -> Any:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
        except ImportError:
            raise MissingExtraError.for_extra("protobuf", "mcap") from None
        self._decode_error = message.DecodeError
        pool = descriptor_pool.DescriptorPool()
        try:
            _add_files(pool, descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._name))
        except KeyError:
            raise FormatError(f"descriptors have no message {self._name!r}", path=self._path) from None
        except (message.DecodeError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"corrupted descriptors of {self._name!r} ({error})", path=self._path) from None

    def _declare_fields(self, types: list[Any], above: list[tuple[str, bool]]) -> None:
        """Collect the fields below the last of `types`, each of which is inside the one before."""
        self._message_count += 1
        for field in types[-1].fields:
            if len(self._leaves) + self._message_count > _MAX_FIELDS:
                raise FormatError(
                    f"message {self._name!r} has more than {_MAX_FIELDS} fields", path=self._path
                )
            is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
            path = [*above, (field.name, is_repeated)]
            if field.cpp_type != _MESSAGE:
                name = "/".join(part for part, _ in path)
                self._leaves[name] = _Leaf(path, _NUMBERS.get(field.cpp_type), field.type == _BYTES)
            elif field.message_type not in types and len(types) <= _MAX_DEPTH:
                self._declare_fields([*types, field.message_type], path)
            # A type inside itself has no end: its fields stay in the messages.

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message."""
        columns: dict[str, list[Any]] = {name: [] for name in self._leaves}
        try:
            for data in messages.split():
                message = self._type.FromString(bytes(data))
                for name, leaf in self._leaves.items():
                    columns[name].append(leaf.read(message))
            return {name: _to_values(leaf, columns[name]) for name, leaf in self._leaves.items()}
        except (self._decode_error, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"corrupted protobuf message ({error})", path=self._path) from None


def _to_values(leaf: _Leaf, values: list[Any]) -> Values:
    if leaf.dtype is not None and not any(is_repeated for _, is_repeated in leaf.path):
        return np.array(values, leaf.dtype)
    return stack_values(values)


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
