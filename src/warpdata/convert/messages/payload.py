"""The one large field of a message: a picture, pixels, a video packet or plain bytes. It becomes a signal of its own.

Video packets of messages have units after start codes; those of MP4 have units after lengths. No picture is decoded:
the decoder configuration of MP4 is built from the first keyframe.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, RangeReader
from warpdata.convert.messages.decoders import FieldSummary
from warpdata.episodes.sources.encoded import PacketReader, ReadPackets
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.containers import file_around, sample_entry
from warpdata.formats.episodedir.documents import Stream
from warpdata.formats.episodedir.pictures import Still, is_still, still_of

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
    **dict.fromkeys(("rgba16", "bgra16"), ("u2", 4)),
    "16SC1": ("i2", 1),
    "32FC1": ("f4", 1),
    "64FC1": ("f8", 1),
}
"""Name of a pixel format -> type of an element and number of channels."""
_CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "av1": "av1"}
"""Codec name in messages -> name of the decoder."""
_START_CODE = b"\0\0\1"
_RATE = Fraction(30)
_PARAMETER_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_MAX_UNITS = 1 << 16
_MAX_SETS = 31
"""MP4 cannot count more parameter sets of one kind."""


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
        if self.encoding.startswith("bgr"):
            frame = frame[..., [2, 1, 0, 3][: frame.shape[-1]]]
        return frame.astype(self.dtype.newbyteorder("<"))


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

    def content(self, value: Any) -> bytes | memoryview:
        """Bytes of the signal from the value of the field."""
        if isinstance(value, str):
            return _decode_base64(value) if self.is_base64 else value.encode("utf-8", "surrogateescape")
        content: bytes | memoryview = value[self.skip :]
        return content


# Detection.


class PayloadFinder:
    """Finds the large field of a topic while its messages are decoded block by block."""

    def __init__(self, schema: str, path: str) -> None:
        name = schema.replace("/msg/", "/").replace("foxglove_msgs/", "foxglove.")
        self._detect = _DETECTORS.get(name)
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


def _decode_base64(text: str) -> bytes:
    """Bytes of canonical base64; FormatError for other text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if base64.b64encode(data).decode() != text:
        raise FormatError("field is not base64")
    return data


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
        data = _decode_base64(value) if is_base64 else bytes(value[: 1 << 16])
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
        codec = _CODECS.get(name, "")
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
    "sensor_msgs/CompressedImage": _detect_stills,
    "foxglove.CompressedImage": _detect_stills,
    "sensor_msgs/Image": _detect_pixels,
    "foxglove.RawImage": _detect_pixels,
    "foxglove.CompressedVideo": _detect_video,
}
"""Schema -> finds the payload of more messages, given that of the messages before."""


# Video packets.


def _split_units(data: bytes) -> list[bytes]:
    """Units of a packet with start codes; nothing for other data."""
    at = data.find(_START_CODE)
    units: list[bytes] = []
    if data[: max(at, 0)].strip(b"\0"):
        return units
    while at >= 0 and len(units) <= _MAX_UNITS:
        start, at = at + 3, data.find(_START_CODE, at + 3)
        units.append(data[start : len(data) if at < 0 else at].rstrip(b"\0"))
    return units if at < 0 else []


def to_mp4_packet(data: bytes, codec: str) -> bytes:
    """A packet of MP4 from one with start codes; empty if it has none."""
    if codec == "av1":
        return data
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in _split_units(data))


def _unit_types(units: Sequence[bytes], codec: str) -> list[int]:
    return [(unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63) if unit else -1 for unit in units]


def decoder_config(keyframe: bytes, codec: str) -> bytes | None:
    """Decoder configuration of MP4 from a keyframe; None without usable parameter sets."""
    if codec == "av1":
        header = _av1_sequence_header(keyframe)
        if header is None:
            return None
        profile = header[2] >> 5 if len(header) > 2 else 0
        return bytes([0x81, profile << 5 | 8, 0x0C, 0]) + header
    units = _split_units(keyframe)
    types = _unit_types(units, codec)
    sets = [
        [unit for unit, own in zip(units, types, strict=True) if own == kind]
        for kind in _PARAMETER_SETS[codec]
    ]
    if not all(0 < len(own) <= _MAX_SETS and all(4 <= len(unit) < 1 << 16 for unit in own) for own in sets):
        return None
    packed = [b"".join(len(unit).to_bytes(2, "big") + unit for unit in same) for same in sets]
    if codec == "h264":
        head = b"\1" + sets[0][0][1:4] + bytes([0xFF, 0xE0 | len(sets[0])])
        return head + packed[0] + bytes([len(sets[1])]) + packed[1]
    profile_and_level = sets[1][0].replace(b"\0\0\3", b"\0\0")[3:15]
    if len(profile_and_level) < 12:
        return None
    head = b"\1" + profile_and_level + b"\xf0\0\xfc\xfd\xf8\xf8\0\0\x0f" + bytes([len(sets)])
    return head + b"".join(
        bytes([0x80 | kind]) + len(same).to_bytes(2, "big") + data
        for kind, same, data in zip(_PARAMETER_SETS[codec], sets, packed, strict=True)
    )


