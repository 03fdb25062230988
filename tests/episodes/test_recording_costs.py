"""What a recording costs: threads, syncs, room on the disk, and what the thread that records has to wait for."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.process import system
from warpdata.episodes.record import camera, recording
from warpdata.episodes.salvage.unfinished import is_recorded
from warpdata.errors import JournalInUseError, StoreError
from warpdata.formats.episodedir.video import VideoEncoder
from warpdata.formats.journal import writer as journal_writer
from warpdata.formats.journal.writer import MAX_MAPPED_BYTES, JournalWriter

IMAGE = np.zeros((16, 16, 3), np.uint8)
CHANNELS = [{"id": "x", "dtype": "f64", "shape": [4]}]


EARLIER: set[threading.Thread] = set()
"""Threads of recorders that another test of this process dropped without closing them."""


@pytest.fixture(autouse=True)
def _earlier_threads() -> None:
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


def recording_threads() -> list[str]:
    """The names of the recording threads that run since this test began."""
    running = [each.name for each in threading.enumerate() if each not in EARLIER]
    return [name for name in running if name.startswith("warp-record")]


def test_many_signals_and_cameras_share_a_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One helper, one syncer, and no more encoders than cores, however many journals they keep."""
    monkeypatch.setattr(camera, "SLOTS", (2, 2))
    most = 0
    with wd.record(tmp_path, clock="simulated") as rec:
        for step in range(30):
            for number in range(6):
                rec.append(f"cam/{number}", np.full((16, 16, 3), step, np.uint8), step)
            for number in range(25):
                rec.append(f"x{number}", float(step), step)
                rec.append(f"text{number}", "word", step)
            rec.append("large", np.full(50_000, step), step)
            most = max(most, len(recording_threads()))
        until(lambda: len(recording_threads()) >= 3)  # the helper starts the encoders
    assert most <= 2 + system.usable_cores()
    assert recording_threads() == []
    episode = wd.open_recordings(tmp_path)[0]
    assert {len(each) for each in episode.signals.values()} == {30}


def test_a_declared_camera_has_its_thread_before_its_first_frame(tmp_path: Path) -> None:
    """What the first frame would have to wait for is done when the camera is declared."""
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.declare("cam", kind="image")
        writer.declare("cam", kind="image", units="px")
        writer.declare("dark", kind="image", names=("no", "picture", "has", "four", "axes"))
        until(lambda: recording_threads().count("warp-record-encoder") == min(2, system.usable_cores()))
        queues = list(writer._threads._encoders._queues)
        for step in range(3):
            writer.append("cam", IMAGE, step)
        assert writer._threads._encoders._queues == queues
        assert writer.counts() == {"cam": 3}
    assert recording_threads() == []
    episode = wd.open_episode(tmp_path / "ep")
    assert list(episode.signals) == ["cam"]
    assert len(episode["cam"]) == 3


def test_declared_cameras_end_with_a_recording_that_is_aborted(tmp_path: Path) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    for number in range(4):
        writer.declare(f"cam{number}", kind="image")
    writer.abort()
    assert recording_threads() == []


