"""Several threads use one writer: every acknowledged record is there, and each thread's records are in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.errors import ConflictError, TimestampOrderError

THREADS, COUNT = 6, 400
Write = Callable[[int, int], None]
"""Record the value `number` of thread `thread`."""
Opened = tuple[Write, Callable[[], np.ndarray]]
"""How to write a record, and how to finish and read every value: rows of (thread, number)."""


def run_threads(write: Callable[[int, int], object], count: int = COUNT) -> dict[int, list[int]]:
    """The numbers that were acknowledged, by thread."""
    acknowledged: dict[int, list[int]] = {thread: [] for thread in range(THREADS)}
    begin = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        begin.wait()
        for number in range(count):
            try:
                write(thread, number)
            except TimestampOrderError:
                continue  # refused: only times that the caller chose may be too early
            acknowledged[thread].append(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    return acknowledged


def check(values: np.ndarray, acknowledged: dict[int, list[int]]) -> None:
    for thread, numbers in acknowledged.items():
        assert values[values[:, 0] == thread, 1].tolist() == numbers
    assert len(values) == sum(map(len, acknowledged.values()))


def pair(thread: int, number: int) -> np.ndarray:
    return np.array([thread, number], np.int32)


def by_append(folder: Path) -> Opened:
    recorder = wd.record(folder / "root")

    def read() -> np.ndarray:
        recorder.close()
        return np.asarray(wd.open(folder / "root")[0]["pair"].values())

    return lambda thread, number: recorder.append("pair", pair(thread, number)), read


def by_wall_clock(folder: Path) -> Opened:
    recorder = wd.record(folder / "one.wshard", clock="wall")

    def read() -> np.ndarray:
        recorder.close()
        return np.asarray(wd.open(folder / "one.wshard")["pair"].values())

    return lambda thread, number: recorder.append("pair", pair(thread, number)), read


def by_text(folder: Path) -> Opened:
    recorder = wd.record(folder / "root")

    def read() -> np.ndarray:
        recorder.close()
        return np.array([text.split() for text in wd.open(folder / "root")[0]["pair"].values()], np.int32)

    return lambda thread, number: recorder.append("pair", f"{thread} {number}"), read


def by_camera(folder: Path) -> Opened:
    recorder = wd.record(folder / "root", video=wd.VideoOptions(codec="ffv1"))

    def write(thread: int, number: int) -> None:
        if number < 40:
            recorder.append("camera", np.full((16, 16), thread * 1000 + number, np.uint16))

    def read() -> np.ndarray:
        recorder.close()
        pixels = np.asarray(wd.open(folder / "root")[0]["camera"].values())[:, 0, 0].astype(int)
        return np.stack([pixels // 1000, pixels % 1000], 1)

    return write, read


def by_step(folder: Path) -> Opened:
    recorder = wd.record(folder / "root")

    def write(thread: int, number: int) -> None:
        recorder.step({"pair": pair(thread, number)}, {"again": pair(thread, number)}, reward=float(number))

    def read() -> np.ndarray:
        recorder.close()
        steps = wd.open(folder / "root")[0].steps
        pairs = np.asarray(steps.observations["pair"][:])
        assert np.array_equal(pairs, np.asarray(steps.actions["again"][:]))
        assert np.array_equal(pairs[:, 1], np.asarray(steps.rewards[:]))
        return pairs

    return write, read


def by_step_and_append(folder: Path) -> Opened:
    """Rows stay whole while other threads append to one of their signals."""
    recorder = wd.record(folder / "root")
    recorder.step({"pair": pair(0, -1)}, {"again": pair(0, -1)})

    def write(thread: int, number: int) -> None:
        if thread % 2:
            recorder.step({"pair": pair(thread, number)}, {"again": pair(thread, number)})
        else:
            recorder.append("pair", pair(thread, number))

    def read() -> np.ndarray:
        recorder.close()
        episode = wd.open(folder / "root")[0]
        pairs, again = np.asarray(episode["pair"].values()), np.asarray(episode["again"].values())
        assert np.array_equal(pairs[pairs[:, 0] % 2 == 1], again[1:])
        return pairs[1:]

    return write, read


def by_stream_writer(folder: Path) -> Opened:
    channels = [
        {"id": "pair", "dtype": "i32", "shape": [2]},
        {"id": "text", "dtype": "text", "max_bytes": 16},
    ]
    writer = wd.WShardStreamWriter(folder / "one.wshard", "e", channels)
    writer.begin_episode()

    def read() -> np.ndarray:
        writer.end_episode()
        episode = wd.load_wshard(folder / "one.wshard")
        pairs = episode.observations["pair"].data
        assert [f"{a} {b}" for a, b in pairs] == list(episode.observations["text"].data)
        assert np.array_equal(pairs[:, 1], episode.rewards.data)
        return pairs

    return (
        lambda thread, number: writer.write_timestep(
            {"pair": pair(thread, number), "text": f"{thread} {number}"}, reward=float(number)
        ),
        read,
    )


def timed() -> Iterator[int]:
    """Times that threads draw without a lock: they reach the writer in any order."""
    yield from range(1, THREADS * COUNT + 1)


def by_episode_writer(folder: Path) -> Opened:
    writer = wd.DiskEpisodeWriter(folder / "episode")
    times, lock = timed(), threading.Lock()

    def write(thread: int, number: int) -> None:
        with lock:
            ts_ns = next(times)
        writer.append("pair", pair(thread, number), ts_ns)

    def read() -> np.ndarray:
        writer.close()
        return np.asarray(wd.DiskEpisode(folder / "episode")["pair"].values())

    return write, read


def by_signal_writer(folder: Path) -> Opened:
    writer = wd.SimpleSignalWriter(folder / "pair.parquet")
    times, lock = timed(), threading.Lock()

    def write(thread: int, number: int) -> None:
        with lock:
            ts_ns = next(times)
        writer.append(pair(thread, number), ts_ns)

    def read() -> np.ndarray:
        writer.close()
        return np.asarray(wd.SimpleSignal(folder / "pair.parquet").values())

    return write, read


def read_rows(corpus: Any) -> np.ndarray:
    batches = iter(corpus.next_batch, None)
    return np.concatenate([batch.rows for batch in batches]).astype(int)


def by_corpus(folder: Path) -> Opened:
    writer = wd.CorpusWriter(folder / "corpus", 2, shard_bytes=4096, columns={"thread": "i64"})

    def read() -> np.ndarray:
        writer.close()
        with wd.open_corpus(folder / "corpus") as corpus:
            rows = read_rows(corpus)
        assert np.array_equal(wd.SideTable(folder / "corpus").column("thread"), rows[:, 0])
        return rows

    return lambda thread, number: writer.append(pair(thread, number)[None], thread=[thread]), read


def by_activation_shard(folder: Path) -> Opened:
    writer = wd.ActivationShardWriter(folder / "a.shard", 2)

    def read() -> np.ndarray:
        writer.close()
        with wd.open_corpus(folder / "a.shard") as corpus:
            return read_rows(corpus)

    return lambda thread, number: writer.append(pair(thread, number)[None]), read


def by_vector_store(folder: Path) -> Opened:
    store = wd.VectorStore.create(folder / "v.rvf", dim=2, durable=False)

    def read() -> np.ndarray:
        return store.get(store.ids).astype(int)

    return lambda thread, number: store.add(pair(thread, number)[None]), read


def by_chunks(folder: Path) -> Opened:
    writer = wd.ChunkedEpisodeWriter(folder / "chunks", "e", 1)

    def write(thread: int, number: int) -> None:
        chunk = wd.WShardEpisode("e", length=1, timebase=wd.Timebase("ticks", 10.0))
        chunk.observations["pair"] = wd.Channel("pair", pair(thread, number)[None])
        writer.write_chunk(chunk)

    def read() -> np.ndarray:
        writer.finalize_manifest()
        return wd.ChunkedEpisodeReader(writer.manifest_path).episode().observations["pair"].data

    return write, read


SLOW = {by_camera, by_vector_store, by_chunks}
WRITERS = [
    by_append, by_wall_clock, by_text, by_camera, by_step, by_step_and_append, by_stream_writer, by_episode_writer,
    by_signal_writer, by_corpus, by_activation_shard, by_vector_store, by_chunks,
]  # fmt: skip


@pytest.mark.parametrize("opened", WRITERS, ids=lambda one: one.__name__)
def test_every_acknowledged_record_is_kept(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    write, read = opened(tmp_path)
    acknowledged = run_threads(write, 40 if opened in SLOW else COUNT)
    values = read()
    check(values, acknowledged)
    if opened not in (
        by_episode_writer,
        by_signal_writer,
    ):  # no time was chosen by the caller: none is refused
        assert len(values) == THREADS * (40 if opened in SLOW else COUNT)


@pytest.mark.parametrize("name", ["ep.wshard", "ep"])
def test_a_second_run_does_not_replace_the_first(name: str, tmp_path: Path) -> None:
    """A script that is started again finds its finished recording, and says so before it records anything."""
    path, channels = tmp_path / name, [{"id": "x", "dtype": "f32", "shape": []}]

    def stream(value: float, **options: bool) -> None:
        with wd.WShardStreamWriter(path, "e", channels, **options) as writer:
            writer.begin_episode()
            writer.write_timestep({"x": value})

    stream(1.0)
    with pytest.raises(ConflictError, match="target exists"):
        stream(2.0)
    assert wd.load_wshard(path).observations["x"].data.tolist() == [1.0]
    stream(3.0, overwrite=True)
    assert wd.load_wshard(path).observations["x"].data.tolist() == [3.0]


def test_a_file_that_appears_while_recording_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    writer = wd.WShardStreamWriter(path, "e", [{"id": "x", "dtype": "f32", "shape": []}])
    writer.begin_episode()
    writer.write_timestep({"x": 1.0})
    path.write_bytes(b"of another program")
    with pytest.raises(ConflictError, match="target exists"):
        writer.end_episode()
    assert path.read_bytes() == b"of another program"
    path.unlink()
    assert wd.salvage(path).steps_kept == 1


def test_writers_of_single_signals_do_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with wd.SimpleSignalWriter(path) as writer:
        writer.append(1.0, 1)
    with pytest.raises(ConflictError, match="target exists"):
        wd.SimpleSignalWriter(path)
    with wd.SimpleSignalWriter(path, overwrite=True) as writer:
        writer.append(2.0, 1)
    assert list(wd.SimpleSignal(path).values()) == [2.0]
    video, frames = tmp_path / "v.mp4", tmp_path / "v.frames.parquet"
    with wd.VideoSignalWriter(video, frames) as camera:
        camera.append(np.zeros((16, 16, 3), np.uint8), 1)
    video.unlink()
    with pytest.raises(ConflictError, match="target exists"):
        wd.VideoSignalWriter(video, frames)
