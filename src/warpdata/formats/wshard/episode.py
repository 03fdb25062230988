"""An episode by step and its channels; filled by hand or loaded from a shard."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, as_array, dtype_named, dtype_of, read_only, select_rows
from warpdata.bytekit.jsontext import plain_json
from warpdata.bytekit.process.forks import cached_property
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    StoreError,
    nearest,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.reader import ShardReader, Source, Verify
from warpdata.formats.wshard.residual import error_residual, pack_residual, sign2nddiff
from warpdata.formats.wshard.rows import (
    ArrayRows,
    BlockRows,
    ChannelRows,
    TextRows,
    encode_value,
    is_stored,
    is_text,
    read_numbers,
    text_spec,
)
from warpdata.formats.wshard.schema import (
    BlockSpec,
    TensorSpec,
    Timebase,
    guess_spec,
    own_copy,
    tensor_spec,
)

if TYPE_CHECKING:
    from typing import Self


class Channel:
    """Named rows over time; `data` is read when first touched, `channel[a:b]` reads only those rows.

    Strings make a text channel and dicts a JSON channel: one value of any length per step.
    """

    @suggests
    def __init__(
        self,
        name: str,
        data: Any,
        *,
        timestamps_ns: Any = None,
        about: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        rows = _checked(name, data)
        self.name = name
        self.about: dict[str, Any] = {**(about or {}), **more}
        self._rows: ChannelRows = rows
        self._data: NDArray[Any] | None = rows.array
        self._clock: ChannelRows | None = None
        if timestamps_ns is not None:
            self.timestamps_ns = timestamps_ns

    @classmethod
    def over(
        cls,
        name: str,
        rows: ChannelRows,
        *,
        clock: ChannelRows | None = None,
        about: dict[str, Any] | None = None,
    ) -> Channel:
        """A channel whose rows stay where they are until they are read."""
        channel = cls.__new__(cls)
        channel.name, channel.about = name, own_copy(about) if about else {}
        channel._rows, channel._data, channel._clock = rows, None, clock
        return channel

    @classmethod
    def text(cls, name: str, values: Iterable[str], **options: Any) -> Self:
        """A channel of one string per step, also of no steps."""
        return cls(name, _values(name, "text", values), **options)

    @classmethod
    def json(cls, name: str, values: Iterable[Any], **options: Any) -> Self:
        """A channel of one JSON value per step: objects, lists, strings, numbers, null."""
        return cls(name, _values(name, "json", values), **options)

    def clone(self) -> Self:
        """A channel of its own with the same rows: arrays are copied, rows in a file stay there."""
        made = copy.copy(self)
        made.about = copy.deepcopy(self.about)
        if isinstance(self._rows, ArrayRows):
            made._rows = ArrayRows(copy.deepcopy(self._rows.array), self._rows.spec)
            made._data = made._rows.array
        if isinstance(self._clock, ArrayRows):
            made._clock = ArrayRows(self._clock.array.copy(), self._clock.spec)
        return made

    @property
    def data(self) -> NDArray[Any]:
        """All rows as one array; read-only if they are in a file: a change in place would not be saved."""
        if self._data is None:
            self._data = read_only(self._rows.rows(0, self._rows.length))
        elif isinstance(self._rows, BlockRows):
            with contextlib.suppress(StoreError):  # a closed file, whose arrays stay valid
                self._rows.shard.check_not_truncated()  # touching lost pages would end the process
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        rows = _checked(self.name, value)
        self._rows, self._data = rows, rows.array

    @property
    def dtype(self) -> DType:
        """The element type; equal to its short name (`"f32"`) and to its numpy dtype."""
        return self._rows.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape, time first."""
        return (self._rows.length, *self._rows.spec.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self._rows.spec.shape

    def to_numpy(self) -> NDArray[Any]:
        """All rows as one array; read-only if they are in a file."""
        return self.data

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self._rows.length

    @property
    def row_source(self) -> ChannelRows:
        """Where the rows come from; for writers that stream them."""
        return self._rows

    @property
    def clock_source(self) -> ChannelRows | None:
        """Where the timestamps of a channel with its own clock come from."""
        return self._clock

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The channel's own clock, one int64 per row, or None if it follows the episode."""
        return None if self._clock is None else read_numbers(self._clock)

    @timestamps_ns.setter
    def timestamps_ns(self, value: Any) -> None:
        if value is None:
            self._clock = None
            return
        array = _array(self.name, value)
        if array.dtype != np.int64 or array.shape != (self.length,):
            raise SchemaMismatchError(
                f"the clock of {self.name!r} is {array.dtype}{list(array.shape)}, "
                f"int64[{self.length}] was expected"
            )
        self._clock = ArrayRows(array, tensor_spec("i64"))

    def __getattr__(self, name: str) -> Any:
        # What is known about a channel (unit, modality, semantics …) reads like an attribute.
        if not name.startswith("_") and name in self.__dict__.get("about", {}):
            return self.about[name]
        if name in ("unit", "semantics", "modality", "description", "sampling_rate_hz", "content_type"):
            return None
        raise AttributeError(f"channel has no attribute {name!r}")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> Any:
        if self._data is not None:
            return self.data[key]
        rows = self._rows
        spec = rows.spec
        bring = rows.bring if isinstance(rows, BlockRows) else None
        return select_rows(key, (rows.length, *spec.shape), rows.rows, spec.dtype.itemsize, bring)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if dtype is None and not copy:
            return self.data
        return np.array(self.data, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Channel):
            return NotImplemented
        if self.describe() != other.describe() or self.name != other.name:
            return False
        mine, theirs = self.timestamps_ns, other.timestamps_ns
        same_clock = mine is None or theirs is None or bool(np.array_equal(mine, theirs))
        if is_text(self.dtype):
            return same_clock and bool(self.data.tolist() == other.data.tolist())
        a, b = np.ascontiguousarray(self.data), np.ascontiguousarray(other.data)
        return same_clock and a.tobytes() == b.tobytes()

    def describe(self) -> tuple[Any, ...]:
        """Everything but name and values, in a form that can be compared: dtype, shape, clock and metadata."""
        clock = None if self._clock is None else self._clock.length
        return str(self.dtype), self.shape, clock, plain_json(self.about)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        """Rows in a file stay there: another process opens the file again instead of receiving its bytes."""
        keep = isinstance(self._rows, ArrayRows)
        return {**self.__dict__, "_data": self._data if keep else None}

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        clock = ", own clock" if self._clock is not None else ""
        return f"Channel({self.name!r}, {self.dtype}[{shape}]{clock})"


def _checked(name: str, data: Any) -> ArrayRows:
    """The rows a caller gave, if they are of a type that can be stored."""
    if isinstance(data, ArrayRows):
        return data
    array = _array(name, data)
    if array.ndim == 0:
        raise SchemaMismatchError(f"channel {name!r} has no time axis", hint="Give an array of shape [T, …].")
    values = array.ravel().tolist() if array.dtype == object else []
    has_text = array.dtype.kind == "U" or (values and all(isinstance(value, str) for value in values))
    if has_text or (values and all(isinstance(value, dict) for value in values)):
        encoding = "text" if has_text else "json"
        if array.ndim != 1:
            raise SchemaMismatchError(f"channel {name!r} has more than one {encoding} per step")
        return _values(name, encoding, array)
    try:
        return ArrayRows(array, TensorSpec(dtype_of(array.dtype), array.shape[1:]))
    except ValueError as error:
        hint = "Convert it with .astype() first; Channel.json() stores any JSON value."
        raise SchemaMismatchError(f"channel {name!r}: {error}", hint=hint) from None


def _array(name: str, value: Any) -> NDArray[Any]:
    try:
        return as_array(value)
    except ValueError as error:
        raise SchemaMismatchError(f"channel {name!r} is {error}") from None


def _values(name: str, encoding: str, values: Iterable[Any]) -> ArrayRows:
    """Values as an array of objects, each of them checked."""
    try:
        listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
        out = np.empty(len(listed), object)
        for index, value in enumerate(listed):
            encode_value(encoding, value)
            out[index] = plain_json(value)
    except (TypeError, ValueError) as error:
        raise SchemaMismatchError(f"channel {name!r}: {error}") from None
    return ArrayRows(out, text_spec(encoding))


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


FLAGS = {"rewards": layout.REWARD, "terminations": layout.DONE, "truncations": layout.TRUNCATED}
"""Field of an episode -> block."""
LANES = {
    "observations": "signal", "actions": "action", "omens": "omen", "uncerts": "uncert", "residuals": "residual",
}  # fmt: skip
"""Field of an episode -> first part of the names of its blocks."""
_FIELD_OF = {name: field for field, name in (*LANES.items(), *FLAGS.items())}
_JSON_FIELDS = ("metadata", "models", "about")


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
        elif name in FLAGS and value is not None and not isinstance(value, Channel):
            value = Channel(FLAGS[name], value)
        elif name == "timebase":
            value = Timebase.of(value)
        elif name == "timestep_range" and value is not None:
            try:
                start, end = (operator.index(step) for step in value)
            except (TypeError, ValueError):
                raise SchemaMismatchError(
                    f"timestep_range is {value!r:.60}, the first step and the one after the last were expected"
                ) from None
            value = start, end
        elif name not in _NO_FIELDS and not hasattr(type(self), name):
            raise AttributeError(f"an episode has no {name!r}.{nearest(name, _NO_FIELDS)}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an episode has no {name!r}.{nearest(name, _NO_FIELDS)}")

    def __getstate__(self) -> dict[str, Any]:
        """Every field for another process; uninterpreted blocks are sent as bytes."""
        views = {name: bytes(data) for name, data in self.blocks.items() if isinstance(data, memoryview)}
        return {**self.__dict__, "blocks": {**self.blocks, **views}}

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WShardEpisode):
            return NotImplemented
        return self._comparable() == other._comparable()

    def _comparable(self) -> dict[str, Any]:
        """Every field in a form that == compares: times as bytes, metadata as JSON, which has no tuples."""
        times = self.timestamps_ns
        return {
            **self.__dict__,
            **{name: plain_json(getattr(self, name)) for name in _JSON_FIELDS},
            "blocks": {name: bytes(data) for name, data in self.blocks.items()},
            "timestamps_ns": None if times is None else times.tolist(),
        }

    __hash__ = None  # type: ignore[assignment]

    def set_clock(self, rows: ChannelRows) -> None:
        """Take the timestamps of the steps from a source that is read on first use."""
        self.__dict__["timestamps_ns"] = _LazyTimes(rows)

    @property
    def clock_source(self) -> ChannelRows | None:
        """The source of the timestamps of the steps; None if they follow a rate."""
        source: ChannelRows | None = self.__dict__["timestamps_ns"]
        return source

    @property
    def is_chunked(self) -> bool:
        """Whether this is one chunk of a longer episode."""
        return self.chunk_index is not None

    def clone(self) -> Self:
        """An episode of its own: changing it leaves this one as it is; rows in a file are not read."""
        made = self.map_channels(lambda _, channel: channel.clone())
        for name in _JSON_FIELDS:
            setattr(made, name, copy.deepcopy(getattr(self, name)))
        made.blocks = dict(self.blocks)
        if isinstance(self.clock_source, ArrayRows):
            made.timestamps_ns = self.clock_source.array.copy()
        return made

    def map_channels(self, change: Callable[[str, Channel], Channel]) -> Self:
        """A copy whose channels, rewards and flags are `change(block, channel)`."""
        made = copy.copy(self)
        for name, lane in LANES.items():
            channels: ChannelMap = getattr(self, name)
            new = type(channels)()
            new.data = {key: change(f"{lane}/{key}", channel) for key, channel in channels.data.items()}
            setattr(made, name, new)
        for name, block in FLAGS.items():
            flag = getattr(self, name)
            setattr(made, name, None if flag is None else change(block, flag))
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
        fields = self.__dict__
        for name, lane in LANES.items():
            for key, channel in fields[name].data.items():
                yield f"{lane}/{key}", channel

    def flags(self) -> Iterator[tuple[str, Channel]]:
        """Rewards and flags that there are, with their block names."""
        for name, block in FLAGS.items():
            if (flag := getattr(self, name)) is not None:
                yield block, flag

    def channel(self, block: str) -> Channel:
        """The channel, rewards or flags of a block."""
        lane, _, key = block.partition("/")
        channel: Channel = (
            getattr(self, _FIELD_OF[lane]).data[key] if key else getattr(self, _FIELD_OF[block])
        )
        return channel

    def describe(self) -> dict[str, Any]:
        """Everything but rows and times, by a name for messages, in a form that can be compared."""
        facts = {name: plain_json(getattr(self, name)) for name in ("id", "env_id", "length", "models")}
        facts["rate"] = self.timebase
        facts["timestamps_ns"] = self.clock_source is not None
        facts |= {f"metadata {key!r}": value for key, value in plain_json(self.metadata).items()}
        facts |= {f"episode key {key!r}": value for key, value in plain_json(self.about).items()}
        for name, channel in (*self.lanes(), *self.flags()):
            facts[f"channel {name!r}"] = channel.describe()
        return facts

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
        channel: Channel = self.omens[f"{LATENT}/{model}"]
        return channel

    def latent_codebook(self, model: str) -> Channel:
        """The codebook indices of a model's latent actions."""
        channel: Channel = self.omens[f"{LATENT_CODEBOOK}/{model}"]
        return channel

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
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise SchemaMismatchError(f"{name} is {type(value).__name__}, {kind.__name__} was expected")
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
        clocks = () if self.clock_source is None else ((layout.TIMESTAMPS_NS, self.clock_source.length),)
        lanes = ((name, channel.length) for name, channel in self.lanes() if channel.clock_source is None)
        for block, rows in (*clocks, *lanes):
            if not block.startswith("residual/"):
                self._expect(block, rows)
        for block, flag in self.flags():
            self._expect(block, flag.length)
            if flag.row_shape != ():
                raise SchemaMismatchError("is not one value per step", block=block)

    def _expect(self, block: str, rows: int) -> None:
        if rows != self.length:
            raise SchemaMismatchError(
                f"has {rows} rows, the episode has {self.length} steps",
                block=block,
                hint="Set length to the number of steps, or give the channel its own timestamps_ns.",
            )

    def __repr__(self) -> str:
        lanes = [f", {name}={list(getattr(self, name))}" for name in LANES if getattr(self, name)]
        return f"WShardEpisode(id={self.id!r}, length={self.length}{''.join(lanes)})"


