"""Views and references used in unusual but legitimate ways: any index, any order, other processes, after closing."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import warpdata as wd
from tests.published import publish_demo
from warpdata.catalog.access import parse_size
from warpdata.catalog.manage.reports import loader_code
from warpdata.errors import DatasetError, TooLargeError


@pytest.fixture
def demo(local_catalog: str, picture_folder: Path):
    publish_demo(local_catalog, picture_folder)
    with wd.dataset("ws/demo", catalog=local_catalog) as dataset:
        yield dataset


def ids(table: wd.Table, **options) -> list[int]:
    return [i for batch in table.select("id").batches(97, **options) for i in batch["id"].to_pylist()]


CONDITIONS = [
    ["id >= 990", "value < 498"],
    [pc.field("id") >= 990, pc.field("value") < 498],
    ["id >= 990", pc.field("value") < 498],
    [pc.field("name").isin([f"row {i}" for i in range(990, 996)])],
]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
class TestFilters:
    def view(self, demo: wd.Dataset, conditions: list) -> wd.Table:
        view = demo.table()
        for condition in conditions:
            view = view.filter(condition)
        return view

    def test_conditions_may_name_columns_that_are_not_selected(self, demo: wd.Dataset, conditions) -> None:
        assert ids(self.view(demo, conditions)) == list(range(990, 996))

    def test_they_hold_everywhere(self, demo: wd.Dataset, conditions) -> None:
        view = self.view(demo, conditions)
        assert view.count() == 6
        assert view.head(3)["id"].to_pylist() == [990, 991, 992]
        assert view.sql("select max(id) as m from t").arrow()["m"].to_pylist() == [995]
        assert view.sql("select count(*) as n from main").arrow()["n"].to_pylist() == [1000]
        assert sorted(ids(view, shard=(0, 2)) + ids(view, shard=(1, 2))) == list(range(990, 996))
        assert ids(view, limit=2) == [990, 991]
        assert sorted(ids(view, limit=3, shard=(0, 2)) + ids(view, limit=3, shard=(1, 2))) == [990, 991, 992]

    def test_they_travel_and_go_on(self, demo: wd.Dataset, conditions) -> None:
        view = pickle.loads(pickle.dumps(self.view(demo, conditions)))
        stream = view.select("id").batches(2)
        assert next(stream)["id"].to_pylist() == [990, 991]
        later = view.select("id").batches(10)
        later.load_state_dict(stream.state_dict())
        assert next(later)["id"].to_pylist() == [992, 993, 994, 995]
        with pytest.raises(ValueError, match="filter"):
            demo.table().batches(10).load_state_dict(stream.state_dict())


def test_a_filter_that_makes_no_sense_is_refused(demo: wd.Dataset) -> None:
    with pytest.raises(ValueError, match="empty"):
        demo.table().filter("  ")
    with pytest.raises(TypeError, match="SQL text or an Arrow expression"):
        demo.table().filter(lambda row: row)
    with pytest.raises(DatasetError):
        demo.table().filter(pc.field("nothing") > 1).head()
    with pytest.raises(DatasetError):
        demo.table().filter("nothing > 1").head()


def test_a_view_in_sql_has_its_columns(demo: wd.Dataset) -> None:
    view = demo.table().select(["id"]).filter("value < 1")
    assert view.sql("select * from t").arrow().to_pydict() == {"id": [0, 1]}


def test_references_by_any_index(demo: wd.Dataset) -> None:
    batch = next(demo.table().batches(10))
    column = batch["image"]
    assert column[np.int64(3)].name == column[3].name == column[-7].name == "a/003.png"
    assert (
        [ref.name for ref in column[2:4]] == [ref.name for ref in column][2:4] == ["a/002.png", "a/003.png"]
    )
    for key in (
        slice(2, 9, 3),
        slice(None, None, -7),
        [5, -1, 5],
        np.array([4, 0]),
        range(3),
        ...,
        (),
        (slice(1, 4),),
    ):
        expected = np.arange(len(column))[key]
        assert [ref.name for ref in column[key]] == [column[int(i)].name for i in expected]
    for wrong in (len(column), True, None, (1, 2), [0, len(column)], 1.0, "a", [True] * len(column)):
        with pytest.raises(IndexError):
            column[wrong]
    assert pa.Table.from_batches([batch])["image"][3].as_py().as_numpy()[0, 0, 0] == 15
    with pytest.raises(IndexError):
        column[10]


def test_references_one_by_one_read_each_file_once(demo: wd.Dataset) -> None:
    batch = next(demo.table().batches(40))
    batch["image"][0].read_bytes()
    before = demo.spent
    for i in random.Random(0).sample(range(1, 40), 39):
        assert batch["image"][i].as_numpy()[0, 0, 0] == i * 5
    assert demo.spent == before


def test_references_in_any_order_fetch_each_file_once(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with wd.dataset("ws/demo", catalog=local_catalog, mode="remote") as dataset:
        refs = next(dataset.table().batches(40))["image"].refs()
        total = sum(ref.size for ref in refs)
        before = dataset.spent.bytes_read
        for i in random.Random(1).sample(range(40), 40):
            refs[i].read_bytes()
        gaps = 40 * 1536
        assert dataset.spent.bytes_read - before <= total + gaps


def test_references_of_another_version_are_others(local_catalog: str, picture_folder: Path) -> None:
    """They have the same names, and may have other bytes."""
    found = []
    for which in range(2):
        publish_demo(local_catalog, picture_folder)
        with wd.dataset("ws/demo", catalog=local_catalog) as dataset:
            found += [dataset.ref("pictures", "a/007.png"), dataset.ref("pictures", "a/007.png", "image")]
        (picture_folder / "a" / "007.png").write_bytes((picture_folder / "a" / f"00{which}.png").read_bytes())
    assert found[0] == found[1] == pickle.loads(pickle.dumps(found[0]))
    assert len({*found}) == 2
    assert found[0] != found[2]


def test_references_travel_to_other_processes(demo: wd.Dataset) -> None:
    refs = next(demo.table().batch_dicts(3))["image"]
    again = pickle.loads(pickle.dumps(refs))
    assert [type(ref) for ref in again] == [wd.ImageRef] * 3
    assert wd.read_refs(again) == wd.read_refs(refs)
    alone = pickle.loads(pickle.dumps(demo.ref("pictures", "a/007.png", "image")))
    assert alone.as_numpy()[0, 0, 0] == 35
    with pytest.raises(ValueError, match="ref_type"):
        demo.ref("pictures", "a/007.png", "smell")


def test_references_come_back_from_dataloader_workers(demo: wd.Dataset) -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(demo.to_torch(100, limit=200), batch_size=None, num_workers=1)
    found = [ref.name for batch in loader for ref in batch["image"]]
    assert found == [f"a/{i % 40:03d}.png" for i in range(200)]


def test_dictionaries_take_the_options_of_batches_and_go_on(demo: wd.Dataset) -> None:
    stream = demo.table().batch_dicts(2, ["id"], shard=(0, 1), limit=5)
    assert next(stream) == {"id": [0, 1]}
    later = demo.table().batch_dicts(10, "id", limit=5)
    later.load_state_dict(stream.state_dict())
    assert list(later) == [{"id": [2, 3, 4]}]
    stream.close()


def test_a_world_without_a_rank_is_refused(demo: wd.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="neither RANK nor LOCAL_RANK"):
        demo.table().batches(10, shard="auto")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert ids(demo.table(), shard="auto") == list(range(500, 750))


def test_a_closed_dataset_says_so(local_catalog: str, picture_folder: Path) -> None:
    publish_demo(local_catalog, picture_folder)
    with wd.dataset("ws/demo", catalog=local_catalog) as dataset:
        table = dataset.table()
        batch = next(table.batches(5))
    for use in (dataset.table, table.head, lambda: table.batches(5), lambda: dataset.sql("select 1")):
        with pytest.raises(DatasetError, match="closed"):
            use()
    assert batch["image"][2].as_numpy()[0, 0, 0] == 10


@pytest.mark.parametrize("size", [np.int64(7), 7.0, 7, "7"])
def test_sizes_are_any_numbers(size: object) -> None:
    assert parse_size(size) == 7


@pytest.mark.parametrize("size", [-1, float("nan"), 1e30, 10**400, "9" * 400, "99999999TB", "lots"])
def test_sizes_that_are_none(size: object) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(size)


def test_one_table_may_be_named_without_a_list(demo: wd.Dataset) -> None:
    assert demo.warm("main") == demo.warm(["main"])


def test_a_loader_knows_its_catalog_and_bears_nulls(local_catalog: str, picture_folder: Path) -> None:
    with wd.DatasetBuilder("ws/nulls", catalog=local_catalog) as builder:
        builder.add_artifact("raw", picture_folder)
        builder.add_table("main", {"image": ["a/001.png", None]}).bind(
            "main", "image", "raw", "image"
        ).publish()
    with wd.dataset("ws/nulls", catalog=local_catalog) as dataset:
        scope: dict = {"__name__": "loader"}
        exec(loader_code(dataset), scope)
    (batch,) = scope["train_stream"](shard=None)
    assert batch["image"][0].shape == (8, 8, 3)
    assert batch["image"][1] is None


def test_a_loader_needs_a_table(local_catalog: str, picture_folder: Path) -> None:
    with wd.DatasetBuilder("ws/raw", catalog=local_catalog) as builder:
        builder.add_artifact("raw", picture_folder).publish()
    with (
        wd.dataset("ws/raw", catalog=local_catalog) as dataset,
        pytest.raises(DatasetError, match="no table"),
    ):
        loader_code(dataset)


def test_errors_have_their_names_at_the_front_door() -> None:
    assert issubclass(wd.errors.PermissionError, PermissionError)
    assert issubclass(wd.DatasetNotFoundError, wd.WarpError)
    with pytest.raises(AttributeError, match="Nonsense"):
        wd.errors.Nonsense  # noqa: B018


def test_relative_places_hold_wherever_one_goes(
    tmp_path: Path, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_demo("here", picture_folder)
    with wd.dataset("ws/demo", catalog="here", cache_dir="cache") as dataset:
        monkeypatch.chdir("/")
        assert pickle.loads(pickle.dumps(dataset)).table().head().num_rows == 5
        assert dataset.ref("pictures", "a/003.png").local_path().parent.is_relative_to(tmp_path / "cache")


class TestAllOfItInMemory:
    def test_what_a_view_leaves_out_does_not_count(self, demo: wd.Dataset) -> None:
        table = demo.table()
        assert table.filter("id < 5").arrow(max_rows=5).num_rows == 5
        assert table.select("id").arrow(max_bytes=10_000).num_rows == 1000
        for call in (table.filter("id < 6").arrow, table.filter("id < 6").pandas, table.arrow):
            with pytest.raises(TooLargeError, match=r"table 'main' has (at least )?(6|1000) rows"):
                call(max_rows=5)
        for view in (table, table.select("id"), table.select("id").filter("id < 900")):
            with pytest.raises(TooLargeError):
                view.polars(max_bytes=5000)

    def test_results_of_queries_have_limits_too(self, demo: wd.Dataset) -> None:
        query = "select i, repeat('x', 1000) as s from range(1000000000) r(i)"  # no machine holds it
        for call in ("arrow", "pandas", "polars"):
            with pytest.raises(TooLargeError, match="result of the query has at least") as refused:
                getattr(demo.sql(query), call)(max_bytes=1 << 20)
            assert "batches()" in refused.value.hint
            with pytest.raises(TooLargeError):
                getattr(demo.sql(query), call)(max_rows=9)
        assert demo.sql("select id from main").arrow(max_rows=1000, max_bytes=10_000).num_rows == 1000
        assert next(iter(demo.sql(query))).num_rows > 0

    def test_rows_asked_for_by_number_have_the_limit_of_memory(
        self, demo: wd.Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert demo.table().head(1 << 62).num_rows == 1000
        monkeypatch.setattr("warpdata.catalog.table.MAX_BYTES", 1000)
        with pytest.raises(TooLargeError):
            demo.table().head(1 << 62)

    def test_a_result_is_read_once(self, demo: wd.Dataset) -> None:
        """A second reading gave no rows, as if there were none."""
        result = demo.sql("select id from main")
        assert result.arrow().num_rows == 1000
        assert result.schema.names == ["id"]
        for again in (result.arrow, result.pandas, result.batches, lambda: list(result)):
            with pytest.raises(DatasetError, match="read already"):
                again()
        begun = demo.sql("select id from main")
        next(iter(begun))
        with pytest.raises(DatasetError, match="read already"):
            begun.arrow()
