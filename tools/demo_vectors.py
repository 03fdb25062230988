"""The vector part of the demo: a file of vectors, indexed, searched, filtered, signed, checked."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from warpdata.errors import MissingExtraError


def main(folder: str | Path) -> Path:
    """Make a vector file in `folder`, use it, and return its path."""
    path = Path(folder) / "frames.rvf"
    frames, scene = sample_frames()
    with wd.VectorStore.create(path, dim=64, metric="cosine", overwrite=True) as store:
        store.add(frames, metadata={"scene": scene, "frame": range(len(frames))})
        print(f"  vectors   {len(store)} x {store.dim} in {path.name}")
        attempt("index", lambda: store.build_index("hnsw", ef_construction=60))
    ask(path, frames[7])
    attempt("signed", lambda: sign(path))
    return path


def sample_frames() -> tuple[Any, Any]:
    """Frames of forty scenes, as an encoder would see them."""
    rng = np.random.default_rng(0)
    scenes = rng.normal(size=(40, 64)).astype(np.float32)
    scene = rng.integers(0, 40, 20_000)
    return (scenes[scene] + 0.3 * rng.normal(size=(20_000, 64))).astype(np.float32), scene


def ask(path: Path, query: Any) -> None:
    """The first query of a file, then one with a filter."""
    start = time.perf_counter()
    with wd.VectorStore.open(path) as store:
        ids, _ = store.search(query, k=5)
        about = store.stats()
        share = about["bytes_read"] / about["file_bytes"]
        took_ms = 1e3 * (time.perf_counter() - start)
        print(f"  first     {ids.tolist()} in {took_ms:.1f} ms from {share:.1%} of the file")
        same, _ = store.search(query, k=5, where="scene = 3 and frame < 5000")
        print(f"  filtered  {same.tolist()}")


def sign(path: Path) -> None:
    """Sign every segment and check the signatures."""
    key = wd.SigningKey.generate("ed25519")
    with wd.VectorStore.open(path, mode="a") as store:
        store.sign(key)
        damages = store.verify([key.public])
        print(f"  signed    {len(store.segments())} segments, {len(damages)} damaged")


def attempt(what: str, work: Callable[[], None]) -> None:
    """Do what needs an optional library, or say which one."""
    try:
        work()
    except MissingExtraError as error:
        print(f"  {what:<9} skipped: {error}. {error.hint}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(name)
