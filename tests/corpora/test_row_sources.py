from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.row_source import WIDTH, RowSourceContract, rows_of, write_shards
from tests.waiting import LIMIT_S, until
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.corpora import spans
from warpdata.corpora.shuffled import ShuffledRows
from warpdata.corpora.source import FixedOrderSource, MmapShardSource, StoreShardSource
from warpdata.errors import BlobNotFoundError, StoreError, TruncatedError, UnavailableError
from warpdata.formats.gamsae.shard import encode_shard_bytes
from warpdata.stores.blobstore import RetryPolicy


class TestMapped(RowSourceContract):
    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource:
        return MmapShardSource.open(paths, **options)

    def test_views_without_a_copy(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [300, 25])
        with self.open(paths, dtype="float32", copy=False, batch_rows=64, prefetch_bytes=1000) as source:
            batches = list(source)
            assert not any(batch.rows.flags.owndata or batch.rows.flags.writeable for batch in batches)
            np.testing.assert_array_equal(np.concatenate([b.rows for b in batches]), rows_of(0, 325))
        with pytest.raises(ValueError, match="copy=False"):
            self.open(paths, copy=False)

    def test_a_file_cut_while_open_is_an_error_not_a_signal(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [400_000])
        with self.open(paths, prefetch_bytes=1 << 16) as source:
            source.next_batch()
            os.truncate(paths[0], 5000)
            with pytest.raises(TruncatedError, match="now ends at"):
                list(source)

    def test_a_shard_that_is_gone_fails_when_its_rows_are_read(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [300, 25])
        with self.open(paths, batch_rows=300) as source:
            paths[1].unlink()
            assert len(source.next_batch()) == 300
            with pytest.raises(BlobNotFoundError):
                source.next_batch()

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("cut_at", [33, 5000, 4_000_000])
    def test_a_file_cut_between_any_two_batches(self, tmp_path: Path, dtype: str, cut_at: int) -> None:
        """Cached or not, copied by the kernel or decoded from the mapping."""
        paths = write_shards(tmp_path, [400_000])
        for cold in (False, True):
            write_shards(tmp_path, [400_000])
            with self.open(paths, dtype=dtype, batch_rows=100_000, verify=False) as source:
                if cold:
                    evict(paths[0])
                assert source.next_batch() is not None
                os.truncate(paths[0], cut_at)
                with pytest.raises(TruncatedError):
                    list(source)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_a_file_that_is_cached_in_part(self, tmp_path: Path, dtype: str) -> None:
        """Rows come from the page cache as far as it goes, the rest from the disk, in the same order."""
        paths = write_shards(tmp_path, [900_000, 300_000])
        wanted = rows_of(0, 1_200_000)
        for start in (0, 3 << 20, 9 << 20):
            evict(*paths)
            with open(paths[0], "rb") as file:
                file.seek(start)
                file.read(4 << 20)
            with self.open(paths, dtype=dtype, batch_rows=250_000) as source:
                for _ in range(2):
                    found = np.concatenate([batch.rows for batch in source])
                    assert np.array_equal(found, wanted)
                    source.reset()


def evict(*paths: Path) -> None:
    """Drop files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class TestStoreInMemory(RowSourceContract):
    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource:
        return StoreShardSource.open([NamedBytes(path) for path in paths], **options)


class TestStoreOfFiles(RowSourceContract):
    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource:
        return StoreShardSource.open([FileRangeReader(path) for path in paths], **options)


class Meeting(BytesRangeReader):
    """A store that answers for rows only when it is asked for two stretches at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.both = threading.Barrier(2, timeout=LIMIT_S)

    def read(self, start: int, end: int) -> memoryview:
        if start:
            self.both.wait()
        return super().read(start, end)


def test_the_next_stretch_is_on_its_way_while_the_first_is(tmp_path: Path) -> None:
    data = write_shards(tmp_path, [800_000])[0].read_bytes()  # four spans, of which two fit in the window
    with StoreShardSource.open([Meeting(data)], batch_rows=100_000) as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), rows_of(0, 800_000))


