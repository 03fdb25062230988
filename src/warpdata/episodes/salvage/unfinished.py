"""Recordings without an end: still running or left by a crash, and what their journals hold."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import TEMP_MARK
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import is_locked
from warpdata.episodes.record.journals import (
    CONTROL_STREAM,
    FRAMES_KIND,
    KIND,
    ROW_STREAM,
    SIGNALS_JOURNAL,
)
from warpdata.episodes.salvage.work_folder import files_by_name, files_of
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Folder, read_meta
from warpdata.formats.episodedir.frame_index import read_marks
from warpdata.formats.episodedir.images import Stream
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.journal.layout import END_MARK_FLAG, HEADER_BYTES
from warpdata.formats.journal.reader import JournalReader, Records, Scan, is_live


@dataclass(slots=True)
class OpenJournal:
    """One journal of a recording with everything that can be read from it."""

    reader: JournalReader
    scan: Scan
    records: Records
    """The records that are whole."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return os.path.basename(self.reader.name)


class Unreadable(NamedTuple):
    """Something of a recording that could not be read: the file, why, and how many bytes of it."""

    file: str
    why: str
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """For the receipt."""
        return {"file": self.file, "why": self.why, "bytes": self.size_bytes}


@dataclass(slots=True)
class UnfinishedRecording:
    """The contents of the journals of a recording: its signals, its static items, and where the records are."""

    work: Path
    """The folder of the journals: inside an episode, or beside the file of a single signal."""
    meta: dict[str, Any] = field(default_factory=dict)
    files: tuple[Path, Path | None] | None = None
    """The data file and frame index of a single signal; None in an episode."""
    signals: dict[int, dict[str, Any]] = field(default_factory=dict)
    videos: dict[int, Stream] = field(default_factory=dict)
    """How the encoded frames of a camera are decoded, noted before the first raw one left its journal."""
    static: dict[str, Any] = field(default_factory=dict)
    journals: list[OpenJournal] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    in_rows: set[int] = field(default_factory=set)
    """Streams whose records come in rows."""
    rows_dropped: int = 0
    """Rows that were being recorded and are not whole."""
    given_back: dict[str, int] = field(default_factory=dict)
    """Up to where the frames of a journal are encoded and read as zeros; later ones follow there, or did."""

    @property
    def revision(self) -> int:
        """How its recorder used the folder."""
        stated = [each.reader.descriptor.get("revision") for each in self.journals]
        return max((each for each in stated if isinstance(each, int)), default=1)

    @property
    def owner(self) -> dict[str, Any]:
        """Who records, or recorded."""
        return next((each.reader.descriptor.get("owner", {}) for each in self.journals), {})


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
    work = folder / layout.RECORDING_FOLDER
    live = is_recorded(work)
    try:
        found = open_recording(work)
        return Unfinished(folder, live, found.owner, counts(found))
    except FormatError:
        return Unfinished(folder, live, {}, {})


def is_recorded(work: Path) -> bool:
    """Whether a running process records here, or finishes what another one left."""
    return is_locked(locked_folder(work)) or has_live_journal(work)


def locked_folder(work: Path) -> Path:
    """The folder whose lock a recorder or salvage holds: it is there before anything is recorded."""
    return work.parent if work.name == layout.RECORDING_FOLDER else work


def has_live_journal(work: Path) -> bool:
    """Whether a running process holds a journal of this recording open for writing; older recorders lock no folder."""
    return any(is_live(path) for path in (*_unnamed(work), *work.glob("*.journal")))


