"""Vector stores, shrunk: the bars that do not need a quiet machine, and the comparison that must not rot."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from bench import measure
from bench.vector_data import clustered, recall, truth
from warpdata.search.store import VectorStore

ROWS, DIM = 8000, 128


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    faiss.omp_set_num_threads(1)
    x, q = clustered(ROWS, DIM, queries=100)
    path: Path = tmp_path_factory.mktemp("bench") / "v.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        start = time.perf_counter()
        store.add(x)
        rate = len(x) / (time.perf_counter() - start)
        store.build_index("hnsw", ef_construction=80)
    return path, x, q, truth(x, q, 10), rate


def test_adding_is_fast(built: Any) -> None:
    assert built[4] > 100_000  # the bar of 300,000 is checked on a quiet machine


def test_size_with_index(built: Any) -> None:
    assert built[0].stat().st_size < 1.1 * built[1].nbytes


def ratios(rivals: dict[str, Any], rounds: int) -> list[float]:
    """Ours over theirs in each round: they take turns, so what disturbs one round disturbs both."""
    ours, theirs = rivals.values()
    found = []
    for _ in range(rounds):
        turns = [measure.seconds(work) for work in (theirs, ours, theirs, ours, theirs)]
        found.append((turns[1] + turns[3]) / 2 / min(turns[0], turns[2], turns[4]))
    return found


def test_warm_search_keeps_up_with_faiss(built: Any) -> None:
    path, x, q, expected, _ = built
    peer = faiss.IndexHNSWFlat(DIM, 16)
    peer.hnsw.efConstruction = 80
    peer.add(x)
    params = faiss.SearchParametersHNSW(efSearch=64)
    with VectorStore.open(path) as store:
        store.warm()
        assert recall(store.search(q, 10, ef=64)[0], expected) > 0.98
        one = {
            "ours": lambda: [store.search(row, 10, ef=64) for row in q],
            "theirs": lambda: [peer.search(row[None], 10, params=params) for row in q],
        }
        many = {
            "ours": lambda: store.search(q, 10, ef=64),
            "theirs": lambda: peer.search(q, 10, params=params),
        }
        # Other tests run beside this one: one quiet moment among the rounds shows what the code can do.
        assert min(ratios(one, 15)) < 1.5
        assert min(ratios(many, 15)) < 1.5


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_first_query_reads_little(built: Any) -> None:
    path, _, q, expected, _ = built
    found = []
    for row in q[:20]:
        with VectorStore.open(path) as store:
            found.append(store.search(row, 10)[0])
            about = store.stats()
            assert about["stage"] == "partitions"
            assert about["bytes_read"] < 0.15 * about["file_bytes"]
    assert recall(np.stack(found), expected[:20]) >= 0.95


def test_opening_and_loading(built: Any) -> None:
    path = built[0]
    best = min(seconds(lambda: VectorStore.open(path).close()) for _ in range(50))
    assert best < 300e-6
    with VectorStore.open(path) as store:
        begin = time.process_time()
        store.warm()
        assert time.process_time() - begin < 0.3


def test_single_appends_stay_linear(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(300, DIM)).astype(np.float32)
    with VectorStore.create(tmp_path / "o.rvf", dim=DIM, durable=False) as store:
        for row in x:
            store.add(row)
    assert (
        tmp_path / "o.rvf"
    ).stat().st_size < x.nbytes + 300 * 8192  # each commit repeats the root of 4 KiB


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("hnswlib", "usearch", "lancedb")),
    reason="the peers come with the extra bench-vectors",
)
def test_the_comparison_runs() -> None:
    script = Path(__file__).parent / "versus" / "vector_search.py"
    done = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
