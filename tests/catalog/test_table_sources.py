"""What a table can be made of: CSV, JSON lines, dictionaries, generators, frames."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from warpdata.catalog.build import tables
from warpdata.catalog.build import tables as rowsources
from warpdata.catalog.build.tables import ParquetOptions, write_shards
from warpdata.cli.main import main
from warpdata.errors import DatasetError


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., pa.Table]:
    """The table that comes out when something was put in."""

    def publish(source: Any, options: ParquetOptions | None = None) -> pa.Table:
        with wd.DatasetBuilder("ws/made", catalog=str(tmp_path / "catalog")) as builder:
            builder.add_table("main", source, options=options).publish()
        with wd.dataset("ws/made", catalog=str(tmp_path / "catalog")) as dataset:
            return dataset.table().arrow()

    return publish


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and rows are taken in many steps, as large ones are."""
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(rowsources, "_CHUNK_ROWS", 3)


class TestCsv:
    def test_types_are_found(self, tmp_path: Path, published) -> None:
        text = 'id,share,word,day,empty\n1,0.5,a,2020-01-02,\n2,,"b,\nc",2021-01-01,\n'
        (tmp_path / "a.csv").write_text(text)
        table = published(tmp_path / "a.csv")
        assert [str(kind) for kind in table.schema.types] == [
            "int64",
            "double",
            "string",
            "date32[day]",
            "null",
        ]
        assert table["word"].to_pylist() == ["a", "b,\nc"]

    @pytest.mark.usefixtures("small_steps")
    @pytest.mark.parametrize(
        ("early", "late", "kind"),
        [
            ("1", "2.5", "double"),
            ("1", "x", "string"),
            ("2.5", "x", "string"),
            ("", "7", "int64"),
            ("", "7.5", "double"),
            ("", "word", "string"),
            ("", "2020-01-02", "date32[day]"),
            ("2020-01-02", "2020-01-02 10:00:00", "timestamp[ms]"),
            ("true", "maybe", "string"),
        ],
    )
    def test_a_type_fits_the_last_value_too(
        self, tmp_path: Path, published, early: str, late: str, kind: str
    ) -> None:
        lines = [f"{i},{early}" for i in range(100)] + [f"100,{late}"]
        (tmp_path / "a.csv").write_text("\n".join(["id,x", *lines]))
        table = published(tmp_path / "a.csv")
        assert (str(table.schema.field("x").type), table["id"].to_pylist()) == (kind, list(range(101)))
        last = table["x"][100].as_py()
        assert str(last) == late

    def test_several_files_tabs_and_gzip(self, tmp_path: Path, published) -> None:
        (tmp_path / "1.tsv").write_text("id\tword\n1\ta\n")
        with gzip.open(tmp_path / "2.tsv.gz", "wt") as file:
            file.write("word\tid\nb\t2.5\n")
        table = published([tmp_path / "1.tsv", tmp_path / "2.tsv.gz"])
        assert table.to_pylist() == [{"id": 1.0, "word": "a"}, {"id": 2.5, "word": "b"}]

    @pytest.mark.parametrize(
        ("content", "fact"),
        [
            (b"", "cannot be read"),
            (b"a,b\n1,2\n3\n", "cannot be read"),
            (b"a,a\n1,2\n", "two columns"),
            (b"a,A\n1,2\n", "two columns"),
            (b"a\n\xff\xfe\n", "UTF-8"),
        ],
    )
    def test_bad_files_are_named(self, tmp_path: Path, published, content: bytes, fact: str) -> None:
        (tmp_path / "bad.csv").write_bytes(content)
        with pytest.raises(DatasetError, match=fact):
            published(tmp_path / "bad.csv")

    def test_files_with_other_columns_are_refused(self, tmp_path: Path, published) -> None:
        (tmp_path / "1.csv").write_text("id,word\n1,a\n")
        (tmp_path / "2.csv").write_text("id,name\n1,a\n")
        with pytest.raises(DatasetError, match=r"its columns are id, name, not id, word.*2\.csv"):
            published([tmp_path / "1.csv", tmp_path / "2.csv"])


