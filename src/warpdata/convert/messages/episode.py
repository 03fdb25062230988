"""A recording of messages as an episode: a signal per field of a topic, and the metadata to write it again."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.reopen import Reopens
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.messages.log import MessageLog
from warpdata.convert.messages.own import OWN, open_own_topic
from warpdata.convert.messages.topic import TimeKind, Topic
from warpdata.convert.place import Place
from warpdata.convert.plain_names import plain_name
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.errors import BlobNotFoundError, WarpError, nearest
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, Role, SignalMeta
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, ReadOnlyDict

KEPT = "messages"
"""Key in the metadata of an episode: channels, schemas and other records of the recording."""
ATTACHMENTS = "message.attachments"
"""Signal with the data of attachments; the rest of them is metadata."""
ATTACHMENT_KEYS = ("name", "media_type", "log_ns", "create_ns")

FindRecordings = Callable[[Place], Mapping[str, list[str]]]
"""Files of every recording by its id; one empty name if the place itself is the file."""
OpenLog = Callable[[Place, list[str]], MessageLog]
"""Opens the files of one recording."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Options of reading messages."""

    time: TimeKind
    actions: tuple[str, ...]
    topics: tuple[str, ...] | None

    @classmethod
    def of(cls, time: str, actions: Sequence[str], topics: Sequence[str] | None) -> Reading:
        """Checked options; a single topic may be given as a string."""
        for kind in get_args(TimeKind):
            if kind == time:
                chosen = None if topics is None else (topics,) if isinstance(topics, str) else tuple(topics)
                return cls(kind, (actions,) if isinstance(actions, str) else tuple(actions), chosen)
        known = get_args(TimeKind)
        raise ValueError(f"unknown time {time!r} (choose from {', '.join(known)}).{nearest(time, known)}")


class Recordings(Reopens, EpisodesSource):
    """Recordings below a place, one episode each."""

    def __init__(self, place: Place, reading: Reading, find: FindRecordings, open_log: OpenLog) -> None:
        self._place, self._reading, self._open_log = place, reading, open_log
        self._recordings = find(place)
        if not self._recordings:
            raise BlobNotFoundError("folder has no recording of this format", path=place.name)

    @property
    def name(self) -> str:
        """Path or URL of the file or folder."""
        return self._place.name

    @property
    def ids(self) -> Sequence[str]:
        """Names of files and bags."""
        return list(self._recordings)

    def open(self, position: int) -> Episode:
        """The recording at a position."""
        name = self.ids[position]
        log = self._open_log(self._place, self._recordings[name])
        return Episode(MessageSource(name, log, self._reading))


