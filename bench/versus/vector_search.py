"""Vector search side by side: warpdata, faiss, hnswlib, usearch, lancedb. One thread, one run, ratios.

python bench/versus/vector_search.py [--quick] [--dim 128] [--out bench/results/vectors.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LANCE_CPU_THREADS"):
    os.environ[variable] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from bench.vector_data import clustered, recall, truth  # noqa: E402

K = 10
TARGET = 0.99
EFFORTS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
M, EF_CONSTRUCTION = 16, 200
Search = Callable[[Any, int], Any]


class Peer:
    """One library: how one query and a batch are searched at an effort."""

    def __init__(self, name: str, one: Search, many: Search) -> None:
        self.name, self.one, self.many = name, one, many


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def faiss_peer(x: Any) -> Peer:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(x.shape[1], M)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(x)
    made: dict[int, Any] = {}

    def params(ef: int) -> Any:
        return made.setdefault(ef, faiss.SearchParametersHNSW(efSearch=ef))

    return Peer(
        "faiss",
        lambda q, ef: index.search(q[None], K, params=params(ef))[1][0],
        lambda q, ef: index.search(q, K, params=params(ef))[1],
    )


def hnswlib_peer(x: Any) -> Peer:
    import hnswlib

    index = hnswlib.Index("l2", x.shape[1])
    index.init_index(len(x), M=M, ef_construction=EF_CONSTRUCTION)
    index.set_num_threads(1)
    index.add_items(x, num_threads=1)

    def search(q: Any, ef: int) -> Any:
        index.set_ef(ef)
        return index.knn_query(q, K, num_threads=1)[0]

    return Peer("hnswlib", lambda q, ef: search(q, ef)[0], search)


def usearch_index(x: Any, dtype: str) -> Any:
    from usearch.index import Index

    index = Index(ndim=x.shape[1], metric="l2sq", dtype=dtype, connectivity=M, expansion_add=EF_CONSTRUCTION)
    index.add(np.arange(len(x)), x, threads=1)
    return index


def usearch_peer(x: Any, dtype: str) -> tuple[Peer, Any]:
    index = usearch_index(x, dtype)

    def search(q: Any, ef: int) -> Any:
        index.expansion_search = ef
        return index.search(q, K, threads=1).keys

    return Peer(f"usearch {dtype}", search, search), index


def lancedb_peer(x: Any, folder: Path) -> Peer:
    import lancedb
    import pyarrow as pa
    from lancedb.index import IvfPq

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    table = lancedb.connect(folder / "lance").create_table(
        "t", pa.table({"id": range(len(x)), "vector": vectors})
    )
    partitions = max(2, round(len(x) ** 0.5))
    config = IvfPq(distance_type="l2", num_partitions=partitions, num_sub_vectors=x.shape[1] // 4)
    table.create_index("vector", config=config)

    def one(q: Any, ef: int) -> Any:
        found = table.search(q).nprobes(max(1, ef // 4)).refine_factor(4).limit(K).to_arrow()
        return np.asarray(found["id"])

    return Peer("lancedb IVF_PQ", one, lambda q, ef: np.stack([one(each, ef) for each in q]))


def ours(x: Any, path: Path) -> tuple[Peer, dict[str, Any]]:
    import warpdata as wd

    store = wd.VectorStore.create(path, dim=x.shape[1])
    start = time.perf_counter()
    for at in range(0, len(x), 10_000):
        store.add(x[at : at + 10_000])
    add_rate = len(x) / (time.perf_counter() - start)
    start = time.perf_counter()
    store.build_index("hnsw", m=M, ef_construction=EF_CONSTRUCTION)
    build_s = time.perf_counter() - start
    size = path.stat().st_size / x.nbytes
    store.close()
    begin = time.process_time()
    reader = wd.VectorStore.open(path)
    reader.warm()
    load_s = time.process_time() - begin
    about = {"add_per_s": add_rate, "build_s": build_s, "size_ratio_f32": size, "load_cpu_s": load_s}
    return Peer(
        "warpdata", lambda q, ef: reader.search(q, K, ef)[0], lambda q, ef: reader.search(q, K, ef)[0]
    ), about


def lowest_effort(peer: Peer, queries: Any, expected: Any) -> tuple[int, float]:
    """The least effort that finds 99 % of the true neighbours."""
    share = 0.0
    for ef in EFFORTS:
        share = recall(np.asarray(peer.many(queries, ef), np.int64), expected)
        if share >= TARGET:
            break
    return ef, share


def rates(peers: list[Peer], queries: Any, expected: Any, repeats: int) -> dict[str, Any]:
    """Queries per second at the target recall; the peers take turns, the best round of each counts."""
    effort = {peer.name: lowest_effort(peer, queries, expected) for peer in peers}
    one = {peer.name: float("inf") for peer in peers}
    many = dict(one)
    for _ in range(repeats):
        for peer in peers:
            ef = effort[peer.name][0]
            rows = queries if "lance" not in peer.name else queries[:50]
            seconds = best_seconds(lambda p=peer, e=ef, r=rows: [p.one(q, e) for q in r], 1)  # type: ignore[misc]
            one[peer.name] = min(one[peer.name], seconds / len(rows))
            seconds = best_seconds(lambda p=peer, e=ef, r=rows: p.many(r, e), 1)  # type: ignore[misc]
            many[peer.name] = min(many[peer.name], seconds / len(rows))
    return {
        name: {
            "ef": effort[name][0],
            "recall": effort[name][1],
            "qps": 1 / one[name],
            "batch_qps": 1 / many[name],
        }
        for name in one
    }


COLD = {
    "warpdata": "import warpdata as wd\nfrom warpdata.search.store import VectorStore\n"
    "begin(); s = VectorStore.open(path); ids = s.search(q, 10)[0].tolist()\n"
    "end(ids, s.stats()['bytes_read'])",
    "usearch view": "from usearch.index import Index\n"
    "begin(); i = Index.restore(path, view=True); i.expansion_search = 64\n"
    "ids = i.search(q, 10, threads=1).keys.tolist(); end(ids, 0)",
    "lancedb": "import lancedb\n"
    "begin(); table = lancedb.connect(path).open_table('t')\n"
    "ids = table.search(q).nprobes(20).refine_factor(4).limit(10).to_arrow()['id'].to_pylist(); end(ids, 0)",
}
FRAME = """
import sys, time, json, os, numpy as np
path = sys.argv[1]
q = np.load(sys.argv[2])
def drop(name):
    if os.path.isdir(name):
        for folder, _, files in os.walk(name):
            for each in files: drop(os.path.join(folder, each))
        return
    fd = os.open(name, os.O_RDONLY); os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
