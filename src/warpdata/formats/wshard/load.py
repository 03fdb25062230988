"""Open an episode shard as tensors by step; only header, table and metadata are read until asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np

from warpdata.bytekit.dtype import DType, dtype_named
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import ArrayRows, Channel
from warpdata.formats.wshard.episode import LaneMap, WShardEpisode
from warpdata.formats.wshard.outline import made_again, outline_of
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.schema import (
    ChannelRows,
    ChannelSpec,
    EpisodeSchema,
    MetaSource,
    TensorSpec,
    Timebase,
    guess_spec,
    own_copy,
    tensor_spec,
)
from warpdata.formats.wshard.text import TextRows


class EpisodeShard(MetaSource, Protocol):
    """What an episode is made of: a shard in a file, or the plan of one that is about to be written."""

    @property
    def role(self) -> int: ...

    @property
    def schema(self) -> EpisodeSchema: ...

    def view(self, name: str, /) -> memoryview: ...

    def rows_of(self, name: str, spec: TensorSpec, length: int, /) -> ChannelRows: ...


def load_wshard(
    source: Source | ShardReader, channels: Collection[str] | None = None, *, verify: Verify = "block"
) -> WShardEpisode:
    """Open an episode: lazy, zero-copy for raw blocks.

    `channels` keeps only these ids or block names; rewards, flags and times are always there. `verify` says what is
    held against a checksum, see `Verify`.
    """
    shard = source if isinstance(source, ShardReader) else ShardReader.open(source, verify=verify)
    seen = shard.known_head
    if channels is not None or seen is None or not shard.table.is_checksummed:
        return make_episode(shard, _wanted(channels))
    if seen.outline is not None:
        return made_again(seen.outline, shard)
    episode = make_episode(shard)
    seen.outline = outline_of(episode)
    return episode


def _wanted(channels: Collection[str] | None) -> set[str] | None:
    if isinstance(channels, str):
        raise TypeError(f"channels is a list of ids, not one string: use channels=[{channels!r}]")
    return None if channels is None else set(channels)


def make_episode(shard: EpisodeShard, wanted: set[str] | None = None) -> WShardEpisode:
    """The episode a shard holds, or FormatError: the one set of rules for what is read and what may be written."""
    if shard.role != layout.ROLE_EPISODE:
        hint = "Open it with wd.open_episode()." if shard.role == layout.ROLE_CHUNK_LIST else None
        raise CorruptLayoutError(f"a shard of role {shard.role} is no episode", path=shard.path, hint=hint)
    schema = shard.schema
    index, total, steps = schema.chunk or (None, None, None)
    episode = WShardEpisode.of({
        "id": schema.id, "env_id": schema.env_id, "length": schema.length, "timebase": schema.timebase,
        "metadata": own_copy(schema.metadata), "models": own_copy(schema.models), "about": own_copy(schema.about),
        "chunk_index": index, "total_chunks": total, "timestep_range": steps,
    })  # fmt: skip
    _Loader(shard, schema, wanted).fill(episode)
    return episode


class _Loader:
    """Routes the blocks of one shard into the fields of one episode."""

    def __init__(self, shard: EpisodeShard, schema: EpisodeSchema, wanted: set[str] | None) -> None:
        self._shard = shard
        self._schema = schema
        self._wanted = wanted
        self._left = dict.fromkeys(shard.names)
        self._known: set[str] = set()

    def fill(self, episode: WShardEpisode) -> None:
        for name in (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS):
            self._left.pop(name, None)
        for text in self._schema.texts.values():
            self._left.pop(text.ends, None)
        for spec in self._schema.channels:
            self._add_channel(episode, spec)
        fields = episode.__dict__
        fields["rewards"] = self._flag(layout.REWARD, "f32")
        fields["terminations"] = self._flag(layout.DONE, "u8")
        fields["truncations"] = self._flag(layout.TRUNCATED, "u8")
        if (clock := self._timestamps()) is not None:
            episode.set_clock(clock)
        elif episode.timebase.type == "timestamps_ns":
            # One existing writer says so and stores no times: its steps have a rate.
            episode.timebase = Timebase(tick_hz=episode.timebase.tick_hz)
        for name in list(self._left):
            if not name.startswith(layout.AIDS):
                self._add_unlisted(episode, name)
        for name in self._left:
            if not name.startswith(layout.AIDS) and self._wants(name, name):
                episode.blocks[name] = self._shard.view(name)
        self._check_wanted()

    def _wants(self, channel_id: str, block: str) -> bool:
        if self._wanted is None:
            return True
        self._known |= {channel_id, block}
        return channel_id in self._wanted or block in self._wanted

    def _check_wanted(self) -> None:
        """A channel that is asked for and not there is a mistake, not an empty episode."""
        if self._wanted is None:
            return
        self._known |= {*self._shard.names, *layout.EXACT}
        for name in sorted(self._wanted - self._known, key=str):
            raise ValueError(f"no channel {name!r} in {self._shard.path}.{nearest(str(name), self._known)}")

    def _add_channel(self, episode: WShardEpisode, spec: ChannelSpec) -> None:
        self._left.pop(spec.block, None)
        clock = None
        if spec.clock is not None:
            self._left.pop(spec.clock, None)
            clock = self._numbers(spec.clock, tensor_spec("i64"), None)
        if not self._wants(spec.id, spec.block):
            return
        rows = self._channel_rows(spec, clock.length if clock else self._schema.length)
        target = episode.observations if spec.lane == "signal" else episode.actions
        key = spec.block.partition("/")[2]
        target.data[key] = Channel.over(key, rows, clock=clock, about=own_copy(spec.about))

    def _channel_rows(self, spec: ChannelSpec, length: int) -> ChannelRows:
        if spec.block in self._shard:
            return self._rows(spec.block, spec.tensor, length)
        if length:
            raise CorruptLayoutError(
                f"is missing, though channel {spec.id!r} is listed", block=spec.block, path=self._shard.path,
                hint="Restore the file from another copy, or load the other channels with channels=[…].",
            )  # fmt: skip
        # A writer that never saw a step has nothing to store.
        return ArrayRows(np.zeros((0, *spec.tensor.shape), spec.tensor.dtype.dtype), spec.tensor)

    def _add_unlisted(self, episode: WShardEpisode, name: str) -> None:
        """Lanes, and the actions one existing writer does not list."""
        lane, _, rest = name.partition("/")
        lanes: dict[str, LaneMap] = {
            "omen": episode.omens,
            "uncert": episode.uncerts,
            "residual": episode.residuals,
        }
        spec = self._schema.lanes.get(name) or guess_spec(name, self._shard.raw_size(name), self._schema)
        if not rest or spec is None or (lane not in lanes and lane != "action"):
            return
        self._left.pop(name)
        if not self._wants(rest, name):
            return
        fixed = None if lane == "residual" else self._schema.length
        channel = Channel.over(
            rest, self._rows(name, spec, fixed), about=own_copy(self._schema.block_about.get(name))
        )
        if lane == "action":
            episode.actions[rest] = channel
        else:
            lanes[lane][rest] = channel

    def _flag(self, name: str, dtype: str) -> Channel | None:
        """Rewards or flags: in their own block, or exactly as they were in a block beside it."""
        is_there = self._left.pop(name, self) is None
        exact = self._schema.flags.get(name)
        if exact is not None and not fits_own_block(name, exact):
            self._left.pop(layout.EXACT[name], None)
            return self._flag_channel(name, layout.EXACT[name], exact)
        if not is_there or name in self._schema.absent:
            return None
        if self._schema.length and not self._shard.raw_size(name):
            return None  # One existing writer stores an empty block where there is no reward or done.
        return self._flag_channel(name, name, exact or self._foreign_dtype(name, dtype))

    def _flag_channel(self, name: str, block: str, dtype: DType) -> Channel:
        rows = self._numbers(block, tensor_spec(dtype.name), self._schema.length)
        return Channel.over(name, rows, about=own_copy(self._schema.block_about.get(name)))

    def _foreign_dtype(self, name: str, expected: str) -> DType:
        """One existing writer stores rewards and flags in whatever dtype it was given and does not say which."""
        size, length = self._shard.raw_size(name), self._schema.length
        plain = dtype_named(expected)
        if size == plain.itemsize * length or not length or size % length or size // length not in _WIDE:
            return plain
        other, small, power = _WIDE[size // length]
        bits = np.frombuffer(self._shard.view(name), dtype_named(small).dtype)
        # The bits of a small whole number are those of a denormal or an odd NaN, which nobody uses as a reward or flag;
        # of single bytes only a small number below zero is likely to have the highest bit.
        limit = 1 << power
        is_small = bits.any() and int(bits.min()) > -limit and int(bits.max()) < limit
        return dtype_named(small if is_small else other)

    def _timestamps(self) -> ChannelRows | None:
        self._left.pop(layout.TICKS, None)
        if self._left.pop(layout.TIMESTAMPS_NS, self) is self:
            return None
        return self._numbers(layout.TIMESTAMPS_NS, tensor_spec("i64"), self._schema.length)

    def _rows(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a channel: numbers, or text where the metadata says so."""
        text = self._schema.texts.get(name)
        if text is not None:
            ends = self._numbers(text.ends, tensor_spec("i64"), length)
            return TextRows(self._numbers(name, spec, None), ends, text.encoding, name, self._shard.path)
        return self._numbers(name, spec, length)

    def _numbers(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a block, after checking that its size is exactly what dtype, shape and length say."""
        if name not in self._shard:
            raise CorruptLayoutError("is missing", block=name, path=self._shard.path)
        size = self._shard.raw_size(name)
        if length is None:
            length = size // spec.row_bytes if spec.row_bytes else self._schema.length
        if length * spec.row_bytes != size:
            shape = ",".join(map(str, (length, *spec.shape)))
            raise CorruptLayoutError(
                f"has {size} bytes, {spec.dtype}[{shape}] needs {length * spec.row_bytes}",
                block=name,
                path=self._shard.path,
            )
        return self._shard.rows_of(name, spec, length)


_WIDE = {1: ("i8", "u8", 7), 2: ("f16", "i16", 10), 4: ("f32", "i32", 23), 8: ("f64", "i64", 52)}
"""By bytes per step: what it is, what it is where all values are below two to this power and one is not zero."""


def fits_own_block(name: str, dtype: DType) -> bool:
    """Whether `reward`, `done` or `truncated`, whose dtypes are fixed, can hold values of this dtype."""
    return dtype == "f32" if name == layout.REWARD else dtype in ("bool", "u8")