class TestRows:
    ROWS = tuple(
        {
            "id": i,
            "x": [i],
            "pose": {"a": i} if i < 5 else {"b": "late"},
            **({"late": i / 2} if i > 6 else {}),
        }
        for i in range(9)
    )

    def expected(self) -> list[dict[str, Any]]:
        poses = [{"a": i, "b": None} if i < 5 else {"a": None, "b": "late"} for i in range(9)]
        return [{"id": i, "x": [i], "pose": poses[i], "late": i / 2 if i > 6 else None} for i in range(9)]

    @pytest.mark.usefixtures("small_steps")
    def test_every_key_is_a_column(self, tmp_path: Path, published) -> None:
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in self.ROWS) + "\n\n")
        for source in (list(self.ROWS), iter(self.ROWS), (row for row in self.ROWS), tmp_path / "a.jsonl"):
            assert published(source).to_pylist() == self.expected()

    def test_steps_of_any_size_give_the_same(self, published, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [{"n": None}, {"n": 1}, {"n": 2.5}, {"m": []}, {"m": [1]}]
        tables = []
        for size in (1, 2, 100):
            monkeypatch.setattr(rowsources, "_CHUNK_ROWS", size)
            tables.append(published(rows))
        assert tables[0].schema == tables[1].schema == tables[2].schema
        assert tables[0].equals(tables[1])
        assert tables[0].equals(tables[2])

    def test_json_lines_keep_their_values(self, tmp_path: Path, published) -> None:
        (tmp_path / "a.ndjson").write_text(
            '{"when": "2020-01-02T00:00:00", "big": 9007199254740993, "x": NaN}\n'
        )
        assert published(tmp_path / "a.ndjson").schema.field("when").type == pa.string()
        assert published(tmp_path / "a.ndjson")["big"].to_pylist() == [9007199254740993]

    @pytest.mark.usefixtures("small_steps")
    @pytest.mark.parametrize("step", [1, 3], ids=["near", "far"])
    def test_values_that_fit_no_type_name_their_column(self, published, step: int) -> None:
        for odd in ("word", {"a": 1}):
            with pytest.raises(DatasetError, match="x"):
                published([{"x": 1}] * step + [{"x": odd}])
        with pytest.raises(DatasetError, match="'x'"):
            published([{"x": 2**53 + 1}] * step + [{"x": 0.5}])
        with pytest.raises(DatasetError, match="'x'"):
            published([{"x": 2**80}])

    @pytest.mark.parametrize("line", ['{"a": 1', "[1]", '{"a": 1, "a": 2}', "nonsense"])
    def test_a_bad_line_is_named(self, tmp_path: Path, published, line: str) -> None:
        (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + line + "\n")
        with pytest.raises(DatasetError, match=r"line 2 .*a\.jsonl"):
            published(tmp_path / "a.jsonl")

    def test_what_is_no_row(self, published) -> None:
        with pytest.raises(TypeError, match="row 1 is a int"):
            published([{"a": 1}, 5])
        with pytest.raises(TypeError, match="row 0"):
            published([{1: 2}])
        with pytest.raises(DatasetError, match="no rows"):
            published([])
        with pytest.raises(TypeError, match="not a table"):
            published(7)

    def test_an_error_of_the_generator_comes_through(self, published) -> None:
        def rows():
            yield {"a": 1}
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            published(rows())


class TestPieces:
    def test_pieces_of_arrow_and_frames(self, published) -> None:
        polars = pytest.importorskip("polars")
        pieces = [pa.table({"a": [1, 2]}), pa.record_batch({"a": [3]})]
        assert published(iter(pieces))["a"].to_pylist() == [1, 2, 3]
        assert published(polars.DataFrame({"a": [i]}) for i in range(3))["a"].to_pylist() == [0, 1, 2]

    def test_pieces_must_be_alike(self, published) -> None:
        with pytest.raises(DatasetError, match="piece 1"):
            published(iter([pa.table({"a": [1]}), pa.table({"b": [1]})]))


class TestFiles:
    def test_a_folder_is_its_parquet_files_or_else_its_text(self, tmp_path: Path, published) -> None:
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "a.csv").write_text("x\n1\n")
        assert published(folder)["x"].to_pylist() == [1]
        pq.write_table(pa.table({"x": [2]}), folder / "a.parquet")
        assert published(folder)["x"].to_pylist() == [2]
        with pytest.raises(DatasetError, match="one kind"):
            published([folder / "a.csv", folder / "a.parquet"])
        (tmp_path / "nothing").mkdir()
        with pytest.raises(DatasetError, match="no files"):
            published(tmp_path / "nothing")

    def test_a_folder_gives_every_file_of_a_kind(self, tmp_path: Path, published) -> None:
        """Compressed or not, in capitals or not: a file that is left out is rows that nobody misses."""
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "a.csv").write_text("x\n1\n")
        (folder / "b.csv.gz").write_bytes(gzip.compress(b"x\n2\n"))
        (folder / "c.TSV").write_text("x\n3\n")
        (folder / "notes.txt").write_text("x\n4\n")
        assert published(folder)["x"].to_pylist() == [1, 2, 3]
        (folder / "d.ndjson").write_text('{"x": 4}\n')
        with pytest.raises(DatasetError, match="one kind, not csv and json lines"):
            published(folder)
        assert main(["publish", "ws/gz", f"{folder}/b.csv.gz", "--catalog", str(tmp_path / "catalog")]) == 0

    def test_the_command_takes_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
        (tmp_path / "a.csv").write_text("x\n1\n2\n")
        assert main(["publish", "ws/csv", "--table", f"main={tmp_path}/*.csv"]) == 0
        capsys.readouterr()
        assert main(["query", "ws/csv", "select sum(x)::bigint as s from main", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"s": 3}]


