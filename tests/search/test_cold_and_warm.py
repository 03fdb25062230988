"""A query finds on its first call what it finds on its tenth, wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpdata.search.query.distance import nearest
from warpdata.search.store import VectorStore

DIM, K = 24, 10
HALF = 2000
CENTRES = np.random.default_rng(8).normal(size=(60, DIM)).astype(np.float32) * 4


def around(count: int, seed: int, noise: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    chosen = CENTRES[rng.integers(0, len(CENTRES), count)]
    return (chosen + noise * rng.normal(size=(count, DIM))).astype(np.float32)


QUERIES = {
    "stored": lambda x, _: x[:15],
    "like stored": lambda *_: around(15, 1),
    "a little away": lambda *_: around(15, 2, 2.0),
    "uniform": lambda _, rng: rng.uniform(-12, 12, (15, DIM)).astype(np.float32),
    "between": lambda _, rng: (rng.normal(size=(15, DIM)) * 4).astype(np.float32),
    "far": lambda *_: around(15, 3) * 5,
    "zero": lambda *_: np.zeros((1, DIM), np.float32) + 0.01,
}


@pytest.fixture(scope="module", params=["l2", "cosine", "ip"])
def store_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("cold") / "c.rvf"
    x = around(4000, 0)
    with VectorStore.create(path, dim=DIM, metric=request.param, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", ef_construction=60)
    return path, x


def recall(found: Any, expected: Any) -> float:
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, expected, strict=True)]))


@pytest.mark.parametrize("where", QUERIES)
@pytest.mark.parametrize("filtered", [False, True])
def test_first_and_later_calls_agree(store_path: tuple[Path, Any], where: str, filtered: bool) -> None:
    path, x = store_path
    queries = QUERIES[where](x, np.random.default_rng(4))
    condition = range(HALF, len(x)) if filtered else None
    with VectorStore.open(path) as warm:
        warm.warm()
        metric = warm.metric
        later = [warm.search(query, K, where=condition)[0].tolist() for query in queries]
    first = []
    for query in queries:
        with VectorStore.open(path) as cold:
            first.append(cold.search(query, K, where=condition)[0].tolist())
            if len(first) <= 3:
                tenth = [cold.search(query, K, where=condition)[0].tolist() for _ in range(9)][-1]
                assert len(set(first[-1]) & set(tenth)) >= K - 2
    length = np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else 1
    allowed = np.arange(len(x)) >= HALF if filtered else None
    exact = nearest(queries, (x / length).astype(np.float32), K, metric, allowed)[0].tolist()
    assert recall(first, exact) >= recall(later, exact) - 0.02


def test_queries_like_the_data_are_answered_from_parts(store_path: tuple[Path, Any]) -> None:
    path, _ = store_path
    from_parts = 0
    for query in around(20, 5):
        with VectorStore.open(path) as cold:
            cold.search(query, K)
            from_parts += cold.stats()["stage"] == "partitions"
            metric = cold.metric
    assert from_parts >= 18 or metric == "ip"


def test_more_results_take_more_effort(store_path: tuple[Path, Any]) -> None:
    path, _ = store_path
    for query in around(5, 6):
        with VectorStore.open(path) as cold, VectorStore.open(path) as warm:
            warm.warm()
            first, later = cold.search(query, 200)[0], warm.search(query, 200)[0]
            exact = warm.search(query, 200, exact=True)[0]
        assert (
            len(set(first.tolist()) & set(exact.tolist()))
            >= len(set(later.tolist()) & set(exact.tolist())) - 8
        )
