"""What the heads of single encoded pictures say, JPEG or PNG, before anything is decoded."""

from __future__ import annotations

from typing import NamedTuple

from warpdata.bytekit.png import PNG_MAGIC
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.layout import JPEG_MAGIC

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
