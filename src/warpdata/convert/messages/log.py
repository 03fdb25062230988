"""The interface between containers of messages (MCAP files, ROS 2 bags) and the episodes made from them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import Reopens
from warpdata.errors import WarpError

Ints = NDArray[np.int64]

MAX_MESSAGE_BYTES = 1 << 30
"""Limit for one message; larger sizes are refused before anything is allocated."""


@contextlib.contextmanager
def name_path(path: str) -> Iterator[None]:
    """Add the path to errors that do not name one."""
    try:
        yield
    except WarpError as error:
        if error.path is not None:
            raise
        raise type(error)(error.message, path=path, hint=error.hint) from None


@dataclass(frozen=True)
class LogChannel:
    """A topic and the type of its messages. Equal channels of several files are one topic."""

    topic: str
    schema: str = ""
    schema_encoding: str = ""
    schema_data: bytes = b""
    message_encoding: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Times and sequence numbers of the messages of a channel, ordered by log time."""

    log_ns: Ints
    publish_ns: Ints
    sequence: Ints

    @classmethod
    def sort(cls, log_ns: Ints, publish_ns: Ints, sequence: Ints) -> tuple[Stamps, Ints]:
        """Stamps ordered by log time, and the order: position in the result -> position in the arguments."""
        order = np.argsort(log_ns, kind="stable")
        return cls(log_ns[order], publish_ns[order], sequence[order]), order

    def __len__(self) -> int:
        return len(self.log_ns)


class Payloads(NamedTuple):
    """Bytes of several messages: message k is `data[starts[k] : starts[k] + sizes[k]]`."""

    data: NDArray[np.uint8]
    starts: Ints
    sizes: Ints

    @classmethod
    def join(cls, messages: Sequence[bytes | memoryview]) -> Payloads:
        """Copy messages into one array."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        return cls(np.frombuffer(b"".join(messages), np.uint8), np.cumsum(sizes) - sizes, sizes)

    def split(self) -> list[memoryview]:
        """One view per message."""
        view = np.ascontiguousarray(self.data).data if len(self.data) else memoryview(b"")
        ends = self.starts + self.sizes
        return [view[start:end] for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file inside a recording."""

    name: str
    media_type: str
    log_ns: int
    create_ns: int
    data: bytes


class MessageLog(Reopens, ABC):
    """One recording: its channels, and the stamps and messages of each by channel number. Logs pickle."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Path or URL for error messages."""

    @property
    @abstractmethod
    def channels(self) -> Sequence[LogChannel]:
        """All topics in the order of their declaration."""

    @abstractmethod
    def stamps(self, channel: int) -> Stamps:
        """Times of the messages of a channel."""

    @abstractmethod
    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Messages of a channel by their positions in `stamps`."""

    @abstractmethod
    def payload_bytes(self, channel: int) -> int:
        """Total size of the messages of a channel."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Header and metadata of the container, as JSON."""
        return {}

    @property
    def attachments(self) -> Sequence[Attachment]:
        """Files that came with the messages."""
        return ()
