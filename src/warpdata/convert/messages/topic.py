"""One topic of a recording as signals: its fields, the times of its messages, and the messages themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.folders import buffered
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.reopen import Reopens
from warpdata.convert.messages.cdr import CdrDecoder
from warpdata.convert.messages.columns import FieldSummary, Values, list_lengths, summarize, to_array
from warpdata.convert.messages.definitions import parse_definition
from warpdata.convert.messages.jsontext import JsonDecoder
from warpdata.convert.messages.log import Ints, LogChannel, MessageLog, Payloads
from warpdata.convert.messages.packets import split_packet
from warpdata.convert.messages.payload import Payload, PayloadFinder
from warpdata.convert.messages.protobuf import ProtobufDecoder
from warpdata.convert.rows import RowsSignal
from warpdata.convert.stepped import image_kind
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.video import list_packets
from warpdata.timeline.meta import OBJECT, Role, SignalMeta, guess_role, numeric_kind
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import frozen

TimeKind = Literal["log", "publish", "header"]

LOG_TIMES, PUBLISH_TIMES, SEQUENCE = "message.log_time_ns", "message.publish_time_ns", "message.sequence"
_STAMPS = {LOG_TIMES: "log_ns", PUBLISH_TIMES: "publish_ns", SEQUENCE: "sequence"}
BYTES, ENVELOPE = "message.bytes", "message.envelope"
"""Whole messages; for topics with a payload, messages without it."""
LENGTH = ".length"
"""Suffix of the signal with the real lengths of padded lists."""

_PROBE_SIDE = 16
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 15
_CACHED_BYTES = 32 << 20
_MAX_STAMP = 1 << 33
"""Limit for seconds and for nanoseconds: larger ones overflow 64 bits."""
_HEADER_STAMPS = (
    ("header/stamp/sec", "header/stamp/nanosec"),
    ("stamp/sec", "stamp/nanosec"),
    ("timestamp/sec", "timestamp/nanosec"),
    ("timestamp/sec", "timestamp/nsec"),
    ("timestamp/seconds", "timestamp/nanos"),
    ("header/stamp/seconds", "header/stamp/nanos"),
)


class Decoder(Protocol):
    """Reads messages of one type."""

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
        raise FormatError(
            f"recording has no definition of {channel.schema!r} (warpdata[ros] has those that ROS ships)"
        )
    raise FormatError(
        f"unsupported encoding: {encodings[0] or 'no'} messages of {encodings[1] or 'no'} schemas"
    )


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
        self.channel = log.channels[number]
        self.problem = ""
        """Why the messages cannot be decoded."""
        self._clock, self._time, self._role = clock, time, role
        self._last_block: tuple[int, int, dict[str, Values]] | None = None

    def __len__(self) -> int:
        return len(self.log.stamps(self.number))

    @property
    def path(self) -> str:
        """File and topic for error messages."""
        return f"{self.log.name} ({self.channel.topic})"

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
        return final, finder.finish(final, self.log.payload_bytes(self.number), len(self))

    @property
    def fields(self) -> dict[str, FieldSummary]:
        """Summaries of all fields except the payload."""
        summaries, payload = self._survey
        return {
            name: summary for name, summary in summaries.items() if payload is None or name != payload.field
        }

    @property
    def payload(self) -> Payload | None:
        """The large field."""
        payload = self._survey[1]
        if payload is not None and payload.kind == "video" and self._ordered_times[1] is not None:
            return Payload(payload.field, "bytes", payload.is_base64)  # a video needs its packets in order
        return payload

    def _decode_blocks(self) -> Iterator[dict[str, Values]]:
        """All messages in log order, decoded block by block; the last block is cached."""
        mean_bytes = max(1, self.log.payload_bytes(self.number) // max(1, len(self)))
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // mean_bytes))
        for low in range(0, len(self), step):
            high = min(low + step, len(self))
            if self._last_block is None or self._last_block[:2] != (low, high):
                self._last_block = (low, high, self._decode(np.arange(low, high)))
            yield self._last_block[2]

    def _decode(self, log_rows: Ints) -> dict[str, Values]:
        assert self._decoder is not None
        return self._decoder.decode(self.log.payloads(self.number, log_rows))

    # Times.

    @cached_property
    def _ordered_times(self) -> tuple[NDArray[np.int64], Ints | None, int]:
        """Times of the records, their positions in log order (None: unchanged), and the largest shift."""
        stamps = self.log.stamps(self.number)
        times = {"log": stamps.log_ns, "publish": stamps.publish_ns}.get(self.time_used)
        if times is None:
            times = self._read_header_times()
        order = np.argsort(times, kind="stable")
        steps = np.arange(len(times))
        strict = np.maximum.accumulate(times[order] - steps) + steps
        moved_ns = int(np.abs(strict - times[order]).max(initial=0))
        return frozen(strict), None if bool((order == steps).all()) else order, moved_ns

    def read_times(self) -> NDArray[np.int64]:
        """Times of the records of every signal of the topic."""
        return self._ordered_times[0]

    @property
    def moved_ns(self) -> int:
        """How far a record was moved because another has the same time."""
        return self._ordered_times[2]

    @property
    def time_used(self) -> TimeKind:
        """The chosen time, or the log time if the messages lack it."""
        if self._time == "publish" and bool((self.log.stamps(self.number).publish_ns > 0).all()):
            return "publish"
        return "header" if self._time == "header" and self._stamp_fields() is not None else "log"

    def _stamp_fields(self) -> tuple[str, str] | None:
        scalars = {name for name, field in self.fields.items() if field.kind == "numbers" and not field.shape}
        return next((pair for pair in _HEADER_STAMPS if scalars.issuperset(pair)), None)

    def _read_header_times(self) -> NDArray[np.int64]:
        names = self._stamp_fields()
        assert names is not None
        blocks = []
        for fields in self._decode_blocks():
            parts = [np.asarray(fields[name]) for name in names]
            if any(not (np.abs(part.astype(np.float64)) < _MAX_STAMP).all() for part in parts):
                raise CorruptLayoutError(
                    f"header stamp out of range in topic {self.channel.topic!r}", path=self.log.name
                )
            seconds, nanoseconds = (part.astype(np.int64) for part in parts)
            blocks.append(seconds * 1_000_000_000 + nanoseconds)
        return np.concatenate(blocks)

    def _log_rows(self, low: int, high: int) -> Ints:
        order = self._ordered_times[1]
        return np.arange(low, high) if order is None else order[low:high]

    # Values.

    def rows(self, name: str, low: int, high: int) -> NDArray[Any]:
        """Records [low, high) of a signal of the topic; `name` is the part of its name after `base`."""
        log_rows = self._log_rows(low, high)
        if name in _STAMPS:
            column: NDArray[np.int64] = getattr(self.log.stamps(self.number), _STAMPS[name])
            return column[log_rows]
        if name in (BYTES, ENVELOPE):
            return self._read_messages(log_rows)
        if self.payload is not None or self.log.payload_bytes(self.number) <= _CACHED_BYTES:
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
        self._last_block = None
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in blocks.items()
        }

    def _to_arrays(self, field: str, values: Values) -> dict[str, NDArray[Any]]:
        summary = self.fields[field]
        arrays = {field: to_array(values, summary)}
        if summary.kind == "ragged":
            arrays[f"{field}{LENGTH}"] = list_lengths(values)
        return arrays

    def _read_messages(self, log_rows: Ints) -> NDArray[Any]:
        messages = self.log.payloads(self.number, log_rows)
        result = np.empty(len(log_rows), object)
        payload = self.payload
        if payload is None:
            result[:] = [bytes(message) for message in messages.split()]
        else:
            assert self._decoder is not None
            values = self._decoder.decode(messages)[payload.field]
            result[:] = [payload.envelope(*pair) for pair in zip(messages.split(), values, strict=True)]
        return result

    def read_payloads(self, low: int, high: int) -> list[bytes]:
        """The large field of records [low, high)."""
        payload = self.payload
        assert payload is not None
        values = self._decode(self._log_rows(low, high))[payload.field]
        return [bytes(payload.content(value)) for value in values]

    def read_frames(self, low: int, high: int) -> NDArray[Any]:
        """Raw images of records [low, high)."""
        assert self.payload is not None
        assert self.payload.pixels is not None
        return np.stack([self.payload.pixels.decode(data) for data in self.read_payloads(low, high)])

    def read_blobs(self, low: int, high: int) -> NDArray[Any]:
        """The large field of records [low, high) as objects."""
        result = np.empty(high - low, object)
        result[:] = self.read_payloads(low, high)
        return result

    def _read_packets(self, codec: str, low: int, high: int) -> list[bytes]:
        packets = [split_packet(data, codec) for data in self.read_payloads(low, high)]
        return [packet[0] for packet in packets if packet is not None]

    def _open_video(self, width: int, height: int) -> RangeReader:
        assert self.payload is not None
        video = self.payload.video
        assert video is not None
        return video.open(partial(self._read_packets, video.codec), self.path, width, height)

    @cached_property
    def _frame_size(self) -> tuple[int, int]:
        """Width and height of a video, from its decoder."""
        probe = list_packets(buffered(self._open_video(_PROBE_SIDE, _PROBE_SIDE)), self.path)[0]
        return probe.width, probe.height

    def open_video(self) -> RangeReader:
        """The packets of a video as an MP4 file."""
        return self._open_video(*self._frame_size)

    # Signals.

    def signal_names(self) -> list[str]:
        """Every signal of the topic by the part of its name after `base`."""
        names: list[str] = []
        for name, summary in self.fields.items():
            if summary.kind not in ("skipped", "names"):
                names += [name, f"{name}{LENGTH}"] if summary.kind == "ragged" else [name]
        payload = self.payload
        return [*names, *_STAMPS, BYTES] if payload is None else [*names, payload.field, *_STAMPS, ENVELOPE]

    def open_signal(self, label: str, name: str) -> Signal:
        """The signal that `signal_names` lists as `label`, under its full name."""
        if self.payload is not None and label == self.payload.field:
            return self.open_payload(name)
        summary = self.fields.get(label)
        meta = SignalMeta(
            np.dtype("<i8"), (), "scalar", role="other", clock=self._clock
        )  # stamps and lengths
        if label in (BYTES, ENVELOPE):
            meta = SignalMeta(OBJECT, (), "bytes", role="other", clock=self._clock)
        elif summary is not None and summary.dtype:
            dtype, shape, kind = np.dtype(summary.dtype), summary.shape, numeric_kind(summary.shape)
            labels = self.fields.get("name")  # a list of names beside numbers, as joints have it, names them
            is_named = labels is not None and summary.kind == "numbers" and shape == (len(labels.names),)
            names = labels.names if labels is not None and is_named else None
            role = self._choose_role(name, kind)
            meta = SignalMeta(dtype, shape, kind, names=names, role=role, clock=self._clock)
        elif summary is not None:
            kind = "bytes" if summary.kind == "bytes" else "text"
            meta = SignalMeta(OBJECT, (), kind, role="event", clock=self._clock)
        return RowsSignal(self.read_times, meta, partial(self.rows, label), len(self))

    @property
    def static(self) -> dict[str, Any]:
        """Lists of names that are the same in every message."""
        return {name: list(field.names) for name, field in self.fields.items() if field.kind == "names"}

    @property
    def skipped(self) -> dict[str, str]:
        """Fields that no signal can hold, with the reason; they are in the messages."""
        return {name: field.reason for name, field in self.fields.items() if field.kind == "skipped"}

    def _choose_role(self, name: str, kind: str) -> Role:
        return self._role or guess_role(name, kind).role

    def open_payload(self, name: str) -> Signal:
        """The large field as a signal."""
        payload = self.payload
        assert payload is not None
        role = self._choose_role(name, "image")
        if payload.still is not None:
            return TopicPictures(self, name, role, self._clock)
        if payload.video is not None:
            source = SourceVideo(self.open_video, f"{self.log.name}#{self.base}.mp4")
            return FileVideo(source, self.read_times, name=name, role=role, clock=self._clock)
        if payload.pixels is None:
            meta = SignalMeta(OBJECT, (), "bytes", role="event", clock=self._clock)
            return RowsSignal(self.read_times, meta, self.read_blobs, len(self))
        dtype, shape = payload.pixels.dtype.newbyteorder("<"), payload.pixels.shape
        kind = image_kind(dtype, shape) or numeric_kind(shape)
        meta = SignalMeta(dtype, shape, kind, role=self._choose_role(name, kind), clock=self._clock)
        return RowsSignal(self.read_times, meta, self.read_frames, len(self))


class TopicPictures(Reopens, StillsSignal):
    """A camera with JPEG or PNG pictures in its messages."""

    def __init__(self, topic: Topic, name: str, role: Role, clock: str | None) -> None:
        super().__init__(name, role=role, clock=clock)
        self._topic = topic
        self._still = topic.payload.still if topic.payload is not None else None

    @property
    def place(self) -> str:
        """File and topic."""
        return self._topic.path

    def pictures(self, rows: Sequence[int]) -> list[bytes]:
        """Encoded pictures of these records."""
        low, high = min(rows), max(rows) + 1
        if high - low <= 2 * len(rows):
            pictures = self._topic.read_payloads(low, high)
            return [pictures[row - low] for row in rows]
        return [self._topic.read_payloads(row, row + 1)[0] for row in rows]

    def __len__(self) -> int:
        return len(self._topic)

    def _clock(self) -> NDArray[np.int64]:
        return self._topic.read_times()