class MessageSource(Reopens, EpisodeSource):
    """One recording."""

    def __init__(self, id: str, log: MessageLog, reading: Reading) -> None:  # noqa: A002 - the word of the model
        self._id, self._log, self._reading = id, log, reading

    @property
    def id(self) -> str:
        """Name of the file or folder."""
        return self._id

    @property
    def place(self) -> str | None:
        """Path or URL of the recording."""
        return self._log.name

    @cached_property
    def _own(self) -> Mapping[str, Any]:
        """Static items and metadata that our writer stored."""
        for record in self._log.about["metadata"]:
            if record["name"] == OWN:
                try:
                    stated = parse_json_object(record["metadata"].get("episode", "{}").encode())
                    return {key: unpacked(value) for key, value in stated.items()}
                except WarpError:
                    return {}
        return {}

    def _own_items(self, key: str) -> dict[str, Any]:
        items = self._own.get(key)
        return dict(items) if isinstance(items, Mapping) else {}

    @cached_property
    def _chosen(self) -> list[int]:
        """Numbers of the channels to read."""
        names = [channel.topic for channel in self._log.channels]
        for topic in (*self._reading.actions, *(self._reading.topics or ())):
            if topic not in names:
                raise ValueError(f"{self._log.name} has no topic {topic!r}.{nearest(topic, names)}")
        wanted = self._reading.topics
        return [number for number, name in enumerate(names) if wanted is None or name in wanted]

    @cached_property
    def topics(self) -> list[Topic]:
        """The topics to read that warpdata did not write, each with its own first part of names."""
        topics: dict[str, Topic] = {}
        for number in self._chosen:
            channel = self._log.channels[number]
            if OWN in channel.metadata:
                continue
            base = _free_name(plain_name(channel.topic), topics)
            role: Role | None = "action" if channel.topic in self._reading.actions else None
            topics[base] = Topic(self._log, number, base, clock=base, time=self._reading.time, role=role)
        return list(topics.values())

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """A signal per field; types are known now, values are read on use."""
        openers: dict[str, Callable[[str], Signal]] = {}
        topics = {topic.number: topic for topic in self.topics}
        for number in self._chosen:
            topic = topics.get(number)
            if topic is None:
                name, opener = open_own_topic(self._log, number)
                openers[name] = opener
            elif len(topic):
                for label in topic.signal_names():
                    name = _free_name(f"{topic.base}/{plain_name(label)}", openers)
                    openers[name] = partial(topic.open_signal, label)
        if self._log.attachments:
            openers[_free_name(ATTACHMENTS, openers)] = self._open_attachments
        return LazySignals(lambda: openers, lambda name: openers[name](name))

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """Lists of names that do not change, static items that our writer stored, and the task of a metadata record."""
        items: dict[str, Any] = {}
        for topic in self.topics:
            items |= {f"{topic.base}/{plain_name(name)}": names for name, names in topic.static.items()}
        items |= self._own_items("static")
        for record in self._log.about["metadata"]:
            if record["name"] != OWN and "task" in record["metadata"]:
                items.setdefault("task", record["metadata"]["task"])
        return ReadOnlyDict(items)

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """What is needed to write every message again."""
        schemas: list[tuple[str, str, bytes]] = []
        channels = []
        for topic in self.topics:
            schema = (topic.channel.schema, topic.channel.schema_encoding, topic.channel.schema_data)
            if schema not in schemas:
                schemas.append(schema)
            channels.append(_describe_topic(topic, schemas.index(schema)))
        attachments = [
            {key: getattr(attachment, key) for key in ATTACHMENT_KEYS} for attachment in self._log.attachments
        ]
        kept = {
            **self._log.about,
            "schemas": [
                {"name": name, "encoding": kind, "data": packed(data)} for name, kind, data in schemas
            ],
            "channels": channels,
            "attachments": attachments,
        }
        own = self._own_items("meta")
        return ReadOnlyDict({**own, KEPT: kept} if channels or not own else own)

    def stored_bytes(self) -> int:
        """Size of all messages."""
        return sum(self._log.payload_bytes(number) for number in range(len(self._log.channels)))

    def _open_attachments(self, _name: str) -> Signal:
        attachments = self._log.attachments
        data = np.empty(len(attachments), object)
        data[:] = [attachment.data for attachment in attachments]
        steps = np.arange(len(attachments))
        log_ns = np.array([attachment.log_ns for attachment in attachments], np.int64)
        times = np.maximum.accumulate(log_ns - steps) + steps
        return ArraySignal(times, data, SignalMeta(OBJECT, (), "bytes", role="other"))


def _describe_topic(topic: Topic, schema: int) -> dict[str, Any]:
    payload = topic.payload
    stated: dict[str, Any] = {
        "topic": topic.channel.topic,
        "signal": topic.base,
        "schema": schema,
        "encoding": topic.channel.message_encoding,
        "metadata": dict(topic.channel.metadata),
        "time": topic.time_used,
        "messages": len(topic),
    }
    more = {
        "payload": None if payload is None else payload.to_json(),
        "payload_signal": None if payload is None else f"{topic.base}/{plain_name(payload.field)}",
        "moved_ns": topic.moved_ns,
        "not_decoded": topic.problem,
        "only_in_messages": topic.skipped,
    }
    return stated | {key: value for key, value in more.items() if value}


def _free_name(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken."""
    chosen, number = name, 2
    while chosen in taken:
        chosen, number = f"{name}.{number}", number + 1
    return chosen
