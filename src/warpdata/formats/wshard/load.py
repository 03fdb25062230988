"""Open an episode shard as tensors by step; only header, table and metadata are read until asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import ArrayRows, Channel, TextRows
from warpdata.formats.wshard.episode import WShardEpisode
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
    if isinstance(channels, str):
        raise TypeError(f"channels is a list of ids, not one string: use channels=[{channels!r}]")
    return make_episode(shard, None if channels is None else set(channels))


def make_episode(shard: EpisodeShard, wanted: set[str] | None = None) -> WShardEpisode:
    """The episode a shard holds, or FormatError: the one set of rules for what is read and what may be written."""
    if shard.role != layout.ROLE_EPISODE:
        hint = "Open it with wd.open_episode()." if shard.role == layout.ROLE_CHUNK_LIST else None
        raise CorruptLayoutError(f"a shard of role {shard.role} is no episode", path=shard.path, hint=hint)
    schema = shard.schema
    index, total, steps = schema.chunk or (None, None, None)
    episode = WShardEpisode.of(
        {
            "id": schema.id,
            "env_id": schema.env_id,
            "length": schema.length,
            "timebase": schema.timebase,
            "metadata": own_copy(schema.metadata),
            "models": own_copy(schema.models),
            "about": own_copy(schema.about),
            "chunk_index": index,
            "total_chunks": total,
            "timestep_range": steps,
        }
    )
    _Loader(shard, schema, wanted).fill(episode)
    return episode


_META_BLOCKS = (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS)


class _Loader:
    """Assigns the blocks of one shard to the fields of one episode."""

    def __init__(self, shard: EpisodeShard, schema: EpisodeSchema, wanted: set[str] | None) -> None:
        self._shard = shard
        self._schema = schema
        self._wanted = wanted
        self._sizes = shard.sizes
        self._left = dict(self._sizes)
        self._known: set[str] = set()

    def fill(self, episode: WShardEpisode) -> None:
        for name in _META_BLOCKS:
            self._left.pop(name, None)
        for text in self._schema.texts.values():
            self._left.pop(text.ends, None)
        for spec in self._schema.channels:
            self._add_channel(episode, spec)
        fields = episode.__dict__
        fields["rewards"] = self._flag(layout.REWARD, "f32")
        fields["terminations"] = self._flag(layout.DONE, "u8")
        fields["truncations"] = self._flag(layout.TRUNCATED, "u8")
        self._left.pop(layout.TICKS, None)
        if layout.TIMESTAMPS_NS in self._left:
            del self._left[layout.TIMESTAMPS_NS]
            episode.set_clock(self._numbers(layout.TIMESTAMPS_NS, _I64, self._schema.length))
        elif episode.timebase.type == "timestamps_ns":
            # One existing writer states this type and stores no times: its steps have a rate.
            episode.timebase = Timebase(tick_hz=episode.timebase.tick_hz)
        for name in [name for name in self._left if not name.startswith(layout.AIDS)]:
            if not self._add_unlisted(episode, name) and self._wants(name, name):
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
        self._known |= {*self._sizes, *layout.EXACT}
        for name in sorted(self._wanted - self._known, key=str):
            raise ValueError(f"no channel {name!r} in {self._shard.path}.{nearest(str(name), self._known)}")

    def _add_channel(self, episode: WShardEpisode, spec: ChannelSpec) -> None:
        self._left.pop(spec.block, None)
        clock = None
        if spec.clock is not None:
            self._left.pop(spec.clock, None)
            clock = self._numbers(spec.clock, _I64, None)
        if not self._wants(spec.id, spec.block):
            return
        length = clock.length if clock else self._schema.length
        if spec.block in self._sizes:
            rows = self._rows(spec.block, spec.tensor, length)
        elif length:
            raise CorruptLayoutError(
                f"is missing, though channel {spec.id!r} is listed",
                block=spec.block,
                path=self._shard.path,
                hint="Restore the file from another copy, or load the other channels with channels=[…].",
            )
        else:  # a writer that never saw a step has nothing to store
            rows = ArrayRows(np.zeros((0, *spec.tensor.shape), spec.tensor.dtype.dtype), spec.tensor)
        target = episode.observations if spec.lane == "signal" else episode.actions
        key = spec.block.partition("/")[2]
        target.data[key] = Channel.over(
            key, rows, clock=clock, about=own_copy(spec.about) if spec.about else None
        )

    def _add_unlisted(self, episode: WShardEpisode, name: str) -> bool:
        """Add a lane, or an action that one existing writer does not list; False if the block is neither."""
        lane, _, rest = name.partition("/")
        field = _LANE_FIELDS.get(lane)
        spec = self._schema.lanes.get(name) or guess_spec(name, self._sizes[name], self._schema)
        if not rest or spec is None or field is None:
            return False
        if self._wants(rest, name):
            rows = self._rows(name, spec, None if lane == "residual" else self._schema.length)
            about = own_copy(self._schema.block_about.get(name))
            getattr(episode, field)[rest] = Channel.over(rest, rows, about=about)
        return True

    def _flag(self, name: str, dtype: str) -> Channel | None:
        """Rewards or flags: in their own block, or exactly as they were in a block beside it."""
        is_there = self._left.pop(name, None) is not None
        exact = self._schema.flags.get(name)
        if exact is not None and not fits_own_block(name, exact):
            self._left.pop(layout.EXACT[name], None)
            return self._flag_channel(name, layout.EXACT[name], exact)
        if not is_there or name in self._schema.absent:
            return None
        if self._schema.length and not self._sizes[name]:
            return None  # One existing writer stores an empty block where there is no reward or done.
        return self._flag_channel(name, name, exact or self._foreign_dtype(name, dtype))

    def _flag_channel(self, name: str, block: str, dtype: DType) -> Channel:
        rows = self._numbers(block, tensor_spec(dtype.name), self._schema.length)
        return Channel.over(name, rows, about=own_copy(self._schema.block_about.get(name)))

    def _foreign_dtype(self, name: str, expected: str) -> DType:
        """One existing writer stores rewards and flags in whatever dtype it was given and does not say which."""
        size, length = self._sizes[name], self._schema.length
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

    def _rows(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a channel: numbers, or text where the metadata says so."""
        text = self._schema.texts.get(name)
        if text is not None:
            ends = self._numbers(text.ends, _I64, length)
            return TextRows(self._numbers(name, spec, None), ends, text.encoding, name, self._shard.path)
        return self._numbers(name, spec, length)

    def _numbers(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a block, after checking that its size is exactly what dtype, shape and length say."""
        size = self._sizes.get(name)
        if size is None:
            raise CorruptLayoutError("is missing", block=name, path=self._shard.path)
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


_I64 = tensor_spec("i64")
_LANE_FIELDS = {"action": "actions", "omen": "omens", "uncert": "uncerts", "residual": "residuals"}
_WIDE = {1: ("i8", "u8", 7), 2: ("f16", "i16", 10), 4: ("f32", "i32", 23), 8: ("f64", "i64", 52)}
"""By bytes per step: what it is, what it is where all values are below two to this power and one is not zero."""


def fits_own_block(name: str, dtype: DType) -> bool:
    """Whether `reward`, `done` or `truncated`, whose dtypes are fixed, can hold values of this dtype."""
    return dtype == "f32" if name == layout.REWARD else dtype in ("bool", "u8")
