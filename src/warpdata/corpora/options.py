"""Options given by name: one that is misspelt is refused with the one that was meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from warpdata.errors import nearest, require_kind

T = TypeVar("T")


def options_of(kind: type[T], given: Mapping[str, Any], base: T | None = None) -> T:
    """An options class from keyword arguments, with the other fields as in `base`."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise TypeError(
                f"there is no option {name!r}.{nearest(name, known)} There are {', '.join(known)}"
            )
    require_kind("options", base, (kind, type(None)), kind.__name__)
    rest = {} if base is None else {name: getattr(base, name) for name in known}
    return kind(**{**rest, **given})
