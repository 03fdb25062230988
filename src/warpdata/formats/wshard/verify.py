"""The damage report of a shard, and recovery of episodes from damaged, cut or badly streamed files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import MmapRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FileFinding,
    TruncatedError,
    WarpError,
    naming,
    require_word,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import check_chunk_hash, read_chunk_list, validate_chunk_continuity
from warpdata.formats.wshard.episode import Channel, WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import Block, BlockTable, name_hash, parse_table, unpack_header
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import FunctionRows
from warpdata.formats.wshard.save import is_truth
from warpdata.formats.wshard.schema import (
    EpisodeSchema,
    TensorSpec,
    Timebase,
    check_channel_id,
    guess_spec,
    own_copy,
    tensor_spec,
)


def verify_shard(source: str | os.PathLike[str] | RangeReader, *, full: bool = False) -> list[FileFinding]:
    """Check every block of a shard; `full` also reads each row the way a training loop would."""
    reader = source if isinstance(source, RangeReader) else MmapRangeReader(source)
    try:
        shard = ShardReader(reader)
    except WarpError as error:
        return [FileFinding.of(error)]
    findings = list(_blocks(shard))
    if not any(finding.is_damage for finding in findings):
        findings += _contents(shard, full=full)
    return findings


def _blocks(shard: ShardReader) -> Iterator[FileFinding]:
    """Damaged blocks, and notes about missing checksums."""
    for name in shard.names:
        try:
            shard.view(name)
        except WarpError as error:
            yield FileFinding.of(error)
    if not shard.table.is_checksummed:
        yield FileFinding(
            "no_table_checksum", "header and table carry no checksum of their own", is_damage=False,
            hint="Save the episode again to add one.",
        )  # fmt: skip
    for name in shard.names:
        block = shard.block(name)
        unguarded = block.codec == "none" and block.raw_size > layout.PIECES_FROM_BYTES
        if unguarded and layout.PIECES_PREFIX + name not in shard:
            yield FileFinding(
                "no_piece_checksums",
                "a window of it cannot be checked alone: the first one reads the whole block",
                name,
                is_damage=False,
            )


def _contents(shard: ShardReader, *, full: bool) -> Iterator[FileFinding]:
    try:
        if shard.role == layout.ROLE_CHUNK_LIST:
            yield from _chunks(shard, full=full)
        elif shard.role == layout.ROLE_EPISODE:
            episode = load_wshard(shard)
            if full:
                yield from _rows(shard)
                yield from _values(episode)
    except WarpError as error:
        yield FileFinding.of(error)


def _chunks(shard: ShardReader, *, full: bool) -> Iterator[FileFinding]:
    listed = read_chunk_list(shard)
    validate_chunk_continuity(listed, check_channels=False)
    for entry in listed.chunks:
        try:
            check_chunk_hash(listed, entry)
        except WarpError as error:
            yield FileFinding.of(error)
            continue
        if full:
            yield from (item for item in verify_shard(listed.chunk_path(entry), full=True) if item.is_damage)
    try:
        validate_chunk_continuity(listed)
    except BlobNotFoundError:
        return  # reported above, chunk by chunk


def _rows(shard: ShardReader) -> Iterator[FileFinding]:
    """Windows have checksums of their own: pieces and frames must hold too; and so must hashes of names."""
    header = shard.table.header
    head = shard.range_reader.read(layout.TABLE_OFFSET, header.string_table_offset)
    for name, entry in zip(shard.names, layout.ENTRY.iter_unpack(head), strict=True):
        if shard.table.is_checksummed and entry[0] != name_hash(name):
            yield FileFinding("name_hash", "the hash of its name is wrong", name)
    fresh = ShardReader(shard.range_reader)
    for name in fresh.names:
        block = fresh.block(name)
        if not block.is_seekable and layout.PIECES_PREFIX + name not in fresh:
            continue
        try:
            spec = fresh.spec(name)
            rows = block.raw_size // max(1, spec.row_bytes)
            step = max(1, (1 << 20) // max(1, spec.row_bytes))
            for start in range(0, rows, step):
                fresh.rows_as(name, spec, start, min(start + step, rows))
        except WarpError as error:
            yield FileFinding.of(error)


def _values(episode: WShardEpisode) -> Iterator[FileFinding]:
    """Values that nothing new may have. Another program may have stored them so: they open and are saved again."""
    for name, flag in episode.flags():
        if name != layout.REWARD and not is_truth(flag):
            yield FileFinding("flag_value", "holds values other than 0 and 1", name, is_damage=False)
    clocks = [(name, channel.timestamps_ns) for name, channel in episode.lanes()]
    for name, stamps in [(layout.TIMESTAMPS_NS, episode.timestamps_ns), *clocks]:
        if stamps is not None and (stamps[1:] <= stamps[:-1]).any():
            yield FileFinding("clock_order", "its timestamps do not increase", name, is_damage=False)


@dataclass(frozen=True, slots=True)
class LostBlock:
    """A block that cannot be given back."""

    name: str
    why: str
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """For a receipt."""
        return {"block": self.name, "why": self.why, "bytes": self.size_bytes}


class _Patched(ShardReader):
    """A shard of some blocks of a file, with other metadata in place of its own."""

    def __init__(self, reader: RangeReader, table: BlockTable, patches: Mapping[str, bytes]) -> None:
        super().__init__(reader, table=table)
        self._patches = patches

    def view(self, name: str) -> memoryview:
        """The bytes of a block, or what is in its place."""
        patch = self._patches.get(name)
        return super().view(name) if patch is None else memoryview(patch)


class IntactBlocks:
    """The blocks of a shard that hold their checksum, with metadata that speaks of those alone."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        start = reader.read(0, min(reader.size, layout.TABLE_OFFSET))
        if len(start) == layout.TABLE_OFFSET:  # as if the file had always had the size it has now
            stated = layout.Header(*layout.HEADER.unpack(start))
            start = memoryview(layout.HEADER.pack(*stated._replace(total_file_size=reader.size)))
        with naming(reader.name):
            self._header = unpack_header(start, reader.size)
        self.lost: list[LostBlock] = []
        self.has_lost_times = False
        """Whether the steps had times of their own, which cannot be read: known after `shard()`."""
        self.blocks = {block.name: block for block in self._entries() if self._is_intact(block)}
        missing = [name for name in (layout.META_EPISODE, layout.META_CHANNELS) if name not in self.blocks]
        if missing:
            raise CorruptLayoutError(
                f"{' and '.join(missing)} cannot be read, so the contents of the blocks are unknown",
                path=reader.name,
                hint=f"Restore it from a copy; intact are {', '.join(self.blocks) or 'none'}.",
            )

    def shard(self) -> ShardReader:
        """A shard of the intact blocks, in place."""
        table = BlockTable(self._header, self.blocks, False)
        return _Patched(self._reader, table, self._facts(ShardReader(self._reader, table=table)))

    def compression(self) -> dict[str, str]:
        """How the blocks are stored that are not raw."""
        return {block.name: block.codec for block in self.blocks.values() if block.codec != "none"}

    def _entries(self) -> Iterator[Block]:
        """Each entry of the table by itself: a damaged one does not take the others with it."""
        end = self._header.data_section_offset
        head = bytes(self._reader.read(0, end))
        names = head[self._header.string_table_offset : end]
        alone = self._header._replace(
            entry_count=1,
            string_table_offset=layout.TABLE_OFFSET + layout.ENTRY_BYTES,
            data_section_offset=layout.TABLE_OFFSET + layout.ENTRY_BYTES + len(names),
            table_mark=bytes(4),
            table_crc32c=0,
            reserved=bytes(8),
        )
        for number in range(self._header.entry_count):
            at = layout.TABLE_OFFSET + number * layout.ENTRY_BYTES
            view = memoryview(bytes(layout.TABLE_OFFSET) + head[at : at + layout.ENTRY_BYTES] + names)
            try:
                table = parse_table(alone, view, self._reader.size, allow_overlap=True)
                yield from table.blocks.values()
            except WarpError as error:
                entry = f"entry {number}"
                self.lost.append(LostBlock(entry, f"{entry} of the table: {error.message}", 0))

    def _is_intact(self, block: Block) -> bool:
        try:
            if (
                not self._header.data_section_offset
                <= block.data_offset
                <= self._reader.size - block.disk_size
            ):
                raise TruncatedError("is past the end of the file", block=block.name)
            table = BlockTable(self._header, {block.name: block}, False)
            ShardReader(self._reader, table=table).view(block.name)
        except WarpError as error:
            self.lost.append(LostBlock(block.name, error.message, block.disk_size))
            return False
        return True

    def _facts(self, shard: ShardReader) -> dict[str, bytes]:
        """The metadata without its entries for lost blocks."""
        wshard = shard.read_json(layout.META_WSHARD) if layout.META_WSHARD in shard else {}
        episode, channels = shard.read_json(layout.META_EPISODE), shard.read_json(layout.META_CHANNELS)
        listed = channels.get("channels")
        if isinstance(listed, list):
            entries = [entry for entry in listed if isinstance(entry, dict)]
            named = {entry.get("signal_block") for entry in entries}
            channels["channels"] = [entry for entry in entries if self._is_channel_whole(entry, named)]
        elif isinstance(listed, dict):
            channels["channels"] = {name: entry for name, entry in listed.items() if name in self.blocks}
        if isinstance(lanes := wshard.get("lanes"), list):
            entries = [entry for entry in lanes if isinstance(entry, dict)]
            wshard["lanes"] = [entry for entry in entries if self._is_whole(entry, entry.get("block"))]
        if isinstance(exact := wshard.get("exact"), dict):
            for name, block in layout.EXACT.items():
                own = ("f32",) if name == layout.REWARD else ("bool", "u8")
                about = exact.get(name)
                if block not in self.blocks and isinstance(about, dict) and about.get("dtype") not in own:
                    del exact[name]
        for timebase in (episode.get("timebase"), wshard.get("timebase")):
            if isinstance(timebase, dict) and timebase.get("type") == "timestamps_ns":
                self.has_lost_times = layout.TIMESTAMPS_NS not in self.blocks
                timebase["type"] = "ticks" if self.has_lost_times else "timestamps_ns"
        facts = {layout.META_EPISODE: dump_json(episode), layout.META_CHANNELS: dump_json(channels)}
        if wshard:
            facts[layout.META_WSHARD] = dump_json(wshard)
        return facts

    def _is_channel_whole(self, entry: dict[str, Any], named: set[Any]) -> bool:
        """Whether a listed channel is there; existing writers list actions as if they were signals."""
        block, action = entry.get("signal_block") or f"signal/{entry.get('id')}", f"action/{entry.get('id')}"
        is_action = block not in self.blocks and action not in named
        return self._is_whole(entry, action if is_action else block)

    def _is_whole(self, entry: dict[str, Any], block: Any) -> bool:
        """Whether a block is there, with its clock and with the ends of its texts if it has these."""
        parts = [entry[key] for key in ("clock", "ends") if entry.get(key) is not None]
        return all(isinstance(name, str) and name in self.blocks for name in (block, *parts))


