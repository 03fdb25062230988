"""A floor of free space: the recorder warns ahead, stops there, and keeps everything."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_full_disk import disk
from tests.waiting import until
from warpdata.episodes.record import status
from warpdata.errors import OutOfSpaceError

__all__ = ["disk"]


@pytest.mark.parametrize("name", ["root", "one.wshard"])
def test_the_recorder_stops_at_the_floor_and_keeps_everything(disk: Path, name: str) -> None:
    (disk / "ballast").unlink()
    count = 0
    with pytest.raises(OutOfSpaceError, match="min_free"), wd.record(disk / name, min_free="45MB") as rec:

        def append() -> None:
            nonlocal count
            rec.append("noise", np.random.default_rng(count).random(2000))
            count += 1

        until(append, "the floor is not noticed", pause_s=0.002)
    episode = wd.open(disk / name) if name.endswith(".wshard") else wd.open(disk / name)[0]
    assert len(episode["noise"]) == count > 0
    assert "OutOfSpaceError" in episode.meta["interrupted"]
    assert shutil.disk_usage(disk).free > 0


def test_too_little_free_space_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with (
        wd.record(tmp_path / "root", min_free="1000000TB") as rec,
        pytest.raises(OutOfSpaceError, match="free"),
    ):
        rec.append("x", 1.0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not a size"):
        wd.record(tmp_path / "root", min_free="much")


def test_a_disk_that_fills_is_reported_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk loses 1 MB with each look at it."""
    free = iter(range(10**9, 0, -(10**6)))
    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=next(free)))
    monkeypatch.setattr(status, "shutil", usage)
    monkeypatch.setattr(status, "_LONG_S", 1.0)
    with (
        caplog.at_level(logging.WARNING, "warpdata.record"),
        wd.record(tmp_path / "root", min_free=10**8) as rec,
    ):
        rec.append("x", 1.0)
        until(lambda: bool(caplog.records), "nothing is reported")
        rec.append("x", 2.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "left at this rate" in caplog.text
    assert len(wd.open(tmp_path / "root")[0]["x"]) == 2


def test_raw_frames_that_wait_are_no_reason_to_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They take space for a moment: what counts is the rate at which the rest grows."""
    work, total = tmp_path / "work", 10**9
    work.mkdir()

    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=total - status.used_bytes(work))

    monkeypatch.setattr(status, "shutil", SimpleNamespace(disk_usage=usage))
    monkeypatch.setattr(status, "_LONG_S", 0.0)
    monitor = status.Monitor(tmp_path, work, 10**8, dict)
    with caplog.at_level(logging.WARNING, "warpdata.record"):
        for number in range(5):
            (work / f"frames-1-{number:06d}.journal").write_bytes(bytes(1 << 20))
            assert monitor.look(lambda: 0) is None
        assert monitor.status().left_s is None
        assert monitor.status().free_bytes <= total - 5 * (1 << 20)
    assert not caplog.records
