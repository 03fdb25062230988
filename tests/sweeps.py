"""Sweeps over every bit, cut or kill: a fixed sample of them in the ordinary run, all of them in `make soak`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

SOAK = os.environ.get("WARPDATA_SOAK") == "1"


def thinned(places: Iterable[T], most: int) -> list[T]:
    """All places in a soak; else the same `most` of them each time, in order."""
    listed = list(places)
    if SOAK or len(listed) <= most:
        return listed
    return [listed[at] for at in sorted(random.Random(len(listed)).sample(range(len(listed)), most))]
