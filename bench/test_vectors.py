"""Vector stores at a small size: sizes, bytes read and recall, and the comparison that must not rot."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from bench.vector_data import clustered, recall, truth
from warpdata.search.store import VectorStore

ROWS, DIM = 8000, 128


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    faiss.omp_set_num_threads(1)
    x, q = clustered(ROWS, DIM, queries=100)
    path: Path = tmp_path_factory.mktemp("bench") / "v.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(x)
        store.build_index("hnsw", ef_construction=80)
    return path, x, q, truth(x, q, 10)


def test_size_with_index(built: Any) -> None:
    assert built[0].stat().st_size < 1.1 * built[1].nbytes


def test_warm_search_finds_what_a_full_scan_finds(built: Any) -> None:
    path, _, q, expected = built
    with VectorStore.open(path) as store:
        store.warm()
        assert recall(store.search(q, 10, ef=64)[0], expected) > 0.98


def test_first_query_reads_little(built: Any) -> None:
    path, _, q, expected = built
    found = []
    for row in q[:20]:
        with VectorStore.open(path) as store:
            found.append(store.search(row, 10)[0])
            about = store.stats()
            assert about["stage"] == "partitions"
            assert about["bytes_read"] < 0.15 * about["file_bytes"]
    assert recall(np.stack(found), expected[:20]) >= 0.95


def test_single_appends_stay_linear(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(300, DIM)).astype(np.float32)
    with VectorStore.create(tmp_path / "o.rvf", dim=DIM, durable=False) as store:
        for row in x:
            store.add(row)
    assert (tmp_path / "o.rvf").stat().st_size < 16_384 + 4 * x.nbytes


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("hnswlib", "usearch", "lancedb")),
    reason="the peers come with the extra bench",
)
def test_the_comparison_runs() -> None:
    script = Path(__file__).parent / "versus" / "vector_search.py"
    done = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
