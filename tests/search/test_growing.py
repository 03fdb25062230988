"""An index that absorbs changes: rows behind the graph are added to it, and recall is what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.search import store as stores
from warpdata.search.query.distance import nearest
from warpdata.search.store import VectorStore

DIM, K = 16, 10


def clustered(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(9).normal(size=(40, DIM))
    return (centres[rng.integers(0, 40, count)] + rng.normal(size=(count, DIM))).astype(np.float32)


def hits(store: VectorStore, queries: Any, **options: Any) -> float:
    exact = store.search(queries, K, exact=True)[1][:, -1:]
    return float((store.search(queries, K, **options)[1] <= exact + 1e-5 * abs(exact) + 1e-6).mean())


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_rows_behind_the_graph_are_added_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 200)
    path, x = tmp_path / "g.rvf", clustered(3600, 1)
    with VectorStore.create(path, dim=DIM, metric=metric, durable=False) as store:
        store.add(x[:3000], metadata={"n": range(3000)})
        store.build_index("hnsw", m=8, ef_construction=60)
        built = next(s for s in store.segments() if s["type"] == "INDEX")
        for start in range(3000, 3600, 100):
            store.add(x[start : start + 100], metadata={"n": range(start, start + 100)})
            store.delete([start - 5, start + 3])
        assert store.stats()["unindexed_segments"] <= 1
        assert store._content.profile.graph_segments
        assert built["id"] not in [s["id"] for s in store.segments() if s["type"] == "INDEX"]
        assert hits(store, clustered(60, 5)) >= 0.95
        assert store.verify() == []
    with VectorStore.open(path) as again:
        gone = {n for start in range(3000, 3600, 100) for n in (start - 5, start + 3)}
        assert again.ids.tolist() == [n for n in range(3600) if n not in gone]
        for number in (3, 2994, 3001, 3333, 3598):
            assert again.search(x[number], 1, ef=128)[0].tolist() == [number] or metric == "ip"
            assert again.metadata([number]) == [{"n": number}]
        again.warm()
        assert hits(again, clustered(60, 5)) >= 0.95
        assert not gone & set(again.search(x[3003], 50)[0].tolist())
        assert sorted(again.search(x[0], 5, where="n >= 3590")[0].tolist())[0] >= 3590
    with VectorStore.open(path, mode="a", durable=False) as more:
        more.add(x[:50] + 20)
        more.compact()
        assert more._content.profile.graph_segments == ()
        assert np.array_equal(more.get([3333]), x[3333:3334])


def test_rows_that_came_one_by_one_have_their_own_places_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that replace others are merged in the file: the graph has them in the order of the file."""
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 200)
    path, x = tmp_path / "g.rvf", clustered(2600, 1)
    truth = dict(enumerate(x[:1500]))
    rng = np.random.default_rng(2)
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(x[:1500])
        store.build_index("hnsw", m=8, ef_construction=60)
        for row in x[1500:]:
            key = int(rng.integers(1200, 1800))
            store.add(row, ids=[key])
            truth[key] = row
        store.delete([1300])
        del truth[1300]
        assert store._content.profile.graph_segments
        assert store.stats()["unindexed_segments"] <= 210
    with VectorStore.open(path) as again:
        again.warm()
        assert again.ids.tolist() == sorted(truth)
        assert sum(again.search(row, 1, ef=200)[0][0] == key for key, row in truth.items()) > 0.98 * len(
            truth
        )


def test_cold_queries_see_rows_that_were_added_to_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 50)
    x = clustered(3100, 1)
    with VectorStore.create(tmp_path / "g.rvf", dim=DIM, durable=False) as store:
        store.add(x[:3000])
        store.build_index("hnsw", m=8, ef_construction=60)
        store.add(x[3000:])
        assert store.stats()["unindexed_segments"] == 0
    content = (tmp_path / "g.rvf").read_bytes()
    for number in (3, 3004, 3099):
        cold = VectorStore.open(BytesRangeReader(content))
        assert cold.search(x[number], 1)[0].tolist() == [number]
        assert cold.stats()["stage"] == "partitions"
        assert np.array_equal(cold.get([number]), x[number : number + 1])


