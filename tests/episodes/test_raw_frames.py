"""Raw frames wait in memory for the encoder: the disk sees their video."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import until
from warpdata.bytekit.process import system
from warpdata.episodes.record import camera, threads
from warpdata.formats.episodedir import containers
from warpdata.formats.journal import writer as journal_writer

FRAMES, SHAPE = 120, (48, 64, 3)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many bytes of each journal were brought to the disk."""
    found: dict[str, int] = {}
    sync_range = journal_writer.sync_range

    def counted(fd: int, start: int, end: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        found[name] = found.get(name, 0) + end - start
        sync_range(fd, start, end)

    monkeypatch.setattr(journal_writer, "sync_range", counted)
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


@pytest.mark.parametrize("folder", [None, "/nowhere"])
def test_raw_frames_are_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    if folder is not None:
        monkeypatch.setattr(system, "SHARED_MEMORY", folder)
    work = tmp_path / "ep" / ".recording"
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("cam", np.zeros(SHAPE, np.uint8), 0)
        until(lambda: list(work.glob("frames-*")), "no slots are made")
        [path] = work.glob("frames-*")
        assert path.is_symlink() == (system.memory_folder(0) is not None)
        place = path.resolve()
        writer.append("cam", np.ones(SHAPE, np.uint8), 1)
    assert not place.exists()
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == 2


def test_frames_in_memory_that_are_gone_are_said(tmp_path: Path) -> None:
    """As after a restart of the machine: everything else comes back, and the receipt names the journal."""
    child = os.fork()
    if child == 0:
        writer = wd.DiskEpisodeWriter(tmp_path / "ep")
        for i in range(30):
            writer.append("cam", np.full(SHAPE, i, np.uint8), i)
            writer.append("x", i, i)
            until(lambda: any((tmp_path / "ep").rglob("frames-*")), "no slots are made")
        os._exit(0)
    os.waitpid(child, 0)
    [path] = (tmp_path / "ep").rglob("frames-1-*")
    path.resolve().unlink()
    receipt = wd.salvage(tmp_path / "ep")
    assert not receipt.is_complete
    assert path.name in str(receipt)
    assert len(wd.open_episode(tmp_path / "ep")["x"]) == 30


@pytest.mark.parametrize(
    ("durability", "least_s", "is_synced"),
    [("10ms", 0.0, True), ("10ms", 1e9, False), ("none", 0.0, False), ("record", 1e9, True)],
)
def test_video_is_synced_once_in_a_period_and_before_raw_frames_go_where_nothing_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, least_s: float, is_synced: bool
) -> None:
    events: list[str] = []
    for owner, name in ((containers.VideoSink, "sync"), (camera.FrameSlots, "release")):
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
        until(lambda: "release" in events, "no slot is free again")
        seen = list(events)
    assert ("sync" in seen) == is_synced
    if durability == "record":
        assert seen[0] == "sync"
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == FRAMES


BEGIN: dict[str, Callable[[Path], Any]] = {
    "root": lambda path: wd.record(path / "root"),
    "file": lambda path: wd.record(path / "ep.wshard"),
    "shared": lambda path: wd.record(path / "root", episode="take"),
    "directory": lambda path: wd.DiskEpisodeWriter(path / "ep"),
    "video": lambda path: wd.episodes.VideoSignalWriter(path / "cam.mp4", path / "cam.frames"),
}


@pytest.mark.parametrize("ending", ["close", "discard", "error"])
@pytest.mark.parametrize("name", BEGIN)
def test_nothing_stays_in_memory_when_a_recording_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ending: str
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(system, "SHARED_MEMORY", str(memory))
    monkeypatch.setattr(system, "memory_folder", lambda _: str(memory))
    writer = BEGIN[name](tmp_path)
    add = partial(writer.append) if name == "video" else partial(writer.append, "cam")
    with contextlib.suppress(KeyError), contextlib.nullcontext() if ending != "error" else writer:
        for i in range(20):
            add(np.full(SHAPE, i, np.uint8), i)
            until(lambda: any(memory.iterdir()), "no frame went to memory")
        if ending == "error":
            raise KeyError("the program of the user failed")
    if ending != "error":
        (writer.close if ending == "close" else getattr(writer, "discard", None) or writer.abort)()
    assert list(memory.iterdir()) == []
