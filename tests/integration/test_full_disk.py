"""A disk that runs full while cameras and signals are recorded: an error, and everything acknowledged is kept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.integration.full_disk import values
from tests.integration.nursery import run_small

DISK = "96m"
BALLAST_BYTES = 48 << 20
"""Taken away before salvage: finishing the files needs some room."""


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
    found = run_small("tests.integration.full_disk", disk, how, end)
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
