"""Conditions on metadata: SQL over its fields, and right at any selectivity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.errors import DatasetError
from warpdata.search.store import VectorStore

ROWS = [
    {"n": 1, "f": 0.5, "s": "cat", "b": True, "raw": b"x"}, {"n": 2, "f": -1.5, "s": "dog", "b": False},
    {"n": 3, "s": "ant"}, {}, {"n": -7, "f": 2.0, "s": "cat", "raw": b"y"},
]  # fmt: skip


@pytest.fixture(scope="module", params=["memory", "parts"])
def select(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("f") / "s.rvf"
    x = np.arange(80, dtype=np.float32).reshape(5, 16)
    with VectorStore.create(path, dim=16) as store:
        store.add(x, metadata=ROWS)
        store.build_index("ivf")
    with VectorStore.open(path) as store:
        if request.param == "memory":
            store.warm()
        yield lambda where: sorted(store.search(x[0], 5, where=where)[0].tolist())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = 2", [1]), ("n == 2", [1]), ("n <> 2", [0, 2, 4]), ("n is distinct from 2", [0, 2, 3, 4]),
        ("n > 1", [1, 2]), ("n between 2 and 3", [1, 2]), ("s = 'cat'", [0, 4]), ("s like '%t'", [0, 2, 4]),
        ("s in ('ant', 'dog')", [1, 2]), ("not s = 'cat'", [1, 2]), ("b", [0]), ("b = false", [1]),
        ("f > 0 and s = 'cat'", [0, 4]), ("f < 0 or n = 3", [1, 2]), ("n is null", [3]),
        ("raw = 'y'::blob", [4]), ("id in (0, 3)", [0, 3]), ("id >= 3 or \"n\" = 1", [0, 3, 4]), ("n > 1.5", [1, 2]),
    ],
)  # fmt: skip
def test_conditions(select: Any, condition: str, expected: list[int]) -> None:
    assert select(condition) == expected


@pytest.mark.parametrize(
    "wrong", ["n =", "", "unknown = 1", "n = 'text'", "select 1", "n = 1; drop table x", "n in (select 1)"]
)
def test_wrong_conditions(select: Any, wrong: str) -> None:
    with pytest.raises(DatasetError):
        select(wrong)


@pytest.mark.parametrize("wrong", [5, {"n": 1}, 2.5])
def test_what_is_no_condition(select: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match="SQL condition or a list of ids"):
        select(wrong)


def test_names_that_need_quotes(tmp_path: Path) -> None:
    names = ["joint.pos", "two words", "select", "Ä", 'a"b', "N", "in"]
    with VectorStore.create(tmp_path / "q.rvf", dim=2) as store:
        store.add(np.eye(2), metadata=[dict.fromkeys(names, 1), dict.fromkeys(names, 2)])
        for name in names:
            quoted = '"' + name.replace('"', '""') + '"'
            assert store.search([1.0, 0.0], where=f"{quoted} = 2")[0].tolist() == [1]
        assert store.search([1.0, 0.0], where={1, 7})[0].tolist() == [1]


def test_times_in_nanoseconds_keep_their_digits(tmp_path: Path) -> None:
    times = [1_763_000_000_123_456_789 + k for k in range(3)]
    with VectorStore.create(tmp_path / "t.rvf", dim=1) as store:
        store.add([[0.0], [1.0], [2.0]], metadata={"ts_ns": times})
        for number, time in enumerate(times):
            assert store.search([0.0], where=f"ts_ns = {time}")[0].tolist() == [number]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4000, 16)).astype(np.float32)
    path: Path = tmp_path_factory.mktemp("f") / "f.rvf"
    with VectorStore.create(path, dim=16) as store:
        store.add(x, metadata={"n": range(4000), "g": [f"g{i % 10}" for i in range(4000)]})
        store.build_index("hnsw", ef_construction=60)
        store.delete(range(0, 4000, 11))
        yield store, x


@pytest.mark.parametrize("limit", [0, 1, 5, 30, 60, 200, 700, 2000, 4000])
def test_right_at_any_selectivity(indexed: Any, limit: int) -> None:
    store, x = indexed
    rng = np.random.default_rng(limit)
    allowed = np.array([i for i in range(4000) if i < limit and i % 11], int)
    hits = wanted = 0
    for query in rng.normal(size=(10, 16)).astype(np.float32):
        ids, distances = store.search(query, 10, ef=200, where=f"n < {limit}")
        exact, _ = store.search(query, 10, where=f"n < {limit}", exact=True)
        away = ((x[allowed] - query) ** 2).sum(axis=1)
        expected = allowed[np.argsort(away)][:10]
        assert len(ids) == min(10, len(allowed))
        assert set(ids.tolist()) <= set(allowed.tolist())
        assert exact.tolist() == expected.tolist()
        assert (np.diff(distances) >= 0).all()
        hits += len(set(ids.tolist()) & set(expected.tolist()))
        wanted += len(expected)
    assert hits >= 0.97 * wanted


@settings(max_examples=enough_examples(20))
@given(st.lists(st.integers(0, 5000), max_size=30))
def test_id_filters(indexed: Any, ids: list[int]) -> None:
    store, x = indexed
    live = {i for i in ids if i < 4000 and i % 11}
    found, _ = store.search(x[5], 50, where=np.array(ids, np.int64))
    assert set(found.tolist()) == live
    assert set(store.search(x[5], 50, where=ids)[0].tolist()) == live
