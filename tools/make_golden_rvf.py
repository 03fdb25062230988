"""Make the golden vector files and the JSON of what must be read from them.

    python tools/make_golden_rvf.py [folder]

The bytes differ between runs in times and file ids; what is in them does not. Files that are there stay.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.search.file.rewrite import write_vectors
from warpdata.search.store import VectorStore

ROOT = Path(__file__).resolve().parent.parent


def vectors(count: int, dim: int) -> Any:
    """Numbers that every machine makes alike: small fractions, exact in f16."""
    grid = np.arange(count * dim, dtype=np.int64).reshape(count, dim)
    return (((grid * 7919) % 101 - 50) / 16).astype(np.float32)


def describe(path: Path) -> dict[str, Any]:
    """What a reader must find."""
    with VectorStore.open(path) as store:
        ids = store.ids
        query = vectors(1, store.dim)[0] + 0.25
        found, distances = store.search(query, 5, exact=True)
        return {
            "dim": store.dim,
            "metric": store.metric,
            "dtype": store.dtype,
            "ids": ids.tolist(),
            "vectors": store.get(ids).tolist(),
            "metadata": store.metadata(ids),
            "segments": [segment["type"] for segment in store.segments()],
            "query": query.tolist(),
            "found": found.tolist(),
            "distances": [round(float(d), 4) for d in distances],
        }


def plain(path: Path) -> None:
    """Small commits: deltas, deletions, a replaced vector, metadata changes."""
    with VectorStore.create(path, dim=6, overwrite=True) as store:
        store.add(
            vectors(20, 6), metadata=[{"n": i, "tag": "ab"[i % 2], "even": i % 2 == 0} for i in range(20)]
        )
        store.delete([2, 3, 4, 5, 11])
        store.add(vectors(2, 6) * 2, ids=[7, 1000], metadata=[{"n": -7}, {"f": 0.5}])
        store.update([1], [{"tag": "changed"}])


def indexed(path: Path) -> None:
    """A rewritten file: partitions, layers A to C, codes, then one more commit."""
    with VectorStore.create(path, dim=8, metric="cosine", dtype="f16", overwrite=True) as store:
        store.add(vectors(90, 8), metadata={"n": range(90)})
        store.quantize("scalar")
        store.build_index("hnsw", m=4, ef_construction=40)
        store.delete([10])


def parts(path: Path) -> None:
    """Rows long enough for an id directory, so that single vectors are read from parts of the file."""
    with VectorStore.create(path, dim=16, overwrite=True) as store:
        store.add(vectors(60, 16), ids=range(100, 160), metadata={"n": range(60)})
        store.build_index("ivf", partitions=6)
        store.delete([101])
        store.add(vectors(1, 16) * 3, ids=[103])


def codes(path: Path) -> None:
    """Codes instead of vectors: a dictionary in a compressed segment."""
    with VectorStore.create(path, dim=12, overwrite=True) as store:
        store.add(vectors(300, 12), metadata={"n": range(300)})
        store.quantize("residual_pq", keep_full=False)
        store.delete([10])


def commits(path: Path) -> None:
    """Many small commits: small segments merged, the root behind each, metadata hashed before its end mark."""
    with VectorStore.create(path, dim=4, overwrite=True) as store:
        for number, row in enumerate(vectors(18, 4)):
            store.add(row, metadata=[{"n": number}])
        store.delete([3, 10, 16])
        store.add(vectors(2, 4), ids=[10, 1 << 50])
        store.update([5], [{"n": -5, "tag": "late"}])


def log(path: Path) -> None:
    """A writer that was killed: a log behind the root, and a commit that was cut off."""
    with VectorStore.create(path, dim=6, overwrite=True) as store:
        store.add(vectors(200, 6) / 2, metadata={"n": range(200)})
        store.add(vectors(3, 6), ids=[5, 300, 301], metadata=[{"n": -5}, {"n": 1, "tag": "late"}, {}])
        store.delete([300, 17])
        store.add(vectors(1, 6) * 2, ids=[17])
        store.update([8], [{"tag": "changed"}])
        store.add(vectors(1, 6), ids=[9])
        content = path.read_bytes()
    path.write_bytes(content[:-70])


def copies(path: Path) -> None:
    """Equal vectors: the graph is one of distinct ones, the copies hang on it."""
    with VectorStore.create(path, dim=8, overwrite=True) as store:
        store.add(np.repeat(vectors(12, 8), 10, axis=0))
        store.build_index("hnsw", m=4, ef_construction=40)


def whole(path: Path) -> None:
    """Written at once, with notes: the one file whose very bytes are the same every time."""
    rows = [
        {
            "collection": "traj_episodes",
            "key": f"e{n // 5}@{n % 5}",
            "episode_id": f"e{n // 5}",
            "step": n % 5,
            "ts_ns": n % 5 * 20_000_000,
        }
        for n in range(15)
    ]
    batches = [(vectors(15, 4)[:10], rows[:10]), (vectors(15, 4)[10:], rows[10:])]
    write_vectors(path, batches, metric="l2", notes={"embedder": "state", "per": "step"}, overwrite=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "golden" / "rvf"
    folder.mkdir(parents=True, exist_ok=True)
    for make in (plain, indexed, parts, codes, commits, log, copies, whole):
        name = make.__name__
        if (folder / f"{name}.rvf").exists():
            continue
        make(folder / f"{name}.rvf")
        (folder / f"{name}.json").write_text(json.dumps(describe(folder / f"{name}.rvf")) + "\n")


if __name__ == "__main__":
    main()
