"""`warp lanes add` and `warp lanes list`: predictions computed and compared from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main

MODEL = """
import numpy as np
def late(episode):
    values = episode["joints"].values()
    return np.concatenate([values[:1], values[:-1]])
class Model:
    late = staticmethod(late)
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lane_model.py").write_text(MODEL)
    for number in range(2):
        with wd.record("root", clock="simulated") as rec:
            for k in range(10):
                rec.append("joints", np.float32([k, number]), k * 10_000_000)
    assert main(["publish", "lab/arm", "root"]) == 0
    return tmp_path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0):
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_lane_is_computed_listed_and_compared(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run_json(capsys, "lanes", "add", "lab/arm", "late", "lane_model:late", "--of", "joints")
    assert (made["computed"], made["reused"]) == (2, 0)
    again = run_json(capsys, "lanes", "add", "lab/arm", "late", "lane_model:late", "--of", "joints")
    assert (again["computed"], again["reused"], again["version"]) == (0, 2, made["version"])
    (found,) = run_json(capsys, "lanes", "list", "lab/arm", "--worst", "1")
    assert found["name"] == "late"
    assert found["of"] == ["joints"]
    assert not found["status"]["is_stale"]
    (error,) = found["compared"]["signals"]
    assert error["moments"] == 20
    assert error["largest"] == 1.0
    assert len(error["worst"]) == 1
    assert error["mean_abs"] == pytest.approx(18 / 40)
    assert main(["lanes", "list", "lab/arm"]) == 0
    text = capsys.readouterr().out
    assert "2 episodes current, 0 stale, 0 without" in text
    assert "worst of joints: lab/arm#" in text


def test_publishing_after_an_edit_keeps_lanes_if_asked_and_says_they_are_stale(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(
        capsys,
        "lanes",
        "add",
        "lab/arm",
        "late",
        "lane_model:Model.late",
        "--of",
        "joints",
        "--revision",
        "1",
    )
    root = wd.open_recordings("root")
    root.edits.trim(root.ids[0], 0, 50_000_000)
    assert main(["publish", "lab/arm", "root", "--keep-lanes"]) == 0
    (found,) = run_json(capsys, "lanes", "list", "lab/arm", "--no-compare")
    assert found["status"]["stale"] == [root.ids[0]]
    assert found["compared"] is None
    assert main(["lanes", "list", "lab/arm"]) == 0
    assert "1 stale" in capsys.readouterr().out
    assert main(["publish", "lab/arm", "root"]) == 0
    assert run_json(capsys, "lanes", "list", "lab/arm") == []


def test_a_damaged_lane_is_told_with_3(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(capsys, "lanes", "add", "lab/arm", "late", "lane_model:late", "--of", "joints")
    ds = wd.dataset("lab/arm")
    shard = next(s for s in ds.manifest.artifacts["lane-late"].shards if str(s.name).endswith(".wshard"))
    path = workplace / "catalog" / shard.key
    path.chmod(0o644)
    path.write_bytes(b"\0" * shard.byte_size)
    (found,) = run_json(capsys, "lanes", "list", "lab/arm", code=3)
    assert len(found["compared"]["damaged"]) == 1
    assert found["compared"]["episodes"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lane_model"], "MODULE:FUNCTION"),
        (["lane_model:lat"], "Did you mean 'late'"),
        (["no_such_module:f"], "no module"),
        (["lane_model:np"], "not a function"),
    ],
)
def test_a_wrong_function_says_what_is_wrong(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["lanes", "add", "lab/arm", "late", *words, "--of", "joints"]) == 2
    assert said in capsys.readouterr().err
    assert main(["lanes", "list", "lab/arm", "--lane", "nobody"]) == 1
    assert "no lane 'nobody'" in capsys.readouterr().err
