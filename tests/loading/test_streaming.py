"""Streaming: exact batches, sharding without gaps or overlaps, resuming at the next row, filters, torch."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.published import rows
from tests.sweeps import enough_examples
from warpdata.errors import DatasetError, TooLargeError
from warpdata.loading.tables.share import (
    RowRange,
    group_ranges,
    rows_between,
    share_of,
    total_rows,
    whole_table,
)
from warpdata.loading.tables.stream import exact_batches

SHARD_ROWS = st.lists(st.integers(0, 60), min_size=1, max_size=12)


def groups_of(size: int):
    return lambda rows: lambda shard: [min(size, rows[shard] - at) for at in range(0, rows[shard], size)]


def listed(pieces) -> list[tuple[int, int]]:
    return [(p.shard, row) for p in pieces for row in range(p.start, p.end)]


@given(SHARD_ROWS, st.integers(1, 64), st.integers(1, 20), st.none() | st.integers(0, 300))
def test_sharding_covers_all_rows_exactly_once(
    shards: list[int], world: int, group: int, limit: int | None
) -> None:
    """Sharding covers all rows exactly once, and produces no duplicates across workers."""
    everything = whole_table(shards, limit)
    group_rows = groups_of(group)(shards)
    shares = [share_of(everything, group_rows, rank, world) for rank in range(world)]
    found = [row for share in shares for row in listed(share)]
    expected = [(s, r) for s, count in enumerate(shards) for r in range(count)][:limit]
    assert sorted(found) == expected
    assert len(found) == len(set(found))
    if total_rows(everything) >= world:
        assert all(share for share in shares)


@given(SHARD_ROWS, st.integers(1, 8), st.integers(1, 8), st.integers(1, 20), st.data())
def test_another_world_goes_on_where_the_old_one_stopped(
    shards: list[int], old: int, new: int, group: int, data: st.DataObject
) -> None:
    everything = whole_table(shards)
    group_rows = groups_of(group)(shards)
    done, left = [], []
    for rank in range(old):
        share = share_of(everything, group_rows, rank, old)
        count = data.draw(st.integers(0, total_rows(share)))
        done += listed(share)[:count]
        left += rows_between(share, count)
    again = [
        row for rank in range(new) for row in listed(share_of(tuple(sorted(left)), group_rows, rank, new))
    ]
    assert sorted(done + again) == listed(everything)


def test_files_are_dealt_out_when_there_are_enough() -> None:
    everything = whole_table([10, 10, 10, 10])
    fail = lambda shard: pytest.fail("no footer is needed")  # noqa: E731
    assert share_of(everything, fail, 1, 2) == (RowRange(1, 0, 10), RowRange(3, 0, 10))
    assert list(group_ranges((RowRange(0, 5, 25),), lambda _: [10, 10, 10])) == [
        (RowRange(0, 5, 10), 0, 0),
        (RowRange(0, 10, 20), 1, 10),
        (RowRange(0, 20, 25), 2, 20),
    ]
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        share_of(everything, fail, 2, 2)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 40))
def test_batches_are_exact(sizes: list[int], size: int) -> None:
    ends = np.cumsum([0, *sizes]).tolist()
    pieces = [pa.record_batch({"i": pa.array(range(a, b), pa.int64())}) for a, b in itertools.pairwise(ends)]
    found = list(exact_batches(iter(pieces), size))
    assert [row for b in found for row in b["i"].to_pylist()] == list(range(ends[-1]))
    assert all(b.num_rows == size for b in found[:-1])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Table]:
    folder = tmp_path_factory.mktemp("stream")
    for i, (first, count) in enumerate([(0, 500), (500, 1), (501, 999), (1500, 700)]):
        pq.write_table(
            rows(count, first).drop_columns(["image"]), folder / f"{i}.parquet", row_group_size=128
        )
    with wd.DatasetBuilder("ws/stream", catalog=folder / "cat") as builder:
        builder.add_table("main", sorted(folder.glob("*.parquet"))).publish()
    with wd.dataset("ws/stream", catalog=folder / "cat") as ds:
        yield ds.table()


def ids(batches) -> list[int]:
    return [i for b in batches for i in b["id"].to_pylist()]


@pytest.mark.parametrize("prefetch", ["off", "auto", 5])
@pytest.mark.parametrize("size", [1, 7, 128, 1000, 5000])
def test_rows_come_in_file_order(table: wd.Table, size: int, prefetch: str | int) -> None:
    batches = list(table.batches(size, prefetch=prefetch, limit=400 if size == 1 else None))
    assert ids(batches) == list(range(400 if size == 1 else 2200))
    assert {b.num_rows for b in batches[:-1]} <= {size}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 17, 64])
@pytest.mark.parametrize("predicate", [None, "id % 3 = 0"])
def test_ranks_share_the_table(table: wd.Table, world: int, predicate: str | None) -> None:
    view = table.filter(predicate) if predicate else table
    found = [
        i
        for rank in range(world)
        for i in ids(view.batches(64, shard=(rank, world), columns=["id"], prefetch="off"))
    ]
    expected = [i for i in range(2200) if predicate is None or i % 3 == 0]
    assert sorted(found) == expected


@pytest.mark.parametrize("world", [1, 3])
def test_a_limit_is_global_also_after_a_filter(table: wd.Table, world: int) -> None:
    view = table.filter("id % 5 = 0")
    found = [i for rank in range(world) for i in ids(view.batches(10, shard=(rank, world), limit=123))]
    assert sorted(found) == [i for i in range(2200) if i % 5 == 0][:123]
    assert ids(table.batches(10, limit=25)) == list(range(25))
    assert ids(table.batches(10, limit=0)) == []


def test_shard_auto_reads_the_environment(table: wd.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ids(table.batches(100, shard="auto"))) == 2200
    found = []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        found += ids(table.batches(100, shard="auto"))
    assert sorted(found) == list(range(2200))
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ValueError, match="rank 3"):
        table.batches(100, shard="auto")


@pytest.mark.parametrize("bad", [(2, 2), (-1, 2), (0, 0), "0/2", 3])
def test_nonsense_shards_are_refused(table: wd.Table, bad: object) -> None:
    with pytest.raises(ValueError, match=r"rank|shard"):
        table.batches(10, shard=bad)


def test_an_empty_share_is_never_silent(table: wd.Table) -> None:
    with pytest.raises(DatasetError, match="no rows: they share 3"):
        table.batches(10, shard=(0, 5), limit=3)


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_equal_steps_on_request(table: wd.Table, tail: str, world: int) -> None:
    steps = [list(table.batches(50, rank=rank, world=world, tail=tail)) for rank in range(world)]
    assert len({len(s) for s in steps}) == 1
    assert all(b.num_rows == 50 for s in steps for b in s)
    seen = {i for s in steps for i in ids(s)}
    assert seen == set(range(2200)) if tail == "pad" else len(seen) == world * len(steps[0]) * 50


def test_equal_steps_of_filtered_rows_need_one_rank(table: wd.Table) -> None:
    view = table.filter("id < 120")
    assert [b.num_rows for b in view.batches(50, tail="drop")] == [50, 50]
    assert [b.num_rows for b in view.batches(50, tail="pad")] == [50, 50, 50]
    with pytest.raises(ValueError, match="filter"):
        view.batches(50, shard=(0, 2), tail="pad")
    for options in ({}, {"shuffle": True}):
        with pytest.raises(ValueError, match="tail is one of short, drop, pad, not 'wrap'"):
            table.batches(50, tail="wrap", **options)


def test_rank_and_world_say_what_shard_says(table: wd.Table) -> None:
    for rank in range(3):
        named = ids(table.batches(50, rank=rank, world=3))
        assert named == ids(table.batches(50, shard=(rank, 3))) != []
    with pytest.raises(ValueError, match="give both"):
        table.batches(50, rank=1)
    with pytest.raises(ValueError, match="one of them"):
        table.batches(50, shard=(0, 2), rank=1, world=2)
    with pytest.raises(ValueError, match="rank 3 is not one of 3"):
        table.batches(50, rank=3, world=3)


def test_options_may_be_given_by_position(table: wd.Table) -> None:
    assert [b.num_rows for b in table.batches(50, ["id"], shard=(0, 1), limit=120)] == [50, 50, 20]
    assert [list(d) for d in table.batch_dicts(2000, "id")] == [["id"], ["id"]]


@settings(max_examples=enough_examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(20, 400), stop=st.integers(0, 12), predicate=st.sampled_from([None, "id % 7 > 2"]))
def test_a_state_goes_on_at_the_next_row(
    table: wd.Table, size: int, stop: int, predicate: str | None
) -> None:
    view = table.filter(predicate) if predicate else table
    whole = ids(view.batches(size))
    stream = view.batches(size)
    first = [next(stream) for _ in range(min(stop, len(whole) // size))]
    state = pickle.loads(pickle.dumps(stream.state_dict()))
    again = view.batches(size)
    again.load_state_dict(state)
    assert ids(first) + ids(again) == whole


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (4, 1), (1, 4)])
@pytest.mark.parametrize("predicate", [None, "id % 2 = 1"])
def test_states_go_on_in_another_world(table: wd.Table, old: int, new: int, predicate: str | None) -> None:
    view = table.filter(predicate) if predicate else table
    done, states = [], []
    for rank in range(old):
        stream = view.batches(40, shard=(rank, old))
        done += ids(itertools.islice(stream, rank + 2))
        states.append(stream.state_dict())
    for rank in range(new):
        stream = view.batches(40, shard=(rank, new))
        stream.load_state_dict(states)
        done += ids(stream)
    assert sorted(done) == [i for i in range(2200) if predicate is None or i % 2 == 1]


def test_one_state_is_not_enough_for_another_world(table: wd.Table) -> None:
    """It does not say what the other ranks did: they may be behind, or at their end."""
    states = []
    for rank in range(2):
        stream = table.batches(30, shard=(rank, 2))
        next(stream)
        states.append(stream.state_dict())
    for one in (states[0], states[1], states[:1]):
        with pytest.raises(ValueError, match="states of all 2 ranks"):
            table.batches(30, shard=(0, 3)).load_state_dict(one)
    with pytest.raises(ValueError, match="states of all 2 ranks"):
        table.batches(30, shard=(0, 2)).load_state_dict(states[1])


def test_states_of_other_streams_are_refused(table: wd.Table) -> None:
    state = table.batches(10).state_dict()
    with pytest.raises(ValueError, match="another stream"):
        table.filter("id > 1").batches(10).load_state_dict(state)
    with pytest.raises(ValueError, match="another stream"):
        table.batches(10).load_state_dict({**state, "version": "0" * 64})
    with pytest.raises(ValueError, match="all 3"):
        table.batches(10).load_state_dict([{**state, "world": 3}, {**state, "world": 3, "rank": 1}])


def test_abandoned_streams_never_block(table: wd.Table) -> None:
    """Streams form cycles, so the collector ends them, in whatever thread it runs."""
    import gc

    for _ in range(150):
        stream = table.batches(200)
        next(stream)
        next(stream)
    gc.collect()
    assert len(ids(table.batches(500))) == 2200


def test_filters_and_sql(table: wd.Table) -> None:
    view = table.filter("value >= 100").filter("name like '%7'").select(["name", "id"])
    expected = [i for i in range(2200) if i * 0.5 >= 100 and str(i).endswith("7")]
    assert ids(view.batches(64)) == expected
    assert view.head(2).to_pydict() == {"name": ["row 207", "row 217"], "id": [207, 217]}
    assert view.schema().names == ["name", "id"]
    assert view.count() == len(expected)
    found = table.dataset.sql("select id % 2 as k, count(*) as n from main group by k order by k").arrow()
    assert found.to_pydict() == {"k": [0, 1], "n": [1100, 1100]}


def test_a_filter_reads_only_what_it_needs(table: wd.Table) -> None:
    """Statistics rule row groups out, and only the columns asked for are read."""
    from warpdata.catalog.read.rowgroups import ShardFile

    seen: list[tuple[int, tuple[str, ...]]] = []
    original = ShardFile.read

    def noted(self, group, columns, fetched, **options):
        seen.append((group, tuple(columns)))
        return original(self, group, columns, fetched, **options)

    ShardFile.read = noted
    try:
        assert ids(table.filter("id between 510 and 520").select("id").batches(100)) == list(range(510, 521))
        assert seen == [(0, ("id",))]
        seen.clear()
        table.dataset.sql("select sum(value) from main where id < 50").arrow()
        assert seen == [(0, ("id", "value"))]
    finally:
        ShardFile.read = original


@pytest.mark.parametrize(
    "query", ["select * from nowhere", "selec", "select * from '/etc/passwd'", "insert into main values (1)"]
)
def test_bad_sql_is_a_typed_error(table: wd.Table, query: str) -> None:
    with pytest.raises(DatasetError):
        table.dataset.sql(query).arrow()


def test_bad_arguments(table: wd.Table) -> None:
    with pytest.raises(ValueError, match="no column 'nope'"):
        table.select(["nope"])
    with pytest.raises(ValueError, match="batch_size"):
        table.batches(0)
    with pytest.raises(ValueError, match="prefetch"):
        table.batches(1, prefetch="sometimes")
    with pytest.raises(DatasetError, match="no column 'nope'"):
        list(table.filter("nope > 1").batches(1))


@pytest.mark.parametrize("shuffle", [False, True])
def test_limits_are_numbers_of_rows(table: wd.Table, shuffle: bool) -> None:
    stream = table.batches(2, limit=np.int64(5), shuffle=shuffle)
    assert sum(batch.num_rows for batch in stream) == 5
    assert json.loads(json.dumps(stream.state_dict()))["limit"] == 5
    for bad in (-1, 1.5, "3", True):
        with pytest.raises(ValueError, match="limit is an integer"):
            table.batches(2, limit=bad, shuffle=shuffle)
    for bad in (-1, 1.5, "3", None):
        with pytest.raises(ValueError, match="number of rows is an integer"):
            table.head(bad)
    with pytest.raises(ValueError, match=r"prefetch is 1\.5"):
        table.batches(2, prefetch=1.5, shuffle=shuffle)


def test_batch_sizes_of_every_kind(table: wd.Table) -> None:
    for options in ({}, {"shuffle": True}):
        for bad in (0, -1, 2.5, "8", True, None, 1 << 70):
            with pytest.raises(ValueError, match="batch_size is an integer"):
                table.batches(bad, **options)  # type: ignore[arg-type]
        stream = table.batches(np.int64(50), **options)  # type: ignore[arg-type]
        assert next(stream).num_rows == 50
        json.dumps(stream.state_dict())
        assert [batch.num_rows for batch in table.batches(1 << 62, **options)] == [2200]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": "full"}], ids=str)
def test_a_batch_of_nothing_but_repeats_is_refused(
    table: wd.Table, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows come again and again no data bounds the memory that a batch takes."""
    monkeypatch.setattr("warpdata.ordering.epochs.MAX_FILLED_BYTES", 100_000)
    narrow = table.select("id")
    assert [batch.num_rows for batch in narrow.batches(6000, tail="pad", **options)] == [6000]
    for view in (narrow, narrow.filter("id < 2100"), table):
        with pytest.raises(TooLargeError, match="fill 20000 rows from") as refused:
            list(view.batches(20_000, tail="pad", **options))
        assert "batch_size" in refused.value.hint
    assert [batch.num_rows for batch in narrow.batches(20_000, **options)] == [2200]
    if importlib.util.find_spec("torch") is not None:  # newer Pythons test without it
        with pytest.raises(TooLargeError):
            list(narrow.to_torch(20_000, tail="pad", **options))


