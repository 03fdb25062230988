"""Recordings without an end, running or left by a crash: what their journals hold, as records or as an episode."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import TEMP_MARK
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import is_locked
from warpdata.episodes.record.status import STATUS_FILE, RecordingStatus
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import (
    Description,
    Folder,
    FrameShape,
    Stream,
    read_bytes,
    read_meta,
)
from warpdata.formats.episodedir.frame_index import read_marks
from warpdata.formats.journal.layout import (
    CONTROL_STREAM,
    FRAMES_KIND,
    HEADER_BYTES,
    ROW_STREAM,
    SIGNALS_JOURNAL,
    SIGNALS_KIND,
    WORK_SUFFIX,
)
from warpdata.formats.journal.reader import JournalReader, Records, Scan, is_live
from warpdata.timeline.ragged import as_objects

SHARED_FILE = "shared.json"
"""In the folder of journals: several processes record this episode, and their parts are in `PARTS_FOLDER`."""
PARTS_FOLDER = "parts"
_UNNAMED = f".*.journal{TEMP_MARK}*"
_ROWS = 8192
_RAGGED_BYTES = 16 << 20
"""Bytes of a block of values of varying length, at most as many as one record has beyond that."""
_MAX_STATUS_BYTES = 1 << 20


@dataclass(slots=True)
class OpenJournal:
    """One journal of a recording with everything that can be read from it."""

    reader: JournalReader
    scan: Scan
    records: Records
    """Its records without those of an incomplete row."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return os.path.basename(self.reader.name)


class Unreadable(NamedTuple):
    """A part of a recording that could not be read: the file, why, and how many bytes of it."""

    file: str
    why: str
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """The entry in the receipt."""
        return {"file": self.file, "why": self.why, "bytes": self.size_bytes}


