"""The frames of MP4 files by their own tables: what FFmpeg says of them, or nothing."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import av
import numpy as np
import pytest

from tests.conftest import shared_golden
from tests.sweeps import thinned
from warpdata.bytekit.ranges import BytesRangeReader
from warpdata.formats.episodedir.sample_table import is_same_stream, same_stream, sample_table
from warpdata.formats.episodedir.video import list_packets


def clip(codec: str = "libx264", frames: int = 12, *, movflags: str = "", **options: str) -> bytes:
    """A small video of one codec."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        _write(path, codec, frames, {"movflags": movflags} if movflags else {}, options)
        return path.read_bytes()


def _write(path: Path, codec: str, frames: int, muxer: dict[str, str], options: dict[str, str]) -> None:
    with av.open(str(path), "w", options=muxer) as container:
        stream = container.add_stream(codec, rate=20, options=options)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        rng = np.random.default_rng(frames)
        for _ in range(frames):
            pixels = rng.integers(0, 255, (32, 48, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def assert_as_ffmpeg(data: bytes) -> None:
    found = sample_table(BytesRangeReader(data))
    probe, places, keyframe, pts = list_packets(io.BytesIO(data), "clip")
    assert found is not None
    assert np.array_equal(found.places, places)
    assert np.array_equal(found.keyframe, keyframe)
    assert np.array_equal(found.pts, pts)
    assert found.tick == probe.tick


@pytest.mark.parametrize(
    "data",
    [
        clip(),
        clip(g="4", bf="0"),
        clip(g="6", bf="2"),  # shown in another order than stored, with an edit that moves them
        clip(movflags="faststart"),
        clip("mpeg4"),
    ],
    ids=["h264", "no-b-frames", "b-frames", "head-first", "mpeg4"],
)
def test_plain_videos(data: bytes) -> None:
    assert_as_ffmpeg(data)


def test_videos_of_the_original_programs() -> None:
    files = sorted(shared_golden("foreign", "lerobot").rglob("*.mp4"))
    assert len(files) > 5
    for path in files:
        assert_as_ffmpeg(path.read_bytes())


def test_what_is_not_plain_is_left_to_ffmpeg() -> None:
    assert sample_table(BytesRangeReader(clip(movflags="frag_keyframe+empty_moov"))) is None
    assert sample_table(BytesRangeReader(b"\x1aE\xdf\xa3" + bytes(100))) is None
    assert sample_table(BytesRangeReader(b"")) is None


def test_damaged_tables_end_in_nothing_or_the_file() -> None:
    """Whatever a byte says, no foreign error comes out, and no table of another length than was stated."""
    data = clip(movflags="faststart", g="6", bf="2")
    head = data.index(b"mdat")
    for at in thinned(range(head), 400):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        found = sample_table(BytesRangeReader(bytes(changed)))
        assert found is None or len(found.pts) == len(found.places) == len(found.keyframe)
    moov = data.index(b"moov") - 4
    end = moov + int.from_bytes(data[moov : moov + 4], "big")
    for size in thinned(range(len(data)), 60):
        assert (sample_table(BytesRangeReader(data[:size])) is None) == (size < end)


def test_streams_of_two_files() -> None:
    """The rate of a file says nothing of its stream; its size does."""
    one, other = (sample_table(BytesRangeReader(clip(frames=n))) for n in (5, 30))
    assert one is not None
    assert other is not None
    assert same_stream(one.entry) is not None
    assert is_same_stream(one.entry, other.entry)
    larger = bytearray(other.entry)
    larger[33] += 2
    assert not is_same_stream(one.entry, bytes(larger))
    mpeg4 = sample_table(BytesRangeReader(clip("mpeg4")))
    assert mpeg4 is not None
    assert same_stream(mpeg4.entry) is None
