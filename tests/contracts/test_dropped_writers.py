"""A writer that was dropped after an error holds nothing: the next one goes on in the same process at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.process.locks import FileLock

Target = tuple[Callable[[Path], Any], Callable[[Any], object], Callable[[Path], Any]]


def corpus(path: Path) -> wd.CorpusWriter:
    writer = wd.CorpusWriter(path, 2)
    writer.append(np.zeros((3, 2)))
    return writer


def vectors(path: Path) -> wd.VectorStore:
    store = wd.VectorStore.create(path, dim=2)
    store.add(np.eye(2), [1, 2])
    return store


def dataset(path: Path) -> wd.DatasetBuilder:
    builder = wd.DatasetBuilder("lab/x", catalog=path)
    builder.add_table("main", {"a": [1]})
    return builder


TARGETS: dict[str, Target] = {
    "corpus": (corpus, lambda writer: writer.append(np.zeros((1, 3))), wd.CorpusWriter.reopen),
    "vectors": (
        vectors,
        lambda store: store.add(np.zeros((1, 3))),
        lambda path: wd.VectorStore.open(path, "a"),
    ),
    "dataset": (dataset, lambda builder: builder.add_table("main", {"a": [1]}), dataset),
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Objects go when nothing refers to them, and no later."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", TARGETS)
def test_a_dropped_writer_lets_the_next_one_in(name: str, tmp_path: Path) -> None:
    begin, fail, again = TARGETS[name]
    writer = begin(tmp_path / "target")
    with pytest.raises((wd.WarpError, ValueError)):
        fail(writer)
    del writer
    with again(tmp_path / "target"):
        pass


def test_a_lock_that_nothing_can_release_is_free(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock")
    assert lock is not None
    assert FileLock.take(tmp_path / "lock") is None
    del lock
    assert FileLock.take(tmp_path / "lock") is not None