@dataclass(slots=True)
class UnfinishedRecording:
    """The contents of the journals of a recording: its signals, its static items, and the places of the records."""

    work: Path
    """The folder of the journals: inside an episode, or beside the file of a single signal."""
    meta: dict[str, Any] = field(default_factory=dict)
    files: tuple[Path, Path | None] | None = None
    """The data file and frame index of a single signal; None in an episode."""
    signals: dict[int, dict[str, Any]] = field(default_factory=dict)
    videos: dict[int, Stream] = field(default_factory=dict)
    """Decoder parameters of the encoded frames of a camera, noted before the first raw one left its journal."""
    static: dict[str, Any] = field(default_factory=dict)
    marked_ns: dict[str, int] = field(default_factory=dict)
    """Times at which the static items were set."""
    journals: list[OpenJournal] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    in_rows: set[int] = field(default_factory=set)
    """Streams whose records come in rows."""
    rows_dropped: int = 0
    """Rows that were being recorded and are not complete."""
    dropped: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)
    """Stream -> time of every frame that a policy dropped, and its number if it had reached the journal."""

    @property
    def owner(self) -> dict[str, Any]:
        """The process that records, or recorded."""
        return next((journal.reader.descriptor.get("owner", {}) for journal in self.journals), {})

    def rows(self, stream: int) -> JournaledRows:
        """The records of one signal, without frames that were dropped: the others are numbered as in the video."""
        return JournaledRows(self.journals, stream, self._gone(stream))

    def _gone(self, stream: int) -> list[int]:
        return [step for _, step in self.dropped.get(stream, ()) if step is not None]

    def marks(self, stream: int) -> list[layout.FrameMark | None]:
        """The frames of a camera that are in its video file; None where a mark is damaged."""
        return read_marks(str(self.work / f"{stream}.marks"))

    def counts(self) -> dict[str, int]:
        """Records per signal that can be read back, encoded frames included."""
        counts = {}
        for stream, about in self.signals.items():
            steps = [journal.records.of_stream(stream).first_step for journal in self.journals]
            which, numbers = renumber(np.concatenate([np.empty(0, np.int64), *steps]), self._gone(stream))
            marks = self.marks(stream) if about.get("kind") == "image" else []
            encoded = {number for number, mark in enumerate(marks) if mark is not None}
            counts[str(about.get("name"))] = len({*numbers[which].tolist(), *encoded})
        return counts


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A recording without an end."""

    path: Path | str
    is_live: bool
    owner: dict[str, Any]
    records: dict[str, int]
    """How many records of each signal can be read from what is on disk."""
    unreadable: int = 0
    """How many parts of its files cannot be read."""


def unfinished_at(folder: Folder) -> Unfinished:
    """The state of an unfinished episode directory; of one in a store only that it is there."""
    if not isinstance(folder, Path):
        return Unfinished(folder.name, False, {}, {})
    work = folder / layout.RECORDING_FOLDER
    live = is_recorded(work)
    records: dict[str, int] = {}
    process: dict[str, Any] = {}
    unreadable = 0
    with contextlib.suppress(FormatError):
        for part in work_folders(work):
            if not part.is_dir():  # a process that left: its part is finished
                signals = read_meta(part.parent).get("signals", {})
                records |= {name: about["count"] for name, about in signals.items()}
                continue
            recording = open_recording(part)
            records |= recording.counts()
            process = process or recording.owner
            unreadable += len(recording.unreadable)
    return Unfinished(folder, live, process, records, unreadable)


def work_folders(work: Path) -> list[Path]:
    """The folders of journals of a recording: its own, or one for each process that takes part, finished or not."""
    if not (work / SHARED_FILE).exists():
        return [work]
    return [part / layout.RECORDING_FOLDER for part in sorted((work / PARTS_FOLDER).glob("*"))]


def is_recorded(work: Path) -> bool:
    """Whether a running process records here, or finishes what another one left."""
    return is_locked(locked_folder(work)) or has_live_journal(work)


def has_live_journal(work: Path) -> bool:
    """Whether a running process holds a journal of this recording open; network disks lock files, but no folders."""
    if any(is_live(path) for path in (*work.glob(_UNNAMED), *work.glob("*.journal"))):
        return True
    return any(is_recorded(part) for part in work_folders(work) if part != work)


def locked_folder(work: Path) -> Path:
    """The folder whose lock a recorder or salvage holds: it is there before anything is recorded."""
    return work.parent if work.name == layout.RECORDING_FOLDER else work


def open_recording(work: Path) -> UnfinishedRecording:
    """Open all journals of an unfinished recording; what of them cannot be read is listed."""
    recording = UnfinishedRecording(work)
    # Journals whose header is being brought to the disk have a temporary name; first, because they get their own one.
    begun = [path.name for path in work.glob(_UNNAMED) if _has_header(path)]
    names = sorted(path.name for path in work.glob("*.journal") if path.exists())
    expected = {SIGNALS_JOURNAL} if _has_begun(work) else set()
    # The main journal first: it describes the others.
    for name in sorted([*names, *begun], key=lambda name: name != SIGNALS_JOURNAL):
        try:
            reader = JournalReader.open(work / name, lenient=True)
            scan = reader.scan()
        except (BlobNotFoundError, FileNotFoundError):  # finished since the folder was listed
            continue
        except WarpError as error:
            recording.unreadable.append(Unreadable(name, error.message, _size(work / name)))
            continue
        journal = OpenJournal(reader, scan, scan.records)
        recording.journals.append(journal)
        expected |= read_facts(journal, recording)
        recording.unreadable += _damage(journal)
    _identify(recording)
    recording.unreadable += [Unreadable(name, "is missing") for name in sorted(expected - set(names))]
    recording.unreadable += _undescribed(recording)
    _drop_torn_row(recording)
    return recording


def _has_header(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(file.read(HEADER_BYTES))
    except OSError:
        return False


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
    is_unnamed = name != journal.name
    is_frames = name == SIGNALS_JOURNAL and about.get("kind") == FRAMES_KIND
    if is_frames or about.get("journal", name) != name.removeprefix("." if is_unnamed else ""):
        yield Unreadable(journal.name, "another journal has its name: its contents are gone")
    for lost in journal.scan.lost:
        size = lost.end - lost.start
        yield Unreadable(journal.name, f"{lost.why} (bytes {lost.start} to {lost.end})", size)
    # One with a temporary name and no record may have died before it had room for any.
    if journal.scan.is_cut and not (is_unnamed and not len(journal.records)):
        yield Unreadable(journal.name, "the file was cut after its last complete record")


def _identify(recording: UnfinishedRecording) -> None:
    """Find what the recording becomes: an episode with this metadata, or the files of a single signal."""
    work, folder = recording.work, recording.work.parent
    descriptors = [journal.reader.descriptor for journal in recording.journals if journal.reader.descriptor]
    for descriptor in descriptors:
        if descriptor.get("kind") not in (SIGNALS_KIND, FRAMES_KIND):
            raise CorruptLayoutError(f"unknown journal kind {descriptor.get('kind')!r}", path=work)
    main = next((each for each in descriptors if each.get("kind") == SIGNALS_KIND), {})
    if work.name != layout.RECORDING_FOLDER:
        recording.files = signal_files(work, main)
        return
    stated = main.get("episode")
    meta = stated.get("meta", {}) if isinstance(stated, dict) else None
    if not isinstance(meta, dict):  # meta.json is written when the recording begins, with the same contents
        meta = None
        with contextlib.suppress(FormatError):
            meta = read_meta(folder)
    recording.meta = dict(meta or {"schema_version": layout.SCHEMA_VERSION})


def signal_files(work: Path, descriptor: dict[str, Any]) -> tuple[Path, Path | None]:
    """The data file and frame index of a single signal, by its journal; without one, by the name of the folder."""
    stated, name = descriptor.get("files"), work.name[1 : -len(WORK_SUFFIX)]
    if stated is None:
        return work.with_name(name), work.with_name(f"{Path(name).stem}.frames.parquet")
    if not isinstance(stated, dict) or stated.get("data") != name:
        raise CorruptLayoutError("the journal names another file than its folder", path=work)
    frames = stated.get("frames")
    if frames is None:
        return work.with_name(name), None
    if not isinstance(frames, str) or not frames or "\0" in frames:
        raise CorruptLayoutError("the journal names no frame index", path=work)
    if os.path.basename(frames) == frames:
        return work.with_name(name), work.with_name(frames)
    if not os.path.isabs(frames):  # one elsewhere is never replaced
        raise CorruptLayoutError(f"the journal names {frames!r} as its frame index", path=work)
    return work.with_name(name), Path(frames)


def work_folders_in(folder: Path) -> list[Path]:
    """The unfinished recordings of single signals in a folder."""
    folders = [path for path in folder.glob(f".*{WORK_SUFFIX}") if path.is_dir() and path.name != WORK_SUFFIX]
    # A shard with a hidden name has an episode inside.
    return sorted(path for path in folders if not (path / WORK_SUFFIX).exists())


def read_facts(journal: OpenJournal, recording: UnfinishedRecording) -> set[str]:
    """Read the records about the recording itself; returns the journals that there must be."""
    control = journal.records.of_stream(CONTROL_STREAM)
    begun: set[str] = set()
    for offset, size in zip(control.offset.tolist(), control.payload_bytes.tolist(), strict=True):
        try:
            fact = parse_json_object(journal.reader.payload(offset, size))
            if "signal" in fact:
                recording.signals[int(fact["signal"]["stream"])] = dict(fact["signal"])
            if "journal" in fact:
                begun.add(str(fact["journal"]))
            if "dropped" in fact:
                about, step = fact["dropped"], fact["dropped"].get("step")
                entry = (int(about["ts_ns"]), None if step is None else int(step))
                recording.dropped.setdefault(int(about["stream"]), []).append(entry)
            if "in_rows" in fact:
                recording.in_rows.add(int(fact["in_rows"]))
            if "video" in fact:
                recording.videos[int(fact["video"]["stream"])] = Stream.from_json(fact["video"])
            recording.static.update(fact.get("static", {}))
            recording.marked_ns.update(dict.fromkeys(fact.get("static", {}), int(fact.get("at_ns", 0))))
        except (FormatError, KeyError, TypeError, ValueError) as error:
            recording.unreadable.append(Unreadable(journal.name, f"unknown fact ({error})", size))
    about = journal.reader.descriptor.get("signal")
    if isinstance(about, dict) and isinstance(about.get("stream"), int):
        recording.signals.setdefault(about["stream"], about)
    return begun


def _undescribed(recording: UnfinishedRecording) -> Iterator[Unreadable]:
    """Records of signals whose description is lost."""
    known = {CONTROL_STREAM, ROW_STREAM, *recording.signals}
    for journal in recording.journals:
        streams, sizes = journal.records.stream, journal.records.payload_bytes
        for stream in sorted(set(streams.tolist()) - known):
            of_stream = streams == stream
            why = f"the description of {int(of_stream.sum())} records of stream {stream} is lost"
            yield Unreadable(journal.name, why, int(sizes[of_stream].sum()))


def _drop_torn_row(recording: UnfinishedRecording) -> None:
    """Leave out the records of the last row if its recorder died before it was complete."""
    streams = list(recording.in_rows)
    in_rows = [np.isin(journal.records.stream, streams) for journal in recording.journals]
    times = [j.records.ts_ns[mask] for j, mask in zip(recording.journals, in_rows, strict=True)]
    last = max((int(ts_ns[-1]) for ts_ns in times if len(ts_ns)), default=None)
    ends = [journal.records.of_stream(ROW_STREAM).ts_ns for journal in recording.journals]
    if last is None or any((ts_ns == last).any() for ts_ns in ends):
        return
    recording.rows_dropped = 1
    for journal, mask in zip(recording.journals, in_rows, strict=True):
        journal.records = journal.records.select(~(mask & (journal.records.ts_ns == last)))


def renumber(steps: NDArray[np.int64], dropped: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which records were not dropped, and the number of each among those."""
    gone = np.unique(np.array(dropped, np.int64))
    return ~np.isin(steps, gone), steps - np.searchsorted(gone, steps)


