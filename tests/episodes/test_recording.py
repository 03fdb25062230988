"""Recording into directories: what is kept, what is refused, and what survives."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.episodes.nursery import run_small
from tests.sweeps import SOAK
from tests.waiting import LIMIT_S, until
from warpdata.episodes.record.threads import Wakeup
from warpdata.episodes.salvage.recordings import salvage_folder
from warpdata.episodes.statistics import ValueStatistics
from warpdata.errors import (
    ConflictError,
    JournalInUseError,
    RecordingError,
    SchemaMismatchError,
    StoreError,
    TimestampOrderError,
    WriterClosedError,
)
from warpdata.formats.journal import writer as journal_writer
from warpdata.formats.journal.reader import JournalReader


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    made = wd.DiskEpisodeWriter(tmp_path / "ep")
    yield made
    if made._closed is None:
        made.abort()


def test_values_are_copied(tmp_path: Path) -> None:
    buffer = np.zeros(3, "f4")
    frame = np.zeros((16, 16), np.uint8)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(50):
            buffer[:], frame[:] = i, i
            writer.append("x", buffer, i)
            writer.append("gray", frame, i)
    episode = wd.open_episode(tmp_path / "ep")
    assert episode["x"].values()[:, 0].tolist() == list(range(50))
    assert episode["gray"].values()[:, 0, 0].tolist() == list(range(50))


def test_closing_never_waits_for_a_thread_that_missed_its_wakeup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wakes before the other waits is heard all the same."""
    wait, waits = Wakeup.wait, []

    def wait_late(wakeup: Wakeup, timeout_s: float | None = None) -> bool:
        waits.append(wakeup)
        time.sleep(0.02)
        return wait(wakeup, timeout_s)

    def record() -> None:
        for number in range(5):
            with wd.DiskEpisodeWriter(tmp_path / str(number)) as writer:
                writer.append("x", 1.0, 1)

    monkeypatch.setattr(Wakeup, "wait", wait_late)
    recording = threading.Thread(target=record, daemon=True)
    recording.start()
    recording.join(LIMIT_S)
    assert not recording.is_alive()
    assert waits


