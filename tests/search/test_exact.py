"""Exact search agrees with f64 arithmetic for any offset, scale and dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpdata.search.file.content import METRICS
from warpdata.search.query.distance import nearest
from warpdata.search.store import VectorStore

K = 10


def reference(query: Any, vectors: Any, metric: str) -> Any:
    """Distances in long double, from differences."""
    wide, point = vectors.astype(np.longdouble), query.astype(np.longdouble)
    if metric == "ip":
        return -(wide * point).sum(axis=1)
    if metric == "cosine":
        wide = wide / np.sqrt((wide**2).sum(axis=1, keepdims=True))
        point = point / np.sqrt((point**2).sum())
    return ((wide - point) ** 2).sum(axis=1) / (2 if metric == "cosine" else 1)


def assert_exact(found: Any, query: Any, vectors: Any, metric: str, allowed: Any = None) -> None:
    """Every row found is as near as the true neighbour of its rank, within the rounding of f64."""
    away = reference(query, vectors, metric)
    if allowed is not None:
        away = np.where(allowed, away, np.inf)
    expected = np.sort(away)[: len(found)]
    size = (np.abs(vectors.astype(np.float64)) @ np.abs(query.astype(np.float64))).max()
    rounding = 1e-12 * size if metric == "ip" else 1e-10 * expected + 1e-30
    assert (np.abs(away[found] - expected) <= rounding).all()
    assert len(set(found.tolist())) == len(found)


@settings(max_examples=150, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    dim=st.sampled_from([1, 2, 3, 8, 17, 128, 1024, 4096]),
    offset=st.sampled_from([0.0, 1.0, 1e3, 2e4, 1e6]),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]),
    columns=st.sampled_from(["all", "one", "none"]),
    count=st.integers(1, 400),
    queries=st.sampled_from([1, 3]),
    is_filtered=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_nearest_agrees_with_f64(
    metric: str, dim: int, offset: float, scale: float, columns: str, count: int, queries: int,
    is_filtered: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, dim)) * scale
    points = rng.normal(size=(queries, dim)) * scale
    chosen = {"all": slice(None), "one": slice(0, 1), "none": slice(0, 0)}[columns]
    vectors[:, chosen] += offset
    points[:, chosen] += offset
    vectors, points = vectors.astype(np.float32), points.astype(np.float32)
    allowed = rng.random(count) < 0.5 if is_filtered else None
    rows, away = nearest(points, vectors, K, metric, allowed)
    possible = count if allowed is None else int(allowed.sum())
    for query, found, far in zip(points, rows, away, strict=True):
        assert (found[: min(K, possible)] >= 0).all()
        assert (found[min(K, possible) :] == -1).all()
        assert (np.diff(far[: min(K, possible)]) >= 0).all()
        assert_exact(found[: min(K, possible)], query, vectors, metric, allowed)


@pytest.mark.parametrize("metric", METRICS)
def test_groups_far_apart_copies_and_zeros(metric: str) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40_000, 4)).astype(np.float32)
    vectors[::2] += np.float32(1e5)
    vectors[10_000:30_000] = vectors[10_000]
    vectors[[5, 35_000]] = 0
    queries = np.concatenate([vectors[[0, 1, 10_000, 39_999]], rng.normal(size=(3, 4))]).astype(np.float32)
    rows, away = nearest(queries, vectors, K, metric)
    safe = np.where(vectors.any(axis=1, keepdims=True), vectors, 1)
    for query, found, far in zip(queries, rows, away, strict=True):
        exact = reference(query, safe, metric)
        if metric != "ip":
            exact[[5, 35_000]] = 1 if metric == "cosine" else (query.astype(np.float64) ** 2).sum()
        else:
            exact[[5, 35_000]] = 0
        assert np.allclose(np.sort(exact)[:K].astype(float), far, rtol=1e-9, atol=1e-13)
        assert np.allclose(exact[found].astype(float), far, rtol=1e-9, atol=1e-13)


DATA = {
    "one column at 20,000": (2e4, slice(0, 1)),
    "all columns at 1,000": (1e3, slice(None)),
    "all columns at 1e6": (1e6, slice(None)),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("way", ["exact", "no index", "few allowed", "tail", "deleted"])
def test_every_exact_way_of_a_store(tmp_path: Path, metric: str, data: str, way: str) -> None:
    offset, columns = DATA[data]
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(1500, 8))
    vectors[:, columns] += offset
    vectors = vectors.astype(np.float32)
    queries = (vectors[:6] + rng.normal(size=(6, 8)) * 0.1).astype(np.float32)
    allowed = np.ones(len(vectors), bool)
    with VectorStore.create(tmp_path / "s.rvf", dim=8, metric=metric, durable=False) as store:
        store.add(vectors[:20] if way == "tail" else vectors)
        if way != "no index":
            store.build_index("hnsw", ef_construction=40)
        if way == "tail":
            store.add(vectors[20:])
        if way == "deleted":
            store.delete(np.arange(0, 1500, 3))
            allowed[::3] = False
    chosen = None
    if way == "few allowed":
        chosen = np.arange(0, 1500, 100)
        allowed[:] = False
        allowed[chosen] = True
    exact = way in ("exact", "deleted")
    with VectorStore.open(tmp_path / "s.rvf") as store:
        for turn in range(2):
            for query in queries:
                found, _ = store.search(query, K, where=chosen, exact=exact)
                assert_exact(found, query, vectors, metric, allowed)
            if turn == 0:
                store.warm()
        batch, _ = store.search(queries, K, where=chosen, exact=exact)
        for query, found in zip(queries, batch, strict=True):
            assert_exact(found, query, vectors, metric, allowed)


@pytest.mark.parametrize(
    ("metric", "data"), [*[("l2", data) for data in DATA], *[("cosine", data) for data in list(DATA)[:2]]]
)
def test_first_queries_of_shifted_data_find_what_later_ones_find(
    tmp_path: Path, metric: str, data: str
) -> None:
    offset, columns = DATA[data]
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(3000, 8))
    vectors[:, columns] += offset
    vectors = vectors.astype(np.float32)
    with VectorStore.create(tmp_path / "s.rvf", dim=8, metric=metric, durable=False) as store:
        store.add(vectors)
        store.build_index("hnsw", ef_construction=60)
    hits = {"cold": 0, "warm": 0}
    for query in vectors[:20]:
        away = reference(query, vectors, metric)
        limit = float(np.sort(away)[K - 1]) * (1 + 1e-9)
        with VectorStore.open(tmp_path / "s.rvf") as store:
            hits["cold"] += int((away[store.search(query, K)[0]] <= limit).sum())
            store.warm()
            hits["warm"] += int((away[store.search(query, K)[0]] <= limit).sum())
    assert hits["cold"] >= hits["warm"] - 4
    assert hits["cold"] >= 0.95 * 20 * K
