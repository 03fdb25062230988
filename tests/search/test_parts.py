"""Single vectors and filtered queries out of parts of a file: as right as reading all of it, and far less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.sweeps import SOAK
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import FormatError
from warpdata.formats.rvf.layout import SegmentType
from warpdata.search.store import VectorStore

ROWS, DIM = 6000, 32
FILTERS: list[Any] = [
    [5, 6, 7, 5999, 77777], "n < 3", "n < 40", "n < 600", "n >= 3000", "n != 7", "tag == 't3'",
    "tag in ['t1', 't2'] and not n < 3000", "id < 100", "n == 999999", "n = 12 or tag = 't9'",
]  # fmt: skip


@pytest.fixture(scope="module")
def vectors() -> Any:
    rng = np.random.default_rng(5)
    centers = 2 * rng.normal(size=(60, DIM))
    return (centers[rng.integers(0, 60, ROWS)] + 0.4 * rng.normal(size=(ROWS, DIM))).astype(np.float32)


@pytest.fixture(scope="module", params=["l2", "cosine", "ip"])
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, vectors: Any) -> bytes:
    """An indexed store with deletions, replaced vectors and new ones behind the index."""
    path = tmp_path_factory.mktemp("parts") / "p.rvf"
    with VectorStore.create(path, dim=DIM, metric=request.param) as store:
        store.add(vectors, metadata={"n": range(ROWS), "tag": [f"t{i % 50}" for i in range(ROWS)]})
        store.build_index("hnsw", ef_construction=40)
        store.delete([10, 11, 5000])
        store.add(vectors[:3] + 9, ids=[20, 8000, 8001], metadata=[{"n": 12}, {}, {"n": 1, "tag": "t1"}])
        store.delete([8001])
    return path.read_bytes()


def opened(content: bytes, *, warm: bool = False) -> VectorStore:
    store = VectorStore.open(BytesRangeReader(content))
    if warm:
        store.warm()
    return store


@pytest.mark.parametrize("chosen", FILTERS, ids=str)
def test_filtered_first_queries_agree_with_all_rows(changed: bytes, vectors: Any, chosen: Any) -> None:
    hits = expected_hits = 0
    whole = opened(changed, warm=True)
    for query in vectors[: 20 if SOAK else 6]:
        ids, distances = opened(changed).search(query, 10, where=chosen)
        true, away = whole.search(query, 10, where=chosen, exact=True)
        assert len(ids) == len(true)
        assert not {10, 11, 5000, 8001} & set(ids.tolist())
        assert (np.diff(distances) >= 0).all()
        hits += len(set(ids.tolist()) & set(true.tolist()))
        expected_hits += len(true)
        if set(ids.tolist()) == set(true.tolist()):
            assert distances == pytest.approx(away, rel=1e-3, abs=1e-3)
    assert hits >= 0.95 * expected_hits


def test_few_allowed_ids_are_found_exactly_from_their_blocks(changed: bytes, vectors: Any) -> None:
    store = opened(changed)
    ids, _ = store.search(vectors[5], 10, where=[5, 6, 20, 8000, 10])
    true, _ = opened(changed, warm=True).search(vectors[5], 10, where=[5, 6, 20, 8000, 10], exact=True)
    assert ids.tolist() == true.tolist()
    assert store.stats()["stage"] == "partitions"
    assert store.stats()["bytes_read"] < 0.2 * len(changed)


def test_get_reads_one_block(changed: bytes, vectors: Any) -> None:
    store = opened(changed)
    assert np.array_equal(store.get([5]), vectors[5:6])
    about = store.stats()
    assert about["bytes_read"] < 0.15 * len(changed)
    assert about["reads"] <= 10
    assert np.array_equal(
        store.get([20, 4321, 8000, 20]),
        np.stack([vectors[0] + 9, vectors[4321], vectors[1] + 9, vectors[0] + 9]),
    )
    for gone in (10, 5000, 8001, 77777):
        with pytest.raises(KeyError, match=str(gone)):
            store.get([5, gone])
    assert store.get([]).shape == (0, DIM)
    assert store.stats()["bytes_read"] < 0.2 * len(changed)


def test_many_vectors_are_read_at_once(changed: bytes, vectors: Any) -> None:
    store = opened(changed)
    wanted = [i for i in range(100, 4000)]
    assert np.array_equal(store.get(wanted), vectors[100:4000])
    assert store.stats()["bytes_read"] < 1.5 * len(changed)


def test_ids_and_metadata_need_no_vectors(changed: bytes) -> None:
    store = opened(changed)
    whole = opened(changed, warm=True)
    assert np.array_equal(store.ids, whole.ids)
    assert store.stats()["bytes_read"] < 0.1 * len(changed)
    assert store.metadata([20, 21, 8000]) == [{"n": 12}, {"n": 21, "tag": "t21"}, {}]
    with pytest.raises(KeyError):
        store.metadata([11])
    assert store.stats()["bytes_read"] < 0.45 * len(changed)


def test_a_store_without_partitions_finds_single_vectors_too(tmp_path: Path, vectors: Any) -> None:
    with VectorStore.create(tmp_path / "flat.rvf", dim=DIM) as store:
        store.add(vectors[:5000].repeat(4, axis=0)[:20_000])
        store.compact()
    with VectorStore.open(tmp_path / "flat.rvf") as again:
        assert np.array_equal(again.get([13]), vectors[3:4])
        assert again.stats()["bytes_read"] < 0.3 * again.stats()["file_bytes"]


@pytest.mark.parametrize("how", ["short rows", "compressed", "codes"])
def test_stores_that_cannot_be_read_in_parts_are_read_whole(tmp_path: Path, vectors: Any, how: str) -> None:
    dim = 8 if how == "short rows" else DIM
    x = vectors[:500, :dim]
    with VectorStore.create(tmp_path / "w.rvf", dim=dim) as store:
        store.add(x, metadata={"n": range(500)})
        store.build_index("ivf")
        if how == "compressed":
            store.compact(compression="zstd")
        elif how == "codes":
            store.quantize("scalar", keep_full=False)
    with VectorStore.open(tmp_path / "w.rvf") as again:
        assert np.abs(again.get([7, 3]) - x[[7, 3]]).max() < 0.1
        assert set(again.search(x[0], 5, where="n < 4")[0].tolist()) == {0, 1, 2, 3}


def test_a_damaged_block_or_directory_is_found(changed: bytes, vectors: Any) -> None:
    store = opened(changed)
    entry = next(e for e in store._content.snapshot.segments if e.seg_type == SegmentType.IDS)
    broken = bytearray(changed)
    broken[entry.file_offset + 64 + entry.compressed_length // 2] ^= 4
    with pytest.raises(wd.WarpError):
        opened(bytes(broken)).get([5])
    rows = store._content.base_entries[0]
    broken = bytearray(changed)
    broken[rows.file_offset + 64 + rows.payload_length // 2 : rows.file_offset + 64 + rows.payload_length] = (
        bytes(rows.payload_length - rows.payload_length // 2)
    )
    damaged = opened(bytes(broken))
    with pytest.raises(FormatError):
        for number in range(100, 200):
            damaged.get([number])


def test_a_snapshot_does_not_close_what_it_shares(changed: bytes) -> None:
    class Closable(BytesRangeReader):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    reader = Closable(changed)
    store = VectorStore.open(reader)
    store.snapshot().close()
    assert not reader.is_closed
    store.close()
    assert reader.is_closed


@pytest.mark.parametrize("kind", ["scalar", "pq"])
def test_the_first_query_chooses_cells_by_their_codes(tmp_path: Path, vectors: Any, kind: str) -> None:
    x, gone = vectors[:1500], list(range(0, 1500, 7))
    with VectorStore.create(tmp_path / "c.rvf", dim=DIM) as store:
        store.add(x)
        store.build_index("ivf")
        store.quantize(kind)
        store.delete(gone)
    alive = np.setdiff1d(np.arange(1500), gone)
    for query in x[[1, 400, 999]] + np.float32(0.05):
        with VectorStore.open(tmp_path / "c.rvf") as cold:
            found = cold.search(query, 5)[0]
        away = np.square(x[alive] - query).sum(axis=1)
        assert found.tolist() == alive[np.argsort(away)[:5]].tolist()
