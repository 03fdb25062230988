"""Cameras: the shape of their frames, how they are encoded, what a decoder must know."""

from __future__ import annotations

import base64
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import require_word, suggests
from warpdata.formats.episodedir import layout

ENCODERS = {"h264": "libx264", "hevc": "libx265", "h265": "libx265", "av1": "libsvtav1", "ffv1": "ffv1"}

QUALITY_LIMITS = {"h264": 51, "hevc": 51, "h265": 51, "av1": 63}
"""The worst quality (crf) that each encoder takes; 0 is the best."""

STILL_CODECS = ("png", "mjpeg")
"""Every packet is a whole picture."""

_MOST = 1_000_000
"""Frames in a second or a group, or threads: far above what anyone means, and what encoders can hold."""

_PIXELS = {"|u1": "uint8", "<u2": "uint16"}

FORMATS = {
    ("uint8", 1): ("gray", "gray"),
    ("uint8", 3): ("rgb24", "bgr0"),
    ("uint8", 4): ("rgba", "bgra"),
    ("uint16", 1): ("gray16le", "gray16le"),
    ("uint16", 3): ("rgb48le", "gbrp16le"),
    ("uint16", 4): ("rgba64le", "gbrap16le"),
}
"""Element type and channels -> FFmpeg's names of the raw pixels, and of those that FFV1 stores."""


@suggests
@dataclass(frozen=True, slots=True)
class VideoOptions:
    """How a camera is encoded; `None` chooses by the kind of image."""

    codec: str | None = None
    gop_size: int = 10
    fps: float = 30
    quality: int | None = None
    preset: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.codec is not None:
            require_word("codec", self.codec, ENCODERS)
        for name, least in (("gop_size", 1), ("threads", 0)):
            if not least <= operator.index(getattr(self, name)) <= _MOST:
                raise ValueError(f"{name} is from {least} to {_MOST}, not {getattr(self, name)}")
        most = QUALITY_LIMITS.get(self.codec or "av1")
        if self.quality is not None and not 0 <= operator.index(self.quality) <= (most or 0):
            allowed = f"0 (best) to {most}" if most else "None: the codec is lossless"
            raise ValueError(f"quality out of range: expected {allowed}, got {self.quality}")
        if not 1 / _MOST < self.fps <= _MOST:
            raise ValueError(f"fps is positive and at most {_MOST}, not {self.fps}")

    def to_json(self) -> dict[str, Any]:
        """As journals keep it."""
        return asdict(self)

    @property
    def rate(self) -> Fraction:
        """Frames per second as containers want it."""
        return Fraction(self.fps).limit_denominator(1001)


class FrameShape(NamedTuple):
    """Height, width and channels of a camera, and its element type.

    Channels are 3 for RGB and 4 for RGBA. A single plane has 0, or 1 where its frames have an axis for it.
    """

    height: int
    width: int
    channels: int
    dtype: str

    @classmethod
    def of(cls, frame: NDArray[Any]) -> FrameShape:
        """The shape of an image; anything else is a ValueError."""
        return cls.of_values(frame.shape, frame.dtype)

    @classmethod
    def of_values(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FrameShape:
        """That of HxW, HxWx1, HxWx3 or HxWx4 values of uint8 or uint16; anything else is a ValueError."""
        name, channels = _PIXELS.get(dtype.str), shape[2] if len(shape) == 3 else 0
        is_image = len(shape) in (2, 3) and (name, channels or 1) in FORMATS and all(shape)
        if name is None or not is_image or max(shape) > layout.MAX_FRAME_SIDE:
            raise ValueError(f"an image is uint8 or uint16 HxW, HxWx3 or HxWx4, not {dtype} {shape}")
        return cls(shape[0], shape[1], channels, name)

    @property
    def is_colour(self) -> bool:
        """Whether it is RGB of 8 bits, which every codec takes."""
        return self.channels == 3 and self.dtype == "uint8"

    @property
    def picture(self) -> FrameShape:
        """The shape in the head of a single picture, which has no axis of one channel."""
        return self._replace(channels=0) if self.channels == 1 else self

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of one frame."""
        return (self.height, self.width, self.channels) if self.channels else (self.height, self.width)

    @property
    def nbytes(self) -> int:
        """Raw bytes of one frame."""
        return math.prod(self.shape) * (2 if self.dtype == "uint16" else 1)

    @property
    def raw_format(self) -> str:
        """FFmpeg's name of the raw pixels."""
        return FORMATS[self.dtype, self.channels or 1][0]

    @property
    def lossless_format(self) -> str:
        """FFmpeg's name of the pixels that FFV1 stores."""
        return FORMATS[self.dtype, self.channels or 1][1]


@dataclass(frozen=True, slots=True)
class Stream:
    """What a decoder must know about an encoded camera."""

    codec: str
    pix_fmt: str
    coded_width: int
    coded_height: int
    extradata: bytes

    def to_json(self) -> dict[str, Any]:
        """As indexes and journals keep it."""
        coded, extradata = [self.coded_width, self.coded_height], base64.b64encode(self.extradata).decode()
        return {"codec": self.codec, "pix_fmt": self.pix_fmt, "coded": coded, "extradata": extradata}

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Stream:
        """What `to_json` made; anything else is a KeyError, TypeError or ValueError."""
        width, height = (int(side) for side in about["coded"])
        extradata = base64.b64decode(about["extradata"], validate=True)
        return cls(str(about["codec"]), str(about["pix_fmt"]), width, height, extradata)


def choose_codec(shape: FrameShape, options: VideoOptions) -> str:
    """The codec of the options, or the default: h264 for RGB of 8 bits, lossless ffv1 for all else."""
    codec = options.codec or ("h264" if shape.is_colour else "ffv1")
    if (shape.dtype == "uint16" or shape.channels == 4) and codec != "ffv1":
        kind = "uint16" if shape.dtype == "uint16" else "RGBA"
        raise ValueError(f"{kind} images are stored lossless with codec 'ffv1', not {codec!r}")
    return codec


def suffix_for(codec: str) -> str:
    """The file name ending of a codec's container."""
    return ".mkv" if codec == "ffv1" else ".mp4"
