"""Conditions of any shape over small row groups: the rows that DuckDB and Arrow choose from the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.catalog.build.tables import ParquetOptions

ROWS = 60
GROUP = 2
NAN = float("nan")
FLOATS = [1.0, 1.0, 1.0, 2.0, -0.0, 0.0, NAN, NAN, float("inf"), float("-inf"), None]
INTEGERS = [1, 1, 1, 2, -3, 0, None]
WORDS = ["a", "a", "b", "", "ä", None]


def table() -> pa.Table:
    """Groups so small that the statistics of many say "always 1", beside a NaN or a null that they leave out."""
    chooser = random.Random(3)

    def drawn(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([chooser.choice(values) for _ in range(ROWS)], kind)

    inner = pa.StructArray.from_arrays(
        [drawn(FLOATS, pa.float64()), drawn(INTEGERS, pa.int16())],
        ["x", "n"],
        mask=pa.array([chooser.random() < 0.1 for _ in range(ROWS)]),
    )
    columns = {
        "zz": pa.array(range(ROWS)), "x": drawn(FLOATS, pa.float64()), "y": drawn(FLOATS, pa.float32()),
        "n": drawn(INTEGERS, pa.int32()), "w": drawn(list(WORDS), pa.string()), "s": inner,
    }  # fmt: skip
    return pa.table(columns)


TABLE = table()
COLUMNS = {"x": FLOATS, "y": FLOATS, "n": INTEGERS, "w": WORDS, "s.x": FLOATS, "s.n": INTEGERS}
SIGNS = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wd.Dataset]:
    catalog = str(tmp_path_factory.mktemp("filters") / "catalog")
    with wd.DatasetBuilder("ws/f", catalog=catalog) as builder:
        builder.add_table("main", TABLE, options=ParquetOptions(row_group_rows=GROUP)).publish()
    with wd.dataset("ws/f", catalog=catalog) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.register("given", TABLE)
    connection.execute("create table main as select * from given")
    yield connection
    connection.close()


def in_sql(value: object) -> str:
    if isinstance(value, float):
        return f"'{value}'::double"
    return f"'{value}'" if isinstance(value, str) else str(value)


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[pc.Expression, str]:
    """A question about one column, for Arrow and for DuckDB."""
    name = draw(st.sampled_from(sorted(COLUMNS)))
    known = [value for value in COLUMNS[name] if value is not None]
    value = draw(st.sampled_from(known))
    column, text = pc.field(*name.split(".")), f"main.{name}"
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "nan", "arithmetic"]))
    if kind == "null":
        return column.is_null(), f"{text} is null"
    if kind == "in":
        # Arrow finds -0.0 and 0.0 to be two members of a set.
        several = [value, draw(st.sampled_from(known))]
        several = [each for each in several if each != 0 or isinstance(each, int | str)] or [known[0]]
        return column.isin(several), f"({text} in ({', '.join(map(in_sql, several))}) and {text} is not null)"
    if kind == "nan" and isinstance(value, float):
        return pc.is_nan(column), f"isnan({text})"
    if kind == "arithmetic" and not isinstance(value, str):
        return pc.add(column, 1) != 2, f"{text} + 1 <> 2"
    sign = draw(st.sampled_from(sorted(SIGNS)))
    return getattr(column, SIGNS[sign])(value), f"{text} {sign} {in_sql(value)}"


def joined(
    parts: st.SearchStrategy[tuple[pc.Expression, str]],
) -> st.SearchStrategy[tuple[pc.Expression, str]]:
    return st.one_of(
        st.tuples(parts, parts).map(lambda two: (two[0][0] & two[1][0], f"({two[0][1]} and {two[1][1]})")),
        st.tuples(parts, parts).map(lambda two: (two[0][0] | two[1][0], f"({two[0][1]} or {two[1][1]})")),
        parts.map(lambda one: (~one[0], f"(not {one[1]})")),
    )


CONDITIONS = st.recursive(comparisons(), joined, max_leaves=5)


@settings(max_examples=enough_examples(15), deadline=None)
@given(condition=CONDITIONS)
def test_no_row_is_ruled_out_that_the_condition_keeps(
    dataset: wd.Dataset, engine: duckdb.DuckDBPyConnection, condition: tuple[pc.Expression, str]
) -> None:
    expression, text = condition
    rows = dataset.table().select("zz")
    kept = rows.filter(expression)
    expected = TABLE.filter(expression)["zz"].to_pylist()
    assert kept.arrow()["zz"].to_pylist() == expected
    assert kept.row_numbers().tolist() == expected
    wanted = [row for (row,) in engine.execute(f"select zz from main where {text} order by zz").fetchall()]
    assert rows.filter(text.replace("main.", "")).arrow()["zz"].to_pylist() == wanted
    assert dataset.sql(f"select zz from main where {text} order by zz").arrow()["zz"].to_pylist() == wanted


def test_a_float_costs_no_row_group_that_it_can_rule_out(
    dataset: wd.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NaN satisfies nothing, groups are left out as before; so are those that another column rules out."""
    monkeypatch.setattr("warpdata.catalog.read.rowgroups._GROUP_ROWS", 0)
    with wd.dataset("ws/f", catalog=dataset.catalog.address) as reopened:
        file = reopened.table().files.file(0)
        groups = range(len(file.group_rows))
        for expression in (pc.field("x") > 1e9, (pc.field("x") != 1) & (pc.field("zz") > 50)):
            kept = file.matching_groups(groups, expression)
            assert 0 < len(kept) < len(groups) / 2


def test_columns_by_number_are_those_of_the_table(dataset: wd.Dataset) -> None:
    for number, name in enumerate(["zz", "x", "y", "n", "w"]):
        expression = pc.field(number).is_null()
        expected = TABLE.filter(pc.field(name).is_null())["zz"].to_pylist()
        view = dataset.table().filter(expression)
        assert view.arrow()["zz"].to_pylist() == expected
        assert (
            view.select("n").arrow()["n"].to_pylist()
            == TABLE["n"].take(pa.array(expected, pa.int64())).to_pylist()
        )
        assert view.count() == len(expected)
