"""The main jobs on a system without the calls of Linux: `python -m tests.bytekit.elsewhere FOLDER`.

The calls are taken out of os, fcntl and mmap, and the one module that knows about systems is told that it is on macOS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from pathlib import Path

GONE = {
    os: (
        "fdatasync", "posix_fallocate", "posix_fadvise", "preadv", "pwritev", "sched_getaffinity", "sched_getscheduler",
        "sched_getparam", "sched_setscheduler", "O_DIRECT", "RWF_NOWAIT", "process_cpu_count",
    ),
    fcntl: ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"),
    mmap: tuple(name for name in dir(mmap) if name.startswith(("MADV_", "MAP_POPULATE"))),
}  # fmt: skip


def remove_what_is_of_linux() -> None:
    for module, names in GONE.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "darwin"
    try:
        import warpdata.bytekit.system as system
    finally:
        sys.platform = "linux"
    assert system._libc is None
    assert system._SET_LOCK is None


def jobs(folder: Path) -> None:
    import numpy as np

    import warpdata as wd

    record(folder, wd, np)
    shards(folder, wd, np)
    corpora(folder, wd, np)
    vectors(folder, wd, np)
    published(folder, wd)
    cached(folder)


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
    for how in ("mmap", "direct"):
        source = wd.MmapShardSource.open_dir(folder / "corpus", dtype="float32", io=how)
        assert np.array_equal(np.concatenate([np.array(batch.rows) for batch in source]), rows), how
        shuffled = wd.ShuffledRows(source, seed=1, batch_size=500)
        got = np.concatenate([np.array(shuffled.next_batch().rows) for _ in range(10)])
        assert np.array_equal(got[np.argsort(got[:, 0])], rows), how


def vectors(folder: Path, wd, np) -> None:
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("f4")
    with wd.VectorStore.create(folder / "v.rvf", dim=8) as store:
        store.add(x)
        assert store.search(x[3], k=1)[0][0] == 3
    with wd.VectorStore.open(folder / "v.rvf") as store:
        assert store.search(x[7], k=1)[0][0] == 7


def published(folder: Path, wd) -> None:
    with wd.DatasetBuilder("a/b", catalog=folder / "catalog") as builder:
        builder.add_table("main", {"x": list(range(100))})
        builder.publish()
    with wd.dataset("a/b", catalog=str(folder / "catalog")) as ds:
        assert ds.sql("select sum(x) as s from main").arrow().to_pylist() == [{"s": 4950}]
        assert sum(len(part["x"]) for part in ds.table("main").batch_dicts(7)) == 100


def cached(folder: Path) -> None:
    """Pages of a blob, more in one run than one call writes."""
    from warpdata.bytekit.checksum import sha256_hex
    from warpdata.stores.blobs import BlobAddress, BlobReader
    from warpdata.stores.cache import PageCache
    from warpdata.stores.digest import digest_bytes
    from warpdata.stores.memory import MemoryStore

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
