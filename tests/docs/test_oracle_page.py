"""What a page says of the original programs is what their results say."""

from __future__ import annotations

import importlib.util

from tests.conftest import ROOT


def test_the_table_is_drawn_from_the_results() -> None:
    spec = importlib.util.spec_from_file_location("page", ROOT / "tools" / "oracles" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text()
    assert text == page.drawn(text), "run: python tools/oracles/page.py"
    assert "nothing compared" in text
