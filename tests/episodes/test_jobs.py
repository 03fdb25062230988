"""Work on many episodes: where it is done changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.ray.sets import made, publish_arm
from tests.waiting import until
from warpdata.episodes.collection.jobs import Here, Processes, runner_of
from warpdata.errors import ChecksumError, WarpError


def squared(position: int) -> int:
    return position * position


def raising(position: int) -> int:
    raise ChecksumError(f"position {position} is damaged", path="somewhere")


def dying(position: int) -> int:
    os._exit(position)


@pytest.mark.parametrize("runner", [Here(), Processes(2)], ids=["here", "processes"])
def test_every_position_comes_once(runner) -> None:
    assert sorted(runner.run(squared, range(3, 9))) == [(k, k * k) for k in range(3, 9)]
    assert list(runner.run(squared, [])) == []
    with pytest.raises(ChecksumError, match=r"position [34] is damaged"):
        list(runner.run(raising, [3, 4]))


def test_a_killed_process_is_an_error_of_ours() -> None:
    with pytest.raises(WarpError, match="was killed"):
        list(Processes(2).run(dying, [3, 4]))


def test_no_process_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        runner_of(0)
    with pytest.raises(ValueError, match="choose one"):
        wd.check_dataset("lab/arm", jobs=2, ray=True)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    """A folder of shards: one damaged, one much longer than the others."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(9):
        wd.pack_episode(made(number, steps=400 if number == 4 else 20), folder / f"ep{number:02d}.wshard")
    data = bytearray((folder / "ep02.wshard").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (folder / "ep02.wshard").write_bytes(data)
    return folder


def test_processes_find_what_one_finds(damaged: Path) -> None:
    steps: list[tuple[int, int]] = []
    alone = wd.check_dataset(damaged)
    together = wd.check_dataset(damaged, jobs=2, progress=lambda *each: steps.append(each))
    assert together == alone
    rules = {(each.rule, each.episode) for each in alone.findings}
    assert ("damaged-file", "ep02.wshard") in rules
    assert ("outlier-length", "ep04.wshard") in rules
    assert steps == [(k, 9) for k in range(1, 10)]


def test_published_and_recorded_sets_too(tmp_path: Path) -> None:
    publish_arm(str(tmp_path / "catalog"), 9, odd=4)
    options = {"catalog": tmp_path / "catalog"}
    alone = wd.check_dataset("lab/arm", **options)
    assert "outlier-length" in {each.rule for each in alone.findings}
    assert wd.check_dataset("lab/arm", jobs=2, **options) == alone
    root = tmp_path / "root"
    for number in range(3):
        with wd.record(root) as recorder:
            for step in range(12):
                recorder.append("joints", np.full(3, float(number)), ts_ns=step * 10**8)
    wd.open_recordings(root).edits.drop(1)
    alone = wd.check_dataset(root)
    assert alone.findings
    assert alone.episodes == 2
    assert wd.check_dataset(root, jobs=2) == alone


def noting(position: int, folder: str = "") -> int:
    """Says who works, and goes on for longer than any test."""
    (Path(folder) / f"{os.getpid()}").touch()
    until(lambda: False)
    return position


def test_processes_end_with_the_one_they_work_for(tmp_path: Path) -> None:
    """Whoever is killed says goodbye to nobody: what it started must not go on, or the next run has rivals."""
    program = (
        "from functools import partial\n"
        "from tests.episodes.test_jobs import noting\n"
        "from warpdata.episodes.collection.jobs import Processes\n"
        "if __name__ == '__main__':\n"
        f"    list(Processes(2).run(partial(noting, folder={str(tmp_path)!r}), [0, 1, 2]))\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    workers: list[int] = []
    try:
        until(lambda: len([each for each in tmp_path.iterdir() if each.name.isdigit()]) == 2)
        workers += [int(each.name) for each in tmp_path.iterdir() if each.name.isdigit()]
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(map(_is_running, workers)), "they go on")


def _is_running(pid: int) -> bool:
    """Whether a process is there and no mere entry that waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
