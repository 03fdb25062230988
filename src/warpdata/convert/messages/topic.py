"""One topic of a recording as signals: its fields, the times of its messages, and the messages themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.folders import buffered
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.messages.cdr import CdrDecoder
from warpdata.convert.messages.columns import Fact, Values, conformed, fact_of, lengths_of
from warpdata.convert.messages.jsontext import JsonDecoder
from warpdata.convert.messages.log import Ints, LogChannel, MessageLog, Payloads
from warpdata.convert.messages.msgtext import parse_definition
from warpdata.convert.messages.packets import with_lengths
from warpdata.convert.messages.payload import (
    IMAGES,
    PICTURES,
    VIDEOS,
    Payload,
    VideoFinder,
    pixels_of,
    stills_of,
)
from warpdata.convert.messages.protobuf import ProtobufDecoder
from warpdata.convert.rows import RowsSignal
from warpdata.convert.stepped import image_kind
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.episodes.sources.stills import StillsSignal
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.video import list_packets
from warpdata.timeline.meta import OBJECT, Role, SignalMeta, guess_role, numeric_kind
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import frozen

TimeKind = Literal["log", "publish", "header"]

LOG_TIMES, PUBLISH_TIMES, SEQUENCE = "message.log_time_ns", "message.publish_time_ns", "message.sequence"
BYTES, ENVELOPE = "message.bytes", "message.envelope"
"""The messages as they were; of topics with a large field, without it."""
LENGTH = ".length"
"""Ends the name of the signal that says how many of the padded numbers are real."""

_PLACEHOLDER = 16
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 15
_KEPT_BYTES = 32 << 20
_LARGE_FIELD = 256
"""A field of bytes this long on average is kept once, as a signal, and not again in the message."""
_MAX_STAMP = 1 << 33
"""Seconds, and the nanoseconds beside them: more is no time that 64 bits can hold."""
_STAMPS = (("header/stamp/sec", "header/stamp/nanosec"), ("stamp/sec", "stamp/nanosec"),
           ("timestamp/sec", "timestamp/nanosec"), ("timestamp/sec", "timestamp/nsec"),
           ("timestamp/seconds", "timestamp/nanos"), ("header/stamp/seconds", "header/stamp/nanos"))  # fmt: skip


class Decoder(Protocol):
    """What reads messages of one type."""

    def decode(self, messages: Payloads) -> dict[str, Values]:
        """Every field of every message."""


def decoder_of(channel: LogChannel, path: str) -> Decoder:
    """The decoder of the messages of a channel; FormatError where there is none."""
    where = f"{path} ({channel.topic})"
    if channel.message_encoding == "cdr" and channel.schema_encoding == "ros2msg":
        text = channel.schema_data.decode("utf-8", "replace")
        return CdrDecoder(parse_definition(channel.schema, text), where)
    if channel.message_encoding == "protobuf" and channel.schema_encoding == "protobuf":
        return ProtobufDecoder(channel.schema, channel.schema_data, where)
    if channel.message_encoding == "json":
        return JsonDecoder(where)
    if channel.message_encoding == "cdr" and not channel.schema_data:
        raise FormatError(
            f"nothing in the recording defines {channel.schema!r} (warpdata[ros] knows what ROS ships)"
        )
    raise FormatError(
        f"{channel.message_encoding or 'no'} messages of {channel.schema_encoding or 'no'} schemas"
    )


class Topic:
    """The messages of one channel; what their fields are is found when it is first asked for."""

    def __init__(
        self, log: MessageLog, number: int, base: str, *, time: TimeKind = "log", is_action: bool = False
    ) -> None:
        self.log, self.number, self.base, self.time = log, number, base, time
        self.channel = log.channels[number]
        self._is_action = is_action
        self.clock: str | None = base
        """The clock that its signals share."""
        self.role: Role | None = None
        """The part its signals play, where it is stated."""
        self._kept: OrderedDict[tuple[int, int], dict[str, Values]] = OrderedDict()
        self._columns: dict[str, NDArray[Any]] = {}
        self.problem = ""
        """Why the messages are not decoded, where they are not."""

    def __len__(self) -> int:
        return len(self.log.stamps(self.number))

    @property
    def path(self) -> str:
        """Where it lies, for errors."""
        return f"{self.log.name} ({self.channel.topic})"

    @cached_property
    def _decoder(self) -> Decoder | None:
        try:
            return decoder_of(self.channel, self.log.name)
        except FormatError as error:
            self.problem = error.message
            return None

    # What the fields are.

    @cached_property
    def _survey(self) -> tuple[dict[str, Fact], Payload | None]:
        """One pass over all messages: what every field is, and which one is large."""
        if self._decoder is None or not len(self):
            return {}, None
        facts: dict[str, Fact] = {}
        plan = _PayloadPlan(self.channel)
        try:
            for low, high in self._blocks():
                found = self._decoded_log_rows(low, high)
                plan.add(found, self.path)
                for name, values in found.items():
                    fact = fact_of(values)
                    facts[name] = facts[name].and_then(fact) if name in facts else fact
        except FormatError as error:
            self.problem = error.message
            return {}, None
        count = len(self)
        some = Fact("left", why="not in every message")
        settled = {
            name: fact.settled() if fact.count == count or fact.kind == "left" else some
            for name, fact in facts.items()
        }
        return settled, plan.settled(settled, self.log.payload_bytes(self.number), count)

    @property
    def facts(self) -> dict[str, Fact]:
        """Every field that is decoded, but for the large one."""
        facts, payload = self._survey
        return {name: fact for name, fact in facts.items() if payload is None or name != payload.field}

    @property
    def payload(self) -> Payload | None:
        """The large field."""
        found = self._survey[1]
        if found is not None and found.kind == "video" and self._clock[1] is not None:
            return Payload(
                found.field, "bytes", found.is_base64
            )  # frames in another order than their packets
        return found

    def _blocks(self) -> Iterator[tuple[int, int]]:
        count = len(self)
        each = max(1, self.log.payload_bytes(self.number) // max(1, count))
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // each))
        for low in range(0, count, step):
            yield low, min(low + step, count)

    def _decoded_log_rows(self, low: int, high: int) -> dict[str, Values]:
        """Some messages in the order of recording, decoded; the last block is kept."""
        found = self._kept.get((low, high))
        if found is None:
            assert self._decoder is not None
            found = self._decoder.decode(self.log.payloads(self.number, np.arange(low, high)))
            self._kept.clear()
            self._kept[low, high] = found
        return found

    # Times.

    @cached_property
    def _clock(self) -> tuple[NDArray[np.int64], Ints | None, int]:
        """The times of the records, which messages they are (None: as recorded), and how far one was moved."""
        stamps = self.log.stamps(self.number)
        times = stamps.log_ns
        if self.time_used == "publish":
            times = stamps.publish_ns
        elif self.time_used == "header":
            times = self._header_times()
        order = np.argsort(times, kind="stable")
        ordered = times[order]
        steps = np.arange(len(times))
        strict = np.maximum.accumulate(ordered - steps) + steps if len(times) else ordered
        moved = int(np.abs(strict - ordered).max(initial=0))
        is_same = bool((order == steps).all())
        return frozen(strict), None if is_same else order, moved

    @property
    def times(self) -> NDArray[np.int64]:
        """The times of the records of every signal of the topic."""
        return self._clock[0]

    @property
    def moved_ns(self) -> int:
        """How far a record was moved because another has the same time."""
        return self._clock[2]

    @property
    def time_used(self) -> TimeKind:
        """Which time it is: that of recording where the messages do not have the one that was asked for."""
        if self.time == "publish" and bool((self.log.stamps(self.number).publish_ns > 0).all()):
            return "publish"
        return "header" if self.time == "header" and self._stamp_fields() is not None else "log"

    def _stamp_fields(self) -> tuple[str, str] | None:
        facts = self.facts
        for seconds, nanos in _STAMPS:
            if all(
                name in facts and facts[name].kind == "numbers" and not facts[name].shape
                for name in (seconds, nanos)
            ):
                return seconds, nanos
        return None

    def _header_times(self) -> NDArray[np.int64]:
        names = self._stamp_fields()
        assert names is not None
        pieces = []
        for low, high in self._blocks():
            found = self._decoded_log_rows(low, high)
            stated = [np.asarray(found[name]) for name in names]
            if any(not (np.abs(each.astype(np.float64)) < _MAX_STAMP).all() for each in stated):
                raise CorruptLayoutError(
                    f"a stamp of topic {self.channel.topic!r} is no time", path=self.log.name
                )
            seconds, nanos = (each.astype(np.int64) for each in stated)
            pieces.append(seconds * 1_000_000_000 + nanos)
        return np.concatenate(pieces)

    def _log_rows(self, low: int, high: int) -> Ints:
        order = self._clock[1]
        return np.arange(low, high) if order is None else order[low:high]

    # Values.

    def rows(self, name: str, low: int, high: int) -> NDArray[Any]:
        """Records [low, high) of a signal of the topic, by what comes behind the name of the topic."""
        if name in (LOG_TIMES, PUBLISH_TIMES, SEQUENCE):
            stamps = self.log.stamps(self.number)
            column = {LOG_TIMES: stamps.log_ns, PUBLISH_TIMES: stamps.publish_ns, SEQUENCE: stamps.sequence}[
                name
            ]
            return column[self._log_rows(low, high)]
        if name in (BYTES, ENVELOPE):
            return self._messages(low, high)
        if self.log.payload_bytes(self.number) <= _KEPT_BYTES or self.payload is not None:
            return self._column(name)[self._log_rows(low, high)]
        return self._some(name, self._log_rows(low, high))

    def _column(self, name: str) -> NDArray[Any]:
        """All values of a small field, in the order of recording; one pass reads all of them."""
        if name not in self._columns:
            wanted = [each for each, fact in self.facts.items() if fact.kind not in ("left", "names")]
            pieces: dict[str, list[NDArray[Any]]] = {}
            for low, high in self._blocks():
                found = self._decoded_log_rows(low, high)
                for each in wanted:
                    for label, values in self._made(each, found).items():
                        pieces.setdefault(label, []).append(values)
            for label, parts in pieces.items():
                self._columns[label] = parts[0] if len(parts) == 1 else np.concatenate(parts)
            self._kept.clear()
        return self._columns[name]

    def _made(self, field: str, found: Mapping[str, Values]) -> dict[str, NDArray[Any]]:
        fact, values = self.facts[field], found[field]
        made = {field: conformed(values, fact)}
        return made | ({f"{field}{LENGTH}": lengths_of(values)} if fact.kind == "ragged" else {})

    def _some(self, name: str, rows: Ints) -> NDArray[Any]:
        """A field of a large topic: only the messages that are asked for are read."""
        assert self._decoder is not None
        found = self._decoder.decode(self.log.payloads(self.number, rows))
        field = name if name in self.facts else name.removesuffix(LENGTH)
        return self._made(field, found)[name]

    def contents(self, rows: Ints) -> list[bytes]:
        """The large field of some messages, by their place in the order of recording."""
        payload = self.payload
        assert payload is not None
        assert self._decoder is not None
        values = self._decoder.decode(self.log.payloads(self.number, rows))[payload.field]
        return [bytes(payload.content(value)) for value in values]

    def contents_at(self, low: int, high: int) -> list[bytes]:
        """The large field of records [low, high)."""
        return self.contents(self._log_rows(low, high))

    def frames(self, low: int, high: int) -> NDArray[Any]:
        """Raw frames [low, high)."""
        assert self.payload is not None
        pixels = self.payload.pixels
        assert pixels is not None
        return np.stack([pixels.frame(data) for data in self.contents_at(low, high)])

    def packets(self, low: int, high: int) -> list[bytes]:
        """The packets of a video as MP4 has them."""
        assert self.payload is not None
        video = self.payload.video
        assert video is not None
        made = [with_lengths(data, video.codec) for data in self.contents_at(low, high)]
        return [each[0] for each in made if each is not None]

    @cached_property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of a video, as its decoder says."""
        reader = _as_video(self, _PLACEHOLDER, _PLACEHOLDER)
        probe = list_packets(buffered(reader), self.path)[0]
        return probe.width, probe.height

    def blobs(self, low: int, high: int) -> NDArray[Any]:
        """The large field of records [low, high) as bytes."""
        out = np.empty(high - low, object)
        out[:] = self.contents_at(low, high)
        return out

    def _messages(self, low: int, high: int) -> NDArray[Any]:
        messages = self.log.payloads(self.number, self._log_rows(low, high))
        out = np.empty(high - low, object)
        payload = self.payload
        if payload is None:
            out[:] = [bytes(each) for each in messages.each()]
            return out
        assert self._decoder is not None
        values = self._decoder.decode(messages)[payload.field]
        out[:] = [payload.envelope(each, value) for each, value in zip(messages.each(), values, strict=True)]
        return out

    # Signals.

    def signals(self) -> dict[str, Callable[[str], Signal]]:
        """Every signal of the topic: what comes behind the topic in its name -> what makes it."""
        found: dict[str, Callable[[str], Signal]] = {}
        for name, fact in self.facts.items():
            if fact.kind in ("left", "names"):
                continue
            found[name] = partial(self._field_signal, name, fact)
            if fact.kind == "ragged":
                found[f"{name}{LENGTH}"] = partial(self._plain, f"{name}{LENGTH}", np.dtype("<i8"))
        if self.payload is not None:
            found[self.payload.field] = partial(self._payload_signal, self.payload)
        for name in (LOG_TIMES, PUBLISH_TIMES, SEQUENCE):
            found[name] = partial(self._plain, name, np.dtype("<i8"))
        found[BYTES if self.payload is None else ENVELOPE] = partial(self._objects)
        return found

    @property
    def static(self) -> dict[str, Any]:
        """Lists of names that are the same in every message."""
        return {name: list(fact.names) for name, fact in self.facts.items() if fact.kind == "names"}

    @property
    def left(self) -> dict[str, str]:
        """Fields that no signal holds, and why; they are in the messages."""
        return {name: fact.why for name, fact in self.facts.items() if fact.kind == "left"}

    def _role(self, name: str, kind: str) -> Role:
        return self.role or ("action" if self._is_action else guess_role(name, kind).role)

    def _field_signal(self, field: str, fact: Fact, name: str) -> Signal:
        if fact.kind in ("numbers", "ragged"):
            kind: Any = numeric_kind(fact.shape)
            names = self._names(fact)
            meta = SignalMeta(
                np.dtype(fact.dtype), fact.shape, kind, names=names, role=self._role(name, kind), clock=self.clock
            )  # fmt: skip
        else:
            kind = "bytes" if fact.kind == "bytes" else "text"
            meta = SignalMeta(OBJECT, (), kind, role="event", clock=self.clock)
        return RowsSignal(self._times, meta, partial(self.rows, field), len(self))

    def _names(self, fact: Fact) -> tuple[str, ...] | None:
        """What the numbers are called, where a list beside them says it: joints."""
        told = self.facts.get("name")
        is_named = (
            told is not None and told.kind == "names" and len(fact.shape) == 1 and fact.kind == "numbers"
        )
        return told.names if is_named and told is not None and len(told.names) == fact.shape[0] else None

    def _plain(self, label: str, dtype: np.dtype[Any], _name: str) -> Signal:
        meta = SignalMeta(dtype, (), "scalar", role="other", clock=self.clock)
        return RowsSignal(self._times, meta, partial(self.rows, label), len(self))

    def _objects(self, _name: str) -> Signal:
        meta = SignalMeta(OBJECT, (), "bytes", role="other", clock=self.clock)
        return RowsSignal(self._times, meta, partial(self.rows, BYTES), len(self))

    def _payload_signal(self, payload: Payload, name: str) -> Signal:
        if payload.kind == "stills":
            return TopicPictures(self, name, self._role(name, "image"))
        if payload.kind == "video":
            source = SourceVideo(partial(_video_reader, self), f"{self.log.name}#{self.base}.mp4")
            return FileVideo(source, self._times, name=name, role=self._role(name, "image"), clock=self.clock)
        if payload.pixels is not None:
            dtype, shape = payload.pixels.dtype.newbyteorder("<"), payload.pixels.shape
            kind = image_kind(dtype, shape) or numeric_kind(shape)
            meta = SignalMeta(dtype, shape, kind, role=self._role(name, kind), clock=self.clock)
            return RowsSignal(self._times, meta, self.frames, len(self))
        meta = SignalMeta(OBJECT, (), "bytes", role="event", clock=self.clock)
        return RowsSignal(self._times, meta, self.blobs, len(self))

    def payload_signal(self, name: str) -> Signal:
        """The large field as a signal under a name of its own."""
        assert self.payload is not None
        return self._payload_signal(self.payload, name)

    def _times(self) -> NDArray[np.int64]:
        return self.times

    def __reduce__(self) -> tuple[Any, ...]:
        return (_topic, (self.log, self.number, self.base, self.time, self._is_action, self.clock, self.role))


