"""Encoded video in messages: packets as streams have them (start codes) and as MP4 has them (lengths), and back.

No picture is decoded. What a decoder must know is taken from the first keyframe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import BytesRangeReader, JoinedRangeReader, RangeReader, read_coalesced
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.images import Stream
from warpdata.formats.episodedir.mp4 import sample_entry, wrapped

CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "av1": "av1"}
"""What messages call a codec -> what decoders do."""
_START = b"\0\0\1"
_RATE = Fraction(30)
_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_MAX_UNITS = 1 << 16
_MAX_SETS = 31
"""Of one kind: more cannot be counted in MP4."""

_BAD_CONFIG = "what a video says of its decoder is damaged"


def units_of(data: bytes) -> tuple[list[bytes], bytes] | None:
    """The units of a packet with start codes, and how long each code is; None where it is no such packet."""
    found: list[bytes] = []
    codes = bytearray()
    at = data.find(_START)
    if at < 0 or data[:at].strip(b"\0"):
        return None
    begin = 0
    while at >= 0:
        zeros = at - begin
        if zeros + 3 > 255 or len(found) > _MAX_UNITS:
            return None
        codes.append(zeros + 3)
        start = at + 3
        at = data.find(_START, start)
        end = len(data) if at < 0 else at
        unit = data[start:end].rstrip(b"\0")
        begin = start + len(unit)
        found.append(unit)
    return found, bytes(codes)


def with_lengths(data: bytes, codec: str) -> tuple[bytes, bytes] | None:
    """A packet as MP4 has it, and what it takes to undo that; None where it cannot be undone."""
    if codec == "av1":
        return data, b""
    split = units_of(data)
    if split is None:
        return None
    units, codes = split
    packet = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)
    return (packet, codes) if with_codes(packet, codes) == data else None


def with_codes(packet: bytes, codes: bytes) -> bytes:
    """A packet of MP4 with start codes of these lengths; without any as it is."""
    if not codes:
        return packet
    units = lengths_to_units(packet, 4)
    if len(units) != len(codes):
        raise CorruptLayoutError("a packet of a video is no longer as it was")
    return b"".join(bytes(size - 1) + b"\1" + unit for size, unit in zip(codes, units, strict=True))


def lengths_to_units(packet: bytes, length_bytes: int) -> list[bytes]:
    """The units of a packet with lengths."""
    found, at = [], 0
    while at + length_bytes <= len(packet):
        size = int.from_bytes(packet[at : at + length_bytes], "big")
        at += length_bytes
        if size > len(packet) - at:
            break
        found.append(packet[at : at + size])
        at += size
    if at != len(packet):
        raise CorruptLayoutError("a packet of a video is damaged")
    return found


def _kind(unit: bytes, codec: str) -> int:
    return (unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63) if unit else -1


def is_key(data: bytes, codec: str) -> bool:
    """Whether decoding can begin at a packet with start codes."""
    if codec == "av1":
        return any(kind == 1 for kind, _ in _obus(data))
    split = units_of(data)
    kinds = {_kind(unit, codec) for unit in split[0]} if split else set()
    return 5 in kinds if codec == "h264" else any(16 <= kind <= 21 for kind in kinds)


def extradata_of(data: bytes, codec: str) -> bytes | None:
    """What MP4 says of the decoder, from the first keyframe; None where it has no parameter sets."""
    if codec == "av1":
        header = next((unit for kind, unit in _obus(data) if kind == 1), None)
        if header is None:
            return None
        profile = header[2] >> 5 if len(header) > 2 else 0
        return bytes([0x81, profile << 5 | 8, 0x0C, 0]) + header
    split = units_of(data)
    units = split[0] if split else []
    sets = [[unit for unit in units if _kind(unit, codec) == kind] for kind in _SETS[codec]]
    if not all(sets) or any(not 4 <= len(unit) < 1 << 16 for listed in sets for unit in listed):
        return None
    if any(len(listed) > _MAX_SETS for listed in sets):
        return None
    if codec == "h264":
        (first, *_), pictures = sets
        head = bytes([1, first[1], first[2], first[3], 0xFF, 0xE0 | len(sets[0])])
        return head + _listed(sets[0]) + bytes([len(pictures)]) + _listed(pictures)
    plain = sets[1][0].replace(b"\0\0\3", b"\0\0")
    if len(plain) < 15:
        return None
    head = b"\1" + plain[3:15] + b"\xf0\0\xfc\xfd\xf8\xf8\0\0\x0f" + bytes([len(sets)])
    return head + b"".join(
        bytes([0x80 | kind]) + len(listed).to_bytes(2, "big") + _listed(listed)
        for kind, listed in zip(_SETS[codec], sets, strict=True)
    )


def _listed(units: Sequence[bytes]) -> bytes:
    return b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)


def _obus(data: bytes) -> list[tuple[int, bytes]]:
    """The units of an AV1 packet, by kind; only those that say how long they are."""
    found, at = [], 0
    while at < len(data):
        head, begin = data[at], at
        at += 2 if head & 4 else 1
        size = shift = 0
        if not head & 2:
            size = len(data) - at
        else:
            while at < len(data):
                byte = data[at]
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128 or shift > 35:
                    break
        if size > len(data) - at:
            break
        found.append((head >> 3 & 15, data[begin : at + size]))
        at += size
    return found


@dataclass(slots=True)
class TopicVideo:
    """The packets of a topic as one video: what is known of each without keeping it."""

    codec: str
    extradata: bytes = b""
    sizes: list[int] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)

    def add(self, data: bytes) -> bool:
        """Look at the next packet; False where the topic is no video that can be copied."""
        made = with_lengths(data, self.codec)
        if made is None or not data:
            return False
        key = is_key(data, self.codec)
        if not self.sizes:
            found = extradata_of(data, self.codec) if key else None
            if found is None:
                return False
            self.extradata = found
        self.sizes.append(len(made[0]))
        self.keys.append(key)
        return True

    def reader(self, packets: Any, path: str, width: int, height: int) -> RangeReader:
        """The packets as an MP4 file that is made while it is read; `packets(low, high)` gives them."""
        stream = Stream(self.codec, "yuv420p", width, height, self.extradata)
        size = np.array(self.sizes, np.int64)
        shows = np.arange(len(size))
        around = wrapped(
            sample_entry(stream, width, height), size, shows, np.array(self.keys, np.bool_), _RATE
        )
        pieces: list[RangeReader] = [
            BytesRangeReader(around.head, path), _Packets(packets, size, path), BytesRangeReader(around.tail, path),
        ]  # fmt: skip
        return JoinedRangeReader(pieces, path)


class _Packets:
    """Packets one behind the other, fetched when their bytes are asked for."""

    def __init__(self, packets: Any, size: NDArray[np.int64], path: str) -> None:
        self.name = path
        self._packets = packets
        self._ends = np.cumsum(size)
        self.size = int(self._ends[-1]) if len(size) else 0
        self._held: tuple[int, int, bytes] = (0, 0, b"")

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        low, high, data = self._held
        if not (low <= start and end <= high):
            first = int(self._ends.searchsorted(start, "right"))
            last = int(self._ends.searchsorted(end, "left")) + 1 if end > start else first
            last = max(last, min(first + 8, len(self._ends)))
            low = int(self._ends[first - 1]) if first else 0
            data = b"".join(self._packets(first, last))
            high = low + len(data)
            self._held = (low, high, data)
        return memoryview(data)[start - low : end - low]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return read_coalesced(self, ranges)

    def close(self) -> None:
        """Nothing is held open."""


def stream_packet(packet: bytes, codec: str, config: bytes, *, is_keyframe: bool) -> bytes:
    """A packet of MP4 as streams have it: start codes, and the parameter sets before keyframes."""
    if codec == "av1":
        return packet
    at = 4 if codec == "h264" else 21
    if len(config) <= at:
        raise CorruptLayoutError(_BAD_CONFIG)
    units = lengths_to_units(packet, (config[at] & 3) + 1)
    kinds = {_kind(unit, codec) for unit in units}
    if is_keyframe and not set(_SETS[codec]) <= kinds:
        units = [*parameter_sets(config, codec), *units]
    return b"".join(b"\0" + _START + unit for unit in units)


def parameter_sets(config: bytes, codec: str) -> list[bytes]:
    """The units that MP4 keeps beside the packets."""
    found: list[bytes] = []
    at = 5 if codec == "h264" else 22
    try:
        groups = 2 if codec == "h264" else config[at]
        at += codec != "h264"
        for group in range(groups):
            if codec == "h264":
                count, at = config[at] & (31 if not group else 255), at + 1
            else:
                count, at = int.from_bytes(config[at + 1 : at + 3], "big"), at + 3
            for _ in range(count):
                size = int.from_bytes(config[at : at + 2], "big")
                found.append(config[at + 2 : at + 2 + size])
                at += 2 + size
    except IndexError:
        raise CorruptLayoutError(_BAD_CONFIG) from None
    if at > len(config):
        raise CorruptLayoutError(_BAD_CONFIG)
    return found


def decoder_config(entry: bytes, codec: str) -> bytes:
    """What an MP4 sample entry says of the decoder; nothing where it is not there."""
    name = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}[codec]
    at = entry.find(name, 86)
    size = int.from_bytes(entry[at - 4 : at], "big") if at >= 4 else 0
    return entry[at + 4 : at - 4 + size] if size > 8 else b""
