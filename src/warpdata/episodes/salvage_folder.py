"""Finish the episodes and single signals a crash left, and say exactly what was lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.ranges import FileRangeReader
from warpdata.episodes.camera import VideoFile
from warpdata.episodes.disk_writer import finish_documents
from warpdata.episodes.journals import SIGNALS_JOURNAL, remove_folder
from warpdata.episodes.lanes import Spool
from warpdata.episodes.listing import episode_path, list_episodes
from warpdata.episodes.receipt import LossReceipt
from warpdata.episodes.single import work_folder, work_folders_in
from warpdata.episodes.statistics import ClockStatistics
from warpdata.episodes.unfinished import Found, OpenJournal, is_blank, marks_of, open_recording
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, FormatError, JournalInUseError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import FileSum, read_meta
from warpdata.formats.episodedir.frame_index import FrameIndex, index_of_marks, read_frame_index
from warpdata.formats.episodedir.frame_reader import FrameReader, plan_of
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, suffix_for
from warpdata.formats.episodedir.names import check_name, signal_file
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import probe, stream_of
from warpdata.formats.journal.reader import Records, is_live

_ROWS = 8192
_REASON = "the recorder ended without closing the episode"


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """Whether this is an episode directory that was never finished."""
    return os.path.isdir(os.path.join(path, layout.RECORDING_FOLDER))


def salvage_root(root: str | os.PathLike[str]) -> list[LossReceipt]:
    """Salvage every unfinished recording in a root whose recorder is gone; live ones are left alone."""
    folders = [episode_path(Path(root), number) for number in list_episodes(Path(root)).unfinished]
    work = [folder / layout.RECORDING_FOLDER for folder in folders] + work_folders_in(Path(root))
    return [_salvage(each) for each in work if each.is_dir() and not _is_live(each)]


def salvage_folder(path: str | os.PathLike[str]) -> list[LossReceipt]:
    """Finish whatever was left unfinished at or below a folder: an episode, a signal, or all of a root."""
    single = salvage_single(path)
    if single is not None:
        return [single]
    return [salvage_episode(path)] if is_unfinished(path) else salvage_root(path)


def salvage_single(path: str | os.PathLike[str]) -> LossReceipt | None:
    """Finish the recording of a single signal, named by the file it was to make; None if there is none."""
    work = Path(path)
    if work not in work_folders_in(work.parent):
        work = work_folder(work)
    return _salvage_checked(work) if work.is_dir() else None


def salvage_episode(path: str | os.PathLike[str]) -> LossReceipt:
    """Turn the journals of an unfinished episode into its files; every acknowledged record is kept."""
    folder = Path(path)
    if not is_unfinished(folder):
        raise BlobNotFoundError("nothing to salvage here", path=folder)
    return _salvage_checked(folder / layout.RECORDING_FOLDER)


def _salvage_checked(work: Path) -> LossReceipt:
    if _is_live(work):
        raise JournalInUseError(
            "being recorded", path=work.parent, hint="Stop the recorder first, then salvage."
        )
    return _salvage(work)


def _salvage(work: Path) -> LossReceipt:
    if is_blank(work / SIGNALS_JOURNAL):
        return _without_journal(work)
    return _Salvage(open_recording(work)).run()


def _is_live(work: Path) -> bool:
    journal = work / SIGNALS_JOURNAL
    return journal.exists() and is_live(journal)


def _without_journal(work: Path) -> LossReceipt:
    """The recorder died before its first journal existed: nothing was acknowledged."""
    folder = work.parent
    is_episode = work.name == layout.RECORDING_FOLDER
    if is_episode:
        meta = read_meta(folder) or {"schema_version": layout.SCHEMA_VERSION}
        finish_documents(folder, meta, {}, {}, _REASON)
    remove_folder(work)
    source = str(folder if is_episode else work)
    output = source if is_episode else None
    return LossReceipt(source, output, Path(source).name, 0, 0, 0.0, {}, 0, "nothing was recorded")


class _Salvage:
    """One recording on its way from journals to files."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.work = found.work
        self.folder = found.work.parent
        self.lost = 0
        self.clocks: list[tuple[int, int]] = []

    def run(self) -> LossReceipt:
        signals: dict[str, Any] = {}
        for stream, about in sorted(self.found.signals.items()):
            name = self._name(about)
            made = (
                self._camera(stream, name, about)
                if about["kind"] == "image"
                else self._table(stream, name, about)
            )
            if made is not None:
                signals[name] = made
                self.clocks.append((made["first_ts_ns"], made["last_ts_ns"]))
        receipt = self._receipt({name: made["count"] for name, made in signals.items()})
        if self.found.files is None:
            found = self.found
            finish_documents(
                self.folder, found.meta, found.static, signals, _REASON, salvaged=receipt.to_json()
            )
        remove_folder(self.work)
        return receipt

    def _target(self, name: str, suffix: str) -> Path:
        """Where a finished file goes."""
        if self.found.files is None:
            return signal_file(self.folder, name, suffix)
        data, frames = self.found.files
        if suffix != layout.FRAMES_SUFFIX:
            return data
        if frames is None:
            raise CorruptLayoutError("the journal names no frame index", path=self.work)
        return frames

    def _name(self, about: dict[str, Any]) -> str:
        if self.found.files is not None:
            return str(about.get("name"))
        try:
            return check_name(about.get("name"))
        except (ValueError, TypeError) as error:
            raise CorruptLayoutError(
                f"the journal names a signal wrongly ({error})", path=self.work
            ) from None

    def _table(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        description = Description.from_json(about, str(self.work))
        rows = _Rows(self.found.journals, stream)
        self.lost += rows.missing
        if not len(rows):
            return None
        spool = Spool(self.work / f"{stream}.parquet", description)
        is_event = description.kind in ("text", "bytes")
        for stamps, values in rows.events(description.kind) if is_event else rows.numbers(description):
            spool.write(stamps, values)
        return spool.commit(self._target(name, layout.SIGNAL_SUFFIX))

    def _camera(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        description = Description.from_json(about, str(self.work))
        shape = _frame_shape(description)
        options = VideoOptions(**about["video"])
        suffix = suffix_for(about["video"]["codec"])
        video, frames = self._target(name, suffix), self._target(name, layout.FRAMES_SUFFIX)
        growing = self.work / f"{stream}{suffix}"
        # Under the name of a single signal an older file may lie; inside an episode nothing else can.
        is_own = self.found.files is None or len(_Rows(self.found.journals, stream)) > 0
        if is_own and video.exists() and not growing.exists():
            # The video has its name already: the recorder died between it and its index, or after both.
            if not (self.work / f"{stream}.marks").exists():
                return _finished_camera(video, frames)
            os.replace(video, growing)
        marks = marks_of(self.found, stream)
        rows = _Rows(self.found.journals, stream, first=len(marks))
        self.lost += rows.missing
        if not marks and not len(rows):
            return None
        kept: Iterator[tuple[int, NDArray[Any]]] = iter(())
        base = self.work / str(stream)
        if marks and len(rows) and probe(str(growing)).stream != stream_of(shape, options):
            # Another encoder than the recorder's: its frames do not fit behind that header. All are encoded
            # again into a file of their own; what the recorder left stays until that one is whole.
            kept, marks, base = _decoded(growing, marks, shape), [], self.work / f"{stream}.again"
        file = VideoFile(base, shape, options, marks, description)
        try:
            for ts_ns, frame in kept:
                file.encode(frame, ts_ns)
            for ts_ns, payload in rows.payloads():
                file.encode(np.frombuffer(payload, shape.dtype).reshape(shape.shape), ts_ns)
            return file.finish(video, frames)
        finally:
            file.close()

    def _receipt(self, kept: dict[str, int]) -> LossReceipt:
        found = self.found
        damage = [
            {"journal": Path(journal.reader.name).name, **asdict(each)}
            for journal in found.journals
            for each in journal.damage
        ]
        damage += [{"journal": Path(path).name, "why": error.message} for path, error in found.broken]
        dropped = sum(each["end"] - each["start"] for each in damage if "end" in each)
        dropped += sum(os.path.getsize(path) for path, _ in found.broken)
        seconds = max((last - first for first, last in self.clocks), default=0) / 1e9
        why = damage[-1]["why"] if damage else "nothing was lost"
        source = str(self.folder if found.files is None else found.files[0])
        return LossReceipt(
            source=source, output=source, episode_id=Path(source).name,
            steps_kept=sum(kept.values()), steps_lost=self.lost, time_kept_s=seconds, channels=kept,
            bytes_dropped=dropped, why=str(why), damage=damage,
            last_crc32c=f"{found.journals[0].last_crc32c:08x}" if len(found.journals[0].records) else None,
        )  # fmt: skip


class _Rows:
    """The records of one stream over all journals, in the order they were made."""

    def __init__(self, journals: list[OpenJournal], stream: int, first: int = 0) -> None:
        self._journals = journals
        picked = [journal.records.of_stream(stream) for journal in journals]
        self._step = np.concatenate([each.first_step for each in picked])
        self._where = np.repeat(np.arange(len(picked)), [len(each) for each in picked])
        columns = Records(*(np.concatenate([getattr(e, f) for e in picked]) for f in Records.__slots__))
        # Of two records of one number the later one holds: Ctrl-C came before the earlier one was acknowledged.
        _, order = np.unique(self._step[::-1], return_index=True)
        order = len(self._step) - 1 - order
        order = order[self._step[order] >= first]
        self._step, self._where = self._step[order], self._where[order]
        self._offset, self._size, self._ts = (
            columns.payload_offset[order], columns.payload_bytes[order], columns.ts_ns[order],
        )  # fmt: skip
        self.missing = int(self._step[-1]) + 1 - first - len(order) if len(order) else 0

    def __len__(self) -> int:
        return len(self._step)

    def numbers(self, description: Description) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, values) in blocks."""
        dtype = dtype_named(description.dtype).dtype
        row_bytes = dtype.itemsize * int(np.prod(description.shape, dtype=np.int64))
        if (self._size != row_bytes).any():
            raise CorruptLayoutError("records of the wrong size", path=self._journals[0].reader.name)
        step = max(1, min(_ROWS, (4 << 20) // row_bytes))
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
        for where, offset, size, ts_ns in zip(
            self._where.tolist(), self._offset.tolist(), self._size.tolist(), self._ts.tolist(), strict=True
        ):
            yield ts_ns, self._journals[where].reader.reader.read(offset, offset + size)


def _events(stamps: list[int], values: list[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    out = np.empty(len(values), object)
    out[:] = values
    return np.array(stamps, np.int64), out


def _frame_shape(description: Description) -> FrameShape:
    height, width = description.shape[:2]
    dtype = {"u8": "uint8", "u16": "uint16"}[description.dtype]
    return FrameShape(height, width, 3 if len(description.shape) == 3 else 0, dtype)


def _decoded(
    video: Path, marks: list[layout.FrameMark], shape: FrameShape
) -> Iterator[tuple[int, NDArray[Any]]]:
    """(time, image) of every frame the recorder had encoded."""
    stream = probe(str(video)).stream
    index = index_of_marks(marks, shape, stream, video.stat().st_size)
    with FileRangeReader(video) as reader:
        frames = FrameReader(reader, plan_of(index), stream, shape)
        for number, mark in enumerate(marks):
            yield mark.ts_ns, frames.frame(number)


def _finished_camera(video: Path, frames: Path) -> dict[str, Any]:
    """What meta.json says of a camera whose files were complete already."""
    index: FrameIndex = read_frame_index(FileRangeReader(frames))
    if index.stream is None or index.video_bytes != video.stat().st_size:
        raise FormatError("the video does not match its frame index", path=video)
    clock = ClockStatistics()
    clock.add(index.ts_ns)
    total = FileSum.of(frames.read_bytes())
    return {
        **index.description.to_json(), **clock.to_json(), "video_bytes": index.video_bytes,
        "codec": index.stream.codec, "file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
    }  # fmt: skip
