"""`warp embed`: vectors of episodes from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main
from warpdata.search.store import VectorStore

MODEL = """
import numpy as np
def joints(observation):
    return observation["joints"]
def many(channels):
    return channels["joints"]
class Model:
    def __call__(self, observation):
        return observation["joints"]
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "embed_model.py").write_text(MODEL)
    for number in range(3):
        with wd.record("root", static={"number": number}, clock="simulated") as rec:
            for k in range(10):
                rec.step(
                    {"joints": np.float32([k, number])}, {"torque": np.float32([0])}, ts_ns=k * 10_000_000
                )
    return tmp_path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0):
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_vectors_lie_beside_the_root(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run_json(capsys, "embed", "root")
    assert (made["vectors"], made["dim"], made["computed"]) == (30, 2, 3)
    assert made["path"] == str(workplace / "root" / "state.rvf")
    assert wd.open("root").ids == ["000000000000", "000000000001", "000000000002"]
    again = run_json(capsys, "embed", "root")
    assert (again["computed"], again["reused"]) == (0, 3)
    assert main(["embed", "root"]) == 0
    text = capsys.readouterr().out
    assert "30 vectors of 2 numbers" in text
    assert "3 had not changed" in text
    found = run_json(capsys, "vectors", "search", "root/state.rvf", "4,1", "-k", "1")
    assert found[0]["metadata"]["step"] == 4
    assert found[0]["metadata"]["episode_id"] == "000000000001"


def test_functions_options_and_processes(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run_json(capsys, "embed", "root", "embed_model:joints", "--revision", "r", "--max-steps", "4")
    assert one["path"] == str(workplace / "root" / "joints.rvf")
    others = [
        ("embed_model:many", "--output", "a.rvf", "--batch-size", "3"),
        ("embed_model:Model", "--output", "b.rvf", "--jobs", "2"),
    ]
    for options in others:
        made = run_json(capsys, "embed", "root", *options, "--revision", "r", "--max-steps", "4")
        assert made["computed"] == 3
        assert Path(made["path"]).read_bytes() == Path(one["path"]).read_bytes()
    some = run_json(capsys, "embed", "root", "--where", "number = 1", "--output", "c.rvf", "--per", "episode")
    assert some["vectors"] == 1
    with VectorStore.open("c.rvf") as store:
        assert store.get([0]).tolist() == [[4.5, 1.0]]


def test_a_published_dataset_gets_a_version(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "lab/arm", "root"]) == 0
    made = run_json(capsys, "embed", "lab/arm", "--message", "vectors", "--tag", "searched")
    with wd.dataset("lab/arm@searched") as ds:
        assert ds.version == made["version"]
        assert ds.vectors("vectors-state").dim == 2
    capsys.readouterr()
    assert main(["embed", "lab/arm"]) == 0
    assert f"version {made['version'][:12]}" in capsys.readouterr().out


def test_what_is_wrong_is_told(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("embed", "root", "stat"), "Did you mean 'state'"),
        (("embed", "root", "embed_model:joint"), "Did you mean 'joints'"),
        (("embed", "root", "--signal", "joint"), "Did you mean 'joints'"),
        (("embed", "root", "--per", "frame"), "no camera"),
        (("embed", "root", "--jobs", "2", "--ray", "auto"), "choose one"),
        (("embed", "root/000000000000/000000000000"), "output"),
    ):
        assert main(list(arguments)) in (1, 2)
        assert words in capsys.readouterr().err
