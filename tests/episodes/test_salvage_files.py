"""Recordings into one file that were cut short, folders of them, and salvages beside recorders that live."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import until
from warpdata.cli.main import main
from warpdata.episodes.salvage import recordings as salvage_module
from warpdata.episodes.salvage.recordings import salvage_folder
from warpdata.errors import JournalInUseError

COUNT = 30


def die(work: Callable[[], object]) -> None:
    """Do something in a child that ends without closing anything."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    os.waitpid(child, 0)


def record_into(target: Path) -> None:
    recorder = wd.record(target)
    for step in range(COUNT):
        recorder.append("arm", np.full(3, step, np.float32), step * 1000)
    work = Path(f"{target}.recording") / ".recording" / "signals.journal"
    until(work.exists, "the journal got no name")


def stream_into(target: Path) -> None:
    writer = wd.WShardStreamWriter(target, target.stem, [{"id": "x", "dtype": "f32", "shape": [2]}])
    writer.begin_episode()
    for _ in range(COUNT):
        writer.write_timestep({"x": np.zeros(2, np.float32)})


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A recording into one file whose journal lost a record."""
    target = tmp_path / "one.wshard"
    die(lambda: record_into(target))
    journal = Path(f"{target}.recording") / ".recording" / "signals.journal"
    whole = bytearray(journal.read_bytes())
    at = whole.rindex(np.full(3, 20, np.float32).tobytes())
    whole[at] ^= 0xFF
    journal.write_bytes(whole)
    return target


def test_what_could_not_be_read_lies_beside_the_file_however_often_it_is_salvaged(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = wd.salvage(damaged)
    assert not receipt.is_complete
    assert receipt.output == str(damaged)
    aside = Path(receipt.kept_aside or "")
    assert aside == damaged.with_name("one.wshard.recording-damaged")
    assert (aside / "signals.journal").is_file()
    assert len(wd.open_episode(damaged)["arm"]) == COUNT - 1
    assert main(["salvage", str(damaged)]) == 0
    assert f"arm: {COUNT - 1}" in capsys.readouterr().out
    assert sorted(os.listdir(damaged.parent)) == ["one.wshard", "one.wshard.recording-damaged"]


def test_a_salvage_that_was_cut_short_before_it_packed_says_again_what_was_lost(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage_module, "pack_episode", lambda *_, **__: os._exit(0))
    die(lambda: wd.salvage(damaged))
    monkeypatch.undo()
    assert not damaged.exists()
    receipt = wd.salvage(damaged)
    assert receipt.steps_lost == 1
    assert (Path(receipt.kept_aside or "") / "signals.journal").is_file()


def test_where_nothing_can_be_read_nothing_is_packed_and_nothing_goes(tmp_path: Path) -> None:
    target = tmp_path / "one.wshard"
    die(lambda: record_into(target))
    work = Path(f"{target}.recording")
    os.truncate(work / ".recording" / "signals.journal", 10)
    for _ in range(2):
        receipt = wd.salvage(target)
        assert not receipt.is_complete
        assert not target.exists()
        assert (work / ".recording-damaged" / "signals.journal").stat().st_size == 10


def test_journals_go_only_if_the_file_that_has_their_records_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpdata.episodes.record import recording

    target = tmp_path / "one.wshard"
    monkeypatch.setattr(recording, "remove_folder", lambda *_, **__: os._exit(0))

    def killed_as_it_tidies_up() -> None:
        with wd.record(target) as recorder:
            for step in range(COUNT):
                recorder.append("arm", np.full(3, step, np.float32), step)

    die(killed_as_it_tidies_up)
    monkeypatch.undo()
    spoilt = bytearray(target.read_bytes())
    spoilt[spoilt.rindex(np.full(3, 20, np.float32).tobytes())] ^= 0xFF
    target.write_bytes(spoilt)
    receipt = wd.salvage(target)
    assert receipt.is_complete
    assert receipt.kept_aside == f"{target}.bak"
    values = wd.open_episode(target)["arm"].values()
    assert values[:, 0].tolist() == list(range(COUNT))
    assert sorted(os.listdir(tmp_path)) == ["one.wshard", "one.wshard.bak"]


def test_a_recorder_that_died_before_it_had_a_journal_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.wshard.recording").mkdir()
    receipt = wd.salvage(tmp_path / "one.wshard")
    assert (receipt.is_complete, receipt.output) == (True, None)
    assert os.listdir(tmp_path) == []


def test_a_folder_of_shards_is_salvaged_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    die(lambda: record_into(tmp_path / "one.wshard"))
    die(lambda: record_into(tmp_path / ".hidden.wshard"))
    die(lambda: stream_into(tmp_path / "two.wshard"))
    with wd.record(tmp_path / "live.wshard") as live:
        live.append("arm", 1.0, 1)
        assert main(["salvage", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "one.wshard" in said
    assert "two.wshard" in said
    assert "live.wshard.recording: being recorded" in said
    assert sorted(os.listdir(tmp_path)) == [".hidden.wshard", "live.wshard", "one.wshard", "two.wshard"]
    assert len(wd.open_episode(tmp_path / ".hidden.wshard")["arm"]) == COUNT


def test_a_folder_may_be_named_by_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (where, name) in enumerate((("", "."), ("below", ".."), ("", ""))):
        root = tmp_path / str(number)
        die(lambda root=root: record_steps(root))
        (episode,) = root.glob("*/*")
        (episode / where).mkdir(exist_ok=True)
        monkeypatch.chdir(episode / where)
        receipt = wd.salvage(name)
        assert receipt.is_complete, receipt
        assert f"{receipt.steps_kept} records kept" in str(receipt)
        assert len(wd.LocalDataset(root)[0]["x"]) == 5


def record_steps(root: Path) -> None:
    recorder = wd.record(root, clock="simulated")
    for i in range(5):
        recorder.step({"x": np.zeros(2, np.float32)}, {"a": 1.0}, ts_ns=i)


def test_the_folder_of_a_recording_stands_for_its_file(tmp_path: Path) -> None:
    die(lambda: record_into(tmp_path / "one.wshard"))
    [receipt] = salvage_folder(tmp_path / "one.wshard.recording")
    assert receipt.output == str(tmp_path / "one.wshard")


def test_an_output_is_used_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    die(lambda: record_into(tmp_path / "one.wshard"))
    wd.salvage(tmp_path / "one.wshard", tmp_path / "other.wshard")
    assert os.listdir(tmp_path) == ["other.wshard"]
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    with pytest.raises(ValueError, match="takes no output"):
        wd.salvage(tmp_path / "ep", tmp_path / "elsewhere")
    assert main(["salvage", str(tmp_path / "ep"), "--output", str(tmp_path / "elsewhere")]) == 2
    assert "--output takes a file" in capsys.readouterr().err
    writer.abort()


def a_root(folder: Path) -> None:
    with wd.record(folder) as recorder:
        recorder.append("arm", 1.0, 1)


def a_file(folder: Path) -> None:
    with wd.record(folder / "one.wshard") as recorder:
        recorder.append("arm", 1.0, 1)


def a_signal(folder: Path) -> None:
    with wd.SimpleSignalWriter(folder / "x.parquet") as writer:
        writer.append(1.0, 1)


def a_stream(folder: Path) -> None:
    channels = [{"id": "x", "dtype": "f32", "shape": [2]}]
    with wd.WShardStreamWriter(folder / "one.wshard", "one", channels) as writer:
        writer.begin_episode()
        writer.write_timestep({"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize("record", [a_root, a_file, a_signal, a_stream])
def test_a_recorder_that_lives_is_left_alone_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Callable[[Path], None]
) -> None:
    """Whatever a recorder does to files, a salvage of the whole folder runs just before it.

    It may take away a folder in which there is nothing yet: the recorder then makes it again.
    """
    here = threading.get_ident()
    tried: set[str] = set()
    busy = False

    def beside(call: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object, **more: object) -> object:
            nonlocal busy
            what = f"{call} {args} {more}"
            if threading.get_ident() == here and not busy and what not in tried:
                busy = True
                tried.add(what)
                assert not any(each.steps_kept for each in salvage_folder(tmp_path))
                busy = False
            return call(*args, **more)

        return called

    for name in ("mkdir", "open", "rename", "replace", "unlink", "rmdir", "close"):
        monkeypatch.setattr(os, name, beside(getattr(os, name)))
    record(tmp_path)
    monkeypatch.undo()
    assert salvage_folder(tmp_path) == []
    names = [each for each in os.listdir(tmp_path) if each != ".listing.json"]
    assert len(names) == 1
    if record is a_root:
        assert [len(each["arm"]) for each in wd.LocalDataset(tmp_path)] == [1]


def test_two_salvages_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(lambda: stream_into(tmp_path / "two.wshard"))
    die(lambda: record_into(tmp_path / "one.wshard"))
    save, pack = salvage_module.save_wshard, salvage_module.pack_episode
    met = []

    def beside(call: Callable[..., object], path: Path) -> Callable[..., object]:
        def called(*args: object, **more: object) -> object:
            with pytest.raises(JournalInUseError, match="being recorded"):
                wd.salvage(path)
            met.append(path)
            return call(*args, **more)

        return called

    monkeypatch.setattr(salvage_module, "save_wshard", beside(save, tmp_path / "two.wshard"))
    monkeypatch.setattr(salvage_module, "pack_episode", beside(pack, tmp_path / "one.wshard"))
    assert [each.is_complete for each in salvage_folder(tmp_path)] == [True, True]
    assert len(met) == 2
