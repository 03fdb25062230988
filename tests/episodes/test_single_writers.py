"""Writers of single signals: journaled like an episode, so what they acknowledged survives."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    JournalInUseError,
    SchemaMismatchError,
    TimestampOrderError,
    WriterClosedError,
)

COUNT = 25


def image(number: int) -> np.ndarray[Any, Any]:
    return np.full((16, 24, 3), number * 8, np.uint8)


def simple(folder: Path) -> wd.SimpleSignalWriter:
    return wd.SimpleSignalWriter(folder / "state.parquet", units="rad", overwrite=True, names=("a", "b", "c"))


def video(folder: Path) -> wd.VideoSignalWriter:
    return wd.VideoSignalWriter(folder / "cam.mp4", folder / "cam.frames.parquet", overwrite=True)


def fill(writer: wd.SignalWriter, *, is_video: bool) -> None:
    for i in range(COUNT):
        writer.append(image(i) if is_video else np.full(3, i, "f4"), i * 10)


def die(work: Callable[[], object]) -> None:
    """Do something in a process that ends without any clean-up, as by kill -9."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def check_numbers(folder: Path) -> None:
    signal = wd.SimpleSignal(folder / "state.parquet")
    assert signal.values()[:, 0].tolist() == list(range(COUNT))
    assert signal.timestamps.tolist() == [i * 10 for i in range(COUNT)]
    assert (signal.meta.units, signal.meta.names) == ("rad", ("a", "b", "c"))


def check_images(folder: Path) -> None:
    signal = wd.VideoSignal(folder / "cam.mp4", folder / "cam.frames.parquet")
    assert signal.timestamps.tolist() == [i * 10 for i in range(COUNT)]
    means = signal.values().reshape(COUNT, -1).mean(axis=1)
    assert np.abs(means - [i * 8 for i in range(COUNT)]).max() < 4