def _topic(
    log: MessageLog,
    number: int,
    base: str,
    time: TimeKind,
    is_action: bool,
    clock: str | None,
    role: Role | None,
) -> Topic:
    made = Topic(log, number, base, time=time, is_action=is_action)
    made.clock, made.role = clock, role
    return made


def _as_video(topic: Topic, width: int, height: int) -> RangeReader:
    assert topic.payload is not None
    video = topic.payload.video
    assert video is not None
    return video.reader(topic.packets, topic.path, width, height)


def _video_reader(topic: Topic) -> RangeReader:
    return _as_video(topic, *topic.frame_size)


class TopicPictures(StillsSignal):
    """A camera whose messages are JPEG or PNG pictures."""

    def __init__(self, topic: Topic, name: str, role: Role) -> None:
        super().__init__(name, role=role, clock=topic.clock)
        self._topic = topic
        if topic.payload is not None:
            self._still = topic.payload.still

    @property
    def place(self) -> str:
        """The file and the topic."""
        return self._topic.path

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """The pictures as they lie in the messages."""
        low, high = min(rows), max(rows) + 1
        if high - low <= 2 * len(rows):
            found = self._topic.contents_at(low, high)
            return [found[row - low] for row in rows]
        return [self._topic.contents_at(row, row + 1)[0] for row in rows]

    def __len__(self) -> int:
        return len(self._topic)

    def _clock(self) -> NDArray[np.int64]:
        return self._topic.times

    def __reduce__(self) -> tuple[Any, ...]:
        return (TopicPictures, (self._topic, self.name, self._role))


