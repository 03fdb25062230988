"""SQL over tables: DuckDB fed by our range reader, columns and filters pushed down. The adapter of duckdb.

Every connection is made by `_connect`: it can reach no file, network, extension or variable of the caller, and no
text that runs on it can change that. Text is checked on the syntax tree of the engine's parser before it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from warpdata.bytekit.process.forks import OwnProcess, generation
from warpdata.errors import DatasetError, TooLargeError, nearest
from warpdata.sql.columns import (
    MAX_BYTES,
    EngineColumn,
    Positions,
    collect_batches,
    engine_columns,
    engine_schema,
    fields_in,
    fold_case,
    pandas_from,
    polars_from,
    refuse_unheld,
)

if TYPE_CHECKING:
    from warpdata.sql.arrow_source import ArrowSource, TableScan

Tree = Mapping[str, Any]

VIEW = "t"
"""What a view is called in its own SQL."""

OWN_COLUMNS = "__warp_"
"""How columns begin that are put beside those of a table on the way; no published column does."""

_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLE_FUNCTIONS = frozenset(
    [
        "generate_series",
        "generate_subscripts",
        "json_each",
        "json_tree",
        "range",
        "repeat",
        "repeat_row",
        "unnest",
    ]
)
REFUSED_FUNCTIONS = frozenset(
    [
        "current_setting",
        "currval",
        "getenv",
        "getvariable",
        "nextval",
        "pg_sleep",
        "setval",
        "sleep_ms",
        "write_log",
    ]
)
"""Functions that look at or change something other than the rows, or only pass the time."""

_CLAUSES = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
_SELECT_HINT = "Write one SELECT over the tables of the dataset."
_CONDITION_HINT = "Write what could stand after WHERE, such as `success and length > 50`."


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows, and what it looks at."""

    text: str
    names: frozenset[str]
    """Every name it mentions; a schema decides which of them are columns."""
    has_star: bool
    """Whether it has `*` or the number of a column, outside of subqueries."""
    names_view: bool
    """Whether it takes the view's name for a value: a whole row, unless a column is called so."""
    has_subquery: bool

    def takes_rows(self, schema_names: Iterable[str]) -> bool:
        """Whether it looks at rows as a whole: a column more would be another row."""
        return self.has_star or (self.names_view and VIEW not in map(fold_case, schema_names))

    def columns_of(self, schema_names: Iterable[str]) -> list[str]:
        """The columns among `schema_names` that it may look at: names mean the same in any case."""
        known = list(schema_names)
        if self.takes_rows(known):
            return [name for number, name in enumerate(known) if name not in known[:number]]
        used: dict[str, str] = {}
        mentioned = {fold_case(name) for name in self.names}
        for name in known:
            key = fold_case(name)
            if used.get(key, name) != name and {name, used[key]} <= self.names:
                fact = f"columns {used[key]!r} and {name!r} differ only in case"
                raise DatasetError(fact, hint="Name only one of them, or rename it.")
            if key in mentioned and (key not in used or name in self.names):
                used[key] = name
        return list(used.values())

    @property
    def clause(self) -> str:
        """The condition as it can stand after `where`, also if it ends with a comment."""
        return f"(\n{self.text}\n)"


def quote_name(name: str) -> str:
    """A name in SQL quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | float) -> str:
    """A text or a number as SQL writes it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def condition_query(text: str) -> str:
    """The query whose tree `parse_condition` takes: the condition stands open, so that it cannot close a bracket."""
    return f"select 1 from {VIEW} where\n{text}\n"


