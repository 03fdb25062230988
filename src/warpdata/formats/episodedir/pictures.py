"""Pictures that are files of their own: heads of PNG and JPEG, and decoding. The adapter of Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import compress

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import PNG_MAGIC
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    UnsupportedDtypeError,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FrameShape, Stream
from warpdata.formats.episodedir.scaling import Box, ImageView
from warpdata.formats.episodedir.video import Picture, scale_image

try:
    from isal import isal_zlib as zlib  # inflates a picture in two thirds of the time
except ImportError:
    import zlib  # type: ignore[no-redef]

MAX_PIXELS = 1 << 27
"""More pixels than this in one picture are an attack, not a camera."""

PNG_HEAD_BYTES = 33
_PNG_FORMATS = {(0, 8): "gray", (0, 16): "gray16be", (2, 8): "rgb24", (3, 8): "pal8"}
_OTHERS = {
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"RIFF": "WebP",
    b"GIF8": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"BM": "BMP",
}
"""Pictures that are not supported, by their first bytes."""
_JPEG_TABLES = {0xC4, 0xC8, 0xCC}
_JPEG_BARE = {0x01, *range(0xD0, 0xDA)}
"""Markers without content; none of them is allowed before the head."""


class Still(NamedTuple):
    """The kind of a picture: its codec, the shape of its pixels, FFmpeg's name of them."""

    codec: str
    shape: FrameShape
    pix_fmt: str

    @property
    def stream(self) -> Stream:
        """Parameters of its decoder."""
        return Stream(self.codec, self.pix_fmt, self.shape.width, self.shape.height, b"")


def is_still(data: bytes) -> bool:
    """Whether these bytes begin as a PNG or JPEG."""
    return data.startswith((PNG_MAGIC, layout.JPEG_MAGIC))


def still_of(data: bytes, path: str) -> Still:
    """The kind of a picture by its head; a typed error where it is no picture, or impossible."""
    if data.startswith(PNG_MAGIC):
        still = _png_head(data, path)
    elif data.startswith(layout.JPEG_MAGIC):
        still = _jpeg_head(data, path)
    else:
        for magic, kind in _OTHERS.items():
            if data.startswith(magic):
                hint = "Save the pictures as PNG, which keeps every pixel, or as JPEG."
                raise UnsupportedDtypeError(f"a {kind} picture", path=path, hint=hint)
        raise CorruptLayoutError("neither a PNG nor a JPEG picture", path=path)
    height, width = still.shape.height, still.shape.width
    if not height or not width or max(height, width) > layout.MAX_FRAME_SIDE or height * width > MAX_PIXELS:
        raise LimitExceededError(f"a picture of {width}x{height} pixels", path=path)
    return still


def _png_head(data: bytes, path: str) -> Still:
    if data[12:16] != b"IHDR" or len(data) < PNG_HEAD_BYTES:
        raise CorruptLayoutError("a PNG picture without its head", path=path)
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    depth, colour = data[24], data[25]
    pix_fmt = _PNG_FORMATS.get((colour, depth))
    if pix_fmt is None:
        raise UnsupportedDtypeError(
            f"a PNG picture of colour type {colour} with {depth} bits",
            path=path,
            hint="Pictures are 8-bit RGB, or 8- or 16-bit gray.",
        )
    channels, dtype = 0 if colour == 0 else 3, "uint16" if depth == 16 else "uint8"
    return Still("png", FrameShape(height, width, channels, dtype), pix_fmt)


def _jpeg_head(data: bytes, path: str) -> Still:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _JPEG_BARE:
            break
        if 0xC0 <= marker <= 0xCF and marker not in _JPEG_TABLES:
            colours, sampling = data[at + 9], data[at + 11] if len(data) > at + 11 else 0x22
            if colours not in (1, 3):
                raise UnsupportedDtypeError(
                    f"a JPEG picture of {colours} colours",
                    path=path,
                    hint="Pictures are RGB or gray: save it again as one of them.",
                )
            height, width = (int.from_bytes(data[at + side : at + side + 2], "big") for side in (5, 7))
            pix_fmt = {0x21: "yuvj422p", 0x11: "yuvj444p"}.get(sampling, "yuvj420p")
            shape = FrameShape(height, width, 0 if colours == 1 else 3, "uint8")
            return Still("mjpeg", shape, pix_fmt if shape.is_colour else "gray")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise CorruptLayoutError("a JPEG picture without its head", path=path)


def check_same(data: bytes, still: Still, path: str) -> Still:
    """The kind of a picture; raises unless it is that of the first one of its camera."""
    other = still_of(data, path)
    if (other.codec, other.shape) != (still.codec, still.shape.picture):
        raise CorruptLayoutError(
            f"a {other.codec} picture of {other.shape} among {still.codec} of {still.shape}", path=path
        )
    return other


class EncodedPicture(NamedTuple):
    """A picture that is decoded when it is written."""

    decoder: PictureDecoder
    data: bytes

    def write(self, out: NDArray[Any], view: ImageView | None) -> None:
        """Decode the picture, or a view of it, into an array."""
        self.decoder.pixels(self.data, out, view)


