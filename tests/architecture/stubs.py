"""What the modules of Python have on Linux and not on macOS, by the type stubs that come with mypy."""

from __future__ import annotations

import ast
import functools
import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path

NEWEST = (99,)
"""A version of Python that has whatever any has."""


@functools.cache
def only_on_linux(module: str) -> frozenset[str]:
    """The names of a module that macOS does not have."""
    found = importlib.util.find_spec("mypy")
    assert found is not None
    assert found.origin is not None
    stubs = Path(found.origin).parent / "typeshed" / "stdlib"
    place = stubs / f"{module}.pyi"
    if not place.exists():
        place = stubs / module / "__init__.pyi"
    body = ast.parse(place.read_text()).body
    return frozenset({*_names(body, "linux")} - {*_names(body, "darwin")})


def _names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _names(node.body if _holds(node.test, platform) else node.orelse, platform)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _holds(test: ast.expr, platform: str) -> bool:
    """What a condition comes to on a system: stubs ask for its name and for the version of Python, and no more."""
    system = types.SimpleNamespace(platform=platform, version_info=NEWEST)
    return bool(eval(compile(ast.Expression(test), "", "eval"), {"sys": system}))
