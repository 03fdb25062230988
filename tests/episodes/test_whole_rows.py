"""A step is in a salvaged recording as a whole row, or not at all; and cameras are served in turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_single_writers import die
from warpdata.episodes.record.threads import Workers
from warpdata.episodes.salvage.recordings import salvage_folder

ROWS = 30


def record_and_die(target: Path, kill_at: int | None, *, camera: bool) -> None:
    """Record whole rows, then die in the middle of the next one, after `kill_at` of its values."""
    recorder = wd.record(target, clock="simulated")

    def step(number: int) -> None:
        seen = {"state": np.full(3, number, np.float32), "word": str(number)}
        if camera:
            seen["camera"] = np.full((16, 16, 3), number, np.uint8)
        recorder.step(seen, {"push": number}, reward=float(number), terminated=False, ts_ns=number * 10)

    for number in range(ROWS):
        step(number)
    if kill_at is None:
        return
    calls = 0

    def killing(append: Callable[..., None]) -> Callable[..., None]:
        def append_or_die(*args: object) -> None:
            nonlocal calls
            if calls == kill_at:
                os._exit(0)
            calls += 1
            append(*args)

        return append_or_die

    for signal in recorder._signals.values():
        signal.append = killing(signal.append)  # type: ignore[method-assign]
    step(ROWS)


@pytest.mark.parametrize("name", ["root", "one.wshard"])
@pytest.mark.parametrize("camera", [False, True])
@pytest.mark.parametrize("kill_at", [None, 0, 1, 2, 4, 5])
def test_a_torn_row_is_dropped_and_counted(
    tmp_path: Path, kill_at: int | None, camera: bool, name: str
) -> None:
    if kill_at == 5 and not camera:
        pytest.skip("the row has five values")
    target = tmp_path / name
    die(lambda: record_and_die(target, kill_at, camera=camera))
    (receipt,) = salvage_folder(target)
    assert receipt.is_complete
    assert receipt.rows_dropped == bool(kill_at)
    assert ("1 row that was being recorded was dropped" in str(receipt)) == bool(kill_at)
    episode = wd.open(target) if name.endswith(".wshard") else wd.open(target)[0]
    assert {signal: len(rows) for signal, rows in episode.signals.items()} == dict.fromkeys(
        ("state", "word", *(["camera"] if camera else []), "push", "reward", "terminated"), ROWS
    )
    assert np.asarray(episode.steps.rewards[:]).tolist() == list(range(ROWS))


def test_what_append_adds_to_the_signal_of_a_row_is_kept(tmp_path: Path) -> None:
    def work() -> None:
        recorder = wd.record(tmp_path / "root", clock="simulated")
        recorder.step({"state": 1.0}, {"push": 1.0}, ts_ns=1)
        recorder.append("state", 2.0, 2)

    die(work)
    (receipt,) = salvage_folder(tmp_path / "root")
    assert (receipt.rows_dropped, receipt.channels) == (0, {"state": 2, "push": 1})


def test_more_cameras_than_encoders_are_served_in_turn() -> None:
    """The queue that waits longest is next: none stands still while another goes on."""
    workers = Workers("test-encoder", 1)
    queues = [workers.queue(1000) for _ in range(4)]
    done: list[int] = []
    gate = threading.Event()
    queues[0].submit(gate.wait)  # everything is queued before the first job runs
    for _ in range(25):
        for number, queue in enumerate(queues):
            queue.submit(lambda number=number: done.append(number))
    workers.start()
    gate.set()
    workers.close()
    assert len(done) == 100
    for first in range(0, 96, 4):
        assert len(set(done[first : first + 8])) == 4
