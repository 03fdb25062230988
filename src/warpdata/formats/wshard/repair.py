"""Put the rows of files in order that the existing streaming writers left interleaved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import align_up
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import ChecksumError, CorruptLayoutError, WarpError, require_word
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.schema import (
    EpisodeSchema,
    TensorSpec,
    Timebase,
    check_channel_id,
    guess_spec,
    read_schema,
)
from warpdata.formats.wshard.table import Block, parse_table, unpack_header

_FOREIGN_ALIGNMENT = 32
_FLAG_SPECS = {layout.REWARD: "f32", layout.DONE: "u8", layout.TICKS: "i32"}


class _Stream(NamedTuple):
    """One block of an interleaved file: `rows` rows of it follow in every flush group."""

    name: str
    spec: TensorSpec


class InterleavedRows:
    """Rows of one block out of flush groups: in each group, so many rows of every block in turn."""

    is_stored = True

    def __init__(
        self, reader: RangeReader, start: int, streams: Sequence[_Stream], index: int, group: int, length: int
    ) -> None:
        self._reader = reader
        self._start = start
        self._before = sum(each.spec.row_bytes for each in streams[:index])
        self._step = sum(each.spec.row_bytes for each in streams)
        self._group = group
        self.spec = streams[index].spec
        self.length = length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end), collected from the groups that hold them."""
        parts = []
        for first in range(start // self._group * self._group, end, self._group):
            count = min(self._group, self.length - first)
            low, high = max(start, first) - first, min(end, first + count) - first
            base = self._start + first * self._step + self._before * count
            row = self.spec.row_bytes
            parts.append(bytes(self._reader.read(base + low * row, base + high * row)))
        data = np.frombuffer(b"".join(parts), self.spec.dtype.dtype)
        return data.reshape(end - start, *self.spec.shape)


class _LenientShard:
    """Metadata of a shard whose data blocks overlap: enough for the schema, nothing more."""

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self.path = reader.name
        start = reader.read(0, min(reader.size, layout.TABLE_OFFSET))
        header = unpack_header(start, reader.size, self.path)
        head = reader.read(0, header.data_section_offset)
        self.blocks = parse_table(header, head, reader.size, self.path, allow_overlap=True).blocks
        self.sizes = {name: block.raw_size for name, block in self.blocks.items()}

    def view(self, name: str) -> memoryview:
        block = self.blocks[name]
        return self.reader.read(block.data_offset, block.data_offset + block.disk_size)


def repair_stream(reader: RangeReader) -> WShardEpisode | None:
    """The episode of a finished file whose streaming writer recorded wrong ranges; None if no blocks overlap."""
    shard = _overlapping(reader)
    if shard is None:
        return None
    said = parse_json_object(shard.view(layout.META_WSHARD)) if layout.META_WSHARD in shard.blocks else {}
    if said.get("streaming") is not True:
        raise CorruptLayoutError(
            "was not written by a streaming writer; it cannot be put in order", path=reader.name
        )
    schema = read_schema(shard)
    data = sorted(
        (block for name, block in shard.blocks.items() if not name.startswith("meta/")),
        key=lambda block: block.data_offset,
    )
    # The ranges are wrong, but their checksums were taken over them: they still say whether bytes changed.
    for block in data:
        if crc32c(reader.read(block.data_offset, block.data_offset + block.disk_size)) != block.crc32c:
            raise ChecksumError(
                "its bytes do not match their checksum", block=block.name, path=reader.name,
                hint="Restore it from a copy: the blocks lie in each other, so no part can be trusted.",
            )  # fmt: skip
    streams = [_Stream(block.name, _stream_spec(block, schema, reader.name)) for block in data]
    group = _group_rows(data, streams, schema.length, reader.name)
    return _episode(reader, data[0].data_offset if data else 0, streams, group, schema)


def _overlapping(reader: RangeReader) -> _LenientShard | None:
    """The shard, if its table can be read and its blocks lie in each other."""
    try:
        shard = _LenientShard(reader)
    except WarpError:
        return None
    blocks = list(shard.blocks.values())
    ranges = sorted(
        (each.data_offset, each.data_offset + each.disk_size) for each in blocks if each.disk_size
    )
    return shard if any(before[1] > after[0] for before, after in pairwise(ranges)) else None


def repair_partial(
    reader: RangeReader, episode_id: str, channels: Sequence[Mapping[str, Any]], flush_interval: int
) -> tuple[WShardEpisode, int]:
    """The episode of an unfinished file, given what its writer was told; and how many bytes are left over."""
    if flush_interval <= 0:
        raise ValueError(f"flush_interval must be positive, not {flush_interval}")
    streams = [_channel_stream(each) for each in channels]
    if len({each.name for each in streams}) != len(streams):
        raise ValueError("two channels have the same id in the same lane")
    streams += [_Stream(name, TensorSpec(dtype_named(dtype), ())) for name, dtype in _FLAG_SPECS.items()]
    start = _reserved_bytes([each.name.partition("/")[2] for each in streams[: len(channels)]])
    step = sum(each.spec.row_bytes for each in streams)
    if reader.size < start:
        raise CorruptLayoutError("is shorter than the space its writer reserved", path=reader.name)
    groups = (reader.size - start) // (step * flush_interval)
    length = groups * flush_interval
    schema = EpisodeSchema(
        episode_id, "", length, Timebase(), (), {}, {}, {}, {}, frozenset(), {}, [], None, {}
    )
    episode = _episode(reader, start, streams, flush_interval, schema)
    return episode, reader.size - start - length * step


def _reserved_bytes(ids: Sequence[str]) -> int:
    """How much room the existing Python writer leaves for header, table and names."""
    names = sum(len(f"signal/{each}".encode()) + len(f"action/{each}".encode()) for each in ids)
    return align_up(
        layout.TABLE_OFFSET + layout.ENTRY_BYTES * (7 + 2 * len(ids)) + names + 200, _FOREIGN_ALIGNMENT
    )


def _channel_stream(each: Mapping[str, Any]) -> _Stream:
    if not isinstance(each, Mapping):
        raise TypeError("channels is a list of dicts with 'id', 'dtype' and 'shape'")
    for key in ("id", "dtype"):
        if key not in each:
            raise ValueError(f"channel {each.get('id', each)!r:.80} has no {key!r}")
    channel_id, lane, shape = str(each["id"]), each.get("lane", "signal"), each.get("shape", ())
    check_channel_id(channel_id)
    require_word(f"the lane of {channel_id!r}", lane, ("signal", "action"))
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the shape of {channel_id!r} is a list of sizes such as [7], not {shape!r:.80}")
    return _Stream(f"{lane}/{channel_id}", TensorSpec(dtype_named(str(each["dtype"])), tuple(shape)))


def _stream_spec(block: Block, schema: EpisodeSchema, path: str) -> TensorSpec:
    """What one row of a block is: listed, a flag, or an action shaped like the channel of its name."""
    if block.name in _FLAG_SPECS:
        return TensorSpec(dtype_named(_FLAG_SPECS[block.name]), ())
    row = block.raw_size // schema.length if schema.length else 0
    lane, _, channel_id = block.name.partition("/")
    for channel in schema.channels:
        if channel.id == channel_id and channel.tensor.row_bytes == row:
            return channel.tensor
    found = guess_spec(block.name, block.raw_size, schema) if lane == "action" else None
    if found is None:
        raise CorruptLayoutError("nothing says what it holds", block=block.name, path=path)
    return found


def _group_rows(data: Sequence[Block], streams: Sequence[_Stream], length: int, path: str) -> int:
    """Rows per flush, from the distance between the first two blocks."""
    for block, each in zip(data, streams, strict=True):
        if block.raw_size != each.spec.row_bytes * length:
            raise CorruptLayoutError("does not hold one row per step", block=block.name, path=path)
    if len(data) < 2:
        return max(1, length)
    distance, row = data[1].data_offset - data[0].data_offset, streams[0].spec.row_bytes
    if not row or distance <= 0 or distance % row:
        raise CorruptLayoutError("the flush groups of the stream do not add up", path=path)
    return distance // row


def _episode(
    reader: RangeReader, start: int, streams: Sequence[_Stream], group: int, schema: EpisodeSchema
) -> WShardEpisode:
    episode = WShardEpisode(
        schema.id, schema.env_id, schema.length, schema.timebase, metadata=schema.metadata
    )
    for index, each in enumerate(streams):
        rows = InterleavedRows(reader, start, streams, index, group, schema.length)
        lane, _, channel_id = each.name.partition("/")
        channel = Channel.over(channel_id or lane, rows)
        if lane == "signal":
            episode.observations[channel_id] = channel
        elif lane == "action":
            episode.actions[channel_id] = channel
        elif each.name == layout.REWARD:
            episode.rewards = channel
        elif each.name == layout.DONE:
            episode.terminations = channel
    return episode