class JournaledRows:
    """The records of one stream over all journals, in the order they were made."""

    def __init__(self, journals: list[OpenJournal], stream: int, dropped: Sequence[int] = ()) -> None:
        self._journals = journals
        self._path = journals[0].reader.name if journals else ""
        parts = [journal.records.of_stream(stream) for journal in journals]
        where = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        columns = [
            np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in ("first_step", "payload_offset", "payload_bytes", "ts_ns")
        ]
        # Of two records of one number the later one counts: Ctrl-C came before the earlier one was acknowledged.
        steps = columns[0]
        order = np.lexsort((columns[3], steps))
        order = order[np.append(np.diff(steps[order]) > 0, True)] if len(order) else order
        is_kept, columns[0] = renumber(steps, dropped)
        order = order[is_kept[order]]
        self._where = where[order]
        self.steps, self._offset, self._size, self._ts = (column[order] for column in columns)
        """The number of each record among those of its signal."""
        if (self._ts[1:] <= self._ts[:-1]).any():
            raise CorruptLayoutError(f"the times of stream {stream} do not increase", path=self._path)

    @property
    def missing(self) -> int:
        """How many records there were before the last one that are not here."""
        return int(self.steps[-1]) + 1 - len(self) if len(self) else 0

    def fits(self, step: int, ts_ns: int) -> bool:
        """Whether the record of this number can have been made at this time, by the times of the others."""
        at = int(np.searchsorted(self.steps, step))
        if at < len(self) and self.steps[at] == step:
            return int(self._ts[at]) == ts_ns
        return (at == 0 or self._ts[at - 1] < ts_ns) and (at == len(self) or bool(ts_ns < self._ts[at]))

    def __len__(self) -> int:
        return len(self.steps)

    def blocks(self, description: Description) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, values) in blocks."""
        if description.kind in ("text", "bytes"):
            for start in range(0, len(self), _ROWS):
                rows = range(start, min(start + _ROWS, len(self)))
                payloads = (bytes(self.payload(row)[1]) for row in rows)
                values = as_objects(
                    data.decode() if description.kind == "text" else data for data in payloads
                )
                yield self._ts[rows.start : rows.stop], values
            return
        dtype = dtype_named(description.dtype).dtype
        row_bytes = dtype.itemsize * math.prod(description.shape)
        if description.is_ragged:
            if (self._size % row_bytes).any():
                raise CorruptLayoutError("records of the wrong size", path=self._path)
            ends = np.cumsum(self._size) // _RAGGED_BYTES
            for run in np.split(np.arange(len(self)), np.flatnonzero(np.diff(ends)) + 1):
                raws = (np.frombuffer(bytes(self.payload(row)[1]), dtype) for row in run.tolist())
                yield self._ts[run], as_objects(raw.reshape(-1, *description.shape) for raw in raws)
            return
        if (self._size != row_bytes).any():
            raise CorruptLayoutError("records of the wrong size", path=self._path)
        step = max(1, min(_ROWS, (4 << 20) // max(1, row_bytes)))
        for start in range(0, len(self), step):
            block = slice(start, start + step)
            raw = self._gather(self._where[block], self._offset[block], row_bytes)
            yield self._ts[block], raw.view(dtype).reshape(-1, *description.shape)

    def _gather(self, where: NDArray[Any], offset: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint8]:
        out = np.empty((len(where), row_bytes), np.uint8)
        for number in np.unique(where):
            reader = self._journals[number].reader.reader
            rows = np.flatnonzero(where == number)
            low, high = int(offset[rows].min()), int(offset[rows].max()) + row_bytes
            area = np.frombuffer(reader.read(low, high), np.uint8)
            out[rows] = area[(offset[rows] - low)[:, None] + np.arange(row_bytes)]
        return out

    def payload(self, position: int) -> tuple[int, memoryview]:
        """(time, bytes) of one record."""
        reader = self._journals[int(self._where[position])].reader.reader
        offset, size = int(self._offset[position]), int(self._size[position])
        return int(self._ts[position]), reader.read(offset, offset + size)


def read_status(work: Path) -> RecordingStatus | None:
    """The last status of a recorder, or of all processes that take part; None without one that can be read."""
    parts = []
    for part in work_folders(work):
        with contextlib.suppress(WarpError):
            data = read_bytes(part / STATUS_FILE, max_bytes=_MAX_STATUS_BYTES)
            parts.append(RecordingStatus.from_json(parse_json_object(data)))
    if not parts:
        return None
    last = max(parts, key=lambda status: status.written_ns)
    signals = {name: signal for status in parts for name, signal in status.signals.items()}
    return replace(last, signals=signals, disk_bytes=sum(status.disk_bytes for status in parts))


def frame_shape(description: Description) -> FrameShape:
    """The shape of a camera from a description that a file holds."""
    try:
        return description.frame_shape()
    except ValueError:
        raise CorruptLayoutError(f"no image: {description.dtype} {description.shape}") from None
