"""Where the encoded frames lie in a video that is being written: fragments of MP4, clusters of Matroska."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir import layout

Bytes = bytes | memoryview


class PacketPlace(NamedTuple):
    """Bytes of one encoded frame in the file."""

    offset: int
    size: int


def mp4_packets(data: Bytes, origin: int) -> tuple[list[PacketPlace], int]:
    """The frames of all whole fragments in `data`, which begins at `origin`; and the bytes consumed."""
    places: list[PacketPlace] = []
    position = 0
    waiting: tuple[int, int] | None = None
    for kind, start, end in _boxes(data, 0, len(data)):
        if kind == b"moof":
            waiting = start, end
            continue
        if kind == b"mdat" and waiting:
            places += _fragment(data, *waiting, origin, origin + end)
            waiting = None
        position = end
    return places, waiting[0] if waiting else position


def first_media_box(data: Bytes, kind: bytes) -> int:
    """Where the first MP4 box of this kind begins, or -1."""
    return next((start for name, start, _ in _boxes(data, 0, len(data)) if name == kind), -1)


def mkv_packets(data: Bytes, origin: int) -> tuple[list[PacketPlace], int]:
    """The frames of all whole clusters in `data`, which begins at `origin`; and the bytes consumed."""
    places: list[PacketPlace] = []
    position = 0
    while (head := _element(data, position)) is not None:
        ident, size, body = head
        if ident == layout.EBML_SEGMENT:
            position = body
            continue
        if body + size > len(data):
            break
        if ident == layout.EBML_CLUSTER:
            places += _cluster(data, body, body + size, origin)
        position = body + size
    return places, position


def first_cluster(data: Bytes) -> int:
    """Where the first Matroska cluster begins, or -1."""
    position = 0
    while (head := _element(data, position)) is not None:
        ident, size, body = head
        if ident == layout.EBML_CLUSTER:
            return position
        position = body if ident == layout.EBML_SEGMENT else body + size
    return -1


def _boxes(data: Bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start, end) of every whole box."""
    while start + layout.BOX.size <= stop:
        size, kind = layout.BoxHead(*layout.BOX.unpack_from(data, start))
        if size == 1 and start + 16 <= stop:
            size = layout.BOX_LARGE.unpack_from(data, start + 8)[0]
        if size < layout.BOX.size or start + size > stop:
            return
        yield kind, start, start + size
        start += size


def _child(data: Bytes, start: int, end: int, kind: bytes) -> tuple[int, int]:
    for name, low, high in _boxes(data, start + layout.BOX.size, end):
        if name == kind:
            return low, high
    raise CorruptLayoutError(f"a video fragment without its {kind.decode()} box")


def _fragment(data: Bytes, start: int, end: int, origin: int, stop: int) -> Iterator[PacketPlace]:
    """The frames of a fragment, all of which end before `stop`."""
    traf = _child(data, start, end, b"traf")
    default_size = _default_size(data, *_child(data, *traf, b"tfhd"))
    run, run_end = _child(data, *traf, b"trun")
    flags = _u32(data, run + 8, run_end) & 0xFFFFFF
    count, at = _u32(data, run + 12, run_end), run + 16
    offset = origin + start
    if flags & layout.TRUN_DATA_OFFSET:
        offset += _u32(data, at, run_end)
        at += 4
    at += 4 * bool(flags & layout.TRUN_FIRST_FLAGS)
    before = 4 * bool(flags & layout.TRUN_DURATION)
    fields = (layout.TRUN_DURATION, layout.TRUN_SIZE, layout.TRUN_FLAGS, layout.TRUN_CTO)
    stride = 4 * sum(bool(flags & field) for field in fields)
    for sample in range(count):
        has_size = flags & layout.TRUN_SIZE
        size = _u32(data, at + sample * stride + before, run_end) if has_size else default_size
        if not size or offset + size > stop:  # a count is bounded by nothing else
            raise CorruptLayoutError("a video fragment announces more frames or bytes than it has")
        yield PacketPlace(offset, size)
        offset += size


def _default_size(data: Bytes, start: int, end: int) -> int:
    flags = _u32(data, start + 8, end) & 0xFFFFFF
    at = start + 16
    at += 8 * bool(flags & layout.TFHD_BASE_OFFSET)
    at += 4 * bool(flags & layout.TFHD_SAMPLE_INDEX)
    at += 4 * bool(flags & layout.TFHD_DURATION)
    return _u32(data, at, end) if flags & layout.TFHD_SIZE else 0


def _u32(data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        raise CorruptLayoutError("a table of a video fragment is cut short")
    return int(layout.U32.unpack_from(data, at)[0])


def _element(data: Bytes, at: int) -> tuple[int, int, int] | None:
    """(id, size, where the body begins) of the element at `at`, if its head is whole."""
    ident = _vint(data, at, keep_marker=True)
    if ident is None:
        return None
    size = _vint(data, at + ident[1], keep_marker=False)
    if size is None:
        return None
    return ident[0], size[0], at + ident[1] + size[1]


def _vint(data: Bytes, at: int, *, keep_marker: bool) -> tuple[int, int] | None:
    if at >= len(data) or not data[at]:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    value = int.from_bytes(data[at : at + length], "big")
    return (value if keep_marker else value & ((1 << (7 * length)) - 1)), length


def _cluster(data: Bytes, start: int, stop: int, origin: int) -> Iterator[PacketPlace]:
    while start < stop and (head := _element(data, start)) is not None:
        ident, size, body = head
        if ident in (layout.EBML_SIMPLE_BLOCK, layout.EBML_BLOCK):
            if size <= layout.BLOCK_HEAD_BYTES or body + size > stop:
                raise CorruptLayoutError("a frame of a cluster is empty, or larger than the cluster")
            yield PacketPlace(origin + body + layout.BLOCK_HEAD_BYTES, size - layout.BLOCK_HEAD_BYTES)
        start = body if ident == layout.EBML_BLOCK_GROUP else body + size
