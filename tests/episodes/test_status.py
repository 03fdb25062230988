"""What a recorder says of itself while it records: true, small, and of no concern to any reader."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import warpdata as wd
from tests.waiting import LIMIT_S, until
from warpdata.episodes.record import camera as camera_module
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.salvage.recordings import salvage_folder
from warpdata.episodes.salvage.unfinished import STATUS_FILE, read_status
from warpdata.errors import WarpError
from warpdata.viewer.health import recording_state

DURABILITIES = ["none", "100ms", "record"]


def work_of(root: Path) -> Path:
    return next(root.rglob(".recording"))


@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_was_refused_is_counted_for_who_watches(tmp_path: Path, durability: str) -> None:
    with wd.record(tmp_path / "root", clock="simulated", durability=durability) as rec:
        rec.append("x", 1.0, 10)
        for late in (10, 9):
            with contextlib.suppress(WarpError):
                rec.append("x", 2.0, late)
        rec.step({"seen": 1.0}, {"done": 1.0}, ts_ns=20)
        with contextlib.suppress(WarpError):
            rec.step({"seen": 1.0}, {"done": 1.0}, ts_ns=5)
        work = work_of(tmp_path)
        until(lambda: read_status(work) is not None, "nothing is said")
        found = read_status(work)
        assert found is not None
        refused = {name: each.refused for name, each in found.signals.items() if each.refused}
        assert refused == {"x": 2, "seen": 1, "done": 1}
        state = recording_state("0", work.parent)
        assert (state["refused"], state["dropped"], state["blocked"], state["blocked_ns"]) == (4, 0, 0, 0)
    assert not list((tmp_path / "root").rglob(STATUS_FILE)), "it goes with the recording"
    assert list(wd.open_recordings(tmp_path / "root")[0]["x"].values()) == [1.0]


def test_a_slow_encoder_is_seen_while_it_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    encode = VideoFile.encode

    def slow(self: VideoFile, *given: Any) -> bool:
        go_on.wait(LIMIT_S)
        return encode(self, *given)

    monkeypatch.setattr(VideoFile, "encode", slow)
    monkeypatch.setattr(camera_module, "QUEUE_BYTES", (1, 1))
    frame = np.zeros((16, 16, 3), np.uint8)
    with wd.record(tmp_path / "root", clock="simulated") as rec:

        def feed() -> None:
            for number in range(4):
                rec.append("camera", frame, number)

        feeding = threading.Thread(target=feed)
        feeding.start()
        until(lambda: bool(list(tmp_path.rglob(STATUS_FILE))), "nothing is said")
        work = work_of(tmp_path)

        def camera() -> Any:
            found = read_status(work)
            return None if found is None else found.signals.get("camera")

        until(lambda: (said := camera()) is not None and said.blocked >= 1 and said.waiting == 2, "unseen")
        go_on.set()
        feeding.join()
        until(lambda: (said := camera()) is not None and not said.waiting and said.blocked_ns > 0, "stays so")
    assert len(wd.open_recordings(tmp_path / "root")[0]["camera"]) == 4


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
COUNTS = ("waiting", "blocked", "blocked_ns", "dropped", "refused")


def like_a_status(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The keys of a status, over whatever values."""
    counts = st.dictionaries(st.sampled_from([*COUNTS, "x"]), leaves)
    return st.fixed_dictionaries(
        {"written_ns": leaves, "signals": st.dictionaries(st.text(max_size=5), counts, max_size=3)}
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("status")


@given(
    st.binary(max_size=300) | (VALUES | like_a_status(VALUES)).map(lambda value: json.dumps(value).encode())
)
@example(b'{"written_ns": 1e999, "signals": {}}')
def test_whatever_lies_there_is_read_as_counts_or_as_nothing(work: Path, data: bytes) -> None:
    (work / STATUS_FILE).write_bytes(data)
    found = read_status(work)
    if found is not None:
        assert type(found.written_ns) is int
        assert min(found.total(each) for each in COUNTS) >= 0


@given(like_a_status(st.integers(0)))
def test_counts_are_read_as_they_are_said(work: Path, said: dict[str, Any]) -> None:
    (work / STATUS_FILE).write_bytes(json.dumps(said).encode())
    found = read_status(work)
    assert found is not None
    assert found.written_ns == said["written_ns"]
    for each in COUNTS:
        assert found.total(each) == sum(counts.get(each, 0) for counts in said["signals"].values())


def test_salvage_does_not_mind_it(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        rec.append("x", 1.0, 1)
        until((work_of(tmp_path) / "signals.journal").exists, "no journal")
        left = Path(shutil.copytree(tmp_path / "root", tmp_path / "left"))
    work = work_of(left)
    (work / STATUS_FILE).write_bytes(b"{torn")
    (receipt,) = salvage_folder(left)
    assert receipt.is_complete, receipt
    assert not list(left.rglob(".recording*"))
    assert list(wd.open_recordings(left)[0]["x"].values()) == [1.0]
