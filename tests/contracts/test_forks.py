"""Forks: what was used in a parent and can be read is read in its child; what is written there refuses in the child.

Every public type that reads or writes has a case here. The child runs after the parent has used the object, so that
threads, locks, decoders and connections of the parent are there to be inherited.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.memory_store import MemoryStore, digest_bytes
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.process import forks
from warpdata.bytekit.process.forks import cached_property
from warpdata.episodes.sources.cameras import CAMERAS
from warpdata.errors import ConflictError, WriterClosedError
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.pagecache import PageCache

Use = Callable[[], Any]

# Python 3.12 and later warn about forks beside threads: they are what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked child; what goes wrong there, or hangs, fails here."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(heard)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - told to the parent
            os.write(told, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(told)
    ended: list[int] = []

    def is_over() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(pid)

    def show_where_it_hangs() -> None:
        os.kill(child, signal.SIGABRT)
        os.waitpid(child, 0)

    try:
        until(is_over, "the child hangs", before_failing=show_where_it_hangs)
        with os.fdopen(heard, "rb") as what:
            assert ended == [0], what.read().decode()
    except BaseException:
        if not ended:
            show_where_it_hangs()
        raise


def recorded(folder: Path) -> Path:
    with wd.LocalDatasetWriter(folder).new_episode() as writer:
        for i in range(30):
            writer.append("x", np.full(3, i, "f4"), i * 10)
            writer.append("cam", np.full((32, 32, 3), i * 5, np.uint8), i * 10)
    return folder


def corpus(folder: Path) -> Path:
    with wd.CorpusWriter(folder / "corpus", 8, dtype="f32", shard_bytes=16 << 10) as out:
        for start in range(0, 4000, 500):
            out.append(np.arange(start * 8, (start + 500) * 8, dtype="f4").reshape(500, 8))
    return folder / "corpus"


def published(folder: Path) -> str:
    with wd.DatasetBuilder("a/b", catalog=folder / "catalog") as builder:
        builder.add_table("main", {"x": list(range(5000))}).publish()
    return str(folder / "catalog")


def shard(folder: Path) -> Use:
    made = wd.WShardEpisode(id="e", length=100)
    made.observations["rgb"] = np.arange(100 * 48, dtype=np.uint8).reshape(100, 4, 4, 3)
    wd.save_wshard(made, folder / "e.wshard", compression="zstd")
    channel = wd.load_wshard(folder / "e.wshard").observations["rgb"]
    return lambda: channel[10:20].tolist()


def signal_values(folder: Path) -> Use:
    found = wd.LocalDataset(recorded(folder))[0]["x"]
    return lambda: (found.values().tolist(), found.time[55][1])


def camera(folder: Path) -> Use:
    found = wd.LocalDataset(recorded(folder))[0]["cam"]
    return lambda: [found[i][0].tolist() for i in (3, 20, 4)]


def local_dataset(folder: Path) -> Use:
    found = wd.LocalDataset(recorded(folder))
    return lambda: [(e["x"].values().tolist(), e["cam"][2][0].tolist()) for e in found]


def corpus_source(folder: Path) -> Use:
    source = wd.MmapShardSource.open_dir(corpus(folder), dtype="float32")

    def use() -> list[float]:
        source.reset()
        return sums(source)

    return use


def sums(batches: Iterable[Any]) -> list[float]:
    return [float(np.array(batch.rows).sum()) for batch in batches]


def corpus_source_begun(folder: Path, **options: Any) -> Use:
    source = wd.MmapShardSource.open_dir(corpus(folder), dtype="float32", batch_rows=100, **options)
    source.next_batch()
    return lambda: sums(source)


def store_source_begun(folder: Path) -> Use:
    source = wd.open_corpus(str(corpus(folder)), batch_rows=100)
    source.next_batch()
    return lambda: sums(source)


def shuffled_rows_begun(folder: Path, **options: Any) -> Use:
    source = wd.MmapShardSource.open_dir(corpus(folder), dtype="float32", **options)
    rows = wd.ShuffledRows(source, batch_size=64, seed=5)
    rows.next_batch()
    return lambda: [float(np.array(rows.next_batch().rows).sum()) for _ in range(30)]


def shuffled_rows(folder: Path) -> Use:
    rows = wd.ShuffledRows(wd.MmapShardSource.open_dir(corpus(folder), dtype="float32"), batch_size=64)

    def use() -> list[float]:
        before = rows.state_dict()
        found = [float(np.array(rows.next_batch().rows).sum()) for _ in range(5)]
        rows.load_state_dict(before)
        return found

    return use


def vector_store(folder: Path) -> Use:
    x = np.random.default_rng(0).normal(size=(300, 8)).astype("f4")
    with wd.VectorStore.create(folder / "v.rvf", dim=8) as store:
        store.add(x)
    found = wd.VectorStore.open(folder / "v.rvf")
    return lambda: [ids.tolist() for ids in (found.search(row, 3)[0] for row in x[:5])]


def dataset(folder: Path) -> Use:
    found = wd.dataset("a/b", catalog=published(folder))
    return lambda: found.table().head(10)["x"].to_pylist()


def dataset_sql(folder: Path) -> Use:
    found = wd.dataset("a/b", catalog=published(folder))
    return lambda: found.sql("select sum(x) as s from main").arrow().to_pylist()


def table_stream(folder: Path) -> Use:
    found = wd.dataset("a/b", catalog=published(folder))
    return lambda: [part["x"] for part in found.table().batch_dicts(256)]


def table_stream_begun(folder: Path) -> Use:
    parts: Iterator[Any] = iter(wd.dataset("a/b", catalog=published(folder)).table().batch_dicts(256))
    next(parts)
    return lambda: [part["x"] for part in parts]


def page_cache(folder: Path) -> Use:
    data = np.random.default_rng(0).bytes(1 << 20)
    store = MemoryStore()
    store.put_if_absent("b", data)
    address = BlobAddress(sha256_hex(data), len(data), "b", "blob")
    reader = BlobReader(address, store, PageCache(folder / "cache", 1 << 30), digest_bytes(data).page_sums)
    return lambda: bytes(reader.read(100, 500_000))


READERS = [
    shard, signal_values, camera, local_dataset, corpus_source, shuffled_rows, vector_store, dataset, dataset_sql,
    table_stream, page_cache,
]  # fmt: skip
BEGUN = [
    corpus_source_begun, store_source_begun, shuffled_rows_begun,
    table_stream_begun,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__)
def test_readers_work_in_a_child(reader: Callable[[Path], Use], tmp_path: Path) -> None:
    use = reader(tmp_path)
    expected = use()

    def child() -> None:
        assert use() == expected
        in_child(lambda: _same(use(), expected))  # and in its child

    in_child(child)
    assert use() == expected, "the parent goes on"


@pytest.mark.parametrize("reader", BEGUN, ids=lambda r: r.__name__)
def test_what_was_begun_goes_on_in_both(reader: Callable[[Path], Use], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    rest, expected = reader(tmp_path), reader(tmp_path / "other")()
    in_child(lambda: _same(rest(), expected))
    assert rest() == expected


def _same(found: object, expected: object) -> None:
    assert found == expected


def step(i: int) -> dict[str, Any]:
    return {"x": np.full(1, i, "f4")}


def stream_writer(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    writer = wd.WShardStreamWriter(folder / "a.wshard", "a", [{"id": "x", "dtype": "f32", "shape": [1]}])
    writer.begin_episode()

    def close() -> int:
        writer.end_episode()
        return wd.load_wshard(folder / "a.wshard").length

    return lambda i: writer.write_timestep(step(i), reward=0.0, done=False), close


def recorder(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    writer = wd.LocalDatasetWriter(folder).new_episode()

    def close() -> int:
        writer.close()
        return len(wd.LocalDataset(folder)[0]["cam"])

    return lambda i: writer.append("cam", np.full((32, 32, 3), i, np.uint8), i), close


def one_recorder(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    rec = wd.record(folder / "a.wshard")

    def write(i: int) -> None:
        rec.mark(last=i)
        rec.append("x", float(i), i)

    def close() -> int:
        rec.close()
        return len(wd.open_episode(folder / "a.wshard")["x"])

    return write, close


def dataset_builder(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    builder = wd.DatasetBuilder("lab/arm", catalog=folder)

    def write(i: int) -> None:
        builder.add_table(f"table{i}", {"a": [i]})

    def close() -> int:
        in_child(publish_refused)
        builder.publish()
        builder.close()
        return len(wd.dataset("lab/arm", catalog=folder).tables)

    def publish_refused() -> None:
        with pytest.raises(WriterClosedError, match="process"):
            builder.publish()
        builder.close()

    return write, close


def simple_signal_writer(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    writer = wd.SimpleSignalWriter(folder / "s.parquet")

    def close() -> int:
        writer.close()
        return len(wd.SimpleSignal(folder / "s.parquet"))

    return lambda i: writer.append(float(i), i), close


def video_signal_writer(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    writer = wd.VideoSignalWriter(folder / "v.mp4", folder / "v.parquet")

    def close() -> int:
        writer.close()
        return len(wd.VideoSignal(folder / "v.mp4", folder / "v.parquet"))

    return lambda i: writer.append(np.full((32, 32, 3), i, np.uint8), i), close


def corpus_writer(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    writer = wd.CorpusWriter(folder / "corpus", 4, dtype="f32")

    def close() -> int:
        writer.close()
        return wd.MmapShardSource.open_dir(folder / "corpus").total_rows

    return lambda i: writer.append(np.full((1, 4), i, "f4")), close


def vector_writer(folder: Path) -> tuple[Callable[[int], object], Callable[[], int]]:
    store = wd.VectorStore.create(folder / "v.rvf", dim=4)

    def close() -> int:
        store.close()
        with wd.VectorStore.open(folder / "v.rvf") as again:
            return len(again)

    return lambda i: store.add(np.full((1, 4), i, "f4")), close


WRITERS = [
    stream_writer, recorder, one_recorder, simple_signal_writer, video_signal_writer, corpus_writer, vector_writer,
    dataset_builder,
]  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.__name__)
def test_writers_refuse_in_a_child(writer: Callable[[Path], Any], tmp_path: Path) -> None:
    write, close = writer(tmp_path)
    for i in range(5):
        write(i)

    def child() -> None:
        for attempt in (lambda: write(99), lambda: write(100)):
            with pytest.raises((WriterClosedError, ConflictError)) as caught:
                attempt()
            assert "process" in str(caught.value)

    in_child(child)
    for i in range(5, 8):
        write(i)
    assert close() == 8


def test_a_recorder_in_use_by_a_thread_of_the_parent_does_not_hang_the_child(tmp_path: Path) -> None:
    rec = wd.record(tmp_path / "root")
    begun = wd.record(tmp_path / "root")
    begun.append("x", 1.0, 1)
    held, done = threading.Event(), threading.Event()

    def busy() -> None:
        with rec._lock, begun._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=busy)
    thread.start()
    held.wait()

    def child() -> None:
        with pytest.raises(WriterClosedError, match="process"):
            begun.mark(success=True)
        rec.append("x", 1.0, 1)
        rec.close()

    try:
        in_child(child)
    finally:
        done.set()
        thread.join()
    begun.close()
    assert len(wd.LocalDataset(tmp_path / "root")) == 2


class Told:
    def __init__(self) -> None:
        self.times = 0
        forks.run_in_child(self.in_child)

    def in_child(self) -> None:
        self.times += 1


class Broken(Told):
    def in_child(self) -> None:
        raise ValueError("broken")


def test_everybody_is_told_whatever_others_do() -> None:
    things = [Told(), Broken(), Told(), Told()]
    before, own = forks.generation(), forks.OwnProcess()

    def child() -> None:
        assert [thing.times for thing in things] == [1, 0, 1, 1]
        assert forks.generation() == before + 1
        assert not own
        assert forks.OwnProcess()
        in_child(lambda: _same([thing.times for thing in things], [2, 0, 2, 2]))

    in_child(child)
    assert own
    assert [thing.times for thing in things] == [0] * 4
    assert forks.process_id() == os.getpid()


def test_nobody_is_kept_alive_to_be_told() -> None:
    import gc
    import weakref

    gone = weakref.ref(Told())
    gc.collect()
    assert gone() is None


def test_a_lock_held_by_a_thread_of_the_parent(tmp_path: Path) -> None:
    """The thread is not there in the child, and would never give it back."""
    found = wd.LocalDataset(recorded(tmp_path))
    cameras = found[0]["cam"]
    expected = cameras[3][0].tolist()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with found._local._lock, CAMERAS._lock:
            held.set()
            over.wait(LIMIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(LIMIT_S)
    try:
        in_child(lambda: _same(found[0]["cam"][3][0].tolist(), expected))
    finally:
        over.set()
        thread.join()


def held_open(
    begin: Callable[[threading.Event, threading.Event], Any],
) -> tuple[threading.Thread, threading.Event]:
    """A thread in the middle of something, and how to let it go on."""
    inside, on = threading.Event(), threading.Event()
    thread = threading.Thread(target=begin, args=(inside, on), daemon=True)
    thread.start()
    assert inside.wait(LIMIT_S)
    return thread, on


def test_a_child_makes_a_property_that_a_thread_of_the_parent_was_making() -> None:
    class Thing:
        def __init__(self, make: Callable[[], int]) -> None:
            self.make = make

        @cached_property
        def value(self) -> int:
            return self.make()

    def begin(inside: threading.Event, on: threading.Event) -> int:
        return Thing(lambda: inside.set() or on.wait(LIMIT_S) or 1).value

    thread, on = held_open(begin)
    try:
        in_child(lambda: Thing(lambda: 2).value)
        assert Thing(lambda: 3).value == 3, "nor does another instance wait for it"
    finally:
        on.set()
        thread.join()


def test_threads_that_make_a_property_at_once_get_the_same() -> None:
    both = threading.Barrier(2, timeout=LIMIT_S)

    class Thing:
        @cached_property
        def value(self) -> object:
            both.wait()
            return object()

    thing, found = Thing(), []
    threads = [threading.Thread(target=lambda: found.append(thing.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is thing.value


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is not imported before it may be."""
    (tmp_path / "slow_to_import.py").write_text(
        "import sys\n"
        "sys.inside.set()\n"
        "sys.on.wait(180)\n"
        "value = 5\n"
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    yield "slow_to_import"
    sys.modules.pop("slow_to_import", None)


def test_a_fork_lets_imports_of_other_threads_end(slow_module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would have a module that is half there, and its lock, which nobody gives back."""

    def begin(inside: threading.Event, on: threading.Event) -> None:
        monkeypatch.setattr(sys, "inside", inside, raising=False)
        monkeypatch.setattr(sys, "on", on, raising=False)
        importlib.import_module(slow_module)

    thread, on = held_open(begin)
    # The fork has begun and waits: only now the import may end.
    monkeypatch.setattr(forks, "time", SimpleNamespace(sleep=lambda _: on.set() or thread.join(0.01)))
    in_child(lambda: importlib.import_module(slow_module).value)
    thread.join()


def test_a_fork_does_not_wait_for_ever(slow_module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports may wait for the one that forks."""
    monkeypatch.setattr(forks, "_PAUSES", 3)

    def begin(inside: threading.Event, on: threading.Event) -> None:
        monkeypatch.setattr(sys, "inside", inside, raising=False)
        monkeypatch.setattr(sys, "on", on, raising=False)
        importlib.import_module(slow_module)

    thread, on = held_open(begin)
    try:
        in_child(lambda: None)
    finally:
        on.set()
        thread.join()
