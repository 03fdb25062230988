"""Signals as topics of ROS 2 messages (CDR), with the definitions that are stored beside them, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.messages.cdr import PRIMITIVES
from warpdata.convert.messages.log import LogChannel, MessageLog
from warpdata.convert.messages.payload import stored_config, to_stream_packet
from warpdata.convert.messages.topic import Topic
from warpdata.convert.receipt import How, Note, note_of
from warpdata.convert.stepped import RowsSignal
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import CorruptLayoutError, WarpError
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import OBJECT, RowType, SignalMeta, as_kind, as_role
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import checked_rate

OWN = "warpdata"
"""Key in the metadata of a channel: description of the signal; and name of the metadata record of the episode."""

_RULE = "=" * 80
_TIME = f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{_TIME}"
PICTURE = f"std_msgs/Header header\nstring format\nuint8[] data\n{_HEADER}"
IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    f"uint8[] data\n{_HEADER}"
)
VIDEO = f"builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n{_TIME}"
_FRAME_ID = "warpdata"
_ENCAPSULATION = b"\x00\x01\x00\x00"
_ROS_TYPES = {code: name for name, code in PRIMITIVES.items()} | {"u1": "uint8", "b1": "bool"}
"""numpy type code -> ROS type."""
_PIXELS = {
    ((), "uint8"): "mono8",
    ((), "uint16"): "16UC1",
    ((3,), "uint8"): "rgb8",
    ((3,), "uint16"): "rgb16",
    ((4,), "uint8"): "rgba8",
    ((4,), "uint16"): "rgba16",
}
"""Channels and element type -> encoding of an image."""
_STILLS = {"mjpeg": "jpeg", "png": "png"}
_VIDEOS = {"h264": "h264", "hevc": "h265", "av1": "av1"}
_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 13


class SignalTopic:
    """A signal as a topic of its own; a record is a stamped value, a picture, an image or a video packet."""

    def __init__(self, name: str, signal: Signal) -> None:
        meta = signal.meta
        self._signal = signal
        run = encoded_run(signal) if meta.kind == "image" and len(signal) else None
        self._run = run if run is not None and _can_copy(run) else None
        self._pixels = _PIXELS.get((meta.shape[2:], meta.dtype.name)) if meta.kind == "image" else None
        codec = self._run.stream.codec if self._run is not None else ""
        if run is None or codec in _STILLS:
            self.note: Note = note_of(signal)
        elif codec:
            self.note = note_of(signal, "kept", "packets copied, with their parameter sets before keyframes")
        else:
            how: How = "kept" if run.stream.codec in ("ffv1", "png") else "reencoded"
            self.note = note_of(signal, how, f"decoded from {run.stream.codec} to pixels")
        if codec in _VIDEOS:
            schema, definition = "foxglove_msgs/msg/CompressedVideo", VIDEO
        elif codec:
            schema, definition = "sensor_msgs/msg/CompressedImage", PICTURE
        elif self._pixels is not None:
            schema, definition = "sensor_msgs/msg/Image", IMAGE
        else:
            schema, definition = _define_value(meta)
        about = {OWN: json.dumps(_meta_to_json(name, meta))}
        self.channel = LogChannel(f"/{name}", schema, "ros2msg", definition.encode(), "cdr", about)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Time and bytes of every message."""
        signal = self._signal
        if self._run is not None:
            yield from _picture_messages(self._run)
            return
        for run in signal.runs(_BLOCK_BYTES, _BLOCK_ROWS):
            times = np.asarray(signal._ts_in(run))
            yield from zip(times.tolist(), self._encode(times, signal.rows(run.start, run.stop)), strict=True)

    def _encode(self, times: NDArray[np.int64], values: NDArray[Any]) -> list[bytes]:
        pairs = zip(times.tolist(), values, strict=True)
        if self._pixels is not None:
            return [_image_message(ts_ns, self._pixels, frame) for ts_ns, frame in pairs]
        if self._signal.meta.rows is not None:
            return [_rows_message(ts_ns, value) for ts_ns, value in pairs]
        if self._signal.meta.is_object:
            return [_value_message(ts_ns, value) for ts_ns, value in pairs]
        if _ros_type(values.dtype) is None:
            return [_value_message(ts_ns, np.ascontiguousarray(value).tobytes()) for ts_ns, value in pairs]
        # A stamp and numbers of one shape: every type is aligned after the stamp.
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        raw = np.ascontiguousarray(little).reshape(len(values), -1).view(np.uint8)
        head = np.broadcast_to(np.frombuffer(_ENCAPSULATION, np.uint8), (len(values), 4))
        stamps = np.stack([(times // 1_000_000_000) & 0xFFFFFFFF, times % 1_000_000_000], axis=1)
        rows = np.concatenate([head, stamps.astype("<u4").view(np.uint8), raw], axis=1)
        return [row.tobytes() for row in rows]


def _ros_type(dtype: np.dtype[Any]) -> str | None:
    return _ROS_TYPES.get(dtype.str[1:]) if dtype.kind in "biuf" else None


def _define_value(meta: SignalMeta) -> tuple[str, str]:
    """Name and definition of the type of a stamped value."""
    ros_type = _ros_type(meta.dtype)
    if meta.rows is not None and (item := _ros_type(meta.rows.dtype)) is not None:
        name, line = f"{item.capitalize()}s", f"{item}[] value"
    elif meta.kind == "text":
        name, line = "Text", "string value"
    elif meta.kind == "bytes" or ros_type is None:
        name, line = "Bytes", "uint8[] value"
    elif meta.shape:
        count = int(np.prod(meta.shape, dtype=object))
        name, line = f"{ros_type.capitalize()}x{count}", f"{ros_type}[{count}] value"
    else:
        name, line = ros_type.capitalize(), f"{ros_type} value"
    return f"warpdata_msgs/msg/{name}", f"builtin_interfaces/Time stamp\n{line}\n{_TIME}"


def _can_copy(run: EncodedRun) -> bool:
    """Whether packets can be messages: all frames shown, and those of a video in the order of decoding."""
    codec = run.stream.codec
    if not bool(run.shown.all()) or codec in _STILLS:
        return bool(run.shown.all())
    return (
        codec in _VIDEOS and bool((np.diff(run.shows) == 1).all()) and stored_config(run.entry, codec) != b""
    )


def _picture_messages(run: EncodedRun) -> Iterator[tuple[int, bytes]]:
    """Messages of sensor_msgs/CompressedImage or foxglove_msgs/CompressedVideo."""
    codec = run.stream.codec
    config = stored_config(run.entry, codec) if codec in _VIDEOS else b""
    for ts_ns, frame in zip(run.ts_ns.tolist(), run.frames(), strict=True):
        head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID))
        if codec in _STILLS:
            yield ts_ns, _ENCAPSULATION + _pad(head + encode_string(_STILLS[codec])) + encode_blob(frame.data)
        else:
            packet = to_stream_packet(frame.data, codec, config, is_keyframe=frame.is_keyframe)
            yield ts_ns, video_message(ts_ns, _VIDEOS[codec], packet)


def video_message(ts_ns: int, encoding: str, data: bytes) -> bytes:
    """A foxglove_msgs/CompressedVideo."""
    head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID))
    return _ENCAPSULATION + _pad(head + encode_blob(data)) + encode_string(encoding)


