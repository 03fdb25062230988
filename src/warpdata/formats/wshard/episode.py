"""An episode by step: observations, actions, rewards and the lanes of models; filled by hand or loaded from a shard."""

from __future__ import annotations

import copy
import operator
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, as_array, dtype_named, read_only
from warpdata.bytekit.jsontext import plain_json
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    nearest,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.residual import error_residual, pack_residual, sign2nddiff
from warpdata.formats.wshard.rows import ArrayRows, ChannelRows, TextRows
from warpdata.formats.wshard.schema import (
    ChannelSpec,
    EpisodeSchema,
    MetaSource,
    TensorSpec,
    Timebase,
    guess_spec,
    own_copy,
    tensor_spec,
)

if TYPE_CHECKING:
    from typing import Self


MODALITIES = tuple(layout.CONTENT_TYPE_OF_MODALITY)

LATENT = "latent_action"

LATENT_CODEBOOK = "latent_action_codebook"


class ChannelMap(UserDict[str, Channel]):
    """Channels by id; an array put in becomes a Channel of that name."""

    def __init__(self, channels: Mapping[str, Any] | None = None) -> None:
        self.data = {}
        if channels:
            self.update(channels)

    def __setitem__(self, key: str, value: Any) -> None:
        require_kind("the name of a channel", key, str, "a text")
        channel = value if isinstance(value, Channel) else Channel(key, value)
        if channel.name != key:
            channel = copy.copy(channel)  # it may be another episode's, which keeps its name
            channel.about = copy.deepcopy(channel.about)
            channel.name = key
        super().__setitem__(key, channel)

    def __missing__(self, key: str) -> Any:
        known = list(self.data)
        listed = f"; there are {', '.join(known[:20])}{', …' if len(known) > 20 else ''}" if known else ""
        raise KeyError(f"no channel {key!r}{listed}.{nearest(str(key), known)}")


