"""Video packets of messages (units after start codes) as packets of MP4 (units after lengths), and back.

No picture is decoded. The decoder configuration of MP4 is built from the first keyframe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, RangeReader, read_coalesced
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.containers import sample_entry, wrapped
from warpdata.formats.episodedir.images import Stream

CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "av1": "av1"}
"""Codec name in messages -> name of the decoder."""
_START_CODE = b"\0\0\1"
_RATE = Fraction(30)
_PARAMETER_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_MAX_UNITS = 1 << 16
_MAX_SETS = 31
"""MP4 cannot count more parameter sets of one kind."""

ReadPackets = Callable[[int, int], Sequence[bytes]]


def split_units(data: bytes) -> tuple[list[bytes], bytes] | None:
    """Units of a packet with start codes and the size of each code; None for other data."""
    at = data.find(_START_CODE)
    if at < 0 or data[:at].strip(b"\0"):
        return None
    units: list[bytes] = []
    codes = bytearray()
    end_of_unit = 0
    while at >= 0:
        code_bytes = at - end_of_unit + 3
        if code_bytes > 255 or len(units) > _MAX_UNITS:
            return None
        start, at = at + 3, data.find(_START_CODE, at + 3)
        unit = data[start : len(data) if at < 0 else at].rstrip(b"\0")
        end_of_unit = start + len(unit)
        units.append(unit)
        codes.append(code_bytes)
    return units, bytes(codes)


def split_packet(data: bytes, codec: str) -> tuple[bytes, bytes] | None:
    """A packet of MP4 and the sizes of the start codes it had; None if that cannot be undone."""
    if codec == "av1":
        return data, b""
    split = split_units(data)
    if split is None:
        return None
    units, codes = split
    packet = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)
    return (packet, codes) if add_start_codes(packet, codes) == data else None


def add_start_codes(packet: bytes, codes: bytes) -> bytes:
    """A packet of MP4 with start codes of these sizes; unchanged without any."""
    if not codes:
        return packet
    units = _split_lengths(packet, 4)
    if len(units) != len(codes):
        raise CorruptLayoutError(f"video packet was changed: expected {len(codes)} units, got {len(units)}")
    return b"".join(bytes(size - 1) + b"\1" + unit for size, unit in zip(codes, units, strict=True))


def _split_lengths(packet: bytes, length_bytes: int) -> list[bytes]:
    units, at = [], 0
    while at + length_bytes <= len(packet):
        start = at + length_bytes
        at = start + int.from_bytes(packet[at:start], "big")
        units.append(packet[start:at])
    if at != len(packet):
        raise CorruptLayoutError("corrupted video packet: its units do not fill it")
    return units


def _unit_type(unit: bytes, codec: str) -> int:
    if not unit:
        return -1
    return unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63


def is_keyframe(data: bytes, codec: str) -> bool:
    """Whether decoding can start at a packet with start codes."""
    if codec == "av1":
        return _av1_sequence_header(data) is not None
    split = split_units(data)
    types = {_unit_type(unit, codec) for unit in split[0]} if split else set()
    return 5 in types if codec == "h264" else any(16 <= kind <= 21 for kind in types)


def decoder_config(keyframe: bytes, codec: str) -> bytes | None:
    """Decoder configuration of MP4 from a keyframe; None without usable parameter sets."""
    if codec == "av1":
        header = _av1_sequence_header(keyframe)
        if header is None:
            return None
        profile = header[2] >> 5 if len(header) > 2 else 0
        return bytes([0x81, profile << 5 | 8, 0x0C, 0]) + header
    split = split_units(keyframe)
    units = split[0] if split else []
    sets = [[unit for unit in units if _unit_type(unit, codec) == kind] for kind in _PARAMETER_SETS[codec]]
    if not all(
        0 < len(same) <= _MAX_SETS and all(4 <= len(unit) < 1 << 16 for unit in same) for same in sets
    ):
        return None
    packed = [b"".join(len(unit).to_bytes(2, "big") + unit for unit in same) for same in sets]
    if codec == "h264":
        head = b"\1" + sets[0][0][1:4] + bytes([0xFF, 0xE0 | len(sets[0])])
        return head + packed[0] + bytes([len(sets[1])]) + packed[1]
    profile_and_level = sets[1][0].replace(b"\0\0\3", b"\0\0")[3:15]
    if len(profile_and_level) < 12:
        return None
    head = b"\1" + profile_and_level + b"\xf0\0\xfc\xfd\xf8\xf8\0\0\x0f" + bytes([len(sets)])
    return head + b"".join(
        bytes([0x80 | kind]) + len(same).to_bytes(2, "big") + data
        for kind, same, data in zip(_PARAMETER_SETS[codec], sets, packed, strict=True)
    )


def _av1_sequence_header(data: bytes) -> bytes | None:
    """The first sequence header of an AV1 packet, which is there at every keyframe."""
    at = 0
    while at < len(data):
        head, begin = data[at], at
        at += 2 if head & 4 else 1
        size = len(data) - at if not head & 2 else 0
        shift = 0
        while head & 2 and at < len(data) and shift <= 35:
            byte = data[at]
            size |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        if size > len(data) - at:
            return None
        at += size
        if head >> 3 & 15 == 1:
            return data[begin:at]
    return None


@dataclass(slots=True)
class TopicVideo:
    """The packets of a topic as one video: sizes and keyframes, without the packets."""

    codec: str
    config: bytes = b""
    sizes: list[int] = field(default_factory=list)
    keyframes: list[bool] = field(default_factory=list)

    def add(self, data: bytes) -> bool:
        """Add the next packet; False if the topic is no video that can be copied."""
        packet = split_packet(data, self.codec)
        if packet is None or not data:
            return False
        is_key = is_keyframe(data, self.codec)
        if not self.sizes:
            config = decoder_config(data, self.codec) if is_key else None
            if config is None:
                return False
            self.config = config
        self.sizes.append(len(packet[0]))
        self.keyframes.append(is_key)
        return True

    def open(self, read_packets: ReadPackets, path: str, width: int, height: int) -> RangeReader:
        """An MP4 file around the packets, which are read when their bytes are."""
        stream = Stream(self.codec, "yuv420p", width, height, self.config)
        sizes, shown = np.array(self.sizes, np.int64), np.arange(len(self.sizes))
        entry = sample_entry(stream, width, height)
        around = wrapped(entry, sizes, shown, np.array(self.keyframes, np.bool_), _RATE)
        parts: list[RangeReader] = [
            BytesRangeReader(around.head, path),
            _PacketReader(read_packets, sizes, path),
            BytesRangeReader(around.tail, path),
        ]
        return JoinedRangeReader(parts, path)


class _PacketReader:
    """Consecutive packets as a range reader."""

    def __init__(self, read_packets: ReadPackets, sizes: NDArray[np.int64], path: str) -> None:
        self.name = path
        self._read_packets = read_packets
        self._ends = np.cumsum(sizes)
        self.size = int(self._ends[-1]) if len(sizes) else 0
        self._buffer: tuple[int, bytes] = (0, b"")

    def read(self, start: int, end: int) -> memoryview:
        """Bytes [start, end)."""
        begin, data = self._buffer
        if start < begin or end > begin + len(data):
            first = int(self._ends.searchsorted(start, "right"))
            last = max(int(self._ends.searchsorted(end, "left")) + 1, min(first + 8, len(self._ends)))
            begin = int(self._ends[first - 1]) if first else 0
            data = b"".join(self._read_packets(first, last))
            self._buffer = (begin, data)
        return memoryview(data)[start - begin : end - begin]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Bytes of each range."""
        return read_coalesced(self, ranges)

    def close(self) -> None:
        """Nothing is open."""


