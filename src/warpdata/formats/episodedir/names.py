"""Names of signals: what may be one, and which files hold it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from warpdata.formats.episodedir import layout

_PART = re.compile(r"[A-Za-z0-9_.-]+")


def check_name(name: object) -> str:
    """`name` if it may name a signal or a static item, else TypeError or ValueError saying why."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a string, not {type(name).__name__}")
    if len(name.encode("utf-8", "replace")) > layout.MAX_NAME_BYTES:
        raise ValueError(f"name {name[:40]!r}… is longer than {layout.MAX_NAME_BYTES} bytes")
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or {".", ".."} & set(parts):
        raise ValueError(
            f"name {name!r} is refused: use letters, digits, '_', '.', '-' in parts joined by '/', no '..'"
        )
    if parts[0] == layout.RECORDING_FOLDER or name.endswith(".frames"):
        raise ValueError(f"name {name!r} is reserved")
    return name


def signal_file(folder: Path, name: str, suffix: str = layout.SIGNAL_SUFFIX) -> Path:
    """The file of a signal inside an episode; `/` in the name is a sub-folder."""
    return folder / (name + suffix)


def find_signals(folder: Path) -> dict[str, str]:
    """Signal name -> suffix of its data file, from the names of the files alone."""
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        prefix = os.path.relpath(place, folder)
        for file in sorted(files):
            name, suffix = _split(file)
            if suffix and not file.startswith("."):
                full = name if prefix == "." else f"{prefix.replace(os.sep, '/')}/{name}"
                if suffix in layout.VIDEO_SUFFIXES or full not in found:
                    found[full] = suffix
    return found


def _split(file: str) -> tuple[str, str]:
    if file.endswith(layout.FRAMES_SUFFIX):
        return "", ""
    for suffix in (layout.SIGNAL_SUFFIX, *layout.VIDEO_SUFFIXES):
        if file.endswith(suffix) and len(file) > len(suffix):
            return file[: -len(suffix)], suffix
    return "", ""
