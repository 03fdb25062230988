"""The package stays small and plain: one budget per package for lines, names and unusual words.

A budget goes down whenever the code does: `python -m tests.architecture.test_size` prints the figures of today, rounded
up. It goes up only in a commit that explains why. A change that adds a second way to do something deletes the first.
"""

from __future__ import annotations

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"
MODULES_PER_FOLDER = 15
CROWDED: frozenset[str] = frozenset()
"""Folders that still have more modules; the list only gets shorter."""

BUDGETS: dict[str, tuple[int, int, int]] = {
    "(top)": (850, 80, 0),
    "_api": (1200, 60, 0),
    "bytekit": (3300, 420, 0),
    "catalog": (7800, 760, 5),
    "cli": (4000, 240, 0),
    "convert": (11750, 1090, 10),
    "corpora": (2100, 270, 5),
    "episodes": (12100, 1230, 10),
    "formats": (12700, 1270, 15),
    "loading": (4800, 490, 0),
    "ordering": (600, 80, 0),
    "ray": (1000, 100, 0),
    "search": (6600, 610, 60),
    "sql": (800, 90, 0),
    "stores": (3500, 390, 0),
    "timeline": (2200, 360, 5),
    "viewer": (2400, 240, 0),
}
"""Package -> non-blank lines, functions and classes, unusual words in docstrings, comments and messages."""

DOCS_WORDS = 103
"""Unusual words in README.md, ARCHITECTURE.md, CONTRIBUTING.md and docs/."""

FORMAT_SKIPS = 239
"""Lines that switch the formatter off, in src, tests, bench, tools and examples."""

UNUSUAL = re.compile(
    r"\blie[sd]?\b|\blying\b"  # is, is stored
    r"|\bsa(?:y|ys|id)\b|\btold\b|\btells?\b|\basked\b|\basks\b"  # name the fact: "the header has", "requested"
    r"|\bwho(?:ever)?\b|\bwhatever\b|\bnobody\b|\bsomebody\b"  # name the caller, the reader, the file
    r"|\banew\b|\blet(?:s|ting)? go\b|\b(?:is|are) none\b",  # again, release, not a/no
    re.IGNORECASE,
)
"""Constructions that readers of this field do not search for, with what to write instead."""


def words_of(path: Path) -> str:
    """Docstrings, comments and messages of a module."""
    kinds = {tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    parts = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in kinds or (token.type == tokenize.STRING and " " in token.string):
            parts.append(token.string)
    return " ".join(parts)


def lines_of(path: Path) -> int:
    return sum(1 for line in path.read_text().splitlines() if line.strip())


def names_of(path: Path) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sum(isinstance(node, kinds) for node in ast.walk(ast.parse(path.read_text())))


def figures() -> dict[str, tuple[int, int, int]]:
    """Lines, names and unusual words of every package today."""
    totals: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        row = totals[parts[0] if len(parts) > 1 else "(top)"]
        row[0] += lines_of(path)
        row[1] += names_of(path)
        row[2] += len(UNUSUAL.findall(words_of(path)))
    return {name: (row[0], row[1], row[2]) for name, row in sorted(totals.items())}


def docs_words() -> int:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return sum(len(UNUSUAL.findall(page.read_text())) for page in [*pages, *(ROOT / "docs").rglob("*.md")])


def format_skips() -> int:
    folders: Iterable[str] = ("src", "tests", "bench", "tools", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sum(path.read_text().count("# fmt" + ": skip") for path in files)


def crowded() -> set[str]:
    folders = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    sizes = {
        folder.relative_to(PACKAGE).as_posix(): sum(
            path.name != "__init__.py" for path in folder.glob("*.py")
        )
        for folder in folders
    }
    return {folder for folder, count in sizes.items() if count > MODULES_PER_FOLDER}


def test_every_package_keeps_its_budget() -> None:
    now = figures()
    over = [
        f"{name}: {kind} {value}, budget {limit}"
        for name, row in now.items()
        for kind, value, limit in zip(
            ("lines", "names", "unusual words"), row, BUDGETS.get(name, (0, 0, 0)), strict=True
        )
        if value > limit
    ]
    assert not over, "\n".join(over)
    assert set(BUDGETS) == set(now), "a package without a budget, or a budget without a package"


def test_no_folder_grows_beyond_what_one_person_can_hold_in_mind() -> None:
    assert crowded() <= CROWDED


def test_docs_keep_to_plain_words() -> None:
    assert docs_words() <= DOCS_WORDS


def test_the_formatter_is_rarely_switched_off() -> None:
    assert format_skips() <= FORMAT_SKIPS


if __name__ == "__main__":
    for package, row in figures().items():
        rounded = tuple(-value // step * -step for value, step in zip(row, (100, 10, 5), strict=True))
        print(f"    {package!r}: {rounded},".replace("'", '"'))
    print(f"DOCS_WORDS = {docs_words()}\nFORMAT_SKIPS = {format_skips()}\nCROWDED = {sorted(crowded())}")
