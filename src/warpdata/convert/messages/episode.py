"""A recording of messages as an episode: a signal per field of a topic, the rest of the recording as metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.convert.messages import MessageLog
from warpdata.convert.messages.topic import TimeKind, Topic
from warpdata.convert.place import Place
from warpdata.convert.plain_names import free_name, plain_name
from warpdata.convert.receipt import packed, unpacked
from warpdata.convert.stepped import RowsSignal
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, WarpError, nearest, require_word
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, Role, RowType, SignalMeta, as_kind, as_role
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, ReadOnlyDict
from warpdata.timeline.times import checked_rate

OWN = "warpdata"
"""Key in the metadata of a channel: description of the signal; and name of the metadata record of the episode."""
KEPT = "messages"
"""Key in the metadata of an episode: channels, schemas and other records of the recording."""
ATTACHMENTS = "message.attachments"
"""Signal with the data of attachments; the rest of them is metadata."""
ATTACHMENT_KEYS = ("name", "media_type", "log_ns", "create_ns")


@dataclass(frozen=True, slots=True)
class Reading:
    """Options of reading messages."""

    time: TimeKind
    actions: tuple[str, ...]
    topics: tuple[str, ...] | None

    @classmethod
    def of(cls, time: TimeKind, actions: Sequence[str], topics: Sequence[str] | None) -> Reading:
        """Checked options; a single topic may be given as a string."""
        require_word("time", time, get_args(TimeKind))
        chosen = None if topics is None else (topics,) if isinstance(topics, str) else tuple(topics)
        return cls(time, (actions,) if isinstance(actions, str) else tuple(actions), chosen)


class Recordings(Reopens, EpisodesSource):
    """Recordings below a place, one episode each."""

    def __init__(
        self,
        place: Place,
        reading: Reading,
        find: Callable[[Place], Mapping[str, list[str]]],
        open_log: Callable[[Place, list[str]], MessageLog],
    ) -> None:
        """`find` gives the files of every recording by its id: one empty name if the place itself is the file."""
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
    def _own(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Static items and metadata that our writer stored."""
        for record in self._log.about["metadata"]:
            if record["name"] == OWN:
                try:
                    stated = parse_json_object(record["metadata"].get("episode", "{}").encode())
                    static, meta = (unpacked(stated.get(key)) for key in ("static", "meta"))
                except WarpError:
                    break
                static, meta = (dict(items) if isinstance(items, Mapping) else {} for items in (static, meta))
                return static, meta | ({KEPT: stated[KEPT]} if KEPT in stated else {})
        return {}, {}

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
    def _topics(self) -> dict[int, Topic]:
        """The topics to read that warpdata did not write, each with its own first part of names."""
        topics: dict[str, Topic] = {}
        for number in self._chosen:
            channel = self._log.channels[number]
            if OWN in channel.metadata:
                continue
            base = free_name(plain_name(channel.topic), topics)
            role: Role | None = "action" if channel.topic in self._reading.actions else None
            topics[base] = Topic(self._log, number, base, clock=base, time=self._reading.time, role=role)
        return {topic.number: topic for topic in topics.values()}

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """A signal per field; types are known now, values are read on use."""
        openers: dict[str, Callable[[str], Signal]] = {}
        for number in self._chosen:
            topic = self._topics.get(number)
            if topic is None:
                name, opener = open_own_topic(self._log, number)
                openers[name] = opener
            elif len(topic):
                labels = {
                    label: partial(topic.open_rows, label, meta) for label, meta in topic.metas().items()
                }
                if topic.payload is not None:
                    labels[topic.payload.field] = topic.open_payload  # type: ignore[assignment]
                for label, opener in labels.items():
                    openers[free_name(f"{topic.base}/{plain_name(label)}", openers)] = opener
        if self._log.attachments:
            openers[free_name(ATTACHMENTS, openers)] = self._open_attachments
        return LazySignals(lambda: openers, lambda name: openers[name](name))

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """Lists of names that do not change, static items that our writer stored, and the task of a metadata record."""
        items: dict[str, Any] = {}
        for topic in self._topics.values():
            for name, field in topic.fields.items():
                if field.kind == "names":
                    items[f"{topic.base}/{plain_name(name)}"] = list(field.names)
        items |= self._own[0]
        for record in self._log.about["metadata"]:
            if record["name"] != OWN and "task" in record["metadata"]:
                items.setdefault("task", record["metadata"]["task"])
        return ReadOnlyDict(items)

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """Metadata that our writer stored, and what the recording has besides messages."""
        own = self._own[1]
        if own and not self._topics:
            return ReadOnlyDict(own)
        schemas: list[tuple[str, str, bytes]] = []
        channels = []
        for topic in self._topics.values():
            schema = (topic.channel.schema, topic.channel.schema_encoding, topic.channel.schema_data)
            if schema not in schemas:
                schemas.append(schema)
            channels.append(_describe_topic(topic, schemas.index(schema)))
        kept = {
            **self._log.about,
            "schemas": [
                {"name": name, "encoding": kind, "data": packed(data)} for name, kind, data in schemas
            ],
            "channels": channels,
            "attachments": [
                {key: getattr(attachment, key) for key in ATTACHMENT_KEYS}
                for attachment in self._log.attachments
            ],
        }
        return ReadOnlyDict({**own, KEPT: kept})

    def stored_bytes(self) -> int:
        """Size of all messages."""
        return sum(self._log.payload_bytes(number) for number in range(len(self._log.channels)))

    def _open_attachments(self, _name: str) -> Signal:
        attachments = self._log.attachments
        steps = np.arange(len(attachments))
        log_ns = np.array([attachment.log_ns for attachment in attachments], np.int64)
        times = np.maximum.accumulate(log_ns - steps) + steps
        data = as_objects([attachment.data for attachment in attachments])
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
        "payload": None if payload is None else {"field": payload.field, "kind": payload.kind},
        "moved_ns": topic.moved_ns,
        "not_decoded": topic.problem,
        "only_in_messages": topic.skipped,
    }
    return stated | {key: value for key, value in more.items() if value}


