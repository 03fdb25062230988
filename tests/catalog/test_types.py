"""Filters over every Arrow type a table can have: the rows DuckDB and Arrow choose, in the table's own types."""

from __future__ import annotations

import contextlib
import decimal
import functools
import io
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.catalog.build.tables import ParquetOptions
from warpdata.catalog.read import rowgroups
from warpdata.catalog.read.rowgroups import READS_NULL_LISTS
from warpdata.errors import CorruptLayoutError, DatasetError, UnsupportedDtypeError
from warpdata.sql.columns import engine_columns
from warpdata.sql.engine import RowMatcher, parse_condition

ROWS = 240
GROUP = 50
"""Rows of a row group: a table has several, and the last is shorter."""


def numbers(kind: pa.DataType, low: int = -9, high: int = 9) -> pa.Array:
    chooser = random.Random(str(kind))
    values = [None if chooser.random() < 0.1 else chooser.randint(low, high) for _ in range(ROWS)]
    return pa.array(values, pa.int64()).cast(kind)


def floats(kind: pa.DataType) -> pa.Array:
    chooser = random.Random(str(kind))
    odd = [None, float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
    values = [
        chooser.choice(odd) if chooser.random() < 0.3 else chooser.randint(-90, 90) / 8 for _ in range(ROWS)
    ]
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    return pa.array(values, kind)


def words() -> list[str | None]:
    chooser = random.Random(5)
    return [chooser.choice(["", "a", "b", "ab", "ä", "row", None]) for _ in range(ROWS)]


def times(kind: pa.DataType) -> pa.Array:
    return numbers(pa.int64(), 0, 9).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def decimals(kind: pa.DataType) -> pa.Array:
    return pa.array(
        [None if v is None else decimal.Decimal(v) / 2 for v in numbers(pa.int64()).to_pylist()], kind
    )


def nested(kind: pa.DataType, value: pa.Array) -> pa.Array:
    return pa.array([None if v is None else [v, v] for v in value.to_pylist()], kind)


def extension(kind: pa.ExtensionType, storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, storage)


def columns() -> dict[str, pa.Array]:
    """A column of every type that can be published."""
    found: dict[str, pa.Array] = {"row": pa.array(range(ROWS))}
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        found[str(kind)] = numbers(kind)
    for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        found[str(kind)] = numbers(kind, 0, 9)
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        found[str(kind)] = floats(kind)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found[str(kind)] = pa.array(words(), kind)
        bytes_kind = {"string": pa.binary(), "large_string": pa.large_binary()}.get(
            str(kind), pa.binary_view()
        )
        found[str(bytes_kind)] = pa.array([None if w is None else w.encode() for w in words()], bytes_kind)
    found["fixed"] = pa.array(
        [None if w is None else w.encode().ljust(4, b" ") for w in words()], pa.binary(4)
    )
    found["bool"] = numbers(pa.int8()).cast(pa.bool_())
    found["category"] = pa.array(words()).dictionary_encode()
    found["small category"] = pa.array(words()).cast(pa.dictionary(pa.int8(), pa.large_string()))
    found["numbered category"] = numbers(pa.int64()).dictionary_encode()
    for unit in ("s", "ms", "us", "ns"):
        found[f"duration {unit}"] = (
            numbers(pa.int64()).cast(pa.duration(unit))
            if unit != "ns"
            else pa.array(
                [None if v is None else v * 1000 for v in numbers(pa.int64()).to_pylist()], pa.duration("ns")
            )
        )
        for zone in (None, "UTC") if unit != "us" else (None, "Europe/Berlin", "+05:30"):
            found[f"time {unit} {zone}"] = numbers(pa.int64(), 0, 9).cast(pa.timestamp(unit, zone))
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        found[str(kind)] = times(kind)
    found["date"] = numbers(pa.int32()).cast(pa.date32())
    found["long date"] = numbers(pa.int32()).cast(pa.date32()).cast(pa.date64())
    for kind in (
        pa.decimal32(7, 1), pa.decimal64(15, 1), pa.decimal128(30, 1), pa.decimal256(30, 1), pa.decimal256(60, 1),
    ):  # fmt: skip
        found[str(kind)] = decimals(kind)
    ids = [None if v is None else uuid.UUID(int=v + 9).bytes for v in numbers(pa.int64()).to_pylist()]
    found["uuid"] = pa.array(ids, pa.uuid())
    found["json"] = extension(pa.json_(), pa.array([None if w is None else f'"{w}"' for w in words()]))
    found["bool8"] = extension(pa.bool8(), numbers(pa.int8(), 0, 1))
    found["nothing"] = pa.nulls(ROWS)
    found |= nested_columns()
    return found


def nested_columns() -> dict[str, pa.Array]:
    found = {}
    for child in (pa.int64(), pa.float16(), pa.string_view()):
        value = (
            pa.array(words(), child)
            if child == pa.string_view()
            else floats(child)
            if child == pa.float16()
            else numbers(child)
        )
        for made in (
            pa.list_,
            pa.large_list,
            pa.list_view,
            pa.large_list_view,
            lambda kind: pa.list_(kind, 2),
        ):
            found[f"list {made(child)}"] = nested(made(child), value)
        pairs = [None if v is None else [("k", v)] for v in value.to_pylist()]
        found[f"map {child}"] = pa.array(pairs, pa.map_(pa.string(), child))
        structs = [None if v is None else {"x": v, "y": 1} for v in value.to_pylist()]
        found[f"struct {child}"] = pa.array(structs, pa.struct([("x", child), ("y", pa.int64())]))
    tensor = pa.fixed_shape_tensor(pa.float32(), [2])
    found["tensor"] = extension(tensor, nested(tensor.storage_type, floats(pa.float32())))
    turned = pa.fixed_shape_tensor(pa.float32(), [2, 1], permutation=[1, 0])  # as arrays of numpy become one
    found["turned tensor"] = extension(turned, nested(turned.storage_type, floats(pa.float32())))
    half = pa.fixed_shape_tensor(pa.float16(), [2])
    found["half tensor"] = extension(half, nested(half.storage_type, floats(pa.float16())))
    found["list of categories"] = pa.array([[w] for w in words()]).cast(
        pa.list_(pa.dictionary(pa.int32(), pa.string()))
    )
    return found


def comes_back(column: pa.Array) -> bool:
    """Whether Arrow reads what it wrote."""
    file = io.BytesIO()
    pq.write_table(pa.table([column], names=["x"]), file)
    try:
        pq.read_table(file)
    except pa.ArrowInvalid:
        return False
    return True


COLUMNS = {name: column for name, column in columns().items() if READS_NULL_LISTS or comes_back(column)}
TABLE = pa.table(COLUMNS)
UNSEEN = {"decimal256(60, 1)"}
"""Types SQL has nothing for."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Dataset]:
    catalog = str(tmp_path_factory.mktemp("types") / "catalog")
    with wd.DatasetBuilder("ws/types", catalog=catalog) as builder:
        builder.add_table("main", TABLE, options=ParquetOptions(row_group_rows=GROUP)).publish()
    with wd.dataset("ws/types", catalog=catalog, mode="remote") as dataset:
        yield dataset


@pytest.fixture(scope="module")
def whole(odd: wd.Dataset) -> pa.Table:
    return odd.table().arrow()


def plain_for_duckdb(array: pa.Array) -> pa.Array:
    """The column as a careful person would hand it to DuckDB."""
    kind = array.type
    text = str(kind)
    if "halffloat" in text:
        values = array.to_pylist() if not isinstance(array, pa.ExtensionArray) else array.storage.to_pylist()
        return pa.array(values) if "map" not in text else pa.array(values, pa.map_(pa.string(), pa.float64()))
    if pa.types.is_decimal256(kind):
        return array.cast(pa.decimal128(30, 1))
    return array


@functools.cache
def expected_rows(name: str) -> dict[str, list[int]]:
    """Conditions on a column, and the rows DuckDB chooses from a table of its own into which all was copied."""
    connection = duckdb.connect()
    chooser, column = random.Random(name), f'"{name}"'
    try:
        connection.execute("set TimeZone = 'UTC'")
        connection.register(
            "given", pa.table([range(ROWS), plain_for_duckdb(COLUMNS[name])], names=["n", name])
        )
        connection.execute("create table t as select * from given")
        values = connection.execute(
            f"select distinct {column}::varchar, typeof({column}) from t where {column} is not null"
        ).fetchall()
        found = [f"{column} is null"]
        for text, kind in chooser.sample(sorted(values), min(1, len(values))):
            value = "'" + text.replace("'", "''") + f"'::{kind}"
            found += [
                f"{column} {sign} {value}" for sign in chooser.sample(("=", "<>", "<", "<=", ">", ">="), 3)
            ]
            found += [chooser.choice((f"not ({column} < {value})", f"{column} in ({value}, {value})"))]
        answers = connection.execute(f"select {', '.join(found)} from t order by n").fetchall()
    finally:
        connection.close()
    return {one: [row for row in range(ROWS) if answers[row][i]] for i, one in enumerate(found)}


NAMES = [name for name in COLUMNS if name not in UNSEEN]


@pytest.mark.parametrize("name", NAMES)
def test_every_type_is_compared_as_duckdb_compares_it(whole: pa.Table, name: str) -> None:
    stored = whole.select([name])
    for condition, expected in expected_rows(name).items():
        with contextlib.closing(
            RowMatcher(parse_condition(condition), engine_columns([stored.schema.field(name)]), [name])
        ) as matcher:
            assert matcher.positions(stored).tolist() == expected, condition
            part = matcher.positions(stored.slice(70, 100)).tolist()
            assert part == [row - 70 for row in expected if 70 <= row < 170], condition


@pytest.mark.parametrize("name", NAMES)
def test_filters_keep_the_type_and_agree_with_sql(odd: wd.Dataset, whole: pa.Table, name: str) -> None:
    condition, expected = random.Random(name).choice(
        list(expected_rows(name).items())[1:] or [("true", [*range(ROWS)])]
    )
    found = odd.table().filter(condition).select(["row", name] if name != "row" else ["row"]).arrow()
    found.validate(full=True)
    assert found["row"].to_pylist() == expected, condition
    assert found.column(name).type == whole.schema.field(name).type
    assert str(found.column(name).to_pylist()) == str([whole.column(name)[row].as_py() for row in expected])
    queried = odd.sql(f"select row from main where {condition} order by row").arrow()["row"].to_pylist()
    assert queried == expected, f"in SQL: {condition}"


def test_what_is_published_is_what_was_given(odd: wd.Dataset) -> None:
    found = odd.table().arrow()
    found.validate(full=True)
    for name, column in COLUMNS.items():
        assert str(found[name].to_pylist()) == str(pa.chunked_array([column]).to_pylist()), name


def test_types_stay_but_for_those_that_the_docs_name(tmp_path: Path) -> None:
    milliseconds = {
        pa.date64(): pa.date32(),
        pa.timestamp("s"): pa.timestamp("ms"),
        pa.timestamp("s", "UTC"): pa.timestamp("ms", "UTC"),
        pa.time32("s"): pa.time32("ms"),
    }
    kinds = [
        *milliseconds, pa.date32(), pa.timestamp("us"), pa.time64("ns"), pa.duration("s"), pa.large_string(),
        pa.string_view(), pa.large_binary(), pa.binary_view(), pa.float16(), pa.uint64(), pa.decimal128(5, 2),
        pa.large_list(pa.int8()), pa.list_view(pa.int8()), pa.dictionary(pa.int8(), pa.string()), pa.null(),
    ]  # fmt: skip
    given = pa.table({str(number): pa.nulls(1, kind) for number, kind in enumerate(kinds)})
    with wd.DatasetBuilder("ws/x", catalog=tmp_path) as builder:
        builder.add_table("main", given).publish()
    with wd.dataset("ws/x", catalog=tmp_path) as ds:
        assert ds.table().schema().types == [milliseconds.get(kind, kind) for kind in kinds]


def test_what_an_older_arrow_cannot_read_is_no_damage(
    odd: wd.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = odd.table().files.file(0)
    null_lists = "Expected all lists to be of size=2 but index 5 had size=0"
    for reads, message, kind in (
        (True, null_lists, CorruptLayoutError),
        (False, null_lists, UnsupportedDtypeError),
        (False, "a page is cut", CorruptLayoutError),
    ):
        monkeypatch.setattr(rowgroups, "READS_NULL_LISTS", reads)
        with pytest.raises(kind) as caught, file._translated_errors():
            raise pa.ArrowInvalid(message)
        assert ("pyarrow 26" in caught.value.hint) == (kind is UnsupportedDtypeError)


def test_all_columns_of_all_types_come_with_any_filter(odd: wd.Dataset) -> None:
    whole = odd.table().arrow()
    found = odd.table().filter("row % 7 = 3 -- every seventh").arrow()
    assert found.schema == whole.schema == odd.table().schema()
    assert str(found.to_pylist()) == str([row for row in whole.to_pylist() if row["row"] % 7 == 3])
    stream = odd.table().filter("row >= 30").batches(77)
    assert [batch.num_rows for batch in stream] == [77, 77, 56]


@pytest.mark.parametrize("name", NAMES)
def test_arrow_expressions_choose_what_arrow_chooses(odd: wd.Dataset, whole: pa.Table, name: str) -> None:
    column, rows = whole.column(name), odd.table().select("row")
    found = rows.filter(pc.field(name).is_valid()).arrow()
    assert found["row"].to_pylist() == [
        row for row, valid in enumerate(pc.is_valid(column).to_pylist()) if valid
    ]
    value = next(v for v in [*column, None] if v is None or v.is_valid)
    if value is None:
        return
    try:
        expected = np.flatnonzero(pc.fill_null(pc.equal(column, value), False).to_numpy())
    except pa.ArrowNotImplementedError:
        with pytest.raises(DatasetError, match="does not fit"):
            rows.filter(pc.field(name) == value).arrow()
        return
    assert rows.filter(pc.field(name) == value).arrow()["row"].to_pylist() == expected.tolist()


def test_a_column_sql_cannot_hold_blocks_nothing_else(odd: wd.Dataset) -> None:
    (name,) = UNSEEN
    assert odd.sql("select count(*) as n from main").arrow()["n"].to_pylist() == [ROWS]
    only = odd.table().select([name])
    assert only.filter("row < 60").arrow().column(name).type == pa.decimal256(60, 1)
    for use in (
        lambda: odd.sql(f'select "{name}" from main').arrow(),
        lambda: odd.sql("select * from main").arrow(),
        lambda: odd.table().filter(f'"{name}" > 1').head(),
    ):
        with pytest.raises(DatasetError, match=r"column 'decimal256\(60, 1\)' of type decimal256\(60, 1\)"):
            use()
    above = odd.table().filter(pc.field(name) > decimal.Decimal(3)).arrow()
    assert above.num_rows == sum(v is not None and v > 3 for v in COLUMNS[name].to_pylist())


@pytest.mark.parametrize("names", [("x", "X"), ("x", "x")])
def test_fields_that_sql_cannot_tell_apart_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    """Asked for the second, the engine gives the first."""
    pairs = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([2, 1])], names=names)
    table = pa.table(
        {"id": [1, 2], "s": pairs, "l": pa.array([[pair] for pair in pairs], pa.list_(pairs.type))}
    )
    with wd.DatasetBuilder("ws/f", catalog=str(tmp_path / "c")) as builder:
        builder.add_table("main", table).publish()
    with wd.dataset("ws/f", catalog=str(tmp_path / "c")) as dataset:
        rows = dataset.table()
        assert rows.filter("id = 1").arrow().select(["s"]).equals(table.slice(0, 1).select(["s"]))
        assert dataset.sql("select id from main").arrow()["id"].to_pylist() == [1, 2]
        for condition in ('s."X" = 1', "l[1].x = 1"):
            with pytest.raises(DatasetError, match="SQL cannot look at column"):
                rows.filter(condition).arrow()
            with pytest.raises(DatasetError) as caught:
                dataset.sql(f"select id from main where {condition}").arrow()
            assert "cannot look at column 's'" in str(caught.value.hint)


def test_a_duration_that_sql_would_round_is_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "d": pa.array([1001, 2000], pa.duration("ns"))})
    with wd.DatasetBuilder("ws/d", catalog=str(tmp_path / "c")) as builder:
        builder.add_table("main", table).publish()
    with wd.dataset("ws/d", catalog=str(tmp_path / "c")) as dataset:
        assert dataset.table().filter("id = 1").arrow()["d"].cast(pa.int64()).to_pylist() == [1001]
        with pytest.raises(DatasetError, match="column 'd'"):
            dataset.table().filter("d > interval 1 microsecond").arrow()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Dataset]:
    catalog = str(tmp_path_factory.mktemp("selection") / "catalog")
    ids = list(range(400))
    table = pa.table(
        {"id": ids, "value": [i * 0.5 for i in ids], "Word": [f"w{i % 3}" for i in ids], "x y": ids}
    )
    with wd.DatasetBuilder("ws/s", catalog=catalog) as builder:
        builder.add_table("main", table, options=ParquetOptions(row_group_rows=100))
        builder.add_table("labels", {"id": [3, 250, 399, None], "label": ["a", "b", "a", "b"]})
        builder.publish()
    with wd.dataset("ws/s", catalog=catalog, mode="remote") as opened:
        yield opened


class TestSelection:
    """What a condition reads, and what it means."""

    CONDITIONS: ClassVar = {
        "value > (select avg(value) from t)": lambda i: i * 0.5 > 199.5 / 2,
        "value = (select max(value) from main)": lambda i: i == 399,
        "id in (select id from labels)": lambda i: i in (3, 250, 399),
        "id not in (select id from labels where id is not null)": lambda i: i not in (3, 250, 399),
        "exists (select 1 from labels where labels.id = t.id and label = 'a')": lambda i: i in (3, 399),
        "id >= (select count(*) from t) - 5": lambda i: i >= 395,
        "id > 390 -- the last ones": lambda i: i > 390,
        "id > 390 /* the last ones */": lambda i: i > 390,
        "-- the last ones\nid > 390": lambda i: i > 390,
        "t.id > 390": lambda i: i > 390,
        "ID > 390 and word = 'w1'": lambda i: i > 390 and i % 3 == 1,
        '"x y" < 3': lambda i: i < 3,
        "#1 < 3": lambda i: i < 3,
        "1 = 1": lambda i: True,
        "1 = 0": lambda i: False,
        "null": lambda i: False,
        "id * 0 = 0": lambda i: True,
        "id = id": lambda i: True,
        "id > 5 or id <= 5": lambda i: True,
        "now() is not null and id < 2": lambda i: i < 2,
        "len(list_filter([id, 1], lambda x: x > 1)) = 1 and id < 4": lambda i: 1 < i < 4,
        "case when id > 3 then false else true end": lambda i: i <= 3,
        "columns(*) is not null": lambda i: True,
        "columns('^(id|x y)$') between 3 and 5": lambda i: 3 <= i <= 5,
        "columns(lambda c: c <> 'Word') < 3": lambda i: i < 3,
        "#4 < 3": lambda i: i < 3,
        "t = {'id': 5, 'value': 2.5, 'Word': 'w2', 'x y': 5}": lambda i: i == 5,
        "to_json(t) = to_json({'id': 7, 'value': 3.5, 'Word': 'w1', 'x y': 7})": lambda i: i == 7,
        "(id, value, Word, id) in (select * from t where id > 390)": lambda i: i > 390,
        "id in (select columns('id') from t where id < 3)": lambda i: i < 3,
        "exists (select * from labels where labels.id = t.id)": lambda i: i in (3, 250, 399),
        "random() >= 0": lambda i: True,
    }

    @pytest.mark.parametrize("condition", CONDITIONS)
    def test_conditions(self, dataset: wd.Dataset, condition: str) -> None:
        expected = [i for i in range(400) if self.CONDITIONS[condition](i)]
        view = dataset.table().filter(condition)
        assert view.arrow()["id"].to_pylist() == expected
        assert view.select("Word").head(5)["Word"].to_pylist() == [f"w{i % 3}" for i in expected[:5]]
        assert view.count() == len(expected)
        assert view.sql("select id from t order by id").arrow()["id"].to_pylist() == expected
        parts = [b for rank in range(3) for b in view.select("id").batches(64, shard=(rank, 3))]
        assert sorted(i for batch in parts for i in batch["id"].to_pylist()) == expected
        again = view.filter("id % 2 = 0 -- even").filter("id >= 0")
        assert again.arrow()["id"].to_pylist() == [i for i in expected if i % 2 == 0]
        if expected:
            assert view.take([-1, 0])["id"].to_pylist() == [expected[-1], expected[0]]

    @pytest.mark.parametrize("rows", ["columns(*) is not null", "#1 > 3", "t is not null"])
    def test_whole_rows_and_subqueries_do_not_meet(self, dataset: wd.Dataset, rows: str) -> None:
        view = dataset.table().filter(f"{rows} and id in (select id from labels)")
        with pytest.raises(DatasetError, match="cannot look at whole rows") as refused:
            view.count()
        assert "Name the columns" in refused.value.hint

    def test_a_filter_that_is_chance_is_asked_once(self, dataset: wd.Dataset) -> None:
        view = dataset.table().filter("random() < 0.5")
        for _ in range(5):
            assert view.take([-1, 0]).num_rows == 2

    def test_the_clock_stands_still_during_a_pass(self, dataset: wd.Dataset) -> None:
        view = dataset.table().filter("id % 100 = 0 and now() = (now() + interval 0 second)")
        assert view.arrow().num_rows == 4

    def test_only_the_columns_named_are_read(self, dataset: wd.Dataset) -> None:
        def cost(view: wd.Table) -> int:
            before = dataset.spent.bytes_read
            view.count()
            return dataset.spent.bytes_read - before

        cost(dataset.table().filter("id >= 0"))  # with what is read once
        narrow = cost(dataset.table().filter("id >= 0"))
        assert (
            0 < narrow < cost(dataset.table().filter("id >= 0 and value >= 0 and word > '' and \"x y\" >= 0"))
        )
        assert cost(dataset.table().filter("id >= 300")) <= narrow

    def test_a_misspelt_column_is_named(self, dataset: wd.Dataset) -> None:
        with pytest.raises(DatasetError) as refused:
            dataset.table().filter("valeu > 1").head()
        assert "Did you mean 'value'?" in refused.value.hint
        with pytest.raises(ValueError, match=r"Did you mean 'value'\?"):
            dataset.table().select("valeu")

    def test_nan_is_above_every_number(self, tmp_path: Path) -> None:
        """Statistics of a row group say nothing of NaN, so they may not rule the group out."""
        values = [1.0, float("nan"), 2.0, 3.0]
        with wd.DatasetBuilder("ws/nan", catalog=str(tmp_path / "c")) as builder:
            builder.add_table("main", {"x": values}, options=ParquetOptions(row_group_rows=2)).publish()
        with wd.dataset("ws/nan", catalog=str(tmp_path / "c")) as dataset:
            assert dataset.table().filter("x > 5").count() == 1
            assert dataset.table().filter("x >= 2").count() == 3
            assert dataset.table().filter("x < 5").count() == 3


def with_names(*names: str) -> pa.Table:
    return pa.table([pa.array([number, number + 10]) for number in range(len(names))], names=list(names))


class TestNames:
    @pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "A"), ("Id", "x", "ID")])
    def test_columns_nobody_can_tell_apart_are_not_published(
        self, tmp_path: Path, names: tuple[str, ...]
    ) -> None:
        pq.write_table(with_names(*names), tmp_path / "a.parquet")
        with wd.DatasetBuilder("ws/n", catalog=str(tmp_path / "c")) as builder:
            for source in (with_names(*names), tmp_path / "a.parquet"):
                with pytest.raises(DatasetError, match="two columns"):
                    builder.add_table("main", source)
            builder.add_table("main", with_names("é", "É", "a.b", "a")).publish()

    @pytest.mark.parametrize("name", ["__warp_row__", "__warp_position__", "__WARP_x"])
    def test_names_of_columns_of_ours_are_not_published(self, tmp_path: Path, name: str) -> None:
        with (
            wd.DatasetBuilder("ws/n", catalog=str(tmp_path / "c")) as builder,
            pytest.raises(DatasetError, match=f"column '{name}'"),
        ):
            builder.add_table("main", with_names("a", name))

    def test_a_column_called_as_the_view_is_that_column(self, tmp_path: Path) -> None:
        """A column that SQL cannot hold is in nobody's way."""
        large = pa.array([decimal.Decimal(10) ** 40] * 3, pa.decimal256(50, 0))
        with wd.DatasetBuilder("ws/n", catalog=str(tmp_path / "c")) as builder:
            builder.add_table("main", pa.table({"t": [1, 2, 3], "large": large})).publish()
        with wd.dataset("ws/n", catalog=str(tmp_path / "c")) as dataset:
            for condition in ("t > 1", "T > 1", "t.t > 1", '"t" in (2, 3)'):
                assert dataset.table().filter(condition).select("t").arrow()["t"].to_pylist() == [2, 3]

    @pytest.fixture
    def old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wd.Dataset]:
        """A dataset from the time when such names were published."""
        monkeypatch.setattr("warpdata.catalog.build.tables.check_names", lambda *_: None)
        with wd.DatasetBuilder("ws/old", catalog=str(tmp_path / "c")) as builder:
            builder.add_table("main", with_names("a", "b", "a", "B", "c")).publish()
        with wd.dataset("ws/old", catalog=str(tmp_path / "c")) as dataset:
            yield dataset

    def test_old_datasets_that_have_them_stay_readable(self, old: wd.Dataset) -> None:
        table = old.table()
        assert table.head().num_columns == 5
        assert [b.num_rows for b in table.batches(1)] == [1, 1]
        assert [c.to_pylist() for c in table.filter("c = 14").arrow().columns] == [
            [10],
            [11],
            [12],
            [13],
            [14],
        ]
        assert [c.to_pylist() for c in table.take([1]).columns] == [[10], [11], [12], [13], [14]]
        assert table.select(["B", "c"]).arrow().to_pydict() == {"B": [3, 13], "c": [4, 14]}
        assert table.filter("B = 13").count() == table.filter("b = 11").count() == 1
        assert old.sql("select * from main").arrow().to_pydict() == {
            "a": [0, 10], "b": [1, 11], "a_1": [2, 12], "B_1": [3, 13], "c": [4, 14],
        }  # fmt: skip
        for use in (lambda: table.select("a"), lambda: table.filter("a = 0").head()):
            with pytest.raises(DatasetError, match="two columns called 'a'"):
                use()


UNWRITABLE: dict[str, Any] = {
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([5])),
    "union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
    "empty struct": pa.array([{}, {}]),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_types_that_parquet_lacks_are_refused_by_name(tmp_path: Path, name: str) -> None:
    table = pa.table({"id": [1, 2], name: UNWRITABLE[name]})
    with (
        wd.DatasetBuilder("ws/x", catalog=str(tmp_path / "c")) as builder,
        pytest.raises(DatasetError, match=f"column '{name}'"),
    ):
        builder.add_table("main", table)
