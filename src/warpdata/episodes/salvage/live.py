"""An episode that is being recorded, read while it grows: `wd.open(root).live()` and the viewer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import TEMP_MARK
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.episodes.record.status import RecordingStatus
from warpdata.episodes.salvage.unfinished import (
    JournaledRows,
    OpenJournal,
    UnfinishedRecording,
    frame_shape,
    is_recorded,
    read_facts,
    read_status,
    work_folders,
)
from warpdata.episodes.sources.cameras import VideoSignal, signal_meta
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import BlobNotFoundError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import Description, restored_static, suffix_for
from warpdata.formats.episodedir.frame_index import FrameIndex, index_of_marks
from warpdata.formats.journal.layout import ROW_STREAM, SIGNALS_JOURNAL, WORK_SUFFIX
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal, JoinedSignal
from warpdata.timeline.signal import Signal

_ROWS = 1024


class LiveRecord(NamedTuple):
    """One record as it came."""

    signal: str
    ts_ns: int
    value: Any


class LiveEpisode:
    """An episode that is being recorded; each `refresh` reads what was added since the last one.

    `episode` has the values acknowledged by then, and of cameras the frames of complete groups of pictures. Iterating
    gives every record from the first one on, until the recording ends. Any thread may use it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        """The directory in which it is recorded: of one file `X.wshard`, the directory beside it."""
        self._file = folder.with_suffix("") if folder.name.endswith(f".wshard{WORK_SUFFIX}") else None
        self._work = folder / layout.RECORDING_FOLDER
        self._lock = ThreadLock()
        self._parts: dict[Path, _LivePart] = {}
        self.episode = Episode.of({}, id=self.id)
        """The episode as it was at the last refresh."""
        self.refresh()

    @property
    def id(self) -> str:
        """The id that the episode has in its root, or as a file."""
        return self.path.name if self._file is None else self._file.stem

    @property
    def is_live(self) -> bool:
        """Whether a running process records it."""
        return is_recorded(self._work)

    def status(self) -> RecordingStatus | None:
        """Counts, queues and space as the recorder last wrote them; None before it did, and after the end."""
        return read_status(self._work)

    def refresh(self) -> Episode:
        """Read what was added since the last time; a finished episode is the one on disk."""
        with self._lock:
            if self._work.is_dir():
                self.episode = self._read()
            elif (self.path / layout.META_FILE).exists():
                self.episode = DiskEpisode(self.path)
            elif self._file is not None and self._file.exists():
                self.episode = episode_of_shard(ShardReader.open(str(self._file)))
            return self.episode

    def _read(self) -> Episode:
        parts: dict[str, list[Signal]] = {}
        static: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        for work in work_folders(self._work):
            if work not in self._parts:
                self._parts[work] = _LivePart(work)
            part = self._parts[work]
            if work.is_dir():
                part.refresh()
            elif work != self._work:  # a process that left: its part is finished
                with contextlib.suppress(WarpError):
                    episode = DiskEpisode(work.parent)
                    part.signals, part.static = dict(episode.signals), dict(episode.static)
            for name, signal in part.signals.items():
                parts.setdefault(name, []).append(signal)
            static |= part.static
            meta = {**part.recording.meta, **meta}
        signals = {name: signal for own_name in parts for name, signal in _join(own_name, parts[own_name])}
        return Episode.of(signals, static, {**meta, "is_unfinished": True}, id=self.id)

    def __iter__(self) -> Iterator[LiveRecord]:
        return self.follow()

    def follow(self, *, poll_s: float = 0.05, timeout_s: float | None = None) -> Iterator[LiveRecord]:
        """Every record, then new ones as they come; ends with the recording, or after `timeout_s` without a new one."""
        delivered: dict[str, int] = {}
        last = time.monotonic()
        while True:
            is_live = self.is_live
            for record in self._new_records(self.refresh(), delivered):
                yield record
                last = time.monotonic()
            if not is_live or (timeout_s is not None and time.monotonic() - last >= timeout_s):
                return
            time.sleep(poll_s)

    @staticmethod
    def _new_records(episode: Episode, delivered: dict[str, int]) -> Iterator[LiveRecord]:
        records: list[LiveRecord] = []
        for name, signal in episode.signals.items():
            first, delivered[name] = delivered.get(name, 0), len(signal)
            for start in range(first, len(signal), _ROWS):
                rows = range(start, min(start + _ROWS, len(signal)))
                times, values = np.asarray(signal._ts_in(rows)), signal._values_in(rows)
                records += map(LiveRecord._make, zip([name] * len(rows), times.tolist(), values, strict=True))
        records.sort(key=lambda record: record.ts_ns)
        yield from records

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(signal)}" for name, signal in self.episode.signals.items())
        return f"<LiveEpisode {self.path}: {counts or 'no records yet'}>"


def _join(name: str, parts: list[Signal]) -> Iterator[tuple[str, Signal]]:
    """One signal of what several processes recorded one after the other, as when the episode is finished."""
    parts.sort(key=lambda part: part.first_ts_ns if len(part) else 0)
    try:
        yield name, parts[0] if len(parts) == 1 else JoinedSignal(parts)
    except WarpError:
        yield from (
            (f"{name}-{number}" if number > 1 else name, part) for number, part in enumerate(parts, 1)
        )


_TRIES = 3
"""A journal gets its name while it is looked for."""


