"""SQL over tables: DuckDB fed by our range reader, columns and filters pushed down. The adapter of duckdb.

Every connection is made by `_connect`: it can reach no file, network, extension or variable of the caller, and no
text that runs on it can change that.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
    collected,
    engine_columns,
    engine_schema,
    fields_in,
    pandas_from,
    polars_from,
    refuse_unheld,
)
from warpdata.sql.sqltext import (
    OWN_COLUMNS,
    VIEW,
    Condition,
    condition_of,
    condition_query,
    folded,
    tables_of,
)

if TYPE_CHECKING:
    from warpdata.sql.arrow_source import ArrowSource, TableScan


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
            return collected(batches, self.schema, "the result of the query", max_rows, max_bytes)

    def pandas(self, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a pandas frame, unless they are more than the limits allow."""
        return pandas_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def polars(self, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a polars frame, unless they are more than the limits allow."""
        return polars_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def __repr__(self) -> str:
        return f"<SqlResult {', '.join(f'{each.name}: {each.type}' for each in self.schema)}; read it once>"

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
    if len({folded(name) for name in used}) < len(used):
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
    return condition_of(text, _parsed(condition_query(text)))


def check_condition(text: str, tables: Sequence[str]) -> None:
    """Raise DatasetError for an invalid condition, or one whose subqueries use other tables."""
    parse_condition(text)
    tables_of(_parsed(condition_query(text)), [*tables, VIEW])


def pushed_down(condition: Condition, columns: Sequence[EngineColumn]) -> Any:
    """The part of a condition that can exclude row groups, as an Arrow expression, or None."""
    from warpdata.sql.arrow_source import ArrowSource

    filters: list[Any] = []

    class RecordingSource(ArrowSource):
        def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
            filters.append(filter)
            return super().scanner(columns, None)

    if not _pushes_right(columns):
        return None
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
    found = run_sql(
        "select b from main where a > 1", {"main": arrow_source(list(table.schema), lambda *_: iter([table]))}
    )
    if found.arrow().to_pylist() != [{"b": 4}]:
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
        self.positions(pa.Table.from_batches([], pa.schema([column.field for column in columns])))

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
            found = self._cursor.sql(query).to_arrow_reader(1 << 20).read_all()
            self._cursor.unregister(VIEW)
        return found

    def close(self) -> None:
        """Close the engine."""
        self._cursor.close()


def refuse_own_column(condition: Condition, known: Sequence[str]) -> None:
    """DatasetError for a condition that names the column that is ours."""
    if ROW_NUMBER in map(folded, condition.names):
        raise DatasetError(f"there is no column {ROW_NUMBER!r}", hint=_names_hint(condition, known))


def _names_hint(condition: Condition, known: Sequence[str]) -> str:
    """What the columns are called, where a condition names one that there is not."""
    columns = {folded(name) for name in known}
    unknown = sorted(name for name in condition.names if folded(name) not in columns)
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
    atexit.register(lambda: _let_go(connection) if is_own else None)
    return connection


def _let_go(connection: Any) -> None:
    """Close an engine before the interpreter ends: what it still holds then, its library complains of."""
    connection.close()
    _shared_by.cache_clear()


def _pushes_right(columns: Sequence[EngineColumn]) -> bool:
    """Whether pushed filters mean what the engine means: before 2.0 they forgot that NaN is above every number."""
    import duckdb

    is_old = duckdb.__version__.startswith("1.")
    return not (is_old and any(word in str(c.held) for c in columns for word in ("float", "double")))


def _clean_message(message: str) -> str:
    """A message of the engine without internal columns."""
    if unknown := _UNKNOWN_COLUMN.search(message):
        return f"there is no column {unknown[1]!r}"
    if ROW_NUMBER in message:  # the quoted line is generated
        message = message.partition("\n\nLINE ")[0]
    return message.strip()


@contextlib.contextmanager
def _mapped(sources: Sequence[ArrowSource], hint: str = "") -> Iterator[None]:
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for source in sources:
            if source.failures:
                raise source.failures[0] from None
        fact = _clean_message(str(error))
        if isinstance(error, duckdb.OutOfMemoryException) or fact.startswith("Out of Memory"):
            # The engine's advice is about settings, which are locked here.
            fact, hint = fact.splitlines()[0], "Select fewer columns or rows, or aggregate first."
            raise TooLargeError(f"the query failed: {fact}", hint=hint) from None
        unknown = _UNKNOWN_COLUMN.search(str(error))
        if unknown and not hint:
            known = [name for source in sources for name in source.schema.names]
            hint = f"Check the SQL.{nearest(unknown[1], known)}"
        for column in (each for source in sources for each in source.unheld if not hint):
            hint = (
                f"Check the SQL; it cannot look at column {column.field.name!r} of type {column.field.type}."
            )
        message = fact if unknown else f"the query failed: {fact}"
        raise DatasetError(message, hint=hint or "Check the SQL.") from None
