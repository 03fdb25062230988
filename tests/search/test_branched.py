"""Files of the runtime that inherit vectors from a parent file beside them: all of them, or an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, StoreError, TruncatedError


@pytest.fixture
def child(tmp_path: Path) -> Path:
    path = tmp_path / "child.rvf"
    shutil.copyfile(shared_golden("rvf", "runtime", "node_child_branch.rvf"), path)
    return path


def parent_of(child: Path) -> Path:
    return child.with_name("node_parent.rvf")


def found(path: Path) -> list[int]:
    with wd.VectorStore.open(path) as store:
        return sorted(store.search(np.ones(store.dim, np.float32), k=100)[0].tolist())


def test_it_has_what_its_parent_shows_it(child: Path) -> None:
    shutil.copyfile(shared_golden("rvf", "runtime", "node_parent.rvf"), parent_of(child))
    assert len(found(child)) == 30


def test_without_its_parent(child: Path) -> None:
    with pytest.raises(BlobNotFoundError, match=r"node_parent\.rvf"):
        found(child)
    parent_of(child).mkdir()
    with pytest.raises(StoreError, match="a folder"):
        found(child)


@pytest.mark.parametrize("other", ["node_d8_deleted.rvf", "node_d384_100.rvf", "node_child_branch.rvf"])
def test_a_stranger_is_no_parent(child: Path, other: str) -> None:
    shutil.copyfile(shared_golden("rvf", "runtime", other), parent_of(child))
    with pytest.raises(CorruptLayoutError, match="is not the parent of this file"):
        found(child)


def test_a_parent_that_was_cut_off_hides_nothing(child: Path) -> None:
    """Wherever it is cut: it opens as it was some commits ago, and lacks what came later."""
    whole = shared_golden("rvf", "runtime", "node_parent.rvf").read_bytes()
    for size in range(0, len(whole), 50):
        parent_of(child).write_bytes(whole[:size])
        with pytest.raises((CorruptLayoutError, TruncatedError)):
            found(child)
