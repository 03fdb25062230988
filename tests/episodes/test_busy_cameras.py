"""More cameras than the encoders can serve: who waits, what is dropped, and that every drop is counted."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_single_writers import die
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.process.system import usable_cores
from warpdata.cli.main import main
from warpdata.episodes.record import camera as camera_module
from warpdata.episodes.record.camera import PRESETS, CameraRecorder, VideoFile, drop_facts
from warpdata.errors import RecordingError
from warpdata.formats.episodedir.documents import FrameShape
from warpdata.formats.episodedir.video import list_packets

FRAMES = 30
LIMIT = 4
POLICIES = ("drop_oldest", "drop_newest")


def frame(number: int) -> np.ndarray[Any, Any]:
    return np.full((16, 16, 3), 8 * number, np.uint8)


def numbers(signal: Any) -> list[int]:
    return [round(float(image.mean()) / 8) for image, _ in signal]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Encoders wait until it is set; a queue has room for four frames."""
    event = threading.Event()
    encode = VideoFile.encode

    def held(self: VideoFile, *given: Any) -> bool:
        assert event.wait(LIMIT_S)
        return encode(self, *given)

    monkeypatch.setattr(VideoFile, "encode", held)
    monkeypatch.setattr(camera_module, "QUEUE_BYTES", (1, LIMIT * frame(0).nbytes))
    return event


def taken(rec: Any) -> bool:
    """Whether the encoder has the only frame so far."""
    return rec.status().signals["cam"].waiting == 0


