"""Frames out of other programs' videos: shown, cut and copied as they are, also where they are stored out of order."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.sweeps import thinned
from warpdata.bytekit.ranges import FileRangeReader
from warpdata.episodes.directory_copy import copy_to_directory
from warpdata.episodes.disk_episode import DiskEpisode
from warpdata.episodes.encoded import encoded_camera, encoded_frames, encoded_run
from warpdata.episodes.file_video import FileVideo, SourceVideo
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError, WarpError
from warpdata.formats.episodedir.stills import decode_stills, still_of
from warpdata.formats.episodedir.video import encode_png
from warpdata.timeline.episode import Episode

FRAMES = 24


def times(first: int, count: int) -> np.ndarray:
    return (np.arange(first, first + count, dtype=np.int64) + 1) * 40_000_000


def video_file(path: Path, codec: str, options: dict[str, str], size: tuple[int, int] = (64, 48)) -> Path:
    """A moving square, as another program would encode it."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(FRAMES):
            frame = np.zeros((size[1], size[0], 3), np.uint8)
            frame[4:20, number : number + 16] = (200, 40 + number * 5, 90)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode(None))
    return path


CODECS = {
    "b-frames": ("libx264", {"bf": "3", "g": "8", "x264-params": "scenecut=0:open-gop=0"}),
    "plain": ("libx264", {"bf": "0", "g": "6"}),
    "hevc": ("libx265", {"x265-params": "keyint=6:min-keyint=6:scenecut=0:open-gop=0:log-level=none"}),
    "mpeg4": ("mpeg4", {"g": "6"}),
}


def camera(path: Path, first: int = 0, count: int = FRAMES) -> FileVideo:
    source = SourceVideo(partial(FileRangeReader, str(path)), str(path))
    return FileVideo(source, partial(times, first, count), name="top", first=first, clock="steps")


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(("first", "count"), [(0, 24), (6, 12), (8, 8), (7, 5), (20, 4)])
def test_a_cut_shows_the_same_frames_wherever_it_goes(
    kind: str, first: int, count: int, tmp_path: Path
) -> None:
    codec, options = CODECS[kind]
    path = video_file(tmp_path / "v.mp4", codec, options)
    with av.open(str(path)) as whole:
        expected = [frame.to_ndarray(format="rgb24") for frame in whole.decode(video=0)][
            first : first + count
        ]
    signal = camera(path, first, count)
    far = np.abs(signal.values().astype(int) - np.array(expected).astype(int)).max()
    assert far <= 2
    copy_to_directory(Episode.of({"top": signal}, id="x"), tmp_path / "episode", {})
    again = DiskEpisode(tmp_path / "episode")["top"]
    assert np.array_equal(again.values(), signal.values())
    assert np.array_equal(again.timestamps, times(first, count))
    a, b = encoded_frames(signal), encoded_frames(again)
    assert a is not None
    assert b is not None
    assert [frame.data for frame in a] == [frame.data for frame in b]
    with av.open(str(tmp_path / "episode/top.mp4")) as out:  # any player shows it
        stream = out.streams.video[0]
        shown = [frame.pts * stream.time_base for frame in out.decode(stream)]
    run = encoded_run(signal)
    assert run is not None
    assert [moment * 25 for moment in shown] == list(range(len(run)))


def test_a_whole_file_is_copied_byte_for_byte(tmp_path: Path) -> None:
    path = video_file(tmp_path / "v.mp4", *CODECS["b-frames"])
    found = encoded_camera("top", camera(path))
    assert found is not None
    assert bytes(found.video.read(0, found.video.size)) == path.read_bytes()


def values_or_error(path: Path) -> tuple[object, str | None]:
    try:
        return camera(path).values(), None
    except WarpError as error:
        return None, str(error)


def test_missing_frames_and_damage_are_named(tmp_path: Path) -> None:
    path = video_file(tmp_path / "v.mp4", *CODECS["plain"])
    with pytest.raises(CorruptLayoutError, match=r"frames 20 to 30 of a video that has 24.*v\.mp4"):
        camera(path, 20, 10).values()
    data, whole = path.read_bytes(), camera(path).values()
    for at in thinned(range(0, len(data), 7), 25):
        path.write_bytes(data[:at])
        seen, said = values_or_error(path)
        assert np.array_equal(seen, whole) if said is None else "v.mp4" in said  # some bytes no frame needs


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", **options)
    return out.getvalue()


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_pictures_decode_each_for_itself() -> None:
    """A PNG is never taken for a difference to the one before."""
    rng = np.random.default_rng(0)
    for shape, dtype in (((6, 8, 3), np.uint8), ((6, 8), np.uint8), ((6, 8), np.uint16)):
        pixels = rng.integers(0, np.iinfo(dtype).max, (5, *shape)).astype(dtype)
        for write in (png, encode_png):
            data = [write(each) for each in pixels]
            assert np.array_equal(decode_stills(data, still_of(data[0], "p"), "p"), pixels)
    smooth = np.linspace(0, 255, 64 * 48).reshape(48, 64).astype(np.uint8)
    colour = np.stack([smooth, smooth[::-1], smooth.T.reshape(48, 64)], axis=-1)
    data = [jpeg(colour, quality=95, subsampling=0), jpeg(colour[::-1], quality=95, subsampling=0)]
    seen = decode_stills(data, still_of(data[0], "p"), "p")
    for picture, each in zip(data, seen, strict=True):
        assert np.abs(each.astype(int) - np.asarray(Image.open(io.BytesIO(picture))).astype(int)).max() <= 3


def test_pictures_that_lie_are_refused() -> None:
    good = png(np.zeros((6, 8, 3), np.uint8))
    bomb = bytearray(good)
    bomb[16:24] = (32_000).to_bytes(4, "big") * 2
    with pytest.raises(LimitExceededError, match="32000x32000"):
        still_of(bytes(bomb), "p")
    with pytest.raises(CorruptLayoutError, match="neither"):
        still_of(b"GIF89a", "p")
    with pytest.raises(UnsupportedDtypeError, match="colour type 6"):
        still_of(png(np.zeros((6, 8, 4), np.uint8)), "p")
    with pytest.raises(CorruptLayoutError, match=r"picture 4.*"):
        decode_stills([png(np.zeros((5, 8, 3), np.uint8))], still_of(good, "p"), "p", 4)
    for at in range(8, len(good) - 12, 3):
        with pytest.raises(WarpError, match="p"):
            decode_stills([good[:at]], still_of(good, "p"), "p")
