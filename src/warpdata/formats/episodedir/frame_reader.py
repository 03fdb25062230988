"""Decoded frames by number, from any bytes: planned by keyframe, no group decoded twice per batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import RangeFile, RangeReader, retry_damaged
from warpdata.errors import ChecksumError, CorruptLayoutError
from warpdata.formats.episodedir.frame_index import FrameIndex, image_description
from warpdata.formats.episodedir.images import STILL_CODECS, FrameShape, Stream
from warpdata.formats.episodedir.pictures import PictureDecoder
from warpdata.formats.episodedir.scaling import ImageView
from warpdata.formats.episodedir.video import VideoDecoder, list_packets

_AHEAD_BYTES = 8 << 20
"""Encoded frames fetched at once for a batch."""
_CHECK_BYTES = 2 << 20
_GROUP_PACKETS = 64
"""Packets of a group that are given together, where the requested frame does not need more."""
_DECODER_TABLES, _REFERENCES = 1 << 20, 16


@dataclass(frozen=True, slots=True)
class PacketPlan:
    """Where the packets are, in decoding order, and which of them a frame needs."""

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    frame: NDArray[np.int64]
    """Packet -> number of the frame it shows."""
    packet: NDArray[np.int64]
    """Frame -> its packet."""
    start: NDArray[np.int64]
    """Frame -> the keyframe packet to begin decoding at."""
    crc32c: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return len(self.offset)


def plan_of(index: FrameIndex) -> PacketPlan:
    """The plan of a video with a complete index; frames are decoded in the order of the file."""
    assert index.offset is not None
    assert index.size is not None
    assert index.keyframe is not None
    frame = np.argsort(index.offset, kind="stable")
    sums = None if index.crc32c is None else index.crc32c[frame]
    return _planned(index.offset[frame], index.size[frame], frame, index.keyframe[frame], sums)


def plan_foreign(reader: RangeReader, dtype: str = "uint8") -> tuple[PacketPlan, Stream, FrameShape]:
    """The plan of a video of another writer, found by walking through its packets once."""
    path = reader.name
    probe, places, keyframe, times = list_packets(RangeFile(reader), path)
    keys = np.flatnonzero(keyframe)
    if len(places) and (not len(keys) or keys[0] != 0):
        raise CorruptLayoutError("the video does not begin with a keyframe", path=path)
    frame = np.empty(len(places), np.int64)
    frame[np.argsort(times, kind="stable")] = np.arange(len(places))
    plan = _planned(places[:, 0], places[:, 1], frame, keyframe, None)
    return plan, probe.stream, FrameShape(probe.height, probe.width, 3, dtype)


def completed(index: FrameIndex, reader: RangeReader) -> FrameIndex:
    """The index of another writer with everything ours has: place and checksum of each frame."""
    plan, stream, shape = plan_foreign(reader)
    if len(plan) != len(index.ts_ns):
        raise CorruptLayoutError(
            f"the video has {len(plan)} frames, its index {len(index.ts_ns)}", path=reader.name
        )
    sums = np.empty(len(plan), np.uint32)
    for packet, (offset, size) in enumerate(zip(plan.offset.tolist(), plan.size.tolist(), strict=True)):
        sums[packet] = crc32c(reader.read(offset, offset + size))
    at = plan.packet
    columns = (plan.start == at, plan.offset[at], plan.size[at], sums[at])
    return FrameIndex(image_description(shape), index.ts_ns, shape, stream, *columns, reader.size)


def _planned(
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    frame: NDArray[np.int64],
    keyframe: NDArray[np.bool_],
    sums: NDArray[np.uint32] | None,
) -> PacketPlan:
    """A plan from packets in decoding order, and the number of the frame each one shows."""
    count = len(offset)
    packet = np.empty(count, np.int64)
    packet[frame] = np.arange(count)
    before = np.maximum.accumulate(np.where(keyframe, np.arange(count), 0))
    # A frame shown before the keyframe that precedes it in the file belongs to the group before.
    late = frame[before] > frame
    before = np.where(late, before[np.maximum(before - 1, 0)], before)
    return PacketPlan(offset, size, frame, packet, before[packet], sums)


def _decoder_of(stream: Stream, shape: FrameShape) -> VideoDecoder | PictureDecoder:
    """The decoder of such frames; pictures look the same in a video as one by one."""
    if stream.codec in STILL_CODECS:
        return PictureDecoder(stream.codec, shape)
    return VideoDecoder(stream, shape)


class FrameReader:
    """One decoder over one video; any number of threads may call it, one at a time decodes."""

    def __init__(
        self,
        reader: RangeReader,
        plan: PacketPlan,
        stream: Stream,
        shape: FrameShape,
    ) -> None:
        self._reader = reader
        self._plan = plan
        self._shape = shape
        self.stream = stream
        self._decoder = _decoder_of(stream, shape)
        self._lock = threading.Lock()
        self._at = -1
        self._shown = -1
        self._ahead: dict[int, bytes] = {}
        self._use: Callable[[int, Any], None]
        self._use_s = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one frame."""
        return self._shape.shape

    @property
    def decoder_bytes(self) -> int:
        """About what the decoder itself takes: its tables, and the pictures it refers back to."""
        return _DECODER_TABLES + _REFERENCES * self._shape.height * self._shape.width * 3 // 2

    def close(self) -> None:
        """Close decoder and file, once no thread decodes; nothing can be read after this."""
        with self._lock:
            self._decoder.close()
            self._reader.close()

    def check(self) -> None:
        """Raise unless every packet has its checksum, where checksums are known; nothing is decoded."""
        if self._plan.crc32c is not None:
            groups = np.cumsum(self._plan.size) // _CHECK_BYTES
            for numbers in np.split(np.arange(len(self._plan)), np.flatnonzero(np.diff(groups)) + 1):
                self._read(numbers.tolist())

    def frame(self, number: int) -> NDArray[np.generic]:
        """One frame."""
        out = np.empty(self._shape.shape, self._shape.dtype)
        self.frames_into(np.array([number], np.int64), [out])
        return out

    def frames(self, numbers: NDArray[np.int64]) -> NDArray[np.generic]:
        """Many frames in any order as one batch."""
        out = np.empty((len(numbers), *self._shape.shape), self._shape.dtype)
        self.frames_into(numbers, list(out))
        return out

    def frames_into(self, numbers: NDArray[np.int64], out: Sequence[NDArray[np.generic]]) -> None:
        """Many frames in any order, each into its own array."""
        self.visit(numbers, lambda place, picture: self.pixels(picture, out[place]))

    def visit(self, numbers: NDArray[np.int64], use: Callable[[int, Any], None]) -> float:
        """Call `use(place, picture)` for the picture of each number; returns the seconds spent in these calls.

        `pixels` turns a picture into numbers. Each group of pictures is decoded once.
        """
        wanted: dict[int, list[int]] = {}
        for place, number in enumerate(numbers.tolist()):
            wanted.setdefault(number, []).append(place)
        with self._lock:
            self._use, self._use_s = use, 0.0
            self._decode(wanted)
            return self._use_s

    def pixels(self, picture: Any, out: NDArray[np.generic], view: ImageView | None = None) -> None:
        """Write the pixels of a picture, or a view of them, into an array."""
        self._decoder.pixels(picture, out, view)

    def bring(self, numbers: NDArray[np.int64]) -> None:
        """Read, and check, what decoding these frames takes, so that a cache has it; nothing is decoded."""
        plan = self._plan
        packets = {
            packet
            for number in numbers.tolist()
            for packet in range(int(plan.start[number]), int(plan.packet[number]) + 1)
        }
        self._read(sorted(packets))

    def group(self, number: int, *, only_needed: bool = False) -> tuple[list[int], list[bytes]]:
        """The encoded packets that show this frame and those of its group, from its keyframe on, in decoding order.

        Returns the frame that each one shows, too. Of a long group, packets far behind the frame are left out; with
        `only_needed` all packets behind it.
        """
        plan = self._plan
        start, stop = int(plan.start[number]), int(plan.packet[number]) + 1
        limit = stop if only_needed else min(len(plan), max(stop, start + _GROUP_PACKETS))
        while stop < limit and plan.start[plan.frame[stop]] == start:
            stop += 1
        with self._lock:
            return plan.frame[start:stop].tolist(), self._read(list(range(start, stop)))

    def _decode(self, wanted: dict[int, list[int]]) -> None:
        """Decode exactly the groups of frames that hold `wanted`, each once, and fill the arrays."""
        numbers = sorted(wanted)
        try:
            while numbers:
                count = self._read_ahead(numbers)
                for number in numbers[:count]:
                    if number in wanted:
                        self._go_to(number)
                        self._decode_until(number, wanted)
                numbers = numbers[count:]
        except CorruptLayoutError as error:
            self._at = -1
            raise error if error.path else CorruptLayoutError(error.message, path=self._reader.name) from None
        except BaseException:
            self._at = -1  # the decoder's state is unknown now
            raise
        finally:
            self._ahead = {}

    def _read_ahead(self, numbers: list[int]) -> int:
        """Fetch what decoding the first of these frames takes, at once; returns how many that are."""
        plan, at, shown = self._plan, self._at, self._shown
        packets: list[int] = []
        size = count = 0
        for number in numbers:
            start, stop = int(plan.start[number]), int(plan.packet[number]) + 1
            at = start if at < start or number <= shown else at
            more = int(plan.size[at:stop].sum())
            if count and size + more > _AHEAD_BYTES:
                break
            packets += range(at, stop)
            at, shown, size, count = max(at, stop), number, size + more, count + 1
        self._ahead = dict(zip(packets, self._read(packets), strict=True))
        return count

    def _go_to(self, number: int) -> None:
        start = int(self._plan.start[number])
        if self._at < start or number <= self._shown:
            if self._at >= 0 or self._shown >= 0:
                self._decoder.reset()
            self._at, self._shown = start, -1

    def _decode_until(self, number: int, wanted: dict[int, list[int]]) -> None:
        while number in wanted:
            stop = max(self._at, int(self._plan.packet[number])) + 1
            if self._at >= len(self._plan):
                self._take(self._decoder.drain(), wanted)
                self._at = self._shown = -1
                if number in wanted:
                    raise CorruptLayoutError(
                        f"frame {number} is missing in the video", path=self._reader.name
                    )
                return
            for packet in self._packets(self._at, min(stop, len(self._plan))):
                shown = int(self._plan.frame[self._at])
                self._at += 1
                self._take(self._decoder.feed(shown, packet), wanted)

    def _take(self, pictures: object, wanted: dict[int, list[int]]) -> None:
        for number, picture in pictures:  # type: ignore[attr-defined]
            self._shown = max(self._shown, number)
            places = wanted.pop(number, ())
            began = perf_counter()
            for place in places:
                self._use(place, picture)
            self._use_s += perf_counter() - began

    def _packets(self, start: int, stop: int) -> Iterator[bytes]:
        for number in range(start, stop):
            ahead = self._ahead.pop(number, None)
            yield self._read([number])[0] if ahead is None else ahead

    def _read(self, numbers: list[int]) -> list[bytes]:
        plan = self._plan
        ranges = [(int(plan.offset[n]), int(plan.offset[n] + plan.size[n])) for n in numbers]

        def read() -> list[bytes]:
            packets = [bytes(view) for view in self._reader.read_many(ranges)]
            for number, packet in zip(numbers, packets, strict=True):
                if plan.crc32c is not None and crc32c(packet) != plan.crc32c[number]:
                    raise ChecksumError(f"checksum mismatch in frame {number}", path=self._reader.name)
            return packets

        return retry_damaged(self._reader, read, ranges)