class NamedBytes(BytesRangeReader):
    """A file's bytes in memory, that can be pickled."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes(), str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return (NamedBytes, (Path(self.name),))


class Flaky(BytesRangeReader):
    """A store that fails `failures` times before every success."""

    def __init__(self, data: bytes, failures: int) -> None:
        super().__init__(data)
        self.failures = failures
        self.left = failures

    def read(self, start: int, end: int) -> memoryview:
        if self.left:
            self.left -= 1
            raise UnavailableError("timeout")
        self.left = self.failures
        return super().read(start, end)


def test_a_store_that_fails_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "RETRIES", RetryPolicy(attempts=5, sleep=lambda _: None))
    data = encode_shard_bytes(rows_of(0, 100))
    with StoreShardSource.open([Flaky(data, 3)], batch_rows=9, prefetch_bytes=100) as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), rows_of(0, 100))


def test_a_read_that_failed_is_tried_again_and_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "RETRIES", RetryPolicy(attempts=5, sleep=lambda _: None))
    reader = Flaky(encode_shard_bytes(rows_of(0, 100)), 0)
    with StoreShardSource.open([reader], batch_rows=9, prefetch_bytes=100) as source:
        first = source.next_batch()
        assert first is not None
        source.seek(9)
        reader.left = 50
        with pytest.raises(UnavailableError):
            source.next_batch()
        reader.left = 0
        rest = np.concatenate([batch.rows for batch in source])
    np.testing.assert_array_equal(rest, rows_of(9, 91))


@pytest.mark.parametrize("how", ["copy", "view", "shuffled", "small steps"])
def test_many_small_shards_need_few_descriptors(tmp_path: Path, how: str) -> None:
    paths = write_shards(tmp_path, [3] * 600)
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, hard))
    try:
        with MmapShardSource.open(paths, copy=how != "view", dtype="float32", batch_rows=2) as source:
            batches = source if how != "shuffled" else ShuffledRows(source, batch_size=50)
            rows = [batch.rows.copy() for batch in batches]
            found = np.concatenate(rows)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], rows_of(0, 1800))


def test_what_is_not_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError):
        MmapShardSource.open_dir(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreError, match="not a folder"):
        MmapShardSource.open_dir(tmp_path / "file")
    with pytest.raises(TypeError, match="list of shard paths"):
        MmapShardSource.open(str(tmp_path))  # type: ignore[arg-type]
    assert WIDTH == 5


def test_threads_stop_with_their_source(tmp_path: Path) -> None:
    import gc
    import threading

    before = set(threading.enumerate())
    source = StoreShardSource.open(
        [NamedBytes(path) for path in write_shards(tmp_path, [500])], batch_rows=10
    )
    source.next_batch()
    assert set(threading.enumerate()) - before
    del source
    gc.collect()
    until(lambda: not set(threading.enumerate()) - before, "its threads end")


def test_a_store_checks_rows_against_corpus_json(tmp_path: Path) -> None:
    from warpdata.corpora.writer import CorpusWriter
    from warpdata.errors import ChecksumError, CorruptLayoutError

    with CorpusWriter(tmp_path / "c", WIDTH, shard_bytes=2000) as writer:
        for first in range(0, 300, 100):
            writer.append(rows_of(first, 100))
    paths = sorted((tmp_path / "c").glob("*.shard"))
    record = FileRangeReader(tmp_path / "c" / "corpus.json")
    with StoreShardSource.open_dir(tmp_path / "c") as source:
        assert source.shards.run_crcs is not None
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), rows_of(0, 300))
    data = [bytearray(path.read_bytes()) for path in paths]
    data[1][-3] ^= 8
    readers = [BytesRangeReader(bytes(each)) for each in data]
    with StoreShardSource.open(readers, corpus=record) as source, pytest.raises(ChecksumError):
        list(source)
    with pytest.raises(CorruptLayoutError, match="lists 3 shards, 2 were given"):
        StoreShardSource.open(readers[:2], corpus=record)