_KINDS: dict[str, type] = {"metadata": dict, "about": dict, "models": list, "blocks": dict}
_NO_FIELDS = dict.fromkeys(field.name for field in dataclass_fields(WShardEpisode))


class _LazyTimes:
    """Times that are read once, on first use; read-only, because they are in a file."""

    def __init__(self, source: ChannelRows) -> None:
        self._source, self.rows = source, source.rows
        self.spec, self.length, self.is_stored = source.spec, source.length, is_stored(source)

    @cached_property
    def array(self) -> NDArray[np.int64]:
        """All times."""
        array = read_only(read_numbers(self._source))
        _LENT[id(array)] = self
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return (_LazyTimes, (self._source,))


_LENT: WeakValueDictionary[int, _LazyTimes] = WeakValueDictionary()
"""By the id of an array of times: put into another episode, as `dataclasses.replace` does, it stays one of a file."""


class _Clock:
    """The field `timestamps_ns`: holds a source of times, gives and takes arrays."""

    def __get__(self, episode: WShardEpisode | None, owner: type) -> Any:
        if episode is None:
            return self
        source = episode.__dict__["timestamps_ns"]
        return None if source is None else source.array

    def __set__(self, episode: WShardEpisode, value: Any) -> None:
        source = None if value is None else _LENT.get(id(value)) or ArrayRows(_times(value), _I64)
        episode.__dict__["timestamps_ns"] = source


