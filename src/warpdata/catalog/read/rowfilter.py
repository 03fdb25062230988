"""Which rows of a table satisfy the conditions of a view: one answer for streams, SQL, counts and single rows.

One of the adapters of pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warpdata.errors import DatasetError
from warpdata.sql.engine import RowMatcher, parse_condition, pushed_down
from warpdata.sql.enginetypes import engine_columns, fields_in
from warpdata.sql.rowpicking import Positions, rows_at

if TYPE_CHECKING:
    from warpdata.catalog.table import Table


class RowFilter:
    """The conditions of a view, asked of one piece of its table after the other; types never change."""

    def __init__(self, view: Table) -> None:
        self._view = view
        self._expression = view.expression
        names = view.files.schema.names
        self.columns: list[str] = fields_in(self._expression, names)
        """The columns the conditions look at."""
        self.pruning: Any = self._expression
        """What can be said about whole row groups, as an Arrow expression, or None."""
        self._matcher: RowMatcher | None = None
        self._matches: Positions | None = None
        if view.predicate is not None:
            self._add(view.predicate)

    def _add(self, predicate: str) -> None:
        condition, view = parse_condition(predicate), self._view
        if condition.has_subquery:
            # A subquery is about whole tables, so the whole is asked once.
            self._matches = view.rows_where(condition)
            return
        names = view.files.schema.names
        asked = condition.columns_of(names)
        for name in asked:
            if names.count(name) > 1:
                hint = "Publish the table again with other names."
                raise DatasetError(f"table {view.name!r} has two columns called {name!r}", hint=hint)
        columns = engine_columns(view.files.schema.field(name) for name in asked)
        self._matcher = RowMatcher(condition, columns, names)
        self.columns = list(dict.fromkeys([*self.columns, *asked]))
        pushed = pushed_down(condition, columns)
        if pushed is not None:
            self.pruning = pushed if self.pruning is None else self.pruning & pushed

    def keep(self, piece: pa.Table, first_row: int) -> pa.Table:
        """The rows of a piece that satisfy the conditions; `first_row` is where in the table it begins."""
        kept = None
        if self._matches is not None:
            low, high = np.searchsorted(self._matches, [first_row, first_row + piece.num_rows])
            kept = self._matches[low:high] - first_row
        if self._matcher is not None:
            kept = self._matcher.positions(piece)
        if self._expression is not None:
            kept = self._satisfying(piece, kept)
        return piece if kept is None else rows_at(piece, kept)

    def _satisfying(self, piece: pa.Table, kept: Positions | None) -> Positions:
        """Of the rows at `kept`, those for which the Arrow expression holds."""
        import pyarrow.dataset as pads

        try:
            looked_at = piece.select(fields_in(self._expression, self._view.files.schema.names))
            answers = pads.dataset(looked_at).to_table(columns={"kept": self._expression})["kept"]
            holds = pc.fill_null(answers, False).to_numpy()
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"the filter does not fit table {self._view.name!r}: {error}") from None
        return np.flatnonzero(holds) if kept is None else kept[holds[kept]]

    def close(self) -> None:
        """Close the engine."""
        if self._matcher is not None:
            self._matcher.close()
