"""A recording of messages: which topics it has, when each message was recorded and sent, and its bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_MESSAGE_BYTES = 1 << 30
"""More than this in one message is a lie."""


@dataclass(frozen=True)
class LogChannel:
    """A topic and the type of its messages."""

    topic: str
    schema: str = ""
    schema_encoding: str = ""
    schema_data: bytes = b""
    message_encoding: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two channels of two files the same."""
        about = tuple(sorted(self.metadata.items()))
        return (
            self.topic,
            self.schema,
            self.schema_encoding,
            self.schema_data,
            self.message_encoding,
            about,
        )


@dataclass(frozen=True, slots=True)
class Stamps:
    """The times of the messages of a channel, in the order of recording."""

    log_ns: Ints
    publish_ns: Ints
    sequence: Ints

    def __len__(self) -> int:
        return len(self.log_ns)


class Payloads(NamedTuple):
    """The bytes of some messages: each is `data[start : start + size]`."""

    data: NDArray[np.uint8]
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, messages: Sequence[bytes | memoryview]) -> Payloads:
        """Messages one behind the other."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        return cls(np.frombuffer(b"".join(messages), np.uint8), np.cumsum(sizes) - sizes, sizes)

    def each(self) -> list[memoryview]:
        """Every message, without a copy."""
        view = np.ascontiguousarray(self.data).data if len(self.data) else memoryview(b"")
        return [
            view[start : start + size]
            for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        ]


class MessageLog(ABC):
    """What a container gives: channels, the stamps of their messages, and messages by number. It pickles."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What to call it in errors."""

    @property
    @abstractmethod
    def channels(self) -> Sequence[LogChannel]:
        """The topics, in the order they were declared."""

    @abstractmethod
    def stamps(self, channel: int) -> Stamps:
        """When the messages of a channel were recorded and sent, in the order of log times."""

    @abstractmethod
    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Some messages of a channel, by their place in `stamps`."""

    @abstractmethod
    def payload_bytes(self, channel: int) -> int:
        """How large the messages of a channel are in all."""

    @property
    @abstractmethod
    def about(self) -> Mapping[str, Any]:
        """What else the container says, to come out again."""

    @property
    def attachments(self) -> Sequence[Attachment]:
        """Files that came with the messages."""
        return ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file inside a recording."""

    name: str
    media_type: str
    log_ns: int
    create_ns: int
    data: bytes