def open_recording(work: Path) -> UnfinishedRecording:
    """Open all journals of an unfinished recording; what of them cannot be read is listed."""
    found = UnfinishedRecording(work)
    begun = [
        path.name for path in _unnamed(work) if _has_head(path)
    ]  # first: they may get their names meanwhile
    names = sorted(path.name for path in work.glob("*.journal"))
    expected = {SIGNALS_JOURNAL} if _has_begun(work) else set()
    # The main journal first: it describes the others.
    for name in sorted([*names, *begun], key=lambda each: each != SIGNALS_JOURNAL):
        try:
            reader = JournalReader.open(work / name, lenient=True)
            scan = reader.scan(_released(reader, name, found))
            journal = OpenJournal(reader, scan, scan.records)
        except (
            BlobNotFoundError,
            FileNotFoundError,
        ):  # its frames were all encoded since the folder was listed
            continue
        except WarpError as error:
            found.unreadable.append(Unreadable(name, error.message, _size(work / name)))
            continue
        found.journals.append(journal)
        expected |= _read_facts(journal, found)
        found.unreadable += _damage(journal)
    _identify(found)
    found.unreadable += [Unreadable(name, "is missing") for name in sorted(expected - set(names))]
    found.unreadable += _undescribed(found)
    _drop_torn_row(found)
    return found


def _drop_torn_row(found: UnfinishedRecording) -> None:
    """Leave out the records of the last row if its recorder died before it was whole."""
    rows = [
        journal.records.select(np.isin(journal.records.stream, list(found.in_rows)))
        for journal in found.journals
    ]
    last = max((int(each.ts_ns[-1]) for each in rows if len(each)), default=None)
    ends = [journal.records.of_stream(ROW_STREAM).ts_ns for journal in found.journals]
    if last is None or any((each == last).any() for each in ends):
        return
    found.rows_dropped = 1
    for journal in found.journals:
        records = journal.records
        is_torn = np.isin(records.stream, list(found.in_rows)) & (records.ts_ns == last)
        journal.records = records.select(~is_torn)


def _released(reader: JournalReader, name: str, found: UnfinishedRecording) -> int | None:
    """The offset up to which the space of a journal was freed, as the main journal states it."""
    if reader.descriptor.get("kind") == KIND:
        return 0
    is_told = any(each.reader.descriptor.get("kind") == KIND for each in found.journals)
    is_said = is_told and bool(reader.header.flags & END_MARK_FLAG)
    return found.given_back.get(name, 0 if is_said else None)


def _unnamed(work: Path) -> Iterator[Path]:
    """Journals that have no name yet, because their recorder is just bringing their header to the disk."""
    return work.glob(f".*.journal{TEMP_MARK}*")


def _has_head(path: Path) -> bool:
    """Whether a journal without a name holds anything: it does not while its header is not written."""
    try:
        with path.open("rb") as file:
            return any(file.read(HEADER_BYTES))
    except OSError:
        return False


def counts(found: UnfinishedRecording) -> dict[str, int]:
    """Records per signal that can be read back, encoded frames included."""
    out = {}
    for stream, about in found.signals.items():
        steps = {int(n) for j in found.journals for n in j.records.of_stream(stream).first_step}
        if about.get("kind") == "image":
            marks = marks_of(found, stream)
            steps |= {number for number, mark in enumerate(marks) if mark is not None}
        out[str(about.get("name"))] = len(steps)
    return out


def marks_of(found: UnfinishedRecording, stream: int) -> list[layout.FrameMark | None]:
    """The frames of a camera that are in its video file; None where a mark is damaged."""
    return read_marks(str(found.work / f"{stream}.marks"))


def _has_begun(work: Path) -> bool:
    """Whether the recorder lived until its first journal had a name."""
    inside = os.listdir(work)
    if any(name.startswith(f".{SIGNALS_JOURNAL}{TEMP_MARK}") for name in inside):
        return False
    if inside:
        return not all(TEMP_MARK in name for name in inside)
    return work.name != layout.RECORDING_FOLDER or (work.parent / layout.META_FILE).exists()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _damage(journal: OpenJournal) -> Iterator[Unreadable]:
    fault = journal.reader.fault
    if fault is not None:
        yield Unreadable(journal.name, fault.message, min(journal.reader.reader.size, HEADER_BYTES))
    about, name = journal.reader.descriptor, journal.name.partition(TEMP_MARK)[0]
    is_frames = name == SIGNALS_JOURNAL and about.get("kind") == FRAMES_KIND
    if is_frames or about.get("journal", name) != name.removeprefix("." if name != journal.name else ""):
        yield Unreadable(journal.name, "another journal has its name: what it held is gone")
    for each in journal.scan.lost:
        yield Unreadable(
            journal.name, f"{each.why} (bytes {each.start} to {each.end})", each.end - each.start
        )
    # One without a name that holds no record may have died before it had room for any.
    is_new = TEMP_MARK in journal.name and not len(journal.records.first_step)
    if journal.scan.is_cut and not is_new:
        yield Unreadable(journal.name, "the file was cut behind its last whole record")


