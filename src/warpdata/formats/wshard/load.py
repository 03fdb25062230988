"""Open an episode shard as tensors by step; only header, table and metadata are read until asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named
from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import LaneMap, WShardEpisode
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.schema import (
    ChannelSpec,
    EpisodeSchema,
    TensorSpec,
    guess_spec,
    read_schema,
)


class BlockRows:
    """Rows of a block that stays in its shard."""

    def __init__(self, shard: ShardReader, block: str, spec: TensorSpec, length: int) -> None:
        self._shard = shard
        self._block = block
        self._array: NDArray[Any] | None = None
        self.spec = spec
        self.length = length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); all of them come verified against the checksum of the block."""
        if start == 0 and end == self.length:
            data = np.frombuffer(self._shard.view(self._block), self.spec.dtype.dtype)
            return data.reshape(self.length, *self.spec.shape)
        if self._array is not None:
            self._shard.verify_rows(self._block, self.spec.row_bytes, start, end)
            return self._array[start:end]
        if (mapped := self._shard.mapped(self._block)) is not None:
            self._array = np.frombuffer(mapped, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
            return self.rows(start, end)
        return self._shard.rows_as(self._block, self.spec, start, end)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}


def load_wshard(
    source: Source | ShardReader, channels: Collection[str] | None = None, *, verify: Verify = "block"
) -> WShardEpisode:
    """Open an episode: lazy, zero-copy for raw blocks; `channels` keeps only these ids or block names.

    `verify` says what is held against a checksum, see `Verify`.
    """
    shard = source if isinstance(source, ShardReader) else ShardReader.open(source, verify=verify)
    if shard.role != layout.ROLE_EPISODE:
        hint = "Open it with wd.open_episode()." if shard.role == layout.ROLE_CHUNK_LIST else None
        raise CorruptLayoutError(f"a shard of role {shard.role} is no episode", path=shard.path, hint=hint)
    schema = read_schema(shard)
    episode = WShardEpisode(schema.id, schema.env_id, schema.length, schema.timebase)
    episode.metadata, episode.models, episode.about = schema.metadata, schema.models, schema.about
    if schema.chunk is not None:
        episode.chunk_index, episode.total_chunks, episode.timestep_range = schema.chunk
    _Loader(shard, schema, None if channels is None else set(channels)).fill(episode)
    return episode


class _Loader:
    """Routes the blocks of one shard into the fields of one episode."""

    def __init__(self, shard: ShardReader, schema: EpisodeSchema, wanted: set[str] | None) -> None:
        self._shard = shard
        self._schema = schema
        self._wanted = wanted
        self._left = dict.fromkeys(shard.names)

    def fill(self, episode: WShardEpisode) -> None:
        for name in (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS):
            self._left.pop(name, None)
        for spec in self._schema.channels:
            self._add_channel(episode, spec)
        episode.rewards = self._reward()
        episode.terminations = self._flag(layout.DONE)
        episode.truncations = self._flag(layout.TRUNCATED)
        if (clock := self._timestamps()) is not None:
            episode.set_clock(clock)
        for name in list(self._left):
            self._add_unlisted(episode, name)
        for name in self._left:
            if not name.startswith(layout.PIECES_PREFIX) and self._wants(name, name):
                episode.blocks[name] = self._shard.view(name)

    def _wants(self, channel_id: str, block: str) -> bool:
        return self._wanted is None or channel_id in self._wanted or block in self._wanted

    def _add_channel(self, episode: WShardEpisode, spec: ChannelSpec) -> None:
        self._left.pop(spec.block)
        clock = None
        if spec.clock is not None:
            self._left.pop(spec.clock, None)
            clock = self._rows(spec.clock, TensorSpec(dtype_named("i64"), ()), None)
        if not self._wants(spec.id, spec.block):
            return
        rows = self._rows(spec.block, spec.tensor, clock.length if clock else self._schema.length)
        target = episode.observations if spec.lane == "signal" else episode.actions
        target[spec.block.partition("/")[2]] = Channel.over(spec.id, rows, clock=clock, about=spec.about)

    def _add_unlisted(self, episode: WShardEpisode, name: str) -> None:
        """Lanes, and the actions one existing writer does not list."""
        lane, _, rest = name.partition("/")
        lanes: dict[str, LaneMap] = {
            "omen": episode.omens,
            "uncert": episode.uncerts,
            "residual": episode.residuals,
        }
        spec = self._schema.lanes.get(name) or guess_spec(
            name, self._shard.block(name).raw_size, self._schema
        )
        if not rest or spec is None or (lane not in lanes and lane != "action"):
            return
        self._left.pop(name)
        if not self._wants(rest, name):
            return
        fixed = None if lane == "residual" else self._schema.length
        channel = Channel.over(rest, self._rows(name, spec, fixed))
        if lane == "action":
            episode.actions[rest] = channel
        else:
            lanes[lane][rest] = channel

    def _reward(self) -> Channel | None:
        exact = self._schema.flags.get("reward")
        name = layout.REWARD if exact is None else layout.EXACT_REWARD
        spec = TensorSpec(exact or dtype_named("f32"), ())
        for each in (layout.REWARD, layout.EXACT_REWARD):
            present = self._left.pop(each, self) is None
            if each == name and not present:
                return None
        if layout.REWARD in self._schema.absent or not self._wants(layout.REWARD, layout.REWARD):
            return None
        rows = self._rows(name, spec, self._optional_length(name))
        return Channel.over(layout.REWARD, rows) if rows.length == self._schema.length else None

    def _flag(self, name: str) -> Channel | None:
        if self._left.pop(name, self) is self or name in self._schema.absent or not self._wants(name, name):
            return None
        spec = TensorSpec(self._schema.flags.get(name, dtype_named("u8")), ())
        rows = self._rows(name, spec, self._optional_length(name))
        return Channel.over(name, rows) if rows.length == self._schema.length else None

    def _optional_length(self, name: str) -> int | None:
        """One existing writer stores an empty block where there is no reward or done."""
        return None if self._shard.block(name).raw_size == 0 else self._schema.length

    def _timestamps(self) -> BlockRows | None:
        self._left.pop(layout.TICKS, None)
        if self._left.pop(layout.TIMESTAMPS_NS, self) is self:
            return None
        return self._rows(layout.TIMESTAMPS_NS, TensorSpec(dtype_named("i64"), ()), self._schema.length)

    def _rows(self, name: str, spec: TensorSpec, length: int | None) -> BlockRows:
        """The rows of a block, after checking that its size is exactly what dtype, shape and length say."""
        size = self._shard.block(name).raw_size
        if length is None:
            length = size // spec.row_bytes if spec.row_bytes else self._schema.length
        if length * spec.row_bytes != size:
            shape = ",".join(map(str, (length, *spec.shape)))
            raise CorruptLayoutError(
                f"has {size} bytes, {spec.dtype}[{shape}] needs {length * spec.row_bytes}",
                block=name,
                path=self._shard.path,
            )
        return BlockRows(self._shard, name, spec, length)