class LaneMap(ChannelMap):
    """Channels by path, such as `joint_pos/dreamer`; `lanes["joint_pos"]["dreamer"]` is the same channel."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for rest, each in value.items():
                self[f"{key}/{rest}"] = each
        else:
            super().__setitem__(key, value)

    def __getitem__(self, key: str) -> Any:
        if key in self.data:
            return self.data[key]
        below = {
            name[len(key) + 1 :]: value for name, value in self.data.items() if name.startswith(key + "/")
        }
        if not below:
            return self.__missing__(key)
        return _Branch(self, key, below)

    def __contains__(self, key: object) -> bool:
        return key in self.data or any(name.startswith(f"{key}/") for name in self.data)


class _Branch(LaneMap):
    """The channels below one path; what is put in lands in the whole map."""

    def __init__(self, whole: LaneMap, prefix: str, below: dict[str, Channel]) -> None:
        self._whole, self._prefix = whole, prefix
        self.data = below

    def __setitem__(self, key: str, value: Any) -> None:
        self._whole[f"{self._prefix}/{key}"] = value


_FLAGS = {"rewards": layout.REWARD, "terminations": layout.DONE, "truncations": layout.TRUNCATED}


@suggests
@dataclass
class WShardEpisode:
    """One recorded episode by step; every channel has `length` rows unless it brings its own clock."""

    id: str
    env_id: str = ""
    length: int = 0
    timebase: Timebase = field(default_factory=Timebase)
    observations: ChannelMap = field(default_factory=ChannelMap)
    actions: ChannelMap = field(default_factory=ChannelMap)
    rewards: Channel | None = None
    terminations: Channel | None = None
    truncations: Channel | None = None
    timestamps_ns: NDArray[np.int64] | None = None
    omens: LaneMap = field(default_factory=LaneMap)
    uncerts: LaneMap = field(default_factory=LaneMap)
    residuals: LaneMap = field(default_factory=LaneMap)
    metadata: dict[str, Any] = field(default_factory=dict)
    models: list[Any] = field(default_factory=list)
    chunk_index: int | None = None
    total_chunks: int | None = None
    timestep_range: tuple[int, int] | None = None
    blocks: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("observations", "actions") and not isinstance(value, ChannelMap):
            value = ChannelMap(value)
        elif name in ("omens", "uncerts", "residuals") and not isinstance(value, LaneMap):
            value = LaneMap(value)
        elif name in _FLAGS and value is not None and not isinstance(value, Channel):
            value = Channel(_FLAGS[name], value)
        elif name == "timebase":
            value = Timebase.of(value)
        elif name == "timestep_range" and value is not None:
            value = _pair(value)
        elif name not in _NO_FIELDS and not hasattr(type(self), name):
            raise AttributeError(f"an episode has no {name!r}.{nearest(name, _NO_FIELDS)}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an episode has no {name!r}.{nearest(name, _NO_FIELDS)}")

    def __getstate__(self) -> dict[str, Any]:
        """Every field for another process; uninterpreted blocks are sent as bytes."""
        views = {name: bytes(each) for name, each in self.blocks.items() if isinstance(each, memoryview)}
        return {**self.__dict__, "blocks": {**self.blocks, **views}}

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Make an episode from valid fields, without the checks of assignment."""
        made = cls.__new__(cls)
        made.__dict__ = fields = {**_NO_FIELDS, **known}
        for name, empty in _EMPTY_FIELDS.items():
            if name not in known:
                fields[name] = empty()
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WShardEpisode):
            return NotImplemented
        clocks = self.timestamps_ns, other.timestamps_ns
        mine, theirs = dict(self.__dict__), dict(other.__dict__)
        del mine["timestamps_ns"], theirs["timestamps_ns"]
        for name in ("metadata", "models", "about"):  # compared as JSON, which has no tuples
            mine[name], theirs[name] = plain_json(mine[name]), plain_json(theirs[name])
        blocks = mine.pop("blocks"), theirs.pop("blocks")
        same_blocks = {k: bytes(v) for k, v in blocks[0].items()} == {
            k: bytes(v) for k, v in blocks[1].items()
        }
        return mine == theirs and same_blocks and _same_array(*clocks)

    __hash__ = None  # type: ignore[assignment]

    def set_clock(self, rows: ChannelRows) -> None:
        """Take the timestamps of the steps from a source that is read on first use."""
        self.__dict__["timestamps_ns"] = _LazyTimes(rows)

    @property
    def clock_source(self) -> ChannelRows | None:
        """The source of the timestamps of the steps; None if they follow a rate."""
        held = self.__dict__["timestamps_ns"]
        if isinstance(held, np.ndarray):
            return ArrayRows(held, TensorSpec(dtype_named("i64"), ()))
        return None if held is None else held.source

    @property
    def is_chunked(self) -> bool:
        """Whether this is one chunk of a longer episode."""
        return self.chunk_index is not None

    def clone(self) -> Self:
        """An episode of its own: changing it leaves this one as it is; rows in a file are not read."""
        made = copy.copy(self)
        made.observations = ChannelMap({key: each.clone() for key, each in self.observations.items()})
        made.actions = ChannelMap({key: each.clone() for key, each in self.actions.items()})
        for name in ("omens", "uncerts", "residuals"):
            setattr(made, name, {key: each.clone() for key, each in getattr(self, name).data.items()})
        for name in _FLAGS:
            flag = getattr(self, name)
            setattr(made, name, None if flag is None else flag.clone())
        for name in ("metadata", "models", "about"):
            setattr(made, name, copy.deepcopy(getattr(self, name)))
        made.blocks = dict(self.blocks)
        if isinstance(stamps := self.__dict__["timestamps_ns"], np.ndarray):
            made.timestamps_ns = stamps.copy()
        return made

    @property
    def predictions(self) -> LaneMap:
        """Observations predicted by models; the document calls them omens."""
        return self.omens

    @predictions.setter
    def predictions(self, value: Mapping[str, Any]) -> None:
        self.omens = LaneMap(value)

    @property
    def uncertainties(self) -> LaneMap:
        """How sure models were; the document calls them uncerts."""
        return self.uncerts

    @uncertainties.setter
    def uncertainties(self, value: Mapping[str, Any]) -> None:
        self.uncerts = LaneMap(value)

    @property
    def in_time(self) -> Any:
        """The same episode as signals in time."""
        from warpdata.episodes.sources.shard_episode import ShardSource  # the two views offer each other
        from warpdata.timeline.episode import Episode

        return Episode(ShardSource(self))

    def lanes(self) -> Iterator[tuple[str, Channel]]:
        """Every channel with its block name, in the order they are stored."""
        for name, channel in self.observations.data.items():
            yield f"signal/{name}", channel
        for name, channel in self.actions.data.items():
            yield f"action/{name}", channel
        for prefix, lane in (("omen", self.omens), ("uncert", self.uncerts), ("residual", self.residuals)):
            for name in lane.data:
                yield f"{prefix}/{name}", lane.data[name]

    def times_ns(self) -> NDArray[np.int64]:
        """The time of each step in nanoseconds, from the timestamps or from the rate."""
        if self.timestamps_ns is not None:
            return self.timestamps_ns
        self.check_rate()
        times = np.arange(self.length, dtype=np.float64)
        times *= 1e9 / self.timebase.tick_hz
        return np.round(times, out=times).astype(np.int64)

    def check_rate(self) -> None:
        """Raise LimitExceededError where the rate gives more times than fit: nothing in a file backs its length."""
        if self.length > layout.MAX_TIMES or self.length * (1e9 / self.timebase.tick_hz) >= 2**63:
            raise LimitExceededError(
                f"{self.length} steps at {self.timebase.tick_hz:g} per second are too many at once"
            )

    def add_modality(self, group: str, modality: str, data: Any, **about: Any) -> Channel:
        """Add a multi-modal observation as `signal/<group>/<modality>`."""
        require_word("a modality", modality, MODALITIES)
        name = f"{group}/{modality}"
        self.observations[name] = Channel(name, data, about={"modality": modality, **about})
        return self.observations[name]

    def modality_groups(self) -> dict[str, dict[str, Channel]]:
        """Observations by group and modality; a channel without a group belongs to `default`."""
        groups: dict[str, dict[str, Channel]] = {}
        for name, channel in self.observations.items():
            group, _, rest = name.partition("/")
            kind = channel.modality
            if not isinstance(kind, str):
                kind = rest if rest in MODALITIES else ""
            if kind:
                groups.setdefault(group if rest else "default", {})[kind] = channel
        return groups

    def set_latent_action(self, model: str, embeddings: Any, codebook: Any = None) -> None:
        """Store a model's latent actions, and their codebook indices if it has any."""
        self.omens[f"{LATENT}/{model}"] = embeddings
        if codebook is not None:
            self.omens[f"{LATENT_CODEBOOK}/{model}"] = codebook

    def latent_action(self, model: str) -> Channel:
        """The latent action embeddings of a model."""
        found: Channel = self.omens[f"{LATENT}/{model}"]
        return found

    def latent_codebook(self, model: str) -> Channel:
        """The codebook indices of a model's latent actions."""
        found: Channel = self.omens[f"{LATENT_CODEBOOK}/{model}"]
        return found

    def add_residual(self, channel: str, *, model: str | None = None) -> Channel:
        """Store the sign2nddiff bits of an observation, or with `model` the error of its prediction."""
        truth = self.observations[channel].data
        if truth.dtype == object:
            raise SchemaMismatchError(f"channel {channel!r} holds text or JSON: only numbers have a residual")
        if model is None:
            packed = np.frombuffer(pack_residual(sign2nddiff(truth)), np.uint8)
            key, value = f"{channel}/sign2nddiff", packed
        else:
            error = error_residual(truth, self.omens[f"{channel}/{model}"].data)
            key, value = f"{channel}/error/{model}", error
        self.residuals[key] = value
        return self.residuals.data[key]

    def validate(self) -> None:
        """Raise SchemaMismatchError unless every channel has as many rows as the episode has steps."""
        if isinstance(self.length, bool) or not isinstance(self.length, int | np.integer) or self.length < 0:
            raise SchemaMismatchError(
                f"length is {self.length!r:.40}, the number of steps was expected",
                hint="Set length to the number of rows of the channels.",
            )
        self._check_kinds()
        if self.chunk_index is None and (self.total_chunks, self.timestep_range) != (None, None):
            raise SchemaMismatchError(
                "total_chunks and timestep_range belong to a chunk, and this has no chunk_index",
                hint="Set chunk_index too, or leave the others None.",
            )
        if self.timestep_range is not None and self.timestep_range[1] - self.timestep_range[0] != self.length:
            raise SchemaMismatchError(
                f"timestep_range: expected {self.length} steps, got {self.timestep_range}",
                hint="Give the first step and the step after the last one.",
            )
        for block, channel in self.lanes():
            if channel.clock_source is None and not block.startswith("residual/"):
                self._expect(block, channel.length)
        for attribute, block in _FLAGS.items():
            flag: Channel | None = getattr(self, attribute)
            if flag is not None:
                self._expect(block, flag.length)
                if flag.row_shape != ():
                    raise SchemaMismatchError(f"{attribute} is not one value per step", block=block)
        if self.timestamps_ns is not None:
            self._expect(layout.TIMESTAMPS_NS, len(self.timestamps_ns))

    def _check_kinds(self) -> None:
        """Fields that anything can be assigned to hold what the format has a place for."""
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise SchemaMismatchError(f"{name} is {type(value).__name__}, {kind.__name__} was expected")

    def _expect(self, block: str, rows: int) -> None:
        if rows != self.length:
            raise SchemaMismatchError(
                f"has {rows} rows, the episode has {self.length} steps",
                block=block,
                hint="Set length to the number of steps, or give the channel its own timestamps_ns.",
            )

    def __repr__(self) -> str:
        parts = [f"id={self.id!r}", f"length={self.length}"]
        parts += [
            f"{name}={list(getattr(self, name))}"
            for name in ("observations", "actions")
            if getattr(self, name)
        ]
        parts += [
            f"{name}={list(getattr(self, name))}"
            for name in ("omens", "uncerts", "residuals")
            if getattr(self, name)
        ]
        return f"WShardEpisode({', '.join(parts)})"


