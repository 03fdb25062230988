"""What a journal says of itself, changed at any place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def places_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places_of(value[key], (*at, key))


def changed_at(fact: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The same with another value at a place; with KeyError as the value, without it."""
    changed = inside = copy.deepcopy(fact)
    for key in place[:-1]:
        inside = inside[key]
    if value is KeyError:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return changed
