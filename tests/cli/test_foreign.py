"""`warp import`, `export` and `convert`: words, options, receipts and exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.convert.sets import made_set, tree
from warpdata.cli.console import Exit, Progress
from warpdata.cli.main import main
from warpdata.convert import hdf5, mcap
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BadMagicError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal


def test_a_set_goes_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = made_set(tmp_path / "set", 2)
    assert main(["import", str(source), str(tmp_path / "ours")]) == Exit.OK
    said = capsys.readouterr().out
    assert "2 episodes imported from lerobot v3.0" in said
    assert "action: kept exactly, 15 records" in said
    assert main(["import", str(source), str(tmp_path / "ours")]) == Exit.OK
    again_said = [
        line for line in capsys.readouterr().out.splitlines() if "finished by an earlier run" not in line
    ]
    assert again_said == said.splitlines(), "whoever goes on is told the same in the same order"
    assert main(["import", "lerobot", str(source), str(tmp_path / "ours"), "--json"]) == Exit.OK
    receipt = json.loads(capsys.readouterr().out)
    assert (receipt["continued"], receipt["exact"]) == (2, True)
    assert (
        main(["export", "lerobot", str(tmp_path / "ours"), str(tmp_path / "v21"), "--version", "v2.1"])
        == Exit.OK
    )
    assert (tmp_path / "v21/meta/episodes.jsonl").exists()
    back = [str(tmp_path / "v21"), str(tmp_path / "back")]
    assert (
        main(["convert", *back, "--to", "lerobot", "--option", "data_files_size_in_mb=7", "--json"])
        == Exit.OK
    )
    assert wd.open(back[1]).metadata["lerobot"]["info"]["codebase_version"] == "v3.0"
    assert main(["convert", back[1], str(tmp_path / "ours2")]) == Exit.OK
    ours, again = tree(tmp_path / "ours"), tree(tmp_path / "ours2")
    same = [name for name in ours if name.endswith((".parquet", ".mp4", "static.json"))]
    assert same
    assert all(ours[name] == again[name] for name in same)


def test_who_stops_an_import_is_told_that_it_can_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warpdata._api.importing.import_episodes", stop)
    assert main(["import", str(made_set(tmp_path / "set", 1)), str(tmp_path / "ours")]) == 130
    assert "continues where it stopped" in capsys.readouterr().err


def test_who_must_choose_the_steps_is_told_the_words_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = np.arange(5) * 100_000_000
    seen = Episode.of({"joints": ArraySignal(times, np.zeros((5, 2)))}, id="a")
    wd.import_episodes(Episodes.of([seen]), tmp_path / "ours")
    assert main(["export", "lerobot", str(tmp_path / "ours"), str(tmp_path / "out")]) == Exit.ERROR
    said = capsys.readouterr().err
    assert "no actions" in said
    assert "--clock NAME" in said
    assert (
        main(["export", "lerobot", str(tmp_path / "ours"), str(tmp_path / "out"), "--clock", "joints"]) == 0
    )


def test_rlds_goes_in_and_out_by_name_and_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = made_set(tmp_path / "set", 2), tmp_path / "tf" / "1.0.0"
    out.parent.mkdir()
    words = ["export", "rlds", str(source), str(out), "--option", "name=arm", "--on-error", "skip", "--json"]
    assert main(words) == Exit.OK
    assert json.loads(capsys.readouterr().out)["format"] == "rlds"
    assert (out / "arm-train.tfrecord-00000-of-00001").exists()
    opened = wd.open(out.parent)
    assert opened.ids == ["train-000000", "train-000001"]
    for words in (
        ["import", str(out), str(tmp_path / "a")],
        ["import", "rlds", str(out), str(tmp_path / "b"), "--option", "last_row=observation"],
    ):
        assert main(words) == Exit.OK
        assert "2 episodes imported from rlds" in capsys.readouterr().out
    for name in ("a", "b"):
        episode = wd.open(tmp_path / name)[1]
        assert (episode["action"].values() == opened[1]["action"].values()).all()
        assert episode.meta.get("last_row") == (None if name == "a" else "observation")


def test_shards_by_the_name_of_the_target(tmp_path: Path) -> None:
    source = made_set(tmp_path / "set", 2)
    assert main(["import", str(source), str(tmp_path / "all.wshard")]) == Exit.OK
    assert len(list((tmp_path / "all.wshard").glob("*.wshard"))) == 2
    assert main(["verify", "--full", *map(str, (tmp_path / "all.wshard").glob("*.wshard"))]) == Exit.OK


def test_a_skipped_episode_is_exit_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = made_set(tmp_path / "set", 3, version="v2.1")
    (source / "data/chunk-000/episode_000001.parquet").write_bytes(b"PAR1")
    assert main(["import", str(source), str(tmp_path / "a")]) == Exit.ERROR
    assert "episode_000001.parquet" in capsys.readouterr().err
    assert main(["import", str(source), str(tmp_path / "b"), "--on-error", "skip"]) == Exit.DAMAGED
    assert "skipped 000000000001" in capsys.readouterr().out
    assert wd.open(tmp_path / "b").ids == ["000000000000", "000000000002"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["import", "lerobt", "a", "b"], "Did you mean 'lerobot'"),
        (["import", "only"], "two or three words"),
        (["export", "lerobot", "SET", "OUT", "--option", "nams=1"], "Did you mean 'names'"),
        (["export", "lerobot", "SET", "OUT", "--option", "names"], "is not NAME=VALUE"),
        (["import", "SET", "OUT", "--rate", "3"], "no option 'fps'"),
        (["import", "SET", "OUT", "--codec", "h263"], "codec is one of"),
    ],
)
def test_what_is_misspelt_is_said(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"SET": str(made_set(tmp_path / "set", 1)), "OUT": str(tmp_path / "out")}
    assert main([known.get(word, word) for word in words]) == Exit.USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_progress_tells_the_pace_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("warpdata.cli.console.time.monotonic", lambda: now[0])
    out = io.StringIO()
    bar = Progress("importing", out, visible=True)
    bar(0, 100)
    now[0] += 10
    bar(20, 100)
    assert "20%  2/s, 0:40 left" in out.getvalue()


def put_sets(folder: Path, *kinds: str) -> None:
    """Sets of several formats in one folder: a folder each, or a loose file."""
    for kind in kinds:
        if kind == "lerobot":
            made_set(folder / "arm", 1)
        elif kind == "mcap":
            mcap.write(Episodes.of([recorded("a"), recorded("b")]), folder / "bags")
        elif kind == "loose mcap":
            mcap.write(Episodes.of([recorded("run")]), folder / "run.mcap")
        else:
            hdf5.write(Episodes.of([recorded("demo")]), folder / "demos.hdf5")


def recorded(name: str) -> Episode:
    times = np.arange(4) * 100_000_000
    action = ArraySignal(times, np.zeros((4, 2)), role="action")
    return Episode.of({"action": action, "state": ArraySignal(times, np.ones((4, 3)))}, id=name)


@pytest.mark.parametrize("command", [["show"], ["view", "--no-open"]])
@pytest.mark.parametrize(
    "kinds",
    [("lerobot",), ("lerobot", "mcap"), ("lerobot", "hdf5"), ("mcap", "hdf5"), ("loose mcap", "hdf5")],
    ids=" and ".join,
)
def test_a_folder_of_several_sets_is_never_opened_as_one_of_them(
    kinds: tuple[str, ...],
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_sets(tmp_path, *kinds)
    monkeypatch.chdir(tmp_path)
    assert main([*command, "."]) == Exit.ERROR
    message = capsys.readouterr().err
    assert "a folder of sets, not a set" in message
    assert "Name one: " in message
    with wd.record("recorded", clock="simulated") as rec:
        rec.append("x", 1.0, 0)
    assert main([*command, "."]) == Exit.ERROR
    assert "recorded (recordings)" in capsys.readouterr().err
    with pytest.raises(BadMagicError):
        wd.import_episodes(".", tmp_path / "ours")


@pytest.mark.parametrize("kind", ["loose mcap", "hdf5"])
def test_the_set_of_the_current_folder_is_shown(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sets(tmp_path, kind)
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("about these files")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "."]) == Exit.OK
    assert "1 episode" in capsys.readouterr().out


def test_a_folder_of_mcap_files_is_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sets(tmp_path, "mcap")
    monkeypatch.chdir(tmp_path / "bags")
    assert main(["show", "."]) == Exit.OK
    assert "2 episodes" in capsys.readouterr().out
    assert wd.open(".").ids == ["a", "b"]
