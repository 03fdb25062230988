"""Names that some disks take for one, on a disk that does and on one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warpdata.bytekit.io import commit
from warpdata.bytekit.io.commit import check_case_clash, fold_name, is_case_sensitive
from warpdata.errors import ConflictError, StoreError


def test_names_that_are_one() -> None:
    assert fold_name("Cam") == fold_name("cAM")
    assert fold_name("caf\u00e9") == fold_name("CAFE\u0301")
    assert fold_name("cam0") != fold_name("cam1")


def test_the_disk_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_case_sensitive(tmp_path), "tests run on a disk that tells case apart"
    there = os.path.lexists
    monkeypatch.setattr(
        os.path, "lexists", lambda path: any(there(str(path).replace(os.path.basename(path), each.name))
        for each in tmp_path.iterdir() if each.name.lower() == os.path.basename(path).lower())
    )  # fmt: skip
    assert not is_case_sensitive(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError):
        is_case_sensitive(tmp_path / "absent")


def test_only_names_that_meet_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, str] = {}
    for name in ("Cam", "cam", "Cam"):
        check_case_clash(name, taken, tmp_path)
    monkeypatch.setattr(commit, "is_case_sensitive", lambda folder: False)
    check_case_clash("arm", taken, tmp_path)
    check_case_clash("Cam", taken, tmp_path)
    with pytest.raises(ConflictError, match="'cam' and 'Cam'"):
        check_case_clash("cam", taken, tmp_path)
