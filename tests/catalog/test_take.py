"""Single rows by number: any order, any view, and no more is read than the row groups that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples

SHARDS = (7, 0, 12, 5)
COUNT = sum(SHARDS)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Table]:
    folder = tmp_path_factory.mktemp("take")
    ids = iter(range(COUNT))
    for number, rows in enumerate(SHARDS):
        own = [next(ids) for _ in range(rows)]
        words = pa.array([f"w{i}" for i in own], pa.string_view())
        kinds = pa.array([str(i % 3) for i in own], pa.string()).dictionary_encode()
        part = pa.table({"id": pa.array(own, pa.int64()), "word": words, "kind": kinds})
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=4)
    with wd.DatasetBuilder("ws/take", catalog=str(folder / "catalog")) as builder:
        builder.add_table("main", str(folder / "*.parquet")).publish()
    with wd.dataset("ws/take", catalog=str(folder / "catalog"), mode="remote") as dataset:
        yield dataset.table()


@settings(
    max_examples=enough_examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(st.integers(-COUNT, COUNT - 1), max_size=40), is_filtered=st.booleans())
def test_it_is_what_taking_from_the_whole_gives(table: wd.Table, rows: list[int], is_filtered: bool) -> None:
    view = table.filter("id % 2 = 1") if is_filtered else table
    numbers = [row // 2 for row in rows] if is_filtered else rows
    ids = np.arange(COUNT)[1::2] if is_filtered else np.arange(COUNT)
    found = view.take(numbers)
    found.validate(full=True)
    assert found.schema == table.schema()
    assert found["id"].to_pylist() == ids[numbers].tolist() if numbers else found.num_rows == 0
    assert found["word"].to_pylist() == [f"w{i}" for i in found["id"].to_pylist()]
    assert found["kind"].to_pylist() == [str(i % 3) for i in found["id"].to_pylist()]


def test_columns_and_kinds_of_numbers(table: wd.Table) -> None:
    assert table.take(np.array([3, 3, 0], np.uint8), "id").to_pydict() == {"id": [3, 3, 0]}
    assert table.select(["kind", "id"]).take((20,)).to_pylist() == [{"kind": "2", "id": 20}]
    assert table.take(range(-COUNT, COUNT), columns="id").to_pydict() == {"id": 2 * list(range(COUNT))}
    assert table.take(range(2), columns=["word"]).to_pydict() == {"word": ["w0", "w1"]}
    assert table.take(pa.array([1])).num_rows == 1


@pytest.mark.parametrize("rows", [[COUNT], [-COUNT - 1], [0, 10**30], range(2**50)])
def test_rows_that_are_not_there(table: wd.Table, rows: list[int]) -> None:
    with pytest.raises(IndexError):
        table.take(rows)
    for none in ([0], range(1)):
        with pytest.raises(IndexError):
            table.filter("false").take(none)


@pytest.mark.parametrize("rows", [3, [1.5], ["a"], [True, False], [[1]]])
def test_what_is_no_list_of_rows(table: wd.Table, rows: object) -> None:
    with pytest.raises(TypeError, match="row numbers"):
        table.take(rows)


def test_a_mask_is_told_how_to_become_numbers(table: wd.Table) -> None:
    mask = np.arange(COUNT) % 7 == 3
    with pytest.raises(TypeError, match=r"np.flatnonzero\(mask\)"):
        table.take(mask)  # type: ignore[arg-type]
    assert table.take(np.flatnonzero(mask), "id").num_rows == int(mask.sum())


def test_only_the_row_groups_are_read(table: wd.Table) -> None:
    dataset = table.dataset
    table.take([0])
    before = dataset.spent
    table.take([1, 2, 3])
    one = dataset.spent.bytes_read - before.bytes_read
    before = dataset.spent
    table.arrow()
    assert 0 < one < (dataset.spent.bytes_read - before.bytes_read) / 3
