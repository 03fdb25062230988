"""Tables as torch datasets: passes, states and tensors, with and without workers."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import warpdata as wd
from tests.loading.conftest import ROWS
from warpdata.catalog.read.rowgroups import READS_NULL_LISTS
from warpdata.errors import DatasetError
from warpdata.loading.ranks import known_rank

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

KEPT = pc.field("keep")
null_lists = pytest.mark.skipif(not READS_NULL_LISTS, reason="this Arrow cannot read what it wrote")


def ids(batches: Any, limit: int | None = None) -> list[int]:
    found: list[int] = []
    for count, batch in enumerate(batches, 1):
        found += batch["id"].tolist()
        if count == limit:
            break
    return found


def loader_of(dataset: Any, workers: int, **more: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **more)


@pytest.mark.parametrize(("workers", "more"), [(0, {}), (2, {}), (2, {"persistent_workers": True})])
def test_a_loaded_state_is_used_once(table: wd.Table, workers: int, more: dict[str, Any]) -> None:
    """Later passes have every row, whether their workers are made anew or persist."""
    stream = table.batches(40)
    done = [row for _ in range(5) for row in next(stream)["id"].to_pylist()]
    dataset = table.to_torch(40, prefetch="off")
    dataset.load_state_dict(stream.state_dict())
    loader = loader_of(dataset, workers, **more)
    assert sorted(done + ids(loader)) == list(range(ROWS))
    for _ in range(2):
        assert sorted(ids(loader)) == list(range(ROWS))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("view", ["all", "kept", "few"])
def test_the_state_of_a_loader_is_after_what_it_gave(table: wd.Table, workers: int, view: str) -> None:
    rows = table if view == "all" else table.filter(KEPT)
    options = {"batch_size": 30, "prefetch": "off", "limit": 200 if view == "few" else None}
    expected = [row for row in range(ROWS) if view == "all" or row % 3 != 1][: options["limit"]]
    loader = rows.to_torch(**options).loader(num_workers=workers)
    assert sorted(ids(loader)) == expected
    given = ids(loader, limit=4)
    assert given
    state = json.loads(json.dumps(loader.state_dict()))
    for others in (workers, 2 - workers):
        again = rows.to_torch(**options).loader(num_workers=others)
        again.load_state_dict(state)
        assert sorted(given + ids(again)) == expected
        assert sorted(ids(again)) == expected
    assert sorted(ids(loader)) == expected, "a pass that was broken off is over"


def test_the_state_stands_at_the_next_pass_after_the_end(table: wd.Table) -> None:
    for workers in (0, 2):
        loader = table.to_torch(100, prefetch="off").loader(num_workers=workers)
        ids(loader)
        again = table.to_torch(100, prefetch="off").loader()
        again.load_state_dict(loader.state_dict())
        assert sorted(ids(again)) == list(range(ROWS))


def test_a_state_that_nobody_knows_is_not_made_up(table: wd.Table) -> None:
    dataset = table.to_torch(100, prefetch="off")
    assert dataset.state_dict()["progress"] == [[0, 0, 0]]
    ids(loader_of(dataset, 2), limit=2)
    with pytest.raises(RuntimeError, match="loader"):
        dataset.state_dict()
    stream = iter(dataset)
    next(stream)
    assert dataset.state_dict()["progress"] == [[0, 100, 100]]


def test_workers_that_persist_do_not_miss_a_state(table: wd.Table) -> None:
    dataset = table.to_torch(100, prefetch="off")
    loader = loader_of(dataset, 1, persistent_workers=True)
    ids(loader)
    dataset.load_state_dict(table.batches(100).state_dict())
    with pytest.raises(RuntimeError, match="new DataLoader"):
        ids(loader)


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_ranks_take_equal_steps_with_any_workers(table: wd.Table, tail: str) -> None:
    for workers in (0, 2):
        steps, seen = set(), []
        for rank in range(3):
            dataset = table.to_torch(32, (rank, 3), "off", tail=tail)
            batches = [batch["id"] for batch in loader_of(dataset, workers)]
            assert {len(batch) for batch in batches} == {32}
            steps.add(len(batches))
            seen += [row for batch in batches for row in batch.tolist()]
        assert steps == {7 if tail == "drop" else 8}
        assert len(set(seen)) == (3 * 7 * 32 if tail == "drop" else ROWS)


def test_states_of_all_ranks_go_on_in_another_world(table: wd.Table) -> None:
    done, states = [], []
    for rank in range(2):
        loader = table.to_torch(20, (rank, 2), "off").loader(num_workers=2)
        done += ids(loader, limit=3 + rank)
        states.append(loader.state_dict())
    for rank in range(3):
        loader = table.to_torch(20, (rank, 3), "off").loader(num_workers=1)
        with pytest.raises(ValueError, match="all 2 ranks"):
            loader.load_state_dict(states[0])
        loader.load_state_dict(states)
        done += ids(loader)
    assert sorted(done) == list(range(ROWS))


def test_states_of_single_workers_go_on_in_their_worker(
    table: wd.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torchdata's StatefulDataLoader does: a state of each worker, given back to the same worker."""

    class Info:
        def __init__(self, number: int, seed: int) -> None:
            self.id, self.num_workers, self.seed = number, 2, seed + number

    def as_worker(number: int, seed: int) -> None:
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: Info(number, seed))

    done, states = [], []
    for worker in range(2):
        as_worker(worker, 100)
        mine = table.to_torch(20, prefetch="off")
        mine.load_state_dict(json.loads(json.dumps(mine.state_dict())))
        done += ids(mine, limit=2 + worker)
        states.append(json.loads(json.dumps(mine.state_dict())))
    with pytest.raises(ValueError, match="reader 1 of 2"):
        table.to_torch(20, prefetch="off").load_state_dict(states[0])
    for worker in range(2):
        as_worker(worker, 200)
        mine = table.to_torch(20, prefetch="off")
        mine.load_state_dict(states[worker])
        done += ids(mine)
        mine.load_state_dict(mine.state_dict())
        assert ids(mine) == [], "a worker that has ended stays at the end"
    assert sorted(done) == list(range(ROWS))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="alone"):
        table.to_torch(20, prefetch="off").load_state_dict(states[0])


