"""One name, one thing; and what the page about the architecture names is there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.architecture.sources import parsed, statements
from tests.architecture.test_adapters import MODULES, relative
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"


def test_a_class_name_means_one_thing() -> None:
    """Names that begin with `_` are known in their module only."""
    places = defaultdict(list)
    for path in MODULES:
        for node in statements(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_architecture_page_names_existing_files() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page))
    assert names
    missing = [name for name in names if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()]
    assert missing == []


def test_pages_for_contributors_are_short_and_name_existing_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|tests|tools|bench|docs|packages)/[\w./-]+)`", page)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    chapters = re.findall(r"^## How to add.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert len(chapters) >= 4
    assert all(len(chapter.splitlines()) <= 40 for chapter in chapters), "one page each"


def test_tests_lie_as_the_packages_do() -> None:
    """What is about no single package has a folder of its own; the public door is tested beside the folders."""
    of_all = {"architecture", "compat", "conformance", "contracts", "docs", "golden"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"_api"}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - of_all == packages
