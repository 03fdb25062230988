"""Pictures that are files of their own: PNG and JPEG heads, decoding, and single frames."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import PNG_MAGIC
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    UnsupportedDtypeError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.layout import JPEG_MAGIC
from warpdata.formats.episodedir.video import PngLines

MAX_PIXELS = 1 << 27
"""More pixels than this in one picture are an attack, not a camera."""

PNG_HEAD_BYTES = 33
"""The magic and the part that says what the picture is."""
_PNG_FORMATS = {(0, 8): "gray", (0, 16): "gray16be", (2, 8): "rgb24", (3, 8): "pal8"}
_OTHERS = {
    b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL", b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"RIFF": "WebP", b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"BM": "BMP",
}  # fmt: skip
"""Pictures that other programs make and nobody decodes here, by how they begin."""
_NO_SOF = {0xC4, 0xC8, 0xCC}
_BARE = {0x01, *range(0xD0, 0xDA)}
"""Markers that stand alone, and none of them before the head."""


class Still(NamedTuple):
    """What a picture is: how it is encoded, and what comes out."""

    codec: str
    shape: FrameShape
    pix_fmt: str

    @property
    def stream(self) -> Stream:
        """What its decoder must know."""
        return Stream(self.codec, self.pix_fmt, self.shape.width, self.shape.height, b"")


def is_still(data: bytes) -> bool:
    """Whether these bytes begin as a picture we know does."""
    return data.startswith((PNG_MAGIC, JPEG_MAGIC))


def still_of(data: bytes, path: str) -> Still:
    """What the head of a picture says; a typed error where it is none, or impossible."""
    return read_head(data, path)[0]


def read_head(data: bytes, path: str) -> tuple[Still, int]:
    """What the head of a picture says, and how many bytes say it: pictures that begin with the same are the same."""
    if data.startswith(PNG_MAGIC):
        found, size = _png(data, path), PNG_HEAD_BYTES
    elif data.startswith(JPEG_MAGIC):
        found, size = _jpeg(data, path)
    else:
        kind = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), None)
        if kind is not None:
            raise UnsupportedDtypeError(
                f"a {kind} picture",
                path=path,
                hint="Save the pictures as PNG, which keeps every pixel, or as JPEG.",
            )
        raise CorruptLayoutError("neither a PNG nor a JPEG picture", path=path)
    height, width = found.shape.height, found.shape.width
    if not height or not width or max(height, width) > layout.MAX_FRAME_SIDE or height * width > MAX_PIXELS:
        raise LimitExceededError(f"a picture of {width}x{height} pixels", path=path)
    return found, size


def _png(data: bytes, path: str) -> Still:
    if data[12:16] != b"IHDR" or len(data) < PNG_HEAD_BYTES:
        raise CorruptLayoutError("a PNG picture without its head", path=path)
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    depth, colour = data[24], data[25]
    pix_fmt = _PNG_FORMATS.get((colour, depth))
    if pix_fmt is None:
        raise UnsupportedDtypeError(
            f"a PNG picture of colour type {colour} with {depth} bits", path=path,
            hint="Pictures are 8-bit RGB, or 8- or 16-bit gray.",
        )  # fmt: skip
    channels = 0 if colour == 0 else 3
    return Still("png", FrameShape(height, width, channels, "uint16" if depth == 16 else "uint8"), pix_fmt)


def _jpeg(data: bytes, path: str) -> tuple[Still, int]:
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _BARE:
            break
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SOF:
            height, width = (
                int.from_bytes(data[at + 5 : at + 7], "big"),
                int.from_bytes(data[at + 7 : at + 9], "big"),
            )
            if data[at + 9] not in (1, 3):
                raise UnsupportedDtypeError(
                    f"a JPEG picture of {data[at + 9]} colours", path=path,
                    hint="Pictures are RGB or gray: save it again as one of them.",
                )  # fmt: skip
            channels = 0 if data[at + 9] == 1 else 3
            sampling = data[at + 11] if len(data) > at + 11 else 0x22
            colour = {0x22: "yuvj420p", 0x21: "yuvj422p", 0x11: "yuvj444p"}.get(sampling, "yuvj420p")
            shape = FrameShape(height, width, channels, "uint8")
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            return Still("mjpeg", shape, colour if channels else "gray"), end
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise CorruptLayoutError("a JPEG picture without its head", path=path)


def check_same(data: bytes, still: Still, path: str) -> None:
    """Raise unless a picture is as the first one of its camera was."""
    found = still_of(data, path)
    if (found.codec, found.shape) != (still.codec, still.shape.picture):
        raise CorruptLayoutError(
            f"a {found.codec} picture of {found.shape} among {still.codec} of {still.shape}", path=path
        )


try:
    from isal import isal_zlib as zlib  # inflates a picture in two thirds of the time
except ImportError:
    import zlib  # type: ignore[no-redef]

_LAST_PNG_FILTER = 4
_COLOUR_AT, _INTERLACE_AT, _RGB = 25, 28, 2
_TO_RGB = ("L", "P", "1", "RGBA")
"""Kinds of 8-bit pictures whose colours are exact as RGB; alpha is no colour."""


class PictureDecoder:
    """Turns encoded pictures into arrays, each for itself; asked as a `VideoDecoder` is."""

    def __init__(self, codec: str, shape: FrameShape) -> None:
        self._shape = shape
        self._codec = codec
        self._open = _opener(codec)
        self._lines: PngLines | None = None
        self._known = b""
        """The head of a picture that was looked at: others of its camera begin with the same."""

    def feed(self, number: int, packet: bytes) -> Iterator[tuple[int, Any]]:
        """The picture of one packet, at once; it is not decoded before `pixels` asks for it."""
        yield number, packet

    def drain(self) -> Iterator[tuple[int, Any]]:
        """Nothing is ever held back."""
        yield from ()

    def reset(self) -> None:
        """No picture needs another."""

    def close(self) -> None:
        """Nothing is held."""

    def pixels(self, picture: bytes, out: NDArray[Any]) -> None:
        """Decode a picture into `out`; one of another size than the camera's is refused before memory is taken."""
        if self.quickly(picture, out):
            return
        if self._codec == "png":
            check_png(picture)
        shape = self._shape
        try:
            image = self._open(io.BytesIO(picture))
            if image.size != (shape.width, shape.height):
                raise CorruptLayoutError(f"a picture of {image.size[0]}x{image.size[1]}, expected {shape}")
            image.load()
            if shape.is_colour and image.mode in _TO_RGB:
                image = image.convert("RGB")
            values = np.asarray(image)
        except CorruptLayoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the readers of Pillow raise whatever damage leads them to
            raise CorruptLayoutError(f"the picture does not decode ({error})") from None
        if values.shape != shape.picture.shape or not _fits(values, shape.dtype):
            raise CorruptLayoutError(f"a picture of {values.dtype}{list(values.shape)}, expected {shape}")
        out[...] = values.reshape(out.shape)

    def quickly(self, picture: bytes, out: NDArray[Any]) -> bool:
        """Decode a picture that is exactly what the camera has; False where it takes more care than that."""
        if not self._known or not picture.startswith(self._known):
            try:
                found, size = read_head(picture, "a picture")
            except FormatError:
                return False
            if (found.codec, found.shape) != (self._codec, self._shape.picture):
                return False
            self._known = picture[:size]
        if self._codec == "png":
            return self._png_pixels(picture, self._shape, out)
        return _jpeg_pixels(picture, self._shape, out)

    def _png_pixels(self, picture: bytes, shape: FrameShape, out: NDArray[Any]) -> bool:
        """Inflated here, so that exactly the lines it states are there; filters of lines are FFmpeg's to undo."""
        is_wide = shape.dtype == "uint16"
        width = shape.width * (3 if shape.is_colour else 1) * (2 if is_wide else 1)
        raw = _png_lines(picture, shape)
        if raw is None:
            return False
        filters = raw[:: 1 + width]
        if filters.count(0) == shape.height:  # nothing to undo
            inner = (3, 1) if shape.is_colour else (2 if is_wide else 1,)
            shown = out.reshape(shape.picture.shape)
            shown[...] = np.ndarray(shown.shape, ">u2" if is_wide else "u1", raw, 1, (1 + width, *inner))
            return True
        if max(filters) > _LAST_PNG_FILTER:
            return False
        plain = self._unfiltered(picture, raw, width)
        if plain is None:
            return False
        values = np.ascontiguousarray(plain).view(">u2") if is_wide else plain
        out[...] = values.reshape(out.shape)
        return True

    def _unfiltered(self, picture: bytes, raw: bytes, width: int) -> NDArray[Any] | None:
        try:
            if self._lines is None:
                self._lines = PngLines()
            return self._lines.plain(picture[:PNG_HEAD_BYTES], raw, width)
        except (CorruptLayoutError, MissingExtraError):
            return None


