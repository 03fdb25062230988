"""Names of signals: what may be one, and which files hold it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from warpdata.formats.episodedir import layout

_PART = re.compile(r"[A-Za-z0-9_.-]+")


def check_name(name: object) -> str:
    """`name` if it may name a signal or a static item, else TypeError or ValueError saying why."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a string, not {type(name).__name__}")
    _check(name)
    return name


@functools.lru_cache(maxsize=4096)
def _check(name: str) -> None:
    """Names come again with every episode."""
    if len(name.encode("utf-8", "replace")) > layout.MAX_NAME_BYTES:
        raise ValueError(f"name {name[:40]!r}… is longer than {layout.MAX_NAME_BYTES} bytes")
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or {".", ".."} & set(parts):
        raise ValueError(
            f"name {name!r} is refused: use letters, digits, '_', '.', '-' in parts joined by '/', no '..'"
        )
    if parts[0] == layout.RECORDING_FOLDER or name.endswith(".frames") or any(map(_is_file, parts[:-1])):
        raise ValueError(f"name {name!r} is reserved")


def _is_file(part: str) -> bool:
    """Whether a folder of this name could stand where a file of an episode must."""
    return (
        part in (layout.META_FILE, layout.STATIC_FILE) or bool(_split(part)[1]) or part.endswith(".parquet")
    )


def signal_file(folder: Path, name: str, suffix: str = layout.SIGNAL_SUFFIX) -> Path:
    """The file of a signal inside an episode; `/` in the name is a sub-folder."""
    return folder / (name + suffix)


def find_signals(files: Iterable[str]) -> dict[str, str]:
    """Signal name -> suffix of its data file, from the names of the files of an episode alone."""
    found: dict[str, str] = {}
    for file in sorted(files):
        name, suffix = _split(file)
        is_hidden = any(part.startswith(".") for part in file.split("/"))
        if suffix and not is_hidden and (suffix in layout.VIDEO_SUFFIXES or name not in found):
            found[name] = suffix
    return found


def files_below(folder: Path) -> Iterator[str]:
    """The name of every file below a folder, with `/`; hidden folders are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for file in files:
            yield os.path.relpath(os.path.join(place, file), folder).replace(os.sep, "/")


def _split(file: str) -> tuple[str, str]:
    if file.endswith(layout.FRAMES_SUFFIX):
        return "", ""
    for suffix in (layout.SIGNAL_SUFFIX, *layout.VIDEO_SUFFIXES):
        if file.endswith(suffix) and len(file) > len(suffix):
            return file[: -len(suffix)], suffix
    return "", ""
