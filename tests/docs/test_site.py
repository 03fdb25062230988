"""The site has a place for every public name, command and specification."""

from __future__ import annotations

import re
from pathlib import Path

from tools.docs_site import API, copy_markdown, specifications, write_site_sources

import warpdata as wd
from tests.conftest import ROOT
from warpdata.cli.main import COMMANDS


def test_every_variable_is_listed() -> None:
    settings = (ROOT / "src" / "warpdata" / "settings.py").read_text()
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    names = set(
        re.findall(r"\b(?:WARP|AWS|AZURE)_[A-Z_\d]+\b|\b(?:[A-Z]+_)?PROXY\b|\b[A-Z_]*RANK\b", settings)
    )
    assert len(names) > 20
    assert not {name for name in names if f"`{name}`" not in page}


def test_generated_pages_cover_commands_names_and_formats(tmp_path: Path) -> None:
    pages = {path.relative_to(tmp_path / "docs").as_posix() for path in write_site_sources(tmp_path / "docs")}
    commands = (tmp_path / "docs" / "reference" / "cli.md").read_text()
    assert all(f"### warp {name}\n" in commands for name in COMMANDS)
    errors = (tmp_path / "docs" / "reference" / "errors.md").read_text()
    kinds = [
        kind for kind in vars(wd.errors).values() if isinstance(kind, type) and issubclass(kind, wd.WarpError)
    ]
    assert all(errors.count(f"| `{kind.code}` | `{kind.__name__}` |") == 1 for kind in kinds)
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
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    assert sorted(listed) == sorted(pages), "the navigation in mkdocs.yml has every page once"

    copy_markdown(tmp_path / "docs", tmp_path / "site")
    served = (tmp_path / "site" / "reference" / "api" / "train.md").read_text()
    assert ":::" not in served, "the Markdown beside a page has no directives"
    assert "Loader(windows" in served
    assert "| `batch_size` | `int` |  | samples of a batch" in served