def _jpeg_pixels(picture: bytes, shape: FrameShape, out: NDArray[Any]) -> bool:
    """By libjpeg as Pillow has it, without the classes of Pillow around it, which take longer than a small picture."""
    codecs = _codecs()
    if codecs is None:
        return False
    mode, size = "RGB" if shape.is_colour else "L", (shape.width, shape.height)
    image = codecs.new(mode, size)
    decoder = codecs.jpeg_decoder(mode, mode, "")
    decoder.setimage(image, (0, 0, *size))
    if decoder.decode(picture) != (-1, 0):  # all of it, and nothing wrong
        return False
    encoder = codecs.raw_encoder(mode, mode, 0, 1)
    encoder.setimage(image, (0, 0, *size))
    _, _, pixels = encoder.encode(out.nbytes + 1)
    if len(pixels) != out.nbytes:
        return False
    out[...] = np.frombuffer(pixels, np.uint8).reshape(out.shape)
    return True


@functools.cache
def _codecs() -> Any:
    """The part of Pillow that has the bare codecs; None where a release has them elsewhere."""
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        return None
    found = getattr(Image, "core", None)
    return found if all(hasattr(found, name) for name in ("new", "jpeg_decoder", "raw_encoder")) else None


def _png_lines(picture: bytes, shape: FrameShape) -> bytes | None:
    """The lines of a PNG picture, exactly as many as it states; None where it is interlaced, or has a palette.

    Pillow shows what lines there are and says nothing of those that are missing.
    """
    data: bytes | memoryview | None = _one_part(picture)
    is_plain = True
    if data is None:
        parts: list[bytes] = []
        for kind, content in _png_chunks(picture):
            is_plain = is_plain and kind not in (b"PLTE", b"tRNS")
            if kind == b"IDAT":
                parts.append(content)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
    if picture[_INTERLACE_AT]:
        return None
    values = 3 if picture[_COLOUR_AT] == _RGB else 1
    size = shape.height * (1 + shape.width * values * (2 if shape.dtype == "uint16" else 1))
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size)
    except zlib.error as error:  # type: ignore[misc,unused-ignore]
        raise CorruptLayoutError(f"the picture does not decode ({error})") from None
    if len(found) < size:
        raise CorruptLayoutError("a PNG picture has fewer lines than it says")
    return found if is_plain else None


