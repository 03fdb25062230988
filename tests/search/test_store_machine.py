"""A vector store against a dict of vectors: add, delete, compact, index, reopen, crash, search."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sweeps import enough_examples
from warpdata.search.store import VectorStore

faiss.omp_set_num_threads(1)
DIM = 16
IDS = st.integers(0, 40)


class VectorStoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "s.rvf"
        self.model: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.next_id = 0
        self.rng = np.random.default_rng(0)
        self.history: list[tuple[int, dict[int, tuple[Any, dict[str, Any]]]]] = []

    @initialize(metric=st.sampled_from(["l2", "ip", "cosine"]))
    def create(self, metric: str) -> None:
        self.metric = metric
        self.store = VectorStore.create(self.path, dim=DIM, metric=metric, durable=False)
        self.note()

    def note(self) -> None:
        self.history.append((self.path.stat().st_size, dict(self.model)))

    @rule(ids=st.lists(IDS, min_size=1, max_size=6, unique=True), tag=st.integers(0, 3))
    def add(self, ids: list[int], tag: int) -> None:
        x = self.rng.normal(size=(len(ids), DIM)).astype(np.float32)
        self.store.add(x, ids=ids, metadata=[{"tag": tag}] * len(ids))
        self.model.update({i: (row, {"tag": tag}) for i, row in zip(ids, x, strict=True)})
        self.next_id = max(self.next_id, max(ids) + 1)
        self.note()

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        x = self.rng.normal(size=(count, DIM)).astype(np.float32)
        ids = self.store.add(x)
        assert ids.tolist() == list(range(self.next_id, self.next_id + count))
        self.model.update({int(i): (row, {}) for i, row in zip(ids, x, strict=True)})
        self.next_id += count
        self.note()

    @rule(ids=st.lists(IDS, min_size=1, max_size=8))
    def delete(self, ids: list[int]) -> None:
        gone = set(ids) & set(self.model)
        assert self.store.delete(ids) == len(gone)
        for each in gone:
            del self.model[each]
        self.note()

    @rule(ids=st.lists(IDS, min_size=1, max_size=8), count=st.integers(0, 4))
    def replace(self, ids: list[int], count: int) -> None:
        x = self.rng.normal(size=(count, DIM)).astype(np.float32)
        new = self.store.replace(ids, x, metadata=[{"tag": 2}] * count)
        assert new.tolist() == list(range(self.next_id, self.next_id + count))
        self.model = {i: row for i, row in self.model.items() if i not in ids}
        self.model.update({int(i): (row, {"tag": 2}) for i, row in zip(new, x, strict=True)})
        self.next_id += count
        self.note()

    @precondition(lambda self: self.model)
    @rule(value=st.integers(0, 3))
    def update(self, value: int) -> None:
        chosen = sorted(self.model)[:2]
        self.store.update(chosen, [{"tag": value}] * len(chosen))
        for each in chosen:
            self.model[each] = (self.model[each][0], {**self.model[each][1], "tag": value})
        self.note()

    @rule(kind=st.sampled_from(["hnsw", "ivf", "flat", "compact"]))
    def rewrite(self, kind: str) -> None:
        if kind == "compact":
            self.store.compact()
        else:
            self.store.build_index(kind)
        self.history.clear()
        self.note()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = VectorStore.open(self.path, mode="a", durable=False)

    @rule(share=st.floats(0, 1))
    def crash_in_the_last_commit(self, share: float) -> None:
        if len(self.history) < 2:
            return
        self.store.close()
        (start, before), (end, _) = self.history[-2:]
        with open(self.path, "r+b") as file:
            file.truncate(start + int(share * max(0, end - start - 1)))
        self.model = dict(before)
        self.history.pop()
        self.store = VectorStore.open(self.path, mode="a", durable=False)
        self.next_id = self.store._appender.state.next_id  # type: ignore[union-attr]
        assert self.next_id > max(self.model, default=-1)

    @rule(k=st.integers(1, 12), filtered=st.booleans(), exact=st.booleans())
    def search(self, k: int, filtered: bool, exact: bool) -> None:
        query = self.rng.normal(size=DIM).astype(np.float32)
        allowed = {i: v for i, (v, m) in self.model.items() if not filtered or m.get("tag") == 1}
        known = any("tag" in m for _, m in self.model.values())
        if filtered and not known:
            return
        ids, distances = self.store.search(
            query, k, ef=256, where="tag = 1" if filtered else None, exact=exact
        )
        assert len(ids) == min(k, len(allowed))
        assert len(set(ids.tolist())) == len(ids)
        expected = sorted(self.distance(query, v) for v in allowed.values())[: len(ids)]
        for i, d in zip(ids.tolist(), distances.tolist(), strict=True):
            assert abs(d - self.distance(query, allowed[i])) < 1e-3
        if exact:
            assert np.allclose(distances, expected, atol=1e-3)

    def distance(self, q: Any, v: Any) -> float:
        q, v = q.astype(float), v.astype(float)
        if self.metric == "l2":
            return float(((q - v) ** 2).sum())
        if self.metric == "ip":
            return float(-(q @ v))
        return float(1 - q @ v / (np.linalg.norm(q) * np.linalg.norm(v)))

    @invariant()
    def holds_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert len(self.store) == len(self.model)
        with VectorStore.open(self.path) as reader:
            assert reader.ids.tolist() == sorted(self.model)
            ids = sorted(self.model)
            if ids:
                assert np.array_equal(reader.get(ids), np.stack([self.model[i][0] for i in ids]))
                assert reader.metadata(ids) == [self.model[i][1] for i in ids]
        if self.model:
            self.parts_agree(sorted(self.model))

    def parts_agree(self, ids: list[int]) -> None:
        """One vector and one filtered query, each from a store just opened."""
        one, some = ids[len(ids) // 2], ids[::2]
        vector = self.model[one][0]
        with VectorStore.open(self.path) as reader:
            assert np.array_equal(reader.get([one]), vector[None])
        with VectorStore.open(self.path) as reader:
            found, away = reader.search(vector, 3, where=[*some, ids[-1] + 1])
            expected = sorted(self.distance(vector, self.model[i][0]) for i in some)[:3]
            assert set(found.tolist()) <= set(some)
            assert np.allclose(away, expected, atol=1e-3)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert self.store.verify() == []
            self.store.close()
        shutil.rmtree(self.folder)


TestVectorStore = VectorStoreMachine.TestCase
TestVectorStore.settings = settings(
    max_examples=enough_examples(25),
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
"""Without shrinking: a failure shows after seconds, with all of its steps."""
