"""Finish the camera of an unfinished recording: what is encoded and holds, raw frames, and what must be done again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
from warpdata.bytekit.io.ranges import PartRangeReader, RangeFile
from warpdata.episodes.record.camera import VideoFile
from warpdata.episodes.salvage.unfinished import JournaledRows, UnfinishedRecording, Unreadable, marks_of
from warpdata.episodes.statistics import ClockStatistics
from warpdata.errors import CorruptLayoutError, FormatError, WarpError
from warpdata.formats.episodedir import containers, layout
from warpdata.formats.episodedir.documents import FileSum
from warpdata.formats.episodedir.frame_index import (
    FrameIndex,
    index_of_marks,
    marks_of_index,
    pack_mark,
    read_frame_index,
)
from warpdata.formats.episodedir.frame_reader import FrameReader, plan_of
from warpdata.formats.episodedir.images import FrameShape, VideoOptions, suffix_for
from warpdata.formats.episodedir.signal_file import Description
from warpdata.formats.episodedir.video import list_packets, probe, stream_of

Mark = layout.FrameMark | None
_NOTHING = layout.FrameMark(0, 0, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Targets:
    """Paths of the finished files of a camera, and whether other files may be there."""

    video: Path
    frames: Path
    is_shared: bool


class CameraSalvage:
    """One camera on its way from journal, growing video and marks to its two files."""

    def __init__(
        self, found: UnfinishedRecording, stream: int, about: dict[str, Any], targets: Targets
    ) -> None:
        self.lost = 0
        self.unreadable: list[Unreadable] = []
        self._found = found
        self._targets = targets
        self._base = found.work / str(stream)
        self._description = Description.from_json(about, str(found.work))
        self._shape = frame_shape(self._description)
        try:
            self._options = VideoOptions(**about["video"])
            self._suffix = suffix_for(about["video"]["codec"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"unknown video encoding ({error})", path=found.work) from None
        self._noted = found.videos.get(stream)
        self._raw = JournaledRows(found.journals, stream)
        self._raw_at = {step: at for at, step in enumerate(self._raw.steps.tolist())}
        self._growing = Path(f"{self._base}{self._suffix}")
        self._marks = self._in_order(marks_of(found, stream))

    def finish(self, make_way: Any) -> dict[str, Any] | None:
        """Make the files; returns the entry for meta.json, None without a frame."""
        done = self._take_what_has_its_name()
        if done is not None:
            return done
        good = good_packets(self._growing, self._marks)
        self._say_what_is_wrong(good)
        total = max(len(self._marks), int(self._raw.steps[-1]) + 1 if len(self._raw) else 0)
        keep = self._whole(good, total)
        numbers = (
            sorted(self._raw_at)
            if keep is not None
            else sorted({*self._raw_at, *_decodable(self._marks, good, packets_in(self._growing))})
        )
        if keep is None and total > len(numbers):
            self.lost += total - len(numbers)
            why = f"{total - len(numbers)} frames are whole neither in the journal nor in the video"
            self.unreadable.append(Unreadable(self._growing.name, why))
        if not numbers and not keep:
            return None
        if keep is None:
            base, marks, frames = Path(f"{self._base}.again"), [], self._frames(numbers)
        else:
            base, marks = self._base, [mark for mark in self._marks[:keep] if mark is not None]
            frames = self._frames([number for number in numbers if number >= keep])
        file = self._open(base, marks)
        try:
            for ts_ns, frame in frames:
                file.encode(frame, ts_ns)
            if not file.safe and not file.waits:
                return None
            make_way(self._targets.frames)
            make_way(self._targets.video)
            return file.commit(self._targets.video, self._targets.frames)
        finally:
            file.close()

    def _in_order(self, marks: list[Mark]) -> list[Mark]:
        """The marks up to the first that is not later than what came before: what follows is no part of this video.

        Raw frames hold their numbers; the number of a mark is its place.
        """
        last: int | None = None
        for number, mark in enumerate(marks):
            is_early = mark is not None and last is not None and mark.ts_ns <= last
            if mark is not None and (is_early or not self._raw.fits(number, mark.ts_ns)):
                why = f"{len(marks) - number} marks of encoded frames do not follow those before them"
                self.unreadable.append(Unreadable(f"{self._base.name}.marks", why))
                return marks[:number]
            last = last if mark is None else mark.ts_ns
        return marks

    def _open(self, base: Path, marks: list[layout.FrameMark]) -> VideoFile:
        """The video to go on with; where no encoder takes these frames, they are kept lossless."""
        try:
            return VideoFile(base, self._shape, self._options, marks, self._description)
        except ValueError:
            if marks:
                raise
        self._options = replace(self._options, codec="ffv1", quality=None, preset=None)
        video = self._targets.video.with_suffix(suffix_for("ffv1"))
        self._targets = replace(self._targets, video=video)
        return VideoFile(base, self._shape, self._options, marks, self._description)

    def _take_what_has_its_name(self) -> dict[str, Any] | None:
        """The recorder may have died after it gave the video its name: finished, or on its way back to be."""
        video, frames = self._targets.video, self._targets.frames
        if self._growing.exists() or not video.is_file():
            return None
        if self._found.revision > 1 and not os.path.exists(f"{self._base}.marks"):
            return None  # the encoder was never opened: an older file of the same name
        marks = self._marks
        try:
            index = read_frame_index(FileRangeReader(frames))
            indexed = marks_of_index(index)
            if self._is_finished(index, indexed) and _agree(marks, indexed):
                return finished_camera(frames, index)
            marks = marks or indexed
        except WarpError as error:
            if not marks and not self._targets.is_shared:
                self.unreadable.append(Unreadable(frames.name, error.message))
        if self._targets.is_shared and not good_packets(video, marks).any():
            return None  # an older file of the same name
        if not self._marks:
            write_file(f"{self._base}.marks", b"".join(pack_mark(mark or _NOTHING) for mark in marks))
            self._marks = marks
        os.replace(video, self._growing)
        return None

    def _is_finished(self, index: FrameIndex, marks: Sequence[Mark]) -> bool:
        """Whether video and index hold, and hold every frame the journal knows."""
        video = self._targets.video
        known = all(
            step < len(marks) and int(self._raw.payload(at)[0]) == int(index.ts_ns[step])
            for step, at in self._raw_at.items()
        )
        size = video.stat().st_size
        return bool(marks) and known and size == index.video_bytes and bool(good_packets(video, marks).all())

    def _say_what_is_wrong(self, good: NDArray[np.bool_]) -> None:
        name, marked = self._growing.name, sum(mark is not None for mark in self._marks)
        if marked < len(self._marks):
            why = f"{len(self._marks) - marked} marks of encoded frames do not match their checksum"
            self.unreadable.append(Unreadable(f"{self._base.name}.marks", why))
        if good.sum() < marked:
            why = f"{marked - int(good.sum())} encoded frames are missing or do not match their checksum"
            self.unreadable.append(Unreadable(name, why))
        known = max([len(self._marks), *(step + 1 for step in self._raw_at)])
        unknown = len(packets_in(self._growing)) - known
        if unknown > 0:
            self.lost += unknown
            self.unreadable.append(Unreadable(name, f"the times of {unknown} encoded frames are lost"))

    def _whole(self, good: NDArray[np.bool_], total: int) -> int | None:
        """How many frames can stay as they are encoded, all others being in the journal; None if that cannot be."""
        misled = False
        for keep in (len(self._marks), _last_group(self._marks), 0):
            if self.unreadable or not good.all():
                return None
            if any(number not in self._raw_at for number in range(keep, total)):
                break
            if not keep:
                return 0
            if self._is_fitting(is_end=keep == total):
                if self._leads_to(keep):
                    return keep
                misled = True
        if misled:
            self.unreadable.append(Unreadable(self._growing.name, "a player would not find its frames"))
        return None

    def _is_fitting(self, *, is_end: bool) -> bool:
        """Whether the header of the video is the encoder's, and frames encoded now may follow where some must."""
        try:
            found = probe(str(self._growing)).stream
        except WarpError as error:
            self.unreadable.append(Unreadable(self._growing.name, error.message))
            return False
        if self._noted is not None and found != self._noted:
            self.unreadable.append(Unreadable(self._growing.name, "the header of the video is damaged"))
            return False
        return is_end or found == stream_of(self._shape, self._options)

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
        encoded = None
        for number in numbers:
            if number in self._raw_at:
                ts_ns, payload = self._raw.payload(self._raw_at[number])
                if payload.nbytes != self._shape.nbytes:
                    raise CorruptLayoutError("frames of the wrong size", path=self._found.work)
                yield ts_ns, np.frombuffer(payload, self._shape.dtype).reshape(self._shape.shape)
                continue
            encoded = encoded or self._decoder()
            mark = self._marks[number]
            assert mark is not None
            try:
                image = encoded.frame(number)
            except FormatError as error:
                self.lost += 1
                self.unreadable.append(
                    Unreadable(self._growing.name, f"frame {number}: {error.message}", mark.size)
                )
                continue
            yield mark.ts_ns, image

    def _decoder(self) -> FrameReader:
        stream = self._noted
        if stream is None:
            try:
                stream = probe(str(self._growing)).stream
            except WarpError:
                stream = stream_of(self._shape, self._options)
        marks = [mark or _NOTHING for mark in self._marks]
        index = index_of_marks(marks, self._shape, stream, self._growing.stat().st_size)
        return FrameReader(FileRangeReader(self._growing), plan_of(index), stream, self._shape)


