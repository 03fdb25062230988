"""Signals whose names differ in case only, on a disk that takes them for one: refused before anything is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io import commit
from warpdata.errors import ConflictError


@contextmanager
def case_blind_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit, "is_case_sensitive", lambda folder: False)
        yield


def record_both(root: Path) -> None:
    with wd.record(root, clock="simulated") as recording:
        for k in range(5):
            recording.append("Arm", np.float32(k), k)
            recording.append("arm", np.float32(-k), k)


def test_a_recorder_refuses_the_second_name(tmp_path: Path) -> None:
    with case_blind_disk(), wd.record(tmp_path / "root", clock="simulated") as recording:
        recording.append("Arm", np.float32(1), 1)
        with pytest.raises(ConflictError, match="'arm' and 'Arm'"):
            recording.append("arm", np.float32(2), 1)
        with pytest.raises(ConflictError, match="'arm' and 'Arm'"):
            recording.append("arm", np.float32(2), 2)
        recording.append("Arm", np.float32(3), 3)
    (episode,) = wd.open(tmp_path / "root")
    assert episode["Arm"].values().tolist() == [1, 3]


def test_a_copy_refuses_them_and_leaves_nothing(tmp_path: Path) -> None:
    record_both(tmp_path / "root")
    packed = wd.pack_episode(wd.open(tmp_path / "root")[0], tmp_path / "e.wshard")
    assert wd.open_episode(packed)["arm"].values().tolist() == [0, -1, -2, -3, -4]
    with case_blind_disk(), pytest.raises(ConflictError, match="'arm' and 'Arm'"):
        wd.unpack_episode(packed, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    again = wd.open_episode(wd.unpack_episode(packed, tmp_path / "unpacked"))
    assert (again["Arm"].values() == -again["arm"].values()).all()


def test_salvage_keeps_the_journal_of_the_second(tmp_path: Path) -> None:
    writer = wd.LocalDatasetWriter(tmp_path / "root").new_episode()
    for name in ("Arm", "arm", "leg"):
        writer.append(name, np.float32(len(name)), 1)
    writer._leave()
    (left,) = wd.LocalDataset(tmp_path / "root").unfinished
    with case_blind_disk():
        receipt = wd.salvage(left.path)
    assert "for one name" in str(receipt.to_json())
    (episode,) = wd.open(tmp_path / "root")
    assert set(episode.signals) == {"Arm", "leg"}
    assert [each for each in Path(left.path).rglob("*.journal")], "what was not finished stays"
