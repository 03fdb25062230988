"""No command and no page is left behind: commands are named alike and have help, every page is reachable."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from tools.docs_site import parsers_of

from tests.conftest import ROOT
from warpdata.cli.main import COMMANDS, GROUPS, OTHER_NAMES, build_parser, load_commands, main, present_names

VERBS = """
    record salvage replay show view list inspect query check verify publish diff copy stream warm init import export
    convert pack unpack chunk join embed repair
    drop undrop set trim split concat undo delete expire gc add create search get scroll update index compact sign
    measure head sample clear
"""
"""A command is a verb for an address (`warp pack ADDRESS`), or a noun with verbs (`warp tags set`)."""

ONE_THING = "demo doctor completion spec similar why"
"""Nouns that show one thing and have nothing to choose from."""

OF_DOCUMENTS = "info schema head cat"
"""Names of the WarpDatasets document."""


def test_a_command_is_a_verb_or_a_noun_with_verbs() -> None:
    verbs = set(VERBS.split())
    alone = {*verbs, *ONE_THING.split(), *OF_DOCUMENTS.split()}
    for name in COMMANDS:
        actions = set(load_commands(name)) - {""}
        assert actions or name in alone, f"warp {name} is neither a verb nor has verbs"
        assert actions <= verbs, f"warp {name} {min(actions - verbs, default='')} is no verb"
        assert "-" not in name, f"warp {name} should be a noun with verbs"


def test_every_command_has_an_example_and_a_short_line() -> None:
    for name, (_, summary) in COMMANDS.items():
        assert len(summary) <= 45, f"warp {name}: {summary}"
        for action, command in load_commands(name).items():
            assert f"warp {name} {action}".strip() in command.example, (
                f"warp {name} {action}: {command.example}"
            )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_a_meaning(name: str) -> None:
    for words, parser in parsers_of(build_parser(), name):
        for action in parser._actions:
            is_verb = isinstance(action, argparse._SubParsersAction)
            assert is_verb or action.help, (
                f"{words}: {' '.join(action.option_strings) or action.dest} has no help"
            )


def test_commands_are_grouped_by_job() -> None:
    expected = {"Record", "Look", "Clean", "Publish", "Train", "Formats", "Vectors and corpora", "Upkeep"}
    assert expected <= set(GROUPS)
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


@pytest.mark.parametrize("other", OTHER_NAMES)
def test_other_names_work(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help of a name that documents use is that of the present one; an argument of that name stays."""
    with pytest.raises(SystemExit):
        main([*other.split(), "--help"])
    assert f"usage: warp {OTHER_NAMES[other]}" in capsys.readouterr().out
    assert present_names(["--debug", *other.split()]) == ["--debug", *OTHER_NAMES[other].split()]
    assert present_names(["show", *other.split()]) == ["show", *other.split()]


def test_every_command_is_documented() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    for name in COMMANDS:
        assert f"warp {name}" in text, f"`warp {name}` appears in no page"


def test_pages_use_present_names() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        for other in OTHER_NAMES:
            assert not re.search(rf"warp {other}\b", page.read_text()), f"{page.name}: warp {other}"


PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "bench").glob("*.md"),
    *(ROOT / "packages").glob("*/README.md"),
]


def anchors_in(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    names = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", name).strip().lower()) for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_in(place), f"{page.name} links to {target}: no such heading"


def test_every_page_is_linked_from_the_start_pages() -> None:
    """The README or the home of the site links it."""
    docs = ROOT / "docs"
    linked = (ROOT / "README.md").read_text().replace("](docs/", "](") + (docs / "index.md").read_text()
    for page in docs.rglob("*.md"):
        assert f"]({page.relative_to(docs).as_posix()})" in linked, f"no start page links {page.name}"


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:src|tests|tools)/[\w./]+)`", text):
        assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"
