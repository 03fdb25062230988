"""Vector search side by side: warpdata, faiss, hnswlib, usearch, lancedb. One thread, one run, ratios.

python -m bench.versus.vector_search [--quick] [--dim 128] [--folder DIR [--prepare]] [--section NAME]

With --folder the built indexes stay there: build them first with --prepare, then measure on a quiet machine, all of it
or one section after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LANCE_CPU_THREADS"):
    os.environ[variable] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
from tools.behaviours import agreement, record_behaviours  # noqa: E402

import warpdata as wd  # noqa: E402
from bench import measure  # noqa: E402
from bench.vector_data import clustered, recall, truth  # noqa: E402
from bench.vector_peers import BUILDERS, EF_CONSTRUCTION, K, M, Peer, build_config, open_all  # noqa: E402
from warpdata.search.moments.embedders import Scale, WindowEmbedder  # noqa: E402

TARGET = 0.99
MOST_EFFORT = 640
OUT = measure.RESULTS / "vectors.json"


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    return min(measure.seconds(work) for _ in range(repeats))


def prepare(folder: Path, rows: int, dim: int, queries: int) -> tuple[Any, Any, Any]:
    """Rows, queries and true neighbours; every index that is not in the folder yet is built, one per core at a time."""
    x, q = clustered(rows, dim, queries=queries)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in BUILDERS if not (folder / name).exists()]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        for done in [processes.submit(build, folder, name, rows, dim, queries) for name in missing]:
            done.result()
    if not (folder / "truth.npy").exists():
        np.save(folder / "truth.npy", truth(x, q, K))
    return x, q, np.load(folder / "truth.npy")


def build(folder: Path, name: str, rows: int, dim: int, queries: int) -> None:
    """Build one index; it has its name only when it is whole."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        BUILDERS[name](clustered(rows, dim, queries=queries)[0], Path(place, name))
        Path(place, name).rename(folder / name)


def lowest_effort(peer: Peer, queries: Any, expected: Any) -> tuple[int, float]:
    """The least effort that finds 99 % of the true neighbours, to the step of one."""

    def found(ef: int) -> float:
        return recall(np.asarray(peer.many(queries, ef), np.int64), expected)

    low, high = K, K
    while found(high) < TARGET and high < MOST_EFFORT:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) >= TARGET else (middle + 1, high)
    return low, found(low)


def rates(peers: list[Peer], queries: Any, expected: Any, repeats: int) -> dict[str, Any]:
    """Queries per second at the target recall; the peers take turns, the best round of each counts."""
    effort = {peer.name: lowest_effort(peer, queries, expected) for peer in peers}
    one = {peer.name: float("inf") for peer in peers}
    many = dict(one)
    for _ in range(repeats):
        for peer in peers:
            ef = effort[peer.name][0]
            rows = queries if "lance" not in peer.name else queries[:25]
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
    "warpdata": "import warpdata as wd\nwd.open_vectors, wd.VectorStore\n"
    "begin(); s = wd.open_vectors(path); ids = s.search(q, 10)[0].tolist()\n"
    "end(ids, s.stats()['bytes_read'])",
    "usearch view": "from usearch.index import Index\n"
    "begin(); i = Index.restore(path, view=True); i.expansion_search = 64\n"
    "ids = i.search(q, 10, threads=1).keys.tolist(); end(ids, 0)",
    "lancedb": "import lancedb\n"
    "begin(); table = lancedb.connect(path).open_table('t')\n"
    "ids = table.search(q).nprobes(20).refine_factor(4).limit(10).to_arrow()['id'].to_pylist(); end(ids, 0)",
}
PLACES = {"warpdata": "v.rvf", "usearch view": "f32.usearch", "lancedb": "lance"}
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