def test_equal_vectors_stay_behind_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 50)
    x = clustered(1500, 1)
    with VectorStore.create(tmp_path / "g.rvf", dim=DIM, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", m=8, ef_construction=60)
        store.add(x[:100])
        assert store._content.profile.graph_segments == ()
        assert set(store.search(x[7], 2)[0].tolist()) == {7, 1507}


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_that_cannot_grow_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Partitions alone, or a graph whose rows came once more; a reader keeps its state meanwhile."""
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 50)
    monkeypatch.setattr(stores, "LATE_ROWS", 200)
    path, x = tmp_path / "g.rvf", clustered(1500, 1)
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(x[:1000])
        store.build_index(kind, m=8, ef_construction=60)
        with VectorStore.open(path) as reader:
            for start in range(0, 700, 100):
                store.add(x[start : start + 100])
                assert store.stats()["late_bytes"] <= 600 * 5 * DIM
            assert len(reader) == 1000
            assert reader.search(x[3], 1)[0].tolist() == [3]
        assert set(store.search(x[7], 2)[0].tolist()) == {7, 1007}
        assert hits(store, clustered(60, 5)) >= 0.95


def test_recall_is_chosen_by_what_was_measured(tmp_path: Path) -> None:
    x = clustered(4000, 1)
    with VectorStore.create(tmp_path / "r.rvf", dim=DIM, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", m=8, ef_construction=60)
        about = store.stats()
        assert set(about["recall_by_effort"]) == {16, 32, 64, 128, 256, 512}
        assert 0.5 < about["recall"] <= 1
        rng = np.random.default_rng(3)
        far = (20 * rng.normal(size=(40, DIM))).astype(np.float32)
        for queries in (clustered(60, 8), (x[:40] + x[40:80]) / 2, far):
            assert hits(store, queries, recall=0.95) >= 0.9
        for wrong in (0, 1.5, -1):
            with pytest.raises(ValueError, match="recall is above 0"):
                store.search(x[0], recall=wrong)
        with pytest.raises(ValueError, match="either ef= or recall="):
            store.search(x[0], ef=10, recall=0.9)
    with VectorStore.create(tmp_path / "n.rvf", dim=DIM, durable=False) as plain:
        plain.add(x[:100])
        assert plain.search(x[3], 1, recall=0.99)[0].tolist() == [3]
        assert plain.stats()["recall"] is None


def test_a_filter_that_excludes_the_neighbourhood_of_a_query(tmp_path: Path) -> None:
    x = clustered(6000, 1)
    side = (x[:, 0] > 0).astype(int)
    with VectorStore.create(tmp_path / "f.rvf", dim=DIM, durable=False) as store:
        store.add(x, metadata={"side": side})
        store.build_index("hnsw", m=8, ef_construction=60)
        store.warm()
        for query in x[side == 1][:25]:
            found = store.search(query, K, where="side = 0")[0]
            rows, _ = nearest(query[None], x, K, "l2", side == 0)
            assert len(set(found.tolist()) & set(rows[0].tolist())) >= 8


def test_a_file_that_is_mostly_of_earlier_states_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "DEAD_BYTES", 50_000)
    path = tmp_path / "d.rvf"
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(clustered(200, 1), metadata={"n": range(200)})
        with VectorStore.open(path) as reader:
            for number in range(60):
                store.add(clustered(1, number), ids=[number], metadata=[{"n": -number}])
            assert path.stat().st_size < 200_000
            assert np.array_equal(reader.get([5]), clustered(200, 1)[5:6]), "a reader keeps its state"
        assert store.metadata([59, 150]) == [{"n": -59}, {"n": 150}]
        assert len(store) == 200


def test_compaction_keeps_a_graph_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "ABSORBED_ROWS", 50)
    x = clustered(3100, 1)
    path = tmp_path / "g.rvf"
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(x[:3000])
        store.build_index("hnsw", m=8, ef_construction=60)
        efforts = store.stats()["recall_by_effort"]
        store.add(x[3000:])
        with monkeypatch.context() as patch:
            patch.setattr("warpdata.search.query.ann.Graph.build", lambda *_: pytest.fail("built again"))
            store.compact()
        assert store.stats()["recall_by_effort"] == efforts
        assert (store._content.profile.graph_segments, store.stats()["unindexed_segments"]) == ((), 0)
    with VectorStore.open(path) as again:
        assert again.verify() == []
        again.warm()
        assert hits(again, clustered(60, 5)) >= 0.95
        for number in (3, 3004, 3099):
            assert again.search(x[number], 1)[0].tolist() == [number]
    with VectorStore.open(path, mode="a", durable=False) as more:  # a graph with dead nodes is not kept
        more.delete(range(0, 3100, 2))
        more.compact()
        assert len(more) == 1550
        assert hits(more, clustered(60, 5)) >= 0.95
