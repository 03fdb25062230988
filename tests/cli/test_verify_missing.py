"""`warp verify` of what is not there or cannot be read says so: only damage is called damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpdata.cli.main import main


@pytest.mark.parametrize("name", ["missing.wshard", "missing.rvf", "missing.shard", "nobody/nothing"])
def test_missing_is_not_called_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    assert main(["verify", name]) == 1
    shown = capsys.readouterr().out
    assert f"{name}: not found" in shown
    assert ": damaged" not in shown
    assert main(["verify", "--json", name]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["status"] == "not found"
    assert not any(each["is_damage"] for each in report["findings"])


def test_a_folder_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "not read" in shown
    assert "folder" in shown
    assert "Errno" not in shown


def test_a_sound_file_of_another_kind_is_not_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, status, code in (
        ("notes.txt", "not read", 1),
        ("corpus.json", "not read", 1),
        ("a.rvf", "damaged", 3),
    ):
        (tmp_path / name).write_text("{}")
        assert main(["verify", str(tmp_path / name)]) == code
        assert f"{name}: {status}" in capsys.readouterr().out


def test_damage_outweighs_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.wshard"
    bad.write_bytes(b"SHRD" + bytes(100))
    assert main(["verify", str(tmp_path / "missing.wshard"), str(bad)]) == 3
    shown = capsys.readouterr().out
    assert "bad.wshard: damaged" in shown
    assert "missing.wshard: not found" in shown


@pytest.mark.parametrize("command", ["unpack", "verify"])
def test_a_folder_where_a_file_is_expected(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    more = ["-o", str(tmp_path / "out")] if command == "unpack" else []
    assert main([command, str(tmp_path / "folder"), *more]) == 1
    printed = capsys.readouterr()
    assert "a folder" in printed.out + printed.err or "not an episode directory" in printed.err
    assert "Errno" not in printed.out + printed.err