_FOREIGN_ALIGNMENT = 32
_FLAG_SPECS = {layout.REWARD: "f32", layout.DONE: "u8", layout.TICKS: "i32"}
Streams = Mapping[str, TensorSpec]
"""The blocks of an interleaved file: rows of each in turn follow in every flush group."""


def repair_stream(reader: RangeReader) -> WShardEpisode | None:
    """The episode of a finished file whose streaming writer recorded wrong ranges; None if no blocks overlap."""
    path = reader.name
    try:
        start = reader.read(0, min(reader.size, layout.TABLE_OFFSET))
        header = unpack_header(start, reader.size)
        head = reader.read(0, header.data_section_offset)
        table = parse_table(header, head, reader.size, allow_overlap=True)
    except WarpError:
        return None
    shard = ShardReader(reader, verify=False, table=table)
    stored = sorted(
        (block for block in table.blocks.values() if block.disk_size), key=lambda b: b.data_offset
    )
    if all(a.data_offset + a.disk_size <= b.data_offset for a, b in pairwise(stored)):
        return None
    stated = shard.read_json(layout.META_WSHARD) if layout.META_WSHARD in shard else {}
    if stated.get("streaming") is not True:
        raise CorruptLayoutError(
            "was not written by a streaming writer; it cannot be put in order", path=path
        )
    schema = shard.schema
    data = sorted(
        (block for name, block in table.blocks.items() if not name.startswith("meta/")),
        key=lambda block: block.data_offset,
    )
    streams = {}
    for block in data:
        # The ranges are wrong, but their checksums were taken over them: they still show whether bytes changed.
        if crc32c(reader.read(block.data_offset, block.data_offset + block.disk_size)) != block.crc32c:
            raise ChecksumError(
                "its bytes do not match their checksum",
                block=block.name,
                path=path,
                hint="Restore it from a copy: the blocks overlap, so no part can be trusted.",
            )
        streams[block.name] = spec = _stream_spec(block, schema, path)
        if block.raw_size != spec.row_bytes * schema.length:
            raise CorruptLayoutError("does not hold one row per step", block=block.name, path=path)
    group = max(1, schema.length)
    if len(data) > 1:  # rows per flush, from the distance between the first two blocks
        distance, row = data[1].data_offset - data[0].data_offset, streams[data[0].name].row_bytes
        if not row or distance <= 0 or distance % row:
            raise CorruptLayoutError("the flush groups of the stream do not add up", path=path)
        group = distance // row
    return _episode(reader, data[0].data_offset if data else 0, streams, group, schema)


