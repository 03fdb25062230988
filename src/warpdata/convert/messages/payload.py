"""The one large field of a message: a picture, pixels, a video packet or plain bytes.

The field becomes a signal of its own. The rest of the message is its envelope; together they give the message again,
byte for byte.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.messages.columns import FieldSummary
from warpdata.convert.messages.packets import CODECS, TopicVideo, add_start_codes, split_packet
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.stills import Still, is_still, still_of

_WHOLE = b"\xff" * 8
"""Start of an envelope that is the whole message; other envelopes start with the offset of the field."""
_SEARCHED_BYTES, _SEARCHES = 64, 16
_DEPTH_HEAD_BYTES = 12
"""Bytes before the PNG of a `compressedDepth` picture."""
_LARGE_BYTES = 256
"""A field of bytes of this mean size becomes a payload."""

_PIXELS = {
    **dict.fromkeys(("mono8", "8UC1", "bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"), ("u1", 1)),
    **dict.fromkeys(("yuv422", "uyvy", "yuv422_yuy2", "yuyv", "8UC2"), ("u1", 2)),
    **dict.fromkeys(("rgb8", "bgr8", "8UC3"), ("u1", 3)),
    **dict.fromkeys(("rgba8", "bgra8", "8UC4"), ("u1", 4)),
    **dict.fromkeys(("mono16", "16UC1"), ("u2", 1)),
    **dict.fromkeys(("rgb16", "bgr16"), ("u2", 3)),
    "16SC1": ("i2", 1),
    "32FC1": ("f4", 1),
    "64FC1": ("f8", 1),
}
"""Name of a pixel format -> type of an element and number of channels."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Layout of raw pixels."""

    encoding: str
    height: int
    width: int
    step: int
    is_big_endian: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored element."""
        return np.dtype(f"{'>' if self.is_big_endian else '<'}{_PIXELS[self.encoding][0]}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a frame."""
        channels = _PIXELS[self.encoding][1]
        return (self.height, self.width) if channels == 1 else (self.height, self.width, channels)

    @property
    def row_bytes(self) -> int:
        """Size of the pixels of a row, without padding."""
        return self.width * _PIXELS[self.encoding][1] * self.dtype.itemsize

    def decode(self, data: bytes | memoryview) -> NDArray[Any]:
        """A frame with its colours in the order red, green, blue."""
        rows = np.frombuffer(data, np.uint8).reshape(self.height, self.step)[:, : self.row_bytes]
        frame = np.ascontiguousarray(rows).view(self.dtype).reshape(self.shape)
        return self._swap(frame).astype(self.dtype.newbyteorder("<"))

    def encode(self, frame: NDArray[Any]) -> bytes:
        """Bytes of a frame, without padding."""
        return np.ascontiguousarray(self._swap(frame).astype(self.dtype)).tobytes()

    def _swap(self, frame: NDArray[Any]) -> NDArray[Any]:
        if not self.encoding.startswith("bgr"):
            return frame
        return frame[..., [2, 1, 0] if frame.shape[-1] == 3 else [2, 1, 0, 3]]