LONG = [2**64 - 1, 2**63, 2**53 + 1]


class TestLongIntegers:
    """Names of things are often long numbers: no digit of theirs is lost."""

    @pytest.mark.usefixtures("small_steps")
    @pytest.mark.parametrize("early", [0, 40])
    @pytest.mark.parametrize("value", LONG)
    def test_integers_stay_integers(self, tmp_path: Path, published, value: int, early: int) -> None:
        rows = [*range(early), value]
        (tmp_path / "a.csv").write_text("".join(f"{row},0.5\n" for row in ["id", *rows]))
        (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {row}}}\n' for row in rows))
        assert published(tmp_path / "a.csv")["id"].to_pylist() == rows
        assert published(tmp_path / "a.jsonl")["id"].to_pylist() == rows
        assert published([{"id": row} for row in rows])["id"].to_pylist() == rows

    @pytest.mark.parametrize("other", ["0.5", "-1", "9" * 500])
    def test_what_is_no_one_number_stays_text(self, tmp_path: Path, published, other: str) -> None:
        (tmp_path / "a.csv").write_text(f"id\n{2**64 - 1}\n{other}\n")
        assert published(tmp_path / "a.csv")["id"].to_pylist() == [str(2**64 - 1), other]

    def test_large_floats_stay_floats(self, tmp_path: Path, published) -> None:
        (tmp_path / "a.csv").write_text("x\n1e300\n-inf\n1234567890123456768\n0.5\n")
        assert published(tmp_path / "a.csv")["x"].to_pylist() == [
            1e300,
            float("-inf"),
            1234567890123456768.0,
            0.5,
        ]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("damage", ["cut", "not compressed"])
def test_a_damaged_file_is_named(tmp_path: Path, published, name: str, damage: str) -> None:
    text = b"".join(b'{"a": %d}\n' % number for number in range(3000))
    data = text if damage == "not compressed" else gzip.compress(text)[:-500]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DatasetError, match="cannot be read") as raised:
        published(tmp_path / name)
    assert name in str(raised.value)


