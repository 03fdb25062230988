"""What of a damaged or cut shard still holds: its intact blocks, seen as a shard of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.align import align_up
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.ranges import Range, RangeReader, check_range
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import CorruptLayoutError, TruncatedError, WarpError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.table import Block, pack_table, parse_table, unpack_header


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
        """Whether the steps had times of their own, which cannot be read: known once `shard` was asked for."""
        self.blocks = {block.name: block for block in self._entries() if self._holds(block)}
        missing = [name for name in (layout.META_EPISODE, layout.META_CHANNELS) if name not in self.blocks]
        if missing:
            raise CorruptLayoutError(
                f"{' and '.join(missing)} cannot be read, so nothing says what the blocks hold", path=reader.name,
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
                raise TruncatedError("lies past the end of the file", block=block.name)
            ShardReader(self._seen_as([block], {})).view(block.name)
        except WarpError as error:
            self.lost.append(LostBlock(block.name, error.message, block.disk_size))
            return False
        return True

    def _facts(self, shard: ShardReader) -> dict[str, bytes]:
        """The metadata, without what it says of blocks that are lost."""
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
        """These blocks where they lie, behind a table of their own; some with other bytes, put at the end."""
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
