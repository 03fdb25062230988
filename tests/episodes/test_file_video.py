"""Frames out of other programs' videos: shown, cut and copied as they are, also where they are stored out of order."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import warpdata as wd
from tests.sweeps import thinned
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.episodes.check.rules import check_episode
from warpdata.episodes.forms.content import ContentSum, sum_of
from warpdata.episodes.forms.directory import MetaOf, write_directory
from warpdata.episodes.sources.cameras import FileVideo, SourceVideo, StillsSignal, VideoSignal
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.episodes.sources.encoded import encoded_camera, encoded_run
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError, WarpError
from warpdata.formats.episodedir import frame_index
from warpdata.formats.episodedir.pictures import PictureDecoder, Still, decode_stills, still_of
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
    sums: dict[str, ContentSum] = {}
    write_directory(Episode.of({"top": signal}, id="x"), tmp_path / "episode", noting(sums))
    again = DiskEpisode(tmp_path / "episode")["top"]
    assert sums == {"top": sum_of(signal)} == {"top": sum_of(again)}
    assert isinstance(again, VideoSignal)
    again.check()
    assert np.array_equal(again.values(), signal.values())
    assert np.array_equal(again.timestamps, times(first, count))
    a, b = encoded_run(signal), encoded_run(again)
    assert a is not None
    assert b is not None
    assert [frame.data for frame in a.frames()] == [frame.data for frame in b.frames()]
    with av.open(str(tmp_path / "episode/top.mp4")) as out:  # any player shows it
        stream = out.streams.video[0]
        shown = [frame.pts * stream.time_base for frame in out.decode(stream)]
    run = encoded_run(signal)
    assert run is not None
    assert [moment * 25 for moment in shown] == list(range(len(run)))


def test_a_file_that_episodes_share_is_not_damaged(tmp_path: Path) -> None:
    path = video_file(tmp_path / "v.mp4", *CODECS["b-frames"])
    for first, count in ((0, 10), (10, 14)):
        episode = Episode.of({"top": camera(path, first, count)}, id="x")
        assert {finding.rule for finding in check_episode(episode, "x")} <= {"no-actions"}


def test_a_whole_file_is_copied_byte_for_byte(tmp_path: Path) -> None:
    path = video_file(tmp_path / "v.mp4", *CODECS["b-frames"])
    found = encoded_camera("top", camera(path))
    assert found is not None
    assert bytes(found.video.read(0, found.video.size)) == path.read_bytes()


@pytest.mark.parametrize("codec", CODECS)
def test_a_copy_has_the_same_packets(codec: str, tmp_path: Path) -> None:
    path = video_file(tmp_path / "v.mp4", *CODECS[codec])
    for name, signal in (("whole", camera(path)), ("cut", camera(path, 6, 12))):
        sums: dict[str, ContentSum] = {}
        write_directory(Episode.of({"top": signal}, id="x"), tmp_path / name, noting(sums))
        again = DiskEpisode(tmp_path / name)["top"]
        assert sums == {"top": sum_of(signal)}
        a, b = encoded_run(signal), encoded_run(again)
        assert a is not None
        assert b is not None
        assert list(a.packets()) == list(b.packets())  # and every checksum of the index holds
    assert (tmp_path / "whole/top.mp4").read_bytes() == path.read_bytes()


def noting(sums: dict[str, ContentSum]) -> MetaOf:
    def meta_of(found: Mapping[str, ContentSum]) -> Mapping[str, Any]:
        sums.update(found)
        return {}

    return meta_of


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


def lie_over(places: np.ndarray, _: np.ndarray) -> None:
    places[5, 0] -= 1


def lie_behind(places: np.ndarray, _: np.ndarray) -> None:
    places[-1, 0] += 1 << 40


def lie_before(places: np.ndarray, _: np.ndarray) -> None:
    places[:, 0] -= 1 << 40


def lie_out_of_order(places: np.ndarray, keyframe: np.ndarray) -> None:
    places[[0, 1]] = places[[1, 0]]
    keyframe[0] = True
    keyframe[1] = False


def lie_about_keys(_: np.ndarray, keyframe: np.ndarray) -> None:
    keyframe[0] = False


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lie_over, "frames overlap in the video"),
        (lie_behind, "frames are past the end of the video"),
        (lie_before, "frames are past the end of the video"),
        (lie_out_of_order, "the video does not begin with a keyframe"),
        (lie_about_keys, "the video does not begin with a keyframe"),
    ],
)
def test_frames_that_cannot_lie_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[Any, Any], None], words: str
) -> None:
    """Where one is cut in the middle, checksums would be taken of the wrong bytes."""
    path = video_file(tmp_path / "v.mp4", *CODECS["plain"])
    listed = frame_index.list_packets

    def overlapping(*asked: Any) -> Any:
        probe, places, keyframe, pts = listed(*asked)
        lie(places, keyframe)
        return probe, places, keyframe, pts

    assert len(camera(path).source) == FRAMES
    monkeypatch.setattr(frame_index, "list_packets", overlapping)
    with pytest.raises(CorruptLayoutError, match=rf"{words}.*v\.mp4"):
        camera(path).values()


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
            assert np.array_equal(decode_stills(data, still_of(data[0], "p"), "p", range(5)), pixels)


def pictures(data: list[bytes]) -> StillsSignal:
    """Encoded pictures in memory as a camera."""
    times = np.arange(len(data), dtype=np.int64) * 100_000_000
    return StillsSignal("top", lambda low, high: data[low:high], len(data), lambda: times, "p")


PICTURES = {
    "4:2:0": {"quality": 75},
    "4:2:2": {"quality": 90, "subsampling": 1},
    "4:4:4": {"quality": 95, "subsampling": 0},
    "progressive": {"quality": 60, "progressive": True},
    "restarts": {"quality": 75, "restart_marker_blocks": 3},
    "optimised": {"quality": 30, "optimize": True},
}


@pytest.mark.parametrize("shape", [(33, 47, 3), (48, 64, 3), (40, 24), (1, 1, 3)])
@pytest.mark.parametrize("options", PICTURES.values(), ids=PICTURES)
def test_jpeg_pictures_have_the_pixels_that_pillow_shows(
    shape: tuple[int, ...], options: dict[str, object], tmp_path: Path
) -> None:
    """Bit for bit, where they lie, and in the video that they are copied into."""
    rng = np.random.default_rng(3)
    smooth = np.linspace(0, 255, int(np.prod(shape))).reshape(shape)
    frames = [np.uint8((smooth * k + rng.integers(0, 60, shape)) % 256) for k in range(1, 4)]
    signal = pictures([jpeg(each, **options) for each in frames])
    expected = np.stack(
        [np.asarray(Image.open(io.BytesIO(data))) for data in signal.pictures(range(len(signal)))]
    )
    assert np.array_equal(signal.values(), expected)
    found = encoded_camera("top", signal)
    assert found is not None
    path = tmp_path / "v.mp4"
    path.write_bytes(found.video.read(0, found.video.size))
    copy = camera(path, 0, 3)
    assert np.array_equal(copy.values(), expected)


def test_pictures_that_lie_are_refused() -> None:
    good = png(np.zeros((6, 8, 3), np.uint8))
    bomb = bytearray(good)
    bomb[16:24] = (32_000).to_bytes(4, "big") * 2
    with pytest.raises(LimitExceededError, match="32000x32000"):
        still_of(bytes(bomb), "p")
    with pytest.raises(CorruptLayoutError, match="neither"):
        still_of(b"no picture", "p")
    with pytest.raises(UnsupportedDtypeError, match="colour type 6"):
        still_of(png(np.zeros((6, 8, 4), np.uint8)), "p")
    with pytest.raises(CorruptLayoutError, match=r"picture 4.*"):
        decode_stills([png(np.zeros((5, 8, 3), np.uint8))], still_of(good, "p"), "p", [4])
    for at in range(8, len(good) - 12, 3):
        with pytest.raises(WarpError, match="p"):
            decode_stills([good[:at]], still_of(good, "p"), "p", [0])


def test_a_jpeg_of_four_colours_is_refused() -> None:
    data = io.BytesIO()
    Image.new("CMYK", (8, 6)).save(data, "JPEG")
    with pytest.raises(UnsupportedDtypeError, match="4 colours"):
        still_of(data.getvalue(), "p")


def decoded_or_error(data: bytes, still: Still) -> tuple[Any, str | None]:
    try:
        return decode_stills([data], still, "p", [7])[0], None
    except WarpError as error:
        return None, str(error)


@pytest.mark.parametrize("write", [png, jpeg])
@pytest.mark.parametrize("shape", [(40, 30, 3), (40, 30)])
def test_damaged_pictures_are_named_and_never_wrong_in_png(write: Any, shape: tuple[int, ...]) -> None:
    """Cut anywhere they are refused; a changed byte of a PNG too, for all of it is under checksums."""
    pixels = np.random.default_rng(5).integers(0, 256, shape).astype(np.uint8)
    good = write(pixels)
    still = still_of(good, "p")
    for at in thinned(range(len(good)), 60):
        with pytest.raises(WarpError, match="picture 7"):
            decode_stills([good[:at]], still, "p", [7])
    rng = np.random.default_rng(6)
    for at in thinned(range(len(good)), 150):
        bad = bytearray(good)
        bad[at] ^= int(rng.integers(1, 256))
        seen, said = decoded_or_error(bytes(bad), still)
        if said is None:
            assert write is jpeg or np.array_equal(seen, pixels)
        else:
            assert "picture 7" in said


def test_a_picture_that_grows_behind_its_head_takes_no_memory() -> None:
    """The size that counts is the one the decoder sees, not only the one of the first head."""
    good = jpeg(np.zeros((16, 16, 3), np.uint8))
    start = good.index(b"\xff\xc0")
    head = good[start : start + 2 + int.from_bytes(good[start + 2 : start + 4], "big")]
    large = head[:5] + (30_000).to_bytes(2, "big") * 2 + head[9:]
    both = good[: start + len(head)] + large + good[start + len(head) :]
    with pytest.raises(CorruptLayoutError, match="picture 0"):
        decode_stills([both], still_of(both, "p"), "p", [0])


def test_pictures_of_windows_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 18, 20, 3)).astype(np.uint8)
    data = [png(each) for each in pixels]
    signal = pictures(data)
    decoded: list[int] = []
    real = PictureDecoder.pixels

    def counting(self: PictureDecoder, picture: bytes, *others: Any) -> None:
        decoded.append(data.index(picture))
        real(self, picture, *others)

    monkeypatch.setattr(PictureDecoder, "pixels", counting)
    windows = wd.Windows([wd.Episode.of({"cam": signal}, id="x")], {"image": "cam"}, anchor="cam")
    assert np.array_equal(windows.batch([4, 3, 4])["image"], pixels[[4, 3, 4]])
    decoded.clear()
    history = wd.Windows(windows.episodes, {"image": wd.Field("cam", past=2)}, anchor="cam")
    loader = wd.Loader(history, batch_size=4, seed=1)
    for batch in loader:
        rows = batch.ts_ns[:, None] // 100_000_000 + np.arange(-1, 1)
        assert np.array_equal(batch["image"], pixels[np.maximum(rows, 0)])
    assert sorted(decoded) == list(range(20))
    with pytest.raises(ValueError, match="read-only"):
        signal._values_at(np.array([3]))[0, 0, 0] = 1
    assert np.array_equal(signal.values(), pixels)


def test_pictures_of_other_kinds_are_named() -> None:
    for head, kind in ((b"\xff\x0a", "JPEG XL"), (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"), (b"RIFF", "WebP")):
        with pytest.raises(UnsupportedDtypeError, match=f"a {kind} picture"):
            still_of(head + bytes(40), "there")
