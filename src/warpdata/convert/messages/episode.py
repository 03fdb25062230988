"""A recording of messages as an episode: a signal per field of a topic, the rest of the recording as metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, read_only
from warpdata.bytekit.io.ranges import RangeReader, open_buffered
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.convert.messages import Ints, MessageLog
from warpdata.convert.messages.cdr import Values
from warpdata.convert.messages.decoders import EMPTY, Decoder, FieldSummary, open_decoder, summarize, to_array
from warpdata.convert.messages.payload import Payload, PayloadFinder, to_mp4_packet
from warpdata.convert.place import Place
from warpdata.convert.plain_names import free_name, plain_name
from warpdata.convert.receipt import pack, unpack
from warpdata.convert.stepped import Rows, RowsSignal, image_kind
from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.sources.cameras import FileVideo, SourceVideo
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    WarpError,
    nearest,
    require_word,
)
from warpdata.formats.episodedir.video import list_packets
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import (
    OBJECT,
    Kind,
    Role,
    RowType,
    SignalMeta,
    as_kind,
    as_role,
    guess_role,
    numeric_kind,
)
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals
from warpdata.timeline.times import checked_rate

TimeKind = Literal["log", "publish", "header"]

_STAMPS = {
    "message.log_time_ns": "log_ns",
    "message.publish_time_ns": "publish_ns",
    "message.sequence": "sequence",
}
BYTES = "message.bytes"
"""Whole messages of a topic that has fields without a signal."""
LENGTH = ".length"
"""Suffix of the signal with the real lengths of padded lists."""

_PROBE_SIDE = 16
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 15
_CACHED_BYTES = 32 << 20
_MAX_STAMP = 1 << 33
"""Limit for seconds and for nanoseconds: larger ones overflow 64 bits."""
_HEADER_STAMPS = [
    (f"{stamp}/{seconds}", f"{stamp}/{fraction}")
    for stamp in ("header/stamp", "stamp", "timestamp")
    for seconds, fraction in (("sec", "nanosec"), ("sec", "nsec"), ("seconds", "nanos"))
]


class _Timing(NamedTuple):
    """The times of the records of a topic."""

    used: TimeKind
    """The chosen time, or the log time if the messages lack it."""
    times: NDArray[np.int64]
    order: Ints | None
    """Positions of the records in log order; None: unchanged."""
    moved_ns: int
    """How far a record was moved because another has the same time."""


class Topic(Reopens):
    """The messages of one channel; fields follow from decoding all messages once, on first use."""

    def __init__(
        self,
        log: MessageLog,
        number: int,
        base: str,
        *,
        clock: str | None,
        time: TimeKind = "log",
        role: Role | None = None,
    ) -> None:
        """`base` is the first part of the names of its signals; `role` None means a guess from each name."""
        self.log, self.number, self.base = log, number, base
        contents = log.contents
        self.channel, self._stamps = contents.channels[number], contents.stamps[number]
        self._bytes = contents.sizes[number]
        self.path = f"{log.name} ({self.channel.topic})"
        self.problem = ""
        """Why the messages cannot be decoded."""
        self._clock, self._time, self._role = clock, time, role
        self._last_block: tuple[int, dict[str, Values]] = (-1, {})
        self._frame_size: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._stamps.log_ns)

    # Fields.

    @cached_property
    def _decoder(self) -> Decoder | None:
        try:
            return open_decoder(self.channel, self.log.name)
        except FormatError as error:
            self.problem = error.message
            return None

    @cached_property
    def _survey(self) -> tuple[dict[str, FieldSummary], Payload | None]:
        """Summaries of all fields, and the large one, from one pass over all messages."""
        if self._decoder is None or not len(self):
            return {}, None
        summaries: dict[str, FieldSummary] = {}
        finder = PayloadFinder(self.channel.schema, self.path)
        try:
            for fields in self._decode_blocks():
                finder.add(fields)
                for name, values in fields.items():
                    summary = summarize(values)
                    summaries[name] = summaries[name].merge(summary) if name in summaries else summary
        except FormatError as error:
            self.problem = error.message
            return {}, None
        final = {name: summary.finish(len(self)) for name, summary in summaries.items()}
        payload = finder.finish(final, self._bytes, len(self))
        if payload is not None:
            del final[payload.field]
        return final, payload

    @property
    def fields(self) -> dict[str, FieldSummary]:
        """Summaries of all fields except the payload."""
        return self._survey[0]

    @property
    def payload(self) -> Payload | None:
        """The large field."""
        payload = self._survey[1]
        if payload is not None and payload.kind == "video" and self.timing.order is not None:
            return Payload(payload.field, "bytes", payload.is_base64)  # a video needs its packets in order
        return payload

    @property
    def skipped(self) -> dict[str, str]:
        """Fields that no signal can hold, with the reason; they are in the messages."""
        return {name: field.reason for name, field in self.fields.items() if field.kind == "skipped"}

    def _decode_blocks(self) -> Iterator[dict[str, Values]]:
        """All messages in log order, decoded block by block; the last block is cached."""
        mean_bytes = max(1, self._bytes // max(1, len(self)))
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // mean_bytes))
        for low in range(0, len(self), step):
            if self._last_block[0] != low:
                self._last_block = (low, self._decode(np.arange(low, min(low + step, len(self)))))
            yield self._last_block[1]

    def _decode(self, log_rows: Ints) -> dict[str, Values]:
        assert self._decoder is not None
        return self._decoder.decode(self.log.payloads(self.number, log_rows))

    # Times.

    @cached_property
    def timing(self) -> _Timing:
        """Strictly increasing times of the records."""
        used, pair = self._time, None
        if used == "header":
            single = {name for name, item in self.fields.items() if item.kind == "numbers" and not item.shape}
            pair = next((pair for pair in _HEADER_STAMPS if single.issuperset(pair)), None)
            used = "log" if pair is None else used
        if used == "publish" and not bool((self._stamps.publish_ns > 0).all()):
            used = "log"
        times = self._stamps.log_ns if used == "log" else self._stamps.publish_ns
        if pair is not None:
            blocks = []
            for fields in self._decode_blocks():
                parts = [np.asarray(fields[name]) for name in pair]
                if any(not (np.abs(part.astype(np.float64)) < _MAX_STAMP).all() for part in parts):
                    fact = f"header stamp out of range in topic {self.channel.topic!r}"
                    raise CorruptLayoutError(fact, path=self.log.name)
                seconds, nanoseconds = (part.astype(np.int64) for part in parts)
                blocks.append(seconds * 1_000_000_000 + nanoseconds)
            times = np.concatenate(blocks)
        order, steps = np.argsort(times, kind="stable"), np.arange(len(times))
        strict = np.maximum.accumulate(times[order] - steps) + steps
        moved_ns = int(np.abs(strict - times[order]).max(initial=0))
        return _Timing(used, read_only(strict), None if bool((order == steps).all()) else order, moved_ns)

    def read_times(self) -> NDArray[np.int64]:
        """Times of the records of every signal of the topic."""
        return self.timing.times

    def _log_rows(self, low: int, high: int) -> Ints:
        order = self.timing.order
        return np.arange(low, high) if order is None else order[low:high]

    # Values.

    def rows(self, name: str, low: int, high: int) -> NDArray[Any]:
        """Records [low, high) of a signal of the topic; `name` is the part of its name after `base`."""
        log_rows = self._log_rows(low, high)
        if name in _STAMPS:
            column: NDArray[np.int64] = getattr(self._stamps, _STAMPS[name])
            return column[log_rows]
        if name == BYTES:
            return as_objects(map(bytes, self.log.payloads(self.number, log_rows).split()))
        if self.payload is not None or self._bytes <= _CACHED_BYTES:
            return self._columns[name][log_rows]
        field = name if name in self.fields else name.removesuffix(LENGTH)
        return self._to_arrays(field, self._decode(log_rows)[field])[name]

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        """All values of all small fields in log order, from one pass."""
        blocks: dict[str, list[NDArray[Any]]] = {}
        for fields in self._decode_blocks():
            for field, summary in self.fields.items():
                if summary.kind not in ("skipped", "names"):
                    for name, values in self._to_arrays(field, fields[field]).items():
                        blocks.setdefault(name, []).append(values)
        self._last_block = (-1, {})
        return {name: runs[0] if len(runs) == 1 else np.concatenate(runs) for name, runs in blocks.items()}

    def _to_arrays(self, field: str, values: Values) -> dict[str, NDArray[Any]]:
        arrays = {field: to_array(values, self.fields[field])}
        if self.fields[field].kind == "ragged":
            arrays[f"{field}{LENGTH}"] = np.fromiter(map(len, values), np.int64, len(values))
        return arrays

    def read_field(self, field: str, low: int, high: int) -> Values:
        """The values of a field of records [low, high) as they are decoded, of any length."""
        return self._decode(self._log_rows(low, high))[field]

    def read_bytes(self, low: int, high: int) -> NDArray[Any]:
        """The large field of records [low, high) as bytes."""
        payload = self.payload
        assert payload is not None
        return as_objects(bytes(payload.content(item)) for item in self.read_field(payload.field, low, high))

    def read_content(self, low: int, high: int) -> NDArray[Any]:
        """Raw images, or bytes, of records [low, high)."""
        data, pixels = self.read_bytes(low, high), None if self.payload is None else self.payload.pixels
        return data if pixels is None else np.stack([pixels.decode(frame) for frame in data])

    # Signals.

    def metas(self) -> dict[str, SignalMeta]:
        """Every signal but the payload, by the part of its name after `base`."""
        number = SignalMeta(np.dtype("<i8"), (), "scalar", role="other", clock=self._clock)
        metas: dict[str, SignalMeta] = {}
        labels = self.fields.get("name")  # a list of names beside numbers, as joints have it, names them
        for name, summary in self.fields.items():
            shape = summary.shape
            if summary.kind in ("numbers", "ragged"):
                kind = numeric_kind(shape)
                is_named = labels is not None and summary.kind == "numbers" and shape == (len(labels.names),)
                names = labels.names if labels is not None and is_named else None
                role = self._choose_role(f"{self.base}/{name}", kind)
                dtype = np.dtype(summary.dtype)
                metas[name] = SignalMeta(dtype, shape, kind, names=names, role=role, clock=self._clock)
            elif summary.kind not in ("skipped", "names"):
                kind = "bytes" if summary.kind == "bytes" else "text"
                metas[name] = SignalMeta(OBJECT, (), kind, role="event", clock=self._clock)
            if summary.kind == "ragged":
                metas[f"{name}{LENGTH}"] = number
        metas |= dict.fromkeys(_STAMPS, number)
        is_lost = any(reason != EMPTY for reason in self.skipped.values())
        if self._decoder is None or self.problem or is_lost or self._decoder.leaves_out:
            metas[BYTES] = SignalMeta(OBJECT, (), "bytes", role="other", clock=self._clock)
        return metas

    def open_rows(self, label: str, meta: SignalMeta, _name: str) -> Signal:
        """The signal that `metas` has as `label`."""
        return RowsSignal(self.read_times, meta, partial(self.rows, label), len(self))

    def _choose_role(self, name: str, kind: Kind) -> Role:
        return self._role or guess_role(name, kind).role

    def open_payload(self, name: str) -> Signal:
        """The large field as a signal."""
        payload = self.payload
        assert payload is not None
        role = self._choose_role(name, "image")
        if payload.still is not None:
            rows = replace(Rows.objects(len(self), "bytes", self.read_bytes), is_pictures=True)
            return rows.stills(name, self.read_times, self.path, role=role, clock=self._clock)
        if payload.video is not None:
            source = SourceVideo(self.open_video, f"{self.log.name}#{self.base}.mp4")
            return FileVideo(source, self.read_times, name=name, role=role, clock=self._clock)
        meta = SignalMeta(OBJECT, (), "bytes", role="event", clock=self._clock)
        if payload.pixels is not None:
            dtype, shape = payload.pixels.dtype.newbyteorder("<"), payload.pixels.shape
            kind = image_kind(dtype, shape) or numeric_kind(shape)
            meta = SignalMeta(dtype, shape, kind, role=self._choose_role(name, kind), clock=self._clock)
        return RowsSignal(self.read_times, meta, self.read_content, len(self))

    def open_video(self) -> RangeReader:
        """The packets of a video as an MP4 file."""
        if self._frame_size is None:  # the decoder knows it
            probe = list_packets(open_buffered(self._open_video(_PROBE_SIDE, _PROBE_SIDE)), self.path)[0]
            self._frame_size = probe.width, probe.height
        return self._open_video(*self._frame_size)

    def _open_video(self, width: int, height: int) -> RangeReader:
        video = None if self.payload is None else self.payload.video
        assert video is not None
        codec = video.codec

        def read_packets(low: int, high: int) -> list[bytes]:
            return [to_mp4_packet(data, codec) for data in self.read_bytes(low, high)]

        return video.open(read_packets, self.path, width, height)


OWN = "warpdata"
"""Key in the metadata of a channel: description of the signal; and name of the metadata record of the episode."""
KEPT = "messages"
"""Key in the metadata of an episode: channels, schemas and other records of the recording."""
ATTACHMENTS = "message.attachments"
"""Signal with the data of attachments; the rest of them is metadata."""
ATTACHMENT_KEYS = ("name", "media_type", "log_ns", "create_ns")


class Reading(NamedTuple):
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
    """Recordings below a place, one episode each; their ids are the names of files and bags."""

    ids: Sequence[str] = ()

    def __init__(
        self,
        place: Place,
        reading: Reading,
        find: Callable[[Place], Mapping[str, list[str]]],
        open_log: Callable[[Place, list[str]], MessageLog],
    ) -> None:
        """`find` gives the files of every recording by its id: one empty name if the place itself is the file."""
        self._place, self.name, self._reading, self._open_log = place, place.name, reading, open_log
        self._recordings = find(place)
        self.ids = list(self._recordings)
        if not self._recordings:
            raise BlobNotFoundError("folder has no recording of this format", path=place.name)

    def open(self, position: int) -> Episode:
        """The recording at a position."""
        name = self.ids[position]
        log = self._open_log(self._place, self._recordings[name])
        return Episode(MessageSource(name, log, self._reading))


class MessageSource(EpisodeSource):
    """One recording: a signal per field of a topic; types are known when names are, values are read on use."""

    def __init__(self, id: str, log: MessageLog, reading: Reading) -> None:  # noqa: A002 - the word of the model
        self._log, self._reading = log, reading
        signals = LazySignals(lambda: self._openers, lambda name: self._openers[name](name))
        super().__init__(id, signals, self._read_static, self._read_meta, place=log.name)

    @cached_property
    def _own(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Static items and metadata that our writer stored."""
        for record in self._log.contents.about["metadata"]:
            if record["name"] == OWN:
                try:
                    stated = parse_json_object(record["metadata"].get("episode", "{}").encode())
                    static, meta = (unpack(stated.get(key)) for key in ("static", "meta"))
                except WarpError:
                    break
                static, meta = (dict(items) if isinstance(items, Mapping) else {} for items in (static, meta))
                return static, meta | ({KEPT: stated[KEPT]} if KEPT in stated else {})
        return {}, {}

    @cached_property
    def _chosen(self) -> list[int]:
        """Numbers of the channels to read."""
        names = [channel.topic for channel in self._log.contents.channels]
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
            channel = self._log.contents.channels[number]
            if OWN in channel.metadata:
                continue
            base = free_name(plain_name(channel.topic), topics)
            role: Role | None = "action" if channel.topic in self._reading.actions else None
            topics[base] = Topic(self._log, number, base, clock=base, time=self._reading.time, role=role)
        return {topic.number: topic for topic in topics.values()}

    @cached_property
    def _openers(self) -> dict[str, Callable[[str], Signal]]:
        openers: dict[str, Callable[[str], Signal]] = {}
        for number in self._chosen:
            topic = self._topics.get(number)
            if topic is None:
                name, opener = open_own_topic(self._log, number)
                openers[name] = opener
            elif len(topic):
                labels = {key: partial(topic.open_rows, key, meta) for key, meta in topic.metas().items()}
                if topic.payload is not None:
                    labels[topic.payload.field] = topic.open_payload  # type: ignore[assignment]
                for label, opener in labels.items():
                    openers[free_name(f"{topic.base}/{plain_name(label)}", openers)] = opener
        if self._log.contents.attachments:
            openers[free_name(ATTACHMENTS, openers)] = self._open_attachments
        return openers

    def _read_static(self) -> dict[str, Any]:
        """Lists of names that do not change, static items that our writer stored, and the task of a metadata record."""
        items: dict[str, Any] = {}
        for topic in self._topics.values():
            for name, field in topic.fields.items():
                if field.kind == "names":
                    items[f"{topic.base}/{plain_name(name)}"] = list(field.names)
        items |= self._own[0]
        for record in self._log.contents.about["metadata"]:
            if record["name"] != OWN and "task" in record["metadata"]:
                items.setdefault("task", record["metadata"]["task"])
        return items

    def _read_meta(self) -> dict[str, Any]:
        """Metadata that our writer stored, and what the recording has besides messages."""
        own = self._own[1]
        if own and not self._topics:
            return own
        schemas: list[tuple[str, str, bytes]] = []
        channels = []
        for topic in self._topics.values():
            schema = (topic.channel.schema, topic.channel.schema_encoding, topic.channel.schema_data)
            if schema not in schemas:
                schemas.append(schema)
            payload = topic.payload
            stated: dict[str, Any] = {
                "topic": topic.channel.topic,
                "signal": topic.base,
                "schema": (schemas.index(schema)),
                "encoding": topic.channel.message_encoding,
                "metadata": dict(topic.channel.metadata),
                "time": topic.timing.used,
                "messages": len(topic),
            }
            more = {
                "payload": None if payload is None else {"field": payload.field, "kind": payload.kind},
                "moved_ns": topic.timing.moved_ns,
                "not_decoded": topic.problem,
                "only_in_messages": topic.skipped,
            }
            channels.append(stated | {key: value for key, value in more.items() if value})
        kept = {
            **self._log.contents.about,
            "schemas": [{"name": name, "encoding": kind, "data": pack(raw)} for name, kind, raw in schemas],
            "channels": channels,
            "attachments": [
                {key: getattr(attachment, key) for key in ATTACHMENT_KEYS}
                for attachment in self._log.contents.attachments
            ],
        }
        return {**own, KEPT: kept}

    def stored_bytes(self) -> int:
        """Size of all messages."""
        return sum(self._log.contents.sizes)

    def _open_attachments(self, _name: str) -> Signal:
        attachments = self._log.contents.attachments
        steps = np.arange(len(attachments))
        log_ns = np.array([attachment.log_ns for attachment in attachments], np.int64)
        times = np.maximum.accumulate(log_ns - steps) + steps
        data = as_objects([attachment.data for attachment in attachments])
        return ArraySignal(times, data, SignalMeta(OBJECT, (), "bytes", role="other"))


