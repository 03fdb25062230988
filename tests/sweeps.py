"""Sweeps over every bit, cut or kill: a fixed sample of them in the ordinary run, all of them in `make soak`."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_HERE = Path(__file__).resolve()
ROOT = _HERE.parent.parent
_THINS = re.compile(r"\b(thinned|SOAK)\b")

SOAK = os.environ.get("WARPDATA_SOAK") == "1"


def thinned(places: Iterable[T], most: int) -> list[T]:
    """All places in a soak; else the same `most` of them each time, in order."""
    listed = list(places)
    if SOAK or len(listed) <= most:
        return listed
    return [listed[at] for at in sorted(random.Random(len(listed)).sample(range(len(listed)), most))]


def enough_examples(count: int) -> int:
    """Examples of a property that are enough for the ordinary run; ten times as many in a soak."""
    return count * 10 if SOAK else count


@cache
def is_thinned(path: Path) -> bool:
    """Whether tests of a file, or helpers of other test files that it names, do more in a soak."""
    text = path.read_text()
    helpers = [f"{a}.{b}" for a, b in re.findall(r"from (tests[\w.]*) import (\w+)", text)]
    files = [
        Path(ROOT, *each.split(".")).with_suffix(".py") for each in helpers + re.findall(r"tests[\w.]+", text)
    ]
    return any(_THINS.search(each.read_text()) for each in [path, *files] if each.is_file() and each != _HERE)
