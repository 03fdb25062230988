"""One topic of a recording as signals: its fields, the times of its messages, and messages that no field can hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.io.ranges import RangeReader, open_buffered
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.convert.messages import Ints, MessageLog
from warpdata.convert.messages.cdr import Values
from warpdata.convert.messages.decoders import (
    EMPTY,
    Decoder,
    FieldSummary,
    open_decoder,
    summarize,
    to_array,
)
from warpdata.convert.messages.payload import Payload, PayloadFinder, to_mp4_packet
from warpdata.convert.stepped import PicturesSignal, Rows, RowsSignal, image_kind
from warpdata.episodes.sources.file_video import FileVideo, SourceVideo
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.video import list_packets
from warpdata.timeline.meta import OBJECT, Kind, Role, SignalMeta, guess_role, numeric_kind
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal

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
        self._last_block: tuple[int, dict[str, Values]] = (-1, {})

    def __len__(self) -> int:
        return len(self.log.stamps(self.number).log_ns)

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
        payload = finder.finish(final, self.log.payload_bytes(self.number), len(self))
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
        if payload is not None and payload.kind == "video" and self._ordered_times[1] is not None:
            return Payload(payload.field, "bytes", payload.is_base64)  # a video needs its packets in order
        return payload

    @property
    def skipped(self) -> dict[str, str]:
        """Fields that no signal can hold, with the reason; they are in the messages."""
        return {name: field.reason for name, field in self.fields.items() if field.kind == "skipped"}

    def _decode_blocks(self) -> Iterator[dict[str, Values]]:
        """All messages in log order, decoded block by block; the last block is cached."""
        mean_bytes = max(1, self.log.payload_bytes(self.number) // max(1, len(self)))
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
    def _ordered_times(self) -> tuple[NDArray[np.int64], Ints | None, int]:
        """Times of the records, their positions in log order (None: unchanged), and the largest shift."""
        stamps = self.log.stamps(self.number)
        if self.time_used == "header":
            times = self._read_header_times()
        else:
            times = stamps.log_ns if self.time_used == "log" else stamps.publish_ns
        order = np.argsort(times, kind="stable")
        steps = np.arange(len(times))
        strict = np.maximum.accumulate(times[order] - steps) + steps
        moved_ns = int(np.abs(strict - times[order]).max(initial=0))
        return read_only(strict), None if bool((order == steps).all()) else order, moved_ns

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
                fact = f"header stamp out of range in topic {self.channel.topic!r}"
                raise CorruptLayoutError(fact, path=self.log.name)
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
        if name == BYTES:
            return as_objects([bytes(each) for each in self.log.payloads(self.number, log_rows).split()])
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
        self._last_block = (-1, {})
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in blocks.items()
        }

    def _to_arrays(self, field: str, values: Values) -> dict[str, NDArray[Any]]:
        summary = self.fields[field]
        arrays = {field: to_array(values, summary)}
        if summary.kind == "ragged":
            arrays[f"{field}{LENGTH}"] = np.fromiter(map(len, values), np.int64, len(values))
        return arrays

    def read_field(self, field: str, low: int, high: int) -> Values:
        """The values of a field of records [low, high) as they are decoded, of any length."""
        return self._decode(self._log_rows(low, high))[field]

    def read_bytes(self, low: int, high: int) -> NDArray[Any]:
        """The large field of records [low, high) as bytes."""
        payload = self.payload
        assert payload is not None
        values = self._decode(self._log_rows(low, high))[payload.field]
        return as_objects(bytes(payload.content(value)) for value in values)

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
                metas[name] = SignalMeta(
                    np.dtype(summary.dtype), shape, kind, names=names, role=role, clock=self._clock
                )
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
            return PicturesSignal(name, rows, self.read_times, role, self._clock, self.path)
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
        return self._open_video(*self._frame_size)

    @cached_property
    def _frame_size(self) -> tuple[int, int]:
        """Width and height of a video, from its decoder."""
        probe = list_packets(open_buffered(self._open_video(_PROBE_SIDE, _PROBE_SIDE)), self.path)[0]
        return probe.width, probe.height

    def _open_video(self, width: int, height: int) -> RangeReader:
        assert self.payload is not None
        video = self.payload.video
        assert video is not None
        return video.open(partial(self._read_packets, video.codec), self.path, width, height)

    def _read_packets(self, codec: str, low: int, high: int) -> list[bytes]:
        return [to_mp4_packet(data, codec) for data in self.read_bytes(low, high)]
