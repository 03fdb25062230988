"""What a shard will hold, checked by the rules of loading before a byte of it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpdata.bytekit.align import align_up
from warpdata.bytekit.jsontext import plain_json
from warpdata.errors import FormatError, SchemaMismatchError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.load import make_episode
from warpdata.formats.wshard.schema import ChannelRows, EpisodeSchema, TensorSpec, read_schema
from warpdata.formats.wshard.table import (
    Block,
    check_names,
    data_offset_for,
    pack_table,
    parse_table,
    unpack_header,
)


class PlannedRows:
    """Rows of which only dtype, shape and number are known."""

    def __init__(self, spec: TensorSpec, length: int) -> None:
        self.spec = spec
        self.length = length

    def rows(self, start: int, end: int) -> Any:
        """A plan has no rows."""
        raise NotImplementedError


class PlannedShard:
    """A shard that is about to be written: its metadata, and the names and sizes of its blocks."""

    role = layout.ROLE_EPISODE

    def __init__(self, meta: Mapping[str, bytes], sizes: Mapping[str, int], path: str) -> None:
        self.path = path
        self.sizes = sizes
        self._meta = meta

    @property
    def schema(self) -> EpisodeSchema:
        return read_schema(self)

    def view(self, name: str) -> memoryview:
        return memoryview(self._meta.get(name, b""))

    def rows_of(self, _name: str, spec: TensorSpec, length: int) -> ChannelRows:
        return PlannedRows(spec, length)


def check_plan(
    episode: WShardEpisode, meta: Mapping[str, bytes], sizes: list[tuple[str, int]], path: str
) -> None:
    """Raise SchemaMismatchError unless a file of these blocks would open again as the same episode."""
    try:
        _check_table([*((name, len(data)) for name, data in meta.items()), *sizes], path)
        planned = {name: len(data) for name, data in meta.items()} | dict(sizes)
        read = make_episode(PlannedShard(meta, planned, path))
    except FormatError as error:
        raise SchemaMismatchError(
            f"would be refused by every reader: {error.message}",
            hint="Change the episode so that it can be read back.",
        ) from None
    try:
        wanted, found = _described(episode), _described(read)
    except ValueError as error:
        raise SchemaMismatchError(
            f"metadata is not JSON: {error}", hint="Use strings as keys.", path=path
        ) from None
    for field, value in wanted.items():
        if value != found[field]:
            raise SchemaMismatchError(
                f"{field} would not come back as it is: {value!r:.80} would be read as {found[field]!r:.80}",
                hint="Give it a value that the format has a place for.",
                path=path,
            )


def _check_table(blocks: list[tuple[str, int]], path: str) -> None:
    """Pack a table of these blocks and read it by the rules of every table."""
    pieces = [
        (layout.PIECES_PREFIX + name, 4 + size // layout.PIECE_BYTES)
        for name, size in blocks
        if size > layout.PIECES_FROM_BYTES
    ]
    check_names([name for name, _ in blocks + pieces], path)
    start = position = data_offset_for([name for name, _ in blocks + pieces])
    table = []
    for name, size in blocks + pieces:
        table.append(Block(name, "none", False, position, size, size, 0, 0))
        position = align_up(position + size, layout.ALIGNMENT)
    packed = memoryview(pack_table(table, position, layout.ROLE_EPISODE, start))
    parse_table(unpack_header(packed, position, path), packed, position, path)


def _described(episode: WShardEpisode) -> dict[str, Any]:
    """Everything of an episode but its rows, in a form that can be compared."""
    described: dict[str, Any] = {
        name: plain_json(getattr(episode, name))
        for name in ("id", "env_id", "length", "metadata", "models", "chunk_index", "total_chunks", "about")
    }
    described["timebase"] = episode.timebase
    described["timestep_range"] = None if episode.timestep_range is None else tuple(episode.timestep_range)
    for name in ("observations", "actions", "omens", "uncerts", "residuals"):
        channels: dict[str, Channel] = getattr(episode, name).data
        described |= {f"{name}[{key!r}]": _channel(each) for key, each in channels.items()}
        described[name] = sorted(channels)
    for name in ("rewards", "terminations", "truncations"):
        flag: Channel | None = getattr(episode, name)
        described[name] = None if flag is None else _channel(flag)
    described["blocks"] = sorted(episode.blocks)
    described["timestamps_ns"] = episode.clock_source is not None
    return described


def _channel(channel: Channel) -> tuple[Any, ...]:
    clock = channel.clock_source
    return (
        str(channel.dtype), channel.row_shape, channel.length, plain_json(channel.about),
        None if clock is None else clock.length,
    )  # fmt: skip
