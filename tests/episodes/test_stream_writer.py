"""Recording step by step: what goes in comes out, misuse is an error, nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import (
    ConflictError,
    JournalInUseError,
    OutOfSpaceError,
    RecordingError,
    SchemaMismatchError,
    TimestampOrderError,
    WriterClosedError,
)
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.wshard import ShardReader

CHANNELS = [
    {"id": "state", "dtype": "f32", "shape": [4], "unit": "rad"},
    {"id": "rgb", "dtype": "u8", "shape": [8, 8, 3], "compression": "zstd"},
    {"id": "count", "dtype": "i64", "shape": []},
    {"id": "ctrl", "dtype": "f64", "shape": [2], "lane": "action"},
]


def step(index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(index)
    return {
        "state": rng.normal(size=4).astype(np.float32),
        "rgb": rng.integers(0, 9, (8, 8, 3), np.uint8),
        "count": np.array(index),
        "ctrl": rng.normal(size=2),
    }


def record(path: Path, steps: int, **options: object) -> wd.WShardStreamWriter:
    writer = wd.WShardStreamWriter(path, "ep_001", CHANNELS, **options)
    writer.begin_episode()
    for index in range(steps):
        writer.write_timestep(step(index), reward=index * 0.5, done=index == steps - 1)
    return writer


def check(episode: wd.WShardEpisode, steps: int) -> None:
    assert episode.length == steps
    for index in range(steps):
        for name, value in step(index).items():
            lane = episode.actions if name == "ctrl" else episode.observations
            assert np.array_equal(lane[name][index], value)
    assert np.array_equal(episode.rewards.data, np.arange(steps, dtype=np.float32) * 0.5)


def test_a_recorded_episode(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    record(path, 50, env_id="Env", metadata={"task": "pick"}).end_episode()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ep.wshard"]
    episode = wd.load_wshard(path)
    check(episode, 50)
    assert (episode.id, episode.env_id, episode.metadata) == ("ep_001", "Env", {"task": "pick"})
    assert episode.terminations.data.tolist() == [False] * 49 + [True]
    assert episode.truncations is None
    assert episode.observations["state"].unit == "rad"
    shard = ShardReader.open(path)
    assert shard.block("signal/rgb").codec == "zstd"
    assert shard.block("signal/state").codec == "none"


def test_document_example(tmp_path: Path) -> None:
    path, length = tmp_path / "ep.wshard", 5
    channels = [
        {"id": "state", "dtype": "f32", "shape": [3]},
        {"id": "ctrl", "dtype": "f32", "shape": [2], "lane": "action"},
    ]
    obs, act, r, d = np.ones(3, np.float32), np.zeros(2, np.float32), 0.5, False
    with wd.WShardStreamWriter(path, "ep_001", channels) as w:
        w.begin_episode()
        for _ in range(length):
            w.write_timestep({"state": obs, "ctrl": act}, reward=r, done=d)
        w.end_episode()
    assert wd.load_wshard(path).length == length


def test_callers_may_reuse_their_buffers(tmp_path: Path) -> None:
    buffer = np.zeros(4, np.float32)
    with wd.WShardStreamWriter(tmp_path / "a", "e", CHANNELS[:1]) as writer:
        writer.begin_episode()
        for index in range(10):
            buffer[:] = index
            writer.write_timestep({"state": buffer})
    assert wd.load_wshard(tmp_path / "a").observations["state"].data[:, 0].tolist() == list(range(10))
    assert wd.load_wshard(tmp_path / "a").rewards is None


def test_timestamps(tmp_path: Path) -> None:
    writer = wd.WShardStreamWriter(
        tmp_path / "a", "e", CHANNELS[:1], timebase=wd.Timebase("timestamps_ns"), durability="record"
    )
    writer.begin_episode()
    row = {"state": np.zeros(4, np.float32)}
    writer.write_timestep(row, timestamp_ns=10, truncated=True)
    with pytest.raises(TimestampOrderError, match="not increasing"):
        writer.write_timestep(row, timestamp_ns=10)
    with pytest.raises(TimestampOrderError, match="every step"):
        writer.write_timestep(row)
    with pytest.raises(TypeError):
        writer.write_timestep(row, timestamp_ns=11.5)
    writer.write_timestep(row, timestamp_ns=2**62)
    writer.end_episode()
    episode = wd.load_wshard(tmp_path / "a")
    assert episode.timestamps_ns.tolist() == [10, 2**62]
    assert episode.truncations.data.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", np.zeros(4)),
        ("state", np.zeros(5, np.float32)),
        ("state", np.zeros((4, 1), np.float32)),
        ("state", None),
        ("state", "text"),
        ("state", "1.5"),
        ("state", [1.0, 1e39, 0.0, 0.0]),
        ("state", [1, 2**24 + 1, 0, 0]),
        ("state", [1j, 0, 0, 0]),
        ("count", 1.5),
        ("count", 2**70),
        ("rgb", np.zeros((8, 8, 3), np.int8)),
    ],
)
def test_a_wrong_step_is_refused_and_the_writer_goes_on(tmp_path: Path, name: str, value: object) -> None:
    writer = record(tmp_path / "a", 3)
    with pytest.raises(SchemaMismatchError, match=name):
        writer.write_timestep({**step(3), name: value}, reward=1.0)
    for reward in (1e39, np.float64(-1e39), 10**300, [1.0, 2.0]):
        with warnings.catch_warnings(), pytest.raises(SchemaMismatchError, match="reward"):
            warnings.simplefilter("error")
            writer.write_timestep(step(3), reward=reward)
    with pytest.raises(SchemaMismatchError, match="extra"):
        writer.write_timestep({**step(3), "extra": 1})
    writer.write_timestep(step(3), reward=1.5, done=True)
    writer.end_episode()
    check(wd.load_wshard(tmp_path / "a"), 4)


@pytest.mark.parametrize("flag", ["no", 2, -1, 0.5, [True, False], b"x"])
def test_flags_are_true_or_false(tmp_path: Path, flag: Any) -> None:
    with wd.WShardStreamWriter(tmp_path / "a.wshard", "a", [{"id": "x", "dtype": "f32"}]) as writer:
        writer.begin_episode()
        for name in ("done", "truncated"):
            with pytest.raises(SchemaMismatchError, match="bool"):
                writer.write_timestep({"x": 1.0}, **{name: flag})
        for fine in (True, 1, 0.0, np.True_, np.array(False), np.array([True])):
            writer.write_timestep({"x": 1.0}, done=fine)
    assert wd.load_wshard(tmp_path / "a.wshard").terminations.data.tolist() == [1, 1, 0, 1, 0, 1]


def test_a_value_of_none_is_said_to_be_none(tmp_path: Path) -> None:
    with wd.WShardStreamWriter(tmp_path / "a.wshard", "a", [{"id": "x", "dtype": "f32"}]) as writer:
        writer.begin_episode()
        with pytest.raises(SchemaMismatchError, match="'x' is None in this step"):
            writer.write_timestep({"x": None})


def test_plain_numbers_and_lists_are_taken(tmp_path: Path) -> None:
    with wd.WShardStreamWriter(tmp_path / "a", "e", CHANNELS) as writer:
        writer.begin_episode()
        row = step(0)
        writer.write_timestep({**row, "count": 7, "state": [1, 2.5, 3, 4]})
    assert wd.load_wshard(tmp_path / "a").observations["state"][0].tolist() == [1, 2.5, 3, 4]


def test_calls_out_of_order(tmp_path: Path) -> None:
    writer = wd.WShardStreamWriter(tmp_path / "a", "e", CHANNELS)
    with pytest.raises(RecordingError, match="not begun"):
        writer.write_timestep(step(0))
    with pytest.raises(RecordingError):
        writer.end_episode()
    writer.begin_episode()
    with pytest.raises(WriterClosedError):
        writer.begin_episode()
    writer.end_episode()
    with pytest.raises(WriterClosedError):
        writer.write_timestep(step(0))
    assert wd.load_wshard(tmp_path / "a").length == 0


@pytest.mark.parametrize(
    "channels",
    [
        [{"id": "../x", "dtype": "f32"}],
        [{"id": "x", "dtype": "float"}],
        [{"id": "x", "dtype": "f32", "shape": [-1]}],
        [{"id": "x", "dtype": "f32", "lane": "omens"}],
        [{"id": "x", "dtype": "f32", "compression": "gzip"}],
        [{"id": "x", "dtype": "f32"}, {"id": "x", "dtype": "f32", "lane": "action"}],
    ],
)
def test_wrong_channels(tmp_path: Path, channels: list) -> None:
    with pytest.raises(ValueError):
        wd.WShardStreamWriter(tmp_path / "a", "e", channels)
    with pytest.raises(ValueError):
        wd.WShardStreamWriter(tmp_path / "a", "e", [], durability="often")


def test_abort_deletes(tmp_path: Path) -> None:
    writer = record(tmp_path / "a", 3)
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WriterClosedError):
        writer.write_timestep(step(0))


def test_an_exception_keeps_the_journal_and_says_how_to_finish(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    with pytest.raises(ZeroDivisionError) as caught, wd.WShardStreamWriter(path, "e", CHANNELS) as writer:
        writer.begin_episode()
        for index in range(5):
            writer.write_timestep(step(index), reward=index * 0.5)
        raise ZeroDivisionError
    assert "warp salvage" in caught.value.__notes__[0]
    assert not path.exists()
    receipt = wd.salvage(path)
    assert (receipt.steps_kept, receipt.is_complete) == (5, True)
    check(wd.load_wshard(path), 5)
    assert not (tmp_path / "a.wshard.partial").exists()


def test_a_step_that_no_journal_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    channels = [{"id": "x", "dtype": "u8", "shape": [2**38]}]
    with pytest.raises(SchemaMismatchError, match="too large"):
        wd.WShardStreamWriter(tmp_path / "e.wshard", "e", channels)
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    first = record(path, 3)
    with pytest.raises(JournalInUseError, match=f"process {os.getpid()}"):
        wd.WShardStreamWriter(path, "e", CHANNELS).begin_episode()
    with pytest.raises(JournalInUseError, match="being recorded"):
        wd.salvage(path)
    first.close()
    with pytest.raises(JournalInUseError, match="unfinished") as caught:
        wd.WShardStreamWriter(path, "e", CHANNELS).begin_episode()
    assert "warp salvage" in caught.value.hint
    assert wd.salvage(path).steps_kept == 3


def test_recording_over_an_old_file_keeps_it_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    record(path, 2).end_episode()
    old = path.read_bytes()
    writer = record(path, 3, overwrite=True)
    assert path.read_bytes() == old
    writer.close()
    with pytest.raises(ConflictError):
        wd.salvage(path)
    assert path.read_bytes() == old
    wd.salvage(path, overwrite=True)
    check(wd.load_wshard(path), 3)


def test_a_crash_between_rename_and_cleanup_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    record(path, 4).close()
    journal = (tmp_path / "a.wshard.partial").read_bytes()
    wd.salvage(path)
    (tmp_path / "a.wshard.partial").write_bytes(journal)
    assert wd.salvage(path).is_complete
    assert not (tmp_path / "a.wshard.partial").exists()


def test_damage_in_the_middle_loses_only_its_step_and_keeps_the_times(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    record(path, 10, timebase=wd.Timebase("ticks", 10.0)).close()
    partial = tmp_path / "a.wshard.partial"
    data = bytearray(partial.read_bytes())
    offset = int(JournalReader(BytesRangeReader(data)).scan().records.offset[4])
    data[offset + 50] ^= 1
    partial.write_bytes(data)
    receipt = wd.salvage(partial)
    assert (receipt.steps_kept, receipt.steps_lost, receipt.is_complete) == (9, 1, False)
    assert receipt.bytes_dropped > 0
    assert receipt.channels["signal/state"] == 9
    episode = wd.load_wshard(path)
    kept = [index for index in range(10) if index != 4]
    assert (episode.timestamps_ns // 100_000_000).tolist() == kept
    assert np.array_equal(episode.observations["count"].data, kept)


def test_a_full_disk_is_an_error_and_the_journal_is_kept(tmp_path: Path) -> None:
    """In a child with a file size limit, which the kernel treats like a disk with no room for more."""
    path = tmp_path / "a.wshard"
    record(path, 2).end_episode()
    old = path.read_bytes()
    pid = os.fork()
    if pid == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, 9 << 20))
        channels = [{"id": "big", "dtype": "u8", "shape": [100_000]}]
        writer = wd.WShardStreamWriter(path, "e", channels, overwrite=True)
        writer.begin_episode()
        try:
            for index in range(1000):
                writer.write_timestep({"big": np.full(100_000, index, np.uint8)})
        except OutOfSpaceError:
            (tmp_path / "steps").write_text(str(writer.steps))
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    steps = int((tmp_path / "steps").read_text())
    assert steps > 30
    assert path.read_bytes() == old
    receipt = wd.salvage(path, overwrite=True)
    assert receipt.steps_kept == steps
    assert np.array_equal(wd.load_wshard(path).observations["big"][:, 0], np.arange(steps, dtype=np.uint8))


def test_a_disk_too_full_to_finish_keeps_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    pid = os.fork()
    if pid == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = record(path, 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            writer.end_episode()
        except OutOfSpaceError as error:
            os._exit(17 if "salvage" in error.hint else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.wshard.partial"]
    assert wd.salvage(path).steps_kept == 100
    check(wd.load_wshard(path), 100)


def test_an_interpreter_that_exits_while_recording_does_not_hang(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, warpdata as wd\n"
        "w = wd.WShardStreamWriter(sys.argv[1], 'e', [{'id': 'x', 'dtype': 'f32', 'shape': [2]}])\n"
        "w.begin_episode()\n"
        "[w.write_timestep({'x': np.full(2, i, np.float32)}) for i in range(100)]\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.wshard"], check=True, timeout=LIMIT_S)
    assert wd.salvage(tmp_path / "a.wshard").steps_kept == 100


def test_an_empty_journal_has_lost_what_it_held(tmp_path: Path) -> None:
    """A journal has its name once its header is whole, so a recorder that died at once left none."""
    (tmp_path / "a.wshard.partial").write_bytes(b"")
    receipt = wd.salvage(tmp_path / "a.wshard")
    assert (receipt.output, receipt.steps_kept, receipt.is_complete) == (None, 0, False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wshard.partial"]


def test_one_salvage_of_many_kept_journals(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / f"{name}.wshard", 3).close()
    for name in ("a", "b"):
        assert wd.salvage(tmp_path / f"{name}.wshard.partial").is_complete


def test_windows_behind_the_recorder_are_unmapped(tmp_path: Path) -> None:
    channels = [{"id": "rgb", "dtype": "u8", "shape": [480, 640, 3]}]
    frame = np.zeros((480, 640, 3), np.uint8)
    with wd.WShardStreamWriter(tmp_path / "e.wshard", "e", channels) as writer:
        writer.begin_episode()
        for step in range(120):
            writer.write_timestep({"rgb": frame}, reward=0.0, done=step == 119)
        until(
            lambda: mapped_bytes(writer.partial_path) <= 48 << 20, "windows stay mapped", pause_s=0.01
        )  # of 110 MB
        assert mapped_bytes(writer.partial_path) > 0
        writer.end_episode()


def mapped_bytes(path: str) -> int:
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(path):
            start, end = line.split()[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total
