"""Recordings of messages as episodes, and back.

Here: the interface between containers of messages (MCAP files, ROS 2 bags) and the episodes made from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.convert.place import Place

Ints = NDArray[np.int64]

MAX_MESSAGE_BYTES = 1 << 30
"""Limit for one message; larger sizes are refused before anything is allocated."""


@dataclass(frozen=True)
class LogChannel:
    """A topic and the type of its messages. Equal channels of several files are one topic."""

    topic: str
    schema: str = ""
    schema_encoding: str = ""
    schema_data: bytes = b""
    message_encoding: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


class Stamps(NamedTuple):
    """Times and sequence numbers of the messages of a channel, ordered by log time."""

    log_ns: Ints
    publish_ns: Ints
    sequence: Ints


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


class LogContents(NamedTuple):
    """What a recording holds besides the bytes of its messages; lists are by channel."""

    channels: Sequence[LogChannel]
    """All topics in the order of their declaration."""
    stamps: Sequence[Stamps]
    sizes: Sequence[int]
    """Total size of the messages."""
    about: Mapping[str, Any]
    """Header and metadata of the container, as JSON."""
    attachments: Sequence[Attachment] = ()
    """Files that came with the messages."""


class MessageLog(Reopens, ABC):
    """The files of one recording."""

    def __init__(self, place: Place, files: Sequence[str], name: str = "") -> None:
        self._place, self._files = place, list(files)
        self.name = name or (self._path(0) if len(self._files) == 1 else place.name)
        """The file, or the folder of several, for error messages."""

    def _path(self, file: int) -> str:
        return f"{self._place.name}/{self._files[file]}" if self._files[file] else self._place.name

    @cached_property
    @abstractmethod
    def contents(self) -> LogContents:
        """Channels, stamps and metadata, read on first use."""

    @abstractmethod
    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Messages of a channel by their positions in its stamps."""