def begin():
    global t
    drop(path); t = time.perf_counter()
def end(ids, read): print(json.dumps({"s": time.perf_counter() - t, "ids": ids, "bytes_read": read}))
"""


def cold(name: str, path: Path, query: Path) -> dict[str, Any]:
    """Open and first result in a fresh process, imports excluded, page cache of the file dropped."""
    done = subprocess.run(
        [sys.executable, "-c", FRAME + COLD[name], str(path), str(query)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cold_table(
    places: dict[str, Path], queries: Any, expected: Any, folder: Path, rounds: int
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, path in places.items():
        times, hits, read = [], 0, 0
        for number in range(rounds):
            np.save(folder / "q.npy", queries[number])
            found = cold(name, path, folder / "q.npy")
            times.append(found["s"])
            hits += len(set(found["ids"]) & set(expected[number].tolist()))
            read = max(read, found["bytes_read"])
        out[name] = {"median_ms": 1e3 * sorted(times)[len(times) // 2], "recall": hits / (K * rounds)}
        if read:
            out[name]["bytes_read_max"] = read
    return out


def sizes(x: Any, queries: Any, expected: Any, folder: Path) -> dict[str, Any]:
    """File sizes against raw f32, and what small files still find."""
    import warpdata as wd

    out: dict[str, Any] = {}
    with wd.VectorStore.create(folder / "f16.rvf", dim=x.shape[1], dtype="f16") as store:
        store.add(x)
        store.build_index("hnsw", m=M, ef_construction=EF_CONSTRUCTION)
        out["f16_hnsw"] = {"ratio": (folder / "f16.rvf").stat().st_size / x.nbytes}
    with wd.VectorStore.create(folder / "pq.rvf", dim=x.shape[1]) as store:
        store.add(x)
        store.build_index("ivf")
        sub = 3 if x.shape[1] <= 128 else 4
        store.quantize("residual_pq", keep_full=False, code_bytes=-(-x.shape[1] // sub))
        store.warm()
        found = store.search(queries, K, ef=128)[0]
        out["pq_ivf"] = {
            "ratio": (folder / "pq.rvf").stat().st_size / x.nbytes, "recall": recall(found, expected),
        }  # fmt: skip
    return out


def appends(dim: int, folder: Path) -> dict[str, Any]:
    import warpdata as wd

    x = np.random.default_rng(0).normal(size=(1000, dim)).astype(np.float32)
    path = folder / "one.rvf"
    with wd.VectorStore.create(path, dim=dim) as store:
        start = time.perf_counter()
        half = 0
        for number, row in enumerate(x):
            store.add(row)
            half = path.stat().st_size if number == 499 else half
        seconds = time.perf_counter() - start
    return {"ratio": path.stat().st_size / x.nbytes, "second_half": path.stat().st_size / half, "ms": seconds}


def open_microseconds(path: Path) -> float:
    from warpdata.search.store import VectorStore

    def work() -> None:
        VectorStore.open(path).close()

    work()
    return 1e6 * min(best_seconds(work, 1) for _ in range(200))


def run(rows: int, dim: int, queries: int, repeats: int, rounds: int) -> dict[str, Any]:
    x, q = clustered(rows, dim, queries=queries)
    expected = truth(x, q, K)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine, about = ours(x, folder / "v.rvf")
        f32, index = usearch_peer(x, "f32")
        index.save(str(folder / "u.usearch"))
        f16, _ = usearch_peer(x, "f16")
        peers = [mine, faiss_peer(x), hnswlib_peer(x), f32, f16, lancedb_peer(x, folder)]
        table = rates(peers, q, expected, repeats)
        places = {
            "warpdata": folder / "v.rvf", "usearch view": folder / "u.usearch", "lancedb": folder / "lance",
        }  # fmt: skip
        first = cold_table(places, q, expected, folder, rounds)
        size = (folder / "v.rvf").stat().st_size
        first["warpdata"]["bytes_limit"] = round(0.02 * size + 65_536)
        return {
            "rows": rows, "dim": dim, "m": M, "ef_construction": EF_CONSTRUCTION,
            "warm": table, "cold": first, **about,
            "sizes": sizes(x, q, expected, folder), "single_appends": appends(dim, folder),
            "open_us": open_microseconds(folder / "v.rvf"),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shrunk run of seconds")
    parser.add_argument("--dim", type=int, action="append", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ef-construction", type=int, default=200, help="the same for every graph")
    args = parser.parse_args()
    globals()["EF_CONSTRUCTION"] = args.ef_construction
    rows, queries, repeats, rounds = (5000, 100, 2, 3) if args.quick else (100_000, 500, 5, 7)
    results = {f"{rows}x{dim}": run(rows, dim, queries, repeats, rounds) for dim in args.dim or [128]}
    print(json.dumps(results, indent=1))
    if args.out:
        old = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps({**old, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