@pytest.mark.parametrize("target", ["root", "one.wshard"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_dropped_frame_is_counted_and_marked_in_time(
    tmp_path: Path, gate: threading.Event, policy: Any, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with wd.record(tmp_path / target, clock="simulated") as rec:
        rec.declare("cam", kind="image", policy=policy, max_wait_ms=1)
        rec.append("cam", frame(0), 0)
        until(lambda: taken(rec), "no encoder")
        for number in range(1, FRAMES):
            rec.append("cam", frame(number), number)
        status = rec.status().signals["cam"]
        assert (status.waiting, status.dropped, status.refused) == (LIMIT, FRAMES - 1 - LIMIT, 0)
        assert (rec.counts(), status.records) == ({"cam": 5}, 5)
        assert "25 dropped" in str(rec.status())
        gate.set()
    episode = wd.open(tmp_path / target) if target.endswith("wshard") else wd.open(tmp_path / target)[0]
    kept = [0, 1, 2, 3, 4] if policy == "drop_newest" else [0, 26, 27, 28, 29]
    first, last = (5, 29) if policy == "drop_newest" else (1, 25)
    assert numbers(episode["cam"]) == kept
    assert episode["cam"].timestamps.tolist() == kept
    about = episode.meta["signals"]["cam"]
    assert (about["dropped_frames"], about["drops"]) == (25, [[first, last, 25]])
    address = str(tmp_path / target) + ("" if target.endswith("wshard") else "#0")
    assert main(["show", address]) == 0
    assert "25 dropped" in capsys.readouterr().out


@pytest.mark.parametrize("policy", POLICIES)
def test_drops_are_known_after_a_kill(tmp_path: Path, gate: threading.Event, policy: Any) -> None:
    def record() -> None:
        rec = wd.record(tmp_path / "root", clock="simulated")
        rec.declare("cam", kind="image", policy=policy)
        rec.append("cam", frame(0), 0)
        until(lambda: taken(rec), "no encoder")
        for number in range(1, 20):
            rec.append("cam", frame(number), number)
        gate.set()
        until(lambda: taken(rec), "nothing is encoded")
        for number in range(20, FRAMES):
            rec.append("cam", frame(number), number)
            until(lambda: taken(rec), "nothing is encoded")
        os._exit(0)

    die(record)
    gate.set()
    receipt = wd.salvage(tmp_path / "root").parts[0]
    assert receipt.is_complete
    assert receipt.frames_dropped == {"cam": 15}
    assert "cam: 15 (15 dropped while recording)" in str(receipt)
    kept = [*range(5), *range(20, 30)] if policy == "drop_newest" else [0, *range(16, 30)]
    episode = wd.open(tmp_path / "root")[0]
    assert numbers(episode["cam"]) == kept == episode["cam"].timestamps.tolist()
    assert episode.meta["signals"]["cam"]["drops"] == [
        [5, 19, 15] if policy == "drop_newest" else [1, 15, 15]
    ]


def test_more_cameras_than_cores_never_wait_for_longer_than_their_policy(tmp_path: Path) -> None:
    """Real encoders, no pause between frames: what is recorded and what was dropped is all that was given."""
    count, given = 2 * usable_cores() + 1, 60
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (4, 240, 320, 3), np.uint8)
    waits: list[float] = []
    with wd.record(
        tmp_path / "root", clock="simulated", slow_ms=0, on_slow=lambda _, waited_s: waits.append(waited_s)
    ) as rec:
        names = [f"cam{number}" for number in range(count)]
        for number, name in enumerate(names):
            rec.declare(name, kind="image", policy=POLICIES[number % 2], max_wait_ms=2 * (number % 3))

        def feed(name: str) -> None:
            for number in range(given):
                rec.append(name, frames[number % 4], number)

        threads = [threading.Thread(target=feed, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = rec.status()
        assert all(status.signals[name].blocked == 0 for name in names[::3])  # max_wait_ms=0
    episode = wd.open(tmp_path / "root")[0]
    for name in names:
        about = episode.meta["signals"][name]
        assert len(episode[name]) + about.get("dropped_frames", 0) == given
        assert sum(span[2] for span in about.get("drops", ())) == about.get("dropped_frames", 0)


def test_no_camera_starves(tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """All queues are full when the encoders begin: they go through the cameras in turn."""
    encode, names = CameraRecorder._encode_next, [f"cam{number}" for number in range(2 * usable_cores() + 2)]
    begun, busy = Counter[int](), set[int]()
    behind: list[int] = []

    def noted(self: CameraRecorder) -> None:
        idle = [begun[stream] for stream in range(1, len(names) + 1) if stream not in busy and self.waiting]
        behind.append(begun[self.stream] - min(idle, default=0))
        busy.add(self.stream)
        begun[self.stream] += 1
        encode(self)
        busy.remove(self.stream)

    monkeypatch.setattr(CameraRecorder, "_encode_next", noted)
    monkeypatch.setattr(camera_module, "QUEUE_BYTES", (1 << 20, 1 << 20))
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for number in range(8):
            for name in names:
                rec.append(name, frame(number), number)
        gate.set()
    assert len(behind) >= 8 * len(names)
    assert max(behind) <= 2, behind


def test_an_encoder_that_falls_behind_lowers_its_preset(tmp_path: Path, gate: threading.Event) -> None:
    """The queue is full, so a faster preset is used from the next group on; frames stay right, also after a kill."""
    options = wd.VideoOptions(gop_size=2)
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        rec.declare("cam", kind="image", video=options)
        rec.declare("fixed", kind="image", video=wd.VideoOptions(gop_size=2, preset="veryfast"))
        for name in ("cam", "fixed"):
            rec.append(name, frame(0), 0)
        until(lambda: not any(signal.waiting for signal in rec.status().signals.values()), "no encoder")

        def feed(name: str) -> None:
            for number in range(1, FRAMES):
                rec.append(name, frame(number), number)

        threads = [threading.Thread(target=feed, args=(name,)) for name in ("cam", "fixed")]
        for thread in threads:
            thread.start()
        until(
            lambda: all(s.waiting == LIMIT for s in rec.status().signals.values()), "the queues are not full"
        )
        gate.set()
        for thread in threads:
            thread.join()
        until(lambda: not any(signal.waiting for signal in rec.status().signals.values()), "no end")
        left = Path(shutil.copytree(tmp_path / "root", tmp_path / "left"))
    receipt = wd.salvage(left)
    assert receipt.is_complete, str(receipt)
    for root in (tmp_path / "root", left):
        episode = wd.open(root)[0]
        assert numbers(episode["cam"]) == numbers(episode["fixed"]) == list(range(FRAMES))
    signals = wd.open(tmp_path / "root")[0].meta["signals"]
    presets = signals["cam"]["presets"]
    assert sum(presets.values()) == FRAMES
    assert set(presets) > {PRESETS[0]}
    assert "presets" not in signals["fixed"]


@pytest.mark.parametrize(
    ("backlogs", "is_lowered"),
    [([1.0], True), ([0.3, 0.3], True), ([0.3, 0.5], True), ([0.9, 0.6, 0.3], False), ([0.1, 0.2], False)],
)
def test_the_preset_is_lowered_while_the_queue_grows_and_before_it_is_full(
    tmp_path: Path, backlogs: list[float], is_lowered: bool
) -> None:
    """Each backlog is the share of the queue in use as a group begins; a burst that is being worked off is none."""
    file = VideoFile(tmp_path / "1", FrameShape.of(frame(0)), wd.VideoOptions(gop_size=1))
    for number, backlog in enumerate([0.0, *backlogs, 0.0]):
        file.adapt(backlog)
        file.encode(frame(number), number)
    assert ("presets" in file.complete()) == is_lowered


def test_a_slow_append_is_reported(
    tmp_path: Path, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[tuple[str, float]] = []

    def on_slow(signal: str, waited_s: float) -> None:
        reports.append((signal, waited_s))
        gate.set()
        raise RuntimeError("of the caller")

    with (
        caplog.at_level(logging.WARNING, "warpdata.record"),
        wd.record(tmp_path / "root", clock="simulated", slow_ms=0, on_slow=on_slow) as rec,
    ):
        rec.declare("cam", kind="image", policy="drop_newest", max_wait_ms=5)
        for number in range(FRAMES):
            rec.append("cam", frame(number), number)
            if reports:
                break
    assert reports[0][0] == "cam"
    assert reports[0][1] > 0
    assert "append to 'cam'" in caplog.text
    assert "on_slow failed" in caplog.text


def test_wrong_policies_are_refused(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for wrong in (
            {"policy": "drop"},
            {"policy": "wait", "max_wait_ms": 5},
            {"policy": "drop_oldest", "max_wait_ms": -1},
            {"policy": "drop_oldest", "max_wait_ms": float("inf")},
        ):
            with pytest.raises(ValueError, match=r"policy|max_wait_ms"):
                rec.declare("cam", kind="image", **wrong)
        with pytest.raises(TypeError, match="max_wait_ms"):
            rec.declare("cam", kind="image", policy="drop_oldest", max_wait_ms="5")
        with pytest.raises(ValueError, match="is for cameras"):
            rec.declare("x", policy="drop_oldest")
        rec.declare("cam", kind="image", policy="drop_oldest")
        with pytest.raises(RecordingError, match="cannot be part of a row"):
            rec.step({"cam": frame(0)}, ts_ns=0)
        rec.append("x", 1.0, 0)


def test_very_many_gaps_are_joined() -> None:
    dropped, kept = np.arange(0, 200_000, 2), np.arange(1, 200_000, 2)
    facts = drop_facts(dropped.tolist(), kept)
    assert facts["dropped_frames"] == 100_000 == sum(span[2] for span in facts["drops"])
    assert len(facts["drops"]) <= 4200
    assert [facts["drops"][0][0], facts["drops"][-1][1]] == [0, 199_998]
    assert drop_facts([5, 6, 9], np.array([1, 7])) == {"dropped_frames": 3, "drops": [[5, 6, 2], [9, 9, 1]]}
    assert drop_facts([], kept) == {}


@pytest.mark.parametrize("codec", ["h264", "hevc", "ffv1"])
def test_a_video_that_is_continued_keeps_its_even_rate(tmp_path: Path, codec: str) -> None:
    """By salvage, or with another preset: a player shows the frames one after the other."""
    shape, options = FrameShape(16, 16, 3, "uint8"), wd.VideoOptions(codec=codec, gop_size=2)
    first = VideoFile(tmp_path / "video", shape, options)
    for number in range(8):
        first.encode(frame(number), number)
    first.drain()
    marks = list(first._marks)
    first.close()
    video = VideoFile(tmp_path / "video", shape, options, marks)
    for number in range(8, 16):
        video.adapt(1.0)
        video.encode(frame(number), number)
    video.complete()
    times = list_packets(str(video.path), "video")[3]
    assert len(times) == 16
    assert np.ptp(np.diff(times)) <= 1
