"""The page cache: pages come once, damage is noticed, the limit holds, processes share it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.memory_store import MemoryStore, digest_bytes
from tests.servers import S3Server, s3_store, unique
from tests.sweeps import enough_examples
from warpdata.bytekit.checksum import sha256_hex
from warpdata.errors import ChecksumError, OfflineError, StoreError
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.blobstore import PAGE_BYTES, ReliableStore
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache

SIZE = 5 * PAGE_BYTES + 123
DATA = np.random.default_rng(1).bytes(SIZE)


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[tuple[int, int]] = []
        self.delay_s = 0.0

    def get_ranges(self, key, ranges, **conditions):
        self.fetched += ranges
        time.sleep(self.delay_s)
        return super().get_ranges(key, ranges, **conditions)


def opened(folder: Path, data: bytes = DATA, limit: int = 1 << 30, store: MemoryStore | None = None):
    store = store or Counting()
    key = sha256_hex(data)
    if not list(store.list(key)):
        store.put_if_absent(key, data)
    cache = PageCache(folder, limit)
    return (
        BlobReader(BlobAddress(key, len(data), key, "blob"), store, cache, digest_bytes(data).page_sums),
        store,
        cache,
    )


def disk_bytes(folder: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file() and p.name != "usage")


def test_pages_come_once(tmp_path: Path) -> None:
    reader, store, _ = opened(tmp_path)
    assert bytes(reader.read(10, 20)) == DATA[10:20]
    assert store.fetched == [(0, PAGE_BYTES)]
    reader.read(0, PAGE_BYTES)
    assert len(store.fetched) == 1
    assert bytes(reader.read(PAGE_BYTES - 5, 3 * PAGE_BYTES)) == DATA[PAGE_BYTES - 5 : 3 * PAGE_BYTES]
    assert store.fetched[1:] == [(PAGE_BYTES, 3 * PAGE_BYTES)]
    again, other, _ = opened(tmp_path)
    again.read(0, 3 * PAGE_BYTES)
    assert other.fetched == [], "another process finds what this one fetched"


def test_a_whole_blob_is_checked_against_its_hash(tmp_path: Path) -> None:
    reader, _, cache = opened(tmp_path)
    path = reader.load_whole()
    assert path is not None
    assert path.read_bytes() == DATA
    assert cache.stats().whole_blobs == 1
    assert reader.missing_bytes() == 0


@pytest.mark.parametrize("where", [0, PAGE_BYTES + 7, SIZE - 1])
def test_damaged_pages_are_noticed_and_fetched_again(tmp_path: Path, where: int) -> None:
    opened(tmp_path)[0].load_whole()
    (path,) = tmp_path.glob("blobs/*/*.data")
    raw = bytearray(path.read_bytes())
    raw[where] ^= 1
    with path.open("r+b") as file:
        file.write(raw)
    reader, store, _ = opened(tmp_path)
    assert bytes(reader.read(0, SIZE)) == DATA
    page = where // PAGE_BYTES
    assert store.fetched == [(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, SIZE))]


def test_a_damaged_map_starts_over(tmp_path: Path) -> None:
    opened(tmp_path)[0].load_whole()
    (path,) = tmp_path.glob("blobs/*/*.pages")
    path.write_bytes(path.read_bytes()[:-9])
    reader, store, _ = opened(tmp_path)
    assert bytes(reader.read(0, SIZE)) == DATA
    assert store.fetched


def test_a_cached_file_that_was_cut_is_fetched_again(tmp_path: Path) -> None:
    reader, store, _ = opened(tmp_path)
    reader.read(0, SIZE)
    (path,) = tmp_path.glob("blobs/*/*.data")
    os.truncate(path, 100)
    assert bytes(reader.read(0, SIZE)) == DATA
    assert len(store.fetched) == 2


def test_a_damaged_blob_is_an_error_with_its_name(tmp_path: Path) -> None:
    store = Counting()
    reader, _, _ = opened(tmp_path, store=store)
    store._blobs.clear()
    store.put_if_absent(sha256_hex(DATA), DATA[:-1] + b"x")
    with pytest.raises(ChecksumError, match=f"page 5: blob .sha256 {sha256_hex(DATA)}"):
        reader.read(SIZE - 10, SIZE)
    assert bytes(reader.read(0, 10)) == DATA[:10]


def test_without_sums_the_hash_still_guards_the_whole(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put_if_absent("k", DATA[:-1] + b"x")
    reader = BlobReader(BlobAddress(sha256_hex(DATA), SIZE, "k", "blob"), store, PageCache(tmp_path, 1 << 30))
    with pytest.raises(ChecksumError):
        reader.load_whole()
    with pytest.raises(ChecksumError):
        reader.verify()


def test_offline_says_what_is_missing(tmp_path: Path) -> None:
    opened(tmp_path)[0].read(0, 10)
    address = BlobAddress(sha256_hex(DATA), SIZE, "k", "blob")
    reader = BlobReader(address, None, PageCache(tmp_path, 1 << 30))
    assert bytes(reader.read(5, 10)) == DATA[5:10]
    with pytest.raises(OfflineError, match="not in the cache"):
        reader.read(PAGE_BYTES, PAGE_BYTES + 1)


def test_a_limit_below_one_blob_streams_through(tmp_path: Path) -> None:
    reader, store, _ = opened(tmp_path, limit=2 * PAGE_BYTES)
    for _ in range(3):
        assert bytes(reader.read(0, SIZE)) == DATA
        assert disk_bytes(tmp_path) <= 2 * PAGE_BYTES
    assert len(store.fetched) >= 3


def test_the_longest_unused_goes_first_and_what_is_pinned_stays(tmp_path: Path) -> None:
    blobs = [np.random.default_rng(i).bytes(4 * PAGE_BYTES) for i in range(4)]
    cache_limit = 3 * (4 * PAGE_BYTES + 16_384)
    readers = [opened(tmp_path, data, cache_limit) for data in blobs]
    for reader, _, _ in readers[:3]:
        reader.load_whole()
        time.sleep(0.02)
    file = readers[0][2].pin_blob(sha256_hex(blobs[0]), len(blobs[0]))
    readers[3][0].load_whole()
    file.unpin()
    kept = {p.stem for p in tmp_path.glob("blobs/*/*.data")}
    assert sha256_hex(blobs[0]) in kept
    assert sha256_hex(blobs[1]) not in kept
    assert disk_bytes(tmp_path) <= cache_limit


def test_gc_frees_and_stays_inside_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(100_000))
    reader, _, cache = opened(tmp_path / "cache")
    reader.load_whole()
    assert cache.gc(0) > SIZE
    assert cache.stats().used_bytes == 0
    assert outside.exists()
    assert bytes(reader.read(0, 100)) == DATA[:100], "a reader that was open goes on"


def test_views_outlive_eviction(tmp_path: Path) -> None:
    reader, _, cache = opened(tmp_path)
    view = reader.read(0, SIZE)
    cache.gc(0)
    assert bytes(view) == DATA


def test_many_threads_make_one_request_per_page(tmp_path: Path) -> None:
    store = Counting()
    store.delay_s = 0.05
    reader, _, _ = opened(tmp_path, store=store)
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(bytes(reader.read(0, SIZE)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [DATA] * 8
    assert sum(end - start for start, end in store.fetched) == SIZE


def _herd(folder: str, source: str, log: str, start) -> None:
    start.wait()
    store = LocalStore(source)
    original = store.get_ranges

    def slow(key, ranges, **conditions):
        with open(log, "a") as file:
            file.write("".join(f"{a} {b}\n" for a, b in ranges))
        time.sleep(0.1)
        return original(key, ranges, **conditions)

    store.get_ranges = slow
    reader = BlobReader(BlobAddress(sha256_hex(DATA), SIZE, "k", "blob"), store, PageCache(folder, 1 << 30))
    assert bytes(reader.read(0, SIZE)) == DATA


def test_many_processes_make_one_request_per_page(tmp_path: Path) -> None:
    LocalStore(tmp_path / "s").put_if_absent("k", DATA)
    context = multiprocessing.get_context("fork")
    start = context.Event()
    arguments = (str(tmp_path / "c"), str(tmp_path / "s"), str(tmp_path / "log"), start)
    processes = [context.Process(target=_herd, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * 4
    fetched = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(b - a for a, b in fetched) == SIZE


BLOBS = [np.random.default_rng(100 + i).bytes(20 * PAGE_BYTES + i) for i in range(10)]


def _epochs(folder: str, port: int, prefix: str, limit: int, seed: int, epochs: int) -> None:
    store = ReliableStore(s3_store(S3Server(port), prefix))
    cache = PageCache(folder, limit)
    readers = [
        BlobReader(
            BlobAddress(sha256_hex(data), len(data), str(i), f"blob {i}"),
            store,
            cache,
            digest_bytes(data).page_sums,
        )
        for i, data in enumerate(BLOBS)
    ]
    dice = random.Random(seed)
    for _ in range(epochs):
        order = [(i, at) for i, data in enumerate(BLOBS) for at in range(0, len(data), 150_000)]
        dice.shuffle(order)
        for i, at in order:
            end = min(at + 150_000, len(BLOBS[i]))
            assert bytes(readers[i].read(at, end)) == BLOBS[i][at:end]


def test_many_processes_share_a_cache_of_half_the_data(tmp_path: Path, s3_server: S3Server) -> None:
    """Two epochs each, some killed at any moment: the limit holds, every byte is right, nothing is left."""
    prefix = unique("shared")
    source = s3_store(s3_server, prefix)
    for i, data in enumerate(BLOBS):
        source.put_if_absent(str(i), data)
    limit = sum(map(len, BLOBS)) // 2
    folder = tmp_path / "c"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stores.test_cache"])
    arguments = (str(folder), s3_server.port, prefix, limit)
    workers = [context.Process(target=_epochs, args=(*arguments, seed, 2)) for seed in range(4)]
    victims = [context.Process(target=_epochs, args=(*arguments, 50 + seed, 100)) for seed in range(2)]
    for process in workers + victims:
        process.start()
    worst = 0
    dice = random.Random(7)
    watcher = PageCache(folder, limit)
    while any(process.is_alive() for process in workers):
        with watcher._exclusive():  # nothing moves while it is measured
            worst = max(worst, disk_bytes_now(folder))
        time.sleep(0.02)
        for number, process in enumerate(victims):
            if dice.random() < 0.1 and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                victims[number] = context.Process(
                    target=_epochs, args=(*arguments, dice.getrandbits(30), 100)
                )
                victims[number].start()
    for process in victims:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert [process.exitcode for process in workers] == [0] * 4
    assert worst <= limit
    cache = PageCache(folder, limit)
    cache.gc(0)
    left = [p for p in folder.rglob("*") if p.is_file() and p.name != "usage"]
    assert left == []


def disk_bytes_now(folder: Path) -> int:
    total = 0
    for path in folder.glob("blobs/*/*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_an_unusable_folder_costs_only_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    reader, _, cache = opened(tmp_path / "file" / "cache")
    for _ in range(2):
        assert bytes(reader.read(0, SIZE)) == DATA
    assert not reader.has([(0, 1)])
    assert reader.missing_bytes() == SIZE
    assert [r.message for r in caplog.records if "without the cache" in r.message] == [caplog.messages[0]]
    with pytest.raises(StoreError, match="cache"):
        reader.load_whole()
    with pytest.raises(StoreError, match="cache"):
        BlobReader(reader.address, None, cache).read(0, 1)


class CacheMachine(RuleBasedStateMachine):
    """Any order of reads, evictions, damage and reopening gives the right bytes within the limit."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = Path(tempfile.mkdtemp())
        self.limit = 12 * PAGE_BYTES
        self.store = MemoryStore()
        self.blobs = [np.random.default_rng(i).bytes(5 * PAGE_BYTES + i * 1000) for i in range(4)]
        for data in self.blobs:
            self.store.put_if_absent(sha256_hex(data), data)
        self.reopen()

    @rule()
    def reopen(self) -> None:
        self.cache = PageCache(self.folder, self.limit)
        self.readers = [
            BlobReader(BlobAddress(sha256_hex(d), len(d), sha256_hex(d), "b"), self.store, self.cache)
            for d in self.blobs
        ]

    @rule(
        which=st.integers(0, 3), start=st.integers(0, 5 * PAGE_BYTES), length=st.integers(0, 3 * PAGE_BYTES)
    )
    def read(self, which: int, start: int, length: int) -> None:
        end = min(start + length, len(self.blobs[which]))
        assert bytes(self.readers[which].read(start, end)) == self.blobs[which][start:end]

    @rule(which=st.integers(0, 3))
    def whole(self, which: int) -> None:
        path = self.readers[which].load_whole()
        assert path is None or path.read_bytes() == self.blobs[which]

    @rule(limit=st.integers(0, 20))
    def collect(self, limit: int) -> None:
        self.cache.gc(limit * PAGE_BYTES)

    @rule(which=st.integers(0, 3))
    def forget_files(self, which: int) -> None:
        for path in self.folder.glob(f"blobs/*/{sha256_hex(self.blobs[which])}*"):
            path.unlink()
        self.reopen()

    @invariant()
    def within_the_limit(self) -> None:
        assert disk_bytes_now(self.folder) <= self.limit

    def teardown(self) -> None:
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=enough_examples(25), stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


