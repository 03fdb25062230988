"""The registry of foreign formats: name -> module, loaded when needed; and which one a place holds.

A module (or sub-package) of a format offers

- `matches(place: Place) -> bool`: cheap; looks at names and magic only
- `read(source, *, …) -> Episodes`: lazy and read-only; its options are spelt out
- `write(episodes, target, *, progress=None, …) -> ConversionReceipt` where it can be written, whole or not at all
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from warpdata.convert import FORMATS
from warpdata.convert.place import Place
from warpdata.errors import BadMagicError, StoreError, WarpError, nearest

__all__ = [
    "FORMATS",
    "check_no_sets_inside",
    "check_options",
    "format_module",
    "format_of",
    "known_format",
    "other_format",
]

_ASKED = ("lerobot", "minari", "hdf5", "rosbag2", "mcap", "zarr", "rlds", "dreamer", "webdataset")
"""In this order a place is shown to them; npz and parquet fit too much to be guessed."""
_LOOKED_AT = 32
"""Of the names in a folder."""


def format_module(name: str) -> ModuleType:
    """The module of a format by name."""
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; there are {', '.join(FORMATS)}.{nearest(name, FORMATS)}")
    try:
        return importlib.import_module(FORMATS[name])
    except ModuleNotFoundError as error:
        if error.name != FORMATS[name]:
            raise
        raise ValueError(f"format {name!r} is not part of this release") from None


def format_of(place: Place) -> str | None:
    """The format that a place holds, or None."""
    for name in _ASKED:
        try:
            if format_module(name).matches(place):
                return name
        except (ValueError, StoreError):  # not part of this release; a store that cannot list
            continue
    return None


def known_format(place: Place) -> str:
    """The format that a place holds; an error where none recognises it."""
    name = format_of(place)
    if name is None:
        check_no_sets_inside(place)
        raise BadMagicError(
            "no known format", path=place.name, hint=f"Name the format: one of {', '.join(FORMATS)}."
        )
    return name


def check_no_sets_inside(place: Place) -> None:
    """Raise where a folder of this machine is no set and holds sets; few of its names are looked at."""
    if place.path is None or not place.path.is_dir():
        return
    names = {name: format_of(Place.of(place.path / name)) for name in place.children()[:_LOOKED_AT]}
    sets = [f"{place.path / name} ({kind})" for name, kind in names.items() if kind is not None]
    if sets:
        listed = ", ".join(sets[:3]) + (", …" if len(sets) > 3 else "")
        raise BadMagicError("a folder of sets, not a set", path=place.name, hint=f"Name one: {listed}.")


def other_format(error: WarpError, name: str, place: Place) -> WarpError:
    """What to say where a place cannot be read as the format that was named: which one it is, if another knows it."""
    found = format_of(place)
    if found is None or found == name:
        return error
    return BadMagicError(
        f"this is {found}, not {name}", path=place.name, hint=f"Name {found}, or leave the format out."
    )


def check_options(call: Any, options: Mapping[str, Any], what: str) -> None:
    """Raise unless a `read` or `write` takes all of these options."""
    known = [
        name for name, each in inspect.signature(call).parameters.items() if each.kind is each.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}.{nearest(name, known)}")