def repair_partial(
    reader: RangeReader, episode_id: str, channels: Sequence[Mapping[str, Any]], flush_interval: int
) -> tuple[WShardEpisode, int]:
    """The episode of an unfinished file, given the options of its writer; and how many bytes are left over."""
    if flush_interval <= 0:
        raise ValueError(f"flush_interval must be positive, not {flush_interval}")
    streams = dict(map(_channel_stream, channels))
    if len(streams) != len(channels):
        raise ValueError("two channels have the same id in the same lane")
    # How much room the existing Python writer leaves for header, table and names.
    names = sum(2 * len(f"signal/{name.partition('/')[2]}".encode()) for name in streams)
    table = layout.ENTRY_BYTES * (7 + 2 * len(streams))
    start = align_up(layout.TABLE_OFFSET + table + names + 200, _FOREIGN_ALIGNMENT)
    if reader.size < start:
        raise CorruptLayoutError("is shorter than the space its writer reserved", path=reader.name)
    streams |= {name: tensor_spec(dtype) for name, dtype in _FLAG_SPECS.items()}
    step = sum(spec.row_bytes for spec in streams.values())
    length = (reader.size - start) // (step * flush_interval) * flush_interval
    episode = _episode(
        reader, start, streams, flush_interval, EpisodeSchema(episode_id, "", length, Timebase())
    )
    return episode, reader.size - start - length * step


