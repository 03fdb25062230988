"""Recordings without an end: still running or left by a crash, and what their journals hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.episodes.journals import CONTROL_STREAM, KIND, SIGNALS_JOURNAL
from warpdata.episodes.single import files_of
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Folder
from warpdata.formats.episodedir.frame_index import read_marks
from warpdata.formats.journal.layout import HEADER_BYTES
from warpdata.formats.journal.reader import Damage, JournalReader, Records, is_live


@dataclass(frozen=True, slots=True)
class OpenJournal:
    """One journal of a recording with everything that can be read from it."""

    reader: JournalReader
    records: Records
    damage: tuple[Damage, ...]
    last_crc32c: int


@dataclass(slots=True)
class Found:
    """What the journals of a recording say: its signals, its static items, and where the records are."""

    work: Path
    """The folder of the journals: inside an episode, or beside the file of a single signal."""
    meta: dict[str, Any]
    files: tuple[Path, Path | None] | None = None
    """The data file and frame index of a single signal; None in an episode."""
    signals: dict[int, dict[str, Any]] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)
    journals: list[OpenJournal] = field(default_factory=list)
    broken: list[tuple[str, FormatError]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A recording without an end."""

    path: Path | str
    is_live: bool
    owner: dict[str, Any]
    records: dict[str, int]
    """How many records of each signal can be read from what is on disk."""


def unfinished_at(folder: Folder) -> Unfinished:
    """What an unfinished episode directory holds; of one in a store only that it is there."""
    if not isinstance(folder, Path):
        return Unfinished(folder.name, False, {}, {})
    journal = folder / layout.RECORDING_FOLDER / SIGNALS_JOURNAL
    if is_blank(journal):
        return Unfinished(folder, journal.exists() and is_live(journal), {}, {})
    live = is_live(journal)
    try:
        found = open_recording(folder / layout.RECORDING_FOLDER)
    except FormatError:
        return Unfinished(folder, live, {}, {})
    return Unfinished(folder, live, found.journals[0].reader.descriptor.get("owner", {}), counts(found))


def open_recording(work: Path) -> Found:
    """Open all journals of an unfinished recording and read what they say about it."""
    main = _open(work / SIGNALS_JOURNAL)
    descriptor = main.reader.descriptor
    if descriptor.get("kind") != KIND:
        raise CorruptLayoutError(f"a journal of kind {descriptor.get('kind')!r}", path=main.reader.name)
    meta = descriptor.get("episode", {}).get("meta", {})
    found = Found(work, dict(meta), files_of(work, descriptor), journals=[main])
    _read_control(main, found)
    for path in sorted(work.glob("*.journal")):
        if path.name != SIGNALS_JOURNAL and not is_blank(path):
            try:
                found.journals.append(_open(path))
            except BlobNotFoundError:  # its frames were all encoded since the folder was listed
                continue
            except FormatError as error:
                found.broken.append((str(path), error))
    for journal in found.journals[1:]:
        _read_control(journal, found)
    return found


def counts(found: Found) -> dict[str, int]:
    """Records per signal that can be read back, encoded frames included."""
    out = {}
    for stream, about in found.signals.items():
        steps = [j.records.of_stream(stream).first_step for j in found.journals]
        here = np.unique(np.concatenate(steps)) if steps else np.empty(0, np.int64)
        if about.get("kind") == "image":
            done = len(marks_of(found, stream))
            here = here[here >= done]
            out[about["name"]] = done + len(here)
        else:
            out[about["name"]] = len(here)
    return out


def marks_of(found: Found, stream: int) -> list[layout.FrameMark]:
    """The frames of a camera that are safely in its video file."""
    work = found.work
    for suffix in layout.VIDEO_SUFFIXES:
        video = work / f"{stream}{suffix}"
        if video.exists():
            return read_marks(str(work / f"{stream}.marks"), video.stat().st_size)
    return []


def is_blank(journal: Path) -> bool:
    """Whether a recorder died before a journal had its first bytes: nothing was acknowledged in it."""
    try:
        with open(journal, "rb") as file:
            head = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return True
    return len(head) < HEADER_BYTES or not head.strip(b"\0")


def _open(path: Path) -> OpenJournal:
    reader = JournalReader.open(path)
    scan = reader.scan()
    return OpenJournal(reader, scan.records, scan.damage, scan.last_crc32c)


def _read_control(journal: OpenJournal, found: Found) -> None:
    """Signals and static items from the records about the episode itself."""
    control = journal.records.of_stream(CONTROL_STREAM)
    for offset, size in zip(control.offset.tolist(), control.payload_bytes.tolist(), strict=True):
        fact = json.loads(bytes(journal.reader.payload(offset, size)))
        if "signal" in fact:
            found.signals[int(fact["signal"]["stream"])] = fact["signal"]
        found.static.update(fact.get("static", {}))
    about = journal.reader.descriptor.get("signal")
    if isinstance(about, dict):
        found.signals.setdefault(int(about["stream"]), about)
