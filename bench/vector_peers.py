"""Vector libraries side by side: each builds its index once into a folder, and is opened from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

K = 10
M, EF_CONSTRUCTION = 16, 200
Search = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """One library: how one query and a batch are searched at an effort."""

    name: str
    one: Search
    many: Search


def build_ours(x: Any, path: Path, dtype: str = "f32") -> None:
    import warpdata as wd

    with wd.VectorStore.create(path, dim=x.shape[1], dtype=dtype) as store:
        store.add(x)
        store.build_index("hnsw", m=M, ef_construction=EF_CONSTRUCTION)


def build_codes(x: Any, path: Path) -> None:
    """Product codes alone, within a tenth of the raw vectors."""
    import warpdata as wd

    with wd.VectorStore.create(path, dim=x.shape[1]) as store:
        store.add(x)
        store.build_index("ivf", partitions=max(2, round(len(x) ** 0.5 / 2)))
        store.quantize("residual_pq", keep_full=False)


def build_faiss(x: Any, path: Path) -> None:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(x.shape[1], M)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(x)
    faiss.write_index(index, str(path))


def build_hnswlib(x: Any, path: Path) -> None:
    import hnswlib

    index = hnswlib.Index("l2", x.shape[1])
    index.init_index(len(x), M=M, ef_construction=EF_CONSTRUCTION)
    index.add_items(x, num_threads=1)
    index.save_index(str(path))


def build_usearch(x: Any, path: Path, dtype: str) -> None:
    from usearch.index import Index

    index = Index(ndim=x.shape[1], metric="l2sq", dtype=dtype, connectivity=M, expansion_add=EF_CONSTRUCTION)
    index.add(np.arange(len(x)), x, threads=1)
    index.save(str(path))


def build_config(x: Any) -> Any:
    """The index of LanceDB."""
    from lancedb.index import IvfPq

    partitions = max(2, round(len(x) ** 0.5))
    return IvfPq(distance_type="l2", num_partitions=partitions, num_sub_vectors=x.shape[1] // 4)


def build_lancedb(x: Any, path: Path) -> None:
    import lancedb
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    table = lancedb.connect(path).create_table("t", pa.table({"id": range(len(x)), "vector": vectors}))
    table.create_index("vector", config=build_config(x))


BUILDERS: dict[str, Callable[[Any, Path], None]] = {
    "v.rvf": build_ours,
    "f16.rvf": lambda x, path: build_ours(x, path, "f16"),
    "codes.rvf": build_codes,
    "faiss.index": build_faiss,
    "hnswlib.bin": build_hnswlib,
    "f32.usearch": lambda x, path: build_usearch(x, path, "f32"),
    "f16.usearch": lambda x, path: build_usearch(x, path, "f16"),
    "lance": build_lancedb,
}
"""File in the folder of a benchmark -> who writes it."""


def open_ours(path: Path) -> Peer:
    import warpdata as wd

    store = wd.VectorStore.open(path)
    store.warm()
    return Peer("warpdata", lambda q, ef: store.search(q, K, ef)[0], lambda q, ef: store.search(q, K, ef)[0])


def open_faiss(path: Path) -> Peer:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.read_index(str(path))
    made: dict[int, Any] = {}

    def params(ef: int) -> Any:
        return made.setdefault(ef, faiss.SearchParametersHNSW(efSearch=ef))

    return Peer(
        "faiss",
        lambda q, ef: index.search(q[None], K, params=params(ef))[1][0],
        lambda q, ef: index.search(q, K, params=params(ef))[1],
    )


def open_hnswlib(path: Path, dim: int) -> Peer:
    import hnswlib

    index = hnswlib.Index("l2", dim)
    index.load_index(str(path))
    index.set_num_threads(1)

    def search(q: Any, ef: int) -> Any:
        index.set_ef(ef)
        return index.knn_query(q, K, num_threads=1)[0]

    return Peer("hnswlib", lambda q, ef: search(q, ef)[0], search)


def open_usearch(path: Path) -> Peer:
    from usearch.index import Index

    index = Index.restore(str(path))

    def search(q: Any, ef: int) -> Any:
        index.expansion_search = ef
        return index.search(q, K, threads=1).keys

    return Peer(f"usearch {path.stem}", search, search)


def open_lancedb(path: Path) -> Peer:
    import lancedb

    table = lancedb.connect(path).open_table("t")

    def one(q: Any, ef: int) -> Any:
        found = table.search(q).nprobes(max(1, ef // 4)).refine_factor(4).limit(K).to_arrow()
        return np.asarray(found["id"])

    return Peer("lancedb IVF_PQ", one, lambda q, ef: np.stack([one(each, ef) for each in q]))


def open_all(folder: Path, dim: int) -> list[Peer]:
    """Every library, warm."""
    return [
        open_ours(folder / "v.rvf"),
        open_faiss(folder / "faiss.index"),
        open_hnswlib(folder / "hnswlib.bin", dim),
        open_usearch(folder / "f32.usearch"),
        open_usearch(folder / "f16.usearch"),
        open_lancedb(folder / "lance"),
    ]
