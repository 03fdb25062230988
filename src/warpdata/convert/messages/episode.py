"""A recording of messages as an episode: a signal for every field of a topic, and what it takes to write it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.messages.log import Attachment, MessageLog
from warpdata.convert.messages.own import OWN, own_signal
from warpdata.convert.messages.topic import TimeKind, Topic
from warpdata.convert.plain_names import plain_name
from warpdata.errors import WarpError, nearest
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.readonly import ReadOnlyDict
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource

KEPT = "messages"
"""The key of an episode's metadata under which stands what messages are made of."""
ATTACHMENTS = "message.attachments"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the user said of reading messages."""

    time: TimeKind = "log"
    actions: tuple[str, ...] = ()
    topics: tuple[str, ...] | None = None

    @classmethod
    def of(cls, time: str, actions: Sequence[str], topics: Sequence[str] | None) -> Reading:
        """The options, checked."""
        known = get_args(TimeKind)
        if time not in known:
            raise ValueError(f"time is one of {', '.join(known)}, not {time!r}.{nearest(time, known)}")
        listed = [actions] if isinstance(actions, str) else list(actions)
        chosen = None if topics is None else tuple([topics] if isinstance(topics, str) else topics)
        found: TimeKind = next(each for each in known if each == time)
        return cls(found, tuple(listed), chosen)


class MessageSource(EpisodeSource):
    """One recording."""

    def __init__(self, id: str, log: MessageLog, reading: Reading) -> None:  # noqa: A002 - the word of the model
        self._id, self._log, self._reading = id, log, reading

    def __reduce__(self) -> tuple[Any, ...]:
        return (MessageSource, (self._id, self._log, self._reading))

    @property
    def id(self) -> str:
        """The name of the file or folder."""
        return self._id

    @property
    def place(self) -> str | None:
        """Where it lies."""
        return self._log.name

    @cached_property
    def _own(self) -> Mapping[str, Any]:
        """What our own writer kept of the episode: its static items and metadata."""
        for record in self._log.about["metadata"]:
            if record["name"] == OWN:
                try:
                    told = parse_json_object(record["metadata"].get("episode", "{}").encode())
                    return {key: unpacked(value) for key, value in told.items()}
                except WarpError:
                    return {}
        return {}

    @cached_property
    def topics(self) -> list[Topic]:
        """The topics that were asked for, each under a name of its own."""
        channels = self._log.channels
        known = [channel.topic for channel in channels]
        for asked in (*self._reading.actions, *(self._reading.topics or ())):
            if asked not in known:
                raise ValueError(f"{self._log.name} has no topic {asked!r}.{nearest(asked, known)}")
        found, taken = [], set()
        for number, channel in enumerate(channels):
            if self._reading.topics is not None and channel.topic not in self._reading.topics:
                continue
            base = plain_name(channel.topic)
            chosen, again = base, 2
            while chosen in taken:
                chosen, again = f"{base}.{again}", again + 1
            taken.add(chosen)
            is_action = channel.topic in self._reading.actions
            found.append(Topic(self._log, number, chosen, time=self._reading.time, is_action=is_action))
        return found

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """A signal for every field; the types of messages are looked at now, their values when they are asked for."""
        makers: dict[str, Callable[[str], Signal]] = {}
        for topic in self.topics:
            if OWN in topic.channel.metadata:
                makers |= own_signal(topic)
                continue
            if not len(topic):
                continue
            for field, make in topic.signals().items():
                name = _free(f"{topic.base}/{plain_name(field)}", makers)
                makers[name] = make
        if self._log.attachments:
            makers[_free(ATTACHMENTS, makers)] = lambda _: _attachments(self._log.attachments)
        return _Signals(makers)

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """Lists of names that do not change, what our own writer kept, and the task where a metadata record has it."""
        found: dict[str, Any] = {}
        for topic in self.topics:
            if OWN not in topic.channel.metadata:
                found |= {f"{topic.base}/{plain_name(name)}": value for name, value in topic.static.items()}
        own = self._own.get("static")
        found |= dict(own) if isinstance(own, Mapping) else {}
        for record in self._log.about.get("metadata", []):
            told = record["metadata"]
            if record["name"] != OWN and "task" in told:
                found.setdefault("task", told["task"])
        return ReadOnlyDict(found)

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """What is needed to write every message again."""
        schemas: list[tuple[str, str, bytes]] = []
        channels = []
        for topic in self.topics:
            channel = topic.channel
            if OWN in channel.metadata:
                continue
            schema = (channel.schema, channel.schema_encoding, channel.schema_data)
            if schema not in schemas:
                schemas.append(schema)
            channels.append(_kept_channel(topic, schemas.index(schema)))
        kept = {
            **self._log.about,
            "schemas": [{"name": name, "encoding": encoding, "data": packed(data)} for name, encoding, data in schemas],
            "channels": channels,
            "attachments": [_told(each) for each in self._log.attachments],
        }  # fmt: skip
        own = self._own.get("meta")
        more = dict(own) if isinstance(own, Mapping) else {}
        return ReadOnlyDict({**more, KEPT: kept} if channels or not more else more)

    def stored_bytes(self) -> int:
        """The bytes of all messages."""
        return sum(self._log.payload_bytes(number) for number in range(len(self._log.channels)))


def _kept_channel(topic: Topic, schema: int) -> dict[str, Any]:
    payload = topic.payload
    found: dict[str, Any] = {
        "topic": topic.channel.topic, "signal": topic.base, "schema": schema,
        "encoding": topic.channel.message_encoding, "metadata": dict(topic.channel.metadata),
        "time": topic.time_used, "messages": len(topic),
    }  # fmt: skip
    more = {
        "payload": None if payload is None else payload.to_json(),
        "payload_signal": None if payload is None else f"{topic.base}/{plain_name(payload.field)}",
        "moved_ns": topic.moved_ns,
        "not_decoded": topic.problem,
        "only_in_messages": topic.left,
    }
    return found | {key: value for key, value in more.items() if value}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or the next one that is free."""
    chosen, again = name, 2
    while chosen in taken:
        chosen, again = f"{name}.{again}", again + 1
    return chosen


def _told(each: Attachment) -> dict[str, Any]:
    return {
        "name": each.name,
        "media_type": each.media_type,
        "log_ns": each.log_ns,
        "create_ns": each.create_ns,
    }


def _attachments(attachments: Sequence[Attachment]) -> Signal:
    data = np.empty(len(attachments), object)
    data[:] = [each.data for each in attachments]
    steps = np.arange(len(attachments))
    times: NDArray[np.int64] = np.array([each.log_ns for each in attachments], np.int64)
    times = np.maximum.accumulate(times - steps) + steps
    return ArraySignal(times, data, SignalMeta(OBJECT, (), "bytes", role="other"))


class _Signals(Mapping[str, Signal]):
    """The signals of a recording, each made when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[str], Signal]]) -> None:
        self._makers = makers
        self._made: dict[str, Signal] = {}

    def __getitem__(self, name: str) -> Signal:
        if name not in self._made:
            self._made[name] = self._makers[name](name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


__all__ = ["ATTACHMENTS", "KEPT", "MessageSource", "Reading"]