WShardEpisode.timestamps_ns = _Clock()  # type: ignore[assignment]


def _times(value: Any) -> NDArray[Any]:
    hint = "Give int64 nanoseconds, one per step."
    try:
        array = as_array(value)
    except ValueError as error:
        raise SchemaMismatchError(f"timestamps_ns is {error}", hint=hint) from None
    if array.ndim != 1:
        raise SchemaMismatchError(f"timestamps_ns has the shape {list(array.shape)}", hint=hint)
    return array


def load_wshard(
    source: Source | ShardReader, channels: Collection[str] | None = None, *, verify: Verify = "block"
) -> WShardEpisode:
    """Open an episode: lazy, zero-copy for raw blocks; FormatError if the shard holds none.

    `channels` keeps only these ids or block names; rewards, flags and times are always there. `verify` chooses what is
    compared with a checksum, see `Verify`.
    """
    shard = source if isinstance(source, ShardReader) else ShardReader.open(source, verify=verify)
    if isinstance(channels, str):
        raise TypeError(f"channels is a list of ids, not one string: use channels=[{channels!r}]")
    if shard.role != layout.ROLE_EPISODE:
        hint = "Open it with wd.open_episode()." if shard.role == layout.ROLE_CHUNK_LIST else None
        raise CorruptLayoutError(f"a shard of role {shard.role} is no episode", path=shard.path, hint=hint)
    schema, stored = shard.schema, shard.table.blocks
    wanted = None if channels is None else set(channels)
    observations, actions = ChannelMap(), ChannelMap()
    for spec in schema.channels:
        if wanted is None or spec.id in wanted or spec.block in wanted:
            lane, _, key = spec.block.partition("/")
            (observations if lane == "signal" else actions).data[key] = _channel(
                shard, spec, key, schema.length
            )
    timebase, times = schema.timebase, None
    if layout.TIMESTAMPS_NS in stored:
        times = _LazyTimes(_numbers(shard, layout.TIMESTAMPS_NS, _I64, schema.length))
    elif timebase.type == "timestamps_ns":
        # One existing writer states this type and stores no times: its steps have a rate.
        timebase = Timebase(tick_hz=timebase.tick_hz)
    episode = WShardEpisode.__new__(WShardEpisode)
    fields = episode.__dict__  # valid fields, without the checks of assignment
    fields["id"], fields["env_id"], fields["length"] = schema.id, schema.env_id, schema.length
    fields["timebase"], fields["timestamps_ns"] = timebase, times
    fields["observations"], fields["actions"] = observations, actions
    fields["rewards"] = fields["terminations"] = fields["truncations"] = None
    fields["omens"], fields["uncerts"], fields["residuals"] = LaneMap(), LaneMap(), LaneMap()
    fields["metadata"], fields["models"] = own_copy(schema.metadata), own_copy(schema.models)
    fields["chunk_index"], fields["total_chunks"], fields["timestep_range"] = schema.chunk
    fields["blocks"], fields["about"] = {}, own_copy(schema.about)
    for name, flag in schema.flags.items():
        fields[_FIELD_OF[name]] = _flag(shard, name, flag, schema.length)
    for block in schema.unlisted:
        _add_unlisted(episode, shard, block, wanted)
    if wanted is not None:
        _check_known(shard, wanted)
    return episode


