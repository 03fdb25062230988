"""The damage report of a shard: every finding, not only the first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from warpdata.bytekit.io.files import MmapRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BlobNotFoundError, FileFinding, WarpError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import check_chunk_hash, read_chunk_list, validate_chunk_continuity
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import load_wshard
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.table import name_hash


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
        return  # said above, chunk by chunk


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
