"""An episode that is still being recorded: the records that are on disk by now, and the frames that are encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.episodes.salvage.cameras import frame_shape
from warpdata.episodes.salvage.unfinished import JournaledRows, UnfinishedRecording, marks_of, open_recording
from warpdata.episodes.sources.cameras import VideoSignal, signal_meta
from warpdata.errors import WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import restored_static
from warpdata.formats.episodedir.frame_index import FrameIndex, index_of_marks
from warpdata.formats.episodedir.images import suffix_for
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal


def live_episode(folder: Path) -> Episode | None:
    """What an unfinished episode directory holds now, empty signals included; None where it cannot be read."""
    try:
        return read_unfinished(folder, with_empty=True)
    except (WarpError, OSError, KeyError, ValueError):
        return None


def read_unfinished(folder: Path, *, with_empty: bool = False) -> Episode:
    """The records of an unfinished episode directory that are whole by now, in memory."""
    found = open_recording(folder / layout.RECORDING_FOLDER)
    signals: dict[str, Signal] = {}
    for stream, about in found.signals.items():
        made = _signal(found, stream, about)
        if made is not None and (len(made) or with_empty):
            signals[str(about["name"])] = made
    static = {name: restored_static(value) for name, value in found.static.items()}
    return Episode.of(signals, static, {**found.meta, "is_unfinished": True}, id=folder.name)


def backlog_of(found: UnfinishedRecording) -> dict[str, int]:
    """How many frames of each camera wait in the journal to be encoded."""
    waiting = {}
    for stream, about in found.signals.items():
        if about.get("kind") == "image":
            raw = {int(n) for j in found.journals for n in j.records.of_stream(stream).first_step}
            encoded = sum(mark is not None for mark in marks_of(found, stream))
            waiting[str(about.get("name"))] = sum(number >= encoded for number in raw)
    return waiting


def _signal(found: UnfinishedRecording, stream: int, about: dict[str, Any]) -> Signal | None:
    """The records of a signal that are whole and follow one another; what comes after a missing one waits for it."""
    try:
        name = str(about["name"])
        description = Description.from_json(about, str(found.work))
        if description.kind == "image":
            return _camera(found, stream, about, description)
        rows = JournaledRows(found.journals, stream)
        is_object = description.kind in ("text", "bytes")
        blocks = list(rows.events(description.kind) if is_object else rows.numbers(description))
    except (WarpError, KeyError, TypeError, ValueError):
        return None  # damaged: salvage reports it
    meta = signal_meta(description, name)
    if not blocks:
        return ArraySignal(np.empty(0, np.int64), np.empty((0, *meta.shape), meta.dtype), meta)
    whole = int((rows.steps == np.arange(len(rows))).argmin()) or len(rows) if rows.missing else len(rows)
    stamps, values = (np.concatenate(each)[:whole] for each in zip(*blocks, strict=True))
    return ArraySignal(stamps, values, meta)


def _camera(
    found: UnfinishedRecording, stream: int, about: dict[str, Any], description: Description
) -> Signal | None:
    """The frames that are in the growing video, as far as its marks are whole."""
    codec = found.videos.get(stream)
    marks = []
    for mark in marks_of(found, stream):
        if mark is None:
            break
        marks.append(mark)
    path = found.work / f"{stream}{suffix_for(about['video']['codec'])}"
    if codec is None or not marks or not path.exists():
        return None
    size = path.stat().st_size
    marks = [mark for mark in marks if mark.offset + mark.size <= size]
    if not marks:
        return None
    shape = frame_shape(description)
    return GrowingVideo(path, str(about["name"]), index_of_marks(marks, shape, codec, size, description))


class GrowingVideo(VideoSignal):
    """The frames of a video that is still being written, by an index in memory."""

    def __init__(self, path: Path, name: str, index: FrameIndex) -> None:
        super().__init__(path, path, name=name)
        self._index = index

    def _bytes(self) -> RangeReader:
        return FileRangeReader(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (GrowingVideo, (Path(self.path), self.name, self._index))
