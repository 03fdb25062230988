"""Rows of a table as text that fits a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warpdata.cli.console import cut, printable

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_CELL = 40


def print_rows(console: Console, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Print rows as a table that fits the terminal, long values cut."""
    longest = console.fit_width or _CELL
    cells = [[_text(row.get(name), longest) for name in names] for row in rows]
    console.print_table(cells, list(names))
    console.print(f"{len(rows)} rows")


def _text(value: Any, longest: int) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Only the beginning is shown, so only that is looked at.
    return cut(printable(text[: 4 * longest]), longest)
