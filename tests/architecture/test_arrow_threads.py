"""Arrow's own threads never decode what Python holds.

Such a thread may let go of the bytes a moment after the result is there, and needs the interpreter for that: a program
that ends in that moment is aborted by the C++ library.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.sources import every, mentions, parsed
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"
BY_PATH = {"catalog/build/tables.py", "search/columns.py", "corpora/side_table.py"}
"""These give Arrow the path of a file, which it then opens itself."""
DECODING = {"read_row_group", "read_row_groups", "iter_batches"}


def is_off(call: ast.Call, option: str) -> bool:
    return any(
        each.arg == option and isinstance(each.value, ast.Constant) and each.value.value is False
        for each in call.keywords
    )


def reads_ahead(call: ast.Call) -> bool:
    """Whether a call opens parquet so that Arrow's threads for files read it: those of a Python file, unless told."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "ParquetFile"):
        return False
    source = call.args[0]
    is_buffer = isinstance(source, ast.Call) and ast.unparse(source.func) == "pa.BufferReader"
    return not is_buffer and not is_off(call, "pre_buffer")


def decodes(call: ast.Call) -> bool:
    """Whether a call decodes columns; `read` of our own readers has places as arguments, that of parquet has none."""
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in DECODING or (call.func.attr == "read" and not call.args)


@every(sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).as_posix() not in BY_PATH))
def test_what_python_holds_is_decoded_by_the_thread_that_asks(path: Path) -> None:
    if not mentions(path, ["ParquetFile("]):
        return
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    lines = [call.lineno for call in calls if decodes(call) and not is_off(call, "use_threads")]
    assert not lines, f"line {lines}: say use_threads=False"
    lines = [call.lineno for call in calls if reads_ahead(call)]
    assert not lines, f"line {lines}: say pre_buffer=False"
