"""The vector part of the demo: a file of vectors, indexed, searched, filtered, signed, checked."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import warpdata as wd


def main(folder: str | Path) -> Path:
    """Make a vector file in `folder`, use it, and return its path."""
    path = Path(folder) / "frames.rvf"
    rng = np.random.default_rng(0)
    scenes = rng.normal(size=(40, 64)).astype(np.float32)
    scene = rng.integers(0, 40, 20_000)
    frames = (scenes[scene] + 0.3 * rng.normal(size=(20_000, 64))).astype(np.float32)
    with wd.VectorStore.create(path, dim=64, metric="cosine", overwrite=True) as store:
        store.add(frames, metadata={"scene": scene, "frame": range(20_000)})
        store.build_index("hnsw", ef_construction=60)
        print(f"  vectors   {len(store)} x {store.dim} with an index in {path.name}")
    start = time.perf_counter()
    with wd.VectorStore.open(path) as store:
        ids, _ = store.search(frames[7], k=5)
        about = store.stats()
        share = about["bytes_read"] / about["file_bytes"]
        took_ms = 1e3 * (time.perf_counter() - start)
        print(f"  first     {ids.tolist()} in {took_ms:.1f} ms from {share:.1%} of the file")
        same, _ = store.search(frames[7], k=5, filter="scene == 3 and frame < 5000")
        print(f"  filtered  {same.tolist()}")
    key = wd.SigningKey.generate("ed25519")
    with wd.VectorStore.open(path, mode="a") as store:
        store.sign(key)
        damages = store.verify([key.public])
        print(f"  signed    {len(store.segments())} segments, {len(damages)} damaged")
    return path


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        main(name)