def cold_table(folder: Path, queries: Any, expected: Any, rounds: int) -> dict[str, Any]:
    """The libraries take turns; the middle of their times counts, and the most bytes that were read."""
    runs: dict[str, list[Any]] = {name: [] for name in PLACES}
    for number in range(rounds):
        np.save(folder / "q.npy", queries[number])
        for name, place in PLACES.items():
            runs[name].append(cold(name, folder / place, folder / "q.npy"))
    out: dict[str, Any] = {}
    for name, found in runs.items():
        hits = sum(len(set(f["ids"]) & set(e.tolist())) for f, e in zip(found, expected, strict=False))
        out[name] = {
            "median_ms": 1e3 * float(np.median([f["s"] for f in found])),
            "recall": hits / (K * rounds),
        }
    return out


def first_queries(path: Path, queries: Any, expected: Any) -> dict[str, Any]:
    """Bytes that each of these queries reads as the first one of its store, and what they find."""
    found, read = [], []
    for query in queries:
        with wd.open_vectors(path) as store:
            found.append(store.search(query, K)[0])
            read.append(store.stats()["bytes_read"])
    return {
        "bytes_max": max(read),
        "bytes_mean": round(sum(read) / len(read)),
        "bytes_limit": round(0.02 * path.stat().st_size + 65_536),
        "recall": recall(np.stack(found), expected),
    }


def sizes(folder: Path, raw_bytes: int, queries: Any, expected: Any) -> dict[str, Any]:
    """File sizes against raw f32, and what small files still find."""
    out = {name: (folder / f"{name}.rvf").stat().st_size / raw_bytes for name in ("v", "f16", "codes")}
    with wd.open_vectors(folder / "codes.rvf") as store:
        store.warm()
        out["codes_recall"] = recall(store.search(queries, K, ef=128)[0], expected)
    return out


def appends(dim: int, folder: Path) -> dict[str, Any]:
    """The size of a file after two sessions of 500 durable appends of one row, against the rows; time of an append."""
    x = np.random.default_rng(0).normal(size=(1000, dim)).astype(np.float32)
    path = folder / "one.rvf"
    wd.VectorStore.create(path, dim=dim, overwrite=True).close()
    sizes, seconds = [path.stat().st_size], 0.0
    for rows in (x[:500], x[500:]):
        with wd.VectorStore.open(path, mode="a") as store:
            seconds += measure.seconds(lambda s=store, r=rows: [s.add(row) for row in r])  # type: ignore[misc]
        sizes.append(path.stat().st_size)
    path.unlink()
    second = (sizes[2] - sizes[1]) / (sizes[1] - sizes[0])
    return {"ratio": sizes[2] / x.nbytes, "second_half": 1 + second, "ms_each": seconds}


def add_rate(x: Any, folder: Path, repeats: int) -> float:
    """Vectors per second in durable batches of 10,000; the best of some rounds."""

    def work() -> None:
        with wd.VectorStore.create(folder / "add.rvf", dim=x.shape[1], overwrite=True) as store:
            for at in range(0, len(x), 10_000):
                store.add(x[at : at + 10_000])

    seconds = best_seconds(work, repeats)
    (folder / "add.rvf").unlink()
    return len(x) / seconds


LOAD = """
import sys, time, faiss
from warpdata.search.store import VectorStore
from warpdata.search.query.ann import Graph
faiss.omp_set_num_threads(1)
spent = []
inner = Graph.restore.__func__
def timed(cls, *a):
    begin = time.process_time(); out = inner(cls, *a); spent.append(time.process_time() - begin); return out
Graph.restore = classmethod(timed)
store = VectorStore.open(sys.argv[1])
begin = time.process_time(); store._content.graph(); decode = time.process_time() - begin
begin = time.process_time(); store.warm(); whole = time.process_time() - begin
print(decode + spent[0], whole)
"""


def load_seconds(path: Path, repeats: int) -> dict[str, float]:
    """CPU of the graph alone (decoded, and into faiss with its vectors), and of everything; fresh processes."""
    found = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found.append([float(each) for each in done.stdout.split()])
    graph, whole = np.median(found, axis=0)
    return {"graph_cpu_s": float(graph), "everything_cpu_s": float(whole)}


def open_microseconds(path: Path) -> float:
    def work() -> None:
        wd.open_vectors(path).close()

    work()
    return 1e6 * best_seconds(work, 200)