@dataclass(frozen=True, slots=True)
class Payload:
    """The large field of a topic and how all messages store it."""

    field: str
    kind: Literal["stills", "pixels", "video", "bytes"]
    is_base64: bool = False
    skip: int = 0
    """Bytes of the field before the picture."""
    still: Still | None = None
    pixels: Pixels | None = None
    video: TopicVideo | None = None

    def to_json(self) -> dict[str, Any]:
        """What a writer needs to build messages again."""
        stated: dict[str, Any] = {"field": self.field, "kind": self.kind, "base64": self.is_base64}
        if self.pixels is not None:
            layout = self.pixels
            stated["pixels"] = [
                layout.encoding,
                layout.height,
                layout.width,
                layout.step,
                layout.is_big_endian,
            ]
        if self.video is not None:
            stated["codec"] = self.video.codec
        return stated

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Payload:
        """The payload that `to_json` described."""
        try:
            pixels = Pixels(*stated["pixels"]) if "pixels" in stated else None
            if pixels is not None and pixels.encoding not in _PIXELS:
                raise ValueError(pixels.encoding)
            video = TopicVideo(str(stated["codec"])) if stated["kind"] == "video" else None
            return cls(stated["field"], stated["kind"], bool(stated["base64"]), pixels=pixels, video=video)
        except (KeyError, TypeError, ValueError):
            raise CorruptLayoutError("corrupted metadata of a topic") from None

    def content(self, value: Any) -> bytes | memoryview:
        """Bytes of the signal from the value of the field."""
        if isinstance(value, str):
            return decode_base64(value) if self.is_base64 else value.encode("utf-8", "surrogateescape")
        content: bytes | memoryview = value[self.skip :]
        return content

    def envelope(self, message: memoryview, value: Any) -> bytes:
        """The message without the content of the field, led by the offset where the content was."""
        whole = bytes(message)
        content = bytes(self.content(value))
        codes = b""
        if self.video is not None:
            packet = split_packet(content, self.video.codec)
            if packet is None:
                return _WHOLE + whole
            codes = len(packet[1]).to_bytes(4, "little") + packet[1]
        stored = base64.b64encode(content) if self.is_base64 else content
        at = _find(stored, whole)
        if at < 0 or (self.pixels is not None and self.pixels.step != self.pixels.row_bytes):
            return _WHOLE + whole
        return at.to_bytes(8, "little") + codes + whole[:at] + whole[at + len(stored) :]

    def message(self, envelope: bytes, content: bytes) -> bytes:
        """The message from its envelope and the content that the signal holds."""
        offset, rest = envelope[:8], envelope[8:]
        if offset == _WHOLE:
            return rest
        if self.video is not None:
            size = int.from_bytes(rest[:4], "little")
            content, rest = add_start_codes(content, rest[4 : 4 + size]), rest[4 + size :]
        at = int.from_bytes(offset, "little")
        if at > len(rest):
            raise CorruptLayoutError(f"corrupted envelope of a message: offset {at} in {len(rest)} bytes")
        stored = base64.b64encode(content) if self.is_base64 else content
        return rest[:at] + stored + rest[at:]


def needs_content(envelope: bytes) -> bool:
    """Whether an envelope lacks the content of the field."""
    return envelope[:8] != _WHOLE


def _find(content: bytes, whole: bytes) -> int:
    """Offset of the content in a message, searched by its first bytes, which is faster; -1 if there is none."""
    at = -1
    for _ in range(_SEARCHES if content else 0):
        at = whole.find(content[:_SEARCHED_BYTES], at + 1)
        if at < 0 or whole[at : at + len(content)] == content:
            return at
    return -1