def test_salvage_by_the_name_of_the_file(tmp_path: Path) -> None:
    die(lambda: (fill(simple(tmp_path), is_video=False), fill(video(tmp_path), is_video=True)))
    with pytest.raises(JournalInUseError, match="not finished") as caught:
        len(wd.SimpleSignal(tmp_path / "state.parquet"))
    assert "warp salvage" in caught.value.hint
    with pytest.raises(JournalInUseError, match="not finished"):
        len(wd.VideoSignal(tmp_path / "cam.mp4", tmp_path / "cam.frames.parquet"))
    with pytest.raises(JournalInUseError, match="never finished"):
        simple(tmp_path).append(np.zeros(3, "f4"), 0)
    receipt = wd.salvage(tmp_path / "state.parquet")
    assert receipt.is_complete
    assert (receipt.steps_kept, receipt.output) == (COUNT, str(tmp_path / "state.parquet"))
    assert wd.salvage(tmp_path / ".cam.mp4.recording").is_complete
    check_numbers(tmp_path)
    check_images(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state.parquet", "cam.mp4", "cam.frames.parquet"}
    with pytest.raises(BlobNotFoundError):
        wd.salvage(tmp_path / "other.parquet")


def test_warp_salvage_takes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    die(lambda: (fill(simple(tmp_path), is_video=False), fill(video(tmp_path), is_video=True)))
    assert main(["salvage", str(tmp_path), "--json"]) == 0
    receipts = json.loads(capsys.readouterr().out)
    assert sorted(Path(each["output"]).name for each in receipts) == ["cam.mp4", "state.parquet"]
    check_numbers(tmp_path)
    check_images(tmp_path)


def test_a_live_writer_is_left_alone(tmp_path: Path) -> None:
    writer = simple(tmp_path)
    fill(writer, is_video=False)
    with pytest.raises(JournalInUseError, match="being recorded"):
        wd.salvage(tmp_path / "state.parquet")
    with pytest.raises(JournalInUseError):
        simple(tmp_path).append(np.zeros(3, "f4"), 0)
    assert main(["salvage", str(tmp_path)]) == 0
    writer.close()
    check_numbers(tmp_path)


def test_death_between_the_video_and_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an older recording lie under both names: they must not be taken for this one."""
    with video(tmp_path) as old:
        old.append(image(1), 5)
    from warpdata.episodes.record import camera

    def killed(*_: object) -> None:
        os._exit(0)

    def work() -> None:
        writer = video(tmp_path)
        fill(writer, is_video=True)
        monkeypatch.setattr(camera, "write_frame_index", killed)
        writer.close()

    die(work)
    assert wd.salvage(tmp_path / "cam.mp4").is_complete
    check_images(tmp_path)
    die(lambda: fill_and_stop_before_removal(tmp_path, monkeypatch))
    assert wd.salvage(tmp_path / "cam.mp4").steps_kept == COUNT
    check_images(tmp_path)


def fill_and_stop_before_removal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.episodes.record import recording

    monkeypatch.setattr(recording.Recording, "_remove", lambda *_: os._exit(0))
    writer = video(folder)
    fill(writer, is_video=True)
    writer.close()


def test_death_while_the_journals_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".state.parquet.recording-done").mkdir()
    (tmp_path / ".state.parquet.recording-done" / "signals.journal").write_bytes(b"left by a crash")
    with simple(tmp_path) as writer:
        fill(writer, is_video=False)
    check_numbers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state.parquet"]


def test_closing_aborting_and_nothing_at_all(tmp_path: Path) -> None:
    for make, value in ((simple, np.zeros(3, "f4")), (video, image(0))):
        with make(tmp_path / "aborted") as writer:
            writer.append(value, 0)
            writer.abort()
        for call in (lambda w=writer, v=value: w.append(v, 1), writer.close, writer.abort):
            with pytest.raises(WriterClosedError):
                call()
        assert list((tmp_path / "aborted").iterdir()) == []
        with make(tmp_path / "empty"):
            pass
    assert len(wd.SimpleSignal(tmp_path / "empty" / "state.parquet")) == 0
    nothing = wd.VideoSignal(tmp_path / "empty" / "cam.mp4", tmp_path / "empty" / "cam.frames.parquet")
    assert (len(nothing), list(nothing), nothing.timestamps.tolist()) == (0, [], [])


def test_misuse_leaves_the_writer_usable(tmp_path: Path) -> None:
    writer = simple(tmp_path)
    for bad, error in ((object(), TypeError), (image(0), SchemaMismatchError), ([], ValueError),
                       (np.zeros(2, "f4"), SchemaMismatchError), (None, TypeError)):  # fmt: skip
        with pytest.raises(error):
            writer.append(bad, 0)
    assert not (tmp_path / "state.parquet").exists()
    for ts_ns in (1.5, True, None, "1", 1 << 63):
        with pytest.raises((TypeError, ValueError)):
            writer.append(np.zeros(3, "f4"), ts_ns)
    fill(writer, is_video=False)
    for bad in (np.zeros(3, "f8"), np.zeros(4, "f4"), "text", b"bytes", 5):
        with pytest.raises(SchemaMismatchError):
            writer.append(bad, 1000)
    with pytest.raises(TimestampOrderError, match="not increasing"):
        writer.append(np.zeros(3, "f4"), (COUNT - 1) * 10)
    writer.close()
    check_numbers(tmp_path)


def test_what_cannot_be_encoded_is_an_error_of_the_next_call_and_kept_lossless(tmp_path: Path) -> None:
    """The encoder is opened in the background: what was acknowledged before it refused comes back all the same."""
    frame = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    single = wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "v.parquet", codec="hevc")
    episode = wd.DiskEpisodeWriter(tmp_path / "ep", video=wd.VideoOptions(codec="hevc"))
    for append, close in (
        (lambda i: single.append(frame, i), single.close),
        (lambda i: episode.append("cam", frame, i), episode.close),
    ):
        with pytest.raises(ValueError, match="cannot encode"):
            for i in range(10**9):
                append(i)
        episode.append("x", 1, len(episode.counts()))
        with pytest.raises(ValueError, match="cannot encode"):
            close()
    assert wd.salvage(tmp_path / "v.mp4").is_complete
    assert wd.salvage(tmp_path / "ep").is_complete
    alone = wd.VideoSignal(tmp_path / "v.mkv", tmp_path / "v.parquet")
    together = wd.open_episode(tmp_path / "ep")
    assert set(together.keys) == {"cam", "x"}
    for signal in (alone, together["cam"]):
        assert len(signal) >= 1
        assert np.array_equal(signal[0][0], frame)


def test_what_no_encoder_takes_is_refused_where_it_is_declared(tmp_path: Path) -> None:
    wrong = wd.VideoOptions(preset="veryquick")
    with wd.DiskEpisodeWriter(tmp_path / "ep") as episode:
        with pytest.raises(ValueError, match="cannot encode"):
            episode.declare("cam", video=wrong)
        episode.append("x", 1, 0)
    with wd.record(tmp_path / "root") as rec, pytest.raises(ValueError, match="cannot encode"):
        rec.declare("cam", kind="image", video=wrong)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5)])
def test_the_smallest_images(tmp_path: Path, shape: tuple[int, int]) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(12):
            writer.append("depth", np.full(shape, i * 5000, np.uint16), i)
            writer.append("gray", np.full(shape, i * 20, np.uint8), i)
            writer.append("colour", np.full((*shape, 3), i * 20, np.uint8), i)
    episode = wd.open_episode(tmp_path / "ep")
    assert episode["depth"].values().reshape(12, -1)[:, 0].tolist() == [i * 5000 for i in range(12)]
    assert episode["gray"].values().reshape(12, -1)[:, 0].tolist() == [i * 20 for i in range(12)]
    assert episode["colour"][11][0].shape == (*shape, 3)


def test_a_journal_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    from warpdata.episodes.salvage.unfinished import signal_files

    work = tmp_path / ".cam.mp4.recording"
    for files in ({"data": "../cam.mp4"}, {"data": 5}, {}, [], {"data": "other.mp4"},
                  {"data": "cam.mp4", "frames": "../x"}):  # fmt: skip
        with pytest.raises(CorruptLayoutError):
            signal_files(work, {"files": files})
    assert signal_files(work, {"files": {"data": "cam.mp4", "frames": "f"}}) == (
        tmp_path / "cam.mp4", tmp_path / "f")  # fmt: skip


@pytest.mark.parametrize("is_index", [False, True])
def test_a_file_that_lies_elsewhere_is_never_replaced_by_a_frame_index(
    tmp_path: Path, is_index: bool
) -> None:
    """Whatever a journal names: a file of somebody else, or the index of another video with the same times."""

    def record(folder: Path, grey: int) -> wd.VideoSignalWriter:
        (folder / "apart").mkdir(parents=True)
        writer = wd.VideoSignalWriter(folder / "cam.mp4", folder / "apart" / "cam.frames.parquet")
        for step in range(5):
            writer.append(np.full((48, 64, 3), grey, np.uint8), step)
        return writer

    child = os.fork()
    if child == 0:
        record(tmp_path / "new", 30)
        os._exit(0)
    os.waitpid(child, 0)
    there = tmp_path / "new" / "apart" / "cam.frames.parquet"
    there.write_bytes(b"somebody's")
    if is_index:
        record(tmp_path / "old", 200).close()
        there.write_bytes((tmp_path / "old" / "apart" / "cam.frames.parquet").read_bytes())
    before = there.read_bytes()
    receipt = wd.salvage(tmp_path / "new" / "cam.mp4")
    assert not receipt.is_complete
    assert there.read_bytes() == before
    assert list(there.parent.iterdir()) == [there]
    assert Path(str(receipt.kept_aside)).is_dir()


def test_two_dimensions_are_a_tensor(tmp_path: Path) -> None:
    with wd.SimpleSignalWriter(tmp_path / "t.parquet") as writer:
        for i in range(5):
            writer.append(np.full((2, 3), i, np.uint8), i)
    signal = wd.SimpleSignal(tmp_path / "t.parquet")
    assert (signal.meta.kind, signal.meta.shape, signal[3][0].tolist()) == ("tensor", (2, 3), [[3] * 3] * 2)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_salvage_with_another_encoder_than_the_recorders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """After an upgrade of FFmpeg new frames may not fit behind the old header: all are encoded again."""
    from warpdata.formats.episodedir import video as adapter

    scenes = [picture(i) if suffix == ".mp4" else picture(i)[:, :, 0] for i in range(COUNT)]
    path, frames = tmp_path / f"cam{suffix}", tmp_path / "cam.frames.parquet"

    def work() -> None:
        writer = wd.VideoSignalWriter(path, frames)
        for i, scene in enumerate(scenes):
            writer.append(scene, i)
        time.sleep(0.5)  # some frames leave the journal, the last ones stay

    die(work)
    original = adapter._codec_options
    changes = {"profile": "baseline"} if suffix == ".mp4" else {"context": "1"}
    monkeypatch.setattr(adapter, "_codec_options", lambda *args: {**original(*args), **changes})
    receipt = wd.salvage(path)
    assert (receipt.is_complete, receipt.steps_kept) == (True, COUNT)
    found = wd.VideoSignal(path, frames)
    assert found.timestamps.tolist() == list(range(COUNT))
    for i, scene in enumerate(scenes):
        error = np.abs(found[i][0].astype(int) - scene).mean()
        assert error < (6 if suffix == ".mp4" else 1e-9), (i, error)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def picture(number: int) -> np.ndarray[Any, Any]:
    rows, columns = np.mgrid[0:48, 0:64]
    wave = 128 + 80 * np.sin((rows + columns) / 15 + number / 4)
    return np.stack([wave, wave * 0.8, 255 - wave], 2).astype(np.uint8)
