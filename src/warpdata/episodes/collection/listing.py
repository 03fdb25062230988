"""Which episodes a dataset root holds, without looking into folders that did not change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.ranges import FolderReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import BlobNotFoundError, StoreError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import read_bytes

_SETTLED_NS = 2_000_000_000
"""A folder changed more recently than this may change again within the same tick of its clock."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """Numbers of finished and unfinished episodes, in order."""

    finished: list[int]
    unfinished: list[int]


def episode_path(root: Path, number: int) -> Path:
    """Where an episode lives: blocks of a thousand."""
    return root / episode_name(number)


def episode_name(number: int) -> str:
    """Relative path of an episode in its root."""
    return f"{number // layout.BLOCK_EPISODES * layout.BLOCK_EPISODES:012d}/{number:012d}"


def list_folder(folder: FolderReader) -> tuple[Listing, dict[int, list[str]]]:
    """All episodes below a place that can list its files, and the files of each."""
    files: dict[int, list[str]] = {}
    for name in folder.names():
        block, _, rest = name.partition("/")
        episode, _, file = rest.partition("/")
        if file and _is_number(block) and _is_number(episode) and name.startswith(episode_name(int(episode))):
            files.setdefault(int(episode), []).append(file)
    states = {number: _state_of(files[number]) for number in sorted(files)}
    finished = [number for number, state in states.items() if state]
    return Listing(finished, [number for number, state in states.items() if state is False]), files


def _state_of(files: Sequence[str]) -> bool | None:
    """True if these are the files of a finished episode, False if not, None if this is no episode."""
    if any(file.startswith((f"{layout.RECORDING_FOLDER}/", layout.FOREIGN_UNFINISHED)) for file in files):
        return False
    return True if {layout.META_FILE, layout.STATIC_FILE} & set(files) else None


def list_episodes(root: Path) -> Listing:
    """All episodes below a root; blocks that did not change since the last time are not read."""
    known = _read_cache(root)
    finished: list[int] = []
    unfinished: list[int] = []
    fresh: dict[str, Any] = {}
    for block, mtime_ns in _blocks(root):
        entry = known.get(block)
        if entry is None or entry["mtime_ns"] != mtime_ns:
            entry = _scan(root, block, mtime_ns)
        else:
            entry = _recheck(root, entry)
        fresh[block] = entry
        finished += _expanded(entry["finished"])
        unfinished += _expanded(entry["unfinished"])
    settled = {b: e for b, e in fresh.items() if time.time_ns() - e["mtime_ns"] > _SETTLED_NS}
    if settled != known:
        _write_cache(root, settled)
    return Listing(finished, unfinished)


def _blocks(root: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(root) as entries:
            found = [(e.name, e.stat().st_mtime_ns) for e in entries if _is_number(e.name) and e.is_dir()]
    except FileNotFoundError:
        raise BlobNotFoundError("no such dataset root", path=root) from None
    except OSError as error:
        raise StoreError(f"cannot list ({error.strerror})", path=root) from None
    return sorted(found)


def _scan(root: Path, block: str, mtime_ns: int) -> dict[str, Any]:
    with os.scandir(root / block) as entries:
        names = sorted(e.name for e in entries if _is_number(e.name))
    finished: list[int] = []
    unfinished: list[int] = []
    for name in names:
        state = _state(os.path.join(root, block, name))
        if state is not None:
            (finished if state else unfinished).append(int(name))
    return {"mtime_ns": mtime_ns, "finished": _ranges(finished), "unfinished": _ranges(unfinished)}


def _recheck(root: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Unfinished episodes may have been finished since."""
    waiting = _expanded(entry["unfinished"])
    done = [n for n in waiting if _state(str(episode_path(root, n)))]
    if not done:
        return entry
    finished = sorted([*_expanded(entry["finished"]), *done])
    left = [n for n in waiting if n not in set(done)]
    return {"mtime_ns": entry["mtime_ns"], "finished": _ranges(finished), "unfinished": _ranges(left)}


def _state(folder: str) -> bool | None:
    """True if finished, False if not, None if this is no episode."""
    if not os.path.exists(os.path.join(folder, layout.META_FILE)):
        if os.path.exists(os.path.join(folder, layout.RECORDING_FOLDER)):
            return False
        return True if os.path.exists(os.path.join(folder, layout.STATIC_FILE)) else None
    for mark in (layout.RECORDING_FOLDER, layout.FOREIGN_UNFINISHED):
        if os.path.exists(os.path.join(folder, mark)):
            return False
    return True


def _is_number(name: str) -> bool:
    return len(name) == layout.DIGITS and name.isascii() and name.isdigit()


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Sorted numbers as [first, last] pairs."""
    out: list[list[int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return out


def _expanded(ranges: list[list[int]]) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def _read_cache(root: Path) -> dict[str, Any]:
    """The listing written last time; one that cannot be trusted is not used."""
    try:
        body = parse_json_object(read_bytes(root / layout.LISTING_FILE))
        blocks = body.get("blocks")
        if body.get("version") != _VERSION or body.get("crc32c") != crc32c(dump_json(blocks)):
            return {}
        return blocks if isinstance(blocks, dict) else {}
    except (OSError, WarpError):
        return {}


def _write_cache(root: Path, blocks: dict[str, Any]) -> None:
    body = {"version": _VERSION, "blocks": blocks, "crc32c": crc32c(dump_json(blocks))}
    with contextlib.suppress(WarpError):  # a root that cannot be written is simply listed again next time
        write_file(root / layout.LISTING_FILE, dump_json(body), durable=False)
