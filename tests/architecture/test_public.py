"""The public names: what `import warpdata` costs and what it offers."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

import warpdata
from tests.conftest import ROOT

HEAVY = {"numpy", "pyarrow", "duckdb", "obstore", "zstandard", "torch", "av", "crc32c", "faiss", "ml_dtypes"}


SLOW_OF_THE_LIBRARY = {
    "asyncio", "concurrent", "ctypes", "email", "http", "logging", "multiprocessing", "queue", "random",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "unittest", "uuid", "xml", "zipfile",
}  # fmt: skip
"""Parts of the standard library that take milliseconds each and that neither import nor help needs."""


def loaded_by(code: str) -> set[str]:
    """The modules that `code` loads in a fresh interpreter."""
    shown = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before))"
    # Without site: what the packages of this machine load at start is not ours.
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {shown}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_loads_only_the_table_of_names() -> None:
    """Which modules are loaded is what an import costs; `bench/versus/startup.py` has the milliseconds."""
    loaded = loaded_by("import warpdata")
    assert {name for name in loaded if name.startswith("warpdata")} == {"warpdata", "warpdata._version"}
    assert not tops(loaded) & (HEAVY | SLOW_OF_THE_LIBRARY)


def test_help_loads_only_the_command_line() -> None:
    loaded = loaded_by("from warpdata.cli.main import build_parser; build_parser()")
    ours = {name for name in loaded if name.startswith("warpdata.") and not name.startswith("warpdata.cli")}
    assert ours == {"warpdata._version", "warpdata.errors", "warpdata.settings"}
    assert not tops(loaded) & (HEAVY | SLOW_OF_THE_LIBRARY)
    assert tops(loaded) <= set(sys.stdlib_module_names) | {"warpdata"}


def test_every_public_name_exists_and_has_a_contract() -> None:
    assert warpdata.__all__ == sorted(set(warpdata.__all__))
    for name in warpdata.__all__:
        value = getattr(warpdata, name)
        assert name == "__version__" or value.__doc__, f"warpdata.{name} has no docstring"


def test_what_a_newcomer_needs_is_listed_and_the_rest_lies_in_its_package() -> None:
    assert len(warpdata.__all__) <= 54
    assert dir(warpdata) == sorted([*warpdata.__all__, *warpdata._PACKAGES])
    assert not set(warpdata._HOMES) & set(warpdata._ELSEWHERE)
    for name, package in warpdata._ELSEWHERE.items():
        if package not in ("warpdata.errors", "warpdata._api", f"warpdata.episodes.{name}"):
            assert name in dir(importlib.import_module(package))
        assert getattr(warpdata, name).__doc__


def test_docs_and_examples_use_what_is_listed() -> None:
    written = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for path in written:
        used = set(re.findall(r"\bwd\.(\w+)", path.read_text()))
        further = warpdata._ELSEWHERE if "reference" in path.parts else ()
        assert used <= {*warpdata.__all__, *warpdata._PACKAGES, *further}, path


def test_an_unknown_name_is_an_attribute_error_that_knows_the_next_one() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        warpdata.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match=r"'opne_episode'\. Did you mean 'open_episode'"):
        warpdata.opne_episode  # noqa: B018
    with pytest.raises(AttributeError, match=r"'warpdata\.corpora' has .* Did you mean 'FractionRows'"):
        warpdata.corpora.FractionRow  # noqa: B018


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
    assert seen | {"__version__"} == {*warpdata.__all__, *warpdata._ELSEWHERE}
