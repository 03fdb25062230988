"""A writer belongs to one process: pickling it is an error of ours, never a copy that writes the same files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd

CHANNELS = [{"id": "a", "dtype": "f32", "shape": []}]
WRITERS: dict[str, Callable[[Path], Any]] = {
    "recorder": lambda folder: wd.record(folder / "root"),
    "stream": lambda folder: wd.WShardStreamWriter(folder / "s.wshard", "e", channels=CHANNELS),
    "chunks": lambda folder: wd.ChunkedEpisodeWriter(folder / "chunks", "e", 2),
    "corpus": lambda folder: wd.CorpusWriter(folder / "corpus", width=4),
    "activations": lambda folder: wd.ActivationShardWriter(folder / "a.shard", 4),
    "dataset": lambda folder: wd.DatasetBuilder("lab/x", catalog=folder / "catalog"),
    "vectors": lambda folder: wd.VectorStore.create(folder / "v.rvf", dim=4),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_is_not_pickled(kind: str, tmp_path: Path) -> None:
    writer = WRITERS[kind](tmp_path)
    try:
        with pytest.raises(TypeError, match=r"cannot (be pickled|pickle a store open for writing)"):
            pickle.dumps(writer)
    finally:
        for name in ("abort", "discard", "close"):
            if hasattr(writer, name):
                getattr(writer, name)()
                break