def test_a_page_written_in_part_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 2048
    store = MemoryStore()
    store.put_if_absent("b", data)
    address = BlobAddress(sha256_hex(data), len(data), "b", "blob")
    whole, taken = os.pwritev, iter([100])

    def part(fd: int, pieces: list[memoryview], offset: int) -> int:
        return whole(fd, [pieces[0][: next(taken, 0)]], offset)

    monkeypatch.setattr(os, "pwritev", part)
    reader = BlobReader(address, store, PageCache(tmp_path / "cache", 1 << 30), digest_bytes(data).page_sums)
    for _ in range(2):
        assert bytes(reader.read(50, 300_000)) == data[50:300_000]


def test_resident_bytes_are_a_view_once_all_are_here_and_fetch_nothing(tmp_path: Path) -> None:
    reader, *_ = opened(tmp_path)
    store = reader._store
    assert reader.resident(0, SIZE) is None
    reader.read(0, PAGE_BYTES)
    assert reader.resident(0, SIZE) is None
    found = reader.resident(5, PAGE_BYTES)
    assert found is not None
    assert bytes(found) == DATA[5:PAGE_BYTES]
    reader.read(0, SIZE)
    store.delete(reader.address.key)
    whole = reader.resident(0, SIZE)
    assert whole is not None
    assert bytes(whole) == DATA