_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def _one_part(picture: bytes) -> memoryview | None:
    """The data of a PNG picture that has its head, one part of data and its end, as most have; None of any other."""
    first, end = PNG_HEAD_BYTES + 8, len(picture) - len(_PNG_END) - 4
    size = int.from_bytes(picture[PNG_HEAD_BYTES : PNG_HEAD_BYTES + 4], "big")
    if picture[first - 4 : first] != b"IDAT" or first + size != end or not picture.endswith(_PNG_END):
        return None
    if zlib.crc32(picture[12:29]) != int.from_bytes(picture[29:33], "big"):
        return None
    view = memoryview(picture)
    if zlib.crc32(view[first - 4 : end]) != int.from_bytes(picture[end : end + 4], "big"):
        return None  # the other way says what is wrong
    return view[first:end]


def _fits(values: NDArray[Any], dtype: str) -> bool:
    """Whether pixels are of this type; Pillow before 11 gives 16-bit gray as 32 bits."""
    return values.dtype.newbyteorder("=") == dtype or (values.dtype == np.int32 and dtype == "uint16")


def check_png(data: bytes) -> None:
    """Raise unless a PNG picture is whole and every part of it has its checksum, which Pillow does not ask for."""
    _png_chunks(data)


def _png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Every part of a PNG picture up to its end; CorruptLayoutError where one is not as it was written."""
    at, found = len(PNG_MAGIC), []
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        kind, content = data[at + 4 : at + 8], data[at + 8 : end - 4]
        if zlib.crc32(content, zlib.crc32(kind)) != int.from_bytes(data[end - 4 : end], "big"):
            raise CorruptLayoutError("a PNG picture was changed after it was written: a checksum is wrong")
        found.append((kind, content))
        if kind == b"IEND":
            return found
        at = end
    raise CorruptLayoutError("a PNG picture is cut short")


@functools.cache
def _opener(codec: str) -> Callable[[io.BytesIO], Any]:
    """The reader of one format, which no other bytes can reach; opening reads the head only."""
    try:
        from PIL.JpegImagePlugin import JpegImageFile  # noqa: PLC0415
        from PIL.PngImagePlugin import PngImageFile  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError.for_extra("Pillow", "video") from None
    found: Callable[[io.BytesIO], Any] = PngImageFile if codec == "png" else JpegImageFile
    return found


__all__ = ["MAX_PIXELS", "Still", "check_same", "decode_stills", "is_still", "still_of"]

_KINDS = 16
_IDLE: dict[tuple[str, FrameShape], list[PictureDecoder]] = {}
"""Decoders by the kind of their pictures: one that is made anew takes a third of the time of a small picture."""


def decode_stills(
    pictures: list[bytes], still: Still, path: str, numbers: Sequence[int]
) -> NDArray[np.generic]:
    """Pictures of one kind as one batch; one that is of another kind, or damaged, is named by its number."""
    out = np.empty((len(pictures), *still.shape.shape), still.shape.dtype)
    kind = still.codec, still.shape
    idle = _IDLE.setdefault(kind, [])
    try:
        decoder = idle.pop()
    except IndexError:  # none yet, or others are using them
        decoder = PictureDecoder(*kind)
    for number, data, pixels in zip(numbers, pictures, out, strict=True):
        try:
            if not decoder.quickly(data, pixels):
                check_same(data, still, f"{path} (picture {number})")
                decoder.pixels(data, pixels)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(error.message, path=f"{path} (picture {number})") from None
    idle.append(decoder)
    if len(_IDLE) > _KINDS:
        _IDLE.clear()
    return out
