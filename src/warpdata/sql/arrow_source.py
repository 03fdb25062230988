"""A table as the SQL engine scans it; separate, because it loads pyarrow's datasets, which only SQL needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from warpdata.errors import WarpError
from warpdata.sql.columns import EngineColumn, engine_columns, engine_schema, fields_in, refuse_unheld

TableScan = Callable[[Sequence[EngineColumn], Any], Iterator[pa.Table]]
"""Given columns and an expression that may rule row groups out, the rows in order, as they are stored."""


class ArrowSource(pads.Dataset):  # type: ignore[misc]
    """A table as DuckDB sees it: a schema, and scans that read only the needed columns and rows."""

    def __init__(self, fields: Sequence[pa.Field], scan: TableScan) -> None:
        columns = engine_columns(fields)
        # A count of rows reads the first column, which must be readable.
        self._columns = {c.name: c for c in sorted(columns, key=lambda column: column.held is None)}
        self._scan = scan
        self.unheld = [column for column in columns if column.held is None]
        """Columns shown as text that the engine cannot read."""
        self.failures: list[BaseException] = []
        """Why scans failed: DuckDB passes only the text on."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return engine_schema(self._columns.values())

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
        """A scan with projection and filter, as DuckDB calls it."""
        names = list(self._columns) if columns is None else columns
        in_filter = fields_in(filter, list(self._columns))
        needed = [self._columns[name] for name in dict.fromkeys([*names, *in_filter])]
        schema = engine_schema(self._columns[name] for name in names)
        can_prune = all(self._columns[name].is_as_stored for name in in_filter)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                refuse_unheld(needed)
                for stored in self._scan(needed, filter if can_prune else None):
                    held = pa.table([column.of(stored) for column in needed], engine_schema(needed))
                    kept = held if filter is None else held.filter(filter)
                    yield from kept.select(names).to_batches()
            except WarpError as error:
                self.failures.append(error)
                raise

        return pads.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, batches()))