def frame_shape(description: Description) -> FrameShape:
    """The shape of a camera from a description that a file holds."""
    try:
        return description.frame_shape()
    except ValueError:
        raise CorruptLayoutError(f"no image: {description.dtype} {description.shape}") from None


def good_packets(video: Path, marks: Sequence[Mark]) -> NDArray[np.bool_]:
    """Which encoded frames are in the file as they were marked."""
    good = np.zeros(len(marks), np.bool_)
    if video.is_file():
        with FileRangeReader(video) as reader:
            for number, mark in enumerate(marks):
                if mark is not None and mark.offset + mark.size <= reader.size:
                    packet = reader.read(mark.offset, mark.offset + mark.size)
                    good[number] = crc32c(packet) == mark.packet_crc32c
    return good


def packets_in(video: Path) -> list[containers.PacketPlace]:
    """Places of the whole encoded frames of a growing video, as far as its boxes can be followed."""
    if not video.is_file():
        return []
    find = containers.mp4_packets if video.suffix == ".mp4" else containers.mkv_packets
    with MmapRangeReader(video) as reader:
        try:
            return find(reader.read(0, reader.size), 0)[0]
        except (FormatError, IndexError):
            return []


def finished_camera(frames: Path, index: FrameIndex) -> dict[str, Any]:
    """The meta.json entry of a camera whose files were complete already."""
    clock = ClockStatistics()
    clock.add(index.ts_ns)
    total = FileSum.of(frames.read_bytes())
    return {
        **index.description.to_json(), **clock.to_json(), "video_bytes": index.video_bytes,
        "codec": index.stream.codec if index.stream else None,
        "file": {"bytes": total.size_bytes, "crc32c": f"{total.crc32c:08x}"},
    }  # fmt: skip