CONDITION = "label = 'label 5' and t > 3"


def metadata_costs(x: Any, folder: Path, repeats: int) -> dict[str, float]:
    """Metadata of ten hits, and the first and the next query under a condition; LanceDB takes turns with us."""
    import lancedb
    import pyarrow as pa

    path, count = folder / "meta.rvf", len(x)
    about = {
        "label": [f"label {n % 97}" for n in range(count)],
        "t": list(range(count)),
        "score": (np.arange(count) / 3).tolist(),
    }
    if not path.exists():
        with wd.VectorStore.create(path, dim=x.shape[1], durable=False) as store:
            store.add(x, metadata=about)
            store.build_index("ivf")
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
        table = lancedb.connect(folder / "meta.lance").create_table(
            "t", pa.table({"vector": vectors, **about})
        )
        table.create_index("vector", config=build_config(x))
    hits = np.linspace(0, count - 1, 10).astype(int)
    found: dict[str, list[float]] = {}
    share = 0.0
    for _ in range(repeats):
        with wd.open_vectors(path) as store:
            stored = sum(segment["bytes"] for segment in store.segments() if segment["type"] == "META")
            store.ids  # noqa: B018
            read = store.stats()["bytes_read"]
            found.setdefault("ten_ms", []).append(1e3 * measure.seconds(lambda: store.metadata(hits)))
            share = (store.stats()["bytes_read"] - read) / stored
        with wd.open_vectors(path) as store:
            for name, query in (("first_filter_ms", x[0]), ("next_filter_ms", x[1])):
                spent = measure.seconds(lambda q=query: store.search(q, K, where=CONDITION))  # type: ignore[misc]
                found.setdefault(name, []).append(1e3 * spent)
        table = lancedb.connect(folder / "meta.lance").open_table("t")
        for name, query in (("lance_first_ms", x[0]), ("lance_next_ms", x[1])):
            ask = table.search(query).where(CONDITION).limit(K).select(["label"])
            spent = measure.seconds(ask.to_arrow)
            found.setdefault(name, []).append(1e3 * spent)
    return {"share": share, **{name: min(times) for name, times in found.items()}}


def growth(x: Any, folder: Path) -> dict[str, float]:
    """Adding 1 % to an indexed store and querying it, of the time of building its index."""
    path, late = folder / "grow.rvf", len(x) // 100
    with wd.VectorStore.create(path, dim=x.shape[1], overwrite=True, durable=False) as store:
        store.add(x[late:])
        build = measure.seconds(lambda: store.build_index("hnsw", m=M, ef_construction=EF_CONSTRUCTION))
        store.warm()
        grown = measure.seconds(lambda: (store.add(x[:late]), store.search(x[0], K)))
    path.unlink()
    return {"share": grown / build}


def upserts(x: Any, folder: Path) -> dict[str, float]:
    """Bytes that 1,000 upserts of one row add to a file of 20,000, closed again, of those that were given."""
    path = folder / "upserts.rvf"
    with wd.VectorStore.create(path, dim=x.shape[1], overwrite=True, durable=False) as store:
        store.add(
            x[:20_000], metadata={"n": range(len(x[:20_000])), "label": ["some text"] * len(x[:20_000])}
        )
        before = path.stat().st_size
        for number in range(1000):
            store.add(
                x[number] + 1, ids=[number * 7 % 20_000], metadata=[{"n": number, "label": "other text"}]
            )
    size = path.stat().st_size - before
    path.unlink()
    written = 1000 * (x.shape[1] * 4 + 8 + 8 + len("other text"))
    return {"ratio": size / written}


