"""The site has a place for every public name, command and specification."""

from __future__ import annotations

import re
from pathlib import Path

from tools.docs_site import API, api_names, specifications, write_site_sources

import warpdata as wd
from warpdata.cli.main import COMMANDS


def test_every_public_name_is_on_one_page_of_the_api_reference() -> None:
    assert sorted(api_names()) == sorted(set(wd.__all__) - {"__version__"})


def test_generated_pages_cover_commands_names_and_formats(tmp_path: Path) -> None:
    pages = {path.relative_to(tmp_path / "docs").as_posix() for path in write_site_sources(tmp_path / "docs")}
    commands = (tmp_path / "docs" / "reference" / "cli.md").read_text()
    assert all(f"### warp {name}\n" in commands for name in COMMANDS)
    assert {f"reference/formats/{spec.parent.name}.md" for spec in specifications()} <= pages
    assert {f"reference/api/{page.name}" for page in API} <= pages
    for name in ("first-look", "train-and-inspect"):  # the notebooks ran, with tables and pictures
        page = (tmp_path / "docs" / "notebooks" / f"{name}.md").read_text()
        assert "<table" in page
        assert page.count("![png]") >= 2
        assert all(
            (tmp_path / "docs" / "notebooks" / link).exists() for link in re.findall(r"\]\((\S+png)\)", page)
        )
    index = (tmp_path / "docs" / "llms.txt").read_text()
    assert all(f"({page})" in index for page in pages)
