"""Reading an episode while it is recorded: what was acknowledged is there, and new records as they come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_single_writers import die
from tests.waiting import LIMIT_S, until
from warpdata.errors import BlobNotFoundError, JournalInUseError


def test_values_are_there_as_soon_as_they_are_acknowledged(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated", static={"task": "pick"}) as rec:
        rec.append("x", 0.0, 0)
        until(lambda: wd.open(tmp_path / "root").unfinished, "nothing is there")
        live = wd.open(tmp_path / "root").live()
        assert live.is_live
        for k in range(1, 3000):
            rec.append("x", float(k), k)
            rec.append("text", f"{k}", k)
            if k % 500 == 1:
                episode = live.refresh()
                assert episode["x"].values().tolist() == list(range(k + 1))
                assert [value for value, _ in episode["text"]][-1] == f"{k}"
        before = live.episode["x"]
        rec.mark(success=True)
        assert dict(live.refresh().static) == {"task": "pick", "success": True}
        assert before.values().tolist() == list(range(len(before)))  # what was read does not change
        until(lambda: live.status() is not None and live.status().signals["x"].records == 3000, "no status")
    assert not live.is_live
    assert len(live.refresh()["x"]) == 3000
    assert live.status() is None
    with pytest.raises(BlobNotFoundError, match="no episode is being recorded"):
        wd.open(tmp_path / "root").live()


def test_a_row_is_read_whole(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        rec.step({"a": 0.0, "b": 0.0}, ts_ns=0)
        until(lambda: wd.open(tmp_path / "root").unfinished, "nothing is there")
        live = wd.open(tmp_path / "root").live()
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                episode = live.refresh()
                assert len(episode["a"]) == len(episode["b"])

        reader = threading.Thread(target=look)
        reader.start()
        for k in range(1, 2000):
            rec.step({"a": float(k), "b": float(k)}, ts_ns=k)
        done.set()
        reader.join()
        assert len(live.refresh()["b"]) == 2000


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_following_gives_every_record_once_and_ends_with_the_recording(tmp_path: Path, ends: str) -> None:
    received: list[Any] = []

    def follow() -> None:
        live = wd.open(tmp_path / "root").live(timeout_s=LIMIT_S)
        (tmp_path / "following").touch()
        received.extend(live)

    (tmp_path / "root").mkdir()
    reader = threading.Thread(target=follow)
    reader.start()

    def record() -> None:
        rec = wd.record(tmp_path / "root", clock="simulated")
        for k in range(400):
            rec.append("x", np.float32([k, -k]), 2 * k)
            if k % 4 == 0:
                rec.append("cam", np.full((16, 16, 3), k // 4 % 250, np.uint8), 2 * k + 1)
            until(lambda k=k: k < 300 or (tmp_path / "following").exists(), "no process follows")
        if ends == "closed":
            rec.close()

    if ends == "closed":
        record()
    else:
        die(record)
    reader.join(LIMIT_S)
    assert not reader.is_alive()
    values = [record for record in received if record.signal == "x"]
    assert [record.ts_ns for record in values] == [2 * k for k in range(400)]
    assert [record.value.tolist() for record in values[:2]] == [[0.0, 0.0], [1.0, -1.0]]
    frames = [record for record in received if record.signal == "cam"]
    assert [record.ts_ns for record in frames] == [8 * k + 1 for k in range(len(frames))]
    assert len(frames) == 100 if ends == "closed" else len(frames) <= 100


def test_frames_are_those_of_complete_groups(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        rec.declare("cam", kind="image", video=wd.VideoOptions(gop_size=5))
        for k in range(23):
            rec.append("cam", np.full((16, 16, 3), 10 * k, np.uint8), k)
        live = wd.open(tmp_path / "root").live(timeout_s=LIMIT_S)
        until(lambda: len(live.refresh().get("cam", ())) == 20, "frames are missing")
        assert [round(float(image.mean()) / 10) for image, _ in live.episode["cam"]] == list(range(20))


@pytest.mark.parametrize("episode", [None, "take"])
def test_a_recording_into_one_file_is_read_and_then_the_file(tmp_path: Path, episode: str | None) -> None:
    target = tmp_path / "take-1.wshard"
    with wd.record(target, clock="simulated", episode=episode) as rec:
        rec.append("x", 0.0, 0)
        live = wd.open_live(target, timeout_s=LIMIT_S)
        assert live.is_live
        assert live.id == "take-1"
        for k in range(1, 100):
            rec.append("x", float(k), k)
            rec.append("cam", np.full((16, 16, 3), k, np.uint8), k)
        assert live.refresh()["x"].values().tolist() == list(range(100))
        until(lambda: len(live.refresh().get("cam", ())) >= 80, "frames are missing")
        with pytest.raises(JournalInUseError, match="not finished") as caught:
            wd.open(target)
        assert "open_live" in caught.value.hint
    assert not live.is_live
    received = list(live.follow())
    assert [record.ts_ns for record in received if record.signal == "x"] == list(range(100))
    assert len(live.episode["cam"]) == 99
    assert live.episode.id == "take-1"
    with pytest.raises(BlobNotFoundError, match="no episode is being recorded"):
        wd.open_live(target)


def test_an_episode_directory_is_read_while_it_is_recorded(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("x", 1, 1)
        assert len(wd.open_live(tmp_path / "ep").refresh()["x"]) == 1
    for nothing in (tmp_path / "ep", tmp_path / "other", tmp_path / "other.wshard"):
        with pytest.raises(BlobNotFoundError, match="no episode is being recorded"):
            wd.open_live(nothing)
