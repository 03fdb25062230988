"""A number in a page is a number in a result: the tables are what the JSON says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tables import PAGES, redraw


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_are_drawn_from_results(page: Path) -> None:
    assert page.read_text() == redraw(page), "run: python -m bench.tables"
