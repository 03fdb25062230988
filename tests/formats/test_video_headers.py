"""Video files whose titles are no text: their pictures are read all the same, with every version of the library."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.catalog.read.media import decode_video_frame
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.episodedir import video
from warpdata.formats.episodedir.frame_index import (
    FrameIndex,
    FrameReader,
    list_frames,
    locate_frames,
    plan_of,
)
from warpdata.formats.episodedir.images import FrameShape, Stream
from warpdata.formats.episodedir.scaling import view_image
from warpdata.formats.episodedir.signal_file import Description


@pytest.fixture
def titled(tmp_path: Path) -> Path:
    """A clip whose title is not UTF-8."""
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as out:
        out.metadata["title"] = "ABCDEFGH"
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 120, np.uint8), format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    data = path.read_bytes()
    assert data.count(b"ABCDEFGH") == 1
    path.write_bytes(data.replace(b"ABCDEFGH", b"\xff\xfe\xfd\x80EFGH"))
    return path


def test_a_camera_is_read(titled: Path) -> None:
    found, places, keys, times = video.list_packets(str(titled), str(titled))
    assert (found.width, found.height) == (32, 32)
    assert (len(places), len(times), bool(keys[0])) == (3, 3, True)
    assert video.probe(str(titled)) == found


def test_a_published_clip_is_read(titled: Path) -> None:
    assert abs(int(decode_video_frame(io.BytesIO(titled.read_bytes()), 0.1, "clip").mean()) - 120) < 6


@pytest.mark.parametrize("end", ["discard", "forget"])
def test_an_encoder_that_is_let_go_writes_nothing_more(end: str) -> None:
    """In a process of its own: some versions of the library crash when they collect an open encoder."""
    code = f"""
import gc, io, numpy as np
from warpdata.formats.episodedir.images import FrameShape, VideoOptions
from warpdata.formats.episodedir.video import VideoEncoder
frame, sink = np.zeros((64, 64, 3), np.uint8), io.BytesIO()
encoder = VideoEncoder(sink, FrameShape.of(frame), VideoOptions(codec="h264"))
encoder.encode(frame)
encoder.encode(frame)
written, encoder.itself = sink.tell(), encoder
if {end!r} == "discard":
    encoder.discard()
del encoder
gc.collect()
assert sink.tell() == written > 0, (sink.tell(), written)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("left", "words"),
    [(None, "the video file is missing"), (b"", "not a readable video"), (b"no video" * 99, "not a readable video")],
    ids=["missing", "empty", "other bytes"],
)  # fmt: skip
def test_what_is_no_video_is_named(tmp_path: Path, left: bytes | None, words: str) -> None:
    path = tmp_path / "gone.mp4"
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(CorruptLayoutError, match=rf"{words}.*gone\.mp4"):
        video.probe(str(path))


def test_a_folder_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="video"):
        video.probe(str(tmp_path))


def test_a_codec_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CorruptLayoutError, match="no decoder for video codec 'crayon'"):
        video.VideoDecoder(Stream("crayon", "yuv420p", 32, 32, b""), FrameShape(32, 32, 3, "uint8"))


def test_pictures_that_are_smaller_than_the_camera_are_refused() -> None:
    picture = video.VideoPicture(av.VideoFrame(32, 32, "yuv420p"), FrameShape(64, 64, 3, "uint8"))
    with pytest.raises(CorruptLayoutError, match="video of 32x32, expected"):
        picture.write(np.zeros((64, 64, 3), np.uint8), None)


def test_an_index_of_another_length_than_its_video_is_refused(titled: Path) -> None:
    stamps = np.arange(4, dtype=np.int64)
    with pytest.raises(CorruptLayoutError, match="the video has 3 frames, its index 4"):
        locate_frames(FrameIndex(Description("image", "u8", ()), stamps), FileRangeReader(titled))
    found = locate_frames(FrameIndex(Description("image", "u8", ()), stamps[:3]), FileRangeReader(titled))
    assert found.shape == FrameShape(32, 32, 3, "uint8")


@pytest.mark.parametrize("matrix", ["YCgCo", "bt2020c", "bt709"])
def test_videos_with_rare_meanings_of_colour_are_read(tmp_path: Path, matrix: str) -> None:
    """The converter refuses some of them: those are shown as if the video did not say."""
    path, rng = tmp_path / "clip.mp4", np.random.default_rng(1)
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("libx264", rate=10, options={"x264-params": f"colormatrix={matrix}"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            image = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    with FileRangeReader(path) as reader:
        index, _ = list_frames(reader)
        assert index.stream is not None
        assert index.shape is not None
        frames = FrameReader(reader, plan_of(index), index.stream, index.shape)
        whole, small = frames.frames(np.arange(3)), np.empty((3, 24, 32, 3), np.uint8)
        view = view_image(48, 64, None, (24, 32), "stretch")
        frames.visit(np.arange(3), lambda place, picture: picture.write(small[place], view))
    clip = decode_video_frame(io.BytesIO(path.read_bytes()), 0.0, "clip")
    assert np.array_equal(clip, whole[0])
    assert whole.std() > 10
    assert abs(float(whole.mean()) - float(small.mean())) < 4
