"""`warp similar`, and reading and changing vectors on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tools.behaviours import record_behaviours

import warpdata as wd
from warpdata.cli.main import main


def test_similar_moments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "root"
    record_behaviours(root, 6)
    assert (
        main(["embed", str(root), "motion", "--per", "window", "--window-s", "1", "--stride-s", "0.5"]) == 0
    )
    capsys.readouterr()
    assert main(["similar", f"{root}#0", "--at", "0.2s", "--duration", "1s", "-k", "2", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    expected = wd.find_similar(root, 0, 200_000_000, 1_200_000_000, k=2)
    assert [(hit["episode_id"], hit["t0_ns"]) for hit in hits] == [
        (hit.episode_id, hit.t0_ns) for hit in expected
    ]
    assert main(["similar", f"{root}#0", "--at", "0.2s"]) == 0
    assert expected[0].episode_id in capsys.readouterr().out
    assert main(["similar", str(root), "--at", "0s"]) == 2
    assert "name one episode" in capsys.readouterr().err


def test_vectors_are_read_and_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "v.rvf")
    with wd.VectorStore.create(path, dim=2) as store:
        store.add(np.eye(2), metadata=[{"label": "a", "n": 1}, {"label": "b", "n": 2}])

    def run(*words: str) -> object:
        assert main(["vectors", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert run("update", path, "1", "--set", "label=cat", "--set", "n=7") == {"updated": 1}
    assert run("get", path, "1") == [{"id": 1, "vector": [0, 1], "metadata": {"label": "cat", "n": 7}}]
    assert run("scroll", path, "--where", "n > 5", "--columns", "n") == [{"id": 1, "n": 7}]
    assert run("search", path, "1,0", "-k", "1", "--recall", "0.9", "--columns", "label") == [
        {"id": 0, "distance": 0, "metadata": {"label": "a"}}
    ]
    assert run("delete", path, "--where", "label = 'cat'") == {"deleted": 1, "vectors": 1}
    assert run("delete", path, "0", "5") == {"deleted": 1, "vectors": 0}
    assert main(["vectors", "update", path, "0", "--set", "n"]) == 2
