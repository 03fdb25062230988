"""The commands of recorded episodes: what they print, their JSON, their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.waiting import LIMIT_S, until
from warpdata.cli.main import main
from warpdata.cli.terminal import human_time, sparkline


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "root"
    for seed in ("1", "2"):
        assert main(["record", "--demo", str(folder), "--duration", "1.2s", "--fast", "--seed", seed]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == code
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(run(capsys, *arguments, "--json", code=code))


def episode(root: Path, number: int = 0) -> str:
    return str(root / "000000000000" / f"{number:012d}")


def test_episodes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "episodes", str(root))
    assert "000000000001" in text
    assert "2 episodes, 0 unfinished" in text
    rows = run_json(capsys, "episodes", str(root))
    assert rows[0]["signals"] == [
        "action/joint_target",
        "joints",
        "force",
        "camera/front",
        "camera/wrist",
        "events",
    ]
    assert rows[0]["bytes"] > 1000
    assert main(["episodes", str(root / "absent")]) == 1


def test_show(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = run(capsys, "show", episode(root))
    assert "joints" in text
    assert "▁" in text
    assert "200.0 Hz" in text
    assert 'robot = "simulated two-arm robot"' in text
    found = run_json(capsys, "show", episode(root))
    assert {row["name"]: row["count"] for row in found["signals"]}["joints"] == 120
    run(capsys, "pack", episode(root), "--output", str(tmp_path / "e.wshard"))
    assert "joints" in run(capsys, "show", str(tmp_path / "e.wshard"))
    run(capsys, "unpack", str(tmp_path / "e.wshard"), "--output", str(tmp_path / "again"))
    assert len(wd.open_episode(tmp_path / "again")["camera/front"]) == 30


def test_replay(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "records played" in run(capsys, "replay", episode(root), "--fast")
    found = run_json(capsys, "replay", episode(root), "--speed", "50", "--signal", "force")
    assert found == {"played": 240, "records": {"force": 240}}
    assert main(["replay", episode(root), "--fast", "--signal", "nope"]) == 2


def test_check_and_its_exit_codes(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import shutil

    assert "episodes" in run(capsys, "check", str(root))
    assert "frozen-camera" in run(capsys, "check", "--rules")
    shutil.copytree(root, tmp_path / "copy")
    broken = tmp_path / "copy" / "000000000000" / "000000000000" / "joints.parquet"
    broken.write_bytes(broken.read_bytes()[:-20])
    found = run_json(capsys, "check", str(tmp_path / "copy"), code=3)
    assert found["is_damaged"]
    assert any(f["signal"] == "joints" and f["rule"] == "damaged-file" for f in found["findings"])
    text = run(capsys, "show", str(broken.parent), code=3)
    assert "error[truncated]" in text
    assert "force" in text
    assert main(["check"]) == 2


def test_edits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "dry run" in run(capsys, "edits", "drop", f"{root}#0", "--dry-run")
    assert not (root / "edits.jsonl").exists()
    run(capsys, "edits", "drop", str(root), "0")
    run(capsys, "edits", "set", f"{root}#1", 'task={"a": 1}')
    assert wd.LocalDataset(root).ids == ["000000000001"]
    assert wd.LocalDataset(root)[0].static["task"] == {"a": 1}
    assert "set_static" in run(capsys, "edits", "list", str(root))
    run(capsys, "edits", "undo", str(root))
    run(capsys, "edits", "undrop", f"{root}#0")
    assert len(wd.LocalDataset(root)) == 2
    assert main(["edits", "drop", str(root), "77"]) == 2
    assert main(["edits", "undo", str(root), "77"]) == 2


def test_record_stops_at_ctrl_c_and_salvage_takes_a_root(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warpdata"]
    child = subprocess.Popen([*command, "record", "--demo", str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        until(
            lambda: any(e.records.get("joints", 0) > 10 for e in wd.LocalDataset(tmp_path).unfinished),
            pause_s=0.05,
        )
        child.send_signal(signal.SIGINT)
        assert child.wait(LIMIT_S) == 0
    finally:
        child.kill()
    assert len(wd.LocalDataset(tmp_path)[0]["joints"]) > 10
    done = subprocess.run([*command, "salvage", str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, "nothing to salvage" in done.stdout) == (0, True)
    assert main(["record", "--demo", str(tmp_path), "--fast"]) == 2


def test_sparklines() -> None:
    assert sparkline([]) == ""
    assert sparkline([1, 1, 1]) == "▁▁▁"
    assert sparkline([0, float("nan"), 7]) == "▁·█"
    assert len(sparkline(list(range(1000)), 24)) == 24
    assert [human_time(t) for t in (None, 5_000_000, 3 * 10**9, 3725 * 10**9)] == [
        "-",
        "5.0 ms",
        "3.00 s",
        "1:02:05",
    ]
