"""Episodes whose ids differ in case only, cut into one folder: on some disks the one would replace the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io import commit
from warpdata.errors import ConflictError


def cut(folder: Path, name: str, value: int) -> None:
    made = wd.WShardEpisode(id=name, length=6)
    made.observations["x"] = np.full((6, 2), value, np.float32)
    wd.chunk_episode(made, folder, steps=4, overwrite=True)


def first_value(folder: Path, name: str) -> float:
    episode = wd.open_episode(folder / f"{name}_manifest.wshard")
    return float(episode.tensors.observations["x"].data[0, 0])


@pytest.mark.parametrize("is_killed", [False, True], ids=["whole", "without its list"])
def test_the_chunks_of_another_episode_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    cut(tmp_path, "Ep", 1)
    kept = (tmp_path / "Ep_manifest.wshard").read_bytes()
    if is_killed:
        (tmp_path / "Ep_manifest.wshard").unlink()
    monkeypatch.setattr(commit, "is_case_sensitive", lambda folder: False)
    with pytest.raises(ConflictError, match="for one name"):
        cut(tmp_path, "ep", 2)
    cut(tmp_path, "other", 3)
    (tmp_path / "Ep_manifest.wshard").write_bytes(kept)
    assert (first_value(tmp_path, "Ep"), first_value(tmp_path, "other")) == (1, 3)
    cut(tmp_path, "Ep", 4)
    assert first_value(tmp_path, "Ep") == 4, "the same episode is cut anew"


def test_where_the_disk_tells_them_apart_both_are_there(tmp_path: Path) -> None:
    cut(tmp_path, "Ep", 1)
    cut(tmp_path, "ep", 2)
    assert (first_value(tmp_path, "Ep"), first_value(tmp_path, "ep")) == (1, 2)