def _image_message(ts_ns: int, encoding: str, frame: NDArray[Any]) -> bytes:
    """A sensor_msgs/Image."""
    height, width = frame.shape[:2]
    data = np.ascontiguousarray(frame.astype(frame.dtype.newbyteorder("<"), copy=False)).tobytes()
    head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID)) + _u32(height) + _u32(width)
    head = _pad(head + encode_string(encoding) + b"\0") + _u32(len(data) // max(1, height))
    return _ENCAPSULATION + head + encode_blob(data)


def _value_message(ts_ns: int, value: str | bytes) -> bytes:
    """A stamp and text or bytes."""
    data = encode_string(value) if isinstance(value, str) else encode_blob(value)
    return _ENCAPSULATION + _stamp(ts_ns) + data


def _rows_message(ts_ns: int, rows: NDArray[Any]) -> bytes:
    """A stamp and a list of numbers, all elements of some rows; of types that ROS has not, their bytes."""
    data = np.ascontiguousarray(rows).tobytes()
    if _ros_type(rows.dtype) is None:
        return _value_message(ts_ns, data)
    padding = bytes(4 if rows.itemsize == 8 and data else 0)  # the stamp and the length are 12 bytes
    return _ENCAPSULATION + _stamp(ts_ns) + _u32(rows.size) + padding + data


def _stamp(ts_ns: int) -> bytes:
    """Seconds and nanoseconds; seconds after 2038 wrap (log times do not)."""
    return _u32(ts_ns // 1_000_000_000 & 0xFFFFFFFF) + _u32(ts_ns % 1_000_000_000)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def encode_string(value: str) -> bytes:
    """Text after its length, with a final zero."""
    return encode_blob(value.encode("utf-8", "surrogateescape") + b"\0")


def encode_blob(value: bytes) -> bytes:
    """Bytes after their length."""
    return _u32(len(value)) + value


# Reading what was written here.


def _meta_to_json(name: str, meta: SignalMeta) -> dict[str, Any]:
    dtype, shape = meta.rows or (meta.dtype, meta.shape)
    stated = {
        "signal": name,
        "kind": meta.kind,
        "dtype": None if dtype == OBJECT else dtype_of(dtype).name,
        "shape": list(shape),
        "names": None if meta.names is None else list(meta.names),
        **{key: getattr(meta, key) for key in ("role", "clock", "units", "of", "model", "rate_hz")},
    }
    return {key: value for key, value in stated.items() if value is not None}


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
        raise CorruptLayoutError(
            f"corrupted description of the signal of topic {channel.topic!r}", path=log.name
        ) from None
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
        raise CorruptLayoutError(
            f"values of topic {topic.channel.topic!r} are not rows of {kind}", path=topic.log.name
        ) from None


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
