"""Raw frames wait in memory for the encoder: the disk sees their video."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import until
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.episodes.record import camera, threads
from warpdata.formats.episodedir import containers
from warpdata.formats.journal import mapped_file
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.journal.writer import JournalWriter

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


@pytest.mark.parametrize(
    ("durability", "least_s", "is_synced"),
    [("10ms", 0.0, True), ("10ms", 1e9, False), ("none", 0.0, False), ("record", 1e9, True)],
)
def test_video_is_synced_once_in_a_period_and_before_raw_frames_go_where_nothing_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, least_s: float, is_synced: bool
) -> None:
    events: list[str] = []
    for owner, name in ((containers.VideoSink, "sync"), (mapped_file.MappedFile, "release")):
        call = getattr(owner, name)

        def noted(*args: Any, name: str = name, call: Any = call) -> Any:
            events.append(name)
            return call(*args)

        monkeypatch.setattr(owner, name, noted)
    monkeypatch.setattr(threads, "VIDEO_S", least_s)
    with wd.DiskEpisodeWriter(tmp_path / "ep", durability=durability) as writer:
        for i in range(FRAMES):
            writer.append("cam", np.full(SHAPE, i, np.uint8), i)
            time.sleep(0.002)
        until(lambda: "release" in events, "no space is given back")
        seen = list(events)
    assert ("sync" in seen) == is_synced
    if durability == "record":
        assert seen[0] == "sync"
        assert seen.count("sync") >= seen.count("release")
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == FRAMES


def test_space_is_given_back_in_whole_pages_and_reads_as_zeros(tmp_path: Path) -> None:
    with contextlib.closing(JournalWriter(tmp_path / "j", {"kind": "x"}, max_record_bytes=10_000)) as journal:
        ends = [journal.append(1, k, 1, k, bytes([k + 1]) * 9000) for k in range(5)]
        journal.release(ends[3])
        data = (tmp_path / "j").read_bytes()
        assert data[4096 : ends[3]] == bytes(ends[3] - 4096)
        assert data[ends[3] + 32 :][:9000] == b"\4" * 9000
        assert (tmp_path / "j").stat().st_blocks * 512 < 3 << 20
        journal.release(ends[2])  # again, and less: nothing happens
        journal.release(ends[4])
        scan = JournalReader.open(FileRangeReader(tmp_path / "j")).scan(ends[4])
    assert scan.records.first_step.tolist() == [4]
    assert not scan.lost
