"""The one large field of a message: a picture, pixels, packets or plain bytes, which are kept once and not twice.

The rest of such a message is its envelope. Both together are the message again, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.messages.packets import CODECS, TopicVideo, with_codes, with_lengths
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir.stills import Still, is_still, still_of

Kind = Literal["stills", "pixels", "video", "bytes"]

WHOLE = (1 << 64) - 1
"""Where an envelope is the whole message."""
_OFFSET_BYTES = 8
_LOOKED_FOR, _TRIES = 64, 16
_DEPTH_HEAD = 12
"""Bytes before the PNG of a `compressedDepth` picture."""

PICTURES = (
    "sensor_msgs/msg/CompressedImage",
    "sensor_msgs/CompressedImage",
    "foxglove.CompressedImage",
    "foxglove_msgs/msg/CompressedImage",
)
IMAGES = (
    "sensor_msgs/msg/Image", "sensor_msgs/Image", "foxglove.RawImage", "foxglove_msgs/msg/RawImage",
)  # fmt: skip

VIDEOS = ("foxglove.CompressedVideo", "foxglove_msgs/msg/CompressedVideo")

_ENCODINGS: dict[str, tuple[str, int]] = {
    "rgb8": ("u1", 3), "bgr8": ("u1", 3), "8UC3": ("u1", 3), "rgba8": ("u1", 4), "bgra8": ("u1", 4), "8UC4": ("u1", 4),
    "mono8": ("u1", 1), "8UC1": ("u1", 1), "mono16": ("u2", 1), "16UC1": ("u2", 1), "16SC1": ("i2", 1),
    "32FC1": ("f4", 1), "64FC1": ("f8", 1), "rgb16": ("u2", 3), "bgr16": ("u2", 3), "yuv422": ("u1", 2),
    "uyvy": ("u1", 2), "yuv422_yuy2": ("u1", 2), "yuyv": ("u1", 2), "8UC2": ("u1", 2),
    "bayer_rggb8": ("u1", 1), "bayer_bggr8": ("u1", 1), "bayer_gbrg8": ("u1", 1), "bayer_grbg8": ("u1", 1),
}  # fmt: skip
"""Name of a pixel format -> element and channels."""
_SWAPPED = {"bgr8", "bgra8", "bgr16"}


@dataclass(frozen=True, slots=True)
class Pixels:
    """How raw pixels lie in their bytes."""

    encoding: str
    height: int
    width: int
    step: int
    is_big: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element as it lies there."""
        return np.dtype(f"{'>' if self.is_big else '<'}{_ENCODINGS[self.encoding][0]}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one frame."""
        channels = _ENCODINGS[self.encoding][1]
        return (self.height, self.width) if channels == 1 else (self.height, self.width, channels)

    @property
    def row_bytes(self) -> int:
        """Of the pixels of a row, without what pads it."""
        return self.width * _ENCODINGS[self.encoding][1] * self.dtype.itemsize

    @property
    def is_padded(self) -> bool:
        """Whether rows have more bytes than pixels."""
        return self.step != self.row_bytes

    def frame(self, data: bytes | memoryview) -> NDArray[Any]:
        """A frame, its colours in the order red, green, blue."""
        rows = np.frombuffer(data, np.uint8).reshape(self.height, self.step)[:, : self.row_bytes]
        found = np.ascontiguousarray(rows).view(self.dtype).reshape(self.shape)
        return _swapped(found, self.encoding).astype(self.dtype.newbyteorder("<"))

    def data(self, frame: NDArray[Any]) -> bytes:
        """The bytes that `frame` was given."""
        return np.ascontiguousarray(_swapped(frame, self.encoding).astype(self.dtype)).tobytes()


def _swapped(frame: NDArray[Any], encoding: str) -> NDArray[Any]:
    if encoding not in _SWAPPED:
        return frame
    order = [2, 1, 0] if frame.shape[-1] == 3 else [2, 1, 0, 3]
    return frame[..., order]


@dataclass(frozen=True, slots=True)
class Payload:
    """The large field of a topic: what it is in every message."""

    field: str
    kind: Kind
    is_base64: bool = False
    skip: int = 0
    """Bytes of the field before the picture."""
    still: Still | None = None
    pixels: Pixels | None = None
    video: TopicVideo | None = None

    def to_json(self) -> dict[str, Any]:
        """What a writer must know to put messages together again."""
        found: dict[str, Any] = {"field": self.field, "kind": self.kind}
        if self.is_base64:
            found["base64"] = True
        if self.pixels is not None:
            each = self.pixels
            found["pixels"] = [each.encoding, each.height, each.width, each.step, each.is_big]
        if self.video is not None:
            found["codec"] = self.video.codec
        return found

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Payload:
        """What `to_json` made."""
        try:
            pixels = stated.get("pixels")
            made = None if pixels is None else Pixels(*pixels)
            if made is not None and made.encoding not in _ENCODINGS:
                raise ValueError(made.encoding)
            video = TopicVideo(str(stated["codec"])) if stated["kind"] == "video" else None
            return cls(stated["field"], stated["kind"], bool(stated.get("base64")), pixels=made, video=video)
        except (KeyError, TypeError, ValueError):
            raise CorruptLayoutError("what is kept of a topic is damaged") from None

    def content(self, value: Any) -> bytes | memoryview:
        """The bytes that a signal holds, out of the field."""
        if isinstance(value, str):
            return unbase64(value) if self.is_base64 else value.encode("utf-8", "surrogateescape")
        found: bytes | memoryview = value
        return found[self.skip :] if self.skip else found

    def stored(self, content: bytes | memoryview) -> bytes:
        """The same as it lies in the message."""
        return base64.b64encode(content) if self.is_base64 else bytes(content)

    def envelope(self, message: memoryview, value: Any) -> bytes:
        """The message without the content of the field, which is at the place that the first bytes say."""
        whole = bytes(message)
        if self.pixels is None or not self.pixels.is_padded:
            content = self.stored(self.content(value))
            at = _place_of(content, whole)
            codes = self._codes(value)
            if at >= 0 and codes is not None:
                head = at.to_bytes(_OFFSET_BYTES, "little") + codes
                return head + whole[:at] + whole[at + len(content) :]
        return WHOLE.to_bytes(_OFFSET_BYTES, "little") + whole

    def _codes(self, value: Any) -> bytes | None:
        """Of a video, what it takes to make its packet a stream again, with its length; None where nothing does."""
        if self.video is None:
            return b""
        made = with_lengths(bytes(self.content(value)), self.video.codec)
        return None if made is None else len(made[1]).to_bytes(4, "little") + made[1]

    def message(self, envelope: bytes, content: bytes) -> bytes:
        """A message from its envelope and what the signal holds."""
        at, rest = int.from_bytes(envelope[:_OFFSET_BYTES], "little"), envelope[_OFFSET_BYTES:]
        if at == WHOLE:
            return rest
        if self.video is not None:
            size = int.from_bytes(rest[:4], "little")
            codes, rest = rest[4 : 4 + size], rest[4 + size :]
            content = with_codes(content, codes)
        if at > len(rest):
            raise CorruptLayoutError("what is kept of a message is damaged")
        return rest[:at] + self.stored(content) + rest[at:]


def _place_of(content: bytes, whole: bytes) -> int:
    """Where the content lies in a message, by its first bytes: to look for all of it takes long. -1 of none."""
    head, at = content[:_LOOKED_FOR], -1
    for _ in range(_TRIES if content else 0):
        at = whole.find(head, at + 1)
        if at < 0 or whole[at : at + len(content)] == content:
            return at
    return -1


def is_whole(envelope: bytes) -> bool:
    """Whether an envelope needs no content."""
    return int.from_bytes(envelope[:_OFFSET_BYTES], "little") == WHOLE


def unbase64(text: str) -> bytes:
    """The bytes of a text that is base64 as everyone writes it; anything else is a FormatError."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise FormatError("a field is not base64") from None
    if base64.b64encode(found).decode() != text:
        raise FormatError("a field is not base64 as it is usually written")
    return found


def _are_alike(values: Any) -> bool:
    """Whether a field is text in every message, or bytes in every message."""
    if not isinstance(values, list) or not values:
        return False
    return any(all(isinstance(each, kind) for each in values) for kind in (str, bytes | memoryview))


def stills_of(values: Sequence[Any], path: str) -> Payload | None:
    """How the pictures of some messages are kept; None where they are not all of one kind."""
    if not _are_alike(values):
        return None
    is_base64 = isinstance(values[0], str)
    found: Payload | None = None
    for value in values:
        try:
            data = unbase64(value) if is_base64 else bytes(value[: 1 << 16])
            skip = 0 if is_still(data) else _DEPTH_HEAD
            if not is_still(data[skip:]):
                return None
            still = still_of(data[skip:], path)
        except FormatError:
            return None
        made = Payload("data", "stills", is_base64, skip, still)
        if is_base64 and skip:
            return None
        if found is None:
            found = made
        elif (found.skip, found.still and (found.still.codec, found.still.shape)) != (
            skip,
            (still.codec, still.shape),
        ):
            return None
    return found


class VideoFinder:
    """Finds out, packet by packet, whether a topic is a video that can be copied."""

    def __init__(self) -> None:
        self._payload: Payload | None = None
        self._is_video = True

    def add(self, fields: Mapping[str, Any]) -> None:
        """Look at more messages."""
        values, formats = fields.get("data"), fields.get("format")
        if not _are_alike(values) or not _are_alike(formats) or not self._is_video:
            self._is_video = False
            return
        for value, name in zip(fields["data"], fields["format"], strict=True):
            codec = CODECS.get(name)
            if codec is None or not self._add(value, codec):
                self._is_video = False
                return

    def _add(self, value: Any, codec: str) -> bool:
        if self._payload is None:
            self._payload = Payload("data", "video", isinstance(value, str), video=TopicVideo(codec))
        video = self._payload.video
        assert video is not None
        try:
            return video.codec == codec and video.add(bytes(self._payload.content(value)))
        except FormatError:
            return False

    @property
    def found(self) -> Payload | None:
        """The video, when all messages were looked at."""
        return self._payload if self._is_video else None


def _are_whole(values: Any) -> bool:
    """Whether a field is one whole number, or one flag, in every message."""
    return isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iub"


def pixels_of(fields: Mapping[str, Any]) -> Payload | None:
    """How the pixels of some messages are kept; None where they are not all of one size and encoding."""
    values, encodings = fields.get("data"), fields.get("encoding")
    numbers = [fields.get(name) for name in ("height", "width", "step")]
    big = fields.get("is_bigendian")
    if not isinstance(values, list) or not _are_alike(values):
        return None
    if not isinstance(encodings, list) or not _are_alike(encodings) or len(set(encodings)) != 1:
        return None
    if not all(_are_whole(each) for each in numbers) or not (big is None or _are_whole(big)):
        return None
    sizes = np.stack([np.asarray(each, np.int64) for each in numbers], axis=1)
    flags = np.zeros(len(values)) if big is None else np.asarray(big)
    if encodings[0] not in _ENCODINGS or (sizes != sizes[0]).any() or (flags != flags[0]).any():
        return None
    height, width, step = (int(each) for each in sizes[0])
    made = Pixels(encodings[0], height, width, step, bool(flags[0]))
    is_base64 = isinstance(values[0], str)
    payload = Payload("data", "pixels", is_base64, pixels=made)
    if height < 1 or width < 1 or step < made.row_bytes:
        return None
    for value in values:
        try:
            if len(payload.content(value)) != height * step:
                return None
        except FormatError:
            return None
    return payload