def _av1_sequence_header(data: bytes) -> bytes | None:
    """The first sequence header of an AV1 packet, which is there at every keyframe."""
    at = 0
    while at < len(data):
        head, begin = data[at], at
        at += 2 if head & 4 else 1
        size = len(data) - at if not head & 2 else 0
        shift = 0
        while head & 2 and at < len(data) and shift <= 35:
            byte = data[at]
            size |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        if size > len(data) - at:
            return None
        at += size
        if head >> 3 & 15 == 1:
            return data[begin:at]
    return None


@dataclass(slots=True)
class TopicVideo:
    """The packets of a topic as one video: sizes and keyframes, without the packets."""

    codec: str
    config: bytes = b""
    sizes: list[int] = field(default_factory=list)
    keyframes: list[bool] = field(default_factory=list)

    def add(self, data: bytes) -> bool:
        """Add the next packet; False if the topic is no video that can be copied."""
        if self.codec == "av1":
            is_key = _av1_sequence_header(data) is not None
        else:
            types = _unit_types(_split_units(data), self.codec)
            is_key = 5 in types if self.codec == "h264" else any(16 <= kind <= 21 for kind in types)
        packet = to_mp4_packet(data, self.codec)
        if not self.sizes:
            self.config = (decoder_config(data, self.codec) if is_key else None) or b""
        self.sizes.append(len(packet))
        self.keyframes.append(is_key)
        return bool(packet and self.config)

    def open(self, read_packets: ReadPackets, path: str, width: int, height: int) -> RangeReader:
        """An MP4 file around the packets, which are read when their bytes are."""
        stream = Stream(self.codec, "yuv420p", width, height, self.config)
        sizes, shown = np.array(self.sizes, np.int64), np.arange(len(self.sizes))
        entry = sample_entry(stream, width, height)
        around = file_around(entry, sizes, shown, np.array(self.keyframes, np.bool_), _RATE)
        head, tail = (BytesRangeReader(data, path) for data in (around.head, around.tail))
        return JoinedRangeReader([head, PacketReader(read_packets, sizes, path), tail], path)


def to_stream_packet(packet: bytes, codec: str, config: bytes, *, is_keyframe: bool) -> bytes:
    """A packet of MP4 with start codes, keyframes with their parameter sets."""
    if codec == "av1":
        return packet
    at = 4 if codec == "h264" else 21
    if len(config) <= at:
        raise CorruptLayoutError("corrupted decoder configuration of a video")
    length_bytes = (config[at] & 3) + 1
    units, at = [], 0
    while at + length_bytes <= len(packet):
        start = at + length_bytes
        at = start + int.from_bytes(packet[at:start], "big")
        units.append(packet[start:at])
    if at != len(packet):
        raise CorruptLayoutError("corrupted video packet: its units do not fill it")
    if is_keyframe and not set(_unit_types(units, codec)).issuperset(_PARAMETER_SETS[codec]):
        units = [*parameter_sets(config, codec), *units]
    return b"".join(b"\0" + _START_CODE + unit for unit in units)


def parameter_sets(config: bytes, codec: str) -> list[bytes]:
    """Parameter sets of a decoder configuration of MP4."""
    units: list[bytes] = []
    at = 5 if codec == "h264" else 23
    try:
        for group in range(2 if codec == "h264" else config[22]):
            if codec == "h264":
                count, at = config[at] & (255 if group else 31), at + 1
            else:
                count, at = int.from_bytes(config[at + 1 : at + 3], "big"), at + 3
            for _ in range(count):
                size = int.from_bytes(config[at : at + 2], "big")
                units.append(config[at + 2 : at + 2 + size])
                at += 2 + size
    except IndexError:
        at = len(config) + 1
    if at > len(config):
        raise CorruptLayoutError("corrupted decoder configuration of a video")
    return units


def stored_config(entry: bytes, codec: str) -> bytes:
    """Decoder configuration in an MP4 sample entry; empty if there is none."""
    name = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}[codec]
    at = entry.find(name, 86)
    size = int.from_bytes(entry[at - 4 : at], "big") if at >= 4 else 0
    return entry[at + 4 : at - 4 + size] if size > 8 else b""