def _agree(marks: Sequence[Mark], indexed: Sequence[Mark]) -> bool:
    """Whether an index has every frame that was marked, byte for byte; the sum of a mark itself is not in it."""
    return len(marks) <= len(indexed) and all(
        mark is None or (each is not None and mark[:5] == each[:5])
        for mark, each in zip(marks, indexed, strict=False)
    )


def _decodable(
    marks: Sequence[Mark], good: NDArray[np.bool_], packets: Sequence[containers.PacketPlace]
) -> list[int]:
    """Frames whose own packet and all those it builds on hold; of lost marks the video has packets between."""
    found, is_whole = [], False
    at = {packet.offset: number for number, packet in enumerate(packets)}
    last: int | None = None
    for number, mark in enumerate(marks):
        place = None if mark is None else at.get(mark.offset)
        is_next = place is None or last is None or place == last + 1
        last = place
        if mark is not None and good[number] and mark.flags & layout.KEYFRAME_FLAG:
            is_whole = True
        elif mark is None or not good[number] or not is_next:
            is_whole = False
        if is_whole:
            found.append(number)
    return found


def _last_group(marks: Sequence[Mark]) -> int:
    """Where the last group of frames begins: a mark file that was cut may hold only a part of it."""
    keys = [number for number, mark in enumerate(marks) if mark and mark.flags & layout.KEYFRAME_FLAG]
    return keys[-1] if keys else 0
