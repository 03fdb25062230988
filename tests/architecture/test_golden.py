"""A checkout without the golden files of other programs runs the rest of its tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import every, mentions, parsed
from tests.conftest import ROOT

SKIPPING = frozenset({"shared_golden", "sample", "expected"})
"""They skip the test that calls them; while tests are collected there is none."""


def called_at_import(node: ast.AST) -> Iterator[str]:
    """The names of what a module calls when it is imported: outside of functions, but in their decorators."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield node.func.id
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    body = getattr(node, "body", None) if is_function else None
    inside = body if isinstance(body, list) else [body]
    for child in ast.iter_child_nodes(node):
        if child not in inside:
            yield from called_at_import(child)


def test_calls_in_decorators_count_and_those_in_functions_do_not() -> None:
    text = "@mark(sample('a'))\ndef f(): expected('b')\nx = lambda: shared_golden('c')"
    assert set(called_at_import(ast.parse(text))) == {"mark", "sample"}


@every((ROOT / "tests").rglob("*.py"))
def test_no_golden_file_is_needed_to_collect(path: Path) -> None:
    if mentions(path, SKIPPING):
        assert not SKIPPING.intersection(called_at_import(parsed(path)))
