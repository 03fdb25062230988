"""Our own golden vector files, of this tree and of every release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.make_golden_rvf import commits, copies, describe, indexed, log, parts, plain, whole

from tests.conftest import OWN_GOLDEN
from warpdata.search.store import VectorStore

COMPAT = Path(__file__).parent.parent / "compat" / "rvf"
FILES = sorted([*(OWN_GOLDEN / "rvf").glob("*.rvf"), *COMPAT.glob("*/*.rvf")])


def test_there_are_files() -> None:
    assert len(FILES) >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_golden_files_read_as_ever(path: Path) -> None:
    assert describe(path) == json.loads(path.with_suffix(".json").read_text())
    with VectorStore.open(path) as store:
        assert store.verify() == []
        assert store.dialect == "wire"


@pytest.mark.parametrize("make", [plain, indexed, parts, commits, log, copies, whole])
def test_the_tool_makes_the_same_contents_again(make: object, tmp_path: Path) -> None:
    path = tmp_path / "again.rvf"
    make(path)  # type: ignore[operator]
    expected = json.loads((OWN_GOLDEN / "rvf" / f"{make.__name__}.json").read_text())  # type: ignore[attr-defined]
    # How many small segments are merged when is the writer's own choice.
    for each in (found := describe(path)), expected:
        each["segments"] = sorted(set(each["segments"]) - {"WITNESS"})  # which earlier writers added
    assert found == expected


def test_a_file_that_is_written_whole_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    whole(tmp_path / "again.rvf")
    assert (tmp_path / "again.rvf").read_bytes() == (OWN_GOLDEN / "rvf" / "whole.rvf").read_bytes()
    with VectorStore.open(tmp_path / "again.rvf") as store:
        assert store.notes == {"embedder": "state", "per": "step"}
