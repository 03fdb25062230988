"""Video files whose titles are no text: their pictures are read all the same, with every version of the library."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from warpdata.catalog.media import decode_video_frame
from warpdata.formats.episodedir import video


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
