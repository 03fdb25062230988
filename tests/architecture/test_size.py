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
from pathlib import Path

from tests.architecture.sources import parsed, statements
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"
MODULES_PER_FOLDER = 15
CROWDED: frozenset[str] = frozenset()
"""Folders that still have more modules; the list only gets shorter."""

BUDGETS: dict[str, tuple[int, int, int]] = {
    "(top)": (800, 80, 0),
    "_api": (1200, 60, 0),
    "bytekit": (3100, 390, 0),
    "catalog": (7300, 660, 5),
    "cli": (3600, 230, 0),
    "convert": (11200, 980, 10),
    "corpora": (1800, 200, 5),
    "episodes": (11900, 1150, 10),
    "formats": (12700, 1170, 5),
    "loading": (5000, 500, 0),
    "ordering": (800, 120, 0),
    "ray": (900, 80, 0),
    "search": (6300, 550, 5),
    "sql": (800, 80, 0),
    "stores": (3300, 360, 0),
    "timeline": (2100, 310, 5),
    "viewer": (2300, 210, 0),
}
"""Package -> non-blank lines, functions and classes, unusual words in docstrings, comments and messages."""

PARTICIPLES: dict[str, int] = {
    "episodes": 2,
    "formats": 1,
    "loading": 11,
    "ordering": 1,
    "search": 17,
    "timeline": 1,
}
"""Package -> public functions whose name is a bare participle (`opened`, `chosen`); a function is a verb (`open`)."""

PARTICIPLE = re.compile(
    "begun|bound|brought|built|caught|chosen|done|drawn|found|given|gone|held|hidden|kept|known|left|lent|lost|made|met"
    "|paid|seen|sent|shown|sold|spent|taken|taught|told|understood|won|written|[a-z]+ed"
)
VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "ragged", "seed", "shed", "speed"})
"""Words that only end like participles."""

DOCS_WORDS = 9
"""Unusual words in README.md, ARCHITECTURE.md, CONTRIBUTING.md and docs/."""

FORMAT_SKIPS = 224
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
    """Docstrings, comments and messages of a module; empty if no unusual word is in it at all."""
    if not UNUSUAL.search(path.read_text()):
        return ""
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
    return sum(isinstance(node, kinds) for node in statements(parsed(path)))


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


def participles(tree: ast.AST) -> list[str]:
    """Public functions and methods named by one participle; properties are values, and may be."""
    names = []
    for node in (tree, *statements(tree)):
        for child in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                is_value = any("property" in ast.unparse(each) for each in child.decorator_list)
                is_participle = PARTICIPLE.fullmatch(child.name) and child.name not in VERBS
                if is_participle and not is_value:
                    names.append(child.name)
    return names


def participles_by_package() -> dict[str, list[str]]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        found[parts[0] if len(parts) > 1 else "(top)"] += participles(parsed(path))
    return {package: names for package, names in found.items() if names}


def docs_words() -> int:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return sum(len(UNUSUAL.findall(page.read_text())) for page in [*pages, *(ROOT / "docs").rglob("*.md")])


def format_skips() -> int:
    folders = (PACKAGE, *(ROOT / name for name in ("tests", "bench", "tools", "examples")))
    files = [path for folder in folders for path in folder.rglob("*.py")]
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


def test_public_functions_are_verbs() -> None:
    now = participles_by_package()
    over = {package: names for package, names in now.items() if len(names) > PARTICIPLES.get(package, 0)}
    assert not over, "name them by a verb (open, choose) or by what they return"
    assert set(PARTICIPLES) <= set(now), "a package without any such name needs no row"


def test_participles_are_seen() -> None:
    methods = "class A:\n    def chosen(self): ...\n    @property\n    def used(self): ..."
    code = f"def opened(): ...\ndef embed(): ...\n{methods}"
    assert participles(ast.parse(code)) == ["opened", "chosen"]


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
    print(f"PARTICIPLES = { {package: len(names) for package, names in participles_by_package().items()} }")
    print(f"DOCS_WORDS = {docs_words()}\nFORMAT_SKIPS = {format_skips()}\nCROWDED = {sorted(crowded())}")