_KINDS: dict[str, type] = {
    "metadata": dict, "about": dict, "models": list, "blocks": dict
}  # fmt: skip

_NO_FIELDS = dict.fromkeys(each.name for each in dataclass_fields(WShardEpisode))

_EMPTY_FIELDS: dict[str, Callable[[], Any]] = {
    each.name: each.default_factory
    for each in dataclass_fields(WShardEpisode)
    if each.default_factory is not MISSING
}


class _LazyTimes:
    """Times that are read once, on first use; read-only, because they are in a file."""

    def __init__(self, source: ChannelRows) -> None:
        self.source = source
        self._array: NDArray[np.int64] | None = None

    @property
    def array(self) -> NDArray[np.int64]:
        if self._array is None:
            self._array = read_only(self.source.rows(0, self.source.length))
            _LENT[id(self._array)] = self
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "_array": None}


_LENT: WeakValueDictionary[int, _LazyTimes] = WeakValueDictionary()

"""By the id of the array that was handed out: times put into another episode, as `dataclasses.replace` does, stay those
of the file."""


class _Clock:
    """Reads `timestamps_ns` from its source on first use."""

    def __get__(self, episode: WShardEpisode | None, owner: type) -> Any:
        if episode is None:
            return self
        value = episode.__dict__["timestamps_ns"]
        return value.array if isinstance(value, _LazyTimes) else value

    def __set__(self, episode: WShardEpisode, value: Any) -> None:
        held = _LENT.get(id(value)) or (None if value is None else _times(value))
        episode.__dict__["timestamps_ns"] = held


