"""What a room needs of one that comes after it: said by name in `warpdata/__init__.py`, imported when first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES: dict[str, str] = {}


def provide(need: str, home: str) -> None:
    """Say where a need is met: `"package.module:name"`."""
    _HOMES[need] = home


def provided(need: str) -> Any:
    """What meets a need."""
    module, _, name = _HOMES[need].partition(":")
    return getattr(importlib.import_module(module), name)
