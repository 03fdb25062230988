"""Metadata as columns: only what is needed is read, changes are appended, conditions are SQL."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import DatasetError, SchemaMismatchError
from warpdata.search.file.metadata import Metadata, encode_records
from warpdata.search.store import VectorStore

DIM = 4
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=6),
    "raw": st.binary(max_size=6),
    "n": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
}
KINDS = {"text": "str", "raw": "bytes", "n": "i64", "f": "f64", "flag": "bool"}
RECORD = st.fixed_dictionaries({}, optional=VALUES)


def vectors(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


@settings(max_examples=enough_examples(60), deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 1500), RECORD, max_size=20), max_size=6), st.randoms())
def test_the_newest_row_of_an_id_counts(layers: list[dict[int, Any]], random: Any) -> None:
    """Segments behind each other, and all of them merged, against a dict."""
    truth: dict[int, Any] = {}
    known = Metadata([])
    for layer in layers:
        keys = sorted(layer)
        payload = encode_records(np.array(keys, np.uint64), [layer[key] for key in keys], KINDS, {"by": "me"})
        known = known.with_segment(payload)
        truth |= layer
    ids = np.array(sorted({*truth, 7, 900}), np.uint64)
    expected = [truth.get(key, {}) for key in ids.tolist()]
    assert known.records(ids) == expected
    merged = Metadata([]).with_segment(known.merged())
    assert merged.records(ids) == expected
    some = np.array(random.sample(ids.tolist(), len(ids)), np.uint64)
    assert merged.records(some) == [truth.get(key, {}) for key in some.tolist()]
    for name in known.fields:
        assert merged.column(name, ids).to_pylist() == [record.get(name) for record in expected]


def test_ten_of_many_rows_are_read_from_few_bytes(tmp_path: Path) -> None:
    count = 60_000
    path = tmp_path / "m.rvf"
    about = {
        "label": [f"label {n % 90}" for n in range(count)],
        "n": range(count),
        "score": np.arange(count) / 3,
    }
    with VectorStore.create(path, dim=1, durable=False) as store:
        store.add(np.arange(count, dtype=np.float32)[:, None], metadata=about)
        store.compact()
    store = VectorStore.open(BytesRangeReader(path.read_bytes()))
    sizes = {segment["type"]: segment["bytes"] for segment in store.segments()}
    assert store.fields == {"label": "str", "n": "i64", "score": "f64"}
    wanted = np.linspace(0, count - 1, 10).astype(int)
    before = store.stats()["bytes_read"]
    rows = store._searcher.metadata.records(wanted.astype(np.uint64))
    assert rows == [{"label": f"label {n % 90}", "n": n, "score": n / 3} for n in wanted.tolist()]
    assert store.stats()["bytes_read"] - before <= 0.12 * sizes["META"], "ten of 118 pieces of each column"
    before = store.stats()["bytes_read"]
    store._searcher.metadata.mask("n < 5", np.arange(100, dtype=np.uint64))
    assert store.stats()["bytes_read"] - before <= 0.45 * sizes["META"], "one column"


def test_hits_come_with_their_metadata(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=DIM) as store:
        x = vectors(30)
        store.add(x, metadata=[{"n": n, "tag": "ab"[n % 2]} for n in range(30)])
        ids, _, rows = store.search(x[4], 3, columns=["tag"])
        assert rows == [{"tag": "ab"[number % 2]} for number in ids.tolist()]
        many, _, several = store.search(x[:2], 2, columns=["n", "tag"])
        assert [[row["n"] for row in rows] for rows in several] == many.tolist()
        with pytest.raises(KeyError, match="no metadata field 'tga'"):
            store.search(x[0], columns=["tga"])
        assert store.metadata([3], columns=["n"]) == [{"n": 3}]


def test_scroll_and_delete_by_condition(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=DIM) as store:
        store.add(vectors(50), metadata=[{"n": n, "odd": n % 2 == 1} for n in range(50)])
        page = store.scroll("odd", columns=["n"], limit=4)
        assert page == [{"id": n, "n": n} for n in (1, 3, 5, 7)]
        assert store.scroll("odd", columns=["n"], limit=2, after=7)[0]["id"] == 9
        assert len(store.scroll(limit=1000)) == 50
        assert store.delete(where="odd and n > 10") == 20
        assert store.delete(where="n > 1000") == 0
        assert [row["n"] for row in store.scroll("n > 8", limit=3)] == [9, 10, 12]
        for wrong in ({}, {"ids": [1], "where": "odd"}):
            with pytest.raises(ValueError, match="either ids or where"):
                store.delete(**wrong)  # type: ignore[arg-type]
        with pytest.raises(DatasetError):
            store.delete(where="nothing = 1")
    with VectorStore.open(tmp_path / "s.rvf") as again:
        assert len(again) == 30


def test_a_key_names_vectors(tmp_path: Path) -> None:
    path = tmp_path / "k.rvf"
    with VectorStore.create(path, dim=DIM, key="uuid") as store:
        x = vectors(5)
        ids = store.add(x, metadata=[{"uuid": f"u-{n}", "n": n} for n in range(5)])
        again = store.add(x[:2] + 9, metadata=[{"uuid": "u-3", "n": 33}, {"uuid": "u-9", "n": 9}])
        assert again.tolist() == [ids[3], 5]
        assert np.array_equal(store.get(["u-3", "u-1"]), np.stack([x[0] + 9, x[1]]))
        assert store.metadata(["u-9"]) == [{"uuid": "u-9", "n": 9}]
        store.update(["u-0"], [{"n": 100}])
        assert store.delete(["u-1"]) == 1
        with pytest.raises(KeyError, match="no vector with key 'u-1'"):
            store.get(["u-1"])
        for rows in (None, [{"n": 1}], [{"uuid": 5}]):
            with pytest.raises((ValueError, SchemaMismatchError)):
                store.add(x[:1], metadata=rows)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="its own text"):
            store.add(x[:2], metadata=[{"uuid": "same"}] * 2)
    with VectorStore.open(path) as again_open:
        assert (again_open.key, len(again_open)) == ("uuid", 5)
        assert again_open.metadata("u-0") == [{"uuid": "u-0", "n": 100}]
    with pytest.raises(ValueError, match="cannot be the key"):
        VectorStore.create(tmp_path / "x.rvf", dim=2, key="id")


def test_keys_stay_with_their_vectors(tmp_path: Path) -> None:
    path, x, names = tmp_path / "k.rvf", vectors(9), [uuid.uuid4() for _ in range(3)]
    with VectorStore.create(path, dim=DIM, key="name", durable=False) as store:
        store.add(x[:3], metadata=[{"name": name, "n": n} for n, name in enumerate(names)])
        assert np.array_equal(store.get(names[::-1]), x[2::-1])
        assert store.metadata(names[1]) == [{"name": str(names[1]), "n": 1}]
        assert store.add(x[3:5], ids=["a", "b"], metadata={"n": [3, 4]}).tolist() == [3, 4]
        assert store.metadata(np.array(["b", "a"]), ["name"]) == [{"name": "b"}, {"name": "a"}]
        assert store.replace(["a", "unknown"], x[5:7], [{"name": "a"}, {"name": "c"}]).tolist() == [3, 5]
        assert len(store) == 6
        assert store.delete(["unknown", "b"]) == 1
        assert store.search(x[0], 9, where=[names[0], "c", "unknown"])[0].tolist() in ([0, 5], [5, 0])
        assert store.add(x[7:8], ids=["b"]).tolist() == [6]
        for wrong in (
            lambda: store.update(["a"], [{"name": "z"}]),
            lambda: store.add(x[:1], ids=[0], metadata=[{"name": "z"}]),
            lambda: store.add(x[:1], ids=[99], metadata=[{"name": "a"}]),
            lambda: store.add(x[:2], ids=["q", "q"]),
        ):
            with pytest.raises(ValueError, match="key"):
                wrong()
        assert store.delete(where="name = 'b'") == 1
        kept = {row["name"]: row["id"] for row in store.scroll()}
        assert kept == {**{str(name): n for n, name in enumerate(names)}, "a": 3, "c": 5}
    with VectorStore.open(path, mode="a") as again:
        assert {row["name"]: row["id"] for row in again.scroll()} == kept
        assert again.add(x[8:], ids=["c"]).tolist() == [5]


@settings(max_examples=enough_examples(20), deadline=None)
@given(st.data())
def test_conditions_agree_with_plain_python(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(RECORD, min_size=1, max_size=30))
    path = tmp_path_factory.mktemp("sql") / "c.rvf"
    with VectorStore.create(path, dim=DIM, durable=False) as store:
        store.add(vectors(len(rows)), metadata=rows)
        if "n" not in store.fields or "flag" not in store.fields:
            return
        bound = data.draw(st.integers(-5, 5))
        changed = data.draw(st.integers(0, len(rows) - 1))
        store.update([changed], [{"n": bound + 1, "flag": None}])
        rows[changed] = {name: value for name, value in rows[changed].items() if name != "flag"} | {
            "n": bound + 1
        }
        expected = [i for i, row in enumerate(rows) if row.get("n", bound) > bound or row.get("flag")]
        assert sorted(store.search(np.zeros(DIM), 99, where=f"n > {bound} or flag")[0].tolist()) == expected
    with VectorStore.open(path) as again:
        assert [row["id"] for row in again.scroll(f"n > {bound} or flag")] == expected
