"""One way in: whatever an address names, `wd.open` opens it as what it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import ROOT
from warpdata.cli.main import main as warp
from warpdata.errors import WarpError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    for number in range(3):
        with wd.record("root", static={"number": number, "task": "count"}, clock="simulated") as rec:
            for k in range(4):
                rec.step({"x": float(k)}, {"u": float(-k)}, reward=float(number), ts_ns=k * 1000)
    (tmp_path / "shards").mkdir()
    for number, episode in enumerate(wd.open_recordings("root")):
        wd.pack_episode(episode, f"shards/ep_{number}.wshard")
    with wd.CorpusWriter("corpus", 4) as corpus:
        corpus.append(np.ones((10, 4)))
    with wd.VectorStore.create("v.rvf", dim=4) as store:
        store.add(np.ones((2, 4), np.float32))
    with wd.DatasetBuilder("lab/count") as builder:
        builder.add_episodes("demo", "root").publish(tags=["v1"])
    return tmp_path


def test_whatever_is_there(here: Path) -> None:
    assert isinstance(wd.open("root"), wd.Episodes)
    assert wd.open("root#2")["number"] == wd.open_episode("root#000000000002")["number"] == 2
    assert wd.open("root/000000000000/000000000001")["number"] == 1
    assert wd.open("shards").ids == ["ep_0", "ep_1", "ep_2"]
    assert wd.open("shards#ep_1")["number"] == wd.open("shards/ep_1.wshard")["number"] == 1
    assert isinstance(wd.open("lab/count"), wd.Dataset)
    assert wd.open("lab/count@v1#2").steps.rewards.data.tolist() == [2.0] * 4
    assert wd.open_episodes("lab/count").where("number > 0").ids == ["000000000001", "000000000002"]
    assert wd.open("corpus").total_rows == wd.open(here / "corpus").total_rows == 10
    assert len(wd.open("v.rvf")) == 2
    assert wd.open(f"file://{here}/root").ids == wd.open("root").ids


@pytest.mark.parametrize("address", ["root#1", "shards#ep_1", "shards/ep_1.wshard", "lab/count@v1#1", "file"])
def test_python_packs_what_an_address_names(here: Path, address: str) -> None:
    address = f"file://{here}/root#1" if address == "file" else address
    packed = wd.pack_episode(address, here / "packed.wshard")
    assert wd.open_episode(packed)["number"] == 1
    unpacked = wd.unpack_episode(packed, here / "unpacked")
    assert wd.open_episode(unpacked)["number"] == 1
    with pytest.raises(KeyError, match="no episode '9'"):
        wd.pack_episode("root#9", here / "other.wshard")


def test_a_packed_episode_is_unpacked_by_its_address(here: Path) -> None:
    for number, address in enumerate(["shards#ep_2", "lab/count#2"]):
        assert wd.open_episode(wd.unpack_episode(address, here / f"out_{number}"))["number"] == 2
    with pytest.raises(ValueError, match="not a packed recording: root#1"):
        wd.unpack_episode("root#1", here / "none")


@pytest.mark.parametrize("address", ["root", "shards", "lab/count"])
def test_sql_over_the_episodes_of_an_address(here: Path, address: str) -> None:
    episodes = wd.open_episodes(address)
    rows = (
        episodes.where("number > 0").sql("select number, length from episodes order by number desc").arrow()
    )
    assert rows.to_pylist() == [{"number": 2, "length": 4}, {"number": 1, "length": 4}]


def test_edits_are_left_out_on_request(here: Path) -> None:
    wd.open_recordings("root").edits.drop(0)
    wd.open_recordings("root").edits.set_static(1, "task", "other")
    assert [len(wd.open_episodes("root", edited=edited)) for edited in (True, False)] == [2, 3]
    for address in ("root#1", "root/000000000000/000000000001"):
        assert wd.open_episode(address)["task"] == "other"
        assert wd.open_episode(address, edited=False)["task"] == "count"
        raw = wd.pack_episode(address, here / "raw.wshard", raw=True, overwrite=True)
        assert wd.open_episode(raw)["task"] == "count"


@pytest.mark.parametrize("command", ["check", "verify", "show", "inspect", "replay", "query"])
@pytest.mark.parametrize("name", ["README.md", "notes"])
def test_a_file_of_another_kind_is_an_error_and_not_damage(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    (here / "README.md").write_text("# hello")
    (here / "notes").mkdir()
    (here / "notes" / "README.md").write_text("# hello")
    more = ["select 1"] if command == "query" else []
    assert warp([command, name, *more]) == 1
    shown = "".join(capsys.readouterr())
    assert "damaged" not in shown
    assert "bad_magic" in shown


@pytest.mark.parametrize("name", ["v.rvf", "corpus"])
def test_a_check_of_something_without_episodes_names_the_right_command(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert warp(["check", name]) == 2
    assert "use `warp verify`" in capsys.readouterr().err


def test_type_checkers_know_what_is_opened(tmp_path: Path) -> None:
    """Each `open_*` has its own type, also behind `import warpdata as wd`; `wd.open` has those that it may return."""
    from mypy import api

    calls = {
        "open_episode": "Episode",
        "open_episodes": "Episodes",
        "open_recordings": "LocalDataset",
        "open_dataset": "Dataset",
        "open_corpus": "FixedOrderSource",
        "open_vectors": "VectorStore",
        "pack_episode": "Path",
        "open": "Episode | Episodes | Dataset | FixedOrderSource | VectorStore",
    }
    code = [f"reveal_type(wd.{name}('x'{', chr(120)' * (name == 'pack_episode')}))" for name in calls]
    (tmp_path / "program.py").write_text("\n".join(["import warpdata as wd", *code]))
    config = str(ROOT / "pyproject.toml")
    shown, errors, _ = api.run(
        [f"--config-file={config}", "--cache-dir", str(tmp_path), str(tmp_path / "program.py")]
    )
    types = [re.sub(r"[\w.]+\.", "", line) for line in re.findall(r'Revealed type is "(.*)"', shown)]
    assert types == list(calls.values()), shown + errors


def test_what_is_not_there_is_said(here: Path) -> None:
    for address in ("nowhere", "nowhere/at/all", "lab/nothing", "root/absent.wshard"):
        with pytest.raises(WarpError):
            wd.open(address)
    with pytest.raises(KeyError, match="no episode '9'"):
        wd.open("root#9")
    (here / "notes.txt").write_text("hello")
    with pytest.raises(WarpError, match="no file format"):
        wd.open("notes.txt")


def test_a_name_with_a_hash_is_a_name(here: Path) -> None:
    (here / "shards" / "ep_0.wshard").rename(here / "odd#1.wshard")
    assert wd.open("odd#1.wshard")["number"] == 0


def test_the_command_takes_the_same_addresses(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["root"], ["lab/count"], ["shards"]):
        assert warp(["show", *words]) == 0
        assert "total_reward" in capsys.readouterr().out
    for words in (["root", "1"], ["lab/count@v1", "1"], ["lab/count#1"], ["shards", "ep_1"]):
        assert warp(["show", *words]) == 0
        assert "number = 1" in capsys.readouterr().out


_SOURCES = (
    "check", "inspect", "show", "episodes", "pack", "unpack", "join", "replay", "embed", "salvage", "verify",
    "corpus show",
)  # fmt: skip


@pytest.mark.parametrize("command", _SOURCES)
def test_no_name_at_all_is_not_this_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """As from a variable of a shell that was never set: nothing here is read, packed or salvaged for it."""
    monkeypatch.chdir(here / ("corpus" if command.startswith("corpus") else "root"))
    before = sorted(Path().rglob("*"))
    assert warp([*command.split(), ""]) == 2
    assert "an address is empty" in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "opening", [wd.open, wd.open_episode, wd.open_episodes, wd.open_corpus, wd.check_dataset]
)
@pytest.mark.parametrize("address", ["", "#0"])
def test_an_address_of_nothing_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, opening: Callable[[str], object], address: str
) -> None:
    monkeypatch.chdir(here / ("corpus" if opening is wd.open_corpus else "root"))
    with pytest.raises((ValueError, WarpError), match=r"an address is empty|no such folder"):
        opening(address)