def tables_of(tree: Tree, known: Iterable[str]) -> dict[str, str]:
    """The tables a query reads, as the query calls them -> as they are called; anything but a query is refused."""
    statement = _only_statement(tree)
    _check_functions(statement)
    names = list(known)
    maps = [node["cte_map"] or {} for node in _walk(statement) if "cte_map" in node]
    own = {fold_case(str(entry["key"])) for ctes in maps for entry in ctes.get("map", [])}
    named: dict[str, str] = {}
    for node in _walk(statement):
        if node.get("type") == "SHOW_REF" and node.get("query") is None:
            # The engine knows only the tables that a query names.
            hint = f"The tables are: {', '.join(names) or 'none'}. DESCRIBE shows the columns of one."
            raise DatasetError("SHOW is no query over the tables of the dataset", hint=hint)
        if node.get("type") != "BASE_TABLE":
            continue
        called = str(node["table_name"])
        exact = called if called in names else None
        name = exact or next((n for n in names if fold_case(n) == fold_case(called)), None)
        is_elsewhere = node.get("schema_name") or node.get("catalog_name")
        if name is not None and not is_elsewhere:
            named[called] = name
        elif fold_case(called) not in own or is_elsewhere:
            hint = f"It has: {', '.join(names) or 'no tables'}."
            path = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
            whole = ".".join(filter(None, path))
            fact = f"the query names no table of the dataset: {whole!r}.{nearest(called, names)}"
            raise DatasetError(fact, hint=hint)
    return named


def _only_statement(tree: Tree, hint: str = _SELECT_HINT) -> Tree:
    if tree.get("error"):
        fact = str(tree.get("error_message", "")).strip() or "it cannot be parsed"
        if "SELECT statements" in fact:  # its words are about what we do with the text
            fact = "it does more than look at rows"
        if "expression depth" in fact:  # its advice is a setting, which is locked
            fact, hint = "it is nested too deeply", "Write it in several steps."
        raise DatasetError(f"the SQL is refused: {fact}", hint=hint)
    statements = tree["statements"]
    if len(statements) != 1:
        raise DatasetError(f"the SQL has {len(statements)} statements, not one", hint=hint)
    statement: Tree = statements[0]
    for node in _walk(statement):
        kind = node.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            raise DatasetError("the SQL would change something", hint=hint)
    return statement


def _check_functions(tree: Tree) -> None:
    for node in _walk(tree):
        if node.get("type") == "TABLE_FUNCTION":
            name = fold_case(str(node["function"].get("function_name", "")))
            if name not in _TABLE_FUNCTIONS:
                hint = f"SQL reads the tables of the dataset, and {', '.join(sorted(_TABLE_FUNCTIONS))}."
                raise DatasetError(f"the function {name!r} may not be used in FROM", hint=hint)
        elif "function_name" in node and fold_case(str(node["function_name"])) in REFUSED_FUNCTIONS:
            hint = "SQL may only look at rows."
            raise DatasetError(f"the function {node['function_name']!r} may not be used", hint=hint)


