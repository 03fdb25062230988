"""The front door: what `import warpdata` costs and what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import warpdata

HEAVY = {"numpy", "pyarrow", "duckdb", "obstore", "zstandard", "torch", "av", "crc32c", "faiss", "ml_dtypes"}


def best_cpu_seconds(arguments: list[str], runs: int = 7) -> float:
    """Least CPU time of a fresh interpreter over several runs: busy machines slow all but the best."""
    import resource

    best = float("inf")
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
        best = min(best, used)
    return best


def test_import_is_quick() -> None:
    assert best_cpu_seconds(["-c", "import warpdata"]) < 0.150


def test_help_is_quick() -> None:
    assert best_cpu_seconds(["-m", "warpdata", "--help"]) < 0.150


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, warpdata; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not HEAVY & set(loaded.stdout.split())


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from warpdata.cli.main import build_parser; build_parser(); print(' '.join(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not HEAVY & set(loaded.stdout.split())


def test_every_public_name_exists_and_has_a_contract() -> None:
    assert warpdata.__all__ == sorted(set(warpdata.__all__))
    for name in warpdata.__all__:
        value = getattr(warpdata, name)
        assert name == "__version__" or value.__doc__, f"warpdata.{name} has no docstring"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        warpdata.no_such_name  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    import ast
    from pathlib import Path

    tree = ast.parse(Path(warpdata.__file__).read_text())
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert seen == set(warpdata.__all__)
