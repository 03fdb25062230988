"""What is made when it is first used: names of a package, and properties that stay as they are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from warpdata.errors import nearest

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 - named like what it stands for
    """`functools.cached_property` without the lock that it has in Python 3.11.

    One lock is all instances' there, and held while a value is made: a child that was forked meanwhile waits for ever.
    Threads may make the value at the same time; all of them get the first one.
    """

    if not TYPE_CHECKING:  # its types are those of what it stands for

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            kept = instance.__dict__
            try:
                return kept[self.attrname]
            except KeyError:
                return kept.setdefault(self.attrname, self.func(instance))


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
