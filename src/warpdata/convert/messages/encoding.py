"""Signals as ROS 2 messages (CDR), with the definitions that go into a file beside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.messages.log import LogChannel
from warpdata.timeline.meta import SignalMeta

_RULE = "=" * 80
_TIME = f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{_TIME}"
_ROS_TYPES = {
    "b1": "bool", "i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "i4": "int32", "u4": "uint32",
    "i8": "int64", "u8": "uint64", "f4": "float32", "f8": "float64",
}  # fmt: skip
_HEAD = b"\x00\x01\x00\x00"
_VALUE_AT = 12
"""Where the value of a message begins: behind the encapsulation and the stamp, at any alignment."""

PICTURE = "std_msgs/Header header\nstring format\nuint8[] data\n" + _HEADER
IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    "uint8[] data\n" + _HEADER
)
VIDEO = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n" + _TIME


def ros_type(dtype: np.dtype[np.generic]) -> str | None:
    """What ROS calls an element; None where it has no such type."""
    return _ROS_TYPES.get(dtype.str[1:]) if dtype.kind in "biuf" else None


def value_channel(topic: str, meta: SignalMeta, told: str) -> LogChannel:
    """The topic of a signal of numbers, text or bytes: a stamp and a value."""
    if meta.kind == "text":
        name, line = "Text", "string value"
    elif meta.kind == "bytes" or ros_type(meta.dtype) is None:
        name, line = "Bytes", "uint8[] value"
    else:
        kind = ros_type(meta.dtype) or ""
        count = int(np.prod(meta.shape, dtype=object)) if meta.shape else None
        name = kind.capitalize() + (f"x{count}" if count is not None else "")
        line = f"{kind}[{count}] value" if count is not None else f"{kind} value"
    return LogChannel(
        topic, f"warpdata_msgs/msg/{name}", "ros2msg", f"builtin_interfaces/Time stamp\n{line}\n{_TIME}".encode(),
        "cdr", {"warpdata": told},
    )  # fmt: skip


def type_channel(topic: str, name: str, definition: str, told: str) -> LogChannel:
    """The topic of a camera."""
    return LogChannel(topic, name, "ros2msg", definition.encode(), "cdr", {"warpdata": told})


def stamps_of(times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Times as seconds and nanoseconds, eight bytes each; seconds past 2038 wrap, the log time does not."""
    out = np.empty((len(times), 2), "<u4")
    out[:, 0] = (times // 1_000_000_000).astype(np.int64) & 0xFFFFFFFF
    out[:, 1] = times % 1_000_000_000
    return out.view(np.uint8)


def number_messages(times: NDArray[np.int64], values: NDArray[np.generic]) -> list[bytes]:
    """Messages of numbers of one shape."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    raw = np.ascontiguousarray(little).view(np.uint8).reshape(len(values), -1)
    out = np.empty((len(values), _VALUE_AT + raw.shape[1]), np.uint8)
    out[:, :4] = np.frombuffer(_HEAD, np.uint8)
    out[:, 4:_VALUE_AT] = stamps_of(times)
    out[:, _VALUE_AT:] = raw
    return [row.tobytes() for row in out]


def stamp_bytes(ts_ns: int) -> bytes:
    """One time as seconds and nanoseconds."""
    return bytes(stamps_of(np.array([ts_ns], np.int64)).tobytes())


def object_message(ts_ns: int, value: str | bytes) -> bytes:
    """A message of text or bytes."""
    body = string(value) if isinstance(value, str) else blob(value)
    return _HEAD + stamp_bytes(ts_ns) + body


def picture_message(ts_ns: int, frame_id: str, kind: str, data: bytes) -> bytes:
    """A sensor_msgs/CompressedImage."""
    head = stamp_bytes(ts_ns) + string(frame_id)
    return _HEAD + aligned(aligned(head) + string(kind)) + blob(data)


def image_message(ts_ns: int, frame_id: str, encoding: str, frame: NDArray[np.generic]) -> bytes:
    """A sensor_msgs/Image."""
    height, width = frame.shape[:2]
    data = np.ascontiguousarray(frame.astype(frame.dtype.newbyteorder("<"), copy=False)).tobytes()
    head = aligned(stamp_bytes(ts_ns) + string(frame_id)) + u32(height) + u32(width)
    head = aligned(head + string(encoding) + b"\0") + u32(len(data) // max(1, height))
    return _HEAD + head + blob(data)


def video_message(ts_ns: int, frame_id: str, kind: str, data: bytes) -> bytes:
    """A foxglove_msgs/CompressedVideo."""
    head = aligned(stamp_bytes(ts_ns) + string(frame_id))
    return _HEAD + aligned(head + blob(data)) + string(kind)


def aligned(data: bytes) -> bytes:
    """Padded to the next length."""
    return data + bytes(-len(data) % 4)


def u32(number: int) -> bytes:
    """A length."""
    return number.to_bytes(4, "little")


def string(value: str) -> bytes:
    """Text with its length and the zero behind it."""
    raw = value.encode("utf-8", "surrogateescape") + b"\0"
    return u32(len(raw)) + raw


def blob(value: bytes) -> bytes:
    """Bytes with their length."""
    return u32(len(value)) + value
