"""Members read in order are on their way before they are asked for; members read at random bring nothing along."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.memory_store import MemoryStore
from tests.servers import Proxy, S3Server
from warpdata.errors import ChecksumError, StoreError
from warpdata.formats.tarshard.writer import PackOptions
from warpdata.stores.blobs import BlobAddress, BlobReader
from warpdata.stores.prefetch import SequentialReads

COUNT = 600
MEMBERS = {f"{i:04d}.bin": np.random.default_rng(i).bytes(7_000 + 13 * (i % 300)) for i in range(COUNT)}
BIG = np.random.default_rng(9).bytes(20 << 20)


def publish(catalog: str, folder: Path, **options) -> None:
    (folder / "raw").mkdir(parents=True)
    for name, data in MEMBERS.items():
        (folder / "raw" / name).write_bytes(data)
    with wd.DatasetBuilder("ws/ordered", catalog=catalog) as builder:
        builder.add_artifact("raw", folder / "raw", options=PackOptions(shard_bytes=1 << 20, **options))
        builder.add_table("main", {"file": list(MEMBERS)}).bind("main", "file", "raw", "file").publish()


_published: list[str] = []


@pytest.fixture
def ordered(s3_catalog: str, tmp_path: Path) -> str:
    """A catalog with the members, published once."""
    if not _published:
        publish(s3_catalog, tmp_path)
        _published.append(s3_catalog)
    return _published[0]


def passed(dataset: wd.Dataset, size: int, **options) -> list[bytes]:
    return [
        data
        for batch in dataset.table().batches(size, **options)
        for data in wd.read_refs(batch["file"].refs())
    ]


@pytest.mark.parametrize("mode", ["auto", "remote"])
@pytest.mark.parametrize("size", [5, 600])
def test_in_order_few_requests_bring_every_byte_once(ordered: str, mode: str, size: int) -> None:
    with wd.dataset("ws/ordered", catalog=ordered, mode=mode) as dataset:
        shards = len(dataset.artifact("raw").part.shards)
        total = sum(shard.byte_size for shard in dataset.artifact("raw").part.shards)
        assert passed(dataset, size) == list(MEMBERS.values())
        assert dataset.spent.requests <= 12 + 3 * shards
        assert dataset.spent.bytes_read < total * 1.15 + (300 << 10)


def test_compressed_shards_read_the_same(s3_catalog: str, tmp_path: Path) -> None:
    publish(s3_catalog, tmp_path, compression="zstd")
    with wd.dataset("ws/ordered", catalog=s3_catalog, mode="remote") as dataset:
        assert passed(dataset, 50) == list(MEMBERS.values())


def test_at_random_nothing_is_brought_along(ordered: str) -> None:
    with wd.dataset("ws/ordered", catalog=ordered, mode="remote") as dataset:
        names = random.Random(3).sample(list(MEMBERS), 10)
        dataset.artifact("raw").find(names)
        before = dataset.spent.bytes_read
        raw = dataset.artifact("raw")
        assert raw.read(raw.find(names)) == [MEMBERS[name] for name in names]
        assert dataset.spent.bytes_read - before < 400 << 10


@pytest.mark.parametrize("options", [{"max_bytes": "1GB"}, {"prefetch": "off"}])
def test_it_can_be_turned_off_and_spends_no_budget(ordered: str, options: dict) -> None:
    with wd.dataset("ws/ordered", catalog=ordered, mode="remote", **options) as dataset:
        first = next(dataset.table().batches(64))
        wd.read_refs(first["file"].refs())
        assert dataset.spent.bytes_read < 1 << 20


def test_a_large_file_streams_ahead(
    s3_catalog: str, s3_server: S3Server, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "film.bin").write_bytes(BIG)
    with wd.DatasetBuilder("ws/big", catalog=s3_catalog) as builder:
        builder.add_artifact("raw", tmp_path / "big").publish()
    with Proxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with wd.dataset("ws/big", catalog=s3_catalog, mode="remote") as dataset:
            with dataset.ref("raw", "film.bin").open() as file:
                assert b"".join(iter(lambda: file.read(10_000), b"")) == BIG
                file.seek(12_345_678)
                assert file.read(9) == BIG[12_345_678:12_345_687]
            assert dataset.spent.requests < 40


class Failing(MemoryStore):
    """A store that fails where it is told to."""

    bad_from = 1 << 60

    def get_ranges(self, key, ranges, **conditions):
        if any(end > self.bad_from for _, end in ranges):
            raise StoreError("cut off")
        return super().get_ranges(key, ranges, **conditions)


def test_what_fails_ahead_fails_only_when_it_is_asked_for() -> None:
    store, data = Failing(), np.random.default_rng(0).bytes(6 << 20)
    store.put_if_absent("b", data)
    store.bad_from = 3 << 20
    reader = BlobReader(BlobAddress("", len(data), "b", "blob"), store, None)
    reads = SequentialReads(lambda _: reader, [len(data)])
    ranges = [(i * 1000, i * 1000 + 1000) for i in range(10)]
    reads.note([(0, wanted) for wanted in ranges])
    assert reads.take(0, [(20_000, 30_000)]) == [data[20_000:30_000]]
    assert reads.take(0, [(4 << 20, (4 << 20) + 5)]) == [None]
    assert reads.take(0, [((2 << 20) - 70_000, (2 << 20) + 70_000)]) == [None], "half of it did not come"
    store.bad_from = 1 << 60
    reads.note([(0, (10_000, 11_000))])
    reads.close()
    assert reads.take(0, [(20_000, 30_000)]) == [None]


def test_a_range_across_two_spans_is_joined() -> None:
    store, data = MemoryStore(), np.random.default_rng(0).bytes(6 << 20)
    store.put_if_absent("b", data)
    reader = BlobReader(BlobAddress("", len(data), "b", "blob"), store, None)
    reads = SequentialReads(lambda _: reader, [len(data)])
    reads.note([(0, (i * 1000, i * 1000 + 1000)) for i in range(10)])
    low, high = (2 << 20) - 70_000, (2 << 20) + 70_000
    assert reads.take(0, [(low, high)]) == [data[low:high]]
    reads.close()


def test_damage_ahead_is_an_error_that_names_the_member(ordered: str) -> None:
    with wd.dataset("ws/ordered", catalog=ordered, mode="remote") as dataset:
        artifact = dataset.artifact("raw")
        member = artifact.find(["0500.bin"])[0]
        inner = artifact.shard_reader(member.shard)._store
        real = inner.get_ranges

        def flipped(key, ranges, **conditions):
            out = []
            for (start, end), view in zip(ranges, real(key, ranges, **conditions), strict=True):
                changed = bytearray(view)
                if start <= member.offset < end and key.endswith(artifact.part.shards[member.shard].hash):
                    changed[member.offset - start] ^= 1
                out.append(memoryview(bytes(changed)))
            return out

        inner.get_ranges = flipped
        with pytest.raises(ChecksumError, match="0500"):
            passed(dataset, 50)
