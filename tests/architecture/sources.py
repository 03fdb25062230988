"""One rule over many files: a single test that names every file which breaks it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.conftest import ROOT


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, without a look at their expressions, of which there are ten times as many."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(tree, part, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def mentions(path: Path, words: Iterable[str]) -> bool:
    """Whether a file has one of these words at all: looking at its syntax takes much longer."""
    return bool(_any_of(frozenset(words)).search(path.read_text()))


@functools.cache
def _any_of(words: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(words))))


def every(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Turn a test of one file into one of all of them."""

    def over_all(test: Callable[[Path], None]) -> Callable[[], None]:
        def run() -> None:
            broken = []
            for path in paths:
                try:
                    test(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert not broken, "\n".join(broken)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return over_all