def test_few_rows_are_enough_for_many_workers(table: wd.Table) -> None:
    assert ids(loader_of(table.to_torch(10, limit=2), 3)) == [0, 1]


def test_a_process_tells_those_it_starts_its_rank(monkeypatch: pytest.MonkeyPatch, table: wd.Table) -> None:
    assert known_rank("auto") == "auto"
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert known_rank("auto") == (1, 3)
    there = pickle.dumps(table.to_torch(50))
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    assert pickle.loads(there)._request.shard == (1, 3)
    assert known_rank((0, 2)) == (0, 2)
    # Where torch knows it, torch is believed.
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    for name, answer in {"is_initialized": True, "get_rank": 2, "get_world_size": 4}.items():
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    assert known_rank("auto") == (2, 4)


COLUMNS = {
    "i8": pa.int8(), "u16": pa.uint16(), "i64": pa.int64(), "f16": pa.float16(), "f32": pa.float32(),
    "f64": pa.float64(), "bool": pa.bool_(),
}  # fmt: skip
TYPES = {
    "i8": "int8", "u16": "uint16", "i64": "int64", "f16": "float16", "f32": "float32", "f64": "float64",
    "bool": "bool",
}  # fmt: skip


def values(kind: str, has_null: bool) -> pa.Array:
    plain = [True, False, True, True] if kind == "bool" else [1, 0, 3, 4]
    if kind == "f16":
        import numpy as np

        return pa.array(np.array(plain, np.float16), mask=np.array([False, has_null, False, False]))
    return pa.array([None if has_null and i == 1 else v for i, v in enumerate(plain)], COLUMNS[kind])


@pytest.fixture(name="odd", scope="module")
def with_nulls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Table]:
    """The first batch of four rows has no null, the second one in every column."""
    folder: Path = tmp_path_factory.mktemp("odd")
    columns = {kind: pa.chunked_array([values(kind, False), values(kind, True)]) for kind in COLUMNS}
    pairs = [[1, 2], [3, 4], [5, 6], [7, 8]]
    columns["pair"] = pa.chunked_array(
        [pa.array(pairs, pa.list_(pa.int32(), 2)), pa.array([None, *pairs[1:]], pa.list_(pa.int32(), 2))]
    )
    columns["inner"] = pa.chunked_array(
        [pa.array(pairs, pa.list_(pa.int32(), 2)), pa.array([[9, None], *pairs[1:]], pa.list_(pa.int32(), 2))]
    )
    columns["free"] = pa.chunked_array(
        [pa.array(pairs, pa.list_(pa.int32())), pa.array([[1], *pairs[1:]], pa.list_(pa.int32()))]
    )
    columns["text"] = pa.chunked_array([pa.array(["a"] * 4), pa.array(["b", None, "b", "b"])])
    with wd.DatasetBuilder("ws/odd", catalog=folder) as builder:
        builder.add_table("main", pa.table(columns)).publish()
    with wd.dataset("ws/odd", catalog=folder) as ds:
        yield ds.table()


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_a_null_does_not_change_the_type_of_a_tensor(odd: wd.Table, kind: str) -> None:
    masked = list(odd.to_torch(4, columns=[kind], nulls="mask"))
    assert {str(batch[kind].dtype) for batch in masked} == {f"torch.{TYPES[kind]}"}
    assert [batch[f"{kind}.valid"].tolist() for batch in masked] == [[True] * 4, [True, False, True, True]]
    assert masked[1][kind][1] == 0
    assert masked[0][kind].tolist() == ([True, False, True, True] if kind == "bool" else [1, 0, 3, 4])
    stream = iter(odd.to_torch(4, columns=[kind]))
    first = next(stream)
    assert list(first) == [kind]
    assert str(first[kind].dtype) == f"torch.{TYPES[kind]}"
    if kind.startswith("f"):
        second = next(stream)[kind]
        assert second.dtype == first[kind].dtype
        assert second.isnan().tolist() == [False, True, False, False]
    else:
        with pytest.raises(DatasetError, match="has a null") as caught:
            next(stream)
        assert "mask" in caught.value.hint


