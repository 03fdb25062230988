"""Filters: parsed, evaluated like plain Python, and right at any selectivity."""

from __future__ import annotations

from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.search.filters import All, AnyOf, Compare, Filter, Not, fields_of, parse_filter
from warpdata.search.metadata import FilterColumns, MetadataTable
from warpdata.search.store import VectorStore

ROWS = [
    {"n": 1, "f": 0.5, "s": "cat", "b": True, "raw": b"x"}, {"n": 2, "f": -1.5, "s": "dog", "b": False},
    {"n": 3, "s": "ant"}, {}, {"n": -7, "f": 2.0, "s": "cat", "raw": b"y"},
]  # fmt: skip


def table() -> FilterColumns:
    made = MetadataTable()
    change = made.added(range(5), ROWS)
    assert change is not None
    made.apply(change)
    return FilterColumns(made, np.arange(5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n == 2", [1]), ("n != 2", [0, 2, 3, 4]), ("n > 1", [1, 2]), ("1 < n <= 3", [1, 2]),
        ("3 > n", [0, 1, 4]), ("s == 'cat'", [0, 4]), ("s < 'cat'", [2]), ("s >= 'cat'", [0, 1, 4]),
        ("s in ['ant', 'dog']", [1, 2]), ("s not in ['cat']", [1, 2, 3]), ("not s == 'cat'", [1, 2, 3]),
        ("b == true", [0]), ("b == False", [1]),
        ("f > 0 and s == 'cat'", [0, 4]), ("f < 0 or n == 3", [1, 2]), ("n == null", [3]),
        ("n != None", [0, 1, 2, 4]),
        ("raw == b'y'", [4]), ("n in [1, 2.0, 99]", [0, 1]), ("id in [0, 3]", [0, 3]), ("id >= 3", [3, 4]),
        ("not (n > 0 or s == 'cat')", [3]), ("n in [9223372036854775808]", []), ("f == 2", [4]),
        ("n > 1.5", [1, 2]),
        ("n in [1, null]", [0, 3]),
    ],
)  # fmt: skip
def test_text_filters(text: str, expected: list[int]) -> None:
    assert np.flatnonzero(table().mask(parse_filter(text))).tolist() == expected


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"s": "cat"}, [0, 4]), ({"n": {">": 1, "<=": 3}}, [1, 2]), ({"n": {"$gte": 2}}, [1, 2]),
        ({"or": [{"n": 1}, {"s": "ant"}]}, [0, 2]), ({"and": [{"s": "cat"}, {"not": {"n": 1}}]}, [4]),
        ({"s": {"in": {"ant", "dog"}}}, [1, 2]), ({"s": "cat", "n": 1}, [0]), ({}, [0, 1, 2, 3, 4]),
        ({"n": {"in": np.array([1, 3])}}, [0, 2]), ({"n": np.int64(2)}, [1]),
    ],
)  # fmt: skip
def test_mapping_filters(mapping: dict[str, Any], expected: list[int]) -> None:
    assert np.flatnonzero(table().mask(parse_filter(mapping))).tolist() == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "n ==", "n + 1 == 2", "__import__('os')", "n == x", "f(n) == 1", "'a' in s", "1 == 2", "n is 2", "",
        {"n": {"~": 3}}, {"and": "n"}, {"n": {"in": "text"}}, {"n": [1]}, {"n": object()}, "(" * 300,
    ],
)  # fmt: skip
def test_wrong_filters_are_a_value_error(wrong: Any) -> None:
    with pytest.raises(ValueError):
        parse_filter(wrong)


def test_more_wrong_filters() -> None:
    with pytest.raises(TypeError):
        parse_filter(5)  # type: ignore[arg-type]
    for text in ("unknown == 1", "n == 'text'", "s == 4", "s < 4", "s == b'x'"):
        with pytest.raises(ValueError):
            table().mask(parse_filter(text))
    deep: Any = {"n": 1}
    for _ in range(100):
        deep = {"not": deep}
    with pytest.raises(ValueError, match="deeply"):
        parse_filter(deep)


LEAVES: st.SearchStrategy[Filter] = st.builds(
    Compare, st.just("n"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-8, 4)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda p: All(tuple(p))),
        st.lists(inner, min_size=1, max_size=3).map(lambda p: AnyOf(tuple(p))),
        inner.map(Not),
    ),
    max_leaves=6,
)


def holds(tree: Filter, row: dict[str, Any]) -> bool:
    if isinstance(tree, All):
        return all(holds(part, row) for part in tree.parts)
    if isinstance(tree, AnyOf):
        return any(holds(part, row) for part in tree.parts)
    if isinstance(tree, Not):
        return not holds(tree.part, row)
    value = row.get("n")
    if value is None:
        return tree.operator == "!="
    return bool(eval(f"{value} {tree.operator} {tree.value}"))


@given(TREES)
def test_masks_agree_with_python(tree: Filter) -> None:
    assert table().mask(tree).tolist() == [holds(tree, row) for row in ROWS]
    assert fields_of(tree) == {"n"}


_EDGES = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 1_763_000_000_123_456_789]
_WHOLE = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**63 - 1)
_FLOATS = _WHOLE.map(float) | st.floats(allow_nan=False, allow_infinity=False)
_ANY = _WHOLE | _FLOATS | st.floats() | st.sampled_from([10**400, -(10**400), 2**64])


@given(
    columns=st.lists(st.tuples(_WHOLE, _FLOATS), min_size=1, max_size=8),
    name=st.sampled_from(["whole", "float"]),
    operator=st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    value=_ANY,
)
@settings(max_examples=enough_examples(150))
def test_numbers_compare_as_in_python(columns: Any, name: str, operator: str, value: float) -> None:
    table = MetadataTable()
    rows = [{"whole": whole, "float": number} for whole, number in columns]
    change = table.added(range(len(rows)), rows)
    assert change is not None
    table.apply(change)
    masks = FilterColumns(table, np.arange(len(rows)))
    compare = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}[operator]
    assert masks.mask(Compare(name, operator, value)).tolist() == [compare(row[name], value) for row in rows]
    assert masks.mask(Compare(name, "in", (value, 0.5))).tolist() == [
        row[name] in (value, 0.5) for row in rows
    ]


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
        ids, distances = store.search(query, 10, ef=200, filter=f"n < {limit}")
        exact, _ = store.search(query, 10, filter=f"n < {limit}", exact=True)
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
    found, _ = store.search(x[5], 50, filter=np.array(ids, np.int64))
    assert set(found.tolist()) == live
    assert set(store.search(x[5], 50, filter=ids)[0].tolist()) == live
