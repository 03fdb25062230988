"""Names that some disks take for one, on a disk that does and on one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warpdata.bytekit.io import filenames
from warpdata.bytekit.io.filenames import folded, keep_apart, tells_apart
from warpdata.errors import ConflictError, StoreError


def test_names_that_are_one() -> None:
    assert folded("Cam") == folded("cAM")
    assert folded("caf\u00e9") == folded("CAFE\u0301")
    assert folded("cam0") != folded("cam1")


def test_the_disk_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tells_apart(tmp_path), "tests run on a disk that tells case apart"
    there = os.path.lexists
    monkeypatch.setattr(
        os.path, "lexists", lambda path: any(there(str(path).replace(os.path.basename(path), each.name))
        for each in tmp_path.iterdir() if each.name.lower() == os.path.basename(path).lower())
    )  # fmt: skip
    assert not tells_apart(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError):
        tells_apart(tmp_path / "absent")


def test_only_names_that_meet_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, str] = {}
    for name in ("Cam", "cam", "Cam"):
        keep_apart(name, taken, tmp_path)
    monkeypatch.setattr(filenames, "tells_apart", lambda folder: False)
    keep_apart("arm", taken, tmp_path)
    keep_apart("Cam", taken, tmp_path)
    with pytest.raises(ConflictError, match="'cam' and 'Cam'"):
        keep_apart("cam", taken, tmp_path)
