"""Unusual but legitimate: other folders, links, forks, failed commits, numbers at the ends of f32."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import ConflictError, FormatError, LimitExceededError, OutOfSpaceError
from warpdata.formats.rvf import layout as records
from warpdata.formats.rvf.meta import MetaPayload, encode_meta
from warpdata.formats.rvf.writer import SegmentAppender
from warpdata.search.store import VectorStore

DIM = 8


def vectors(count: int, seed: int = 0, scale: float = 1.0) -> Any:
    return (scale * np.random.default_rng(seed).normal(size=(count, DIM))).astype(np.float32)


def no_space(*_: Any, **__: Any) -> Any:
    raise OutOfSpaceError("no space left on the disk")


def test_a_failed_commit_leaves_the_metadata_chain_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(vectors(3), metadata={"n": [0, 1, 2]})
        for change in (
            lambda: store.add(vectors(1), metadata=[{"n": 50}]),
            lambda: store.add(vectors(1), ids=[1]),
            lambda: store.update([2], [{"n": 60}]),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(SegmentAppender, "_sync", no_space)
                with pytest.raises(OutOfSpaceError):
                    change()
            assert store.metadata([0, 1, 2]) == [{"n": 0}, {"n": 1}, {"n": 2}]
        with pytest.raises(ValueError, match="not valid Unicode"):
            store.add(vectors(1), metadata=[{"t": "\ud800"}])
        store.add(vectors(1), metadata=[{"n": 3}])
    with VectorStore.open(path) as again:
        assert again.metadata(again.ids) == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]
        assert again.verify() == []


def test_an_id_that_comes_back_has_no_old_metadata(tmp_path: Path) -> None:
    path = tmp_path / "b.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(vectors(2), metadata=[{"n": 1, "t": "a"}, {"n": 2}])
        store.delete([0, 1])
        store.add(vectors(1), ids=[0])
        store.add(vectors(1), ids=[1], metadata=[{"t": "b"}])
        assert store.metadata([0, 1]) == [{}, {"t": "b"}]
    with VectorStore.open(path) as again:
        assert again.metadata([0, 1]) == [{}, {"t": "b"}]


def test_what_is_known_of_a_file_alone_outlives_rewrites(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=DIM) as store:
        store.replace([], vectors(4), notes={"embedder": "mine"})
    for name in ("wire", "runtime", "compacted"):
        with VectorStore.open(tmp_path / "s.rvf", mode="a") as store:
            assert store.notes == {"embedder": "mine"}
            if name == "compacted":
                store.compact()
            else:
                assert "metadata" in store.export(tmp_path / name, dialect=name).kept
        with VectorStore.open(tmp_path / ("s.rvf" if name == "compacted" else name)) as found:
            assert found.notes == {"embedder": "mine"}


def test_long_values_are_updated_too(tmp_path: Path) -> None:
    path = tmp_path / "l.rvf"
    with VectorStore.create(path, dim=DIM) as store:
        store.add(vectors(2), metadata=[{"t": "a", "n": 1}, {"t": "b"}])
        store.update([0, 1], [{"t": "x" * 70_000, "n": None}, {"t": "c"}])
        expected = [{"t": "x" * 70_000}, {"t": "c"}]
        assert store.metadata([0, 1]) == expected
        for number in range(66):
            store.update([1], [{"t": f"{number}" * 40_000}])
        store.update([1], [{"t": "c"}])
    with VectorStore.open(path) as again:
        assert again.metadata([0, 1]) == expected


def test_metadata_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "META_MAX_RECORDS", 2)
    with pytest.raises(LimitExceededError, match="3 vectors"):
        encode_meta(MetaPayload(1, None, {}, {}, {1: {}, 2: {}, 3: {}}))


def test_a_store_follows_its_file_into_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with VectorStore.create("r.rvf", dim=DIM) as store, VectorStore.open("r.rvf") as reader:
        store.add(vectors(3))
        monkeypatch.chdir(elsewhere)
        store.add(vectors(1))
        store.build_index("flat")
        assert (len(store.snapshot()), reader.refresh(), len(reader)) == (4, True, 4)
    assert os.listdir(elsewhere) == []
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "r.rvf"]


def test_a_link_is_the_file_it_names(tmp_path: Path) -> None:
    path, link = tmp_path / "r.rvf", tmp_path / "link.rvf"
    VectorStore.create(path, dim=DIM).close()
    link.symlink_to("r.rvf")
    with VectorStore.open(link, mode="a") as store:
        with pytest.raises(ConflictError, match="another writer"):
            VectorStore.open(path, mode="a")
        store.add(vectors(3))
        store.compact()
    assert link.is_symlink()
    with VectorStore.open(path) as again:
        assert len(again) == 3


def test_a_forked_process_reads_and_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "f.rvf"
    x = vectors(5)
    with VectorStore.create(path, dim=DIM) as store:
        store.add(x)
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 1
            try:
                store.add(x)
            except ConflictError:
                code = 0 if store.search(x[2], 1)[0].tolist() == [2] else 2
                store.close()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(ConflictError):
            VectorStore.open(path, mode="a")
        store.add(x)
    with VectorStore.open(path) as again:
        assert (len(again), again.verify()) == (10, [])


def true_distances(x: Any, queries: Any, metric: str, k: int) -> Any:
    x, queries = x.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        away = ((x[None] - queries[:, None]) ** 2).sum(axis=2)
    else:
        if metric == "cosine":
            x, queries = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, queries))
        away = (metric == "cosine") - queries @ x.T
    with np.errstate(over="ignore"):
        return np.sort(away, axis=1)[:, :k].astype(np.float32)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-12, 1e18, 1e25, 1e37])
@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_numbers_at_the_ends_of_f32(tmp_path: Path, scale: float, metric: str) -> None:
    x, queries = vectors(300, 1, scale), vectors(5, 2, scale)
    expected = true_distances(x, queries, metric, 4)
    with VectorStore.create(tmp_path / "n.rvf", dim=DIM, metric=metric, durable=False) as store:
        store.add(x)
        for kind in (None, "hnsw", "ivf"):
            if kind is not None:
                store.build_index(kind)
            store.warm()
            ways: list[dict[str, Any]] = [{"exact": True}, {"ef": 300}, {"where": range(300)}]
            for how in ways:
                ids, away = store.search(queries, 4, **how)
                assert (ids >= 0).all()
                assert away == pytest.approx(expected, rel=1e-3, abs=1e-6 * (metric == "cosine"))
                one = store.search(queries[0], 4, **how)[1]
                assert one == pytest.approx(expected[0], rel=1e-3, abs=1e-6 * (metric == "cosine"))


def test_no_queries_give_no_answers(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "q.rvf", dim=DIM) as store:
        store.add(vectors(5))
        nothing: list[Any] = [np.zeros((0, DIM)), []]
        for queries in nothing:
            ids, away = store.search(queries, 3)
            assert (ids.shape, away.shape) == ((0, 3), (0, 3))


def test_wrong_things_are_named(tmp_path: Path) -> None:
    for wrong in (None, b"bytes", 5):
        with pytest.raises(TypeError, match="a path or a RangeReader"):
            VectorStore.open(wrong)  # type: ignore[arg-type]
    with (
        VectorStore.create(tmp_path / "w.rvf", dim=DIM) as store,
        pytest.raises(TypeError, match="SigningKey"),
    ):
        store.sign("key.json")  # type: ignore[arg-type]


def test_options_of_an_index_are_whole_numbers(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=4) as store:
        store.add(np.eye(4))
        for name in ("m", "ef_construction", "partitions"):
            with pytest.raises(TypeError, match=f"{name} is a whole number, not 4.5"):
                store.build_index(**{name: 4.5})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="code_bytes is a whole number"):
            store.quantize("pq", code_bytes=1.5)  # type: ignore[arg-type]
        store.build_index(m=np.int64(4), ef_construction=np.int32(40), partitions=np.uint8(2))
    with VectorStore.open(tmp_path / "s.rvf") as store:
        assert store.search(np.eye(4)[2], 1)[0].tolist() == [2]


def test_a_text_is_no_column_of_letters(tmp_path: Path) -> None:
    with VectorStore.create(tmp_path / "s.rvf", dim=3) as store:
        for column in ("cat", b"cat", 7):
            with pytest.raises(TypeError, match="'label' is a list with one value per vector"):
                store.add(np.eye(3), metadata={"label": column})  # type: ignore[dict-item]
        assert len(store) == 0
        store.add(np.eye(3), metadata={"label": np.array(["cat", "dog", "cow"])})  # type: ignore[dict-item]
        assert store.metadata([1]) == [{"label": "dog"}]


@pytest.mark.parametrize("kind", ["scalar", "pq", "binary", "residual_pq"])
def test_codes_do_not_drift_from_rewrite_to_rewrite(tmp_path: Path, kind: str) -> None:
    x = vectors(400)
    with VectorStore.create(tmp_path / "d.rvf", dim=DIM, durable=False) as store:
        store.add(x)
        store.quantize(kind, keep_full=False)
        once = store.get(range(400))
        assert once.shape == x.shape
        for _ in range(4):
            store.compact()
            store.build_index("ivf")
        changed = (store.get(range(400)) != once).any(axis=1)
        # The nearest coarse centroid of a decoded vector may be another one.
        assert changed.sum() <= (2 if kind == "residual_pq" else 0)
        away = np.linalg.norm(store.get(range(400)) - x, axis=1).mean()
        assert away <= np.linalg.norm(once - x, axis=1).mean() * 1.01


def test_a_wrong_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.rvf"
    with VectorStore.create(path, dim=2) as store:
        store.add(np.eye(2))
    reader = BytesRangeReader(path.read_bytes())
    with VectorStore.open(reader) as store:
        doors: list[Callable[[Any], Any]] = [
            lambda v: VectorStore(None, v, "r"),
            lambda v: VectorStore(v, reader, "r"),
            lambda v: VectorStore(None, reader, "r", v),
            lambda v: store.verify([v]),
            lambda v: wd.TrajectoryIngestor(tmp_path / "t.rvf", v),
            lambda v: wd.TrajectoryRetriever(path, v),
        ]
        for door in doors:
            for value in (3, b"x", 1.5):
                with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
                    door(value)
        for wrong in (None, "w", 3):
            with pytest.raises(ValueError, match="mode is one of r, a"):
                VectorStore(None, reader, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"metric is one of l2, ip, cosine, not 'cosin'"):
        wd.TrajectoryIngestor(tmp_path / "t.rvf", "state", metric="cosin")


def test_any_effort_is_enough(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    with VectorStore.create(tmp_path / "s.rvf", dim=4) as store:
        store.add(x)
        store.build_index("hnsw")
        store.warm()
        for ef in (2**31, 2**64, 10**30):
            assert store.search(x[3], 5, ef=ef)[0][0] == 3
            assert store.search(x[3], 5, ef=ef, where=range(20))[0][0] == 3


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list descriptors")
def test_what_cannot_be_opened_leaves_no_descriptor(tmp_path: Path) -> None:
    bad, foreign, good = (tmp_path / f"{name}.rvf" for name in ("bad", "foreign", "good"))
    bad.write_bytes(bytes(9000))
    with VectorStore.create(good, dim=2) as store:
        store.add(np.eye(2))
        store.export(foreign, dialect="runtime")
    reader = VectorStore.open(good)
    good.write_bytes(bytes(9000))
    before, kept = len(os.listdir("/proc/self/fd")), []
    for _ in range(5):
        for use in (
            lambda: VectorStore.open(bad), lambda: VectorStore.open(bad, mode="a"),
            lambda: VectorStore.open(foreign, mode="a"), reader.refresh,
        ):  # fmt: skip
            with pytest.raises(FormatError) as refused:
                use()
            kept.append(refused.value)  # its traceback knows everything that was made on the way
    assert len(os.listdir("/proc/self/fd")) <= before
    reader.close()


def test_a_reader_travels_to_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "s.rvf"
    with VectorStore.create(path, dim=2) as store:
        store.add([[0.0, 1.0], [1.0, 0.0]], metadata={"n": [1, 2]})
        with pytest.raises(TypeError, match="open for writing"):
            pickle.dumps(store)
        store.add([[5.0, 5.0]])
    for opened in (VectorStore.open(path), wd.open_vectors(path)):
        with opened, pickle.loads(pickle.dumps(opened)) as again, opened.at(2) as earlier:
            assert again.search([1.0, 0.1], 1)[0].tolist() == [1]
            assert again.metadata([1]) == [{"n": 2}]
            with pickle.loads(pickle.dumps(earlier)) as old:
                assert (len(again), len(old)) == (3, 2)


def test_a_dropped_writer_gives_its_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "s.rvf"
    gc.disable()
    try:
        for number in range(3):
            store = VectorStore.create(path, dim=2) if number == 0 else VectorStore.open(path, mode="a")
            store.add([[number, 1.0]], metadata={"n": [number]})
            store.search([1.0, 2.0], where=[0])
            with pytest.raises(ValueError, match="dimensions"):
                store.add([[1.0, 2.0, 3.0]])
            if number == 1:
                store.build_index()
            del store
    finally:
        gc.enable()
    assert not path.with_name("s.rvf.lock").exists()
