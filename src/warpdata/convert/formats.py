"""The registry of foreign formats: name -> module, loaded when needed, and the detection of formats.

A module (or sub-package) of a format offers

- `matches(place: Place) -> bool` if the format is detected: cheap; looks at names and magic only
- `read(source, *, …) -> Episodes`: lazy and read-only; options are keyword arguments
- `write(episodes, target, *, progress=None, …) -> ConversionReceipt` if it can be written, whole or not at all
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from warpdata.catalog.read.filekinds import folder_kind
from warpdata.convert import FORMATS
from warpdata.convert.exporting import ExportOptions, FileOptions
from warpdata.convert.place import Place
from warpdata.errors import BadMagicError, StoreError, WarpError, nearest

__all__ = [
    "FORMATS",
    "check_options",
    "detect_format",
    "format_module",
    "format_of",
    "known_format",
    "option_names",
    "other_format",
]

_DETECTED = ("lerobot", "minari", "hdf5", "rosbag2", "mcap", "zarr", "rlds", "dreamer", "webdataset")
"""Formats that are detected, in this order; npz and parquet would match too much."""
_LOOSE = ("hdf5", "rosbag2", "mcap", "dreamer", "webdataset")
"""Formats of loose files, which a folder may hold beside other sets."""
_BAGS = ("rosbag2", "mcap")
"""Formats that read the folders of a folder as well."""
_MAX_LISTED = 32
"""Folders inside a folder that are searched for sets."""


def format_module(name: str) -> ModuleType:
    """The module of a format by name."""
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; there are {', '.join(FORMATS)}.{nearest(name, FORMATS)}")
    return importlib.import_module(FORMATS[name])


def format_of(place: Place) -> str | None:
    """The format of a place, or None."""
    for name in _DETECTED:
        try:
            if format_module(name).matches(place):
                return name
        except StoreError:  # a store that cannot list
            continue
    return None


def known_format(place: Place) -> str:
    """The format of a place; an error if no format matches, or if it is a folder of several sets."""
    name = detect_format(place)
    if name is None:
        raise BadMagicError(
            "no known format", path=place.name, hint=f"Name the format: one of {', '.join(FORMATS)}."
        )
    return name


def detect_format(place: Place) -> str | None:
    """The format of a place, or None; a folder of this machine that holds several sets is refused."""
    name = format_of(place)
    if place.path is None or not place.path.is_dir() or (name is not None and name not in _LOOSE):
        return name
    children = place.children()
    folders = [child for child in children if (place.path / child).is_dir()][:_MAX_LISTED]
    by_suffix = {PurePosixPath(child).suffix: child for child in children if child not in folders}
    sets, is_mixed = [], False
    for child in sorted([*folders, *by_suffix.values()]):
        kind = format_of(Place.of(place.path / child))
        belongs = kind == name and (child not in folders or name in _BAGS)
        is_mixed |= kind is not None and not belongs and not (name in _BAGS and kind in _BAGS)
        if kind is None and child in folders:
            kind = _our_kind(place.path / child)
            is_mixed |= kind is not None
        if kind is not None:
            sets.append(f"{place.path / child} ({kind})")
    if is_mixed:
        listed = ", ".join(sets[:3]) + (", …" if len(sets) > 3 else "")
        raise BadMagicError("a folder of sets, not a set", path=place.name, hint=f"Name one: {listed}.")
    return name


def _our_kind(folder: Path) -> str | None:
    """The kind of a folder of ours; None for another or an empty one."""
    names = os.listdir(folder)
    with contextlib.suppress(BadMagicError):
        return folder_kind(names, str(folder)) if names else None
    return None


def other_format(error: WarpError, name: str, place: Place) -> WarpError:
    """The error of reading a place as format `name`; it names the actual format if another one matches."""
    actual = format_of(place)
    if actual is None or actual == name:
        return error
    return BadMagicError(
        f"this is {actual}, not {name}", path=place.name, hint=f"Name {actual}, or leave the format out."
    )


def option_names(call: Any) -> list[str]:
    """The options of a `read` or `write`."""
    parameters = inspect.signature(call).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    common = {f"Unpack[{options.__name__}]": options for options in (FileOptions, ExportOptions)}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            names += common[parameter.annotation].__annotations__
    return names


def check_options(call: Any, options: Mapping[str, Any], what: str) -> None:
    """Raise unless a `read` or `write` takes all of these options."""
    known = option_names(call)
    for name in options:
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}.{nearest(name, known)}")