def test_everything_comes_back(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {
        "bool": [True, False, True], "int": [1, 2, -3], "float": [1.5, float("nan"), -0.0],
        "np": [np.float16(1), np.float16(2), np.float16(3)], "u64": [np.uint64(2**64 - 1)] * 3,
        "vec": [np.arange(4.0) + i for i in range(3)], "list": [[1, 2], [3, 4], [5, 6]],
        "strided": [np.arange(12).reshape(3, 4)[:, ::2] + i for i in range(3)],
        "big": [np.full((80, 90), i, "f8") for i in range(3)],
        "tensor": [np.arange(24, dtype="i2").reshape(2, 3, 4) + i for i in range(3)],
        "endian": [np.arange(3, dtype=">f4") + i for i in range(3)],
        "text": ["", "größe", "x" * 100_000], "bytes": [b"", b"\x00\xff", b"y" * 2_000_000],
        "deep/er/name": [1, 2, 3],
    }  # fmt: skip
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.declare("vec", units="rad", names=["a", "b", "c", "d"])
        for i in range(3):
            for name, each in values.items():
                writer.append(name, each[i], 10 * i)
    episode = wd.open_episode(tmp_path / "ep")
    assert set(episode.signals) == set(values)
    for name, each in values.items():
        expected = (
            np.array(each, object) if name in ("text", "bytes") else np.stack([np.asarray(v) for v in each])
        )
        found = episode[name].values()
        assert found.dtype == (expected.dtype if name != "endian" else np.dtype("<f4"))
        assert np.array_equal(found, expected, equal_nan=name == "float"), name
    assert (episode["vec"].meta.units, episode["vec"].meta.names) == ("rad", ("a", "b", "c", "d"))
    assert episode["tensor"].meta.kind == "tensor"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("x", object(), TypeError), ("x", None, TypeError), ("x", 1j, TypeError),
        ("x", [[1], [2, 3]], TypeError),
        ("x", np.array([], "f4"), ValueError), ("x", 2**70, ValueError), ("x", np.array(["a"]), TypeError),
        ("x", "\ud800", ValueError), ("x", np.datetime64("2020-01-01"), TypeError),
        ("../evil", 1, ValueError), ("/abs", 1, ValueError), ("a//b", 1, ValueError),
        ("a/../b", 1, ValueError),
        (".", 1, ValueError), ("", 1, ValueError), ("a b", 1, ValueError), ("n" * 201, 1, ValueError),
        (".recording/x", 1, ValueError), ("x.frames", 1, ValueError), (5, 1, TypeError),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_at_once(writer: Any, name: Any, value: Any, error: type) -> None:
    with pytest.raises(error):
        writer.append(name, value, 0)
    writer.append("good", 1, 0)
    writer.close()
    assert list(wd.open_episode(writer.path).signals) == ["good"]


@pytest.mark.parametrize("ts_ns", [1.0, 1.9, True, np.bool_(True), "5", None, np.float64(3)])
def test_times_are_integers(writer: Any, ts_ns: Any) -> None:
    for value in (1.0, "text", np.zeros((16, 16, 3), np.uint8)):
        with pytest.raises(TypeError):
            writer.append(f"s{type(value).__name__}", value, ts_ns)
    writer.append("x", 1.0, 0)
    with pytest.raises(TypeError):
        writer.append("x", 1.0, ts_ns)
    with pytest.raises(ValueError):
        writer.append("x", 1.0, 2**63)
    writer.append("x", 2.0, np.int32(7))


def test_time_must_increase_and_shape_must_stay(writer: Any) -> None:
    image = np.zeros((16, 18, 3), np.uint8)
    for name, value, other in [
        ("v", np.zeros(3, "f4"), np.zeros(4, "f4")), ("s", 1, 1.0), ("t", "a", b"a"), ("b", b"a", "a"),
        ("i", image, image[:-1]), ("n", 1.0, "text"), ("w", np.zeros(2), [1, 2]),
    ]:  # fmt: skip
        writer.append(name, value, 10)
        for ts_ns in (10, 9, -5):
            with pytest.raises(TimestampOrderError, match="is not increasing"):
                writer.append(name, value, ts_ns)
        with pytest.raises(SchemaMismatchError):
            writer.append(name, other, 20)
        writer.append(name, value, 30)
    writer.close()
    episode = wd.open_episode(writer.path)
    assert list(episode.signals) == ["v", "s", "t", "b", "i", "n", "w"]
    assert all(signal.timestamps.tolist() == [10, 30] for signal in episode.signals.values())


def test_static_items(writer: Any) -> None:
    facts = {"task": "pick", "n": 3, "x": 1.5, "none": None, "list": [1, {"a": [True]}], "blob": b"\x00\xff"}
    for name, value in facts.items():
        writer.set_static(name, value)
    writer.set_static("np", np.float32(2))
    writer.set_static("array", np.arange(6).reshape(2, 3))
    for bad in (float("nan"), float("inf"), np.array([1.0, np.nan]), {"a": [float("-inf")]}):
        with pytest.raises(ValueError, match="'bad'"):
            writer.set_static("bad", bad)
    for bad in (object(), {1: 2}, {"a": 1j}):
        with pytest.raises(TypeError, match="'bad'"):
            writer.set_static("bad", bad)
    with pytest.raises(RecordingError):
        writer.set_static("task", "again")
    with pytest.raises(RecordingError):
        writer.append("task", 1, 0)
    writer.append("signal", 1, 0)
    with pytest.raises(RecordingError):
        writer.set_static("signal", 1)
    with pytest.raises(RecordingError):
        writer.declare("signal", units="m")
    writer.close()
    static = dict(wd.open_episode(writer.path).static)
    assert static == {**facts, "np": 2.0, "array": [[0, 1, 2], [3, 4, 5]]}


def test_closing_and_aborting(tmp_path: Path) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "a")
    writer.append("x", 1, 0)
    writer.append("cam", np.zeros((16, 16, 3), np.uint8), 0)
    writer.abort()
    assert not (tmp_path / "a").exists()
    for call in (lambda: writer.append("x", 1, 1), lambda: writer.set_static("a", 1), writer.close,
                 lambda: writer.declare("y"), lambda: writer.append("new", 1, 1), writer.abort):  # fmt: skip
        with pytest.raises(WriterClosedError) as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
    done = wd.DiskEpisodeWriter(tmp_path / "b")
    done.append("x", 1, 0)
    done.close()
    done.close()
    with pytest.raises(WriterClosedError):
        done.append("x", 1, 1)
    with pytest.raises(WriterClosedError):
        done.abort()
    with pytest.raises(ConflictError):
        wd.DiskEpisodeWriter(tmp_path / "b")
    assert len(wd.open_episode(tmp_path / "b")["x"]) == 1