def test_a_journal_is_small_before_the_episode_is_committed_and_still_has_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its room is given back while the disk is waited for; what would be lost with the commit is salvaged from it."""
    sizes = []

    def killed(*_: object) -> None:
        path = tmp_path / "ep" / ".recording" / "signals.journal"
        sizes.append((path.stat().st_size, path.stat().st_blocks * 512))
        raise OSError(errno.EIO, "Input/output error")

    writer = wd.DiskEpisodeWriter(tmp_path / "ep")
    for step in range(50):
        writer.append("x", np.full(7, step, np.float32), step)
        writer.append("word", f"step {step}", step)
    with monkeypatch.context() as patched:
        patched.setattr(recording, "commit_together", killed)
        with pytest.raises(OSError, match="Input/output"):
            writer.close()
    assert max(sizes[0]) < 64 << 10
    assert recording_threads() == []
    assert wd.salvage(tmp_path / "ep").is_complete
    episode = wd.open_episode(tmp_path / "ep")
    assert episode["x"].values()[:, 0].tolist() == list(range(50))
    assert episode["word"].values().tolist() == [f"step {step}" for step in range(50)]


def test_what_a_recorder_did_not_make_goes_with_its_folder(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("x", 1.0, 0)
        inside = tmp_path / "ep" / ".recording" / "of another"
        inside.mkdir()
        (inside / "file").write_bytes(b"x")
    assert [each.name for each in (tmp_path / "ep").iterdir() if each.name.startswith(".")] == []


# ---- a disk that cannot be synced ---------------------------------------------------------------------------


def stream_writer(path: Path, **options: Any) -> Any:
    writer = wd.WShardStreamWriter(path, "e", CHANNELS, **options)
    writer.begin_episode()
    return writer


WRITERS: dict[str, tuple[Callable[..., Any], Callable[[Any, int], Any]]] = {
    "record": (lambda path, **o: wd.record(path, clock="simulated", **o), lambda w, i: w.append("x", 1.0, i)),
    "step": (
        lambda path, **o: wd.record(path, clock="simulated", **o),
        lambda w, i: w.step({"x": 1.0}, {"u": 1.0}, ts_ns=i),
    ),
    "episode": (wd.DiskEpisodeWriter, lambda w, i: w.append("x", "text", i)),
    "camera": (wd.DiskEpisodeWriter, lambda w, i: w.append("cam", IMAGE, i)),
    "static": (wd.DiskEpisodeWriter, lambda w, i: (w.append("x", 1, i), w.set_static(f"s{i}", i))),
    "table": (
        lambda path, **o: wd.SimpleSignalWriter(path.with_suffix(".parquet"), **o),
        lambda w, i: w.append(np.zeros(3), i),
    ),
    "video": (
        lambda path, **o: wd.VideoSignalWriter(path.with_suffix(".mp4"), path.with_suffix(".parquet"), **o),
        lambda w, i: w.append(IMAGE, i),
    ),
    "steps": (
        lambda path, **o: stream_writer(path.with_suffix(".wshard"), **o),
        lambda w, _: w.write_timestep({"x": np.zeros(4)}),
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_failed_sync_is_an_error_of_the_next_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, append = WRITERS[name]
    failed = threading.Event()
    writer = make(tmp_path / "out", durability="1ms")
    append(writer, 0)

    def broken(*_: object) -> None:
        failed.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal_writer, "sync_range", broken)
    with contextlib.suppress(StoreError):  # something to sync
        append(writer, 1)
    assert failed.wait(LIMIT_S)
    until(lambda: has_failed(writer), "the failure is not kept")
    for step in (2, 3):
        with pytest.raises(StoreError, match="Input/output") as caught:
            append(writer, step)
        assert "warp salvage" in caught.value.hint
    monkeypatch.undo()
    discard = getattr(writer, "discard", None) or writer.abort
    discard()
    assert recording_threads() == []


def test_a_camera_ends_though_the_recording_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its encoder was to be started behind what failed."""
    let_go = threading.Event()

    def fails(_: JournalWriter) -> None:
        let_go.wait()
        raise StoreError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(JournalWriter, "publish", fails)
        writer = wd.DiskEpisodeWriter(tmp_path / "ep", wait=False)
        writer.append("cam", IMAGE, 1)
        let_go.set()
        until(lambda: has_failed(writer))
        with pytest.raises(StoreError, match="the disk is gone"):
            writer.append("cam", IMAGE, 2)
    writer.abort()
    assert recording_threads() == []


def has_failed(writer: Any) -> bool:
    return writer._threads.failure is not None


