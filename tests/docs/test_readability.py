"""Pages stay short: how-to pages of 80 lines, paragraphs of five lines, sentences of 30 words.

`LONG` counts what is still longer. A number may only go down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

HOWTO_LINES = 80
PARAGRAPH_CHARACTERS = 600
SENTENCE_WORDS = 30
LONG = {"pages": 4, "paragraphs": 3, "sentences": 7}

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paragraphs_of(page: Path) -> Iterator[str]:
    """Running text and list items of a page: no code, tables, headings or comments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    text = re.sub(r"^(#|\||<!--|!\[).*$", "", text, flags=re.M)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        if plain:
            yield plain


def long_sentences(paragraph: str) -> list[str]:
    return [
        sentence
        for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph)
        if len(re.findall(r"[\w`'’-]+", sentence)) > SENTENCE_WORDS
    ]


def findings() -> dict[str, list[str]]:
    """What is longer than it should be, with its page."""
    long: dict[str, list[str]] = {kind: [] for kind in LONG}
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        if name.startswith("docs/howto/") and len(page.read_text().splitlines()) > HOWTO_LINES:
            long["pages"].append(name)
        for paragraph in paragraphs_of(page):
            if len(paragraph) > PARAGRAPH_CHARACTERS:
                long["paragraphs"].append(f"{name}: {paragraph[:60]}…")
            long["sentences"] += [f"{name}: {sentence[:80]}…" for sentence in long_sentences(paragraph)]
    return long


def test_pages_paragraphs_and_sentences_are_short() -> None:
    for kind, found in findings().items():
        assert len(found) <= LONG[kind], f"{kind}: {len(found)}, allowed {LONG[kind]}\n" + "\n".join(found)


def test_long_sentences_are_noticed() -> None:
    assert long_sentences("One two three. " + "word " * 31 + ".") == ["word " * 31 + "."]
    assert not long_sentences("Short. " * 40)
