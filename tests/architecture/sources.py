"""One rule over many files: a single test that names every file which breaks it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.conftest import ROOT


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


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
