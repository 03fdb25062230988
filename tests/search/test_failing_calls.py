"""A store whose n-th call of a kind fails, and that goes on: nothing acknowledged is lost, every error is ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.failing_calls import CALLS, failing
from tests.sweeps import thinned
from warpdata.errors import WarpError
from warpdata.search.store import VectorStore

MOST_CALLS = 60
VECTORS = np.random.default_rng(0).normal(size=(80, 8)).astype(np.float32)


class History:
    """Changes of a store: what was acknowledged, and what failed and may be there or not."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.doubtful: set[int] = set()

    def change(self, store: VectorStore, step: int) -> None:
        """Add, delete, index or compact."""
        if step == 5:
            store.build_index()
        elif step == 8:
            store.compact()
        elif step % 4 == 3:
            gone = sorted(self.ids)[:2]
            self._tried(gone, lambda: store.delete(gone))
            self.ids.difference_update(gone)
        else:
            new = list(range(7 * step, 7 * step + 7))
            about = [{"n": number} for number in new]
            self._tried(new, lambda: store.add(VECTORS[new], ids=new, metadata=about))
            self.ids.update(new)

    def _tried(self, ids: list[int], work: Callable[[], object]) -> None:
        try:
            work()
        except WarpError:
            self.doubtful.update(ids)
            raise

    def check(self, store: VectorStore) -> None:
        """The store has what it must have, and nothing else."""
        found = set(store.ids.tolist())
        assert self.ids - self.doubtful <= found <= self.ids | self.doubtful
        for number in sorted(found)[-3:]:
            assert store.search(VECTORS[number], 1)[0].ravel().tolist() == [number]
            assert store.metadata([number]) == [{"n": number}]


@pytest.mark.parametrize("name", CALLS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, name: str) -> None:
    """Also where a call fails after a file that was written anew got the name: the old one is nobody's then."""
    for number in thinned(range(1, MOST_CALLS), most=MOST_CALLS if name in ("fsync", "open") else 10):
        path, history = tmp_path / f"{number}.rvf", History()
        with failing(name, number) as count:
            try:
                store = VectorStore.create(path, dim=8)
            except WarpError:
                continue
            for step in range(11):
                with contextlib.suppress(WarpError):
                    history.change(store, step)
                    history.check(store)
            store.close()
        with VectorStore.open(path, mode="a") as again:
            history.check(again)
            assert not again.verify()
            again.add(VECTORS[:1])
        if count[0] < number:
            assert not history.doubtful
            return
