"""Signals as topics of ROS 2 messages (CDR), with the definitions that are stored beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.convert.messages.log import LogChannel
from warpdata.convert.messages.own import OWN
from warpdata.convert.messages.packets import stored_config, to_stream_packet
from warpdata.convert.receipt import Note, note_of
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal

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

_ROS_TYPES = {
    "b1": "bool",
    "i1": "int8",
    "u1": "uint8",
    "i2": "int16",
    "u2": "uint16",
    "i4": "int32",
    "u4": "uint32",
    "i8": "int64",
    "u8": "uint64",
    "f4": "float32",
    "f8": "float64",
}
"""numpy type code -> ROS type."""
_PIXELS = {(3, "uint8"): "rgb8", (2, "uint8"): "mono8", (2, "uint16"): "16UC1"}
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
        self._pixels = _PIXELS.get((len(meta.shape), meta.dtype.name)) if meta.kind == "image" else None
        self.note = _note_of_topic(signal, run, is_copied=self._run is not None)
        if self._run is not None and self._run.stream.codec in _VIDEOS:
            schema, definition = "foxglove_msgs/msg/CompressedVideo", VIDEO
        elif self._run is not None:
            schema, definition = "sensor_msgs/msg/CompressedImage", PICTURE
        elif self._pixels is not None:
            schema, definition = "sensor_msgs/msg/Image", IMAGE
        else:
            schema, definition = _define_value(meta)
        about = {OWN: json.dumps(_meta_to_json(name, meta))}
        self.channel = LogChannel(f"/{name}", schema, "ros2msg", definition.encode(), "cdr", about)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Time and bytes of every message."""
        run, signal = self._run, self._signal
        if run is not None:
            yield from _picture_messages(run)
            return
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, signal.meta.row_bytes)))
        for low in range(0, len(signal), step):
            high = min(low + step, len(signal))
            times = np.asarray(signal._ts_in(range(low, high)))
            yield from zip(times.tolist(), self._encode(times, signal.rows(low, high)), strict=True)

    def _encode(self, times: NDArray[np.int64], values: NDArray[Any]) -> list[bytes]:
        dtype = self._signal.meta.dtype
        pairs = zip(times.tolist(), values, strict=True)
        if self._pixels is not None:
            return [image_message(ts_ns, self._pixels, frame) for ts_ns, frame in pairs]
        if self._signal.meta.is_object:
            return [object_message(ts_ns, value) for ts_ns, value in pairs]
        if _ros_type(dtype) is None:
            return [object_message(ts_ns, np.ascontiguousarray(value).tobytes()) for ts_ns, value in pairs]
        return number_messages(times, values)


def _ros_type(dtype: np.dtype[Any]) -> str | None:
    return _ROS_TYPES.get(dtype.str[1:]) if dtype.kind in "biuf" else None


def _define_value(meta: SignalMeta) -> tuple[str, str]:
    """Name and definition of the type of a stamped value."""
    ros_type = _ros_type(meta.dtype)
    if meta.kind == "text":
        name, line = "Text", "string value"
    elif meta.kind == "bytes" or ros_type is None:
        name, line = "Bytes", "uint8[] value"
    elif meta.shape:
        count = int(np.prod(meta.shape, dtype=object))
        name, line = f"{ros_type.capitalize()}x{count}", f"{ros_type}[{count}] value"
    else:
        name, line = ros_type.capitalize(), f"{ros_type} value"
    return f"warpdata_msgs/msg/{name}", f"builtin_interfaces/Time stamp\n{line}\n{_TIME}"


def _meta_to_json(name: str, meta: SignalMeta) -> dict[str, Any]:
    stated = {
        "signal": name,
        "kind": meta.kind,
        "dtype": None if meta.is_object else dtype_of(meta.dtype).name,
        "shape": list(meta.shape),
        "role": meta.role,
        "clock": meta.clock,
        "units": meta.units,
        "names": None if meta.names is None else list(meta.names),
        "of": meta.of,
        "model": meta.model,
    }
    return {key: value for key, value in stated.items() if value is not None}


