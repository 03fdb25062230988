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
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.formats.episodedir.mp4 import is_same_stream, same_stream, sample_table
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


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return (len(body) + 8).to_bytes(4, "big") + kind + body


def table(kind: bytes, count: int, *words: int) -> bytes:
    """A table of an MP4 file: how many entries it says it has, and what it has."""
    return box(kind, bytes(4), count.to_bytes(4, "big"), *(word.to_bytes(4, "big") for word in words))


def five_frames(chunks: bytes, runs: bytes) -> bytes:
    """Frames of 1, 2, 3, 4 and 5 bytes in chunks."""
    described = box(b"stsd", bytes(4), (1).to_bytes(4, "big"), box(b"avc1", bytes(78)))
    sizes, pauses = table(b"stsz", 0, 5, 1, 2, 3, 4, 5), table(b"stts", 1, 5, 10)
    stbl = box(b"stbl", described, sizes, pauses, chunks, runs)
    clock, kind = box(b"mdhd", bytes(12), (20).to_bytes(4, "big")), box(b"hdlr", bytes(8), b"vide")
    return box(b"moov", box(b"trak", box(b"mdia", clock, kind, box(b"minf", stbl))))


def test_frames_in_chunks_of_different_lengths() -> None:
    """Two frames, two frames and one, each chunk elsewhere."""
    chunks, runs = table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 1, 2, 1, 3, 1, 1)
    found = sample_table(BytesRangeReader(five_frames(chunks, runs)))
    assert found is not None
    assert found.places.tolist() == [[900, 1], [901, 2], [100, 3], [103, 4], [500, 5]]
    wide = table(b"co64", 3, 0, 900, 0, 100, 0, 500)
    again = sample_table(BytesRangeReader(five_frames(wide, runs)))
    assert again is not None
    assert again.places.tolist() == found.places.tolist()


@pytest.mark.parametrize(
    ("chunks", "runs"),
    [
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 1, 2, 1, 3, 2, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 1, 2, 1, 2, 2, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 2, 2, 1, 3, 1, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 1, 2, 1, 1, 1, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 2, 1, 2, 1, 9, 1, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 3, 1, 5, 1, 2, 0, 1, 3, 0, 1)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 0)),
        (table(b"stco", 3, 900, 100, 500), table(b"stsc", 9, 1, 2, 1)),
        (table(b"stco", 9, 900), table(b"stsc", 1, 1, 5, 1)),
        (table(b"stco", 0), table(b"stsc", 1, 1, 5, 1)),
        (table(b"stco", 1, 900), table(b"stsc", 1, 1, 4, 1)),
    ],
    ids=[
        "a frame too many", "frames too many", "no first chunk", "a run of nothing", "a run past the end",
        "a chunk of nothing", "no runs", "runs that are cut", "chunks that are cut", "no chunks", "a frame too few",
    ],
)  # fmt: skip
def test_chunks_that_do_not_hold_the_frames_are_left_to_ffmpeg(chunks: bytes, runs: bytes) -> None:
    assert sample_table(BytesRangeReader(five_frames(chunks, runs))) is None


def test_an_entry_that_is_damaged_is_no_known_stream() -> None:
    entry = box(b"avc1", bytes(78), box(b"avcC", b"x"))
    assert same_stream(entry) is not None
    damaged = entry.replace((9).to_bytes(4, "big") + b"avcC", (7).to_bytes(4, "big") + b"avcC")
    assert same_stream(damaged) is None
    assert not is_same_stream(damaged, entry)
