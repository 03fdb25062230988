"""Rows of a table as text that fits a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warpdata.cli.console import table

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_CELL = 40


def print_rows(console: Console, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Print rows as a table, long values cut."""
    cells = [[_text(row.get(name)) for name in names] for row in rows]
    console.print("\n".join(table(cells, list(names))))
    console.print(f"{len(rows)} rows")


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text.replace("\n", " ")
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