def filtered_recall(folder: Path, x: Any, queries: Any) -> dict[str, float]:
    """Recall of queries whose own neighbourhood a filter excludes: the mean and the worst query."""
    with wd.open_vectors(folder / "v.rvf") as store:
        store.warm()
        shares = []
        for query in queries[:50]:
            near = set(store.search(query, max(K, len(x) // 20), exact=True)[0].tolist())
            where = np.array([n for n in range(0, len(x), 2) if n not in near])
            true = store.search(query, K, where=where, exact=True)[0]
            shares.append(len(set(store.search(query, K, where=where)[0].tolist()) & set(true.tolist())) / K)
    return {"mean": float(np.mean(shares)), "worst": min(shares)}


def moments(folder: Path, episodes: int) -> dict[str, float]:
    """Neighbours of the same behaviour, without and with a channel in raw counts, and windows per second."""
    out = {}
    for name, counts in (("plain", 1.0), ("counts", 50_000.0)):
        names = record_behaviours(folder / name, episodes, counts=counts)
        made = wd.embed(folder / name, "motion", per="window", window_s=2.0)
        with wd.open_vectors(made.path) as store:
            out[name] = agreement(store, names)
    windows = {"state": np.random.default_rng(0).normal(size=(20_000, 50, 14)).astype(np.float32)}
    flat = windows["state"].reshape(-1, 14)
    embedder = WindowEmbedder((("motion", 1.0),), Scale({"state": (flat.mean(0), flat.std(0))}))
    out["windows_per_s"] = len(windows["state"]) / best_seconds(lambda: embedder(windows), 3)
    return out


INDEXED = {"warm", "cold", "first_query", "load", "sizes", "open_us", "filtered"}
"""Sections that look at the built indexes."""


def sections(folder: Path, data: Any, repeats: int, rounds: int) -> dict[str, Callable[[], Any]]:
    """What one run measures, by name."""
    x, q, expected = data
    store, dim = folder / "v.rvf", x.shape[1]
    return {
        "add_per_s": lambda: add_rate(x, folder, 3),
        "warm": lambda: rates(open_all(folder, dim), q, expected, 3 * repeats),
        "cold": lambda: cold_table(folder, q, expected, rounds),
        "first_query": lambda: first_queries(store, q[:100], expected[:100]),
        "load": lambda: load_seconds(store, 3),
        "sizes": lambda: sizes(folder, x.nbytes, q, expected),
        "single_appends": lambda: appends(dim, folder),
        "open_us": lambda: open_microseconds(store),
        "metadata": lambda: metadata_costs(x, folder, 3 * repeats),
        "growth": lambda: growth(x, folder),
        "upserts": lambda: upserts(x, folder),
        "filtered": lambda: filtered_recall(folder, x, q),
        "moments": lambda: moments(folder, 96),
    }


def bars(found: dict[str, Any]) -> dict[str, Any]:  # noqa: C901 - one block per section
    """The bars of one run: what was measured, what was promised, whether it holds."""
    at_least: dict[str, tuple[float, float]] = {}
    at_most: dict[str, tuple[float, float]] = {}
    if "warm" in found:
        mine = found["warm"]["warpdata"]
        theirs = [row for name, row in found["warm"].items() if name != "warpdata"]
        at_least["QPS one by one, of the best other"] = (mine["qps"] / max(row["qps"] for row in theirs), 1.0)
        best = max(row["batch_qps"] for row in theirs)
        at_least["QPS in a batch of 1,000, of the best other"] = (mine["batch_qps"] / best, 1.2)
    if "cold" in found:
        peers = [row["median_ms"] for name, row in found["cold"].items() if name != "warpdata"]
        ratio = found["cold"]["warpdata"]["median_ms"] / min(peers)
        at_most["cold open to result, of the best peer"] = (ratio, 1.0)
    if "first_query" in found:
        first = found["first_query"]
        at_least["recall of first queries"] = (first["recall"], 0.95)
        at_most["bytes of a first query, of 2 % + 64 KB"] = (first["bytes_max"] / first["bytes_limit"], 1.0)
    if "sizes" in found:
        size = found["sizes"]
        at_least["recall of codes"] = (size["codes_recall"], 0.9)
        for name, limit in (("v", 1.1), ("f16", 0.6), ("codes", 0.1)):
            what = {"v": "size with index, of raw f32", "f16": "size as f16", "codes": "size as codes"}[name]
            at_most[what] = (size[name], limit)
    if "add_per_s" in found:
        rate = found["add_per_s"] * found["dim"] / 128
        at_least["vectors added per second, x128 of them"] = (rate, 300_000)
    if "open_us" in found:
        at_most["open and parse the root, µs"] = (found["open_us"], 300)
    if "load" in found:
        at_most["load of the graph, CPU s"] = (found["load"]["graph_cpu_s"], 0.3)
    if "single_appends" in found:
        beside = (found["single_appends"]["ratio"] - 1) * found["dim"] * 4 / 1024
        at_most["1,000 single appends, KiB beside each"] = (beside, 8.0)
        at_most["growth of the second 500 over the first"] = (found["single_appends"]["second_half"] - 1, 1.1)
    if "metadata" in found:
        about = found["metadata"]
        first, later = about["first_filter_ms"], about["next_filter_ms"]
        at_most["first filtered query, of LanceDB"] = (first / about["lance_first_ms"], 2.0)
        at_most["next filtered query, of LanceDB"] = (later / about["lance_next_ms"], 1.0)
        at_most["metadata of ten hits, ms"] = (about["ten_ms"], 5.0)
        at_most["metadata of ten hits, share of its bytes"] = (about["share"], 0.05)
    if "growth" in found:
        at_most["1 % added and queried, of a rebuild"] = (found["growth"]["share"], 0.05)
    if "upserts" in found:
        at_most["1,000 upserts, bytes of those written"] = (found["upserts"]["ratio"], 3.0)
    if "filtered" in found:
        at_least["worst query whose neighbourhood is excluded, recall"] = (found["filtered"]["worst"], 0.8)
    if "moments" in found:
        seen = found["moments"]
        at_least["neighbours of the same behaviour"] = (seen["plain"], 0.95)
        at_least["neighbours of the same behaviour, a channel at 50,000 counts"] = (seen["counts"], 0.9)
        at_least["windows embedded per second"] = (seen["windows_per_s"], 20_000)
    out = {name: {"value": v, "bar": f"≥ {bar}", "holds": v >= bar} for name, (v, bar) in at_least.items()}
    out |= {name: {"value": v, "bar": f"≤ {bar}", "holds": v <= bar} for name, (v, bar) in at_most.items()}
    return out


def saved(results: dict[str, Any]) -> None:
    """Join these sections with those that were measured before, and draw the bars of all."""
    runs = json.loads(OUT.read_text()).get("runs", {}) if OUT.exists() else {}
    for name, found in results.items():
        runs[name] = {**runs.get(name, {}), **found}
    rows = {f"{each['dim']}: {name}": row for each in runs.values() for name, row in bars(each).items()}
    measure.save("vectors", {"runs": runs, "bars": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run of seconds; nothing is saved")
    parser.add_argument("--dim", type=int, action="append", default=[])
    parser.add_argument("--folder", type=Path, help="keep the built indexes here")
    parser.add_argument("--prepare", action="store_true", help="only build what is missing in the folder")
    parser.add_argument("--section", action="append", default=[], help="measure only this; may come often")
    args = parser.parse_args()
    rows, queries, repeats, rounds = (5000, 100, 2, 3) if args.quick else (200_000, 1000, 5, 9)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for dim in args.dim or [128]:
            folder = (args.folder or Path(temporary)) / f"{rows}x{dim}"
            if args.section and not set(args.section) & INDEXED:
                folder.mkdir(parents=True, exist_ok=True)
                data = (*clustered(rows, dim, queries=queries), None)
            else:
                data = prepare(folder, rows, dim, queries)
            if args.prepare:
                continue
            found: dict[str, Any] = {"rows": rows, "dim": dim, "m": M, "ef_construction": EF_CONSTRUCTION}
            for name, work in sections(folder, data, repeats, rounds).items():
                if not args.section or name in args.section:
                    found[name] = work()
            results[f"{rows}x{dim}"] = found
    for name, found in results.items():
        print(json.dumps({name: found, "bars": bars(found)}, indent=1, default=float))
    if results and not args.quick:
        saved(results)


if __name__ == "__main__":
    main()