def _channel_stream(entry: Mapping[str, Any]) -> tuple[str, TensorSpec]:
    if not isinstance(entry, Mapping):
        raise TypeError("channels is a list of dicts with 'id', 'dtype' and 'shape'")
    for key in ("id", "dtype"):
        if key not in entry:
            raise ValueError(f"channel {entry.get('id', entry)!r:.80} has no {key!r}")
    channel_id, lane, shape = str(entry["id"]), entry.get("lane", "signal"), entry.get("shape", ())
    check_channel_id(channel_id)
    require_word(f"the lane of {channel_id!r}", lane, ("signal", "action"))
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the shape of {channel_id!r} is a list of sizes such as [7], not {shape!r:.80}")
    return f"{lane}/{channel_id}", tensor_spec(str(entry["dtype"]), tuple(shape))


def _stream_spec(block: Block, schema: EpisodeSchema, path: str) -> TensorSpec:
    """What one row of a block is: listed, a flag, or an action shaped like the channel of its name."""
    if block.name in _FLAG_SPECS:
        return tensor_spec(_FLAG_SPECS[block.name])
    row = block.raw_size // schema.length if schema.length else 0
    lane, _, channel_id = block.name.partition("/")
    for channel in schema.channels:
        if channel.id == channel_id and channel.tensor.row_bytes == row:
            return channel.tensor
    guess = guess_spec(block.name, block.raw_size, schema) if lane == "action" else None
    if guess is None:
        raise CorruptLayoutError("its contents are unknown", block=block.name, path=path)
    return guess


def _episode(
    reader: RangeReader, start: int, streams: Streams, group: int, schema: EpisodeSchema
) -> WShardEpisode:
    episode = WShardEpisode(
        schema.id, schema.env_id, schema.length, schema.timebase, metadata=own_copy(schema.metadata)
    )
    fields = {"signal": episode.observations, "action": episode.actions}
    before, step = 0, sum(spec.row_bytes for spec in streams.values())
    for name, spec in streams.items():
        read = partial(_read_groups, reader, start, before, step, group, schema.length, spec)
        before += spec.row_bytes
        lane, _, channel_id = name.partition("/")
        channel = Channel.over(channel_id or lane, FunctionRows(spec, schema.length, read, is_stored=True))
        if lane in fields:
            fields[lane][channel_id] = channel
        elif name == layout.REWARD:
            episode.rewards = channel
        elif name == layout.DONE:
            episode.terminations = channel
    return episode


def _read_groups(
    reader: RangeReader, offset: int, before: int, step: int, group: int, length: int, spec: TensorSpec,
    start: int, end: int,
) -> NDArray[Any]:  # fmt: skip
    """Rows [start, end) of one block, collected from the flush groups that hold them.

    A group has `group` rows (the last one fewer) of every block in turn; a step has `step` bytes in all blocks, of
    which `before` are in the blocks before this one.
    """
    parts = []
    for first in range(start // group * group, end, group):
        count = min(group, length - first)
        low, high = max(start, first) - first, min(end, first + count) - first
        base = offset + first * step + before * count
        parts.append(bytes(reader.read(base + low * spec.row_bytes, base + high * spec.row_bytes)))
    return np.frombuffer(b"".join(parts), spec.dtype.dtype).reshape(end - start, *spec.shape)
