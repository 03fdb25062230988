"""Every command that looks at data takes the same addresses; times and misspelt words are read alike everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.cli.main import main as warp
from warpdata.timeline.times import UNITS_NS, parse_time_ns

STEPS = 20
STEP_NS = 50_000_000
START_NS = 7_000_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root, a folder of shards and a published version of the same three episodes."""
    here = tmp_path_factory.mktemp("addresses")
    for number in range(3):
        with wd.record(here / "root", static={"number": number}, clock="simulated") as rec:
            for k in range(STEPS):
                rec.step({"x": float(k)}, {"u": np.float32(-k)}, reward=1.0, ts_ns=START_NS + k * STEP_NS)
    (here / "shards").mkdir()
    for number, episode in enumerate(wd.open_recordings(here / "root")):
        wd.pack_episode(episode, here / "shards" / f"ep_{number}.wshard")
    with wd.DatasetBuilder("lab/count", catalog=here / "catalog") as builder:
        builder.add_episodes("demo", here / "root").publish(tags=["v1"])
    return here


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setenv("WARP_CATALOG", str(made / "catalog"))
    return made


def out(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert warp([*words, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


ONE = [
    ["root", "1"], ["root#1"], ["root#000000000001"], ["root/000000000000/000000000001"], ["shards", "ep_1"],
    ["shards#ep_1"], ["shards/ep_1.wshard"], ["shards", "1"], ["lab/count", "1"], ["lab/count@v1#1"], ["file"],
]  # fmt: skip
MANY = [["root"], ["shards"], ["lab/count"], ["lab/count@v1"], ["file"]]


def words_of(words: list[str], here: Path, more: str) -> list[str]:
    return [f"file://{here}/{more}"] if words == ["file"] else words


@pytest.mark.parametrize("words", ONE, ids=" ".join)
def test_one_episode(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    words = words_of(words, here, "root#1")
    assert out(capsys, "show", *words)["static"]["number"] == 1
    assert out(capsys, "replay", *words, "--fast")["records"]["u"] == STEPS
    assert out(capsys, "check", *words)["episodes"] == 1
    address = "#".join(words)
    assert out(capsys, "verify", address)[0]["status"] == "ok"
    (row,) = out(capsys, "episodes", address)
    assert row["signals"][:2] == ["x", "u"]
    assert row["bytes"] > 500
    found = out(capsys, "inspect", *words)
    assert "blocks" in found or "signals" in found
    assert out(capsys, "query", address, "select number from episodes") == [{"number": 1}]


@pytest.mark.parametrize("words", MANY, ids=" ".join)
def test_many_episodes(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    words = words_of(words, here, "root")
    assert [row["length"] for row in out(capsys, "show", *words)] == [STEPS] * 3
    rows = out(capsys, "episodes", *words)
    assert [row["duration_ns"] for row in rows] == [(STEPS - 1) * STEP_NS] * 3
    assert all(row["bytes"] > 500 for row in rows)
    (row,) = out(capsys, "episodes", *words, "--where", "number = 2")
    assert row["id"] in ("ep_2", "000000000002")
    assert out(capsys, "check", *words)["episodes"] == 3
    assert out(capsys, "verify", *words)[0]["status"] == "ok"
    assert out(capsys, "inspect", *words)
    rows = out(capsys, "query", *words, "select max(number) as most from episodes where success is null")
    assert rows == [{"most": 2}]


def test_the_catalog_may_be_named(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "none"))
    catalog = ["--catalog", str(made / "catalog")]
    for command in ("show", "replay", "check", "inspect"):
        more = ["--fast"] if command == "replay" else []
        assert out(capsys, command, "lab/count", "2", *catalog, *more)
    assert len(out(capsys, "episodes", "lab/count", *catalog)) == 3
    assert wd.open("lab/count#2", catalog=made / "catalog")["number"] == 2


def test_one_of_many_has_to_be_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in MANY:
        assert warp(["replay", *words_of(words, here, "root"), "--fast"]) == 2
        assert "holds 3 episodes: name one of them, such as" in capsys.readouterr().err
    assert warp(["show", "root", "9"]) == 2
    assert "no episode '9'" in capsys.readouterr().err


def test_a_folder_of_something_else_says_what_is_known(here: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.jpeg").write_bytes(b"1")
    with pytest.raises(wd.WarpError, match="nothing warp knows") as caught:
        wd.open(tmp_path)
    assert "chunk list" in caught.value.hint


def test_vectors_and_corpora_by_url(here: Path, tmp_path: Path) -> None:
    with wd.VectorStore.create(tmp_path / "v.rvf", dim=4) as store:
        store.add(np.ones((2, 4), np.float32))
    assert len(wd.open(f"file://{tmp_path}/v.rvf")) == 2


def test_times_on_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a unit a time counts from the first record; a plain number is a recorded time."""
    parts = [
        ["--start", "0.25s", "--end", "500ms"],
        ["--start", str(START_NS + 5 * STEP_NS), "--end", str(START_NS + 10 * STEP_NS)],
    ]
    effects = [
        out(capsys, "edits", "trim", "root#1", *part, "--dry-run")["after"][0]["parts"] for part in parts
    ]
    assert effects[0] == effects[1]
    assert effects[0][0]["start_ns"] == START_NS + 5 * STEP_NS
    cuts = [
        out(capsys, "edits", "split", "root#1", "--at", at, "--dry-run")["after"]
        for at in ("0.5s", "500000us")
    ]
    assert cuts[0] == cuts[1]
    assert cuts[0][1]["parts"][0]["start_ns"] == START_NS + 10 * STEP_NS
    gaps = [
        out(capsys, "edits", "concat", "root", "0", "1", "--gap", gap, "--dry-run")["after"]
        for gap in ("50ms", "50000000")
    ]
    assert gaps[0] == gaps[1]
    played = out(capsys, "replay", "root", "1", "--fast", "--start", "0.5s", "--end", "750ms")
    assert played["records"]["u"] == 5
    with pytest.raises(SystemExit):
        warp(["edits", "trim", "root#1", "--start", "soon"])
    assert "0.1s, 250ms" in capsys.readouterr().err


def test_only_recordings_on_this_machine_are_edited(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address, says in (("lab/count", "published"), ("shards", "no root")):
        assert warp(["edits", "drop", address, "1"]) == 2
        assert says in capsys.readouterr().err


@given(st.integers(-(10**9), 10**9), st.sampled_from(list(UNITS_NS)))
def test_a_time_is_its_number_times_its_unit(number: int, unit: str) -> None:
    limit = 1 << 63
    if -limit <= number * UNITS_NS[unit] < limit:
        assert (
            parse_time_ns(f"{number}{unit}") == parse_time_ns(f" {number} {unit}") == number * UNITS_NS[unit]
        )
    assert parse_time_ns(str(number)) == number


def test_fractions_of_a_unit_are_exact() -> None:
    assert parse_time_ns("0.1s") == 100_000_000
    assert parse_time_ns("1700000000.123456789s") == 1_700_000_000_123_456_789
    for wrong in ("", "s", "1 parsec", "nan", "1e99s", "1.2.3s"):
        with pytest.raises(ValueError, match="time"):
            parse_time_ns(wrong)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["shwo", "root"], "show"),
        (["vectors", "serach"], "search"),
        (["completion", "bahs"], "bash"),
        (["edits", "trimm", "root"], "trim"),
        (["head", "lab/count", "--mode", "loacl"], "local"),
        (["show", "root", "--jsno"], "--json"),
        (["check", "root", "--depe"], "--deep"),
    ],
)
def test_a_misspelt_word_names_the_right_one(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        warp(words)
    assert caught.value.code == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    [["drop"], ["undrop"], ["trim", "--start", "100ms"], ["split", "--at", "250ms"]],
    ids=" ".join,
)
def test_an_edit_names_its_episode_either_way(
    here: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    name, rest = verb[0], verb[1:]
    inside = out(capsys, "edits", name, "root#1", "--dry-run", *rest)
    assert inside == out(capsys, "edits", name, "root", "1", "--dry-run", *rest)
    assert name == "undrop" or inside["before"] != inside["after"]
    for words in (["root#1", "1"], ["root"]):
        assert warp(["edits", name, *words, *rest]) == 2
        assert "name one episode: " in capsys.readouterr().err


def test_an_edit_of_several_begins_with_the_one_inside(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ("--dry-run", "--gap", "10ms")
    inside = out(capsys, "edits", "concat", "root#1", "2", *rest)["after"]
    assert inside == out(capsys, "edits", "concat", "root", "1", "2", *rest)["after"]
    assert warp(["edits", "list", "root#1"]) == 2
    assert "concerns the whole root" in capsys.readouterr().err


def test_one_episode_is_imported_and_published_by_its_address(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, source in enumerate(["root#1", "lab/count@v1#1", "shards#ep_1"]):
        target = tmp_path / f"imported{number}"
        assert warp(["import", source, str(target)]) == 0
        assert [each["number"] for each in wd.open_episodes(target)] == [1]
    catalog = str(tmp_path / "catalog")
    assert warp(["publish", "lab/some", "root#2", "shards/ep_0.wshard", "--catalog", catalog]) == 0
    with wd.dataset("lab/some", catalog=catalog) as found:
        assert {each.id: each["number"] for each in found.episodes} == {f"{n:012d}": n for n in (0, 2)}
    assert warp(["publish", "lab/some", "root#7", "--catalog", catalog]) == 2
    assert "no episode '7'" in capsys.readouterr().err
