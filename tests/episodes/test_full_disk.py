"""A disk that runs full while cameras and signals are recorded: an error, and everything acknowledged is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.full_disk import values
from tests.episodes.nursery import run_small
from warpdata.bytekit.process import system
from warpdata.episodes.record.tables import TableFile
from warpdata.errors import OutOfSpaceError, PermissionError_, StoreError

DISK = "192m"
BALLAST_BYTES = 144 << 20
"""Taken away before salvage: raw frames that waited in memory become files then."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode:
        pytest.skip("a disk can only be mounted by root")
    try:
        (place / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("end", ["close", "exit", "kill"])
@pytest.mark.parametrize("how", ["episode", "numbers", "video"])
def test_a_full_disk_loses_nothing(disk: Path, how: str, end: str) -> None:
    found = run_small("tests.episodes.full_disk", disk, how, end)
    assert set(found["errors"]) == {"OutOfSpaceError"}
    (disk / "ballast").unlink()
    signals = episode_signals(disk) if how == "episode" else single_signal(disk, how)
    assert set(signals) == set(found["counts"])
    for name, acknowledged in found["counts"].items():
        kept = len(signals[name])
        assert acknowledged <= kept <= acknowledged + 1, name
        assert signals[name].timestamps.tolist() == list(range(kept))
        for step in {0, kept // 2, kept - 1}:
            value = signals[name][step][0]
            assert np.array_equal(value, dict(values(how, step))[name]), (name, step)


def episode_signals(disk: Path) -> dict[str, wd.Signal]:
    dataset = wd.LocalDataset(disk)
    for each in dataset.unfinished:
        assert wd.salvage(each.path).steps_lost == 0
    dataset.refresh()
    return dict(dataset[0].signals)


def single_signal(disk: Path, how: str) -> dict[str, wd.Signal]:
    data = disk / ("state.parquet" if how == "numbers" else "cam.mkv")
    if not data.exists():
        assert wd.salvage(data).steps_lost == 0
    if how == "numbers":
        return {"state": wd.SimpleSignal(data)}
    return {"cam/left": wd.VideoSignal(data, disk / "cam.frames.parquet")}


def test_notes_of_encoded_frames_written_in_part_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may take some whole notes and refuse the rest, and have room again a moment later."""
    whole, calls = system._write_some, iter(range(1_000_000))

    def in_part(fd: int, pieces: list[memoryview], offset: int) -> int:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(".marks"):
            return whole(fd, pieces, offset)
        turn = next(calls)
        if turn == 2:
            raise OSError(errno.ENOSPC, "full")
        return whole(fd, pieces[:2] if turn == 1 else pieces, offset)

    monkeypatch.setattr(system, "_write_some", in_part)
    writer = wd.VideoSignalWriter(tmp_path / "v.mkv", tmp_path / "f.parquet", gop_size=5)
    acknowledged = 0
    with contextlib.suppress(OutOfSpaceError):
        for step in range(400):
            writer.append(next(values("video", step))[1], step)
            acknowledged = step + 1
    with contextlib.suppress(OutOfSpaceError):
        writer.close()
    assert next(calls) > 2
    if not (tmp_path / "v.mkv").exists():
        assert wd.salvage(tmp_path / "v.mkv").steps_lost == 0
    signal = wd.VideoSignal(tmp_path / "v.mkv", tmp_path / "f.parquet")
    assert signal.timestamps.tolist() == list(range(len(signal)))
    assert len(signal) >= acknowledged


@pytest.mark.parametrize("error", [OutOfSpaceError, PermissionError_])
def test_salvage_without_room_leaves_the_recording_to_be_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    for step in range(20):
        writer.append("arm/state", np.full(3, step), step)
        writer.append("note", f"step {step}", step)
    writer._leave()

    def full(*_: Any) -> None:
        raise error("no room", path=tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(TableFile, "commit", full)
        with pytest.raises(error):
            wd.salvage(tmp_path / "ep")
    receipt = wd.salvage(tmp_path / "ep")
    assert receipt.channels == {"arm/state": 20, "note": 20}
    assert not receipt.damage
