"""The damage report of a shard, and recovery of episodes from damaged, cut or badly streamed files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.files import MmapRangeReader
from warpdata.bytekit.io.ranges import Range, RangeReader, check_range
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FileFinding,
    TruncatedError,
    WarpError,
    require_word,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.chunks import check_chunk_hash, read_chunk_list, validate_chunk_continuity
from warpdata.formats.wshard.episode import WShardEpisode, load_wshard
from warpdata.formats.wshard.layout import Block, name_hash, pack_table, parse_table, unpack_header
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.schema import (
    EpisodeSchema,
    TensorSpec,
    Timebase,
    check_channel_id,
    guess_spec,
    read_schema,
)


def verify_shard(source: str | os.PathLike[str] | RangeReader, *, full: bool = False) -> list[FileFinding]:
    """Check every block of a shard; `full` also reads each row the way a training loop would."""
    reader = source if isinstance(source, RangeReader) else MmapRangeReader(source)
    try:
        shard = ShardReader(reader)
    except WarpError as error:
        return [FileFinding.of(error)]
    findings = [*_blocks(shard), *_notes(shard)]
    if not any(each.is_damage for each in findings):
        findings += _contents(shard, full=full)
    return findings


def _blocks(shard: ShardReader) -> Iterator[FileFinding]:
    for name in shard.names:
        try:
            shard.view(name)
        except WarpError as error:
            yield FileFinding.of(error)


def _notes(shard: ShardReader) -> Iterator[FileFinding]:
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
                yield from _hashes(shard)
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
            yield from (each for each in verify_shard(listed.chunk_path(entry), full=True) if each.is_damage)
    try:
        validate_chunk_continuity(listed)
    except BlobNotFoundError:
        return  # reported above, chunk by chunk


def _rows(shard: ShardReader) -> Iterator[FileFinding]:
    """Windows have checksums of their own: pieces and frames must hold too."""
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
    for name, flag in ((layout.DONE, episode.terminations), (layout.TRUNCATED, episode.truncations)):
        values = None if flag is None else flag.data.view(np.uint8) if flag.dtype == "bool" else flag.data
        if values is not None and np.any((values != 0) & (values != 1)):
            yield FileFinding("flag_value", "holds values other than 0 and 1", name, is_damage=False)
    clocks = [(name, channel.timestamps_ns) for name, channel in episode.lanes()]
    for name, stamps in [(layout.TIMESTAMPS_NS, episode.timestamps_ns), *clocks]:
        if stamps is not None and (stamps[1:] <= stamps[:-1]).any():
            yield FileFinding("clock_order", "its timestamps do not increase", name, is_damage=False)


def _hashes(shard: ShardReader) -> Iterator[FileFinding]:
    if not shard.table.is_checksummed:
        return
    for name, stored in shard.name_hashes().items():
        if stored != name_hash(name):
            yield FileFinding("name_hash", "the hash of its name is wrong", name)


@dataclass(frozen=True, slots=True)
class LostBlock:
    """A block that cannot be given back."""

    name: str
    why: str
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """For a receipt."""
        return {"block": self.name, "why": self.why, "bytes": self.size_bytes}


class IntactBlocks:
    """The blocks of a shard that hold their checksum, with metadata that speaks of those alone."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        start = _with_size(reader.read(0, min(reader.size, layout.TABLE_OFFSET)), reader.size)
        self._header = unpack_header(start, reader.size, reader.name)
        self.lost: list[LostBlock] = []
        self.has_lost_times = False
        """Whether the steps had times of their own, which cannot be read: known after `shard()`."""
        self.blocks = {block.name: block for block in self._entries() if self._holds(block)}
        missing = [name for name in (layout.META_EPISODE, layout.META_CHANNELS) if name not in self.blocks]
        if missing:
            raise CorruptLayoutError(
                f"{' and '.join(missing)} cannot be read, so the contents of the blocks are unknown", path=reader.name,
                hint=f"Restore it from a copy; intact are {', '.join(self.blocks) or 'none'}.",
            )  # fmt: skip

    def shard(self) -> ShardReader:
        """A shard of the intact blocks, in place."""
        whole = ShardReader(self._seen_as(list(self.blocks.values()), {}))
        return ShardReader(self._seen_as(list(self.blocks.values()), self._facts(whole)))

    def compression(self) -> dict[str, str]:
        """How the blocks are stored that are not raw."""
        return {block.name: block.codec for block in self.blocks.values() if block.codec != "none"}

    def _entries(self) -> Iterator[Block]:
        """Each entry of the table by itself: a damaged one does not take the others with it."""
        end = self._header.data_section_offset
        head = bytes(self._reader.read(0, end))
        names = head[self._header.string_table_offset : end]
        for at in range(layout.TABLE_OFFSET, self._header.string_table_offset, layout.ENTRY_BYTES):
            alone = self._header._replace(
                entry_count=1, string_table_offset=layout.TABLE_OFFSET + layout.ENTRY_BYTES,
                data_section_offset=layout.TABLE_OFFSET + layout.ENTRY_BYTES + len(names),
                table_mark=bytes(4), table_crc32c=0, reserved=bytes(8),
            )  # fmt: skip
            view = memoryview(bytes(layout.TABLE_OFFSET) + head[at : at + layout.ENTRY_BYTES] + names)
            try:
                table = parse_table(alone, view, self._reader.size, self._reader.name, allow_overlap=True)
            except WarpError as error:
                entry = f"entry {(at - layout.TABLE_OFFSET) // layout.ENTRY_BYTES}"
                self.lost.append(LostBlock(entry, f"{entry} of the table: {error.message}", 0))
                continue
            yield from table.blocks.values()

    def _holds(self, block: Block) -> bool:
        try:
            if block.data_offset + block.disk_size > self._reader.size:
                raise TruncatedError("is past the end of the file", block=block.name)
            ShardReader(self._seen_as([block], {})).view(block.name)
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
            entries = [each for each in listed if isinstance(each, dict)]
            named = {each.get("signal_block") for each in entries}
            channels["channels"] = [each for each in entries if self._is_channel_whole(each, named)]
        elif isinstance(listed, dict):
            channels["channels"] = {name: each for name, each in listed.items() if name in self.blocks}
        if isinstance(lanes := wshard.get("lanes"), list):
            entries = [each for each in lanes if isinstance(each, dict)]
            wshard["lanes"] = [each for each in entries if self._is_whole(each, each.get("block"))]
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
        found = {layout.META_EPISODE: dump_json(episode), layout.META_CHANNELS: dump_json(channels)}
        if wshard:
            found[layout.META_WSHARD] = dump_json(wshard)
        return found

    def _is_channel_whole(self, each: dict[str, Any], named: set[Any]) -> bool:
        """Whether a listed channel is there; existing writers list actions as if they were signals."""
        block, action = each.get("signal_block") or f"signal/{each.get('id')}", f"action/{each.get('id')}"
        is_action = block not in self.blocks and action not in named
        return self._is_whole(each, action if is_action else block)

    def _is_whole(self, each: dict[str, Any], block: Any) -> bool:
        """Whether a block is there, with its clock and with where its texts end if it has these."""
        parts = [each[key] for key in ("clock", "ends") if each.get(key) is not None]
        return all(isinstance(name, str) and name in self.blocks for name in (block, *parts))

    def _seen_as(self, blocks: Sequence[Block], replaced: dict[str, bytes]) -> RangeReader:
        """These blocks in place, behind a new table; replaced ones are put at the end."""
        data_offset = self._header.data_section_offset
        body = self._reader.size - data_offset
        extra, entries = bytearray(), []
        for block in blocks:
            data = replaced.get(block.name)
            if data is not None:
                extra += bytes(
                    align_up(self._reader.size + len(extra), layout.ALIGNMENT)
                    - self._reader.size
                    - len(extra)
                )
                at = self._reader.size + len(extra)
                extra += data
                size = len(data)
                block = Block(block.name, "none", False, at, size, size, crc32c(data), block.content_type)
            entries.append(block)
        entries.sort(key=lambda each: each.data_offset)
        total = data_offset + body + len(extra)
        head = pack_table(entries, total, self._header.role, data_offset)
        return _Spliced(self._reader, memoryview(head), memoryview(bytes(extra)))