def _identify(found: UnfinishedRecording) -> None:
    """What the recording is to become: an episode with this metadata, or the files of a single signal."""
    work, folder = found.work, found.work.parent
    descriptors = [each.reader.descriptor for each in found.journals if each.reader.descriptor]
    main = next((each for each in descriptors if each.get("kind") == KIND), {})
    for each in descriptors:
        if each.get("kind") not in (KIND, FRAMES_KIND):
            raise CorruptLayoutError(f"a journal of kind {each.get('kind')!r}", path=work)
    if work.name != layout.RECORDING_FOLDER:
        found.files = files_of(work, main) or files_by_name(work)
        return
    stated = main.get("episode")
    meta = stated.get("meta", {}) if isinstance(stated, dict) else None
    found.meta = dict(meta) if isinstance(meta, dict) else _meta_beside(folder)


def _meta_beside(folder: Path) -> dict[str, Any]:
    """meta.json is written when the recording begins, so it has the metadata of the journal."""
    with contextlib.suppress(FormatError):
        return read_meta(folder) or {"schema_version": layout.SCHEMA_VERSION}
    return {"schema_version": layout.SCHEMA_VERSION}


def _read_facts(journal: OpenJournal, found: UnfinishedRecording) -> set[str]:
    """Signals and static items from the records about the recording itself; which journals there must be."""
    control = journal.records.of_stream(CONTROL_STREAM)
    begun: dict[str, None] = {}
    for offset, size in zip(control.offset.tolist(), control.payload_bytes.tolist(), strict=True):
        try:
            fact = parse_json_object(journal.reader.payload(offset, size))
            if "signal" in fact:
                found.signals[int(fact["signal"]["stream"])] = dict(fact["signal"])
            if "journal" in fact:
                begun[str(fact["journal"])] = None
            if "in_rows" in fact:
                found.in_rows.add(int(fact["in_rows"]))
            begun.pop(str(fact.get("released")), None)
            if "given_back" in fact:
                gone = fact["given_back"]
                found.given_back[str(gone["journal"])] = int(gone["until"])
            if "video" in fact:
                found.videos[int(fact["video"]["stream"])] = Stream.from_json(fact["video"])
            found.static.update(fact.get("static", {}))
        except (FormatError, KeyError, TypeError, ValueError) as error:
            found.unreadable.append(Unreadable(journal.name, f"a fact that means nothing ({error})", size))
    about = journal.reader.descriptor.get("signal")
    if isinstance(about, dict) and isinstance(about.get("stream"), int):
        found.signals.setdefault(about["stream"], about)
    return set(begun)


def _undescribed(found: UnfinishedRecording) -> Iterator[Unreadable]:
    """Records of signals whose description is lost."""
    known = {CONTROL_STREAM, ROW_STREAM, *found.signals}
    for journal in found.journals:
        streams, sizes = journal.records.stream, journal.records.payload_bytes
        for stream in sorted(set(streams.tolist()) - known):
            chosen = streams == stream
            why = f"the description of {int(chosen.sum())} records of stream {stream} is lost"
            yield Unreadable(journal.name, why, int(sizes[chosen].sum()))


_ROWS = 8192


