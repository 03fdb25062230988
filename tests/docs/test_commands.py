"""No command and no page is left behind: every command has help, every page is reachable."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from warpdata.cli.main import COMMANDS


def test_every_command_is_documented() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    for name in COMMANDS:
        assert f"warp {name}" in text, f"`warp {name}` appears in no page"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
