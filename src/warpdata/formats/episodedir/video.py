"""Encode frames into fragmented video, decode encoded frames. The adapter of av."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.system import kept_scheduling
from warpdata.errors import CorruptLayoutError, FormatError, MissingExtraError
from warpdata.formats.episodedir.images import ENCODERS, FrameShape, Stream, VideoOptions, choose_codec
from warpdata.formats.episodedir.layout import BLOCK_HEAD_BYTES
from warpdata.formats.episodedir.scaling import Box, ImageView, scale_array

if TYPE_CHECKING:
    import av
    from av.video.frame import VideoFrame

_BUFFER_BYTES = 1 << 18
DEFAULT_PRESET, _DEFAULT_CRF = "superfast", "24"
"""Of H.264: as large and as near to the frames as `veryfast` with 23, for two thirds of the time."""
_DECODERS = {"h265": "hevc", "av1": "libdav1d"}


class VideoEncoder:
    """Encodes frames one by one into `sink`, which only ever grows."""

    def __init__(
        self, sink: Any, shape: FrameShape, options: VideoOptions, *, first_frame: int = 0, fragment: int = 1
    ) -> None:
        self._shape = shape
        self._codec = choose_codec(shape, options)
        self._next = first_frame
        self._tick = 1 / options.rate
        self.keyframes: deque[bool] = deque()
        """Whether each packet given to the sink begins a group, in order; the owner takes them out."""
        self._pad = (shape.height % 2, shape.width % 2) if self._chroma_is_halved else (0, 0)
        library = _av()
        # The same frames are the same bytes: else Matroska gets random numbers as names.
        container_options = {"flush_packets": "1", "fflags": "+bitexact"}
        if first_frame:  # else the muxer moves the first frame to the time 0
            container_options["avoid_negative_ts"] = "disabled"
        if self._codec == "ffv1":
            container_options["cluster_size_limit"] = "1"
        else:
            container_options["movflags"] = "frag_keyframe+empty_moov+default_base_moof" + (
                "+frag_discont" if first_frame else ""
            )
            container_options["fragment_index"] = str(fragment)
        kind = "matroska" if self._codec == "ffv1" else "mp4"
        self._failures = library.FFmpegError
        try:
            self._gate = _Gate(sink)
            self._container = library.open(
                self._gate, "w", format=kind, options=container_options, buffer_size=1 << 20
            )
            if self._codec == "av1":
                os.putenv("SVT_LOG", "1")  # the encoder is verbose on standard error
            self._stream = self._open_stream(options)
            # Opened now, not by the first frame: what cannot be encoded is refused before it is accepted.
            with kept_scheduling():
                self._stream.codec_context.open()
        except (library.FFmpegError, ValueError) as error:
            raise ValueError(f"cannot encode {shape} as {self._codec} ({error})") from None
        self._scale = _converter()

    @property
    def _chroma_is_halved(self) -> bool:
        return self._shape.is_colour and self._codec != "ffv1"

    @property
    def pix_fmt(self) -> str:
        """The format of the encoded pixels."""
        return "yuv420p" if self._chroma_is_halved else self._shape.lossless_format

    def _open_stream(self, options: VideoOptions) -> Any:
        stream = self._container.add_stream(
            ENCODERS[self._codec],
            rate=options.rate,
            options=_codec_options(self._codec, options, self._shape),
        )
        stream.width = self._shape.width + self._pad[1]
        stream.height = self._shape.height + self._pad[0]
        stream.pix_fmt = self.pix_fmt
        stream.codec_context.thread_count = options.threads
        stream.codec_context.gop_size = 1 if self._codec == "ffv1" else options.gop_size
        return stream

    def encode(self, frame: NDArray[Any]) -> bool:
        """Encode the next frame; True when a new group of frames began, so all before it are in the sink."""
        pixels, raw_format = np.ascontiguousarray(self._padded(frame)), self._shape.raw_format
        if self.pix_fmt == raw_format:  # a copy: the encoder may keep it
            picture = _av().VideoFrame.from_ndarray(pixels, format=raw_format)
        else:
            picture = self._scale(_av().VideoFrame.from_numpy_buffer(pixels, format=raw_format), self.pix_fmt)
        picture.pts = self._next
        picture.time_base = self._tick
        self._next += 1
        return self._mux(self._stream.encode(picture))

    def close(self) -> None:
        """Encode what is delayed and end the file."""
        self._mux(self._stream.encode(None))
        container, self._container = self._container, None
        container.close()

    def discard(self) -> None:
        """Close the encoder without finishing the file: the sink gets nothing more."""
        self._gate.shut()
        container, self._container, self._stream = self._container, None, None
        if container is not None:
            with contextlib.suppress(self._failures):
                container.close()

    def __del__(self) -> None:
        # Versions before 17 crash when they collect an encoder that was not closed.
        if getattr(self, "_container", None) is not None:
            self.discard()

    def _mux(self, packets: Iterable[Any]) -> bool:
        began = False
        for packet in packets:
            began = began or packet.is_keyframe
            self.keyframes.append(packet.is_keyframe)
            self._container.mux(packet)
        return began

    def _padded(self, frame: NDArray[Any]) -> NDArray[Any]:
        frame = frame.reshape(self._shape.picture.shape)
        if not any(self._pad):
            return frame
        return np.pad(frame, ((0, self._pad[0]), (0, self._pad[1]), (0, 0))[: frame.ndim], mode="edge")


class VideoDecoder:
    """Turns encoded frames into arrays; keeps the state of one decoder, so one caller at a time."""

    def __init__(self, stream: Stream, shape: FrameShape) -> None:
        self._library = library = _av()
        self._shape = shape
        name = _DECODERS.get(stream.codec, stream.codec)
        try:
            self._context = library.CodecContext.create(name, "r")
        except (library.FFmpegError, ValueError):
            raise CorruptLayoutError(f"no decoder for video codec {stream.codec!r}") from None
        if stream.extradata:
            self._context.extradata = stream.extradata
        self._context.width, self._context.height = stream.coded_width, stream.coded_height
        if stream.pix_fmt:
            self._context.pix_fmt = stream.pix_fmt
        self._context.thread_count = 1

    def feed(self, number: int, packet: bytes) -> list[tuple[int, VideoPicture]]:
        """Decode one packet; (frame number, picture) of every picture that comes out."""
        # Not Packet(packet): that borrows the bytes, and decoders read a little past their end.
        item = self._library.Packet(len(packet))
        item.update(packet)
        item.pts = item.dts = number
        return self._out(item)

    def drain(self) -> list[tuple[int, VideoPicture]]:
        """The pictures the decoder still holds back."""
        pictures = self._out(None)
        self.reset()
        return pictures

    def close(self) -> None:
        """Give back the memory of the decoder now, not when it is collected."""
        self._context = None

    def reset(self) -> None:
        """Forget everything fed so far."""
        self._context.flush_buffers()

    def _out(self, item: Any) -> list[tuple[int, VideoPicture]]:
        try:
            pictures = self._context.decode(item)
        except self._library.EOFError:
            return []
        except self._library.FFmpegError as error:
            raise CorruptLayoutError(f"damaged video ({error})") from None
        for picture in pictures:
            settle_colours(picture)
        return [(int(picture.pts), VideoPicture(picture, self._shape)) for picture in pictures]


class Picture(Protocol):
    """A frame of a camera before its pixels are computed."""

    def write(self, out: NDArray[Any], view: ImageView | None) -> None:
        """Write the pixels, or a view of them, into an array."""


@dataclass(frozen=True, slots=True)
class VideoPicture:
    """A picture as its decoder holds it."""

    frame: VideoFrame
    shape: FrameShape

    def write(self, out: NDArray[Any], view: ImageView | None) -> None:
        """Write the pixels, cropped to the shape of the camera, or a view of them into `out`."""
        picture, shape = self.frame, self.shape
        if picture.width < shape.width or picture.height < shape.height:
            raise CorruptLayoutError(f"video of {picture.width}x{picture.height}, expected {shape}")
        if view is not None and view.is_scaled and shape.dtype == "uint8":
            _scale_picture(picture, view, out)
            return
        if picture.format.name != shape.raw_format:
            picture = _kept_converters(picture, shape.raw_format)[0](picture, shape.raw_format)
        plane: Any = picture.planes[0]
        rows = np.frombuffer(plane, shape.dtype).reshape(picture.height, -1)
        width = shape.width * max(1, shape.channels)
        pixels = rows[: shape.height, :width]
        if view is None:
            out.reshape(shape.height, width)[:] = pixels
        else:
            scale_array(pixels.reshape(shape.shape), view, out)


def settle_colours(picture: VideoFrame) -> None:
    """Treat a meaning of colours that the converter refuses as one that the video does not state."""
    if picture.colorspace not in _COLORSPACES:
        picture.colorspace = _UNSPECIFIED


def planes_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The shape of the planes of an image of a height and width with halved colours."""
    return -(-shape[0] // 2) * 3, -(-shape[1] // 2) * 2


def keep_picture(picture: Picture, planes: NDArray[np.uint8]) -> Picture:
    """A picture in memory outside its decoder, which would need more for each that is kept."""
    if not isinstance(picture, VideoPicture) or picture.frame.format.name not in _HALVED:
        return picture
    height, width = picture.frame.height, picture.frame.width
    if planes.shape != (height * 3 // 2, width):
        return picture
    return VideoPicture(_copy_planes(picture.frame, Box(0, 0, height, width), planes), picture.shape)


_UNSPECIFIED, _COLORSPACES = 2, (0, 1, 2, 4, 5, 6, 7, 9)
"""Meanings of colours that swscale knows."""
_HALVED = ("yuv420p", "yuvj420p")
"""Formats with planes of which the second and third have half the resolution."""


def _copy_planes(frame: VideoFrame, box: Box, out: NDArray[np.uint8]) -> VideoFrame:
    """A part of a picture of halved colours, between even pixels, as a frame over `out`."""
    flat, at = out.reshape(-1), 0
    planes: Any = frame.planes
    for number, plane in enumerate(planes):
        top, left, height, width = (side >> (number > 0) for side in box)
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        part = flat[at : at + height * width].reshape(height, width)
        part[:] = rows[top : top + height, left : left + width]
        at += part.size
    made: VideoFrame = _av().VideoFrame.from_numpy_buffer(out, format=frame.format.name)
    made.color_range, made.colorspace = frame.color_range, frame.colorspace
    return made


_PIXEL_FORMATS = {(): "gray", (1,): "gray", (3,): "rgb24", (4,): "rgba"}
_PLANAR = {"rgb24": "gbrp", "rgba": "gbrap"}
"""Colours are scaled as planes: twice as fast, and without halving the resolution of colour on the way."""
_KEPT_CONVERTERS = 8
_local = threading.local()


def scale_image(image: NDArray[Any], view: ImageView, out: NDArray[Any]) -> None:
    """Write a view of an image into `out`: 8-bit gray, RGB and RGBA with swscale, other arrays with numpy."""
    pix_fmt = _PIXEL_FORMATS.get(image.shape[2:]) if image.dtype == np.uint8 else None
    if pix_fmt is None or not view.is_scaled:
        scale_array(image, view, out)
        return
    plane = np.ascontiguousarray(image.reshape(image.shape[:2]) if image.shape[2:] == (1,) else image)
    _scale_picture(_av().VideoFrame.from_numpy_buffer(plane, format=pix_fmt), view, out)


def _scale_picture(picture: VideoFrame, view: ImageView, out: NDArray[Any]) -> None:
    """Crop and scale a picture into `out`, an array of 8-bit gray, RGB or RGBA."""
    pix_fmt = _PIXEL_FORMATS[out.shape[2:]]
    planar = _PLANAR.get(pix_fmt, pix_fmt)
    steps = _kept_converters(picture, view)
    if view.source != (0, 0, picture.height, picture.width):
        picture = _crop_picture(picture, view, lambda: steps[0](picture, pix_fmt))
    picture = steps[1](picture, planar, view.target.width, view.target.height)
    picture = steps[2](picture, pix_fmt) if planar != pix_fmt else picture
    plane: Any = picture.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(picture.height, -1)
    if view.has_bars:
        out[...] = 0
    part = out[view.target.slices]
    part[...] = rows[:, : part[0].size].reshape(part.shape)


def _kept_converters(picture: VideoFrame, goal: object) -> list[Callable[..., VideoFrame]]:
    """Three converters of this thread for pictures of one size and format; each keeps tables for what it did last."""
    kept: dict[Any, list[Callable[..., VideoFrame]]] = _local.__dict__.setdefault("converters", {})
    key = (picture.width, picture.height, picture.format.name, goal)
    kept[key] = kept.pop(key) if key in kept else [_converter() for _ in range(3)]
    while len(kept) > _KEPT_CONVERTERS:  # the last one used is the last one dropped
        kept.pop(next(iter(kept)))
    return kept[key]


def _crop_picture(picture: VideoFrame, view: ImageView, convert: Callable[[], VideoFrame]) -> VideoFrame:
    """The source part of a picture: of halved chroma by copying planes, else as packed pixels."""
    library, box = _av(), view.source
    if picture.format.name in _HALVED and not any(number % 2 for number in box):
        return _copy_planes(picture, box, np.empty((box.height * 3 // 2, box.width), np.uint8))
    packed: Any = convert()
    name = packed.format.name
    depth = {"gray": 1, "rgb24": 3, "rgba": 4}[name]
    rows = np.frombuffer(packed.planes[0], np.uint8).reshape(packed.height, -1)
    pixels = rows[:, : packed.width * depth].reshape(packed.height, packed.width, depth)[box.slices]
    plane_pixels = np.ascontiguousarray(pixels[..., 0] if depth == 1 else pixels)
    cut: VideoFrame = library.VideoFrame.from_numpy_buffer(plane_pixels, format=name)
    return cut


def encode_png(frame: NDArray[Any]) -> bytes:
    """One frame of 8 or 16 bits as PNG: every pixel is kept."""
    shape = FrameShape.of(frame)
    library = _av()
    context = library.CodecContext.create("png", "w")
    context.width, context.height = shape.width, shape.height
    context.pix_fmt = shape.raw_format.replace("le", "be")
    context.time_base = Fraction(1, 1)
    picture = library.VideoFrame.from_ndarray(frame.reshape(shape.picture.shape), format=shape.raw_format)
    if context.pix_fmt != shape.raw_format:
        picture = _converter()(picture, context.pix_fmt)
    picture.pts, picture.time_base = 0, Fraction(1, 1)
    return b"".join(bytes(packet) for packet in [*context.encode(picture), *context.encode(None)])


@dataclass(frozen=True, slots=True)
class Probe:
    """A video file as its container describes it: the stream and its size."""

    stream: Stream
    width: int
    height: int
    tick: Fraction = Fraction(0)
    """The unit of presentation times in seconds; 0 if unknown."""


def probe(source: Any, path: str = "") -> Probe:
    """Codec and size of a video, a path or a file object, from its header and first frames."""
    with open_container(source, path or source) as container:
        return _probe(container, path or source)


def check_installed() -> None:
    """Raise what to install where cameras cannot be encoded; the library is not loaded for that."""
    if "av" not in sys.modules and importlib.util.find_spec("av") is None:
        raise MissingExtraError.for_extra("av", "video")


@functools.lru_cache(maxsize=64)
def check_options(options: VideoOptions) -> None:
    """Raise ValueError for options no encoder takes; after this the library is loaded."""
    VideoEncoder(io.BytesIO(), FrameShape(64, 64, 3, "uint8"), options).discard()


def stream_of(shape: FrameShape, options: VideoOptions) -> Stream:
    """The decoder parameters in the header of such a video, as the encoder of this machine writes them."""
    out = io.BytesIO()
    encoder = VideoEncoder(out, shape, options)
    encoder.encode(np.zeros(shape.shape, shape.dtype))
    encoder.close()
    out.seek(0)
    with open_container(out, "header") as container:
        return _probe(container, "header").stream


class _Gate:
    """The muxer's view of a sink: it only grows, because a muxer that can seek would rewrite the header."""

    def __init__(self, sink: Any) -> None:
        self._write: Callable[[bytes], int] = sink.write

    def write(self, data: bytes) -> int:
        """Pass it on; the muxer keeps this very method, so it cannot be replaced later."""
        return self._write(data)

    def shut(self) -> None:
        """Ignore all further output."""
        self._write = len


def list_packets(
    source: Any, path: str
) -> tuple[Probe, NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Probe plus (offset, size) of every packet in decoding order, keyframe flags, and presentation times.

    `source` is a path or a file object. Frames are decoded only where a kind of header is new.
    """
    library = _av()
    with open_container(source, path, _HEADER_ONLY) as container:
        found = _probe(container, path)
        rows: list[tuple[int, int, bool, int]] = []
        try:
            for packet in container.demux(video=0):
                if packet.size:
                    offset = -1 if packet.pos is None else packet.pos
                    time = packet.pts if packet.pts is not None else packet.dts or 0
                    rows.append((offset, packet.size, packet.is_keyframe, time))
        except library.FFmpegError as error:
            raise CorruptLayoutError(f"damaged video ({error})", path=path) from None
        # FFmpeg gives the offset of the head of a Matroska block, not of the frame behind it.
        head = BLOCK_HEAD_BYTES if "matroska" in container.format.name else 0
    stated = found
    if stated not in _PROBES:
        if not isinstance(source, str):
            source.seek(0)
        found = probe(source, path)
        if len(_PROBES) < 256 and stated.stream.extradata:
            _PROBES[stated] = found
    found = _PROBES.get(stated, found)
    table = np.array(rows, np.int64).reshape(-1, 4)
    places = table[:, :2]
    if len(places) and places[:, 0].min() < 0:
        raise CorruptLayoutError("the container of the video has no offsets of its frames", path=path)
    places[:, 0] += head
    return found, places, table[:, 2] != 0, table[:, 3]


_HEADER_ONLY = {"probesize": "32", "skip_frame": "all"}  # FFmpeg decodes nothing while it opens a file
_PROBES: dict[Probe, Probe] = {}  # what the header of a video states -> what a decoder makes of it


def _probe(container: av.container.InputContainer, path: str) -> Probe:
    if not container.streams.video:
        raise CorruptLayoutError("no video in this file", path=path)
    context = container.streams.video[0].codec_context
    if context is None:
        raise CorruptLayoutError("unknown video codec", path=path)
    stream = Stream(
        "av1" if context.name == "libdav1d" else context.name,
        context.pix_fmt or "",
        context.coded_width or context.width,
        context.coded_height or context.height,
        bytes(context.extradata or b""),
    )
    return Probe(stream, context.width, context.height, container.streams.video[0].time_base or Fraction(0))


def open_container(source: Any, path: str, options: Mapping[str, str] | None = None) -> Any:
    """A container over a path or a file object; titles that are not valid text are ignored."""
    library = _av()
    # From 19 on the library is lenient by itself and does not know the option.
    lenient = {"metadata_errors": "ignore"} if _release(library) < 19 else {}
    try:
        return library.open(source, options=dict(options or {}), buffer_size=_BUFFER_BYTES, **lenient)
    except FileNotFoundError:
        raise CorruptLayoutError("the video file is missing", path=path) from None
    except library.FFmpegError as error:
        raise CorruptLayoutError(f"not a readable video ({error})", path=path) from None
    except OSError as error:
        raise FormatError(f"cannot open the video ({error})", path=path) from None


def _codec_options(codec: str, options: VideoOptions, shape: FrameShape) -> dict[str, str]:
    if codec == "ffv1":
        slices = 4 if min(shape.height, shape.width) > 1 else 1
        return {"level": "3", "slicecrc": "1", "slices": str(slices)}
    gop = str(options.gop_size)
    chosen = {"g": gop, "crf": str(options.quality)} if options.quality is not None else {"g": gop}
    if codec == "av1":
        preset = options.preset or "10"
        # In groups of two nothing is reordered, and waiting for later frames makes them several times smaller. Longer
        # ones are made with low delay: frames come out as they went in. Without `rtc` the encoder's threads then wait
        # for each other for ever in one file of about sixty (release 4.1, on a busy machine).
        order = "pred-struct=2" if options.gop_size <= 2 else "pred-struct=1:rtc=1"
        parameters = f"{order}:keyint={gop}:lp=1"
        if options.gop_size <= 2 and options.quality is not None and _version(_av()) >= _SVT_4_SINCE:
            # Release 4.1 makes groups of two at fast presets 1.6 times as large as release 3 did, and worse. With its
            # matrices and a crf that is lower by 4 they are as they were: as large or smaller, as near to the frames.
            chosen["crf"] = str(max(0, options.quality - 4))
            parameters += ":enable-qm=1:qm-min=0"
        return {**chosen, "preset": preset, "svtav1-params": parameters}
    chosen |= {"preset": options.preset or DEFAULT_PRESET, "tune": "zerolatency"}
    if codec == "h264":
        chosen = {"crf": _DEFAULT_CRF, **chosen}
        chosen["x264-params"] = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes=0"
        # The header of the other presets, between which a recorder may change.
        chosen["x264-params"] += ":cabac=1:8x8dct=1:weightp=1" if chosen["preset"] == "ultrafast" else ""
    else:
        chosen["preset"] = options.preset or "veryfast"
        chosen["x265-params"] = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes=0:log-level=none"
    return chosen


def _converter() -> Callable[..., VideoFrame]:
    """One converter of pixels for all frames, without threads of its own: those would not survive a fork."""
    library = _av()
    convert = library.video.reformatter.VideoReformatter().reformat
    # Before 17 it has no threads and no such option.
    alone = {"threads": 1} if _release(library) >= 17 else {}

    def run(
        picture: VideoFrame, pix_fmt: str, width: int | None = None, height: int | None = None
    ) -> VideoFrame:
        made: VideoFrame = convert(picture, width, height, pix_fmt, interpolation="BILINEAR", **alone)
        return made

    return run


_SVT_4_SINCE = (17, 1)
"""The version of the library from which on it brings release 4 of SVT-AV1."""


def _version(library: Any) -> tuple[int, int]:
    major, minor = [*str(library.__version__).split("."), "0"][:2]
    return int(major), int(minor) if minor.isdigit() else 0


def _release(library: Any) -> int:
    return _version(library)[0]


def _av() -> Any:
    """The library, or what to install."""
    try:
        import av  # noqa: PLC0415
        import av.video.reformatter  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError.for_extra("av", "video") from None
    return av
