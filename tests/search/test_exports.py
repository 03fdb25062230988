"""Exports replace nothing unasked, say what they drop, and shipped programs' files keep what theirs can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import shared_golden
from warpdata.errors import ConflictError, PermissionError_, StoreError
from warpdata.formats.rvf.graph import decode_graph, encode_runtime_graph, renumbered
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.signing import SigningKey
from warpdata.search.store import VectorStore


def rows(count: int, dim: int = 8) -> Any:
    return np.random.default_rng(3).normal(size=(count, dim)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> VectorStore:
    made = VectorStore.create(tmp_path / "s.rvf", dim=8, metric="cosine")
    made.add(rows(300), ids=np.arange(300)[::-1] * 3, metadata={"n": range(300)})
    return made


@pytest.mark.parametrize("dialect", ["wire", "runtime"])
def test_a_file_is_replaced_only_if_asked(store: VectorStore, tmp_path: Path, dialect: str) -> None:
    target = tmp_path / "out.rvf"
    target.write_bytes(b"precious")
    with pytest.raises(ConflictError, match="exists"):
        store.export(target, dialect=dialect)
    assert target.read_bytes() == b"precious"
    assert store.export(target, dialect=dialect, overwrite=True).vectors == 300
    assert len(VectorStore.open(target)) == 300


def test_a_folder_that_is_not_there_is_said_of_the_file_that_was_named(
    store: VectorStore, tmp_path: Path
) -> None:
    target = tmp_path / "none" / "out.rvf"
    for call in (lambda: store.export(target), lambda: VectorStore.create(target, dim=3)):
        with pytest.raises(StoreError, match="the folder does not exist") as refused:
            call()
        assert refused.value.path == str(target)


@pytest.mark.parametrize("dialect", ["wire", "runtime"])
def test_a_store_that_a_writer_holds_is_never_replaced(
    store: VectorStore, tmp_path: Path, dialect: str
) -> None:
    with VectorStore.create(tmp_path / "held.rvf", dim=8) as held:
        held.add(rows(5))
        with pytest.raises(ConflictError, match="another writer"):
            store.export(tmp_path / "held.rvf", dialect=dialect, overwrite=True)
        held.add(rows(5))
    with VectorStore.open(tmp_path / "held.rvf") as again:
        assert len(again) == 10


def test_runtime_files_keep_metadata_and_graph(store: VectorStore, tmp_path: Path) -> None:
    store.build_index("hnsw", m=6, ef_construction=50)
    receipt = store.export(tmp_path / "r.rvf", dialect="runtime")
    assert receipt.kept == ("metadata", "index")
    assert receipt.dropped == ()
    queries = rows(40) + 0.1
    with VectorStore.open(tmp_path / "r.rvf") as back:
        assert back.dialect == "runtime"
        assert back.metadata([0, 897]) == [{"n": 299}, {"n": 0}]
        back.warm()
        back.warm()
        assert back._searcher.base.graph is not None
        found, expected = back.search(queries, 5, ef=64), store.search(queries, 5, ef=64)
        assert np.array_equal(found[0], expected[0])
        assert back.verify() == []


def test_a_file_of_another_program_does_not_lose_its_index_and_history_silently(
    store: VectorStore, tmp_path: Path
) -> None:
    store.build_index("hnsw", m=6, ef_construction=50)
    store.export(tmp_path / "r.rvf", dialect="runtime")
    with VectorStore.open(tmp_path / "r.rvf") as foreign:
        wire = foreign.export(tmp_path / "wire.rvf")
        theirs = foreign.export(tmp_path / "runtime.rvf", dialect="runtime")
    assert (wire.kept, wire.dropped) == (("metadata", "other segments"), ("index",))
    assert (theirs.kept, theirs.dropped) == (("metadata",), ("index", "other segments"))
    with VectorStore.open(tmp_path / "wire.rvf") as ours:
        assert ours.export(tmp_path / "again.rvf").dropped == ()
        assert ours.verify() == []


def test_an_index_that_does_not_cover_all_is_dropped_with_a_word(store: VectorStore, tmp_path: Path) -> None:
    store.quantize("scalar")
    store.build_index("hnsw", ef_construction=50)
    store.delete([3])
    receipt = store.export(tmp_path / "r.rvf", dialect="runtime")
    assert receipt.kept == ("metadata",)
    assert receipt.dropped == ("index", "codes")
    again = store.export(tmp_path / "w.rvf")
    assert again.kept == ("metadata", "index", "codes")
    assert again.dropped == ()


def test_the_graph_of_a_shipped_program_is_written_byte_for_byte() -> None:
    with VectorStore.open(shared_golden("rvf", "runtime", "node_d16_2000_hnsw_m8.rvf")) as store:
        entry = store._content.snapshot.of_type(SegmentType.INDEX)[-1]
        payload = bytes(store._content.read(entry))
    found = decode_graph(payload)
    assert found.trailer is not None
    assert encode_runtime_graph(found.header, found.adjacency, found.trailer) == payload
    rank = np.random.default_rng(0).permutation(found.adjacency.node_count)
    there = renumbered(found.adjacency, rank)
    back = renumbered(there, np.argsort(rank))
    assert np.array_equal(back.neighbors, found.adjacency.neighbors)
    assert not np.array_equal(there.neighbors, found.adjacency.neighbors)


@pytest.mark.parametrize("how", ["compact", "index", "quantize"])
def test_signatures_are_kept_or_dropped_only_if_asked(store: VectorStore, how: str) -> None:
    def rewritten(**options: Any) -> None:
        if how == "compact":
            store.compact(**options)
        elif how == "index":
            store.build_index("ivf", **options)
        else:
            store.quantize("scalar", **options)

    key = SigningKey.generate()
    store.sign(key)
    assert store.verify([key.public]) == []
    with pytest.raises(PermissionError_, match="drop the signatures"):
        rewritten()
    assert store.verify([key.public]) == []
    rewritten(key=key)
    assert store.verify([key.public]) == []
    rewritten(drop_signatures=True)
    assert store.verify([key.public]) != []
    with pytest.raises(TypeError, match="SigningKey"):
        rewritten(key="secret")


def test_an_export_says_that_it_is_not_signed(store: VectorStore, tmp_path: Path) -> None:
    store.sign(SigningKey.generate())
    assert store.export(tmp_path / "w.rvf").dropped == ("signatures",)


@pytest.mark.parametrize(
    ("call", "guess"),
    [
        (lambda s, p: s.export(p, dialect="runtim"), "runtime"),
        (lambda s, p: s.compact(compression="zst"), "zstd"),
        (lambda s, p: s.build_index("hsnw"), "hnsw"), (lambda s, p: s.quantize("scaler"), "scalar"),
        (lambda s, p: VectorStore.create(p, dim=3, metric="cosin"), "cosine"),
        (lambda s, p: VectorStore.create(p, dim=3, dtype="f23"), "f32"),
        (lambda s, p: SigningKey.generate("ed2519"), "ed25519"),
    ],
)  # fmt: skip
def test_misspelt_names_get_the_nearest_right_one(
    store: VectorStore, tmp_path: Path, call: Any, guess: str
) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{guess}'"):
        call(store, tmp_path / "n.rvf")


# -- the command -----------------------------------------------------------------------------------------


def test_the_suffix_says_what_is_written(store: VectorStore, tmp_path: Path, capsys: Any) -> None:
    import csv

    import pyarrow.parquet

    from warpdata.cli.main import main

    store.close()
    source = str(tmp_path / "s.rvf")
    with VectorStore.open(source) as opened:
        ids, vectors, about = opened.ids, opened.get(opened.ids), opened.metadata(opened.ids)

    def export(name: str, *options: str) -> int:
        return main(["vectors", "export", source, str(tmp_path / name), *options])

    for name in ("o.csv", "o.npy", "o.parquet", "o.jsonl", "o.rvf"):
        assert export(name) == 0
        assert export(name) == 1
        assert "--overwrite" in capsys.readouterr().err
        assert export(name, "--overwrite") == 0
    with (tmp_path / "o.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["id"]) for row in table] == ids.tolist()
    assert [int(row["n"]) for row in table] == [row["n"] for row in about]
    assert np.array_equal([np.float32(row["v3"]) for row in table], vectors[:, 3])
    assert np.array_equal(np.load(tmp_path / "o.npy"), vectors)
    parquet = pyarrow.parquet.read_table(tmp_path / "o.parquet").to_pydict()
    assert parquet["id"] == ids.tolist()
    assert np.array_equal(np.array(parquet["vector"], np.float32), vectors)
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line["metadata"] for line in lines] == about
    assert np.array_equal(np.array([line["vector"] for line in lines], np.float32), vectors)
    capsys.readouterr()
    assert export("o.parqet") != 0
    assert "Did you mean '.parquet'" in capsys.readouterr().err
    assert not (tmp_path / "o.parqet").exists()
    assert export("r.rvf", "--dialect", "runtime", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == []
