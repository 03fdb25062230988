"""The README stays what a newcomer reads first: short, without the words of the formats, with figures from results."""

from __future__ import annotations

import re

from tests.conftest import ROOT

TEXT = (ROOT / "README.md").read_text()
FORMAT_WORDS = ("omen", "residual", "manifest", "blob", "lane", "chunk")


def test_the_example_has_twelve_lines() -> None:
    """Lines of code; blank lines and the assertion about the shapes do not count."""
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    lines = [line for line in code.splitlines() if line.strip() and not line.strip().startswith("assert")]
    assert len(lines) <= 12


def test_the_first_half_has_no_word_of_the_formats() -> None:
    lines = TEXT.splitlines()
    half = "\n".join(lines[: len(lines) // 2]).lower()
    assert not [word for word in FORMAT_WORDS if re.search(rf"\b{word}s?\b", half)]


def test_the_reasons_are_five_lines_and_the_figures_five_rows() -> None:
    why = TEXT.split("## Why not just LeRobot and MCAP?")[1].split("## ")[0]
    assert len([line for line in why.splitlines() if line.startswith("- ")]) == 5
    table = TEXT.split("<!-- table: readme -->")[1].split("<!-- end -->")[0]
    assert len([line for line in table.splitlines() if line.startswith("|")]) == 5 + 2


def test_nothing_installs_a_package_of_this_name_from_the_index() -> None:
    """The name on PyPI is another project's: an install names a folder, a wheel, or an extra of what is installed."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("*/README.md")]
    for page in [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]:
        assert not re.search(r"pip install (-\S+ )*['\"]?warpdata", page.read_text()), page.name
