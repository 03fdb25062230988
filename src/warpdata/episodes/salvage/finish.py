"""Finishing episodes and single signals that a crash left, also of several processes; nothing unread is removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import (
    TEMP_MARK,
    check_case_clash,
    commit_together,
    fold_name,
    fsync_folder,
    map_os_errors,
    write_file,
)
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
from warpdata.bytekit.io.ranges import PartRangeReader, RangeFile
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.locks import FileLock, is_locked
from warpdata.episodes.forms.directory import write_directory
from warpdata.episodes.record.camera import VideoFile, camera_entry, drop_facts
from warpdata.episodes.record.recording import last_documents, remove_folder, remove_leftovers
from warpdata.episodes.record.status import STATUS_FILE
from warpdata.episodes.record.tables import TableFile, table_entry
from warpdata.episodes.salvage.receipt import LossReceipt
from warpdata.episodes.salvage.unfinished import (
    PARTS_FOLDER,
    SHARED_FILE,
    JournaledRows,
    UnfinishedRecording,
    Unreadable,
    frame_shape,
    has_live_journal,
    open_recording,
)
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.episodes.statistics import ClockStatistics, ValueStatistics
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    JournalInUseError,
    NoLocksError,
    OutOfSpaceError,
    PermissionError_,
    WarpError,
)
from warpdata.formats.episodedir import containers, layout
from warpdata.formats.episodedir.documents import (
    Description,
    FileSum,
    VideoOptions,
    check_name,
    read_bytes,
    read_meta,
    read_static,
    signal_file,
    suffix_for,
)
from warpdata.formats.episodedir.frame_index import (
    FrameIndex,
    FrameReader,
    index_of_marks,
    marks_of_index,
    pack_mark,
    plan_of,
    read_frame_index,
)
from warpdata.formats.episodedir.signal_file import parse_signal
from warpdata.formats.episodedir.video import list_packets, probe, stream_of
from warpdata.formats.journal.writer import move_to_disk
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import JoinedSignal

DAMAGED = "-damaged"
_JOINED = "joined"
_MAX_BYTES = 1 << 24
_REASON = "the recorder ended without closing the episode"
_MAX_FILE_BYTES = 1 << 36
_MOMENT_S = 0.2
"""A process that only checks the lock holds it for a moment."""

Mark = layout.FrameMark | None
_NO_MARK = layout.FrameMark(0, 0, 1, 0, 0, 0)


def free_name(path: Path, suffix: str) -> Path:
    """`path` with a suffix, and a number if that is taken."""
    tries = (path.with_name(f"{path.name}{suffix}{number or ''}") for number in range(1 << 20))
    return next(name for name in tries if not os.path.lexists(name))


def set_aside(path: Path, suffix: str = ".bak") -> Path:
    """Give a file or folder another name, so that it is kept; returns that name."""
    aside = free_name(path, suffix)
    with map_os_errors(path):
        os.rename(path, aside)
        fsync_folder(path.parent)
    return aside


@contextlib.contextmanager
def exclusive(path: Path, fact: str = "being recorded") -> Iterator[None]:
    """Keep recorders and other salvages away from a folder or journal; JournalInUseError where one is at work."""
    lock = None
    try:
        is_free = not is_locked(path)
        if is_free:
            lock = FileLock.take(path, timeout_s=_MOMENT_S, make=False)
            is_free = lock is not None
    except NoLocksError:
        is_free = True
    try:
        work = path / layout.RECORDING_FOLDER
        if not is_free or has_live_journal(work if work.is_dir() else path):
            raise JournalInUseError(fact, path=path, hint="Stop that process first, then salvage.")
        yield
    finally:
        if lock is not None:
            lock.release()


def finish_recording(work: Path) -> LossReceipt:
    """Finish the recording whose journals are in this folder, for a caller that holds its lock."""
    if not work.is_dir():
        raise BlobNotFoundError("nothing to salvage here: it was finished just now", path=work)
    salvage = _Salvage(work)
    if salvage.is_episode and _is_finished(work.parent):
        signals = read_meta(work.parent)["signals"]
        remove_folder(work)
        return salvage.receipt(signals, "the episode was finished; only its journals were left")
    return salvage.run()


class _Salvage:
    """One recording on its way from journals to files."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = work.parent
        self.is_episode = work.name == layout.RECORDING_FOLDER
        self.lost = 0
        self.made: dict[str, Any] = {}
        self.aside: Path | None = None
        self.recording = UnfinishedRecording(work)

    def run(self) -> LossReceipt:
        recording = self.recording = open_recording(self.work)
        if recording.journals or recording.unreadable:
            for stream, about in sorted(recording.signals.items()):
                self._finish_signal(stream, about)
        aside = free_name(self.work, DAMAGED) if recording.unreadable or self.lost else None
        self.aside = aside or self.aside
        last = recording.unreadable[-1] if recording.unreadable else None
        why = "nothing was lost" if last is None else f"{last.file}: {last.why}"
        if not recording.journals and not recording.unreadable:
            why = "nothing was recorded"
        receipt = self.receipt(self.made, why)
        if self.is_episode:
            meta = recording.meta or {"schema_version": layout.SCHEMA_VERSION}
            if "process" in meta:  # a part of an episode that several processes record
                meta["marked_ns"] = recording.marked_ns
            documents = last_documents(
                self.folder, meta, recording.static, self.made, _REASON, salvaged=receipt.to_json()
            )
            for path, data in documents.items():
                for left in self.folder.glob(
                    f".{path.name}{TEMP_MARK}*"
                ):  # by one that was killed as it wrote
                    left.unlink(missing_ok=True)
                write_file(path, data)
        (self.work / STATUS_FILE).unlink(missing_ok=True)
        if aside is not None and any(self.work.iterdir()):
            with map_os_errors(self.work):
                move_to_disk(self.work)
                os.rename(self.work, aside)
                fsync_folder(self.folder)
        else:
            remove_folder(self.work)
        return receipt

    def _finish_signal(self, stream: int, about: dict[str, Any]) -> None:
        """Make the files of one signal; one that cannot be made does not take the others with it."""
        try:
            name = self._name(about)
            if name in self.made:
                raise CorruptLayoutError(f"two signals are called {name!r}", path=self.work)
            if self.recording.files is None:
                check_case_clash(name, {fold_name(other): other for other in self.made}, self.folder)
            is_camera = about.get("kind") == "image"
            made = (self._finish_camera if is_camera else self._finish_table)(stream, name, about)
        except (OutOfSpaceError, PermissionError_):
            raise  # nothing is wrong with the signal: it is finished once there is room
        except (WarpError, UnicodeDecodeError) as error:
            why = error.message if isinstance(error, WarpError) else str(error)
            self.recording.unreadable.append(Unreadable(str(about.get("name")), why))
            return
        if made is not None:
            self.made[name] = made

    def _target(self, name: str, suffix: str) -> Path:
        """The path of a finished file."""
        if self.recording.files is None:
            return signal_file(self.folder, name, suffix)
        data, frames = self.recording.files
        if suffix != layout.FRAMES_SUFFIX:
            return data
        if frames is None:
            raise CorruptLayoutError("the journal names no frame index", path=self.work)
        return frames

    def _name(self, about: dict[str, Any]) -> str:
        if self.recording.files is not None:
            return str(about.get("name"))
        try:
            return check_name(about.get("name"))
        except (ValueError, TypeError) as error:
            raise CorruptLayoutError(
                f"the journal has an invalid signal name ({error})", path=self.work
            ) from None

    def make_way(self, target: Path) -> None:
        """Keep a file at the path of a finished one: with the journals, or beside a file of one's own choosing."""
        if not os.path.lexists(target):
            return
        if self.is_episode:
            with map_os_errors(target):
                os.replace(target, free_name(self.work / target.name, ".before"))
        elif target.parent != self.folder:
            raise CorruptLayoutError(f"the journal names {str(target)!r} as its frame index", path=self.work)
        else:
            self.aside = set_aside(target)

    def _finish_table(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        description = Description.from_json(about, str(self.work))
        rows, unreadable = self.recording.rows(stream), self.recording.unreadable
        target, growing = self._target(name, layout.SIGNAL_SUFFIX), self.work / f"{stream}.parquet"
        candidates = [target] if self.is_episode or len(rows) else []
        if rows.missing or unreadable:
            candidates.append(growing)
        for written in candidates:
            made = _table_that_covers(written, rows, description)
            if made is not None:
                if written is growing:
                    self.make_way(target)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(growing, target)
                return made
        if rows.missing:
            self.lost += rows.missing
            unreadable.append(Unreadable(name, f"{rows.missing} records are in no journal"))
        if not len(rows):
            return None
        file = TableFile(self.work / f"{stream}.salvaged.parquet", description)
        for stamps, values in rows.blocks(description):
            file.write(stamps, values)
        self.make_way(target)
        return file.commit(target)

    def _finish_camera(self, stream: int, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        try:
            options, suffix = VideoOptions(**about["video"]), suffix_for(about["video"]["codec"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"unknown video encoding ({error})", path=self.work) from None
        camera = _CameraSalvage(
            self, stream, Description.from_json(about, str(self.work)), options,
            self._target(name, suffix), self._target(name, layout.FRAMES_SUFFIX),
        )  # fmt: skip
        return camera.finish()

    def receipt(self, signals: dict[str, Any], why: str) -> LossReceipt:
        recording = self.recording
        source = str(self.folder) if self.is_episode else str(self.work)
        if recording.files is not None:
            source = str(recording.files[0])
        main = recording.journals[0].scan if recording.journals else None
        return LossReceipt.of_records(
            source, source if self.is_episode or self.made else None, Path(source).name, signals, why,
            steps_lost=self.lost, rows_dropped=recording.rows_dropped,
            bytes_dropped=sum(part.size_bytes for part in recording.unreadable),
            damage=[part.to_json() for part in recording.unreadable],
            last_crc32c=f"{main.last_crc32c:08x}" if main is not None and len(main.records) else None,
            kept_aside=None if self.aside is None else str(self.aside),
        )  # fmt: skip


def _table_that_covers(path: Path, rows: JournaledRows, description: Description) -> dict[str, Any] | None:
    """The meta.json entry of a finished signal file that holds every record of the journal; None if it does not.

    A recorder that died while it finished leaves both; the file may have what a damaged journal has lost.
    """
    if not path.is_file():
        return None
    try:
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
        stored, stamps, values = parse_signal(data, str(path))
    except WarpError:
        return None
    if stored != description or (len(rows) and int(rows.steps[-1]) >= len(stamps)):
        return None
    at = 0
    for times, block in rows.blocks(description):
        steps = rows.steps[at : at + len(times)]
        at += len(times)
        if description.is_ragged:
            same = all(map(np.array_equal, values[steps], block))
        else:
            same = (
                bool((values[steps] == block).all())
                if block.dtype == object
                else values[steps].tobytes() == block.tobytes()
            )
        if not np.array_equal(stamps[steps], times) or not same:
            return None
    statistics = None if description.is_object else ValueStatistics(description.shape)
    if statistics is not None:
        statistics.add(values)
    return table_entry(description, ClockStatistics.of(stamps), statistics, FileSum.of(data))


def _is_finished(folder: Path) -> bool:
    """Whether every file of an episode is there and complete: its recorder died while it removed the journals."""
    try:
        meta = read_meta(folder)
        signals = meta.get("signals")
        if not isinstance(signals, dict) or "static_file" not in meta:
            return False
        read_static(folder, FileSum.from_json(meta["static_file"], str(folder)))
        return all(_is_complete(folder, check_name(name), about) for name, about in signals.items())
    except (WarpError, KeyError, TypeError, ValueError):
        return False


def _is_complete(folder: Path, name: str, about: dict[str, Any]) -> bool:
    expected = FileSum.from_json(about["file"], str(folder))
    if about.get("kind") != "image":
        path = signal_file(folder, name)
        expected.check(read_bytes(path, max_bytes=_MAX_FILE_BYTES), str(path))
        return True
    index = read_frame_index(FileRangeReader(signal_file(folder, name, layout.FRAMES_SUFFIX)), expected)
    video = signal_file(folder, name, suffix_for(about["codec"]))
    return video.stat().st_size == index.video_bytes and bool(
        intact_packets(video, marks_of_index(index)).all()
    )


class _CameraSalvage:
    """One camera on its way from journal, growing video and marks to its two files."""

    def __init__(
        self,
        salvage: _Salvage,
        stream: int,
        description: Description,
        options: VideoOptions,
        video: Path,
        frames: Path,
    ) -> None:
        recording = salvage.recording
        self._salvage = salvage
        self._video, self._frames_path = video, frames
        self._base = recording.work / str(stream)
        self._description = description
        self._shape = frame_shape(description)
        self._options = options
        self._noted = recording.videos.get(stream)
        self._raw = recording.rows(stream)
        self._dropped = [ts_ns for ts_ns, _ in recording.dropped.get(stream, ())]
        self._raw_at = {step: at for at, step in enumerate(self._raw.steps.tolist())}
        self._growing = Path(f"{self._base}{suffix_for(str(options.codec))}")
        self._faults: list[Unreadable] = []
        self._marks = self._in_order(recording.marks(stream))

    def _report(self, why: str, *, file: str | None = None, lost: int = 0, size_bytes: int = 0) -> None:
        self._salvage.lost += lost
        self._faults.append(Unreadable(file or self._growing.name, why, size_bytes))

    def finish(self) -> dict[str, Any] | None:
        """Make the files; returns the entry for meta.json, None without a frame."""
        try:
            return self._take_named() or self._finish()
        finally:
            self._salvage.recording.unreadable += self._faults

    def _finish(self) -> dict[str, Any] | None:
        packets = packets_in(self._growing)
        intact = intact_packets(self._growing, self._marks)
        self._report_damage(intact, packets)
        total = max(len(self._marks), int(self._raw.steps[-1]) + 1 if len(self._raw) else 0)
        keep = self._kept_frames(intact, total)
        if keep is None:
            numbers = sorted({*self._raw_at, *_decodable(self._marks, intact, packets)})
            if missing := total - len(numbers):
                self._report(
                    f"{missing} frames are complete neither in the journal nor in the video", lost=missing
                )
            base, marks = Path(f"{self._base}.again"), []
        else:
            numbers = sorted(number for number in self._raw_at if number >= keep)
            base, marks = self._base, [mark for mark in self._marks[:keep] if mark is not None]
        if not numbers and not keep:
            return None
        file = self._open(base, marks)
        try:
            for ts_ns, frame in self._frames(numbers):
                file.encode(frame, ts_ns)
            if not file.safe and not file.waits:
                return None
            self._salvage.make_way(self._frames_path)
            self._salvage.make_way(self._video)
            return file.commit(self._video, self._frames_path, dropped=self._dropped)
        finally:
            file.close()

    def _in_order(self, marks: list[Mark]) -> list[Mark]:
        """The marks up to the first that is not later than those before: the rest is no part of this video.

        Raw frames hold their numbers; the number of a mark is its position.
        """
        last: int | None = None
        for number, mark in enumerate(marks):
            is_early = mark is not None and last is not None and mark.ts_ns <= last
            if mark is not None and (is_early or not self._raw.fits(number, mark.ts_ns)):
                why = f"{len(marks) - number} marks of encoded frames do not follow those before them"
                self._report(why, file=f"{self._base.name}.marks")
                return marks[:number]
            last = last if mark is None else mark.ts_ns
        return marks

    def _open(self, base: Path, marks: list[layout.FrameMark]) -> VideoFile:
        """The video to continue; where no encoder takes these frames, they are stored lossless."""
        try:
            return VideoFile(base, self._shape, self._options, marks, self._description)
        except ValueError:
            if marks:
                raise
        self._options = replace(self._options, codec="ffv1", quality=None, preset=None)
        self._video = self._video.with_suffix(suffix_for("ffv1"))
        return VideoFile(base, self._shape, self._options, marks, self._description)

    def _take_named(self) -> dict[str, Any] | None:
        """The recorder may have died after it gave the video its name: finished, or on its way back to be."""
        video, frames, is_shared = self._video, self._frames_path, not self._salvage.is_episode
        if self._growing.exists() or not video.is_file() or not os.path.exists(f"{self._base}.marks"):
            return None  # without marks the encoder was never opened: an older file of the same name
        marks = self._marks
        try:
            index = read_frame_index(FileRangeReader(frames))
            indexed = marks_of_index(index)
            if self._is_finished(index, indexed) and _agree(marks, indexed):
                return camera_entry(index, frames.read_bytes()) | drop_facts(self._dropped, index.ts_ns)
            marks = marks or indexed
        except WarpError as error:
            if not marks and not is_shared:
                self._report(error.message, file=frames.name)
        if is_shared and not intact_packets(video, marks).any():
            return None  # an older file of the same name
        if not self._marks:
            write_file(f"{self._base}.marks", b"".join(pack_mark(mark or _NO_MARK) for mark in marks))
            self._marks = marks
        os.replace(video, self._growing)
        return None

    def _is_finished(self, index: FrameIndex, marks: Sequence[Mark]) -> bool:
        """Whether video and index are intact and hold every frame the journal knows."""
        known = all(
            step < len(marks) and int(self._raw.payload(at)[0]) == int(index.ts_ns[step])
            for step, at in self._raw_at.items()
        )
        is_whole = self._video.stat().st_size == index.video_bytes
        return bool(marks) and known and is_whole and bool(intact_packets(self._video, marks).all())

    def _report_damage(self, intact: NDArray[np.bool_], packets: Sequence[containers.PacketPlace]) -> None:
        marked = sum(mark is not None for mark in self._marks)
        if damaged := len(self._marks) - marked:
            why = f"{damaged} marks of encoded frames do not match their checksum"
            self._report(why, file=f"{self._base.name}.marks")
        if missing := marked - int(intact.sum()):
            self._report(f"{missing} encoded frames are missing or do not match their checksum")
        known = max([len(self._marks), *(step + 1 for step in self._raw_at)])
        if len(packets) > known:
            unknown = len(packets) - known
            self._report(f"the times of {unknown} encoded frames are lost", lost=unknown)

    def _kept_frames(self, intact: NDArray[np.bool_], total: int) -> int | None:
        """How many frames can stay as they are encoded, all others being in the journal; None if that cannot be."""
        keys = [n for n, mark in enumerate(self._marks) if mark and mark.flags & layout.KEYFRAME_FLAG]
        is_misleading = False
        # A file of marks that was cut may hold only a part of the last group.
        for keep in (len(self._marks), keys[-1] if keys else 0, 0):
            if self._faults or not intact.all():
                return None
            if any(number not in self._raw_at for number in range(keep, total)):
                break
            if not keep:
                return 0
            if self._is_fitting(is_end=keep == total):
                if self._leads_to(keep):
                    return keep
                is_misleading = True
        if is_misleading:
            self._report("a player would not find its frames")
        return None

    def _is_fitting(self, *, is_end: bool) -> bool:
        """Whether the header of the video is the encoder's, and frames encoded now may follow where some must."""
        try:
            stream = probe(str(self._growing)).stream
        except WarpError as error:
            self._report(error.message)
            return False
        if self._noted is not None and stream != self._noted:
            self._report("the header of the video is damaged")
            return False
        return is_end or stream == stream_of(self._shape, self._options)

    def _leads_to(self, keep: int) -> bool:
        """Whether a player finds exactly the first `keep` frames, at an even rate, in the part that holds them."""
        marks = [mark for mark in self._marks[:keep] if mark is not None]
        path = str(self._growing)
        try:
            with FileRangeReader(path) as whole:
                part = PartRangeReader(whole, 0, marks[-1].offset + marks[-1].size, path)
                _, places, keyframe, times = list_packets(RangeFile(part), path)
        except WarpError:
            return False
        stated = [[mark.offset, mark.size] for mark in marks]
        keys = [bool(mark.flags & layout.KEYFRAME_FLAG) for mark in marks]
        is_even = len(times) < 3 or np.ptp(np.diff(times)) <= 1
        return places.tolist() == stated and keyframe.tolist() == keys and bool(is_even)

    def _frames(self, numbers: Sequence[int]) -> Iterator[tuple[int, NDArray[Any]]]:
        """(time, image) of these frames: raw where the journal has it, else decoded."""
        decoder = None
        for number in numbers:
            if number in self._raw_at:
                ts_ns, payload = self._raw.payload(self._raw_at[number])
                if payload.nbytes != self._shape.nbytes:
                    raise CorruptLayoutError("frames of the wrong size", path=self._base.parent)
                yield ts_ns, np.frombuffer(payload, self._shape.dtype).reshape(self._shape.shape)
                continue
            decoder = decoder or self._decoder()
            mark = self._marks[number]
            assert mark is not None
            try:
                image = decoder.frame(number)
            except FormatError as error:
                self._report(f"frame {number}: {error.message}", lost=1, size_bytes=mark.size)
                continue
            yield mark.ts_ns, image

    def _decoder(self) -> FrameReader:
        stream = self._noted
        if stream is None:
            try:
                stream = probe(str(self._growing)).stream
            except WarpError:
                stream = stream_of(self._shape, self._options)
        marks = [mark or _NO_MARK for mark in self._marks]
        index = index_of_marks(marks, self._shape, stream, self._growing.stat().st_size)
        return FrameReader(FileRangeReader(self._growing), plan_of(index), stream, self._shape)


def intact_packets(video: Path, marks: Sequence[Mark]) -> NDArray[np.bool_]:
    """Which encoded frames are in the file as they were marked."""
    intact = np.zeros(len(marks), np.bool_)
    if video.is_file():
        with FileRangeReader(video) as reader:
            for number, mark in enumerate(marks):
                if mark is not None and mark.offset + mark.size <= reader.size:
                    packet = reader.read(mark.offset, mark.offset + mark.size)
                    intact[number] = crc32c(packet) == mark.packet_crc32c
    return intact


def packets_in(video: Path) -> list[containers.PacketPlace]:
    """Places of the complete encoded frames of a growing video, as far as its boxes can be followed."""
    if not video.is_file():
        return []
    find = containers.mp4_packets if video.suffix == ".mp4" else containers.mkv_packets
    with MmapRangeReader(video) as reader:
        try:
            return find(reader.read(0, reader.size), 0)[0]
        except (FormatError, IndexError):
            return []


def _agree(marks: Sequence[Mark], indexed: Sequence[Mark]) -> bool:
    """Whether an index has every frame that was marked, byte for byte; the sum of a mark itself is not in it."""
    return len(marks) <= len(indexed) and all(
        mark is None or (entry is not None and mark[:5] == entry[:5])
        for mark, entry in zip(marks, indexed, strict=False)
    )


def _decodable(
    marks: Sequence[Mark], intact: NDArray[np.bool_], packets: Sequence[containers.PacketPlace]
) -> list[int]:
    """Frames whose own packet and all those it builds on are intact; of lost marks the video has packets between."""
    numbers, is_whole = [], False
    at = {packet.offset: number for number, packet in enumerate(packets)}
    last: int | None = None
    for number, mark in enumerate(marks):
        place = None if mark is None else at.get(mark.offset)
        is_next = place is None or last is None or place == last + 1
        last = place
        if mark is not None and intact[number] and mark.flags & layout.KEYFRAME_FLAG:
            is_whole = True
        elif mark is None or not intact[number] or not is_next:
            is_whole = False
        if is_whole:
            numbers.append(number)
    return numbers


# Episodes of several processes: their parts, finished where one died, joined into one episode.


def finish_work(work: Path) -> LossReceipt:
    """Finish the recording in this folder, of one process or of several, for a caller that holds its lock."""
    return join_parts(work) if (work / SHARED_FILE).exists() else finish_recording(work)


def join_parts(work: Path) -> LossReceipt:
    """Make one episode of all parts; those of processes that died are salvaged first.

    It may be interrupted at any moment and run again: a file that was moved is not moved twice, and meta.json of the
    episode is written last.
    """
    folder = work.parent
    joined = _Joined(folder, dict(parse_json_object(read_bytes(work / SHARED_FILE, max_bytes=_MAX_BYTES))))
    for part in sorted((work / PARTS_FOLDER).iterdir()):
        inner = part / layout.RECORDING_FOLDER
        remove_leftovers(inner)
        if inner.is_dir():
            finish_recording(inner)
        if (part / layout.META_FILE).exists():
            joined.add(part)
    joined.add_signals()
    commit_together([(temp, target) for temp, target in joined.files if temp.exists()], folder)
    receipt = joined.receipt()
    for path, data in joined.documents(receipt).items():
        write_file(path, data)
    remove_folder(work)
    return receipt


class _Joined:
    """The entries of an episode, collected from its parts."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.meta = meta
        self.files: list[tuple[Path, Path]] = []
        self.signals: dict[str, Any] = {}
        self.static: dict[str, tuple[int, Any]] = {}
        self.processes: list[dict[str, Any]] = []
        self.receipts: list[LossReceipt] = []
        self._parts: list[tuple[Path, dict[str, Any]]] = []

    def add(self, part: Path) -> None:
        """Take over the static items and the receipt of a part; `add_signals` takes the signals of all."""
        meta = read_meta(part)
        marked_ns, signals = meta.get("marked_ns", {}), meta.get("signals", {})
        self._parts.append((part, signals))
        static: Mapping[str, Any] = {}
        with contextlib.suppress(WarpError):
            static = read_static(part)
        for name, value in static.items():
            at_ns = int(marked_ns.get(name, 0))
            if at_ns >= self.static.get(name, (0, None))[0]:
                self.static[name] = (at_ns, value)
        process = {**meta.get("process", {}), "clock": meta.get("clock"), "signals": list(signals)}
        for key in ("interrupted", "salvaged"):
            if key in meta:
                process[key] = meta[key]
        self.processes.append(process)
        for key in ("steps", "clock"):
            if key in meta:
                self.meta.setdefault(key, meta[key])
        self._take_receipt(part, meta, process)

    def add_signals(self) -> None:
        """Take over all signals; one that a restarted process continued is joined, or gets a number if it cannot be."""
        by_name: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        for part, signals in self._parts:
            for name, about in signals.items():
                by_name.setdefault(name, []).append((part, about))
        for name, several in by_name.items():
            if len(several) == 1 or not self._join(name, several):
                for part, about in several:
                    self._take(name, self._free_name(name), part, about)
        self.static = {name: item for name, item in self.static.items() if name not in self.signals}

    def _take(self, own_name: str, name: str, part: Path, about: dict[str, Any]) -> None:
        suffixes = [layout.SIGNAL_SUFFIX]
        if about.get("kind") == "image":
            suffixes = [about.get(layout.SUFFIX_KEY) or suffix_for(str(about["codec"])), layout.FRAMES_SUFFIX]
        files = [(signal_file(part, own_name, end), signal_file(self.folder, name, end)) for end in suffixes]
        self.files += files
        self.signals[name] = about

    def _join(self, name: str, several: list[tuple[Path, dict[str, Any]]]) -> bool:
        """Make one signal of the records of several processes; False if they do not follow one another."""
        several = sorted(several, key=lambda item: int(item[1].get("first_ts_ns", 0)))
        joined = self.folder / layout.RECORDING_FOLDER / _JOINED / str(len(self.signals))
        try:
            signal = JoinedSignal([DiskEpisode(part).signals[name] for part, _ in several])
            shutil.rmtree(joined, ignore_errors=True)
            write_directory(Episode.of({name: signal}), joined)
        except (OutOfSpaceError, PermissionError_):
            raise
        except WarpError:
            return False
        about = dict(read_meta(joined)["signals"][name])
        for key in ("dropped_frames", "duplicate_frames", "blocked_ns"):
            if any(key in item for _, item in several):
                about[key] = sum(item.get(key, 0) for _, item in several)
        if drops := [span for _, item in several for span in item.get("drops", ())]:
            about["drops"] = drops
        self._take(name, name, joined, about)
        return True

    def _free_name(self, name: str) -> str:
        """The name of a signal in the episode, with a number if another one has it."""
        free, number = name, 1
        while free in self.signals:
            number += 1
            free = f"{name}-{number}"
        return free

    def _take_receipt(self, part: Path, meta: dict[str, Any], process: dict[str, Any]) -> None:
        stated = meta.get("salvaged")
        receipt = LossReceipt.from_json(stated) if isinstance(stated, dict) else None
        if receipt is None:
            why = "closed" if "interrupted" not in meta else str(meta["interrupted"])
            receipt = LossReceipt.of_records(str(part), None, part.name, meta.get("signals", {}), why)
        else:
            why = "ended without closing" + ("" if receipt.is_complete else f"; {receipt.why}")
            receipt = replace(receipt, why=why)
        name = f"process {process.get('pid', '?')} on {process.get('host', '?')}"
        for unread in sorted(part.glob(f"{layout.RECORDING_FOLDER}{DAMAGED}*")):
            aside = free_name(self.folder / layout.RECORDING_FOLDER, DAMAGED)
            with map_os_errors(aside):
                os.rename(unread, aside)
                fsync_folder(self.folder)
            receipt = replace(receipt, kept_aside=str(aside))
        self.receipts.append(replace(receipt, process=name, source=str(self.folder), output=str(self.folder)))

    def receipt(self) -> LossReceipt:
        """The receipt of the episode, with that of each process."""
        died = [each for each in self.processes if "salvaged" in each]
        why = f"{len(died)} of {len(self.processes)} processes ended without closing" if died else "closed"
        damage = [item for each in self.receipts for item in each.damage]
        return LossReceipt.of_records(
            str(self.folder), str(self.folder), self.folder.name, self.signals, why,
            steps_lost=sum(each.steps_lost for each in self.receipts),
            rows_dropped=sum(each.rows_dropped for each in self.receipts),
            bytes_dropped=sum(each.bytes_dropped for each in self.receipts),
            damage=damage, processes=self.receipts,
        )  # fmt: skip

    def documents(self, receipt: LossReceipt) -> dict[Path, bytes]:
        """static.json and meta.json of the episode."""
        reasons = [
            f"{each.process}: {process['interrupted']}"
            for each, process in zip(self.receipts, self.processes, strict=True)
            if "interrupted" in process
        ]
        more: dict[str, Any] = {"processes": self.processes}
        if any("salvaged" in process for process in self.processes):
            more["salvaged"] = receipt.to_json()
        static = {name: value for name, (_, value) in self.static.items()}
        reason = "; ".join(reasons) or None
        return last_documents(self.folder, self.meta, static, self.signals, reason, **more)