def _check_known(shard: ShardReader, wanted: set[str]) -> None:
    """Raise ValueError unless the file has all of these ids and blocks."""
    known = {*shard.table.blocks, *layout.EXACT}
    known |= {name.partition("/")[2] for name in shard.schema.unlisted}
    known |= {name for spec in shard.schema.channels for name in (spec.id, spec.block)}
    for name in sorted(wanted - known, key=str):
        raise ValueError(f"no channel {name!r} in {shard.path}.{nearest(str(name), known)}")


_I64 = tensor_spec("i64")
_WIDE = {1: ("i8", "u8", 7), 2: ("f16", "i16", 10), 4: ("f32", "i32", 23), 8: ("f64", "i64", 52)}
"""By bytes per step: what it is, what it is where all values are below two to this power and one is not zero."""


def _channel(shard: ShardReader, spec: BlockSpec, key: str, length: int) -> Channel:
    """A channel that `meta/channels` lists."""
    clock = None
    if spec.clock is not None:
        clock = _numbers(shard, spec.clock, _I64, None)
        length = clock.length
    if spec.block in shard.table.blocks:
        rows = _rows(shard, spec, length)
    elif length:
        raise CorruptLayoutError(
            f"is missing, though channel {spec.id!r} is listed",
            block=spec.block,
            path=shard.path,
            hint="Restore the file from another copy, or load the other channels with channels=[…].",
        )
    else:  # a writer that never saw a step has nothing to store
        rows = ArrayRows(np.zeros((0, *spec.tensor.shape), spec.tensor.dtype.dtype), spec.tensor)
    return Channel.over(key, rows, clock=clock, about=spec.about)


