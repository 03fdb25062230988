"""`warp demo`: the story runs to its end, says what it promises, and what it names is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import warpdata as wd
from warpdata.cli.demo_story import curve
from warpdata.cli.main import main


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_whole_story(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    told = capsys.readouterr().out
    for said in (
        "ended with signal 9", "nothing was lost", "7 -> 6 entries", "bit for bit", "6 episodes computed",
        "6 episodes current, 0 stale", "in other episodes:", "ran to its end",
    ):  # fmt: skip
        assert said in told, told
    with wd.dataset("demo/handover", catalog=cache / "warp-demo/catalog") as ds:
        assert len(ds.versions()) == 3
        assert ds.tags().keys() == {"v1", "v2"}
        assert "prediction/joints/demo-model" in ds.episodes[0]
        assert "camera/front" in ds.episodes[0]
    for command in re.findall(r"try: warp (.*)", told):
        assert main(shlex.split(command)) == 0, command
    assert main(["demo", "warp-demo"]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_curve_in_letters() -> None:
    lines = curve([1.0, 0.1, 0.01], height=3, mark=1)
    assert [line[10:] for line in lines[:3]] == ["●┊", " ●", " ┊●"]
    assert lines[0].startswith("  1.0000")
    assert all("●" in line for line in curve([0.5, 0.5])[-2:-1])