class TestPolars:
    def test_objects_are_refused(self, published) -> None:
        """Polars gives Arrow their addresses."""
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({"i": [1], "o": [object()]})
        for source in (frame, iter([frame])):
            with pytest.raises(DatasetError, match="column 'o' holds Python objects"):
                published(source)

    def test_categories_come_back_as_categories(self, published) -> None:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(
            {"c": ["a", "b", None], "e": ["x", "y", "x"], "l": [["a"], None, ["b"]], "i": [1, 2, 3]}
        )
        frame = frame.with_columns(
            polars.col("c").cast(polars.Categorical),
            polars.col("e").cast(polars.Enum(["x", "y"])),
            polars.col("l").cast(polars.List(polars.Categorical)),
        )
        table = published(frame)
        again = polars.from_arrow(table)
        assert again.to_dicts() == frame.to_dicts()
        assert again.schema == frame.schema

    @pytest.mark.parametrize("rows", [10, 200])
    def test_frames_of_any_length(self, published, rows: int) -> None:
        """Strings in lists cannot be cut into row groups as they come from polars."""
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(
            {"l": [["a long string of text", "b"], None] * (rows // 2), "s": ["x", None] * (rows // 2)}
        )
        table = published(frame, ParquetOptions(row_group_rows=131))
        assert table.num_rows == rows
        assert table.slice(rows - 2).to_pylist() == frame.tail(2).to_dicts()


@pytest.mark.parametrize("kind", ["rows", "generator", "columns", "arrow", "reader", "parquet", "json lines"])
def test_a_table_without_columns_is_refused(tmp_path: Path, published, kind: str) -> None:
    bare = pa.table({"a": [1, 2, 3]}).select([])
    assert bare.num_rows == 3
    pq.write_table(bare, tmp_path / "bare.parquet")
    (tmp_path / "bare.jsonl").write_text("{}\n{}\n")
    sources: dict[str, Any] = {
        "rows": [{}, {}], "generator": ({} for _ in range(3)), "columns": {}, "arrow": bare,
        "reader": bare.to_reader(), "parquet": tmp_path / "bare.parquet", "json lines": tmp_path / "bare.jsonl",
    }  # fmt: skip
    with pytest.raises(DatasetError, match="no columns"):
        published(sources[kind])


def test_rows_that_lack_every_column_are_kept_beside_others(published) -> None:
    assert published([{}, {"a": 1}, {}]).to_pylist() == [{"a": None}, {"a": 1}, {"a": None}]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "number": st.none() | st.integers(-(2**63), 2**63 - 1),
                "list": st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=2),
                "struct": st.none() | st.fixed_dictionaries({"a": st.none() | st.text(max_size=2)}),
            },
        ),
        min_size=1,
        max_size=20,
    ),
    step=st.integers(1, 7),
)
def test_rows_in_steps_are_the_rows(tmp_path: Path, rows: list[dict[str, Any]], step: int) -> None:
    """Whatever keys a row or a whole step of them lacks; a row of nothing is a row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowsources, "_CHUNK_ROWS", step)
        found = rowsources.rows_reader(iter(rows), tmp_path).read_all()
    names = list(dict.fromkeys(name for row in rows for name in row))
    assert sorted(found.schema.names) == sorted(names)
    assert (
        found.to_pylist() == [{name: row.get(name) for name in found.schema.names} for row in rows]
        or not names
    )


def test_large_rows_are_put_aside_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowsources, "_CHUNK_BYTES", 1000)
    rows = [{"image": bytes(200)}] * 40 + [{"image": b""}] * 40
    reader = rowsources.rows_reader(iter(rows), tmp_path)
    sizes = [pa.ipc.open_stream(path).read_all().num_rows for path in sorted(tmp_path.glob("*.arrow"))]
    assert max(sizes[:10]) <= 5
    assert len(sizes) < 20
    assert reader.read_all().to_pylist() == rows


@pytest.mark.parametrize("batch", [1, 7, 100])
@pytest.mark.parametrize("kind", [pa.binary(), pa.binary_view(), pa.list_(pa.uint8())])
def test_row_groups_have_bytes_as_well_as_rows(tmp_path: Path, kind: pa.DataType, batch: int) -> None:
    """Equal rows are cut alike, however they come."""
    images = [bytes(1000)] * 64 + [b""] * 36
    values = [list(each) for each in images] if pa.types.is_list(kind) else images
    rows = pa.table({"id": range(100), "image": pa.array(values, kind)})
    (path,) = write_shards(rows.to_reader(batch), tmp_path, ParquetOptions(row_group_bytes=40_000))
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)] == [32, 32, 36]
    assert pq.read_table(path)["id"].to_pylist() == list(range(100))


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "later", [{}, {"a": [{"x": 0.5, "y": None}]}, {"a": [{"x": None, "y": [None, None]}]}]
)
def test_fields_that_are_null_everywhere_stay_fields(published, later: dict[str, Any]) -> None:
    rows = [{"a": [{"x": 1, "y": None}, {"x": 2, "y": None}]}] * 3 + [later]
    assert published(rows).to_pylist() == [{"a": row.get("a")} for row in rows]


DAY, MOMENT = date(2020, 1, 1), datetime(2020, 1, 1, 5, 6, 7)


@pytest.mark.parametrize(
    "values",
    [
        [DAY, MOMENT], [MOMENT, 5], [MOMENT, 0.5], [timedelta(1), Decimal(1)], [time(1), Decimal(1)], [DAY, 5],
        [MOMENT, MOMENT.replace(tzinfo=UTC)], [DAY, np.datetime64(1, "ns")], [[DAY, MOMENT]], [{"t": [MOMENT, 5]}],
        [["text", b"\xff"]],
    ],
)  # fmt: skip
def test_values_of_several_kinds_are_refused(published, values: list[Any]) -> None:
    """Arrow takes numbers for moments, moments for days and bytes for text, by what comes first."""
    for source in (
        [{"a": one} for one in values],
        {"a": values},
        pd.DataFrame({"a": pd.Series(values, dtype=object)}),
    ):
        with pytest.raises(DatasetError, match="column 'a' fit no one type") as caught:
            published(source)
        assert caught.value.hint


@pytest.mark.parametrize(
    "value", [pd.Timestamp(1), pd.Timestamp(1, tz="Asia/Tokyo"), pd.Timedelta(1), [pd.Timestamp(1)]]
)
def test_nanoseconds_of_pandas_are_kept(published, value: Any) -> None:
    frame = pd.DataFrame({"a": pd.Series([value, None], dtype=object)})
    for source in (frame, frame.to_dict("records"), {"a": [value, None]}):
        assert published(source)["a"].to_pylist() == [value, None]


def test_a_step_of_empty_rows_is_published(published, small_steps: None) -> None:
    rows = [{}, {}, {}, {"a": 1}, {}, {}, {}, {}]
    assert published(rows)["a"].to_pylist() == [row.get("a") for row in rows]


def nested(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "struct"])
@pytest.mark.parametrize("levels", [70, 101, 2_000, 30_000])
def test_absurd_nesting_is_refused_whatever_it_comes_in(
    tmp_path: Path, published, kind: str, levels: int
) -> None:
    """Arrow would follow it to the end of the stack, or hold what does not fit in memory."""
    value = nested(levels, kind)
    sources = [[{"a": 1}, {"a": value}], [{"a": [1, value]}], iter([{"a": value}])]
    if levels > 100:
        sources += [{"a": [value]}, pd.DataFrame({"a": pd.Series([value], dtype=object)})]
    if levels < 1000:
        (tmp_path / "deep.jsonl").write_text(json.dumps({"a": value}) + "\n")
        sources.append(tmp_path / "deep.jsonl")
    for source in sources:
        with pytest.raises(DatasetError):
            published(source)


def test_types_may_be_as_deep_as_a_reader_goes(published) -> None:
    for levels, kind in ((49, "list"), (98, "struct")):
        column = pa.array([nested(levels, kind)])
        assert published(pa.table({"a": column})).column("a").to_pylist() == column.to_pylist()
    for levels, kind in ((101, "struct"), (1_000, "list")):
        with pytest.raises(DatasetError, match="'a'") as refused:
            published(pa.table({"a": pa.array([nested(levels, kind)])}))
        assert len(str(refused.value)) < 600


@pytest.mark.parametrize(("levels", "kind"), [(50, "list"), (99, "struct")])
def test_what_only_some_readers_can_read_is_kept_or_refused_at_once(
    published, levels: int, kind: str
) -> None:
    """Arrow 25 goes deeper than Arrow 26 does."""
    column = pa.array([nested(levels, kind)])
    said = ""
    try:
        found = published(pa.table({"a": column})).column("a").to_pylist()
    except DatasetError as error:
        found, said = column.to_pylist(), str(error)
    assert found == column.to_pylist()
    assert not said or "'a'" in said[:600]


def test_what_holds_itself_is_refused(published) -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(DatasetError, match="levels deep"):
        published([{"a": ring}])


TWICE = {
    "list": lambda value: [value, value],
    "tuple": lambda value: (value, value),
    "dictionary": lambda value: {"a": value, "b": value},
    "list of one": lambda value: [[value], [value]],
}


@pytest.mark.parametrize("kind", TWICE)
def test_few_lists_held_so_often_that_nothing_holds_their_values_are_refused(published, kind: str) -> None:
    """Ninety lists, each held twice by the next: to Arrow they are 2 ** 90 values."""
    value: Any = 1
    for _ in range(45 if kind == "list of one" else 90):
        value = TWICE[kind](value)
    objects = np.empty(1, object)
    objects[0] = value
    for source in (
        [{"a": value}], iter([{"a": 1}, {"a": value}]), {"a": [value]}, {"a": objects}, pd.DataFrame({"a": objects}),
        [{"a": [value] * 3}],
    ):  # fmt: skip
        with pytest.raises(DatasetError, match="column 'a' holds the same lists or dictionaries") as refused:
            published(source)
        assert refused.value.hint


def test_values_are_counted_as_arrow_counts_them(published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what comes again counts: how much there may be of one thing is for memory to say."""
    shared = [1, 2, 3]
    source = [{"a": [shared, shared, [4]]}, {"a": [shared]}]  # `shared` comes twice more than there is of it
    monkeypatch.setattr(rowsources, "_MAX_REPEATS", 6)
    assert published(source)["a"].to_pylist() == [[shared, shared, [4]], [shared]]
    monkeypatch.setattr(rowsources, "_MAX_REPEATS", 5)
    with pytest.raises(DatasetError, match="more than 5 values"):
        published(source)
    many = [{"a": [[number] * 10]} for number in range(100)]
    assert published(many)["a"].to_pylist() == [row["a"] for row in many]


@pytest.mark.parametrize(
    "note", [nested(101, "list"), nested(2_000, "struct"), float("nan"), {1: 2}, {1, 2}, object(), "\ud800"]
)
def test_a_note_that_is_no_json_is_refused_when_it_is_given(tmp_path: Path, note: Any) -> None:
    with wd.DatasetBuilder("ws/made", catalog=str(tmp_path / "catalog")) as builder:
        with pytest.raises(ValueError, match="the note 'x'"):
            builder.describe(x=note)
        builder.add_table("main", {"a": [1]}).describe(y=nested(100, "list"), z=(1, 2)).publish()
    with wd.dataset("ws/made", catalog=str(tmp_path / "catalog")) as dataset:
        assert dataset.manifest.metadata == {"y": nested(100, "list"), "z": [1, 2]}
