"""Equal vectors stay reachable: each is found by itself, whatever is deleted or filtered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.search.query.ann import Copies, one_thread
from warpdata.search.store import VectorStore

RNG = np.random.default_rng(5)


def distances_agree(store: VectorStore, query: Any, k: int, **options: Any) -> None:
    """The answer is as near as the exact one, and names no vector twice."""
    ids, away = store.search(query, k, **options)
    exact = store.search(query, k, exact=True, where=options.get("where"))[1]
    assert len(set(ids.tolist())) == len(ids)
    assert np.allclose(away, exact, atol=1e-4)
    if store.metric == "l2":
        assert np.allclose(((store.get(ids) - query) ** 2).sum(axis=1), away, atol=1e-4)


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_a_hundred_copies_of_a_hundred_vectors(tmp_path: Path, metric: str) -> None:
    base = RNG.normal(size=(100, 16)).astype(np.float32)
    x = np.repeat(base, 100, axis=0)[RNG.permutation(10_000)]
    with VectorStore.create(tmp_path / "c.rvf", dim=16, metric=metric, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", m=8, ef_construction=60)
        store.warm()
        assert store._content.profile.copies == 9900
        assert np.allclose(store.search(base, 1)[1], store.search(base, 1, exact=True)[1], atol=1e-4)
        for vector in base[::4]:
            distances_agree(store, vector, 1)
            distances_agree(store, vector, 100, ef=256)
        if metric == "l2":
            for vector in base:
                mine = np.flatnonzero((x == vector).all(axis=1))
                assert set(store.search(vector, 100, ef=256)[0].tolist()) == set(mine.tolist())
        store.delete(range(0, 10_000, 3))
        store.add(base[:5] + 1)
        for vector in base[:30:3]:
            distances_agree(store, vector, 20)
            distances_agree(store, vector, 5, where=list(range(1, 10_000, 7)))
    with VectorStore.open(tmp_path / "c.rvf") as again:
        assert again.search(base[0], 3, ef=64)[0].shape == (3,)


def scaled_copies(seed: int) -> tuple[Any, Any]:
    """Fifty directions, and vectors that differ from one of them in length and rounding alone."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(50, 8)).astype(np.float32)
    x = np.repeat(base, 40, axis=0) * rng.uniform(0.1, 10, (2000, 1)).astype(np.float32)
    return base, x[rng.permutation(len(x))]


@pytest.mark.parametrize(("seed", "m", "ef_construction"), [(1, 8, 40), (0, 4, 20)])
def test_directions_that_come_many_times(tmp_path: Path, seed: int, m: int, ef_construction: int) -> None:
    base, x = scaled_copies(seed)
    with VectorStore.create(tmp_path / "d.rvf", dim=8, metric="cosine", durable=False) as store:
        store.add(x)
        with one_thread():  # always the same graph
            store.build_index("hnsw", m=m, ef_construction=ef_construction)
        store.warm()
        assert store.search(base, 1)[1].max() < 1e-6
        assert max(store.search(each, 1)[1][0] for each in base) < 1e-6
        assert store.search(np.zeros(8), 3)[1].tolist() == [1, 1, 1]


def test_a_vector_without_direction_is_like_none(tmp_path: Path) -> None:
    x = RNG.normal(size=(300, 4)).astype(np.float32)
    x[7] = 0
    with VectorStore.create(tmp_path / "z.rvf", dim=4, metric="cosine", durable=False) as store:
        store.add(x)
        store.build_index("hnsw", m=8, ef_construction=40)
        store.warm()
        for each in x[:20]:
            ids, away = store.search(each, 300, ef=300)
            expected = store.search(each, 300, exact=True)[1]
            assert np.allclose(away, expected, atol=1e-5)
            assert away[ids.tolist().index(7)] == 1


WATCHED = """
import os, sys
from warpdata.search.store import VectorStore
def threads(): return len(os.listdir("/proc/self/task"))
store = VectorStore.open(sys.argv[1])
store.warm()
x = store.get([0, 1])
before = threads()
store.search(x[0], 1), store.search(x[:1], 1)
alone = threads()
store.search(x, 1)
print(before, alone, threads())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no list of threads")
def test_one_query_wakes_no_threads_of_the_library(tmp_path: Path) -> None:
    """On a busy machine they would be waited for, many times as long as the query takes."""
    with VectorStore.create(tmp_path / "t.rvf", dim=4, durable=False) as store:
        store.add(RNG.normal(size=(300, 4)).astype(np.float32))
        store.build_index("hnsw", m=4, ef_construction=20)
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "t.rvf")],
        env={**os.environ, "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, alone, several = map(int, done.stdout.split())
    assert before == alone < several


def test_other_programs_get_no_graph_that_misses_copies(tmp_path: Path) -> None:
    base = RNG.normal(size=(40, 8)).astype(np.float32)
    x = np.repeat(base, RNG.integers(1, 60, 40), axis=0)
    with VectorStore.create(tmp_path / "g.rvf", dim=8, durable=False) as store:
        store.add(x)
        store.build_index("hnsw", m=4, ef_construction=40)
        receipt = store.export(tmp_path / "r.rvf", dialect="runtime")
    assert receipt.dropped == ("index",)
    with VectorStore.open(tmp_path / "r.rvf") as again:
        assert len(again) == len(x)


def test_codes_make_copies(tmp_path: Path) -> None:
    """Where only codes are kept, vectors that differed are equal: the graph is one of what is searched."""
    x = RNG.normal(size=(3000, 6)).astype(np.float32)
    with VectorStore.create(tmp_path / "b.rvf", dim=6, durable=False) as store:
        store.add(x)
        store.quantize("binary", keep_full=False)
        store.build_index("hnsw", m=8, ef_construction=40)
        assert store._content.profile.copies >= 3000 - 64
        for number in range(0, 3000, 300):
            distances_agree(store, store.get([number])[0], 30, ef=64)


def test_one_vector_many_times(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "z.rvf", dim=4, durable=False) as store:
        store.add(np.zeros((500, 4)))
        store.build_index("hnsw")
        store.warm()
        assert len(set(store.search(np.ones(4), 400, ef=400)[0].tolist())) == 400


@settings(max_examples=enough_examples(60), deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5]), min_size=3, max_size=3), max_size=40))
def test_the_equal_rows(values: list[list[float]]) -> None:
    vectors = np.array(values, np.float32).reshape(len(values), 3)
    slow = [next(j for j in range(i + 1) if (vectors[j] == vectors[i]).all()) for i in range(len(vectors))]
    assert Copies.of(vectors).first.tolist() == slow