def _add_unlisted(episode: WShardEpisode, shard: ShardReader, name: str, wanted: set[str] | None) -> None:
    """Add a lane, an action that one existing writer does not list, or an uninterpreted block."""
    lane, _, key = name.partition("/")
    spec = shard.schema.lanes.get(name)
    guess = guess_spec(name, shard.block(name).raw_size, shard.schema) if spec is None else None
    if guess is not None:
        spec = BlockSpec(name, guess, {})
    is_lane = key and spec is not None and lane != "signal" and lane in _FIELD_OF
    if wanted is not None and name not in wanted and not (is_lane and key in wanted):
        return
    if not is_lane or spec is None:
        episode.blocks[name] = shard.view(name)
    else:
        rows = _rows(shard, spec, None if lane == "residual" else shard.schema.length)
        getattr(episode, _FIELD_OF[lane])[key] = Channel.over(key, rows, about=spec.about)


def _flag(shard: ShardReader, name: str, spec: BlockSpec | None, length: int) -> Channel | None:
    """Rewards or flags: in their own block, or exactly as they were in a block beside it."""
    block, tensor, about = (name, None, None) if spec is None else spec[:3]
    if tensor is None or block == name:
        size = shard.block(name).raw_size
        if length and not size:
            return None  # one existing writer stores an empty block where there is no reward or done
        tensor = tensor or _foreign_flag(shard, name, size, length)
    return Channel.over(name, _numbers(shard, block, tensor, length), about=about)