# Topics that warpdata wrote.


def _parse_meta(stated: Mapping[str, Any]) -> SignalMeta:
    kind = as_kind(stated["kind"])
    names, shape = stated.get("names"), tuple(int(side) for side in stated["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(shape)
    dtype = OBJECT if kind in ("text", "bytes") else dtype_named(stated["dtype"]).dtype
    is_ragged = kind in ("ragged", "sound")
    return SignalMeta(
        OBJECT if is_ragged else dtype,
        () if is_ragged else shape,
        kind,
        names=None if names is None else tuple(map(str, names)),
        role=as_role(stated["role"]),
        **{key: stated.get(key) for key in ("units", "of", "model", "clock")},
        rows=RowType(dtype, shape) if is_ragged else None,
        rate_hz=checked_rate(stated["rate_hz"]) if kind == "sound" else None,
    )


def open_own_topic(log: MessageLog, number: int) -> tuple[str, Callable[[str], Signal]]:
    """Name of the signal of a topic that warpdata wrote, and the function that opens it under a name."""
    channel = log.channels[number]
    try:
        stated = parse_json_object(channel.metadata[OWN].encode())
        name, meta = str(stated["signal"]), _parse_meta(stated)
    except (WarpError, KeyError, TypeError, ValueError):
        fact = f"corrupted description of the signal of topic {channel.topic!r}"
        raise CorruptLayoutError(fact, path=log.name) from None
    return name, partial(_open_signal, Topic(log, number, name, clock=meta.clock, role=meta.role), meta)


def _open_signal(topic: Topic, meta: SignalMeta, name: str) -> Signal:
    if not len(topic):
        return ArraySignal(np.empty(0, np.int64), np.empty((0, *meta.shape), meta.dtype), meta)
    payload = topic.payload
    if payload is not None and payload.field == "data" and payload.kind in ("stills", "video"):
        return topic.open_payload(name)
    return RowsSignal(topic.read_times, meta, partial(_read_rows, topic, meta), len(topic))


def _read_rows(topic: Topic, meta: SignalMeta, low: int, high: int) -> NDArray[Any]:
    values = np.empty(0)
    if meta.rows is not None:
        return _read_ragged(topic, meta.rows, low, high)
    if topic.payload is not None:
        values = topic.read_content(low, high)
    elif "value" in topic.fields:
        values = topic.rows("value", low, high)
    rows = _check_values(values, meta, high - low)
    if rows is None:
        raise CorruptLayoutError(
            f"values of topic {topic.channel.topic!r} do not match its description {topic.problem}".rstrip(),
            path=topic.log.name,
        )
    return rows


def _read_ragged(topic: Topic, kind: RowType, low: int, high: int) -> NDArray[Any]:
    values = topic.read_field("value", low, high)
    try:
        raws = [value.tobytes() if isinstance(value, np.ndarray) else bytes(value) for value in values]
        return as_objects(np.frombuffer(raw, kind.dtype).reshape(-1, *kind.shape) for raw in raws)
    except (TypeError, ValueError):
        fact = f"values of topic {topic.channel.topic!r} are not rows of {kind}"
        raise CorruptLayoutError(fact, path=topic.log.name) from None


def _check_values(values: NDArray[Any], meta: SignalMeta, count: int) -> NDArray[Any] | None:
    """Values in the type and shape of the signal; None if they do not have it."""
    if len(values) != count or (meta.is_object and values.dtype != OBJECT):
        return None
    if meta.is_object:
        return values if all(isinstance(value, str) == (meta.kind == "text") for value in values) else None
    if values.dtype == OBJECT:  # ROS has no type for the elements: they were written as bytes
        if any(not isinstance(value, bytes) or len(value) != meta.row_bytes for value in values):
            return None
        values = np.stack([np.frombuffer(value, meta.dtype) for value in values])
    if values.dtype != meta.dtype or values[:1].size != math.prod(meta.shape):
        return None
    return values.reshape(count, *meta.shape)