WShardEpisode.timestamps_ns = _Clock()  # type: ignore[assignment]


def _pair(value: Any) -> tuple[int, int]:
    """Two steps, from any sequence of whole numbers."""
    try:
        start, end = (operator.index(each) for each in value)
    except (TypeError, ValueError):
        raise SchemaMismatchError(
            f"timestep_range is {value!r:.60}, the first step and the one after the last were expected"
        ) from None
    return start, end


def _times(value: Any) -> NDArray[Any]:
    hint = "Give int64 nanoseconds, one per step."
    try:
        array = as_array(value)
    except ValueError as error:
        raise SchemaMismatchError(f"timestamps_ns is {error}", hint=hint) from None
    if array.ndim != 1:
        raise SchemaMismatchError(f"timestamps_ns has the shape {list(array.shape)}", hint=hint)
    return array


def _same_array(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b))


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

    `channels` keeps only these ids or block names; rewards, flags and times are always there. `verify` chooses what is
    compared with a checksum, see `Verify`.
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
        """Raise ValueError for a requested channel that does not exist."""
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
        """One existing writer stores rewards and flags in any dtype and does not state which."""
        size, length = self._sizes[name], self._schema.length
        plain = dtype_named(expected)
        if size == plain.itemsize * length or not length or size % length or size // length not in _WIDE:
            return plain
        other, small, power = _WIDE[size // length]
        bits = np.frombuffer(self._shard.view(name), dtype_named(small).dtype)
        # The bits of a small whole number are those of a denormal or an odd NaN, which is never a reward or flag;
        # of single bytes only a small number below zero is likely to have the highest bit.
        limit = 1 << power
        is_small = bits.any() and int(bits.min()) > -limit and int(bits.max()) < limit
        return dtype_named(small if is_small else other)

    def _rows(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a channel: numbers, or text by the metadata."""
        text = self._schema.texts.get(name)
        if text is not None:
            ends = self._numbers(text.ends, _I64, length)
            return TextRows(self._numbers(name, spec, None), ends, text.encoding, name, self._shard.path)
        return self._numbers(name, spec, length)

    def _numbers(self, name: str, spec: TensorSpec, length: int | None) -> ChannelRows:
        """The rows of a block, after checking that its size is exactly that of dtype, shape and length."""
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