def test_batch_dicts(table: wd.Table) -> None:
    first = next(iter(table.batch_dicts(3, columns=["id", "name"])))
    assert first == {"id": [0, 1, 2], "name": ["row 0", "row 1", "row 2"]}


def test_a_dataset_travels_to_other_processes(table: wd.Table) -> None:
    again = pickle.loads(pickle.dumps(table.dataset))
    assert again.version == table.dataset.version
    assert ids(again.table().batches(1000)) == list(range(2200))


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def test_tensors(self, table: wd.Table) -> None:
        batch = next(iter(table.dataset.to_torch(16)))
        assert batch["id"].tolist() == list(range(16))
        assert batch["value"].dtype == self.torch.float64
        assert batch["name"][1] == "row 1"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_ranks_and_workers_multiply(self, table: wd.Table, workers: int) -> None:
        found = []
        for rank in range(2):
            data = table.to_torch(50, shard=(rank, 2), columns=["id"], prefetch="off")
            loader = self.torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)
            found += [i for batch in loader for i in batch["id"].tolist()]
        assert sorted(found) == list(range(2200))

    def test_it_goes_on_from_a_state(self, table: wd.Table) -> None:
        data = table.to_torch(100)
        stream = iter(data)
        first = [next(stream)["id"] for _ in range(3)]
        again = table.to_torch(100)
        again.load_state_dict(data.state_dict())
        rest = [batch["id"] for batch in again]
        assert self.torch.cat(first + rest).tolist() == list(range(2200))
