"""Pages stay short: how-to pages of 80 lines, a README of 150, paragraphs of five lines, sentences of 30 words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE_LINES = {"docs/howto/": 80, "README.md": 150, "docs/reference/glossary.md": 80, "docs/decisions/": 40}
"""The longest page that each path may have."""
PARAGRAPH_CHARACTERS = 550
"""Five lines of 110 characters."""
SENTENCE_WORDS = 30
CELL_WORDS = 45
"""A table is for what one looks up: a longer cell is a paragraph."""

AVOIDED = "say says said told tells asked asks lies whoever whatever anew nobody"
"""Words with a plainer one: a receipt names or shows, a file is written again, a program reads a variable."""

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.ipynb")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
]


def text_of(page: Path) -> str:
    """The Markdown of a page; of a notebook that of its cells."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str) -> str:
    """A page without its blocks of code; links are their texts."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def paragraphs_of(text: str) -> Iterator[str]:
    """Running text and list items: no code, tables, headings or comments."""
    prose = re.sub(r"^(#|\||<!--|!\[).*$", "", without_code(text), flags=re.M)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose, flags=re.M):
        if plain := " ".join(block.split()):
            yield plain


def cells_of(text: str) -> Iterator[str]:
    for row in re.findall(r"^\|(.*)\|$", without_code(text), re.M):
        yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", row))


def words_in(text: str) -> int:
    return len(re.findall(r"[\w`'’-]+", text))


def long_sentences(paragraph: str) -> list[str]:
    return [each for each in re.split(r"(?<=[.!?])\s+", paragraph) if words_in(each) > SENTENCE_WORDS]


def findings(text: str) -> Iterator[str]:
    """What is longer than it should be."""
    for paragraph in paragraphs_of(text):
        if len(paragraph) > PARAGRAPH_CHARACTERS:
            yield f"a paragraph of {len(paragraph)} characters: {paragraph[:60]}…"
        for sentence in long_sentences(paragraph):
            yield f"a sentence of {words_in(sentence)} words: {sentence[:80]}…"
    for cell in cells_of(text):
        if words_in(cell) > CELL_WORDS:
            yield f"a cell of {words_in(cell)} words: {cell[:80]}…"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paragraphs_sentences_and_cells_are_short(page: Path) -> None:
    found = list(findings(text_of(page)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_words_are_plain(page: Path) -> None:
    prose = re.sub(r"^\|.*$", "", without_code(text_of(page)), flags=re.M)  # tables may be drawn from results
    found = [word for word in AVOIDED.split() if re.search(rf"\b{word}\b", prose)]
    assert page.name == "CONTRIBUTING.md" or not found, f"{page.name}: {', '.join(found)}"


def test_pages_are_short() -> None:
    for start, limit in PAGE_LINES.items():
        for page in PAGES:
            if page.relative_to(ROOT).as_posix().startswith(start):
                lines = len(page.read_text().splitlines())
                assert lines <= limit, f"{page.name} has {lines} lines: expected at most {limit}"


def test_how_to_pages_begin_with_code() -> None:
    """At most six lines come before the first block of code."""
    for page in sorted((ROOT / "docs" / "howto").glob("*.md")):
        before = [line for line in page.read_text().partition("\n```")[0].splitlines() if line.strip()]
        assert len(before) <= 7, f"{page.name} has {len(before)} lines before its first code"


def test_long_parts_are_noticed() -> None:
    assert long_sentences("One two three. " + "word " * 31 + ".") == ["word " * 31 + "."]
    assert not long_sentences("Short. " * 40)
    assert len(list(findings("Short words. " * 60))) == 1
    assert len(list(findings("| a | " + "word " * 50 + "|"))) == 1
    assert not list(findings("```text\n" + "word " * 500 + "\n```\n"))
