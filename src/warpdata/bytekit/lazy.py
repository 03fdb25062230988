"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from warpdata.errors import nearest


def lazy_names(
    package: str, homes: Mapping[str, str], inside: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: names by the module they live in, and modules inside it."""

    def get(name: str) -> Any:
        if name in inside:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            known = nearest(name, [*homes, *inside])
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{known}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted([*homes, *inside])