class _LivePart:
    """The journals of one process."""

    def __init__(self, work: Path) -> None:
        self.recording = UnfinishedRecording(work)
        self.signals: dict[str, Signal] = {}
        self.static: dict[str, Any] = {}
        self._grown: dict[int, _GrowingRows] = {}
        self._end: int | None = None

    def refresh(self) -> None:
        recording = self.recording
        for _ in range(_TRIES):
            journal = recording.work / SIGNALS_JOURNAL
            if not journal.exists():  # its header is being brought to the disk
                journal = next(recording.work.glob(f".{SIGNALS_JOURNAL}{TEMP_MARK}*"), journal)
            try:
                with FileRangeReader(journal) as reader:
                    self._read(JournalReader(reader))
            except (BlobNotFoundError, FileNotFoundError):  # not there yet, renamed or gone just now
                continue
            except WarpError:
                pass
            break
        for stream, about in recording.signals.items():
            with contextlib.suppress(
                WarpError, KeyError, TypeError, ValueError
            ):  # damaged: salvage reports it
                signal = self._signal(stream, about)
                if signal is not None:
                    self.signals[str(about["name"])] = signal
        self.static = {name: restored_static(value) for name, value in recording.static.items()}

    def _read(self, reader: JournalReader) -> None:
        scan = reader.scan(self._end)
        records, recording = scan.records, self.recording
        journal = OpenJournal(reader, scan, records)
        read_facts(journal, recording)
        stated = reader.descriptor.get("episode")
        recording.meta = dict(stated.get("meta", {})) if isinstance(stated, dict) else {}
        self._end = scan.end_offset
        # A row that is being recorded is read with its end.
        in_row = np.flatnonzero(np.isin(records.stream, list(recording.in_rows)))
        ends = np.flatnonzero(records.stream == ROW_STREAM)
        open_row = in_row[in_row > (ends[-1] if len(ends) else -1)]
        if len(open_row):
            self._end = int(records.offset[open_row[0]])
            journal.records = records.select(np.arange(open_row[0]))
        for stream, about in recording.signals.items():
            if about.get("kind") != "image":
                with contextlib.suppress(WarpError, KeyError, TypeError, ValueError):
                    if stream not in self._grown:
                        self._grown[stream] = _GrowingRows(Description.from_json(about, reader.name))
                    self._grown[stream].add(journal, stream)

    def _signal(self, stream: int, about: dict[str, Any]) -> Signal | None:
        if about.get("kind") == "image":
            return _live_camera(self.recording, stream, about)
        rows = self._grown.get(stream)
        return None if rows is None else rows.signal(str(about["name"]))


class _GrowingRows:
    """Times and values of one signal; what was read once never changes, so views of it stay valid."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._count = 0
        self._stamps = np.empty(0, np.int64)
        self._values: NDArray[Any] | None = None

    def add(self, journal: OpenJournal, stream: int) -> None:
        """Add the new records of a journal."""
        for stamps, values in JournaledRows([journal], stream).blocks(self._description):
            # Of a record that Ctrl-C interrupted there may be two.
            is_new = stamps > (self._stamps[self._count - 1] if self._count else np.iinfo(np.int64).min)
            stamps, values = stamps[is_new], values[is_new]
            count = self._count + len(stamps)
            if self._values is None or count > len(self._stamps):
                room = max(1024, 2 * count)
                old_stamps, old_values = self._stamps, self._values
                self._stamps = np.empty(room, np.int64)
                self._values = np.empty((room, *values.shape[1:]), values.dtype)
                if old_values is not None:
                    self._stamps[: self._count] = old_stamps[: self._count]
                    self._values[: self._count] = old_values[: self._count]
            self._stamps[self._count : count], self._values[self._count : count] = stamps, values
            self._count = count

    def signal(self, name: str) -> Signal:
        """The records so far."""
        meta = signal_meta(self._description, name)
        if self._values is None:
            return ArraySignal(np.empty(0, np.int64), np.empty((0, *meta.shape), meta.dtype), meta)
        return ArraySignal(self._stamps[: self._count], self._values[: self._count], meta)


def _live_camera(recording: UnfinishedRecording, stream: int, about: dict[str, Any]) -> Signal | None:
    """The frames that are in the growing video, as far as its marks are readable."""
    description = Description.from_json(about, str(recording.work))
    codec = recording.videos.get(stream)
    path = recording.work / f"{stream}{suffix_for(about['video']['codec'])}"
    size = path.stat().st_size if path.exists() else 0
    marks = []
    for mark in recording.marks(stream):
        if mark is None or mark.offset + mark.size > size:
            break
        marks.append(mark)
    if codec is None or not marks:
        return None
    index = index_of_marks(marks, frame_shape(description), codec, size, description)
    return GrowingVideo(path, str(about["name"]), index)


class GrowingVideo(VideoSignal):
    """The frames of a video that is still being written, by an index in memory."""

    def __init__(self, path: Path, name: str, index: FrameIndex) -> None:
        super().__init__(path, path, name=name)
        self._index = index

    def _bytes(self) -> RangeReader:
        return FileRangeReader(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (GrowingVideo, (Path(self.path), self.name, self._index))


def live_episode(folder: Path) -> Episode | None:
    """The contents of an unfinished episode directory now; None where it cannot be read."""
    try:
        return LiveEpisode(folder).episode if folder.is_dir() else None
    except (WarpError, OSError, KeyError, ValueError):
        return None