def test_few_blobs_stay_open_and_all_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.stores.pagecache.MOST_OPEN", 3)
    store, cache = Counting(), PageCache(tmp_path, 1 << 30)
    readers, views = [], []
    for number in range(12):
        data = bytes([number]) * 100_000
        key = sha256_hex(data)
        store.put_if_absent(key, data)
        sums = digest_bytes(data).page_sums
        readers.append(BlobReader(BlobAddress(key, len(data), key, "blob"), store, cache, sums))
        views.append(readers[-1].read(0, len(data)))
        assert len(cache._open) <= 3
    assert [set(view) for view in views] == [{number} for number in range(12)]
    store.fetched.clear()
    assert [bytes(reader.read(5, 6))[0] for reader in readers] == list(range(12))
    assert store.fetched == [], "it is all in the cache"


@pytest.mark.parametrize("pages", [[0], [5], [1, 5], [0, 1, 2, 3, 4, 5]])
def test_missing_bytes_are_what_is_fetched(tmp_path: Path, pages: list[int]) -> None:
    """Also where the last page, which is shorter, is here and another is not."""
    reader, store, _ = opened(tmp_path)
    for page in pages:
        reader.read(page * PAGE_BYTES, page * PAGE_BYTES + 1)
    store.fetched.clear()
    said = reader.missing_bytes()
    reader.load_whole()
    assert said == sum(end - start for start, end in store.fetched)


def test_few_blobs_stay_open_over_all_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.stores.pagecache.MOST_OPEN", 3)
    several = [opened(tmp_path / str(number)) for number in range(8)]
    for _ in range(2):
        for reader, _, _ in several:
            assert bytes(reader.read(5, 100_000)) == DATA[5:100_000]
            assert sum(len(cache._open) for _, _, cache in several) <= 3