@pytest.mark.parametrize("durability", ["none", "100ms", "record"])
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_takes_every_durability(name: str, durability: str, tmp_path: Path) -> None:
    make, append = WRITERS[name]
    with make(tmp_path / "out", durability=durability) as writer:
        for step in range(3):
            append(writer, step)
    with pytest.raises(ValueError, match=r"durability is .*'recrod'.* Did you mean 'record'"):
        make(tmp_path / "other", durability="recrod")


# ---- room on the disk ---------------------------------------------------------------------------------------


def room(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", [70_000, 3 << 20, 9 << 20])
def test_a_large_record_takes_little_more_than_its_size(size: int, tmp_path: Path) -> None:
    """Windows of a journal are of one size; what is larger goes past them."""
    data = np.full(size, 7, np.uint8)
    allowance = 4 * journal_writer.WINDOW_BYTES
    with wd.record(tmp_path / "a", clock="simulated") as rec:
        rec.append("before", 1.0, 0)
        rec.append("large", data, 0)
        rec.append("after", 2.0, 0)
        rec.append("bytes", data.tobytes(), 0)
        until(lambda: not rec._threads.chores.jobs, "windows are never prepared")
        assert room(tmp_path) <= 2 * size + allowance
    writer = wd.WShardStreamWriter(tmp_path / "s.wshard", "s", [{"id": "x", "dtype": "u8", "shape": [size]}])
    with writer:
        writer.begin_episode()
        writer.write_timestep({"x": data})
        until(lambda: not writer._threads.chores.jobs, "windows are never prepared")
        is_mapped = size <= MAX_MAPPED_BYTES
        windows = 3 * journal_writer.MAX_WINDOW_BYTES if is_mapped else allowance
        assert os.stat(writer.partial_path).st_blocks * 512 <= size + windows
    episode = wd.open_recordings(tmp_path / "a")[0]
    assert np.array_equal(episode["large"].values()[0], data)
    assert episode["bytes"].values()[0] == data.tobytes()
    assert (episode["before"][0][0], episode["after"][0][0]) == (1.0, 2.0)
    assert np.array_equal(wd.load_wshard(tmp_path / "s.wshard").observations["x"][0], data)


def test_large_records_survive_a_kill_between_small_ones(tmp_path: Path) -> None:
    sizes = [10, 70_000, 3, 9_000_000, 17_000_000, 100, 8_388_608, 1]
    child = os.fork()
    if child == 0:
        writer = wd.DiskEpisodeWriter(tmp_path / "ep")
        for step, size in enumerate(sizes):
            writer.append("blob", bytes([step]) * size, step)
            writer.append("x", step, step)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert wd.salvage(tmp_path / "ep").is_complete
    episode = wd.open_episode(tmp_path / "ep")
    assert [len(each) for each in episode["blob"].values()] == sizes
    assert all(set(each) == {step} for step, each in enumerate(episode["blob"].values()))
    assert episode["x"].values().tolist() == list(range(len(sizes)))


# ---- what the recording thread waits for --------------------------------------------------------------------


@pytest.fixture
def done_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the thread of the test opens and syncs."""
    found: list[str] = []
    me = threading.get_ident()

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **options: Any) -> Any:
            if threading.get_ident() == me:
                found.append(name)
            return call(*args, **options)

        return watch

    for owner, name in (
        (os, "open"), (os, "mkdir"), (os, "replace"), (os, "rename"), (os, "fsync"), (os, "fdatasync"),
        (system, "sync_mapped"), (system, "allocate"), (VideoEncoder, "__init__"), (threading.Thread, "start"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    return found


SYNCS = {"fsync", "fdatasync", "sync_mapped"}


@pytest.mark.parametrize("is_declared", [True, False])
def test_the_first_frame_opens_nothing_in_the_thread_that_records(
    tmp_path: Path, done_here: list[str], is_declared: bool
) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        if is_declared:
            writer.declare("cam", kind="image")
        done_here.clear()
        for step in range(60):
            writer.append("cam", IMAGE, step)
            writer.append("x", 1.0, step)
        assert done_here == []
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == 60


@pytest.mark.parametrize("is_declared", [True, False])
def test_the_first_record_of_all_waits_for_no_sync(
    tmp_path: Path, done_here: list[str], is_declared: bool
) -> None:
    with wd.record(tmp_path / "root") as rec:
        if is_declared:
            rec.declare("cam", kind="image")
            done_here.clear()
        rec.append("cam", IMAGE)
        rec.append("x", 1.0)
        assert SYNCS.isdisjoint(done_here)
        assert "__init__" not in done_here
    assert len(wd.open_recordings(tmp_path / "root")) == 1


def test_slots_of_frames_are_made_in_the_background(
    tmp_path: Path, done_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera, "SLOTS", (2, 2))
    work, seen = tmp_path / "ep" / ".recording", set[str]()
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        done_here.clear()
        for step in itertools.count():
            writer.append("cam", IMAGE, step)
            until(lambda: not writer._threads.chores.jobs, "slots are never made")
            seen |= {path.name for path in work.glob("frames-*")}
            if len(seen) > 3:
                break
        assert "allocate" not in done_here
        assert SYNCS.isdisjoint(done_here)
        count = step + 1
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == count


def test_the_background_never_waits_for_an_append(tmp_path: Path) -> None:
    """An append holds the lock of the journal while it waits for room in the queue of the background."""
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("cam", IMAGE, 0)
        chores, journal = writer._threads.chores, writer._journal
        until(lambda: not chores.jobs, "the slots are never made")
        slots = writer._recorders["cam"]._frames
        with journal.lock:
            chores.submit(slots._grow)
            journal._frames = None
            chores.submit(journal.expect_frames)
            until(lambda: not chores.jobs, "the background waits for the lock of the journal")
        writer.append("cam", IMAGE, 1)
    assert len(wd.open_episode(tmp_path / "ep")["cam"]) == 2


def test_a_recorder_killed_before_its_journal_has_a_name_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header is brought to the disk in the background; records are taken meanwhile."""
    for each in ("epoch", "torn"):
        begun, let_go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(JournalWriter, "_publish", lambda _: threading.Event().wait())
            writer = wd.DiskEpisodeWriter(tmp_path / each, wait=False)
            if each == "epoch":
                writer.append("x", 1.5, 1)
                writer.append("cam", IMAGE, 1)
            os.write(begun[1], b"!")
            os.read(let_go[0], 1)
            os._exit(0)
        os.read(begun[0], 1)
        [journal] = (tmp_path / each / ".recording").iterdir()
        assert ".tmp-" in journal.name
        assert is_recorded(tmp_path / each / ".recording")
        with pytest.raises(JournalInUseError, match="being recorded"):
            wd.salvage(tmp_path / each)
        os.write(let_go[1], b"!")
        os.waitpid(child, 0)
        if each == "torn":  # power was lost: nothing of the header came to the disk
            os.truncate(journal, 0)
        receipt = wd.salvage(tmp_path / each)
        assert receipt.is_complete
        assert receipt.channels == ({"x": 1, "cam": 1} if each == "epoch" else {})


# ---- closing ------------------------------------------------------------------------------------------------


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that is brought to the disk, by any thread."""
    found: list[str] = []
    for name in ("fsync", "fdatasync"):
        whole = getattr(os, name)

        def counted(fd: int, whole: Callable[[int], None] = whole) -> None:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
            whole(fd)

        monkeypatch.setattr(os, name, counted)
    return found


def test_a_recording_into_one_file_syncs_that_file_alone(tmp_path: Path, syncs: list[str]) -> None:
    """Until it is on the disk the journals have every record; what it was packed from need not be there."""
    with wd.record(tmp_path / "a.wshard", clock="simulated", durability="none") as rec:
        for step in range(5):
            rec.append("x", float(step), step)
            rec.append("cam", IMAGE, step)
        under_way = rec
        until(lambda: not under_way._threads.chores.jobs)
        until(lambda: not under_way._signals["cam"].jobs.jobs, "frames are never encoded")
        syncs.clear()
    assert len(syncs) == 2, syncs
    assert ".a.wshard.tmp-" in syncs[0]
    assert syncs[1] == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wshard"]


@pytest.mark.parametrize("cameras", [0, 2])
def test_closing_syncs_each_file_and_each_folder_once(tmp_path: Path, syncs: list[str], cameras: int) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "ep", durability="none")
    for step in range(5):
        for name in ("a", "b", "deep/er/c"):
            writer.append(name, float(step), step)
        for number in range(cameras):
            writer.append(f"cam/{number}", IMAGE, step)
    until(lambda: writer._tables is not None and not writer._threads.chores.jobs)
    for each in writer._signals.values():
        until(lambda each=each: not each.jobs.jobs, "frames are never encoded")
    syncs.clear()
    writer.close()
    folders = 3 + bool(cameras)  # the episode, deep, deep/er and cam
    files = 3 + 2 * cameras + 2  # a table per signal, a video and an index per camera, two documents
    assert len(syncs) == files + folders + 1, syncs  # once more when the journals have gone
    assert syncs.count(str(tmp_path / "ep")) == 2
    assert set(wd.open_episode(tmp_path / "ep").signals) >= {"a", "b", "deep/er/c"}


def test_no_file_has_its_name_before_all_are_on_the_disk(
    tmp_path: Path, syncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = wd.DiskEpisodeWriter(tmp_path / "ep", durability="none")
    for name in ("a", "deep/b", "c"):
        writer.append(name, 1.0, 0)
    replace = os.replace

    def named(source: Any, target: Any) -> None:
        syncs.append(f"{Path(target).name} is named")
        replace(source, target)

    monkeypatch.setattr(os, "replace", named)
    syncs.clear()
    writer.close()
    names = [each for each in syncs if each.endswith("is named")]
    assert len(names) == 5
    assert names[-1] == "meta.json is named"
    first = syncs.index(names[0])
    assert len([each for each in syncs[:first] if "/.recording/" in each]) == 5
    assert syncs[-1] == str(tmp_path / "ep")


def test_a_recording_closed_before_it_has_begun_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning writes a meta.json of its own, in the background: it must not take the place of the last one."""
    let_go, done = threading.Event(), list[str]()
    publish, sync, commit = JournalWriter.publish, recording.fsync_started, recording.commit_together

    def late(journal: JournalWriter) -> None:
        let_go.wait()
        publish(journal)
        done.append("begun")

    def synced(paths: Any) -> None:
        let_go.set()  # the last thing the one who closes does by himself
        sync(paths)

    def named(*args: Any) -> None:
        done.append("named")
        commit(*args)

    monkeypatch.setattr(JournalWriter, "publish", late)
    monkeypatch.setattr(recording, "fsync_started", synced)
    monkeypatch.setattr(recording, "commit_together", named)
    with wd.DiskEpisodeWriter(tmp_path / "ep", wait=False) as writer:
        writer.append("x", 1.0, 0)
    assert done == ["begun", "named"]
    assert wd.open_episode(tmp_path / "ep")["x"].values().tolist() == [1.0]
    assert list(wd.open_episode(tmp_path / "ep").meta["signals"]) == ["x"]


def test_a_slow_signal_makes_few_pages_dirty_ahead_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that are dirty long before they are full reach the disk twice: once as zeros."""
    faulted = []

    def counted(window: mmap.mmap, start: int = 0, end: int | None = None) -> bool:
        faulted.append((len(window) if end is None else end) - start)
        return True

    monkeypatch.setattr(system, "populate_to_write", counted)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for step in range(20_000):
            writer.append("x", float(step), step)
            if step % 100 == 0:
                writer._threads.chores.settle()
        written = writer._journal.writer.position
    assert written <= sum(faulted) <= written + (256 << 10)
