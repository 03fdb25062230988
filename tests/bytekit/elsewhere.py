"""The main jobs on a system without the calls of Linux: `python -m tests.bytekit.elsewhere FOLDER`.

The calls are taken out of os, fcntl and mmap, and the one module that knows about systems is told that it is on macOS.
What macOS does differently is done so here: pages of 16 KiB, calls that refuse much at once, a lock of a file and
those of its ranges that exclude each other even in one process, other numbers for the locks of open files.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.architecture.stubs import only_on_linux
from tests.waiting import LIMIT_S

GONE = {
    **{module: {*only_on_linux(module.__name__)} for module in (os, fcntl, mmap, signal, resource, time)},
    socket: {*only_on_linux("_socket")},
}
GONE[os] |= {"preadv", "pwritev", "process_cpu_count"}
"""Older systems and Pythons lack these too."""
GONE[mmap] |= {name for name in dir(mmap) if name.startswith("MADV_")}


MOST_BYTES = 1 << 20
"""As 2 GiB is for one call on macOS; less here, so that the jobs come to it."""
FULL_SYNC, NO_CACHE, OFD_SET_LOCK = 51, 48, 90
full_syncs: list[int] = []


def remove_what_is_of_linux() -> None:
    for module, names in GONE.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.sysconf_names.pop("SC_AVPHYS_PAGES", None)
    multiprocessing.set_start_method("spawn")
    refuse_much_at_once()
    have_large_pages()
    have_other_locks_and_syncs()
    have_no_proc()
    sys.platform = "darwin"
    try:
        import warpdata.bytekit.process.system as system
    finally:
        sys.platform = "linux"
    system.MOST_BYTES = MOST_BYTES
    assert system._libc is None
    assert system._SET_LOCK is None


def refuse_much_at_once() -> None:
    read, write = os.pread, os.pwrite

    def pread(fd: int, size: int, offset: int) -> bytes:
        if size > MOST_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read(fd, size, offset)

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if memoryview(data).nbytes > MOST_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(fd, data, offset)

    os.pread, os.pwrite = pread, pwrite  # type: ignore[assignment]


def have_large_pages() -> None:
    class Mapping(mmap.mmap):
        def __new__(cls, fd: int, size: int, *args: Any, offset: int = 0, **options: Any) -> Mapping:
            if offset % mmap.PAGESIZE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return super().__new__(cls, fd, size, *args, offset=offset, **options)

    mmap.PAGESIZE = mmap.ALLOCATIONGRANULARITY = 16 << 10  # type: ignore[misc]
    mmap.mmap = Mapping  # type: ignore[misc]


def have_other_locks_and_syncs() -> None:
    command, flock, lockf, close = fcntl.fcntl, fcntl.flock, fcntl.lockf, os.close
    whole: dict[int, tuple[int, int]] = {}

    def file_of(fd: int) -> tuple[int, int] | None:
        try:
            found = os.fstat(fd)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def fcntl_of_macos(fd: int, number: int, *rest: Any) -> Any:
        assert number != OFD_SET_LOCK, "another struct than that of Linux"
        if number == FULL_SYNC:
            full_syncs.append(fd)
            return os.fsync(fd)
        return 0 if number == NO_CACHE else command(fd, number, *rest)

    def flock_of_macos(fd: int, kind: int) -> None:
        flock(fd, kind)
        whole[fd] = file_of(fd) or (0, 0)

    def close_and_unlock(fd: int) -> None:
        whole.pop(fd, None)  # the number and the inode may both be given to another file
        close(fd)

    def lockf_of_macos(fd: int, kind: int, *rest: Any) -> None:
        held = {file for other, file in whole.items() if file_of(other) == file}
        if kind != fcntl.LOCK_UN and file_of(fd) in held:
            raise BlockingIOError(errno.EAGAIN, "its own process locked the whole file")
        lockf(fd, kind, *rest)

    fcntl.fcntl, fcntl.flock, fcntl.lockf = fcntl_of_macos, flock_of_macos, lockf_of_macos  # type: ignore[assignment]
    os.close = close_and_unlock
    fcntl.F_FULLFSYNC, fcntl.F_NOCACHE = FULL_SYNC, NO_CACHE  # type: ignore[attr-defined]
    fcntl.F_OFD_SETLK = OFD_SET_LOCK  # type: ignore[misc]


def have_no_proc() -> None:
    plain = builtins.open

    def opened(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return plain(file, *args, **options)

    builtins.open = opened


def jobs(folder: Path) -> None:
    import numpy as np

    import warpdata as wd

    salvaged(folder, wd, np)
    record(folder, wd, np)
    shards(folder, wd, np)
    corpora(folder, wd, np)
    warm_starts(folder, wd, np)
    vectors(folder, wd, np)
    trained(folder, wd, np)
    published(folder, wd, np)
    cached(folder)
    viewed(folder, wd)
    assert full_syncs


def record(folder: Path, wd, np) -> None:
    with wd.LocalDatasetWriter(folder / "root", durability="record").new_episode() as recording:
        for i in range(20):
            recording.append("joints", np.full(3, i, "f4"), i * 10)
            recording.append("cam", np.full((32, 32, 3), i, np.uint8), i * 10)
    episode = wd.LocalDataset(folder / "root")[0]
    assert episode["joints"].values()[:, 0].tolist() == list(range(20))
    assert len(episode["cam"][5][0]) == 32
    channels = [{"id": "x", "dtype": "f32", "shape": [3]}]
    with wd.WShardStreamWriter(folder / "s.wshard", "s", channels, durability="record") as writer:
        writer.begin_episode()
        for i in range(20):
            writer.write_timestep({"x": np.full(3, i, "f4")}, reward=1.0, done=i == 19)
        writer.end_episode()
    assert wd.load_wshard(folder / "s.wshard").length == 20
    wd.WShardStreamWriter(folder / "k.wshard", "k", channels).begin_episode()
    assert wd.LocalDataset(folder / "root").unfinished == []


def salvaged(folder: Path, wd, np) -> None:
    """What a killed recorder leaves."""
    child = os.fork()
    if child == 0:
        with wd.record(folder / "killed", clock="simulated") as recording:
            for i in range(20):
                recording.append("large", np.full(1 << 19, i, "f4"), i)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (left,) = wd.LocalDataset(folder / "killed").unfinished
    wd.salvage(left.path)
    values = wd.open(folder / "killed")[0]["large"].values()
    assert values[:, 0].tolist() == list(range(20))


def warm_starts(folder: Path, wd, np) -> None:
    from warpdata.corpora.warm_cache import WarmRows

    states = WarmRows.from_rows([2], [np.array([1.0, 2.0])], [np.array([0, 5])], [7])
    with wd.RowWarmCache(folder / "warm", model="m", total_rows=3) as cache:
        cache.put(states)
        cache.checkpoint()
    with wd.RowWarmCache(folder / "warm", model="m", total_rows=3) as cache:
        assert cache.get([0, 1, 2]).latents_of(2).tolist() == [1.0, 2.0]


def shards(folder: Path, wd, np) -> None:
    made = wd.WShardEpisode(id="e", length=50)
    made.observations["rgb"] = np.arange(50 * 48, dtype=np.uint8).reshape(50, 4, 4, 3)
    wd.save_wshard(made, folder / "e.wshard", compression="zstd")
    assert wd.load_wshard(folder / "e.wshard") == made


def corpora(folder: Path, wd, np) -> None:
    rows = np.arange(5000 * 16, dtype=np.float32).reshape(5000, 16)
    with wd.CorpusWriter(folder / "corpus", 16, dtype="f32", sync_appends=True) as corpus:
        corpus.append(rows[:3000])
        corpus.append(rows[3000:])
    source = wd.MmapShardSource.open_dir(folder / "corpus", dtype="float32")
    assert np.array_equal(np.concatenate([np.array(batch.rows) for batch in source]), rows)
    shuffled = wd.ShuffledRows(source, seed=1, batch_size=500)
    got = np.concatenate([np.array(shuffled.next_batch().rows) for _ in range(10)])
    assert np.array_equal(got[np.argsort(got[:, 0])], rows)


def vectors(folder: Path, wd, np) -> None:
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("f4")
    with wd.VectorStore.create(folder / "v.rvf", dim=8) as store:
        store.add(x)
        assert store.search(x[3], k=1)[0][0] == 3
    with wd.VectorStore.open(folder / "v.rvf") as store:
        assert store.search(x[7], k=1)[0][0] == 7


def trained(folder: Path, wd, np) -> None:
    fields = {"joints": wd.Field("joints", past=2), "image": "cam"}
    windows = wd.Windows(wd.open(folder / "root"), fields, anchor="joints")
    loader = wd.Loader(windows, batch_size=6, seed=1)
    first = next(iter(loader))
    again = wd.Loader(windows, batch_size=6, seed=1)
    again.load_state_dict(loader.state_dict())
    batches = [first, *again]
    assert sorted(np.concatenate([batch["joints"][:, -1, 0] for batch in batches]).tolist()) == list(
        range(20)
    )
    assert batches[0]["image"].shape[1:] == (32, 32, 3)


def published(folder: Path, wd, np) -> None:
    with wd.DatasetBuilder("a/b", catalog=folder / "catalog") as builder:
        builder.add_table("main", {"x": list(range(100))})
        builder.publish()
    with wd.dataset("a/b", catalog=str(folder / "catalog")) as ds:
        assert ds.sql("select sum(x) as s from main").arrow().to_pylist() == [{"s": 4950}]
        assert sum(len(part["x"]) for part in ds.table("main").batch_dicts(7)) == 100
        stream = ds.table("main").batches(30, shuffle=True, seed=1)
        assert sorted(x for part in stream for x in part["x"].to_pylist()) == list(range(100))
        with wd.DatasetBuilder("a/episodes", catalog=folder / "catalog") as builder:
            builder.add_episodes("demos", folder / "root")
            builder.publish()
    with wd.dataset("a/episodes", catalog=str(folder / "catalog")) as ds:
        assert ds.episodes[0]["joints"].values()[:, 0].tolist() == list(range(20))
    far_away(folder, wd, np)


def far_away(folder: Path, wd, np) -> None:
    """Over a wire into the cache, and from the cache when nothing answers any more."""
    from tests.servers import run_http

    def look(mode: str) -> None:
        with wd.dataset("a/episodes", catalog=url, mode=mode, cache_dir=folder / "pages") as ds:
            episode = ds.episodes[0]
            assert episode["joints"].values()[:, 0].tolist() == list(range(20))
            assert np.array(episode["cam"][7][0]).shape == (32, 32, 3)

    with run_http(folder / "catalog") as server:
        url = server.url
        look("hybrid")
    look("local")


def viewed(folder: Path, wd) -> None:
    import http.client
    import json

    with wd.view(folder / "root", open_browser=False) as viewer:
        connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=LIMIT_S)
        connection.request("GET", "/api/episodes", headers={"Authorization": f"Bearer {viewer.access.token}"})
        assert len(json.loads(connection.getresponse().read())["rows"]) == 1
        connection.close()


def cached(folder: Path) -> None:
    """Pages of a blob, more in one run than one call writes."""
    from tests.memory_store import MemoryStore, digest_bytes
    from warpdata.bytekit.checksum import sha256_hex
    from warpdata.stores.blobs import BlobAddress, BlobReader
    from warpdata.stores.pagecache import PageCache

    data = os.urandom(3 << 20)
    store = MemoryStore()
    store.put_if_absent("b", data)
    address = BlobAddress(sha256_hex(data), len(data), "b", "blob")
    cache = PageCache(folder / "cache", 1 << 30)
    reader = BlobReader(address, store, cache, digest_bytes(data).page_sums)
    assert bytes(reader.read(5, len(data))) == data[5:]
    assert reader.has([(0, len(data))])


if __name__ == "__main__":
    remove_what_is_of_linux()
    jobs(Path(sys.argv[1]))
    print("{}")
