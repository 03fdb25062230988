"""SQL over tables: DuckDB fed by our range reader, columns and filters pushed down. The door of duckdb."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from warpdata.catalog.frames import pandas_from, polars_from
from warpdata.errors import DatasetError, WarpError

BatchScan = Callable[[Sequence[str] | None, Any], Iterator[pa.RecordBatch]]
"""Given columns and a filter expression, the batches in row order; the filter must be applied in full."""

_NO_COLUMNS = ["__no_column__"]


class ArrowSource(pads.Dataset):  # type: ignore[misc]
    """A table as DuckDB sees it: a schema, and scans that read only the columns and rows asked for."""

    def __init__(self, schema: pa.Schema, scan: BatchScan) -> None:
        self._schema = schema
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
        """A scan with projection and filter, as DuckDB asks for it."""
        names = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in names])
        batches = (batch.select(names) for batch in self._scan(names, filter))
        return pads.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, batches))


class SqlResult:
    """The rows of a query, streamed; the connection lives as long as they do."""

    def __init__(self, connection: Any, reader: pa.RecordBatchReader, failures: list[BaseException]) -> None:
        self._connection = connection
        self._reader = reader
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        try:
            with _mapped(self._failures):
                yield from self._reader
        finally:
            self.close()

    def arrow(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    def pandas(self) -> Any:
        """All rows as a pandas frame."""
        return pandas_from(self.arrow())

    def polars(self) -> Any:
        """All rows as a polars frame."""
        return polars_from(self.arrow())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def __repr__(self) -> str:
        return f"<SqlResult {', '.join(f'{each.name}: {each.type}' for each in self.schema)}; read it once>"

    def close(self) -> None:
        """End the query."""
        self._reader = pa.RecordBatchReader.from_batches(self.schema, [])
        self._connection.close()


def run_sql(
    query: str, tables: dict[str, ArrowSource], views: dict[str, str] | None = None, batch_rows: int = 65_536
) -> SqlResult:
    """Run a query over tables and views of them by name; it can read nothing else on this machine."""
    connection = _connect()
    failures: list[BaseException] = []
    try:
        with _mapped(failures):
            for name, source in tables.items():
                connection.register(name, _Noting(source, failures))
            for name, select in (views or {}).items():
                connection.execute(f"create view {quoted(name)} as {select}")
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            relation = connection.sql(query)
            if relation is None:
                raise DatasetError("the query returns no rows", hint="Write a SELECT.")
            return SqlResult(connection, relation.to_arrow_reader(batch_rows), failures)
    except BaseException:
        connection.close()
        raise


def needed_by(predicate: str, schema: pa.Schema) -> tuple[list[str], Any]:
    """The columns a predicate looks at, and as much of it as can be pushed down, as an Arrow expression."""
    asked: list[tuple[list[str], Any]] = []

    def note(columns: Sequence[str] | None, expression: Any) -> Iterator[pa.RecordBatch]:
        asked.append((list(columns or schema.names), expression))
        return iter(())

    connection = _connect()
    try:
        with _mapped([]):
            connection.register("t", ArrowSource(schema, note))
            connection.sql(f"select 1 from t where ({predicate})").to_arrow_reader(1).read_all()
    finally:
        connection.close()
    columns, expression = asked[0] if asked else ([], None)
    return sorted({*columns, *fields_in(expression, schema.names)}), expression


def fields_in(expression: Any, names: Sequence[str]) -> list[str]:
    """The columns an Arrow expression may name: it has no way to list them, so its text is searched."""
    text = "" if expression is None else str(expression)
    return [name for name in names if name in text]


class PredicateFilter:
    """A predicate applied to one Arrow table after the other, by the same engine that runs SQL."""

    def __init__(self, predicate: str) -> None:
        self._predicate = predicate
        self._connection = _connect()
        self._connection.execute("set threads = 1")

    def apply(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows of `table` that satisfy the predicate, in order."""
        listed = ", ".join(quoted(name) for name in columns)
        with _mapped([]):
            self._connection.register("t", table)
            query = f"select {listed} from t where ({self._predicate})"
            return self._connection.sql(query).to_arrow_reader(1 << 20).read_all()

    def close(self) -> None:
        """Close the engine."""
        self._connection.close()


def quoted(name: str) -> str:
    """A name as SQL wants it, whatever letters it has."""
    return '"' + name.replace('"', '""') + '"'


class _Noting(ArrowSource):
    """A source that remembers why a scan failed: DuckDB only passes the text on."""

    def __init__(self, inner: ArrowSource, failures: list[BaseException]) -> None:
        super().__init__(inner.schema, self._noted)
        self._inner = inner
        self._failures = failures

    def _noted(self, columns: Sequence[str] | None, expression: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._inner._scan(columns, expression)
        except WarpError as error:
            self._failures.append(error)
            raise


def _connect() -> Any:
    import duckdb

    return duckdb.connect(":memory:")


@contextlib.contextmanager
def _mapped(failures: list[BaseException]) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        if failures:
            raise failures[0] from None
        raise DatasetError(f"the query failed: {str(error).strip()}", hint="Check the SQL.") from None
    except (pa.ArrowException, OSError) as error:
        if failures:
            raise failures[0] from None
        raise DatasetError(f"the query failed: {error}", hint="Check the SQL.") from None