def to_stream_packet(packet: bytes, codec: str, config: bytes, *, is_keyframe: bool) -> bytes:
    """A packet of MP4 with start codes, keyframes with their parameter sets."""
    if codec == "av1":
        return packet
    at = 4 if codec == "h264" else 21
    if len(config) <= at:
        raise CorruptLayoutError("corrupted decoder configuration of a video")
    units = _split_lengths(packet, (config[at] & 3) + 1)
    if is_keyframe and not {_unit_type(unit, codec) for unit in units}.issuperset(_PARAMETER_SETS[codec]):
        units = [*parameter_sets(config, codec), *units]
    return b"".join(b"\0" + _START_CODE + unit for unit in units)


def parameter_sets(config: bytes, codec: str) -> list[bytes]:
    """Parameter sets of a decoder configuration of MP4."""
    units: list[bytes] = []
    at = 5 if codec == "h264" else 23
    try:
        for group in range(2 if codec == "h264" else config[22]):
            if codec == "h264":
                count, at = config[at] & (255 if group else 31), at + 1
            else:
                count, at = int.from_bytes(config[at + 1 : at + 3], "big"), at + 3
            for _ in range(count):
                size = int.from_bytes(config[at : at + 2], "big")
                units.append(config[at + 2 : at + 2 + size])
                at += 2 + size
    except IndexError:
        at = len(config) + 1
    if at > len(config):
        raise CorruptLayoutError("corrupted decoder configuration of a video")
    return units


def stored_config(entry: bytes, codec: str) -> bytes:
    """Decoder configuration in an MP4 sample entry; empty if there is none."""
    name = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}[codec]
    at = entry.find(name, 86)
    size = int.from_bytes(entry[at - 4 : at], "big") if at >= 4 else 0
    return entry[at + 4 : at - 4 + size] if size > 8 else b""
