"""Raw frames of several cameras as video: whatever an encoder waits for, the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import LIMIT_S
from warpdata.episodes.forms import directory as encoding
from warpdata.episodes.forms.directory import RawCamera, encode_cameras
from warpdata.episodes.record.camera import VideoFile
from warpdata.formats.episodedir.documents import FrameShape, VideoOptions


def blocks(count: int) -> Iterator[tuple[Any, Sequence[int]]]:
    rng = np.random.default_rng(count)
    for first in range(0, count, 4):
        times = range(first, min(first + 4, count))
        yield rng.integers(0, 255, (len(times), 32, 48, 3), np.uint8), [each * 1000 for each in times]


def camera(base: Path, count: int, finished: dict[str, int]) -> RawCamera:
    def finish(file: VideoFile) -> None:
        found = file.commit(base.with_suffix(".mp4"), base.with_suffix(".frames.parquet"))
        finished[base.name] = found["count"]

    shape, options = FrameShape(32, 48, 3, "uint8"), VideoOptions(codec="h264", fps=10.0)
    return RawCamera(partial(VideoFile, base, shape, options, durable=False), blocks(count), finish)


def test_encoders_are_drained_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "usable_cores", lambda: 3)
    together, drain = threading.Barrier(3, timeout=LIMIT_S), VideoFile.drain

    def drained(self: VideoFile) -> None:
        if self.waits:
            together.wait()  # broken, and an error, unless all three come here at once
        drain(self)

    monkeypatch.setattr(VideoFile, "drain", drained)
    finished: dict[str, int] = {}
    encode_cameras(
        [camera(tmp_path / name, count, finished) for name, count in zip("abc", (9, 4, 14), strict=True)]
    )
    assert finished == {"a": 9, "b": 4, "c": 14}


def test_an_encoder_that_fails_at_its_end_fails_the_work_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, closed = VideoFile.drain, []

    def drained(self: VideoFile) -> None:
        if self.path.stem == "b":
            raise ValueError("it did not come out")
        drain(self)

    close = VideoFile.close
    monkeypatch.setattr(VideoFile, "drain", drained)
    monkeypatch.setattr(VideoFile, "close", lambda self: (closed.append(self.path.stem), close(self)))
    finished: dict[str, int] = {}
    with pytest.raises(ValueError, match="it did not come out"):
        encode_cameras([camera(tmp_path / name, 5, finished) for name in "ab"])
    assert not finished
    assert set(closed) == {"a", "b"}