class PictureDecoder:
    """Turns encoded pictures into arrays, each for itself; has the interface of `VideoDecoder`."""

    def __init__(self, codec: str, shape: FrameShape) -> None:
        self._shape = shape
        self._codec = codec
        _pillow()  # a missing library is an error of opening

    def feed(self, number: int, packet: bytes) -> list[tuple[int, Picture]]:
        """The picture of one packet; it is decoded when it is written."""
        return [(number, EncodedPicture(self, packet))]

    def drain(self) -> list[tuple[int, Picture]]:
        """Nothing is ever held back."""
        return []

    def reset(self) -> None:
        """No picture needs another."""

    def close(self) -> None:
        """Nothing is held."""

    def pixels(
        self, picture: bytes, out: NDArray[Any], view: ImageView | None = None, head: Still | None = None
    ) -> None:
        """Decode a picture, or a view of it, into `out`; one of another size than the camera's is refused first."""
        shape, scale = self._shape, 1
        still = head or still_of(picture, "a picture")
        if (still.codec, still.shape[:2]) != (self._codec, shape[:2]):
            raise CorruptLayoutError(f"a {still.codec} picture of {still.shape}, expected {shape}")
        is_whole = view is not None and view.is_scaled and view.source == (0, 0, shape.height, shape.width)
        if still.codec == "mjpeg" and view is not None and is_whole:
            # JPEG decodes to a half, a quarter or an eighth of the size at less cost.
            ratio = min(shape.height // view.target.height, shape.width // view.target.width)
            scale = next(part for part in (8, 4, 2, 1) if ratio >= part or part == 1)
            shape = shape._replace(width=-(-shape.width // scale), height=-(-shape.height // scale))
            view = view._replace(source=Box(0, 0, shape.height, shape.width))
        try:
            values = _decode_picture(picture, still, scale, is_colour=shape.is_colour)
        except (CorruptLayoutError, MissingExtraError):
            raise
        except Exception as error:  # noqa: BLE001 - the readers of Pillow raise anything on damage
            raise CorruptLayoutError(f"the picture does not decode ({error})") from None
        if values.shape != shape.picture.shape or values.dtype.newbyteorder("=") != shape.dtype:
            raise CorruptLayoutError(f"a picture of {values.dtype}{list(values.shape)}, expected {shape}")
        if view is None:
            out[...] = values.reshape(out.shape)
        else:
            scale_image(values.astype(shape.dtype, copy=False).reshape(shape.shape), view, out)


def _decode_picture(data: bytes, still: Still, scale: int, *, is_colour: bool) -> NDArray[Any]:
    """The pixels of a picture, of a JPEG at a part of its size; missing lines and wrong checksums are errors.

    Pillow checks neither, and shows what lines there are.
    """
    library = _pillow()
    mode = {"gray": "L", "gray16be": "I;16", "pal8": "P"}.get(still.pix_fmt, "RGB")
    size = -(-still.shape.width // scale), -(-still.shape.height // scale)
    if still.codec == "mjpeg":
        image = library.frombytes(mode, size, data, "jpeg", mode, "", scale, 0)
    else:
        chunks = _png_chunks(data)
        lines, raw_mode, is_interlaced = (
            chunks.get(b"IDAT", b""),
            "I;16B" if mode == "I;16" else mode,
            data[28],
        )
        expected = still.shape.height * (1 + still.shape.nbytes // still.shape.height)
        is_plain = not is_interlaced and mode != "P"  # the lines of others have other lengths
        if is_plain:
            inflated = zlib.decompressobj().decompress(lines, expected)
            if len(inflated) < expected:
                raise CorruptLayoutError("a PNG picture has fewer lines than it states")
            lines = compress(inflated, 0)  # stored: Pillow need not inflate them again
        image = library.frombytes(mode, size, lines, "zip", raw_mode, is_interlaced)
        if mode == "P":
            image.putpalette(chunks.get(b"PLTE", b""))
    return np.asarray(image.convert("RGB") if is_colour and mode in ("L", "P") else image)


def _png_chunks(data: bytes) -> dict[bytes, bytes]:
    """The contents of a PNG picture by kind, after every checksum was compared."""
    chunks: dict[bytes, list[bytes]] = {}
    at = len(PNG_MAGIC)
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        kind, content = data[at + 4 : at + 8], data[at + 8 : end - 4]
        if zlib.crc32(content, zlib.crc32(kind)) != int.from_bytes(data[end - 4 : end], "big"):
            raise CorruptLayoutError("a PNG picture was changed after it was written: a checksum is wrong")
        chunks.setdefault(kind, []).append(content)
        if kind == b"IEND":
            return {name: b"".join(parts) for name, parts in chunks.items()}
        at = end
    raise CorruptLayoutError("a PNG picture is cut short")


def _pillow() -> Any:
    """The library, whose decoders are given the bytes and the format: no other reader can be reached."""
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError.for_extra("Pillow", "video") from None
    return Image


def decode_stills(
    pictures: list[bytes], still: Still, path: str, numbers: Sequence[int], view: ImageView | None = None
) -> NDArray[np.generic]:
    """Pictures of one kind (or views of them) as one batch; a damaged or different one is named by its number."""
    size = still.shape.shape[:2] if view is None else (view.height, view.width)
    out = np.empty((len(pictures), *size, *still.shape.shape[2:]), still.shape.dtype)
    decoder = PictureDecoder(still.codec, still.shape)
    for number, data, pixels in zip(numbers, pictures, out, strict=True):
        place = f"{path} (picture {number})"
        head = check_same(data, still, place)
        try:
            decoder.pixels(data, pixels, view, head)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(error.message, path=place) from None
    return out
