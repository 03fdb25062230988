"""`warp verify FOLDER` looks at everything of ours in it: nothing damaged hides behind an `ok`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One of everything: shards, chunks, a root, a corpus, vectors, a catalog; and what is not ours."""
    made = wd.WShardEpisode(id="e", env_id="Arm", length=12)
    made.observations["a"] = np.arange(24.0).reshape(12, 2)
    wd.save_wshard(made, tmp_path / "e.wshard")
    wd.chunk_episode(made, tmp_path / "cut" / "chunks", steps=5)
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        for step in range(10):
            recorder.append("joints", np.full(3, step, np.float32), step * 10_000_000)
    with wd.CorpusWriter(tmp_path / "corpus", 8, dtype="f32") as corpus:
        corpus.append(np.ones((50, 8), np.float32))
    (tmp_path / "index").mkdir()
    with wd.VectorStore.create(tmp_path / "index" / "v.rvf", dim=8) as store:
        # Too many for the log of small commits, which is of no more use once the store is closed.
        store.add(np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32))
    with wd.DatasetBuilder("lab/rows", catalog=tmp_path / "catalog") as builder:
        builder.add_table("main", {"n": list(range(5000))}).publish()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_text("not ours")
    os.symlink(tmp_path, tmp_path / "notes" / "back")
    return tmp_path


def verified(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, str]]:
    """The exit code, and what was said of each thing."""
    code = main(["verify", "--json", *map(str, words)])
    reports: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return code, {os.path.basename(each["path"].partition("@")[0]): each["status"] for each in reports}


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0xFF
    path.write_bytes(data)


THINGS: dict[str, Callable[[Path], tuple[Path, float]]] = {
    "chunks": lambda at: (at / "cut" / "chunks" / "e_chunk_0001.wshard", 0.9),
    "root": lambda at: (next((at / "root").rglob("joints.parquet")), 0.3),
    "corpus": lambda at: (at / "corpus" / "shard-000000.shard", 0.5),
    "v.rvf": lambda at: (at / "index" / "v.rvf", 0.45),
    "rows": lambda at: (
        max((at / "catalog" / "blobs").rglob("*"), key=lambda each: each.stat().st_size),
        0.5,
    ),
}


def test_each_thing_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = verified(capsys, folder)
    assert code == 0
    assert said == dict.fromkeys((folder.name, *THINGS), "ok")


@pytest.mark.parametrize("thing", THINGS)
def test_the_damaged_one_is_found_and_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str], thing: str
) -> None:
    flip(*THINGS[thing](folder))
    code, said = verified(capsys, folder)
    assert code == 3
    assert {name for name, status in said.items() if status != "ok"} == {thing}
    assert said[thing] == "damaged"


def test_files_whose_first_bytes_are_damaged_are_not_passed_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / "index" / "v.rvf", 0)
    assert verified(capsys, folder / "index") == (3, {"v.rvf": "damaged"})


def test_a_folder_without_anything_of_ours_is_not_called_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "notes" / "back").unlink()
    assert verified(capsys, folder / "notes") == (1, {"notes": "not read"})