def test_an_exception_keeps_what_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(30):
            writer.append("x", i, i)
            writer.append("cam", np.full((16, 16, 3), i, np.uint8), i)
        raise ZeroDivisionError("boom")
    episode = wd.open_episode(tmp_path / "ep")
    assert len(episode["x"]) == len(episode["cam"]) == 30
    assert "boom" in episode.meta["interrupted"]


def test_meta_is_there_from_the_start(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep", created_ts_ns=77) as writer:
        early = json.loads((tmp_path / "ep" / "meta.json").read_text())
        assert early["schema_version"] == 1
        assert early["created_ts_ns"] == 77
        assert set(early["writer"]) >= {"name", "version", "python", "platform"}
        with pytest.raises(JournalInUseError):
            wd.open_episode(tmp_path / "ep")
        for i in range(100):
            writer.append("x", np.array([i, 0.0]), i * 10**7 + (10**9 if i >= 50 else 0))
    episode = wd.open_episode(tmp_path / "ep")
    assert episode.meta["uid"] == early["uid"] == writer.uid
    about = episode.meta["signals"]["x"]
    assert about["count"] == 100
    assert about["gaps"] == 1
    assert about["longest_pause_ns"] == 10**9 + 10**7
    assert about["values"]["min"] == [0.0, 0.0]
    assert about["values"]["max"] == [99.0, 0.0]
    assert about["values"]["mean"] == [49.5, 0.0]
    assert about["values"]["std"][0] == pytest.approx(np.arange(100).std())
    with pytest.raises(TypeError):
        episode.meta["x"] = 1  # type: ignore[index]


def test_a_frozen_camera_is_counted(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(40):
            writer.append("cam", np.full((16, 16, 3), min(i, 10) * 20, np.uint8), i)
    assert wd.open_episode(tmp_path / "ep").meta["signals"]["cam"]["longest_frozen_frames"] == 29


def test_long_signals_are_written_in_pieces(tmp_path: Path) -> None:
    count = 60_000
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(count):
            writer.append("x", i, i)
    assert np.array_equal(wd.open_episode(tmp_path / "ep")["x"].values(), np.arange(count))
    assert not list((tmp_path / "ep").glob(".*"))


def test_the_end_of_a_table_waits_for_what_is_still_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpdata.episodes.record import tables, threads

    count, last_block = (
        60_000,
        2 * 16384,
    )  # three whole blocks go to the background, the rest is left for close
    add, settle = tables.ClockStatistics.add, threads.JobQueue.settle
    closer, both = threading.get_ident(), []
    is_held, is_closing, is_written = threading.Event(), threading.Event(), threading.Event()

    def added(clock: Any, stamps: Any) -> None:
        if threading.get_ident() == closer:
            is_held.wait(LIMIT_S)
            if not is_written.is_set():
                both.append("the end was written while the background still wrote rows that it had counted")
            is_closing.set()
        is_last = stamps[0] == last_block
        if is_last:
            is_held.set()
            is_closing.wait(LIMIT_S)  # until whoever closes waits for this, or writes
        add(clock, stamps)
        if is_last:
            is_written.set()

    def settled(queue: Any) -> None:
        is_closing.set()
        settle(queue)

    monkeypatch.setattr(tables.ClockStatistics, "add", added)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(count):
            writer.append("x", i, i)
        monkeypatch.setattr(threads.JobQueue, "settle", settled)
    assert not both
    episode = wd.open_episode(tmp_path / "ep")
    assert np.array_equal(episode["x"].values(), np.arange(count))
    assert episode.meta["signals"]["x"]["count"] == count


def test_slots_of_frames_are_used_again(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        frame = np.zeros((120, 160, 3), np.uint8)
        for i in range(400):
            frame[:] = i % 256
            writer.append("cam", frame, i)
            until(lambda: writer.status().signals["cam"].waiting < 8, "frames are not encoded")
        files = list((tmp_path / "ep" / ".recording").glob("frames-*.journal"))
    assert 1 <= len(files) <= 2  # of 64 slots each
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == 400


def test_two_processes_share_a_root(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, warpdata as wd\n"
        "for e in range(8):\n"
        "    with wd.LocalDatasetWriter(sys.argv[1]).new_episode() as w:\n"
        "        for i in range(20): w.append('x', np.array([int(sys.argv[2]), e, i]), i)\n"
    )
    work = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)]) for n in range(2)]
    assert [each.wait(LIMIT_S) for each in work] == [0, 0]
    dataset = wd.LocalDataset(tmp_path)
    assert len(dataset) == 16
    found = {tuple(episode["x"][0][0][:2].tolist()) for episode in dataset}
    assert found == {(n, e) for n in range(2) for e in range(8)}


