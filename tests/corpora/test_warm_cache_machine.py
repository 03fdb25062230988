"""The warm cache against a dictionary: puts, checkpoints, crashes, compaction under a size limit."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.formats.test_rowstate import TOTAL, everything, warm
from tests.sweeps import enough_examples
from warpdata.corpora.warm_cache import RowWarmCache, WarmRows
from warpdata.errors import ConflictError, LimitExceededError, WriterClosedError

LIMIT = 3000


class WarmCacheMachine(RuleBasedStateMachine):
    """Under the limit nothing may be missing; what is there is always the last state put."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.cache = self.opened()
        self.now: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}

    def opened(self) -> RowWarmCache:
        return RowWarmCache(self.folder, model="m", total_rows=TOTAL, max_bytes=LIMIT)

    @rule(
        rows=st.lists(st.tuples(st.integers(0, TOTAL - 1), st.integers(0, 5), st.integers(0, 9)), max_size=6)
    )
    def put(self, rows: list[tuple[int, int, int]]) -> None:
        states = [(row, [row / 2 + k for k in range(n)], list(range(n)), i) for row, n, i in rows]
        self.cache.put(warm(states))
        for row, latents, active, iterations in states:
            self.now[row] = (latents, active, iterations)
        found = everything(self.cache)
        for row, _, _, _ in states:
            assert found[row] == self.now[row], "the newest states are never evicted"

    @rule()
    def checkpoint(self) -> None:
        self.cache.checkpoint()
        self.saved = everything(self.cache)
        logs = [each.name for each in self.cache.folder.iterdir() if each.name.startswith("log")]
        assert len(logs) == 1

    @rule()
    def crash(self) -> None:
        self.cache.close()
        self.cache = self.opened()
        assert everything(self.cache) == self.saved, "reopening gives exactly the last checkpoint"
        self.now = dict(self.saved)

    @invariant()
    def holds_only_what_was_put(self) -> None:
        found = everything(self.cache)
        assert all(found[row] == self.now[row] for row in found)
        assert self.cache.log_bytes <= LIMIT

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.folder)


TestWarmCache = WarmCacheMachine.TestCase
TestWarmCache.settings = settings(max_examples=enough_examples(25), stateful_step_count=25, deadline=None)


def test_models_do_not_see_each_other(tmp_path: Path) -> None:
    with RowWarmCache(tmp_path, model="a", total_rows=5) as cache:
        cache.put(warm([(1, [1.0], [2], 3)]))
    with RowWarmCache(tmp_path, model="b", total_rows=5) as cache:
        assert everything(cache) == {}


def test_wrong_use(tmp_path: Path) -> None:
    cache = RowWarmCache(tmp_path, model="a", total_rows=5, max_bytes=500)
    with pytest.raises(ValueError, match="row ids are from 0 to 4"):
        cache.get([5])
    with pytest.raises(TypeError, match="integers"):
        cache.get([0.5])
    with pytest.raises(ValueError, match="different lengths"):
        cache.put(
            WarmRows(*[np.zeros(1, np.uint64)] * 2, np.zeros(0), np.zeros(3, np.int64), *[np.zeros(1)] * 2)
        )
    with pytest.raises(LimitExceededError):
        cache.put(warm([(1, [0.0] * 100, [], 0)]))
    cache.close()
    with pytest.raises(WriterClosedError):
        cache.get([1])
    with pytest.raises(LimitExceededError):
        with RowWarmCache(tmp_path, model="c", total_rows=5) as other:
            other.put(warm([(4, [], [], 0)]))
        RowWarmCache(tmp_path, model="c", total_rows=4)


def test_a_killed_checkpoint_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RowWarmCache(tmp_path, model="a", total_rows=5) as cache:
        cache.put(warm([(1, [1.0], [2], 3)]))
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(os, "replace", lambda *_: os._exit(0))
        cache = RowWarmCache(tmp_path, model="a", total_rows=5)
        cache.put(warm([(2, [9.0], [9], 9)]))
        cache.checkpoint()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with RowWarmCache(tmp_path, model="a", total_rows=5) as cache:
        assert everything(cache) == {1: ([1.0], [2], 3)}


def test_a_child_reads_and_does_not_write(tmp_path: Path) -> None:
    cache = RowWarmCache(tmp_path, model="a", total_rows=5)
    cache.put(warm([(1, [1.0], [2], 3)]))
    pid = os.fork()
    if pid == 0:
        is_read = everything(cache) == {1: ([1.0], [2], 3)}
        try:
            cache.put(warm([(2, [9.0], [9], 9)]))
        except WriterClosedError:
            os._exit(0 if is_read else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    cache.put(warm([(3, [4.0], [5], 6)]))
    assert everything(cache) == {1: ([1.0], [2], 3), 3: ([4.0], [5], 6)}
    cache.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second one would cut off what the first has put since its last checkpoint."""
    with RowWarmCache(tmp_path, model="a", total_rows=5) as cache:
        cache.put(warm([(1, [1.0], [2], 3)]))
        with pytest.raises(ConflictError, match="another process"):
            RowWarmCache(tmp_path, model="a", total_rows=5)
        with RowWarmCache(tmp_path, model="b", total_rows=5) as other:
            assert everything(other) == {}
        cache.put(warm([(2, [], [], 0)]))
    with RowWarmCache(tmp_path, model="a", total_rows=5) as cache:
        assert everything(cache) == {1: ([1.0], [2], 3), 2: ([], [], 0)}
    assert not list(tmp_path.rglob("lock"))