def _can_copy(run: EncodedRun) -> bool:
    """Whether packets can be messages: all frames shown, and those of a video in the order of decoding."""
    codec = run.stream.codec
    if not bool(run.shown.all()) or codec in _STILLS:
        return bool(run.shown.all())
    return (
        codec in _VIDEOS and bool((np.diff(run.shows) == 1).all()) and stored_config(run.entry, codec) != b""
    )


def _note_of_topic(signal: Signal, run: EncodedRun | None, *, is_copied: bool) -> Note:
    if run is None or (is_copied and run.stream.codec in _STILLS):
        return note_of(signal)
    if is_copied:
        return note_of(signal, "kept", "packets copied, with their parameter sets before keyframes")
    is_lossless = run.stream.codec in ("ffv1", "png")
    return note_of(
        signal, "kept" if is_lossless else "reencoded", f"decoded from {run.stream.codec} to pixels"
    )


def _picture_messages(run: EncodedRun) -> Iterator[tuple[int, bytes]]:
    codec = run.stream.codec
    config = stored_config(run.entry, codec) if codec in _VIDEOS else b""
    for ts_ns, frame in zip(run.ts_ns.tolist(), run.frames(), strict=True):
        if codec in _STILLS:
            yield ts_ns, picture_message(ts_ns, _STILLS[codec], frame.data)
        else:
            packet = to_stream_packet(frame.data, codec, config, is_keyframe=frame.is_keyframe)
            yield ts_ns, video_message(ts_ns, _VIDEOS[codec], packet)


# Messages.


def number_messages(times: NDArray[np.int64], values: NDArray[Any]) -> list[bytes]:
    """Messages of a stamp and numbers of one shape; every type is aligned after the stamp."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    raw = np.ascontiguousarray(little).reshape(len(values), -1).view(np.uint8)
    head = np.broadcast_to(np.frombuffer(_ENCAPSULATION, np.uint8), (len(values), 4))
    return [row.tobytes() for row in np.concatenate([head, _stamps(times), raw], axis=1)]


def object_message(ts_ns: int, value: str | bytes) -> bytes:
    """Message of a stamp and text or bytes."""
    return _ENCAPSULATION + _stamp(ts_ns) + (string(value) if isinstance(value, str) else blob(value))


def picture_message(ts_ns: int, encoding: str, data: bytes) -> bytes:
    """A sensor_msgs/CompressedImage."""
    head = _pad(_stamp(ts_ns) + string(_FRAME_ID))
    return _ENCAPSULATION + _pad(head + string(encoding)) + blob(data)


def image_message(ts_ns: int, encoding: str, frame: NDArray[Any]) -> bytes:
    """A sensor_msgs/Image."""
    height, width = frame.shape[:2]
    data = np.ascontiguousarray(frame.astype(frame.dtype.newbyteorder("<"), copy=False)).tobytes()
    head = _pad(_stamp(ts_ns) + string(_FRAME_ID)) + _u32(height) + _u32(width)
    head = _pad(head + string(encoding) + b"\0") + _u32(len(data) // max(1, height))
    return _ENCAPSULATION + head + blob(data)


def video_message(ts_ns: int, encoding: str, data: bytes) -> bytes:
    """A foxglove_msgs/CompressedVideo."""
    head = _pad(_stamp(ts_ns) + string(_FRAME_ID))
    return _ENCAPSULATION + _pad(head + blob(data)) + string(encoding)


def _stamps(times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Seconds and nanoseconds, eight bytes each; seconds after 2038 wrap (log times do not)."""
    pairs = np.stack([(times // 1_000_000_000) & 0xFFFFFFFF, times % 1_000_000_000], axis=1)
    return pairs.astype("<u4").view(np.uint8)


def _stamp(ts_ns: int) -> bytes:
    return _u32(ts_ns // 1_000_000_000 & 0xFFFFFFFF) + _u32(ts_ns % 1_000_000_000)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def string(value: str) -> bytes:
    """Text after its length, with a final zero."""
    raw = value.encode("utf-8", "surrogateescape") + b"\0"
    return _u32(len(raw)) + raw


def blob(value: bytes) -> bytes:
    """Bytes after their length."""
    return _u32(len(value)) + value