class JournaledRows:
    """The records of one stream over all journals, in the order they were made."""

    def __init__(self, journals: list[OpenJournal], stream: int) -> None:
        self._journals = journals
        picked = [journal.records.of_stream(stream) for journal in journals]
        self._step = np.concatenate([np.empty(0, np.int64), *(each.first_step for each in picked)])
        self._where = np.repeat(np.arange(len(picked)), [len(each) for each in picked])
        offset, size, ts_ns = (
            np.concatenate([np.empty(0, np.int64), *(getattr(each, name) for each in picked)])
            for name in ("payload_offset", "payload_bytes", "ts_ns")
        )
        # Of two records of one number the later one holds: Ctrl-C came before the earlier one was acknowledged.
        _, order = np.unique(self._step[::-1], return_index=True)
        order = len(self._step) - 1 - order
        self._step, self._where = self._step[order], self._where[order]
        self._offset, self._size, self._ts = offset[order], size[order], ts_ns[order]
        if (self._ts[1:] <= self._ts[:-1]).any():
            raise CorruptLayoutError(f"the times of stream {stream} do not increase", path=_path(journals))

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of each record among those of its signal."""
        return self._step

    @property
    def missing(self) -> int:
        """How many records there were before the last one that are not here."""
        return int(self._step[-1]) + 1 - len(self) if len(self) else 0

    def fits(self, step: int, ts_ns: int) -> bool:
        """Whether the record of this number can have been made at this time, by the times of the others."""
        at = int(np.searchsorted(self._step, step))
        if at < len(self) and self._step[at] == step:
            return int(self._ts[at]) == ts_ns
        return (at == 0 or self._ts[at - 1] < ts_ns) and (at == len(self) or bool(ts_ns < self._ts[at]))

    def __len__(self) -> int:
        return len(self._step)

    def numbers(self, description: Description) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, values) in blocks."""
        dtype = dtype_named(description.dtype).dtype
        row_bytes = dtype.itemsize * math.prod(description.shape)
        if (self._size != row_bytes).any():
            raise CorruptLayoutError("records of the wrong size", path=_path(self._journals))
        step = max(1, min(_ROWS, (4 << 20) // max(1, row_bytes)))
        for start in range(0, len(self), step):
            chosen = slice(start, start + step)
            raw = self._gather(self._where[chosen], self._offset[chosen], row_bytes)
            yield self._ts[chosen], raw.view(dtype).reshape(-1, *description.shape)

    def _gather(self, where: NDArray[Any], offset: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint8]:
        out = np.empty((len(where), row_bytes), np.uint8)
        for number in np.unique(where):
            reader = self._journals[number].reader.reader
            rows = np.flatnonzero(where == number)
            low, high = int(offset[rows].min()), int(offset[rows].max()) + row_bytes
            area = np.frombuffer(reader.read(low, high), np.uint8)
            out[rows] = area[(offset[rows] - low)[:, None] + np.arange(row_bytes)]
        return out

    def events(self, kind: str) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, text or bytes) in blocks."""
        block: list[Any] = []
        stamps: list[int] = []
        for ts_ns, payload in self.payloads():
            stamps.append(ts_ns)
            block.append(bytes(payload).decode() if kind == "text" else bytes(payload))
            if len(block) == _ROWS:
                yield _events(stamps, block)
                stamps, block = [], []
        if block:
            yield _events(stamps, block)

    def payloads(self) -> Iterator[tuple[int, memoryview]]:
        """(time, bytes) of each record, one at a time."""
        for position in range(len(self)):
            yield self.payload(position)

    def payload(self, position: int) -> tuple[int, memoryview]:
        """(time, bytes) of one record."""
        reader = self._journals[int(self._where[position])].reader.reader
        offset, size = int(self._offset[position]), int(self._size[position])
        return int(self._ts[position]), reader.read(offset, offset + size)


def _events(stamps: list[int], values: list[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    out = np.empty(len(values), object)
    out[:] = values
    return np.array(stamps, np.int64), out


def _path(journals: list[OpenJournal]) -> str:
    return journals[0].reader.name if journals else ""
