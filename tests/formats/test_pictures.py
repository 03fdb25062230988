"""Single pictures are decoded to what Pillow shows, by whichever way is quick; what is damaged is refused."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir import pictures
from warpdata.formats.episodedir.documents import FrameShape
from warpdata.formats.episodedir.pictures import PictureDecoder, decode_stills, still_of

RNG = np.random.default_rng(0)
COLOUR = (RNG.integers(0, 255, (3, 5, 6, 3)).repeat(7, 1).repeat(9, 2) // 2).astype(np.uint8)
GRAY = COLOUR[..., 0]
DEPTH = GRAY.astype(np.uint16) * 201


@pytest.fixture(params=["isal", "zlib"], autouse=True)
def _inflated_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with and without the faster library."""
    by = pytest.importorskip("isal.isal_zlib") if request.param == "isal" else zlib
    monkeypatch.setattr(pictures, "zlib", by)


def encoded(frame: NDArray[np.generic], kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(frame)).save(out, kind, **options)
    return out.getvalue()


def shown(data: bytes) -> NDArray[np.generic]:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("frames", "kind", "options"),
    [
        (COLOUR, "JPEG", {"quality": 90}),
        (COLOUR, "JPEG", {"quality": 70, "progressive": True}),
        (COLOUR, "JPEG", {"quality": 90, "subsampling": 0}),
        (GRAY, "JPEG", {"quality": 90}),
        (COLOUR, "PNG", {}),
        (GRAY, "PNG", {}),
        (DEPTH, "PNG", {}),
    ],
    ids=["jpeg", "progressive", "jpeg444", "gray-jpeg", "png", "gray-png", "depth"],
)
def test_pixels_are_those_of_pillow(
    frames: NDArray[np.generic], kind: str, options: dict[str, object]
) -> None:
    data = [encoded(frame, kind, **options) for frame in frames]
    found = decode_stills(data, still_of(data[0], "x"), "x", range(len(data)))
    assert np.array_equal(found, np.stack([shown(each) for each in data]))
    assert found.dtype == frames.dtype


def png(lines: bytes, height: int, width: int, *, depth: int = 8, colour: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        )

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((depth, colour, 0, 0, 0))
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in parts)


@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)])
def test_every_filter_of_lines(filters: tuple[int, ...]) -> None:
    lines = RNG.integers(0, 255, (11, 1 + 13 * 3)).astype(np.uint8)
    lines[:, 0] = np.resize(filters, 11)
    data = png(lines.tobytes(), 11, 13)
    several = [data, png(lines[::-1].tobytes(), 11, 13), data]
    found = decode_stills(several, still_of(data, "x"), "x", range(3))
    assert np.array_equal(found, np.stack([shown(each) for each in several]))


@pytest.mark.parametrize("rows", [0, 5, 10])
def test_a_picture_with_fewer_lines_than_it_says_is_refused(rows: int) -> None:
    """Every checksum is right: only who counts the lines can tell."""
    lines = RNG.integers(0, 4, (rows, 1 + 13 * 3)).astype(np.uint8).tobytes()
    with pytest.raises(CorruptLayoutError):
        decode_stills([png(lines, 11, 13)], still_of(png(lines, 11, 13), "x"), "x", [0])


def test_a_filter_that_does_not_exist_is_refused() -> None:
    lines = np.zeros((11, 1 + 13 * 3), np.uint8)
    lines[4, 0] = 9
    data = png(lines.tobytes(), 11, 13)
    with pytest.raises(CorruptLayoutError):
        decode_stills([data], still_of(data, "x"), "x", [0])


@pytest.mark.parametrize("shape", [(35, 53), (36, 54), (34, 54), (70, 108)])
def test_a_picture_of_another_size_is_refused(shape: tuple[int, int]) -> None:
    data = encoded(COLOUR[0], "JPEG")
    out = np.zeros((*shape, 3), np.uint8)
    with pytest.raises(CorruptLayoutError, match="expected"):
        PictureDecoder("mjpeg", FrameShape(*shape, 3, "uint8")).pixels(data, out)


def test_cut_pictures_are_refused() -> None:
    for kind in ("JPEG", "PNG"):
        data = encoded(COLOUR[0], kind)
        still = still_of(data, "x")
        for size in range(len(data) // 2, len(data) - 2, 17):
            with pytest.raises(CorruptLayoutError):
                decode_stills([data[:size]], still, "x", [0])


@pytest.mark.parametrize(
    "head",
    [
        b"\xff\xd8\xff\xd8",
        b"\xff\xd8\xff\xff\xd9",
        b"\xff\xd8\xff\xe0\0\2no marker",
        b"\xff\xd8\xff\xc4\xff\xff",
    ],
    ids=["a second beginning", "an end", "no marker", "a table past the end"],
)
def test_a_jpeg_without_its_head_is_refused(head: bytes) -> None:
    with pytest.raises(CorruptLayoutError, match=r"a JPEG picture without its head.*camera/0\.jpg"):
        still_of(head + bytes(40), "camera/0.jpg")


def test_a_jpeg_may_fill_the_room_before_a_marker() -> None:
    data = encoded(COLOUR[0], "JPEG")
    filled = data[:2] + b"\xff\xff" + data[2:]
    assert still_of(filled, "x") == still_of(data, "x")


def test_lines_that_do_not_inflate_are_refused() -> None:
    """The checksum of the part is right, what it holds is not."""
    good = png(bytes(11 * 40), 11, 13)
    at = good.index(b"IDAT") - 4
    size = int.from_bytes(good[at : at + 4], "big")
    body = b"IDAT" + b"\xff" * size
    data = good[: at + 4] + body + zlib.crc32(body).to_bytes(4, "big") + good[at + 12 + size :]
    with pytest.raises(CorruptLayoutError, match="the picture does not decode"):
        decode_stills([data], still_of(good, "x"), "x", [0])


def test_a_gray_picture_among_colours_is_refused() -> None:
    """Its size is right, its pixels are of another type."""
    deep = encoded(DEPTH[0], "PNG")
    out = np.zeros((*DEPTH[0].shape, 3), np.uint8)
    with pytest.raises(CorruptLayoutError, match=r"a picture of .*, expected"):
        PictureDecoder("png", FrameShape(*DEPTH[0].shape, 3, "uint8")).pixels(deep, out)
