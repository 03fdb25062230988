"""SQL of strangers: whatever is written in a filter, a query or a command, only rows of the dataset are read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from warpdata.cli.main import main
from warpdata.errors import DatasetError, TooLargeError, WarpError
from warpdata.sql import engine

SECRET = "the secret of this machine"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


@pytest.fixture(scope="module")
def dataset(place: Path) -> Iterator[wd.Dataset]:
    (place / "secret.csv").write_text(f"{SECRET}\n")
    pq.write_table(pa.table({"word": [SECRET]}), place / "secret.parquet")
    (place / "secret.json").write_text(json.dumps({"word": SECRET}))
    with wd.DatasetBuilder("ws/safe", catalog=str(place / "catalog")) as builder:
        builder.add_table("main", {"id": [1, 2, 3], "word": ["a", "b", "c"]})
        builder.add_table("labels", {"id": [1, 3], "label": ["x", "y"]})
        builder.publish()
    with wd.dataset("ws/safe", catalog=str(place / "catalog"), mode="remote") as opened:
        yield opened


READS = [
    "read_csv('{dir}/secret.csv')",
    "read_csv_auto('{dir}/secret.csv')",
    "read_text('{dir}/secret.csv')",
    "read_blob('{dir}/secret.csv')",
    "read_json('{dir}/secret.json')",
    "read_ndjson_objects('{dir}/secret.json')",
    "read_parquet('{dir}/secret.parquet')",
    "parquet_scan('{dir}/secret.parquet')",
    "parquet_metadata('{dir}/secret.parquet')",
    "sniff_csv('{dir}/secret.csv')",
    "glob('{dir}/*')",
    "'{dir}/secret.csv'",
    "'{dir}/secret.parquet'",
    '"{dir}/secret.parquet"',
    "'secret.parquet'",
    "query('select 1')",
    "query_table('main')",
    "json_execute_serialized_sql(json_serialize_sql('select 1'))",
    "duckdb_settings()",
    "duckdb_secrets()",
    "duckdb_logs()",
    "pragma_database_size()",
    "information_schema.tables",
    "duckdb_tables",
    "sqlite_master",
    "pg_catalog.pg_class",
    "system.main.duckdb_views",
    "a_variable_of_the_caller",
    "python_map_function()",
    "pandas_scan(0)",
    "arrow_scan(0, 0, 0)",
    "which_secret('s3://x', 's3')",
    "enable_logging()",
    "checkpoint()",
]
STATEMENTS = [
    "copy main to '{dir}/out.csv'",
    "copy (select 1) to '{dir}/out.parquet' (format parquet)",
    "export database '{dir}/out'",
    "import database '{dir}/out'",
    "attach '{dir}/out.db' as other",
    "create table mine as select 1",
    "create view mine as select 1",
    "create macro f(x) as x",
    "insert into main values (4, 'd')",
    "delete from main",
    "update main set id = 1",
    "drop view main",
    "set enable_external_access = true",
    "set lock_configuration = false",
    "reset enable_external_access",
    "pragma database_list",
    "pragma enable_profiling",
    "call pragma_version()",
    "install httpfs",
    "load httpfs",
    "load '{dir}/out.so'",
    "explain select 1",
    "prepare p as select 1",
    "execute p",
    "begin transaction",
    "checkpoint",
    "vacuum",
    "use memory",
    "pivot main on word",
    "",
    "-- nothing",
    ";",
]
SCALARS = [
    "getenv('HOME')",
    "current_setting('secret_directory')",
    "getvariable('x')",
    "write_log('x')",
    "nextval('s')",
    "pg_sleep(0)",
    "sleep_ms(0)",
    "PG_SLEEP(0)",
    '"pg_sleep"(0)',
    "main.pg_sleep(0)",
]
MORE_THAN_A_CONDITION = [
    "id = 1; select 1",
    "id = 1) or (1 = 1",
    "id = 1) union select 1 from (select 1",
    "id = 1 union select 1",
    "id = 1 order by id",
    "id = 1 limit 1",
    "id = 1 group by id",
    "id = 1 having true",
    "id = 1 qualify row_number() over () = 1",
    "id = 1 using sample 1",
    "true) select getenv('HOME') --",
    "/*",
]


def no_harm(place: Path, attack: Callable[[], object]) -> str:
    """The attack is refused with an error of ours, shows nothing and leaves nothing."""
    before = sorted(place.rglob("*"))
    with pytest.raises(WarpError) as refused:
        attack()
    text = f"{refused.value} {refused.value.hint}"
    assert SECRET not in text
    assert sorted(place.rglob("*")) == before
    return text


class TestQueries:
    @pytest.mark.parametrize("source", READS)
    def test_nothing_but_tables_is_read(self, dataset: wd.Dataset, place: Path, source: str) -> None:
        a_variable_of_the_caller = pa.table({"word": [SECRET]})
        source = source.format(dir=place)
        for query in (
            f"select * from {source}",
            f"from {source}",
            f"with x as (select * from {source}) select * from x",
            f"select * from main where id in (select 1 from {source})",
            f"select (select count(*) from {source})",
            f"summarize select * from {source}",
        ):
            no_harm(place, lambda query=query: dataset.sql(query).arrow())
            no_harm(place, lambda query=query: dataset.table().sql(query).arrow())
        assert a_variable_of_the_caller.num_rows == 1

    @pytest.mark.parametrize("statement", STATEMENTS)
    def test_only_one_select_runs(self, dataset: wd.Dataset, place: Path, statement: str) -> None:
        statement = statement.format(dir=place)
        no_harm(place, lambda: dataset.sql(statement).arrow())
        if statement.strip(" ;") and not statement.startswith("--"):
            no_harm(place, lambda: dataset.sql(f"select 1; {statement}").arrow())
            no_harm(place, lambda: dataset.sql(f"{statement}; select 1").arrow())

    def test_a_cte_changes_nothing(self, dataset: wd.Dataset, place: Path) -> None:
        for change in ("delete from main", "insert into main values (1, 'x')", "update main set id = 1"):
            query = f"with x as ({change} returning *) select * from x"
            no_harm(place, lambda query=query: dataset.sql(query).arrow())

    @pytest.mark.parametrize("call", SCALARS)
    def test_functions_that_look_elsewhere(self, dataset: wd.Dataset, place: Path, call: str) -> None:
        no_harm(place, lambda: dataset.sql(f"select {call}").arrow())
        no_harm(place, lambda: dataset.sql(f"select id from main order by {call}").arrow())

    @pytest.mark.parametrize(
        "query",
        [
            "select count(*) as n from main",
            "select count(*) as n from main; -- the end",
            "from main select count(*) as n",
            "with x as (select * from main) select count(*) as n from x",
            "with recursive r as (select 1 as i union all select i + 1 from r where i < 3) select count(*) as n from r",
            "select count(*) as n from MAIN join Labels using (id) right join range(1, 4) r(id) using (id)",
            "select sum(i)::bigint as n from unnest([1, 2]) u(i)",
            "(select 3 as n) union (select 3)",
            "values (3)",
            "select count(*) as n from (describe main) union all select 3 limit 1 offset 1",
        ],
    )
    def test_what_a_query_may_be(self, dataset: wd.Dataset, query: str) -> None:
        assert dataset.sql(query).arrow().column(0).to_pylist() == [3]

    @pytest.mark.parametrize("query", ["show tables", "show all tables", "show databases", "describe"])
    def test_what_the_engine_would_show_is_not_the_dataset(
        self, dataset: wd.Dataset, place: Path, query: str
    ) -> None:
        assert "labels, main" in no_harm(place, lambda: dataset.sql(query).arrow())

    def test_to_show_a_table_is_to_describe_it_or_refused(self, dataset: wd.Dataset, place: Path) -> None:
        """As the engine reads it: older ones make the same tree of both words."""
        try:
            shown = dataset.sql("show main").arrow()
        except WarpError:
            assert "labels, main" in no_harm(place, lambda: dataset.sql("show main").arrow())
        else:
            assert shown == dataset.sql("describe main").arrow()

    def test_a_table_of_another_schema_is_called_by_its_whole_name(
        self, dataset: wd.Dataset, place: Path
    ) -> None:
        assert "'other.main'" in no_harm(place, lambda: dataset.sql("select * from other.main"))

    def test_too_deep_is_said_without_the_engines_advice(self, dataset: wd.Dataset, place: Path) -> None:
        said = no_harm(place, lambda: dataset.sql(f"select {'not ' * 5000}true"))
        assert "nested too deeply" in said
        assert "SET" not in said

    def test_a_misspelt_table_is_named(self, dataset: wd.Dataset, place: Path) -> None:
        text = no_harm(place, lambda: dataset.sql("select * from mian"))
        assert "Did you mean 'main'?" in text


class TestFilters:
    @pytest.mark.parametrize("source", READS)
    def test_nothing_but_tables_is_read(self, dataset: wd.Dataset, place: Path, source: str) -> None:
        condition = f"id in (select 1 from {source.format(dir=place)})"
        no_harm(place, lambda: dataset.table().filter(condition).head())
        no_harm(place, lambda: dataset.table().filter(condition).count())

    @pytest.mark.parametrize("call", SCALARS)
    def test_functions_that_look_elsewhere(self, dataset: wd.Dataset, place: Path, call: str) -> None:
        no_harm(place, lambda: dataset.table().filter(f"{call} is null"))

    @pytest.mark.parametrize(
        "text", [*MORE_THAN_A_CONDITION, *(f"true; {s}" for s in STATEMENTS if s[:1] not in " ;-")]
    )
    def test_a_filter_is_one_condition(self, dataset: wd.Dataset, place: Path, text: str) -> None:
        text = text.format(dir=place)
        no_harm(place, lambda: dataset.table().filter(text))
        no_harm(place, lambda: dataset.table().filter("id > 0").filter(text))
        # A view may also come from another process, as text that was never checked.
        view = wd.Table(dataset, "main", None, text)
        for use in (
            view.head,
            view.count,
            lambda: view.sql("select * from t").arrow(),
            lambda: view.take([0]),
        ):
            no_harm(place, use)

    def test_the_variables_of_the_caller_are_not_seen(self, dataset: wd.Dataset, place: Path) -> None:
        mine = pa.table({"id": [1]})
        no_harm(place, lambda: dataset.table().filter("id in (select id from mine)").head())
        assert mine.num_rows == 1

    def test_absurd_nesting_is_answered_or_refused(self, dataset: wd.Dataset) -> None:
        for text in ("(" * 5000 + "id = 1" + ")" * 5000, "not " * 5000 + "id = 1", "id = 1" + " + 0" * 5000):
            with contextlib.suppress(WarpError):
                assert dataset.table().filter(text).count() == 1


class TestCommands:
    @pytest.fixture(autouse=True)
    def _catalog(self, dataset: wd.Dataset, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WARP_CATALOG", str(place / "catalog"))
        monkeypatch.chdir(place)

    @pytest.mark.parametrize(
        "text", ["select * from 'secret.csv'", "copy main to 'out.csv'", "select 1; select 2"]
    )
    def test_query(self, place: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
        assert main(["query", "ws/safe", text]) == 1
        shown = capsys.readouterr()
        assert "error[dataset]" in shown.err
        assert SECRET not in shown.out + shown.err
        assert not (place / "out.csv").exists()

    @pytest.mark.parametrize("command", ["head", "stream"])
    @pytest.mark.parametrize("text", ["id in (select 1 from 'secret.csv')", "true; copy t to 'out.csv'"])
    def test_filters(self, place: Path, capsys: pytest.CaptureFixture[str], command: str, text: str) -> None:
        assert main([command, "ws/safe", "--json", "--where", text]) == 1
        shown = capsys.readouterr()
        assert "error[dataset]" in shown.err
        assert SECRET not in shown.out + shown.err
        assert not (place / "out.csv").exists()


class TestEngine:
    """The second wall: what an engine would do if a text came past the first."""

    @pytest.fixture(params=["query", "filter"])
    def connection(self, request: pytest.FixtureRequest) -> Iterator[duckdb.DuckDBPyConnection]:
        made = engine._connect({}) if request.param == "query" else engine._shared(pushes=False).cursor()
        yield made
        made.close()

    @pytest.mark.parametrize(
        "source", [one for one in READS if "secret.csv" in one or "secret.parquet" in one or "glob" in one]
    )
    def test_files_are_out_of_reach(self, connection, dataset: wd.Dataset, place: Path, source: str) -> None:
        with pytest.raises(duckdb.Error):
            connection.execute(f"select * from {source.format(dir=place)}").fetchall()

    @pytest.mark.parametrize(
        "statement",
        [
            s
            for s in STATEMENTS
            if s.startswith(("copy", "export", "import", "attach", "set", "reset", "install", "load"))
        ],
    )
    def test_nothing_is_written_or_unlocked(self, connection, place: Path, statement: str) -> None:
        before = sorted(place.rglob("*"))
        with pytest.raises(duckdb.Error):
            connection.execute(statement.format(dir=place))
        assert sorted(place.rglob("*")) == before

    def test_variables_of_the_caller_are_out_of_reach(self, connection) -> None:
        here = pa.table({"a": [1]})
        with pytest.raises(duckdb.Error):
            connection.sql("select * from here").fetchall()
        assert here.num_rows == 1

    def test_every_function_with_an_effect_is_known(self) -> None:
        """A release of the engine with a new one fails here, and somebody decides."""
        plain = duckdb.connect()
        listed = plain.execute(
            "select distinct function_name from duckdb_functions() "
            "where function_type = 'scalar' and stability is distinct from 'CONSISTENT'"
        ).fetchall()
        plain.close()
        harmless = {
            "current_connection_id", "current_database", "current_date", "current_localtime", "current_localtimestamp",
            "current_query", "current_query_id", "current_schema", "current_schemas", "current_transaction_id",
            "error", "gen_random_uuid", "get_current_time", "get_current_timestamp", "in_search_path", "now",
            "random", "setseed", "stats", "today", "transaction_timestamp", "txid_current", "uuid", "uuidv4",
            "uuidv7", "vector_type",
        }  # fmt: skip
        assert {name for (name,) in listed} <= harmless | engine.REFUSED_FUNCTIONS

    def test_a_large_query_spills_into_a_folder_of_its_own(
        self, dataset: wd.Dataset, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spill = place / "spill"
        spill.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(spill))
        monkeypatch.setitem(engine._SANDBOX, "memory_limit", "40MB")
        query = "select md5(i::varchar) as m from range(1000000) r(i) order by m"
        with wd.dataset("ws/safe", catalog=str(place / "catalog")) as cached:
            assert sum(batch.num_rows for batch in cached.sql(query)) == 1_000_000
        assert list(spill.iterdir()) == []
        with pytest.raises(TooLargeError):
            engine.run_sql(query, {}).arrow()


def test_a_query_in_remote_mode_writes_nothing(dataset: wd.Dataset, place: Path) -> None:
    with wd.dataset("ws/safe", catalog=str(place / "catalog"), mode="remote") as remote:
        assert remote.spill is None
    with wd.dataset("ws/safe", catalog=str(place / "catalog")) as cached:
        assert cached.spill is not None


def test_text_means_the_same_moment_on_every_machine(
    dataset: wd.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataset.sql(
        "select epoch('2020-01-01'::timestamptz)::bigint as s, current_date = today() as d"
    ).arrow()
    assert found.to_pylist() == [{"s": 1_577_836_800, "d": True}]


def test_the_refusal_is_an_error_of_the_dataset(dataset: wd.Dataset) -> None:
    with pytest.raises(DatasetError, match="2 statements"):
        dataset.sql("select 1; select 2")


def test_a_misspelt_column_of_a_query_is_named(dataset: wd.Dataset) -> None:
    column = dataset.table("main").schema().names[0]
    with pytest.raises(DatasetError, match=f"there is no column '{column}x'") as raised:
        dataset.sql(f"select {column}x from main").arrow()
    assert f"Did you mean '{column}'" in raised.value.hint