@pytest.mark.parametrize(("how", "seed"), [("episode", 7), ("episode", 8), ("files", 9)])
def test_killed_recordings_lose_nothing(tmp_path: Path, how: str, seed: int) -> None:
    kills = 60 if SOAK else 8
    assert run_small("tests.episodes.crash_recorder", tmp_path / "root", kills, seed, how)["records"] > 100


@pytest.mark.parametrize("how", ["leave", "stay", "killed"])
def test_interrupted_recordings_lose_nothing(tmp_path: Path, how: str) -> None:
    """Ctrl-C at any moment: of an append, of the end of a block, of closing; nobody waits for ever."""
    rounds = 60 if SOAK else 8
    ends = run_small("tests.episodes.interrupting", tmp_path / "root", rounds, 3, how)
    assert sum(ends.values()) == rounds
    assert ends["salvaged" if how == "killed" else "interrupted"] > 2


def _record_in_child(root: Path, code: str) -> subprocess.Popen[str]:
    program = (
        "import signal, sys, time, numpy as np, warpdata as wd\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored\n"
        "w = wd.LocalDatasetWriter(sys.argv[1]).new_episode()\n" + code
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    return child


def test_ctrl_c_finishes_the_episode(tmp_path: Path) -> None:
    child = _record_in_child(
        tmp_path,
        "with w:\n"
        "    for i in range(10**9):\n"
        "        w.append('x', i, i); w.append('cam', np.full((32, 32, 3), i % 200, np.uint8), i)\n"
        "        if i == 20: print('ready', flush=True)\n"
        "        time.sleep(0.001)\n",
    )
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=LIMIT_S)
    episode = wd.LocalDataset(tmp_path)[0]
    assert len(episode["x"]) >= 20
    assert "KeyboardInterrupt" in episode.meta["interrupted"]