def decode_base64(text: str) -> bytes:
    """Bytes of canonical base64; FormatError for other text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if base64.b64encode(data).decode() != text:
        raise FormatError("field is not base64")
    return data


# Detection.


class PayloadFinder:
    """Finds the large field of a topic while its messages are decoded block by block."""

    def __init__(self, schema: str, path: str) -> None:
        self._detect = _DETECTORS.get(schema)
        self._path = path
        self._payload: Payload | None = None
        self._byte_counts: Counter[str] = Counter()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Look at the fields of more messages."""
        if self._detect is not None:
            try:
                self._payload = self._detect(fields, self._payload, self._path)
            except FormatError:
                self._detect = self._payload = None
        for name, values in fields.items():
            if isinstance(values, list) and values and isinstance(values[0], bytes | memoryview):
                self._byte_counts[name] += sum(map(len, values))

    def finish(self, summaries: Mapping[str, FieldSummary], total_bytes: int, count: int) -> Payload | None:
        """The payload of all messages: what the schema promises, or the field with most of the bytes."""
        if self._payload is not None:
            return self._payload
        for name, size in self._byte_counts.most_common(1):
            if size > max(total_bytes // 2, _LARGE_BYTES * count) and summaries[name].kind == "bytes":
                return Payload(name, "bytes")
        return None


def _blobs(fields: Mapping[str, Any], name: str = "data") -> tuple[list[Any], bool]:
    """Values of a field, and whether they are text; FormatError unless all are text or all are bytes."""
    values = fields.get(name)
    if isinstance(values, list) and values:
        for types in (str, bytes | memoryview):
            if all(isinstance(value, types) for value in values):
                return values, types is str
    raise FormatError(f"field {name!r} is not the same kind in every message")


def _detect_stills(fields: Mapping[str, Any], payload: Payload | None, path: str) -> Payload:
    values, is_base64 = _blobs(fields)
    for value in values:
        data = decode_base64(value) if is_base64 else bytes(value[: 1 << 16])
        skip = 0 if is_base64 or is_still(data) else _DEPTH_HEAD_BYTES
        if not is_still(data[skip:]):
            raise FormatError("message is no picture")
        still = still_of(data[skip:], path)
        payload = payload or Payload("data", "stills", is_base64, skip, still)
        first = payload.still
        assert first is not None
        if (payload.is_base64, payload.skip) != (is_base64, skip):
            raise FormatError("pictures are stored in several ways")
        if (first.codec, first.shape) != (still.codec, still.shape):
            raise FormatError("pictures have several formats")
    assert payload is not None
    return payload


def _detect_video(fields: Mapping[str, Any], payload: Payload | None, _path: str) -> Payload:
    values, is_base64 = _blobs(fields)
    for value, name in zip(values, _blobs(fields, "format")[0], strict=True):
        codec = CODECS.get(name, "")
        payload = payload or Payload("data", "video", is_base64, video=TopicVideo(codec))
        video = payload.video
        assert video is not None
        if not codec or video.codec != codec or not video.add(bytes(payload.content(value))):
            raise FormatError("packets are no video that can be copied")
    assert payload is not None
    return payload


def _detect_pixels(fields: Mapping[str, Any], payload: Payload | None, _path: str) -> Payload:
    values, is_base64 = _blobs(fields)
    encodings = set(_blobs(fields, "encoding")[0])
    numbers = [fields.get(name) for name in ("height", "width", "step")]
    numbers.append(fields.get("is_bigendian", np.zeros(len(values), np.uint8)))
    layouts: set[tuple[int, ...]] = set()
    if all(
        isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iub"
        for column in numbers
    ):
        layouts = set(zip(*(np.asarray(column).tolist() for column in numbers), strict=True))
    if len(encodings) != 1 or len(layouts) != 1 or not encodings <= _PIXELS.keys():
        raise FormatError("images have several sizes or encodings")
    height, width, step, is_big_endian = layouts.pop()
    pixels = Pixels(encodings.pop(), height, width, step, bool(is_big_endian))
    result = Payload("data", "pixels", is_base64, pixels=pixels)
    if height < 1 or width < 1 or step < pixels.row_bytes or (payload is not None and payload != result):
        raise FormatError("images have several sizes or encodings")
    if any(len(result.content(value)) != height * step for value in values):
        raise FormatError("size of an image does not match its height and step")
    return result


_DETECTORS = {
    "sensor_msgs/msg/CompressedImage": _detect_stills,
    "sensor_msgs/CompressedImage": _detect_stills,
    "foxglove.CompressedImage": _detect_stills,
    "foxglove_msgs/msg/CompressedImage": _detect_stills,
    "sensor_msgs/msg/Image": _detect_pixels,
    "sensor_msgs/Image": _detect_pixels,
    "foxglove.RawImage": _detect_pixels,
    "foxglove_msgs/msg/RawImage": _detect_pixels,
    "foxglove.CompressedVideo": _detect_video,
    "foxglove_msgs/msg/CompressedVideo": _detect_video,
}
"""Schema -> finds the payload of more messages, given that of the messages before."""
