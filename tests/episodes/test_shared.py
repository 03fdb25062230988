"""One episode recorded by several processes: joining, leaving, dying and restarting in any order loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import ROOT
from tests.episodes.test_single_writers import die
from tests.sweeps import thinned
from tests.waiting import LIMIT_S, until
from warpdata.errors import ConflictError, RecordingError, WriterClosedError

TARGETS = ["root", "one.wshard"]


def opened(target: Path) -> Any:
    return wd.open(target) if target.suffix == ".wshard" else wd.open(target)[0]


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0 if sys.exc_info()[0] is None else 1)


def wait_for(*children: int) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.parametrize("name", TARGETS)
def test_signals_of_all_processes_are_in_one_episode(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    with wd.record(target, episode="take-1", clock="simulated", static={"task": "pick"}) as first:

        def other() -> None:
            with wd.record(target, episode="take-1", clock="simulated") as rec:
                for k in range(30):
                    rec.append("arm/camera", np.full((16, 16, 3), 5 * k, np.uint8), k * 10)
                rec.mark(success=True, task="place")

        for k in range(50):
            first.step({"joints": np.float32([k, -k])}, {"torque": float(k)}, reward=1.0, ts_ns=k * 10)
        assert wait_for(in_child(other)) == [0]
        assert not list(wd.open(target)) if name == "root" else not target.exists()
    episode = opened(target)
    assert {key: len(rows) for key, rows in episode.signals.items()} == {
        "joints": 50, "torque": 50, "reward": 50, "arm/camera": 30,
    }  # fmt: skip
    assert dict(episode.static) == {"success": True, "task": "place"}
    assert episode["joints"].values()[:, 0].tolist() == list(range(50))
    assert [round(float(frame.mean()) / 5) for frame, _ in episode["arm/camera"]] == list(range(30))
    assert len(episode.steps.actions["torque"]) == 50
    assert first.receipt is not None
    assert [part.steps_kept for part in first.receipt.processes] == [30, 150] or [
        part.steps_kept for part in first.receipt.processes
    ] == [150, 30]
    assert first.receipt.episode_id == episode.id
    assert Path(str(first.receipt.output)).exists()
    assert not [path for path in tmp_path.rglob("*") if ".recording" in path.name]
    with pytest.raises(ConflictError, match=r"is finished|target exists"):
        wd.record(target, episode="take-1", clock="simulated")


@pytest.mark.parametrize("name", TARGETS)
def test_a_process_that_dies_hurts_no_other(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    with wd.record(target, episode="e", clock="simulated") as rec:
        rec.append("mine", 1.0, 1)

        def dying() -> None:
            other = wd.record(target, episode="e", clock="simulated")
            for k in range(100):
                other.append("theirs", k, k)
            other.mark(seen=True)

        die(dying)
        rec.append("mine", 2.0, 2)
    episode = opened(target)
    assert episode["mine"].values().tolist() == [1.0, 2.0]
    assert episode["theirs"].values().tolist() == list(range(100))
    assert episode["seen"] is True
    assert rec.receipt is not None
    assert rec.receipt.is_complete
    died = [part for part in rec.receipt.processes if part.why != "closed"]
    assert [(part.steps_kept, part.channels) for part in died] == [(100, {"theirs": 100})]
    assert "1 of 2 processes ended without closing" in str(rec.receipt)
    assert episode.meta["salvaged"]["processes"]


@pytest.mark.parametrize("name", TARGETS)
def test_salvage_finishes_an_episode_whose_processes_all_died(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    for number in range(3):
        die(
            lambda number=number: [
                rec := wd.record(target, episode="e", clock="simulated"),
                *[rec.append(f"s{number}", k, k) for k in range(10)],
            ]
        )
    if name == "root":
        [unfinished] = wd.open(target).unfinished
        assert unfinished.records == {"s0": 10, "s1": 10, "s2": 10}
        assert not unfinished.is_live
    receipt = wd.salvage(target)
    assert receipt.is_complete
    assert {key: rows.values().tolist() for key, rows in opened(target).signals.items()} == {
        f"s{number}": list(range(10)) for number in range(3)
    }


def test_a_name_that_another_process_records_is_refused_at_its_first_record(tmp_path: Path) -> None:
    first = wd.record(tmp_path / "root", episode="e", clock="simulated")
    second = wd.record(tmp_path / "root", episode="e", clock="simulated")
    first.append("x", 1.0, 1)
    with pytest.raises(RecordingError, match="recorded by another process"):
        second.append("x", 1.0, 1)
    with pytest.raises(RecordingError, match="is a signal"):
        second.mark(x=1)
    second.append("y", 1.0, 1)
    first.close()
    second.close()
    assert sorted(wd.open(tmp_path / "root")[0].signals) == ["x", "y"]


def test_the_environment_names_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_EPISODE", "from-the-shell")
    with wd.record(tmp_path / "root") as first, wd.record(tmp_path / "root") as second:
        first.append("x", 1.0)
        second.append("y", 2.0)
    with wd.record(tmp_path / "root", episode="another") as third:
        third.append("x", 3.0)
    assert [set(episode.signals) for episode in wd.open(tmp_path / "root")] == [{"x", "y"}, {"x"}]
    assert wd.open(tmp_path / "root")[0].meta["episode"] == "from-the-shell"


def test_processes_with_different_clocks_are_refused(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", episode="e") as rec:
        with pytest.raises(ConflictError, match="expected 'monotonic', got 'wall'"):
            wd.record(tmp_path / "root", episode="e", clock="wall")
        rec.append("x", 1.0)
    assert len(wd.open(tmp_path / "root")) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_recorded_leaves_nothing(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    first, second = (wd.record(target, episode="e", clock="simulated") for _ in range(2))
    first.append("x", 1.0, 1)
    first.discard()
    second.close()
    assert not [path for path in tmp_path.rglob("*") if path.name.isdigit() and path.parent.name.isdigit()]
    assert not target.is_file()
    with wd.record(target, episode="e", clock="simulated") as again:
        again.append("x", 2.0, 1)
    assert opened(target)["x"].values().tolist() == [2.0]


def test_a_name_is_one_part(tmp_path: Path) -> None:
    for name in ("a/b", "..", ""):
        with pytest.raises(ValueError):
            wd.record(tmp_path / "root", episode=name)
    assert not list(tmp_path.rglob("0*"))


@pytest.mark.parametrize("name", TARGETS)
def test_the_owner_ends_the_episode_for_all(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    owner = wd.record(target, episode="e")
    owner.append("mine", 1.0)

    def other() -> None:
        with wd.record(target, episode="e") as rec:
            rec.append("theirs", 0)
            (tmp_path / "joined").touch()
            with pytest.raises(WriterClosedError, match="ended by process"):
                until(lambda: rec.append("theirs", 1), "the end is not noticed", pause_s=0.01)
            (tmp_path / "noticed").touch()

    child = in_child(other)
    until((tmp_path / "joined").exists, "nobody joins")
    assert owner.end_episode(timeout_s=LIMIT_S)
    assert wait_for(child) == [0]
    assert (tmp_path / "noticed").exists()
    assert set(opened(target).signals) == {"mine", "theirs"}


def test_a_live_episode_of_several_processes_can_be_read(tmp_path: Path) -> None:
    first = wd.record(tmp_path / "root", episode="e", clock="simulated")
    second = wd.record(tmp_path / "root", episode="e", clock="simulated")
    first.append("x", 1.0, 1)
    second.append("y", 2.0, 1)
    second.close()
    episode = wd.open(tmp_path / "root").live().episode
    assert {key: rows.values().tolist() for key, rows in episode.signals.items()} == {"x": [1.0], "y": [2.0]}
    [unfinished] = wd.open(tmp_path / "root").unfinished
    assert (unfinished.is_live, unfinished.records) == (True, {"x": 1, "y": 1})
    first.close()
    assert len(wd.open(tmp_path / "root")[0].signals) == 2


@pytest.mark.parametrize("name", TARGETS)
def test_only_the_owner_ends_the_episode(tmp_path: Path, name: str) -> None:
    target = tmp_path / name

    def own() -> None:
        rec = wd.record(target, episode="e", clock="simulated")
        rec.append("owner", 0, 0)

    die(own)
    second, third = (wd.record(target, episode="e", clock="simulated") for _ in range(2))
    third.append("third", 0, 0)
    third.close()  # with a process that still records it the episode goes on
    second.append("second", 0, 0)
    assert second.end_episode()  # the owner is gone
    assert set(opened(target).signals) == {"owner", "second", "third"}
    first, other = (wd.record(tmp_path / f"again-{name}", episode="f", clock="simulated") for _ in range(2))
    first.append("x", 1, 1)
    with pytest.raises(RecordingError, match=f"belongs to process {os.getpid()}"):
        other.end_episode()
    other.append("y", 1, 1)  # it goes on
    other.close()
    assert first.end_episode()


@pytest.mark.parametrize("name", TARGETS)
def test_a_restarted_process_continues_its_signals(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    keeper = wd.record(target, episode="e", clock="simulated")
    keeper.append("keeper", 0, 0)

    def run(first: int, *, dies: bool) -> None:
        rec = wd.record(target, episode="e", clock="simulated")
        for k in range(first, first + 20):
            rec.append("joints", np.float32([k, -k]), k)
            rec.append("log", f"{k}", k)
            rec.append("camera", np.full((16, 16, 3), 4 * k, np.uint8), k)
        rec.append("clock", first, 0)  # begins at 0 again: does not follow what was there
        if not dies:
            rec.close()

    for number in range(3):
        die(lambda number=number: run(20 * number, dies=number != 1))
    live = {key: len(signal) for key, signal in keeper_signals(keeper).items()}
    assert live["joints"] == live["log"] == 60
    keeper.close()
    episode = opened(target)
    assert episode["joints"].values()[:, 0].tolist() == list(range(60))
    assert [text for text, _ in episode["log"]] == [str(k) for k in range(60)]
    assert [round(float(image.mean()) / 4) for image, _ in episode["camera"]] == list(range(60))
    assert sorted(int(episode[key][0][0]) for key in ("clock", "clock-2", "clock-3")) == [0, 20, 40]
    assert keeper.receipt is not None
    assert keeper.receipt.is_complete
    assert [part.steps_kept for part in keeper.receipt.processes].count(61) == 3
    assert not [finding for finding in wd.check_dataset(target).findings if finding.severity == "damaged"]


def keeper_signals(keeper: Any) -> dict[str, Any]:
    from warpdata.episodes.salvage.live import LiveEpisode

    folder = keeper._shared.directory
    return dict(LiveEpisode(folder).episode.signals)


RUN_NS = 1_000_000
"""Times of a restarted process begin so much later than those of the one before."""


def worker(
    target: str, signal_number: int, run: int, acknowledged: Any, index: int, seed: int, ends: str
) -> None:
    """Record until killed, or for a while; `acknowledged[index]` is how many records were."""
    rng = random.Random(seed)
    is_camera = signal_number % 3 == 2
    with wd.record(target, episode="e", clock="simulated", durability="10ms") as rec:
        for k in range(10**9 if ends == "killed" else rng.randrange(1, 80)):
            value: Any = np.full((16, 16, 3), k % 250, np.uint8) if is_camera else np.array([k, run])
            rec.append(f"s/{signal_number}", value, run * RUN_NS + k)
            acknowledged[index] = k + 1
            if rng.random() < 0.1:
                time.sleep(0.001)


@pytest.mark.parametrize("seed", thinned(range(100), 4))
def test_processes_that_join_leave_die_and_restart(tmp_path: Path, seed: int) -> None:
    record_by_processes(tmp_path, seed)


def record_by_processes(folder: Path, seed: int) -> dict[str, int]:
    """A random history: every acknowledged record is in the finished episode, whichever process finished it."""
    rng = random.Random(seed)
    target = folder / rng.choice(TARGETS)
    context = get_context("fork")
    total = 10
    acknowledged = context.Array("q", total, lock=False)
    kills = 0
    running: dict[int, Any] = {}
    free: list[tuple[int, int]] = []
    """Signals whose process died or left, and the next run of each."""
    history: dict[int, list[int]] = {}
    begun = 0
    keeper = wd.record(target, episode="e", clock="simulated")
    keeper.append("keeper", 0, 0)
    while begun < total or running:
        if begun < total and (not running or rng.random() < 0.5):
            ends = rng.choice(["killed", "killed", "closed"])
            number, run = free.pop(rng.randrange(len(free))) if free and rng.random() < 0.6 else (begun, 0)
            history.setdefault(number, []).append(begun)
            process = context.Process(
                target=worker, args=(str(target), number, run, acknowledged, begun, rng.random(), ends)
            )
            process.start()
            running[begun] = (process, ends, number, run)
            begun += 1
            continue
        index = rng.choice(list(running))
        process, ends, number, run = running.pop(index)
        if ends == "killed":
            wanted = rng.randrange(0, 60)
            until(
                lambda index=index, wanted=wanted: acknowledged[index] >= wanted, "a process does not record"
            )
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join(LIMIT_S)
        assert process.exitcode == (-signal.SIGKILL if ends == "killed" else 0)
        free.append((number, run + 1))
    if rng.random() < 0.5:
        keeper.close()
        assert keeper.receipt is not None
        assert keeper.receipt.is_complete
    else:
        keeper._leave()
        assert wd.salvage(target).is_complete
    episode = opened(target)
    for number, runs in history.items():
        counts = [acknowledged[index] for index in runs]
        if not sum(counts):
            continue
        rows = episode[f"s/{number}"]
        which, places = np.divmod(rows.timestamps, RUN_NS)
        for run, count in enumerate(counts):
            of_run = which == run
            assert of_run.sum() >= count, (number, run)
            assert places[of_run].tolist() == list(range(of_run.sum()))
        if number % 3 == 2:
            means = [round(float(frame.mean())) for frame, _ in rows]
            assert np.abs(np.array(means) - places % 250).max() <= 3
        else:
            assert rows.values().tolist() == np.stack([places, which], 1).tolist()
    assert not [path for path in folder.rglob("*") if ".recording" in path.name]
    return {"processes": begun, "kills": kills, "acknowledged": sum(acknowledged)}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "moment", ["join_parts", "commit_together", "write_file", "remove_folder", "pack_episode"]
)
def test_a_process_killed_while_it_finishes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    from warpdata.episodes.record import recorder, shared
    from warpdata.episodes.salvage import finish as parts

    target = tmp_path / name
    if moment == "pack_episode" and name == "root":
        pytest.skip("nothing is packed")

    def record() -> None:
        module = {"join_parts": shared, "pack_episode": recorder}.get(moment, parts)
        first = wd.record(target, episode="e", clock="simulated")
        second = wd.record(target, episode="e", clock="simulated")
        for k in range(20):
            first.append("x", k, k)
            second.append("cam", np.full((16, 16, 3), 10 * k, np.uint8), k)
        first.close()
        monkeypatch.setattr(module, moment, lambda *_, **__: os._exit(0))
        second.close()

    die(record)
    assert wd.salvage(target).is_complete
    episode = opened(target)
    assert episode["x"].values().tolist() == list(range(20))
    assert len(episode["cam"]) == 20
    assert not [path for path in tmp_path.rglob("*") if ".recording" in path.name]


def test_the_robot_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/robot_processes.py"), str(tmp_path / "robot")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 3 processes ended without closing" in done.stdout
    assert "nothing lost (ended without closing)" in done.stdout