def _foreign_flag(shard: ShardReader, name: str, size: int, length: int) -> TensorSpec:
    """One existing writer stores rewards and flags in any dtype and does not state which."""
    plain = tensor_spec("f32" if name == layout.REWARD else "u8")
    if size == plain.row_bytes * length or not length or size % length or size // length not in _WIDE:
        return plain
    other, small, power = _WIDE[size // length]
    bits = np.frombuffer(shard.view(name), dtype_named(small).dtype)
    # The bits of a small whole number are those of a denormal or an odd NaN, which is never a reward or flag;
    # of single bytes only a small number below zero is likely to have the highest bit.
    limit = 1 << power
    is_small = bits.any() and int(bits.min()) > -limit and int(bits.max()) < limit
    return tensor_spec(small if is_small else other)


def _rows(shard: ShardReader, spec: BlockSpec, length: int | None) -> ChannelRows:
    """The rows of a channel: numbers, or text by the metadata."""
    if not spec.encoding:
        return _numbers(shard, spec.block, spec.tensor, length)
    data, ends = _numbers(shard, spec.block, spec.tensor, None), _numbers(shard, spec.ends, _I64, length)
    return TextRows(data, ends, spec.encoding, spec.block, shard.path)


def _numbers(shard: ShardReader, name: str, spec: TensorSpec, length: int | None) -> BlockRows:
    """The rows of a block, after checking that its size is exactly that of dtype, shape and length."""
    block = shard.table.blocks.get(name)
    if block is None:
        raise CorruptLayoutError("is missing", block=name, path=shard.path)
    size, row = block.raw_size, spec.row_bytes
    if length is None:
        length = size // row if row else shard.schema.length
    if length * row != size:
        shape = ",".join(map(str, (length, *spec.shape)))
        raise CorruptLayoutError(
            f"has {size} bytes, {spec.dtype}[{shape}] needs {length * row}", block=name, path=shard.path
        )
    return BlockRows(shard, name, spec, length)