class _PayloadPlan:
    """Finds out over all messages what the large field is."""

    def __init__(self, channel: LogChannel) -> None:
        self._is_picture, self._is_image = channel.schema in PICTURES, channel.schema in IMAGES
        self._found: list[Payload | None] = []
        self._video = VideoFinder() if channel.schema in VIDEOS else None
        self._bytes: dict[str, int] = {}

    def add(self, fields: Mapping[str, Values], path: str) -> None:
        """Look at more messages."""
        values = fields.get("data")
        if (self._is_picture or self._is_image) and isinstance(values, list):
            self._found.append(stills_of(values, path) if self._is_picture else pixels_of(fields))
        if self._video is not None:
            self._video.add(fields)
        for name, each in fields.items():
            if isinstance(each, list) and each and isinstance(each[0], bytes | memoryview):
                self._bytes[name] = self._bytes.get(name, 0) + sum(map(len, each))

    def settled(self, facts: Mapping[str, Fact], total: int, count: int) -> Payload | None:
        """What it is, when all messages are known."""
        if (
            self._found
            and None not in self._found
            and all(_same(each, self._found[0]) for each in self._found)
        ):
            return self._found[0]
        if self._video is not None and self._video.found is not None:
            return self._video.found
        name = max(self._bytes, key=lambda each: self._bytes[each], default="")
        is_large = bool(name) and self._bytes[name] > max(total // 2, _LARGE_FIELD * count)
        return Payload(name, "bytes") if is_large and facts[name].kind == "bytes" else None


def _same(one: Payload | None, other: Payload | None) -> bool:
    assert one is not None
    assert other is not None
    stills = [each.still and (each.still.codec, each.still.shape) for each in (one, other)]
    return (one.skip, one.pixels, one.is_base64, stills[0]) == (
        other.skip,
        other.pixels,
        other.is_base64,
        stills[1],
    )
