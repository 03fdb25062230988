"""Our own golden files: what is written today is what was written when they were made, byte for byte."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.conftest import OWN_GOLDEN, ROOT


def load_tool():
    spec = importlib.util.spec_from_file_location("make_golden", ROOT / "tools" / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["wshard", "journal"])
def test_today_writes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    tool = load_tool()
    {"wshard": tool.write_shards, "journal": tool.write_journals}[kind](tmp_path)
    names = sorted(
        path.relative_to(OWN_GOLDEN / kind) for path in (OWN_GOLDEN / kind).rglob("*") if path.is_file()
    )
    assert len(names) >= 3
    for name in names:
        assert (tmp_path / name).read_bytes() == (OWN_GOLDEN / kind / name).read_bytes(), name


def test_expected_files_are_json() -> None:
    for path in OWN_GOLDEN.rglob("expected.json"):
        assert json.loads(path.read_text())
