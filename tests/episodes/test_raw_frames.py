"""Raw frames wait in memory for the encoder: the disk sees their video, and raw only those that wait too long."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import until
from warpdata.episodes.record import camera
from warpdata.formats.journal import mapped_file

FRAMES, SHAPE = 120, (48, 64, 3)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many bytes of each journal were brought to the disk."""
    found: dict[str, int] = {}
    sync_range = mapped_file.sync_range

    def counted(fd: int, start: int, end: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        found[name] = found.get(name, 0) + end - start
        sync_range(fd, start, end)

    monkeypatch.setattr(mapped_file, "sync_range", counted)
    return found


def record(folder: Path, durability: str, pause_s: float = 0.0) -> None:
    with wd.DiskEpisodeWriter(folder, durability=durability) as writer:
        for i in range(FRAMES):
            writer.append("cam", np.full(SHAPE, i, np.uint8), i)
            writer.append("x", i, i)
            time.sleep(pause_s)
    assert len(wd.open_episode(folder)["cam"]) == FRAMES


def raw_bytes(synced: dict[str, int]) -> int:
    return sum(size for name, size in synced.items() if name.startswith("frames-"))


def test_raw_frames_are_never_synced_however_long_they_wait(
    tmp_path: Path, synced: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk gets of a camera is its video: a slow encoder does not make it write every frame twice."""
    encode = camera.VideoFile.encode

    def late(*args: Any) -> Any:
        until(
            lambda: len(list((tmp_path / "ep").rglob("frames-*"))) > 0, "frames get no journal of their own"
        )
        return encode(*args)

    monkeypatch.setattr(camera.VideoFile, "encode", late)
    record(tmp_path / "ep", "1ms", 0.002)
    assert raw_bytes(synced) == 0
    assert synced["signals.journal"] > 0


def test_every_frame_is_synced_where_every_record_is(tmp_path: Path, synced: dict[str, int]) -> None:
    record(tmp_path / "ep", "record")
    assert sum(synced.values()) >= FRAMES * np.prod(SHAPE)  # the first ones lie where all other records do


def test_a_slow_camera_leaves_its_journals_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small frames never fill a journal: they leave it by age, before the kernel writes it to the disk."""
    monkeypatch.setattr(camera, "SEGMENT_S", 0.02)
    work, seen = tmp_path / "ep" / ".recording", set()
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(FRAMES):
            writer.append("cam", np.full(SHAPE, i, np.uint8), i)
            seen |= {path.name for path in work.glob("frames-*")}
            time.sleep(0.005)
        left = {path.name for path in work.glob("frames-*")}
    assert len(seen) >= 4
    assert min(seen) not in left