def _walk(tree: Any, *, without: str | None = None) -> Iterator[Tree]:
    """Every object of a tree, or all but those under a key; trees of strangers may be deep, so nothing recurses."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(value for key, value in node.items() if key != without)
        elif isinstance(node, list):
            waiting.extend(node)


class SpillFolder(Protocol):
    """A folder that is removed when it is closed."""

    path: Path

    def close(self) -> None: ...


ROW_NUMBER = f"{OWN_COLUMNS}row__"
"""An internal column with row numbers beside those of the table; messages never show it."""
_SANDBOX = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "temp_directory": "",
}
_KEPT_TREES = 256
_UNKNOWN_COLUMN = re.compile(r'Referenced column "(.+?)" not found')


class SqlResult:
    """The rows of a query, streamed; the connection lives as long as they do."""

    def __init__(
        self, reader: pa.RecordBatchReader, sources: Sequence[ArrowSource], resources: contextlib.ExitStack
    ) -> None:
        self.schema: pa.Schema = reader.schema
        """The columns of the result."""
        self._unread: pa.RecordBatchReader | None = reader
        self._sources = sources
        self._resources = resources

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, batch by batch; once."""
        reader, self._unread = self._unread, None
        if reader is None:  # an empty result would look like one without rows
            hint = "Keep what arrow() gave, or run the query again."
            raise DatasetError("the rows of this query were read already, or it was closed", hint=hint)
        return self._read(reader)

    def _read(self, reader: pa.RecordBatchReader) -> Generator[pa.RecordBatch, None, None]:
        try:
            with _mapped(self._sources):
                yield from reader
        finally:
            self.close()

    def arrow(self, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> pa.Table:
        """All rows in memory, unless they are more than the limits allow; `batches` has no limits."""
        with contextlib.closing(self.batches()) as batches:
            return collect_batches(batches, self.schema, "the result of the query", max_rows, max_bytes)

    def pandas(self, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a pandas frame, unless they are more than the limits allow."""
        return pandas_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def polars(self, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a polars frame, unless they are more than the limits allow."""
        return polars_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def __repr__(self) -> str:
        return (
            f"<SqlResult {', '.join(f'{field.name}: {field.type}' for field in self.schema)}; read it once>"
        )

    def close(self) -> None:
        """End the query."""
        self._unread = None
        self._resources.close()


def arrow_source(fields: Sequence[pa.Field], scan: TableScan) -> ArrowSource:
    """A table as the engine scans it; what that needs of pyarrow is loaded now, and not before."""
    from warpdata.sql.arrow_source import ArrowSource

    return ArrowSource(fields, scan)


def run_sql(
    query: str,
    tables: Mapping[str, ArrowSource],
    *,
    spill: Callable[[], SpillFolder] | None = None,
    batch_rows: int = 65_536,
) -> SqlResult:
    """Run one SELECT over tables by name; it can read nothing else on this machine.

    `spill` makes a temporary folder for a query that needs more than memory.
    """
    named = tables_of(_parsed(query), tables)
    used = {name: tables[name] for name in named.values()}
    if len({fold_case(name) for name in used}) < len(used):
        raise DatasetError(f"table names differ only in case: {', '.join(used)}")
    with contextlib.ExitStack() as stack:
        options = {}
        if spill is not None:
            folder = stack.enter_context(contextlib.closing(spill()))
            options["temp_directory"] = str(folder.path)
        connection = stack.enter_context(contextlib.closing(_connect(options)))
        with _mapped(list(used.values())):
            for name, source in used.items():
                connection.register(name, source)
            reader = connection.sql(query).to_arrow_reader(batch_rows)
        return SqlResult(reader, list(used.values()), stack.pop_all())


@functools.lru_cache(_KEPT_TREES)
def parse_condition(text: str) -> Condition:
    """A condition on rows, checked: one condition, and nothing in it that looks beyond the dataset."""
    tree = _parsed(condition_query(text))
    node = _only_statement(tree, _CONDITION_HINT)["node"]
    extra = node.get("type") != "SELECT_NODE" or any(node.get(clause) for clause in _CLAUSES)
    if extra or node.get("where_clause") is None or node.get("aggregate_handling") != "STANDARD_HANDLING":
        raise DatasetError(f"a filter is one condition, not {text!r}", hint=_CONDITION_HINT)
    where = node["where_clause"]
    _check_functions(where)
    names: set[str] = set()
    names_view = has_subquery = False
    for node in _walk(where):
        kind = node.get("class")
        if kind == "COLUMN_REF":
            names.update(node["column_names"])
            names_view = names_view or [fold_case(part) for part in node["column_names"]] == [VIEW]
        has_subquery = has_subquery or kind == "SUBQUERY"
    own = _walk(where, without="subquery")
    has_star = any(node.get("class") in ("STAR", "POSITIONAL_REFERENCE") for node in own)
    return Condition(text, frozenset(names), has_star, names_view, has_subquery)


def check_condition(text: str, tables: Sequence[str]) -> None:
    """Raise DatasetError for an invalid condition, or one whose subqueries use other tables."""
    parse_condition(text)
    tables_of(_parsed(condition_query(text)), [*tables, VIEW])


def pushed_down(condition: Condition, columns: Sequence[EngineColumn]) -> Any:
    """The part of a condition that can exclude row groups, as an Arrow expression, or None."""
    import duckdb

    from warpdata.sql.arrow_source import ArrowSource

    filters: list[Any] = []

    class RecordingSource(ArrowSource):
        def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
            filters.append(filter)
            return super().scanner(columns, None)

    has_floats = any(word in str(column.held) for column in columns for word in ("float", "double"))
    if has_floats and duckdb.__version__.startswith("1."):
        return None  # before 2.0 pushed filters forgot that NaN is above every number
    source = RecordingSource([column.field for column in columns], lambda *_: iter(()))
    with contextlib.suppress(DatasetError), contextlib.closing(_shared(pushes=True).cursor()) as cursor:
        with _mapped([source]):
            cursor.register(VIEW, source)
            cursor.sql(f"select 1 from {VIEW} where {condition.clause}").to_arrow_reader(1).read_all()
        names = {column.name for column in columns if not column.is_as_stored}
        return next((e for e in filters if e is not None and not fields_in(e, list(names))), None)
    return None


def engine_check() -> bool:
    """Run a query over a table in memory, or raise; whether filters reach the sources."""
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    result = run_sql(
        "select b from main where a > 1", {"main": arrow_source(list(table.schema), lambda *_: iter([table]))}
    )
    if result.arrow().to_pylist() != [{"b": 4}]:
        raise DatasetError("the engine gave a wrong answer")
    return pushed_down(parse_condition("a > 1"), engine_columns(table.schema)) is not None


def matching_rows(table: pa.Table, text: str) -> Positions:
    """Where in a table in memory the rows are that satisfy a condition, in order."""
    condition = parse_condition(text)
    if condition.has_subquery:
        raise DatasetError("a condition on these rows has no subqueries", hint="Write it without SELECT.")
    columns = engine_columns([table.schema.field(name) for name in condition.columns_of(table.column_names)])
    with contextlib.closing(RowMatcher(condition, columns, table.column_names)) as matcher:
        return matcher.positions(table)


class RowMatcher:
    """Evaluates a condition on one Arrow table after the other."""

    def __init__(self, condition: Condition, columns: Sequence[EngineColumn], known: Sequence[str]) -> None:
        refuse_unheld(columns)
        refuse_own_column(condition, known)
        self._columns = columns
        self._known = known
        self._condition = condition
        self._cursor = _shared(pushes=False).cursor()
        # One transaction: the clock has one value for every row.
        self._cursor.begin()

    def check(self) -> None:
        """Refuse a condition that the engine cannot evaluate on these columns."""
        self.positions(pa.Table.from_batches([], pa.schema([column.field for column in self._columns])))

    def positions(self, table: pa.Table) -> Positions:
        """Where in `table` the rows are that satisfy the condition, in order."""
        held, fields = [column.of(table) for column in self._columns], [*engine_schema(self._columns)]
        clause = self._condition.clause
        if self._condition.takes_rows(self._known):
            # A number in the row would be one of its values. `columns(*)` makes several answers, and all must hold.
            answers = self._run(f"select {clause}::boolean from {VIEW}", pa.table(held, pa.schema(fields)))
            holds = [column.fill_null(False).to_numpy() for column in answers.columns]
            return np.flatnonzero(np.logical_and.reduce(holds))
        rows = np.arange(table.num_rows, dtype=np.int64)
        schema = pa.schema([*fields, pa.field(ROW_NUMBER, pa.int64())])
        numbered = pa.table([*held, pa.array(rows)], schema)
        numbers = self._run(f"select {ROW_NUMBER} from {VIEW} where {clause}", numbered)[0].to_numpy()
        return np.sort(numbers) if len(numbers) < len(rows) else rows

    def _run(self, query: str, table: pa.Table) -> pa.Table:
        with _mapped([], _names_hint(self._condition, self._known)):
            self._cursor.register(VIEW, table)
            result = self._cursor.sql(query).to_arrow_reader(1 << 20).read_all()
            self._cursor.unregister(VIEW)
        return result

    def close(self) -> None:
        """Close the engine."""
        self._cursor.close()


def refuse_own_column(condition: Condition, known: Sequence[str]) -> None:
    """DatasetError for a condition that names the column that is ours."""
    if ROW_NUMBER in map(fold_case, condition.names):
        raise DatasetError(f"there is no column {ROW_NUMBER!r}", hint=_names_hint(condition, known))


def _names_hint(condition: Condition, known: Sequence[str]) -> str:
    """What the columns are called, where a condition names one that there is not."""
    columns = {fold_case(name) for name in known}
    unknown = sorted(name for name in condition.names if fold_case(name) not in columns)
    return f"{nearest(unknown[0], known)} The table has: {', '.join(known)}.".strip() if unknown else ""


@functools.lru_cache(_KEPT_TREES)
def _parsed(sql: str) -> Any:
    """The tree of some SQL, as the engine's own parser sees it; nothing of it runs."""
    with contextlib.closing(_shared(pushes=False).cursor()) as cursor, _mapped([]):
        text = cursor.execute("select json_serialize_sql(?::varchar)", [sql]).fetchone()[0]
    try:
        return json.loads(text)
    except RecursionError:
        raise DatasetError("the SQL is nested too deeply", hint="Write it in several steps.") from None


def _connect(options: Mapping[str, str]) -> Any:
    """The only place that makes an engine: shut before anything runs on it, and locked so."""
    import duckdb

    connection = duckdb.connect(":memory:", config={**_SANDBOX, **options})
    # Text means the same moment on every machine.
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("set lock_configuration = true")
    return connection


def _shared(*, pushes: bool) -> Any:
    """An engine of this process for everything small: it has one thread, no disk, and no tables of its own.

    One that pushes filters hands them to its sources; one that does not evaluates them by itself.
    """
    return _shared_by(generation(), pushes)


@functools.cache
def _shared_by(_process: int, pushes: bool) -> Any:
    options = {"threads": "1"} | ({} if pushes else {"disabled_optimizers": "filter_pushdown"})
    connection = _connect(options)
    is_own = OwnProcess()

    def close() -> None:
        """Close the engine before the interpreter ends: its library complains of what it still holds then."""
        if is_own:
            connection.close()
            _shared_by.cache_clear()

    atexit.register(close)
    return connection


@contextlib.contextmanager
def _mapped(sources: Sequence[ArrowSource], hint: str = "") -> Iterator[None]:
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for source in sources:
            if source.failures:
                raise source.failures[0] from None
        unknown = _UNKNOWN_COLUMN.search(str(error))
        fact = (
            str(error).partition("\n\nLINE ")[0] if ROW_NUMBER in str(error) else str(error)
        )  # a generated line
        fact = f"there is no column {unknown[1]!r}" if unknown else fact.strip()
        if isinstance(error, duckdb.OutOfMemoryException) or fact.startswith("Out of Memory"):
            # The engine's advice is about settings, which are locked here.
            fact, hint = fact.splitlines()[0], "Select fewer columns or rows, or aggregate first."
            raise TooLargeError(f"the query failed: {fact}", hint=hint) from None
        if unknown and not hint:
            known = [name for source in sources for name in source.schema.names]
            hint = f"Check the SQL.{nearest(unknown[1], known)}"
        for column in (unheld for source in sources for unheld in source.unheld if not hint):
            hint = (
                f"Check the SQL; it cannot look at column {column.field.name!r} of type {column.field.type}."
            )
        message = fact if unknown else f"the query failed: {fact}"
        raise DatasetError(message, hint=hint or "Check the SQL.") from None
