"""What killed recorders leave: salvage and the next writer remove it, and every way to look tells of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_single_writers import die
from warpdata.bytekit.io import commit
from warpdata.cli.main import main
from warpdata.episodes.record import recording

CHANNELS = [{"id": "x", "dtype": "f32", "shape": []}]


def record(target: Path, count: int = 5) -> wd.Recorder:
    recorder = wd.record(target, clock="simulated")
    for number in range(count):
        recorder.append("x", float(number), number)
    return recorder


def stream(target: Path) -> wd.WShardStreamWriter:
    writer = wd.WShardStreamWriter(target, "e", CHANNELS, overwrite=True)
    writer.begin_episode()
    writer.write_timestep({"x": 1.0})
    return writer


def leftovers(folder: Path) -> list[str]:
    marks = (commit.TEMP_MARK, "-done", ".recording", ".partial")
    return sorted(path.name for path in folder.rglob("*") if any(mark in path.name for mark in marks))


def die_at(
    function: str, module: object, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `work` in a process that dies where `function` is called."""

    def run() -> None:
        monkeypatch.setattr(module, function, lambda *_, **__: os._exit(0))
        work()

    die(run)


def close_root(folder: Path) -> None:
    record(folder / "root").close()


def close_file(folder: Path) -> None:
    record(folder / "one.wshard").close()


def close_signal(folder: Path) -> None:
    with wd.SimpleSignalWriter(folder / "x.parquet", overwrite=True) as writer:
        writer.append(1.0, 1)


def end_stream(folder: Path) -> None:
    stream(folder / "ep.wshard").end_episode()


CLOSES = [close_root, close_file, close_signal, end_stream]
KILLS = [("_remove_files", recording), ("_move", commit)]


@pytest.mark.parametrize("again", ["salvage", "writer"])
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill[0])
@pytest.mark.parametrize("close", CLOSES, ids=lambda close: close.__name__)
def test_a_kill_while_closing_leaves_nothing_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    close: Callable[[Path], None],
    kill: tuple[str, object],
    again: str,
) -> None:
    die_at(*kill, lambda: close(tmp_path), monkeypatch)
    if again == "salvage" or kill[0] == "_move":
        assert main(["salvage", str(tmp_path)]) == 0
        assert leftovers(tmp_path) == []
    for path in tmp_path.glob("*.wshard"):
        path.unlink()
    close(tmp_path)
    assert leftovers(tmp_path) == []


def test_salvage_of_a_folder_looks_into_the_roots_below(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    for name in ("monday/arm", "tuesday"):
        die(lambda name=name: record(folder / name))
    die(lambda: record(folder / "monday" / "one.wshard"))
    receipt = wd.salvage(folder)
    assert receipt.is_complete
    assert (receipt.steps_kept, len(receipt.parts)) == (15, 3)
    assert len(wd.open(folder / "tuesday")) == len(wd.open(folder / "monday" / "arm")) == 1
    again = wd.salvage(folder)
    assert (again.is_complete, again.parts) == (True, [])
    assert "nothing to salvage" in str(again)


def test_a_root_tells_of_its_unfinished_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    recorder = record(root)
    assert "1 unfinished" in repr(wd.open(root))
    assert main(["salvage", str(root)]) == 0
    assert "being recorded" in capsys.readouterr().out
    (part,) = wd.salvage(root).parts
    assert part.is_live
    recorder.close()
    assert "unfinished" not in repr(wd.open(root))


@pytest.mark.parametrize("size", [100, 8192, None])
def test_garbage_in_the_first_journal_is_reported_and_kept(tmp_path: Path, size: int | None) -> None:
    root = tmp_path / "root"
    die(lambda: record(root))
    journal = next(root.rglob("*signals.journal*"))
    garbage = np.random.default_rng(5).bytes(size or journal.stat().st_size)
    journal.write_bytes(garbage)
    assert main(["salvage", str(root)]) == 3
    assert any(path.is_file() and path.read_bytes() == garbage for path in root.rglob("*"))


def test_a_trim_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "root").close()
    episodes = wd.open(tmp_path / "root")
    with pytest.raises(wd.errors.TimeRangeError, match="leaves no record"):
        episodes.edits.trim(0, 100, None)
    with pytest.raises(wd.errors.TimeRangeError, match="leaves no record"):
        episodes.edits.split(0, 100)
    episodes.edits.trim(0, 1, 3)
    episodes.refresh()
    assert len(episodes[0]["x"]) == 2


def test_text_may_be_derived(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        for number in range(3):
            recorder.step({"x": 1.0}, {"a": 1.0}, ts_ns=number)
    episodes = wd.open(tmp_path / "root")
    for words in (["a", "b", "c"], np.array(["a", "b", "c"]), [b"a", b"b", b"c"]):
        derived = episodes.map(lambda _, words=words: {"word": words})[0]["word"]
        assert derived.values().tolist() == list(words)


def test_a_quality_no_encoder_has_is_refused() -> None:
    for options in ({"quality": 1000}, {"quality": -1}, {"quality": 52, "codec": "h264"}):
        with pytest.raises(ValueError, match="quality out of range"):
            wd.VideoOptions(**options)
    assert wd.VideoOptions(quality=52).quality == 52