class _Spliced:
    """Bytes of a file behind another head, and with more bytes at the end."""

    is_local = True

    def __init__(self, reader: RangeReader, head: memoryview, tail: memoryview) -> None:
        self._reader = reader
        self._head = head
        self._tail = tail
        self.name = reader.name
        self.size = reader.size + tail.nbytes

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        check_range(self, start, end)
        middle, last = self._head.nbytes, self._reader.size
        if middle <= start and end <= last:
            return self._reader.read(start, end)
        parts = [self._head[start:end]]
        if max(start, middle) < min(end, last):
            parts.append(self._reader.read(max(start, middle), min(end, last)))
        if end > last:
            parts.append(self._tail[max(start - last, 0) : end - last])
        return memoryview(b"".join(parts))

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range."""
        return [self.read(start, end) for start, end in ranges]

    def close(self) -> None:
        """The reader behind it stays open."""


def _with_size(start: memoryview, size: int) -> memoryview:
    """The header as if the file had always had the size it has now."""
    if len(start) < layout.TABLE_OFFSET:
        return start
    header = layout.Header(*layout.HEADER.unpack(start))
    return memoryview(layout.HEADER.pack(*header._replace(total_file_size=size)))


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
    stated = parse_json_object(shard.view(layout.META_WSHARD)) if layout.META_WSHARD in shard.blocks else {}
    if stated.get("streaming") is not True:
        raise CorruptLayoutError(
            "was not written by a streaming writer; it cannot be put in order", path=reader.name
        )
    schema = read_schema(shard)
    data = sorted(
        (block for name, block in shard.blocks.items() if not name.startswith("meta/")),
        key=lambda block: block.data_offset,
    )
    # The ranges are wrong, but their checksums were taken over them: they still show whether bytes changed.
    for block in data:
        if crc32c(reader.read(block.data_offset, block.data_offset + block.disk_size)) != block.crc32c:
            raise ChecksumError(
                "its bytes do not match their checksum", block=block.name, path=reader.name,
                hint="Restore it from a copy: the blocks overlap, so no part can be trusted.",
            )  # fmt: skip
    streams = [_Stream(block.name, _stream_spec(block, schema, reader.name)) for block in data]
    group = _group_rows(data, streams, schema.length, reader.name)
    return _episode(reader, data[0].data_offset if data else 0, streams, group, schema)


def _overlapping(reader: RangeReader) -> _LenientShard | None:
    """The shard, if its table can be read and its blocks overlap."""
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
    """The episode of an unfinished file, given the options of its writer; and how many bytes are left over."""
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
        raise CorruptLayoutError("its contents are unknown", block=block.name, path=path)
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