def test_a_forked_child_cannot_touch_the_recording(tmp_path: Path) -> None:
    """It inherits the writers, leaves their `with` blocks and outlives the recorder: nothing of that may matter."""
    program = (
        "import os, sys, time, numpy as np, warpdata as wd\n"
        "root = sys.argv[1]\n"
        "with (wd.LocalDatasetWriter(root).new_episode() as w, wd.SimpleSignalWriter(root + '/s.parquet') as s,\n"
        "      wd.WShardStreamWriter(root + '/a.wshard', 'a', [{'id': 'x', 'dtype': 'f64'}]) as t):\n"
        "    t.begin_episode()\n"
        "    for i in range(10): w.append('x', i, i); s.append(i, i); t.write_timestep({'x': i})\n"
        "    w.append('cam', np.zeros((16, 16), np.uint8), 0)\n"
        "    if os.fork() == 0:\n"
        "        for call in (lambda: w.append('x', 10, 10), lambda: s.append(10, 10), w.close, w.abort,\n"
        "                     lambda: t.write_timestep({'x': 10}), lambda: w.set_static('a', 1)):\n"
        "            try: call()\n"
        "            except wd.errors.WriterClosedError: continue\n"
        "            os._exit(9)\n"
        "        sys.exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "    for i in range(10, 20): w.append('x', i, i); s.append(i, i); t.write_timestep({'x': i})\n"
        "    child = os.fork()\n"
        # It is the child that speaks: only once it runs has it let go of what it inherited.
        "    if child == 0: print(os.getpid(), flush=True); time.sleep(60); os._exit(0)\n"
        "    time.sleep(60)\n"
    )
    recorder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with recorder:
        assert recorder.stdout is not None
        child = int(recorder.stdout.readline())
        recorder.kill()
        try:
            assert recorder.wait(LIMIT_S) == -signal.SIGKILL
            unfinished = wd.LocalDataset(tmp_path).unfinished[0].path
            for path in (unfinished, tmp_path / "s.parquet", tmp_path / "a.wshard"):
                wd.salvage(path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert wd.LocalDataset(tmp_path)[0]["x"].values().tolist() == list(range(20))
    assert wd.SimpleSignal(tmp_path / "s.parquet").values().tolist() == list(range(20))
    assert wd.open_episode(tmp_path / "a.wshard")["x"].values().tolist() == list(range(20))


def test_threads_that_append_while_the_episode_is_closed(tmp_path: Path) -> None:
    """Every append either is in the episode or was refused."""
    acknowledged = dict.fromkeys(("x", "text", "cam"), 0)
    values = {"x": 1.0, "text": "t", "cam": np.zeros((16, 16), np.uint8)}
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")

    def work(name: str) -> None:
        for i in range(10**9):
            try:
                writer.append(name, values[name], i)
            except WriterClosedError:
                return
            acknowledged[name] = i + 1

    threads = [threading.Thread(target=work, args=(name,)) for name in values]
    for thread in threads:
        thread.start()
    while min(acknowledged.values()) < 20:
        time.sleep(0.001)
    writer.close()
    for thread in threads:
        thread.join(LIMIT_S)
    episode = wd.open_episode(tmp_path / "ep")
    assert {name: len(episode[name]) for name in values} == acknowledged


def test_a_disk_that_cannot_sync_is_an_error_while_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call says it, of whatever kind and to whatever signal: not the one that fills a block."""

    def broken(*_: object) -> None:
        raise StoreError("cannot be written")

    values: list[Any] = [np.zeros((16, 16), np.uint8), 0, "text", np.zeros(20_000)]
    writers = [wd.DiskEpisodeWriter(tmp_path / str(name), durability="1ms") for name in range(len(values))]
    for writer, value in zip(writers, values, strict=True):
        writer.append("x", value, 0)
    monkeypatch.setattr(journal_writer, "sync_range", broken)
    for writer, value in zip(writers, values, strict=True):
        with contextlib.suppress(StoreError):  # its thread may have met the disk already
            writer.append("x", value, 1)
            writer.append("y", 0, 1)
        until(lambda writer=writer: writer._threads.failure is not None, "the disk is not noticed")
        for call in (lambda w, v: w.append("x", v, 2), lambda w, _: w.append("z", 1, 0),
                     lambda w, _: w.set_static("s", 1)):  # fmt: skip
            with pytest.raises(StoreError, match="cannot be written"):
                call(writer, value)
        writer.abort()


def test_a_process_may_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths mean where the process was when it named them: writing, reading, and in another process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    frame = np.zeros((16, 16, 3), np.uint8)
    writer = wd.LocalDatasetWriter("root").new_episode()
    single, video = wd.SimpleSignalWriter("s.parquet"), wd.VideoSignalWriter("v.mp4", "v.frames.parquet")
    steps = wd.WShardStreamWriter("a.wshard", "a", [{"id": "x", "dtype": "f64"}])
    steps.begin_episode()
    for i in range(4):
        writer.append("x", i, i)
        writer.append("cam", frame, i)
        single.append(i, i)
        video.append(frame, i)
        steps.write_timestep({"x": i})
        monkeypatch.chdir(tmp_path / "elsewhere")
    writer.append("late", "text", 1)
    steps.end_episode()
    for each in (writer, single, video):
        each.close()
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(tmp_path)
    dataset, directory = wd.LocalDataset("root"), wd.open_episode(f"root/{0:012d}/{0:012d}")
    others = [wd.SimpleSignal("s.parquet"), wd.VideoSignal("v.mp4", "v.frames.parquet")]
    shard = wd.open_episode("a.wshard")
    monkeypatch.chdir("elsewhere")
    for again in (lambda thing: thing, lambda thing: pickle.loads(pickle.dumps(thing))):
        assert again(dataset)[0]["late"].values().tolist() == ["text"]
        assert again(directory)["cam"].values().shape == (4, 16, 16, 3)
        assert [len(again(each).values()) for each in others] == [4, 4]
        assert again(shard)["x"].values().tolist() == [0, 1, 2, 3]


def test_unfinished_recordings_are_listed_and_salvaged(tmp_path: Path) -> None:
    child = _record_in_child(
        tmp_path, "for i in range(25): w.append('x', i, i)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    dataset = wd.LocalDataset(tmp_path)
    assert len(dataset) == 0
    [live] = dataset.unfinished
    assert (live.is_live, live.owner["pid"], live.records) == (True, child.pid, {"x": 25})
    with pytest.raises(JournalInUseError, match="being recorded"):
        wd.salvage(live.path)
    assert [each.is_live for each in salvage_folder(tmp_path)] == [True]
    child.kill()
    child.communicate()
    assert not wd.LocalDataset(tmp_path).unfinished[0].is_live
    receipt = wd.salvage(live.path)
    assert receipt.is_complete
    assert receipt.channels == {"x": 25}
    dataset.refresh()
    assert dataset[0]["x"].values().tolist() == list(range(25))
    assert dataset[0].meta["salvaged"]["steps_kept"] == 25


def test_a_damaged_journal_gives_an_exact_receipt(tmp_path: Path) -> None:
    child = _record_in_child(
        tmp_path, "for i in range(25): w.append('x', i, i)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    child.kill()
    child.communicate()
    folder = wd.LocalDataset(tmp_path).unfinished[0].path
    journal = folder / ".recording" / "signals.journal"
    data = bytearray(journal.read_bytes())
    seventh = int(JournalReader.open(journal).scan().records.of_stream(1).payload_offset[7])
    data[seventh] ^= 1
    journal.write_bytes(data)
    receipt = wd.salvage(folder)
    assert not receipt.is_complete
    assert (receipt.steps_kept, receipt.steps_lost, receipt.channels) == (24, 1, {"x": 24})
    assert receipt.bytes_dropped > 0
    kept = wd.open_episode(folder)["x"]
    assert kept.timestamps.tolist() == kept.values().tolist() == [i for i in range(25) if i != 7]


def test_memory_stays_bounded_while_reading_a_dataset(tmp_path: Path) -> None:
    for _ in range(6):
        with wd.LocalDatasetWriter(tmp_path).new_episode() as writer:
            for i in range(40):
                writer.append("x", np.full(10_000, i, "f8"), i)
    dataset = wd.LocalDataset(tmp_path, cache_bytes=8 << 20)
    for episode in dataset:
        episode["x"].values()
    assert len(dataset._local._open) <= 3
    assert dataset[0] is dataset[0]


def test_small_signals_are_written_and_counted_at_once(tmp_path: Path) -> None:
    """What meta.json says of them, and what is read, is what it is for signals of any size."""
    rng = np.random.default_rng(5)
    rows = {
        "f": rng.normal(size=(40, 3)).astype(np.float32), "d": rng.normal(size=40), "b": np.arange(40) % 3 == 0,
        "i": rng.integers(-9, 9, (40, 2, 2)).astype(np.int16), "h": rng.normal(size=40).astype(np.float16),
        "n": np.where(np.arange(40) % 7 == 0, np.nan, np.arange(40.0)), "large": rng.normal(size=(40, 500)),
        "few": rng.normal(size=(7, 2)),
    }  # fmt: skip
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(40):
            for name, values in rows.items():
                if k < len(values):
                    rec.append(name, values[k], k * 1000)
    episode = wd.open(tmp_path / "root")[0]
    folder = tmp_path / "root" / "000000000000" / "000000000000"
    for name, values in rows.items():
        np.testing.assert_array_equal(episode[name].values(), values)
        alone = ValueStatistics(values.shape[1:])
        alone.add(values)
        expected, stated = alone.to_json(), episode.meta["signals"][name]["values"]
        assert stated["sketch"] == expected["sketch"]
        for key in ("min", "max", "count", "invalid"):
            assert stated[key] == expected[key]
        for key in ("mean", "std", "sum"):
            np.testing.assert_allclose(stated[key], expected[key], rtol=1e-12)
        column = pq.ParquetFile(folder / f"{name}.parquet").metadata.row_group(0).column(1)
        assert (column.compression == "UNCOMPRESSED") is (name != "large")
    wd.pack_episode(folder, tmp_path / "e.wshard")
    wd.unpack_episode(tmp_path / "e.wshard", tmp_path / "again")
    for name in rows:
        assert (tmp_path / "again" / f"{name}.parquet").read_bytes() == (
            folder / f"{name}.parquet"
        ).read_bytes()


@pytest.mark.parametrize("form", ["recorded", "packed"])
def test_a_step_that_lacks_a_value_moves_no_other(tmp_path: Path, form: str) -> None:
    """As many records as steps, but not one per step: a camera lost a frame, and one shows the end."""
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(5):
            seen = {"state": k, **({} if k == 1 else {"late": k})}
            acted = {**({} if k == 2 else {"grip": k}), **({} if k == 4 else {"arm": k})}
            rec.step(seen, acted, reward=float(k), ts_ns=k * 10**7)
        rec.append("state", 5, 5 * 10**7)
        rec.append("late", 5, 5 * 10**7)
    episode = wd.open(tmp_path / "root")[0]
    if form == "packed":
        wd.pack_episode(f"{tmp_path}/root#0", tmp_path / "one.wshard")
        episode = wd.open(tmp_path / "one.wshard")
    steps = episode.steps
    assert (len(episode["late"]), len(episode["grip"]), len(episode["arm"])) == (5, 4, 4)
    assert steps.times_ns.tolist() == [k * 10**7 for k in range(5)]
    assert steps["state"].data.tolist() == [0, 1, 2, 3, 4]
    assert steps["late"].data.tolist() == [0, 0, 2, 3, 4]
    assert steps["grip"].data.tolist() == [0, 1, 1, 3, 4]
    assert steps["arm"].data.tolist() == [0, 1, 2, 3, 3]
    assert steps["reward"].data.tolist() == [0, 1, 2, 3, 4]
    receipt = wd.export_episodes(wd.Episodes.of([episode]), tmp_path / "set", "zarr")
    hows = {name: each.how for name, each in receipt.signals.items()}
    assert {hows.pop(name) for name in ("arm", "grip", "late")} == {"resampled"}
    assert hows == {"reward": "kept", "state": "cut"}