# Topics that warpdata wrote.


def open_own_topic(log: MessageLog, number: int) -> tuple[str, Callable[[str], Signal]]:
    """Name of the signal of a topic that warpdata wrote, and the function that opens it under a name."""
    channel = log.contents.channels[number]
    try:
        stated = parse_json_object(channel.metadata[OWN].encode())
        kind = as_kind(stated["kind"])
        names, shape = stated.get("names"), tuple(int(side) for side in stated["shape"])
        if min(shape, default=0) < 0:
            raise ValueError(shape)
        dtype = OBJECT if kind in ("text", "bytes") else dtype_named(stated["dtype"]).dtype
        is_ragged = kind in ("ragged", "sound")
        name, meta = (
            str(stated["signal"]),
            (
                SignalMeta(
                    OBJECT if is_ragged else dtype,
                    () if is_ragged else shape,
                    kind,
                    names=None if names is None else tuple(map(str, names)),
                    role=as_role(stated["role"]),
                    **{key: stated.get(key) for key in ("units", "of", "model", "clock")},
                    rows=RowType(dtype, shape) if is_ragged else None,
                    rate_hz=checked_rate(stated["rate_hz"]) if kind == "sound" else None,
                )
            ),
        )
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
        raws = (
            value.tobytes() if isinstance(value, np.ndarray) else bytes(value)
            for value in topic.read_field("value", low, high)
        )
        try:
            return as_objects(
                np.frombuffer(raw, meta.rows.dtype).reshape(-1, *meta.rows.shape) for raw in raws
            )
        except (TypeError, ValueError):
            fact = f"values of topic {topic.channel.topic!r} are not rows of {meta.rows}"
            raise CorruptLayoutError(fact, path=topic.log.name) from None
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