@null_lists
def test_lists_are_matrices(odd: wd.Table) -> None:
    for name in ("pair", "inner"):
        stream = iter(odd.to_torch(4, columns=[name]))
        assert next(stream)[name].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
        with pytest.raises(DatasetError, match="has a null"):
            next(stream)
    second = list(odd.to_torch(4, columns=["pair", "inner", "text"], nulls="mask"))[1]
    assert second["pair"].tolist() == [[0, 0], [3, 4], [5, 6], [7, 8]]
    assert second["pair.valid"].tolist() == [[False, False], *[[True, True]] * 3]
    assert second["inner.valid"][0].tolist() == [True, False]
    assert second["pair"].dtype == torch.int32
    assert second["text"] == ["b", None, "b", "b"]
    assert "text.valid" not in second
    free = [batch["free"] for batch in odd.to_torch(4, columns=["free"])]
    assert free[0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert [row.tolist() for row in free[1]] == [[1], [3, 4], [5, 6], [7, 8]]
    assert {row.dtype for row in free[1]} == {free[0].dtype} == {torch.int32}


@null_lists
def test_slices_of_lists_keep_their_rows(odd: wd.Table) -> None:
    rows = [
        row for batch in odd.to_torch(3, columns=["pair"], nulls="mask") for row in batch["pair"].tolist()
    ]
    assert rows == [[1, 2], [3, 4], [5, 6], [7, 8], [0, 0], [3, 4], [5, 6], [7, 8]]


def test_misspelt_options_are_refused(odd: wd.Table) -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'mask'\?"):
        odd.to_torch(4, nulls="masks")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_column_with_the_name_of_a_mask_is_refused(tmp_path: Path, shuffle: bool) -> None:
    """Its values would stand for the mask, or the mask for them."""
    with wd.DatasetBuilder("ws/mask", catalog=tmp_path) as builder:
        builder.add_table("main", pa.table({"x": [1, None, 3], "x.valid": [7, 8, 9]})).publish()
    with wd.dataset("ws/mask", catalog=tmp_path) as ds:
        with pytest.raises(ValueError, match=r"'x\.valid' has the name of the mask of column 'x'"):
            ds.table().to_torch(3, nulls="mask", shuffle=shuffle)
        (batch,) = ds.table().to_torch(3, nulls="mask", shuffle=shuffle, columns="x")
        assert sorted(batch["x.valid"].tolist()) == [False, True, True]
        assert "x.valid" in ds.table().to_torch(3, columns="x.valid").__iter__().__next__()


def published(folder: Path, **columns: pa.Array) -> wd.Table:
    with wd.DatasetBuilder("ws/made", catalog=folder) as builder:
        builder.add_table("main", pa.table(columns)).publish()
    return wd.dataset("ws/made", catalog=folder).table()


def test_tensors_have_the_axes_that_their_type_gives_them(tmp_path: Path) -> None:
    """Axis n of a tensor is axis permutation[n] of what is stored."""
    sizes, orders = (2, 3, 4), list(itertools.permutations(range(3)))
    storage = pa.FixedSizeListArray.from_arrays(pa.array(range(2 * 24), pa.int32()), 24)
    made = {
        str(order): pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), sizes, permutation=order), storage
        )
        for order in orders
    }
    table = published(tmp_path, **made)
    (batch,) = table.to_torch(2)
    for order in orders:
        found = batch[str(order)]
        assert found.shape == (2, *(sizes[axis] for axis in order))
        for place in itertools.product(*map(range, found.shape)):
            stored = dict(zip(order, place[1:], strict=True))
            assert found[place] == place[0] * 24 + stored[0] * 12 + stored[1] * 4 + stored[2]
    (masked,) = table.to_torch(2, nulls="mask")
    assert all(masked[f"{order}.valid"].shape == batch[str(order)].shape for order in orders)


def test_bools_of_a_byte_are_bools(tmp_path: Path) -> None:
    kind = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, -5, None], pa.int8()))
    (batch,) = published(tmp_path, b=kind).to_torch(4, nulls="mask")
    assert batch["b"].tolist() == [False, True, True, False]
    assert batch["b"].dtype == torch.bool
    assert batch["b.valid"].tolist() == [True, True, True, False]


@pytest.mark.parametrize("made", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_every_kind_of_list_is_numbers(tmp_path: Path, made: Any) -> None:
    rows = [[1, 2], [3, 4], [5], [6, None]]
    (batch,) = (
        published(tmp_path, x=pa.array(rows, made(pa.int32()))).filter("len(x) > 1").to_torch(2, limit=2)
    )
    assert batch["x"].tolist() == [[1, 2], [3, 4]]
    (batch,) = published(tmp_path / "b", x=pa.array(rows[:3], made(pa.int32()))).to_torch(3)
    assert [row.tolist() for row in batch["x"]] == rows[:3]
    with pytest.raises(DatasetError, match="inside a list") as refused:
        list(published(tmp_path / "c", x=pa.array(rows, made(pa.int32()))).to_torch(4, nulls="mask"))
    assert "mask" not in refused.value.hint
