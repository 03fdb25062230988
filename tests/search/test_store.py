"""What a vector store does, and what it refuses."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    OutOfSpaceError,
    PermissionError_,
    SchemaMismatchError,
    TruncatedError,
    UnsupportedVersionError,
    WarpError,
    WriterClosedError,
)
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.access import decode_hot
from warpdata.formats.rvf.container import SegmentOptions
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.signing import SigningKey, load_public, save_public
from warpdata.formats.rvf.writer import NewSegment
from warpdata.search.query.ann import Graph
from warpdata.search.query.distance import WalkSpace
from warpdata.search.store import VectorStore

RNG = np.random.default_rng(11)


def data(count: int, dim: int = 8, seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(10, dim))
    return (centers[rng.integers(0, 10, count)] + 0.3 * rng.normal(size=(count, dim))).astype(np.float32)


def brute(vectors: Any, ids: Any, query: Any, k: int, metric: str = "l2") -> tuple[Any, Any]:
    """The model: plain numpy in double precision."""
    x, q = np.asarray(vectors, np.float64), np.asarray(query, np.float64)
    if metric == "l2":
        away = ((x - q) ** 2).sum(axis=1)
    else:
        dots = x @ q
        if metric == "cosine":
            dots = dots / np.maximum(np.linalg.norm(x, axis=1) * np.linalg.norm(q), 1e-30)
        away = 1 - dots if metric == "cosine" else -dots
    order = np.argsort(away, kind="stable")[:k]
    return np.asarray(ids)[order], away[order]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with VectorStore.create(tmp_path / "s.rvf", dim=8) as made:
        yield made


def test_add_get_search_reopen(tmp_path: Path) -> None:
    x = data(300)
    with wd.VectorStore.create(tmp_path / "a.rvf", dim=8) as store:
        assert store.add(x[:200]).tolist() == list(range(200))
        assert store.add(x[200:], ids=range(1000, 1100)).tolist() == list(range(1000, 1100))
        assert len(store) == 300
    with VectorStore.open(tmp_path / "a.rvf") as again:
        assert (len(again), again.dim, again.metric, again.dtype) == (300, 8, "l2", "f32")
        assert np.array_equal(again.get([5, 1005, 0]), x[[5, 205, 0]])
        ids, distances = again.search(x[7], k=3)
        expected = brute(x, [*range(200), *range(1000, 1100)], x[7], 3)
        assert ids.tolist() == expected[0].tolist()
        assert distances == pytest.approx(expected[1], abs=1e-4)
        assert distances[0] == 0
        many, far = again.search(x[:20], k=4)
        assert many.shape == far.shape == (20, 4)
        assert np.array_equal(many[7][:3], ids)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("kind", [None, "hnsw", "ivf", "flat"])
def test_every_metric_and_index(tmp_path: Path, metric: str, kind: str | None) -> None:
    x, queries = data(800, 16), data(20, 16, seed=9)
    with VectorStore.create(tmp_path / "m.rvf", dim=16, metric=metric) as store:
        store.add(x[:700])
        if kind:
            store.build_index(kind)
        store.add(x[700:])
        store.delete(range(50))
        live = np.arange(50, 800)
        hits = 0
        for query in queries:
            expected, away = brute(x[50:], live, query, 10, metric)
            ids, distances = store.search(query, 10, exact=True)
            assert distances == pytest.approx(away, rel=1e-4, abs=1e-4)
            assert ids.tolist() == expected.tolist()
            found, _ = store.search(query, 10, ef=128)
            hits += len(set(found.tolist()) & set(expected.tolist()))
            assert (np.diff(store.search(query, 10)[1]) >= 0).all()
        assert hits >= 0.95 * 200


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i8", "u8", "i4", "binary"])
def test_every_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    low, high = {"u8": (0, 256), "i8": (-128, 128), "i4": (-8, 8), "binary": (0, 2)}.get(dtype, (-9, 10))
    x = RNG.integers(low, high, (100, 7)).astype(np.float32)
    with VectorStore.create(tmp_path / "d.rvf", dim=7, dtype=dtype) as store:
        store.add(x)
        assert np.array_equal(store.get(range(100)), x)
        store.build_index("hnsw")
        assert np.array_equal(store.get(range(100)), x)
    with VectorStore.open(tmp_path / "d.rvf") as again:
        assert np.array_equal(again.get(range(100)), x)
        assert again.search(x[3], 1, exact=True)[1][0] == 0


def test_a_known_id_is_replaced(store: VectorStore) -> None:
    x = data(20)
    store.add(x, metadata=[{"n": i, "old": True} for i in range(20)])
    store.add(x[:2] + 50, ids=[5, 6], metadata=[{"n": 99}, {}])
    assert len(store) == 20
    assert np.array_equal(store.get([5]), x[:1] + 50)
    assert store.metadata([5, 6, 7]) == [{"n": 99}, {}, {"n": 7, "old": True}]
    store.add(x[:1], ids=[7])
    assert store.metadata([7]) == [{}]
    with VectorStore.open(store.stats()["path"]) as again:
        assert again.metadata([5, 6, 7, 8]) == [{"n": 99}, {}, {}, {"n": 8, "old": True}]
        assert len(again) == 20


def test_deleted_ids_never_appear_and_can_come_back(store: VectorStore) -> None:
    x = data(60)
    store.add(x)
    assert store.delete([3, 4, 5, 999]) == 3
    assert store.delete([3]) == 0
    assert len(store) == 57
    assert not {3, 4, 5} & set(store.search(x[3], k=60)[0].tolist())
    with pytest.raises(KeyError, match="no vector with id 3"):
        store.get([3])
    store.add(x[3:4] + 1, ids=[3])
    assert store.search(x[3] + 1, 1)[0].tolist() == [3]
    with VectorStore.open(store.stats()["path"]) as again:
        assert again.ids.tolist() == [i for i in range(60) if i not in (4, 5)]


def test_large_ids_survive_checkpoints(tmp_path: Path) -> None:
    top = 2**63 - 1
    with VectorStore.create(tmp_path / "l.rvf", dim=8) as store:
        store.add(data(4), ids=[1, 2**50, 2**50 + 1, top])
        store.delete([2**50, 1])
        for _ in range(3):
            store.add(data(2000), ids=RNG.permutation(2000) + 10)
        with pytest.raises(ValueError, match=r"2\*\*63"):
            store.add(data(1))
    with VectorStore.open(tmp_path / "l.rvf", mode="a") as again:
        assert sorted(again.ids.tolist())[-2:] == [2**50 + 1, top]
        assert 1 not in again.ids
        assert len(again) == 2002


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (np.zeros((2, 7)), "8 dimensions"), (np.full((1, 8), np.nan), "NaN"),
        (np.full((1, 8), np.inf), "infinity"),
        (np.full((1, 8), 1e300), "beyond f32"), ([["a"] * 8], "numbers"), (np.zeros((2, 2, 8)), "dimensions"),
        (np.zeros((1, 8), complex), "numbers"),
    ],
)  # fmt: skip
def test_wrong_vectors_are_refused_and_nothing_is_lost(store: VectorStore, vectors: Any, words: str) -> None:
    store.add(data(5))
    with pytest.raises(ValueError, match=words):
        store.add(vectors)
    with pytest.raises(ValueError, match=words):
        store.search(vectors)
    assert len(store) == 5


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 1], "twice"), ([1], "1 ids for 2"), ([-1, 2], "between 0"), ([2**63, 1], "between 0"),
        ([2**70, 1], "between 0"), ([1.5, 2.5], "integers"), (["a", "b"], "integers"),
    ],
)  # fmt: skip
def test_wrong_ids_are_refused(store: VectorStore, ids: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        store.add(data(2), ids=ids)
    assert len(store) == 0


def test_wrong_creations_are_refused(tmp_path: Path) -> None:
    for dim in (0, -1, 65_536, 2.5):
        with pytest.raises(ValueError, match="dim"):
            VectorStore.create(tmp_path / "x.rvf", dim=dim)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metric"):
        VectorStore.create(tmp_path / "x.rvf", dim=3, metric="l1")
    with pytest.raises(ValueError, match="dtype"):
        VectorStore.create(tmp_path / "x.rvf", dim=3, dtype="pq")
    assert list(tmp_path.iterdir()) == []
    VectorStore.create(tmp_path / "x.rvf", dim=65_535).close()
    with pytest.raises(ConflictError):
        VectorStore.create(tmp_path / "x.rvf", dim=3)
    VectorStore.create(tmp_path / "x.rvf", dim=3, overwrite=True).close()
    with pytest.raises(BlobNotFoundError):
        VectorStore.open(tmp_path / "absent.rvf")
    with pytest.raises(BlobNotFoundError):
        VectorStore.open(tmp_path / "absent.rvf", mode="a")
    with pytest.raises(ValueError, match="mode"):
        VectorStore.open(tmp_path / "x.rvf", mode="w")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.rvf"]


@pytest.mark.parametrize(
    ("dtype", "value"), [("f16", 1e6), ("i8", 200), ("u8", -1), ("i4", 9), ("binary", 2), ("i8", 0.5)]
)
def test_values_that_do_not_fit_a_dtype(tmp_path: Path, dtype: str, value: float) -> None:
    with VectorStore.create(tmp_path / "f.rvf", dim=2, dtype=dtype) as store, pytest.raises(ValueError):
        store.add([[0, value]])


def test_empty_stores_and_large_k(store: VectorStore) -> None:
    ids, distances = store.search(np.zeros(8), k=5)
    assert ids.shape == distances.shape == (0,)
    assert store.search(np.zeros((3, 8)), k=5)[0].shape == (3, 0)
    assert store.delete([1]) == 0
    assert store.add(np.zeros((0, 8))).tolist() == []
    store.build_index("hnsw")
    store.compact()
    store.add(data(3))
    assert len(store.search(data(1)[0], k=50)[0]) == 3
    for kind in ("hnsw", "ivf", "flat"):
        store.build_index(kind)
        assert len(store.search(data(1)[0], k=50)[0]) == 3
    with pytest.raises(ValueError, match="at least 1"):
        store.search(np.zeros(8), k=0)


def test_metadata_types_do_not_change(store: VectorStore) -> None:
    store.add(data(2), metadata={"n": [1, 2], "s": ["a", "b"], "f": [0.5, 1.5]})
    for wrong in ({"n": "text"}, {"n": 1.5}, {"s": 4}, {"n": True}):
        with pytest.raises(SchemaMismatchError):
            store.add(data(1), metadata=[wrong])
    assert len(store) == 2
    store.add(data(1), metadata=[{"f": 3}])
    assert store.metadata([2]) == [{"f": 3.0}]
    with pytest.raises(ValueError, match="one value per vector"):
        store.add(data(2), metadata={"n": [1]})
    with pytest.raises(ValueError, match="1 metadata records for 2 vectors"):
        store.add(data(2), metadata=[{"n": 1}])
    with pytest.raises(TypeError, match="a mapping, not int"):
        store.add(data(2), metadata=[{"n": 1}, 2])
    with pytest.raises(ValueError, match="cannot be the name"):
        store.add(data(1), metadata=[{"id": 4}])
    with pytest.raises(TypeError):
        store.add(data(1), metadata=[{"n": [1, 2]}])
    with pytest.raises(ValueError, match="finite"):
        store.add(data(1), metadata=[{"f": float("nan")}])
    assert len(store) == 3


def test_metadata_updates_survive(store: VectorStore) -> None:
    store.add(data(3), metadata=[{"a": 1}, {"a": 2}, {"a": 3}])
    store.update([0, 2], [{"a": 10, "b": "new"}, {"a": None}])
    expected = [{"a": 10, "b": "new"}, {"a": 2}, {}]
    assert store.metadata([0, 1, 2]) == expected
    with pytest.raises(KeyError):
        store.update([77], [{"a": 1}])
    with VectorStore.open(store.stats()["path"]) as again:
        assert again.metadata([0, 1, 2]) == expected
    store.compact()
    assert store.metadata([0, 1, 2]) == expected


def test_many_small_metadata_changes(store: VectorStore) -> None:
    for i in range(150):
        store.add(data(1), metadata=[{"n": i}])
    with VectorStore.open(store.stats()["path"]) as again:
        assert again.metadata(range(150)) == [{"n": i} for i in range(150)]


def test_one_writer_many_readers(tmp_path: Path) -> None:
    path = tmp_path / "w.rvf"
    writer = VectorStore.create(path, dim=8)
    writer.add(data(10))
    with pytest.raises(ConflictError, match="another writer"):
        VectorStore.open(path, mode="a")
    reader = VectorStore.open(path)
    kept = writer.snapshot()
    writer.add(data(5))
    assert (len(reader), len(kept), len(writer)) == (10, 10, 15)
    assert len(reader.search(np.zeros(8), k=50)[0]) == 10
    assert reader.refresh() is True
    assert reader.refresh() is False
    assert len(reader.search(np.zeros(8), k=50)[0]) == 15
    writer.compact()
    assert len(kept.search(np.zeros(8), k=50)[0]) == 10
    with pytest.raises(PermissionError_, match="open for reading"):
        reader.add(data(1))
    with pytest.raises(PermissionError_):
        reader.compact()
    writer.close()
    writer.close()
    assert not (tmp_path / "w.rvf.lock").exists()
    with pytest.raises(WriterClosedError):
        writer.add(data(1))
    with pytest.raises(WriterClosedError):
        writer.search(np.zeros(8))
    VectorStore.open(path, mode="a").close()
    reader.close()
    kept.close()


def test_a_lock_of_a_dead_writer_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "k.rvf"
    VectorStore.create(path, dim=8).close()
    code = (
        "import sys, os, signal, numpy as np; from warpdata.search.store import VectorStore\n"
        f"s = VectorStore.open({str(path)!r}, mode='a'); s.add(np.ones((3, 8)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "k.rvf.lock").exists()
    with VectorStore.open(path, mode="a") as store:
        assert len(store) == 3
        store.add(data(1))


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "full.rvf"
    with VectorStore.create(path, dim=8) as store:
        store.add(data(100))
        size = path.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, hard))
            with pytest.raises(OutOfSpaceError):
                store.add(data(5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert path.stat().st_size == size
        assert len(store) == 100
        store.add(data(10))
    with VectorStore.open(path) as again:
        assert len(again) == 110
        assert again.verify() == []


def test_a_read_only_file(tmp_path: Path) -> None:
    path = tmp_path / "ro.rvf"
    VectorStore.create(path, dim=8).close()
    content = path.read_bytes()
    os.chmod(path, 0o444)
    with pytest.raises(PermissionError_, match="may not be written"):
        VectorStore.open(path, mode="a")
    assert [p.name for p in tmp_path.iterdir()] == ["ro.rvf"]
    assert path.read_bytes() == content
    VectorStore.open(path).close()


class Remote:
    """A reader that counts, and may lose bytes on the way."""

    def __init__(self, content: bytes, cut: bool = False) -> None:
        self.name, self.size = "remote://f.rvf", len(content)
        self._inner = BytesRangeReader(content)
        self.cut = cut

    def read(self, start: int, end: int) -> memoryview:
        data = self._inner.read(start, end)
        if self.cut and end - start > 500:
            raise TruncatedError("the connection ended early", path=self.name)
        return data

    def read_many(self, ranges: Any) -> list[memoryview]:
        return [self.read(*each) for each in ranges]

    def close(self) -> None: ...


def spread(count: int, dim: int, clusters: int) -> Any:
    rng = np.random.default_rng(4)
    centers = rng.normal(size=(clusters, dim))
    return (centers[rng.integers(0, clusters, count)] + 0.2 * rng.normal(size=(count, dim))).astype(
        np.float32
    )


def test_a_remote_file_answers_from_a_small_part(tmp_path: Path) -> None:
    x = spread(8000, 32, 100)
    with VectorStore.create(tmp_path / "r.rvf", dim=32, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", ef_construction=40)
    content = (tmp_path / "r.rvf").read_bytes()
    hits = 0
    for number in range(20):
        remote = VectorStore.open(Remote(content))
        assert remote.stats()["bytes_read"] < 12_000
        ids, _ = remote.search(x[number], 10)
        about = remote.stats()
        assert about["stage"] == "partitions"
        assert about["bytes_read"] < 0.06 * len(content)
        assert about["reads"] <= 14
        hits += len(set(ids.tolist()) & set(brute(x, range(8000), x[number], 10)[0].tolist()))
    assert hits >= 0.95 * 200
    warm = VectorStore.open(Remote(content))
    for number in range(20):
        assert warm.search(x[number], 1)[0][0] == number
    assert warm.stats()["stage"] == "memory"
    assert warm.stats()["bytes_read"] < 2 * len(content)


def test_scattered_neighbours_are_found_by_the_first_query_too(tmp_path: Path) -> None:
    """Where partitions do not separate the data, the probe is wide, or everything is loaded."""
    x = np.random.default_rng(1).normal(size=(3000, 24)).astype(np.float32)
    with VectorStore.create(tmp_path / "s.rvf", dim=24) as store:
        store.add(x)
        store.build_index("hnsw")
    hits = 0
    for number in range(20):
        with VectorStore.open(tmp_path / "s.rvf") as cold:
            found = cold.search(x[number], 10, ef=64)[0]
        hits += len(set(found.tolist()) & set(brute(x, range(3000), x[number], 10)[0].tolist()))
    assert hits >= 0.93 * 200


def test_a_truncated_remote_read_is_an_error(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "t.rvf", dim=8) as store:
        store.add(data(2000))
        store.build_index("ivf")
    remote = Remote((tmp_path / "t.rvf").read_bytes())
    opened = VectorStore.open(remote)
    remote.cut = True
    with pytest.raises(TruncatedError):
        opened.search(np.zeros(8))
    remote.cut = False
    assert len(opened.search(np.zeros(8))[0]) == 10


def restored_graph(store: VectorStore) -> Graph:
    """The graph of the file as it lies there, walked from its top."""
    searcher, payload = store._searcher, store._content.graph()
    assert payload is not None
    return Graph.restore(
        searcher.base.vectors, WalkSpace("l2", True), payload.adjacency, searcher._shape(payload)
    )


class Short(Remote):
    """A connection that hands out less than was asked for, and says nothing."""

    def read(self, start: int, end: int) -> memoryview:
        return self._inner.read(start, end - 1 if self.cut else end)


def test_a_short_read_is_not_taken_for_an_older_state(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=8) as store:
        store.add(data(3))
        store.add(data(3))
    with pytest.raises(TruncatedError, match="bytes came"):
        VectorStore.open(Short((tmp_path / "s.rvf").read_bytes(), cut=True))
    remote = Short((tmp_path / "s.rvf").read_bytes())
    opened = VectorStore.open(remote)
    remote.cut = True
    with pytest.raises(TruncatedError, match="bytes came"):
        opened.search(np.zeros(8))
    remote.cut = False
    assert len(opened.search(np.zeros(8))[0]) == 6


def test_counts_are_whole_numbers(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "k.rvf", dim=8) as store:
        store.add(data(3000))
        store.build_index("hnsw", ef_construction=40)
        store.warm()
        query = data(1)[0]
        assert np.array_equal(store.search(query, np.int64(5), np.int32(64))[0], store.search(query, 5)[0])
        for wrong in ("3", 2.5, None):
            with pytest.raises(TypeError, match="whole number"):
                store.search(query, wrong)  # type: ignore[arg-type]


def test_an_index_is_restored_not_rebuilt(tmp_path: Path) -> None:
    x, queries = data(3000, 16), data(200, 16, seed=8)
    with VectorStore.create(tmp_path / "h.rvf", dim=16) as store:
        store.add(x)
        store.build_index("hnsw")
        store.warm()
        before = [store.search(queries, 10, ef=ef) for ef in (16, 64)]
        graph = store._searcher.base.graph
        assert graph is not None
        built = Graph.build(graph.vectors.copy(), graph.space, 16, 200)
        built_rows, scores = built.search(queries, 10, 64)
    with VectorStore.open(tmp_path / "h.rvf") as again:
        again.warm()
        for (ids, distances), ef in zip(before, (16, 64), strict=True):
            found = again.search(queries, 10, ef=ef)
            assert np.array_equal(found[0], ids)
            assert np.array_equal(found[1], distances)
        rows, away = restored_graph(again).search(queries, 10, 64)
        assert np.array_equal(rows, built_rows)
        assert np.allclose(away, scores, rtol=1e-6)  # sums of arrays that lie differently in memory
        one = [again.search(query, 10, ef=64)[0] for query in queries]
        assert np.array_equal(np.stack(one), before[1][0])


def test_cold_and_warm_agree_after_changes(tmp_path: Path) -> None:
    x = data(4000, 16)
    with VectorStore.create(tmp_path / "c.rvf", dim=16) as store:
        store.add(x)
        store.build_index("hnsw")
        store.delete(range(0, 40, 2))
        store.add(x[1:4] + 0.001, ids=[1, 3, 9000])
    for number in range(0, 40, 5):
        with VectorStore.open(tmp_path / "c.rvf") as cold, VectorStore.open(tmp_path / "c.rvf") as warm:
            ids, distances = cold.search(x[number], 5, ef=128)
            assert cold.stats()["stage"] == "partitions"
            expected, away = warm.search(x[number], 5, exact=True)
            assert ids.tolist() == expected.tolist()
            assert distances == pytest.approx(away, abs=1e-5)


@pytest.mark.parametrize("kind", ["scalar", "pq", "binary", "residual_pq"])
def test_quantised_stores(tmp_path: Path, kind: str) -> None:
    x = data(1500, 16)
    with VectorStore.create(tmp_path / "q.rvf", dim=16) as store:
        store.add(x)
        store.build_index("ivf")
        plain = store.stats()["file_bytes"]
        store.quantize(kind)
        assert np.array_equal(store.get(range(1500)), x)
        assert store.search(x[5], 1)[0].tolist() == [5]
        assert store.verify() == []
        store.quantize(kind, keep_full=False)
        assert store.stats()["file_bytes"] < 0.6 * plain
        assert store.verify() == []
        found = store.search(x[:100], 10)[0]
        if kind != "binary":
            error = np.abs(store.get(range(1500)) - x).mean()
            assert error < 0.2
            true = [set(brute(x, range(1500), q, 10)[0].tolist()) for q in x[:100]]
            share = np.mean([len(set(f.tolist()) & t) / 10 for f, t in zip(found, true, strict=True)])
            assert share > {"scalar": 0.95, "pq": 0.5, "residual_pq": 0.5}[kind]
    with VectorStore.open(tmp_path / "q.rvf") as again:
        assert np.array_equal(again.search(x[:20], 10)[0], found[:20]) or again.stats()["stage"]
        again.warm()
        assert np.array_equal(again.search(x[:100], 10)[0], found)


def test_compaction_drops_what_is_dead(tmp_path: Path) -> None:
    x = data(2000)
    with VectorStore.create(tmp_path / "z.rvf", dim=8) as store:
        store.add(x, metadata={"n": range(2000)})
        store.delete(range(1000))
        saved = store.compact()
        assert saved > 1000 * 8 * 4
        assert store.stats()["vectors"] == 1000
        assert np.array_equal(store.get([1500]), x[1500:1501])
        assert store.metadata([1500]) == [{"n": 1500}]
        for codec in ("zstd", "lz4"):
            store.compact(compression=codec)
            assert np.array_equal(store.get(range(1000, 2000)), x[1000:])
            assert store.search(x[1200], 1)[0].tolist() == [1200]
            assert store.verify() == []
        assert store.add(x[:1]).tolist() == [2000]


def test_hot_partitions_are_promoted(tmp_path: Path) -> None:
    x = data(3000, 16)
    with VectorStore.create(tmp_path / "hot.rvf", dim=16) as store:
        store.add(x)
        store.build_index("hnsw")
        assert "HOT" not in [s["type"] for s in store.segments()]
        store.warm()
        for _ in range(400):
            store.search(x[17], 1)  # alone: its neighbours may lie in partitions of their own
        store.compact()
        types = [s["type"] for s in store.segments()]
        assert "HOT" in types
        entry = store._content.snapshot.of_type(SegmentType.HOT)[-1]
        hot = decode_hot(store._content.read(entry))
        assert 17 in hot.ids
        assert len(hot.ids) <= 150
        assert store.verify() == []
        for query in x[:6]:
            assert len(store.search(query, 5)[0]) == 5
        assert store.stats()["stage"] == "partitions"


def test_access_counters_outlive_their_writer(tmp_path: Path) -> None:
    x = data(3000, 16)
    path = tmp_path / "c.rvf"
    with VectorStore.create(path, dim=16) as store:
        store.add(x)
        store.build_index("hnsw")
    for _ in range(2):
        with VectorStore.open(path, mode="a") as store:
            store.warm()
            for _ in range(300):
                store.search(x[17], 10)
    with VectorStore.open(path, mode="a") as store:
        assert store._searcher.sketch.total_accesses >= 2 * 256 * 10
        store.compact()
        assert "HOT" in [s["type"] for s in store.segments()]
        assert [s["type"] for s in store.segments()].count("SKETCH") == 1


def test_unknown_segments_and_records_are_preserved(tmp_path: Path) -> None:
    path = tmp_path / "u.rvf"
    with VectorStore.create(path, dim=8) as store:
        appender = store._appender
        assert appender is not None
        new = NewSegment(0xF7, b"vendor bytes", SegmentOptions(timestamp_ns=9))
        appender.commit(store._content, [new], appender.state)
        store.add(data(2000))
    with VectorStore.open(path, mode="a") as store:
        store._content.snapshot.segments[0]
        raw = path.read_bytes()
        entry = next(e for e in store._content.snapshot.segments if e.seg_type == 0xF7)
        before = raw[entry.file_offset : entry.file_offset + 128]
        store.build_index("hnsw")
        entry = next(e for e in store._content.snapshot.segments if e.seg_type == 0xF7)
        assert path.read_bytes()[entry.file_offset : entry.file_offset + 128] == before
        assert "0xF7" in [s["type"] for s in store.segments()]


@pytest.mark.parametrize("algorithm", ["ed25519", "ml-dsa-65", "slh-dsa-128s"])
def test_signatures(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "sig.rvf"
    key = SigningKey.generate(algorithm)
    key.save(tmp_path / "key.json")
    assert (tmp_path / "key.json").stat().st_mode & 0o777 == 0o600
    again = SigningKey.load(tmp_path / "key.json")
    assert again == key
    assert "private" not in repr(key)
    save_public(key.public, tmp_path / "public.json")
    public = load_public(tmp_path / "public.json")
    with VectorStore.create(path, dim=8) as store:
        store.add(data(50))
        store.sign(again)
        assert store.verify([public]) == []
        stranger = SigningKey.generate("ed25519").public
        assert {d.code for d in store.verify([stranger])} == {"signature"}
        assert all(s["flags"] & layout.Flag.SIGNED for s in store.segments())
        assert len(store.search(data(1)[0], 3)[0]) == 3
        store.add(data(1))
        assert any("not signed" in d.message for d in store.verify([public]))


def test_a_changed_root_breaks_its_signature(tmp_path: Path) -> None:
    from warpdata.formats.rvf import container

    path = tmp_path / "r.rvf"
    key = SigningKey.generate("ed25519")
    with VectorStore.create(path, dim=8) as store:
        store.add(data(5))
        store.sign(key)
        root = store._content.snapshot.root
        assert root is not None
        message = container.root_message(root, bytes(32))
        import dataclasses

        assert container.root_message(dataclasses.replace(root, total_vector_count=4), bytes(32)) != message
        assert container.root_message(root, bytes(31) + b"x") != message


def test_export_to_both_dialects(tmp_path: Path) -> None:
    x = data(500)
    with VectorStore.create(tmp_path / "e.rvf", dim=8, metric="cosine") as store:
        store.add(x, metadata={"n": range(500)})
        store.delete([3])
        store.export(tmp_path / "runtime.rvf", dialect="runtime")
        store.export(tmp_path / "wire.rvf")
        with pytest.raises(ValueError, match="dialect"):
            store.export(tmp_path / "x.rvf", dialect="other")
        with pytest.raises(ValueError, match="another file"):
            store.export(tmp_path / "e.rvf")
        expected = store.search(x[9], 5, exact=True)
    for name, dialect in (("runtime.rvf", "runtime"), ("wire.rvf", "wire")):
        with VectorStore.open(tmp_path / name) as again:
            assert (again.dialect, len(again), again.metric) == (dialect, 499, "cosine")
            assert np.array_equal(again.get([4, 9]), x[[4, 9]])
            assert np.array_equal(again.search(x[9], 5, exact=True)[0], expected[0])
            assert again.verify() == []
    with pytest.raises(UnsupportedVersionError, match="another program"):
        VectorStore.open(tmp_path / "runtime.rvf", mode="a")
    with VectorStore.open(tmp_path / "runtime.rvf") as foreign:
        foreign.export(tmp_path / "back.rvf", dialect="wire")
    with VectorStore.open(tmp_path / "back.rvf", mode="a") as back:
        assert back.add(x[:1]).tolist() == [500]


def test_many_single_appends_grow_linearly(tmp_path: Path) -> None:
    x = data(600, 128)
    sizes = []
    with VectorStore.create(tmp_path / "one.rvf", dim=128, durable=False) as store:
        for number, row in enumerate(x, 1):
            store.add(row)
            if number in (300, 600):
                sizes.append((tmp_path / "one.rvf").stat().st_size)
    assert sizes[1] < x.nbytes + 600 * 8192  # every commit repeats the root, and little else
    assert sizes[1] < 2.2 * sizes[0]
    with VectorStore.open(tmp_path / "one.rvf") as again:
        assert np.array_equal(again.get(range(600)), x)


def test_reopening_for_each_append_grows_linearly(tmp_path: Path) -> None:
    x = data(120, 128)
    VectorStore.create(tmp_path / "o.rvf", dim=128).close()
    for row in x:
        with VectorStore.open(tmp_path / "o.rvf", mode="a", durable=False) as store:
            store.add(row)
    assert (tmp_path / "o.rvf").stat().st_size < x.nbytes + 120 * 8192
    with VectorStore.open(tmp_path / "o.rvf") as again:
        assert np.array_equal(again.get(range(120)), x)


def test_threads_may_search_at_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = data(2000, 16)
    with VectorStore.create(tmp_path / "t.rvf", dim=16) as store:
        store.add(x)
        store.build_index("hnsw")
    with VectorStore.open(tmp_path / "t.rvf") as store, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: store.search(x[i], 1)[0][0], range(500)))
    assert found == list(range(500))


def test_root_tells_what_the_file_is(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "r.rvf", dim=16, metric="cosine") as store:
        store.add(data(2000, 16))
        store.build_index("hnsw")
        root = store._content.snapshot.root
        assert root is not None
        assert (root.dimension, root.total_vector_count, root.base_dtype) == (16, 2000, 0)
        assert root.flags >> layout.ROOT_METRIC_SHIFT == layout.METRIC_IDS["cosine"]
        entry = next(s for s in store._content.snapshot.segments if s.file_offset == root.centroid.seg_offset)
        assert entry.seg_type == SegmentType.INDEX
        layer = store._content.layer_a
        assert layer is not None
        assert root.centroid.entries == len(layer.centroids)
        assert (tmp_path / "r.rvf").read_bytes()[-4096:-4092] == layout.ROOT_MAGIC


def test_errors_are_ours(tmp_path: Path) -> None:
    (tmp_path / "junk.rvf").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "empty.rvf").write_bytes(b"")
    for name in ("junk.rvf", "empty.rvf"):
        for mode in ("r", "a"):
            with pytest.raises(WarpError):
                VectorStore.open(tmp_path / name, mode=mode)
    assert not list(tmp_path.glob("*.lock"))
