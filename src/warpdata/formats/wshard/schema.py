"""What the blocks of an episode hold: the metadata JSON of three runtimes, read into one form."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, NamedTuple, Protocol

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError, nearest
from warpdata.formats.wshard import layout

MAX_RANK = 16

MAX_ROW_BYTES = 1 << 40

DEFAULT_TICK_HZ = 30.0

_MIN_HZ = 1e-9

"""Slower than a tick in thirty years, the time between two ticks is no number of nanoseconds."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

CHANNEL_KEYS = frozenset({"id", "dtype", "shape", "signal_block", "clock", "content_type_code", "ends"})

"""Keys of the format in the metadata of a channel; all others are the user's."""

EPISODE_KEYS = frozenset(
    {"episode_id", "id", "env_id", "length_T", "length_t", "timebase", "chunk_index", "total_chunks",
     "timestep_range", "metadata"}
)  # fmt: skip

"""The same for the metadata of an episode."""

ENCODINGS = ("text", "json")

_MAX_COUNT = 1 << 48

_SHARED_BYTES = 64 << 10


class MetaSource(Protocol):
    """The part of a shard that its schema is read from."""

    path: str

    @property
    def sizes(self) -> Mapping[str, int]:
        """Decompressed bytes of every block by name, in the order of the table."""

    def view(self, name: str, /) -> memoryview:
        """The decompressed bytes of a block."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The element type and the shape of one row, without the time axis."""

    dtype: DType
    shape: tuple[int, ...]
    row_bytes: int = field(init=False, compare=False, repr=False)
    """Bytes of one row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.dtype.itemsize * math.prod(self.shape))


class TextSpec(NamedTuple):
    """A block of text or JSON values: its encoding, and the block that holds where each value ends."""

    encoding: str
    ends: str


@dataclass(frozen=True, slots=True)
class Timebase:
    """How steps relate to time: a fixed rate (`ticks`), or a timestamp per step (`timestamps_ns`)."""

    type: str = "ticks"
    tick_hz: float = DEFAULT_TICK_HZ

    def __post_init__(self) -> None:
        if self.type not in ("ticks", "timestamps_ns"):
            raise ValueError(
                f"a timebase is 'ticks' or 'timestamps_ns', not {self.type!r:.40}."
                f"{nearest(str(self.type), ('ticks', 'timestamps_ns'))}"
            )
        if not (isinstance(self.tick_hz, int | float) and _MIN_HZ <= self.tick_hz <= sys.float_info.max):
            raise ValueError(f"tick_hz must be a positive number, not {self.tick_hz!r:.40}")
        object.__setattr__(self, "tick_hz", float(self.tick_hz))

    @classmethod
    def of(cls, value: Timebase | str | Mapping[str, Any]) -> Timebase:
        """From a timebase, its type alone, or a dict of `type` and `tick_hz`."""
        if isinstance(value, Timebase):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise TypeError(f"a timebase is a Timebase, 'ticks' or 'timestamps_ns', not {value!r:.40}")
        if unknown := [key for key in value if key not in ("type", "tick_hz")]:
            raise ValueError(f"a timebase has a type and a tick_hz, not {unknown[0]!r:.40}")
        return cls(**value)

    @property
    def dt_ns(self) -> int:
        """Nanoseconds from one tick to the next, rounded."""
        return round(1e9 / self.tick_hz)

    def to_json(self) -> dict[str, Any]:
        """The form every existing reader understands: both rate and interval."""
        return {"type": self.type, "tick_hz": self.tick_hz, "dt_ns": self.dt_ns}


class ChannelSpec(NamedTuple):
    """One channel as the metadata describes it."""

    id: str
    lane: str
    block: str
    tensor: TensorSpec
    clock: str | None
    about: dict[str, Any]


class EpisodeSchema(NamedTuple):
    """The contents of the metadata blocks of an episode."""

    id: str
    env_id: str
    length: int
    timebase: Timebase
    channels: tuple[ChannelSpec, ...]
    lanes: dict[str, TensorSpec]
    texts: dict[str, TextSpec]
    flags: dict[str, DType]
    block_about: dict[str, dict[str, Any]]
    absent: frozenset[str]
    metadata: dict[str, Any]
    models: list[Any]
    chunk: tuple[int, int | None, tuple[int, int] | None] | None
    about: dict[str, Any]


def own_copy(value: Any) -> Any:
    """Copy a JSON value for an episode to change: readers share what was parsed."""
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    return [own_copy(item) for item in value] if isinstance(value, list) else value


def check_channel_id(channel_id: str) -> None:
    """Raise ValueError unless this is text without control characters, in parts joined by `/`, none `.` or `..`."""
    if not isinstance(channel_id, str):
        raise ValueError(f"a channel id is a string, not {type(channel_id).__name__}")
    if any(part in ("", ".", "..") for part in channel_id.split("/")) or _CONTROL.search(channel_id):
        raise ValueError(
            f"{channel_id!r:.80} is no channel id: use names joined by '/', without control characters, '.' or '..'"
        )


def read_schema(shard: MetaSource) -> EpisodeSchema:
    """Read the metadata of an episode shard, whichever program wrote it."""
    block = layout.META_WSHARD
    try:
        stated = _stated(bytes(shard.view(block))) if block in shard.sizes else _NOTHING_STATED
        block = layout.META_EPISODE
        episode = parse_json_object(_required(shard, block))
        length = _length(episode, shard)
        timebase = _timebase(episode.get("timebase"), stated.timebase)
        chunk = _chunk(episode, length)
        identity = _text(episode, "episode_id", "id"), _text(episode, "env_id")
        metadata = _object(episode.get("metadata"))
        about: dict[str, Any] = {key: episode[key] for key in episode if key not in EPISODE_KEYS}
        block = layout.META_CHANNELS
        channels, texts = _listed(bytes(_required(shard, block)), tuple(shard.sizes))
        block = layout.META_MODELS
        models = _list(parse_json_object(shard.view(block)).get("models", [])) if block in shard.sizes else []
    except FormatError as error:
        if error.path is not None:
            raise
        raise type(error)(error.message, block=block, path=shard.path) from None
    except (ValueError, TypeError) as error:
        raise CorruptLayoutError(str(error), block=block, path=shard.path) from None
    return EpisodeSchema(
        *identity, length, timebase, channels, stated.lanes, texts | stated.texts, stated.flags, stated.block_about,
        stated.absent, metadata, models, chunk, about,
    )  # fmt: skip


class _Stated(NamedTuple):
    """The contents of `meta/wshard`."""

    timebase: object
    lanes: dict[str, TensorSpec]
    texts: dict[str, TextSpec]
    flags: dict[str, DType]
    block_about: dict[str, dict[str, Any]]
    absent: frozenset[str]


_NOTHING_STATED = _Stated(None, {}, {}, {}, {}, frozenset())


def _shared(read: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what was read from the last few texts: the files of one recorder have the same."""
    remembered = lru_cache(maxsize=64)(read)

    @wraps(read)
    def reading(text: bytes, *rest: Any) -> Any:
        return (remembered if len(text) <= _SHARED_BYTES else read)(text, *rest)

    return reading


@_shared
def _stated(text: bytes) -> _Stated:
    wshard = parse_json_object(text)
    texts = _texts((_text(each, "block"), each) for each in _lane_entries(wshard))
    lanes, flags, absent = _lanes(wshard), _flags(wshard), _absent(wshard)
    return _Stated(wshard.get("timebase"), lanes, texts, flags, _block_about(wshard), absent)


@_shared
def _listed(text: bytes, names: tuple[str, ...]) -> tuple[tuple[ChannelSpec, ...], dict[str, TextSpec]]:
    """The channels `meta/channels` lists, for a file with blocks of these names."""
    listed = list(_channels(parse_json_object(text), frozenset(names)))
    texts = _texts((channel.block, each) for channel, each in listed)
    return tuple(channel for channel, _ in listed), texts


def tensor_specs(shard: MetaSource, schema: EpisodeSchema) -> dict[str, TensorSpec]:
    """Dtype and row shape of every tensor block of an episode shard."""
    specs = {channel.block: channel.tensor for channel in schema.channels}
    specs |= {channel.clock: tensor_spec("i64") for channel in schema.channels if channel.clock}
    specs |= {
        layout.REWARD: tensor_spec("f32"),
        layout.DONE: tensor_spec("u8"),
        layout.TRUNCATED: tensor_spec("u8"),
    }
    specs |= {layout.TICKS: tensor_spec("i32"), layout.TIMESTAMPS_NS: tensor_spec("i64")}
    specs |= {layout.EXACT[flag]: TensorSpec(dtype, ()) for flag, dtype in schema.flags.items()}
    specs |= schema.lanes
    specs |= {text.ends: tensor_spec("i64") for text in schema.texts.values()}
    for name, size in shard.sizes.items():
        if name not in specs:
            found = guess_spec(name, size, schema)
            if found is not None:
                specs[name] = found
    return specs


def guess_spec(name: str, raw_size: int, schema: EpisodeSchema) -> TensorSpec | None:
    """Dtype and shape of a block no metadata describes, from its name and size; None if nothing fits."""
    lane = name.partition("/")[0]
    if lane == "action":
        return _spec_of_namesake(name, raw_size, schema) or _rows_of("f32", raw_size, schema.length)
    if lane == "residual":
        return tensor_spec("u8")
    if lane not in ("omen", "uncert"):
        return None
    if name.startswith("omen/latent_action_codebook/"):
        return _rows_of("i32", raw_size, schema.length)
    if name.startswith("omen/latent_action/"):
        return _rows_of("f32", raw_size, schema.length)
    return _spec_of_subject(name, raw_size, schema)


def _spec_of_namesake(name: str, raw_size: int, schema: EpisodeSchema) -> TensorSpec | None:
    """One existing writer lists a channel once and stores what was seen and what was done under its id."""
    for channel in schema.channels:
        fits = channel.tensor.row_bytes * schema.length == raw_size
        if channel.lane == "signal" and channel.id == name.partition("/")[2] and fits:
            return channel.tensor
    return None


def _spec_of_subject(name: str, raw_size: int, schema: EpisodeSchema) -> TensorSpec | None:
    """A prediction has the dtype and shape of the signal it predicts, if the size agrees."""
    rest = name.partition("/")[2] + "/"
    for channel in schema.channels:
        fits = channel.tensor.row_bytes * schema.length == raw_size
        if channel.lane == "signal" and rest.startswith(channel.id + "/") and fits:
            return channel.tensor
    return None


def _rows_of(dtype: str, raw_size: int, length: int) -> TensorSpec | None:
    """A flat block cut into `length` rows; one element per row is a scalar."""
    step = dtype_named(dtype).itemsize * length
    if step == 0 or raw_size % step:
        return None
    width = raw_size // step
    return TensorSpec(dtype_named(dtype), () if width == 1 else (width,))


def _required(shard: MetaSource, name: str) -> memoryview:
    if name not in shard.sizes:
        raise CorruptLayoutError("is missing: this is no episode", block=name, path=shard.path)
    return shard.view(name)


def _text(source: dict[str, Any], *keys: str) -> str:
    for key in keys:
        if key in source:
            found = source[key]
            if not isinstance(found, str):
                raise ValueError(f"{key} is not a string")
            return found
    return ""


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{what} is {value!r:.40}, a count was expected")
    return value


def _object(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("metadata is not an object")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list was expected")
    return value


def _length(episode: dict[str, Any], shard: MetaSource) -> int:
    for key in ("length_T", "length_t"):
        if key in episode:
            return _count(episode[key], key)
    if layout.DONE in shard.sizes:
        return shard.sizes[layout.DONE]
    raise ValueError("the length of the episode is missing")


def _timebase(*sources: object) -> Timebase:
    """The timebase of the first of these sources that has one, in any of its forms."""
    kinds = [source for source in sources if isinstance(source, str)]
    given = [source for source in sources if isinstance(source, dict)]
    kind = next((each["type"] for each in given if "type" in each), kinds[0] if kinds else "ticks")
    # Existing readers take microseconds for ticks; a rate without timestamps is all such a file has.
    kind = "ticks" if kind == "timestamps_us" else kind
    if not isinstance(kind, str):
        raise ValueError(f"a timebase is 'ticks' or 'timestamps_ns', not {kind!r:.40}")
    for each in given:
        if each.get("tick_hz"):
            return _timebase_of(kind, float(_number(each["tick_hz"], "tick_hz")))
    for each in given:
        if each.get("dt_ns"):
            return _timebase_of(kind, _rate(_number(each["dt_ns"], "dt_ns")))
    return _timebase_of(kind, DEFAULT_TICK_HZ)


@lru_cache(maxsize=64)
def _timebase_of(kind: str, tick_hz: float) -> Timebase:
    return Timebase(kind, tick_hz)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} is not a number")
    return value


def _rate(dt_ns: float) -> float:
    """The rate behind an interval that was cut or rounded to whole nanoseconds."""
    rate = 1e9 / dt_ns
    whole = round(rate)
    return float(whole) if whole and dt_ns in (int(1e9 / whole), round(1e9 / whole)) else rate


def _chunk(episode: dict[str, Any], length: int) -> tuple[int, int | None, tuple[int, int] | None] | None:
    """Chunk position, number of chunks and the half-open range of steps, from either spelling of a range."""
    steps = _range(episode.get("timestep_range"), length)
    if episode.get("chunk_index") is None:
        return None
    total = episode.get("total_chunks")
    return (
        _count(episode["chunk_index"], "chunk_index"),
        None if total is None else _count(total, "total_chunks"),
        steps,
    )


def _range(value: object, length: int) -> tuple[int, int] | None:
    if value is None or value == [0, 0]:
        return None if value is None or length != 1 else (0, 1)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("timestep_range is not a pair")
    start, end = _count(value[0], "timestep_range"), _count(value[1], "timestep_range")
    if end - start + 1 == length:
        return start, end + 1
    if end - start == length:
        return start, end
    raise ValueError(f"timestep_range {value} does not hold {length} steps")


def _channels(meta: dict[str, Any], shard: Container[str]) -> Iterable[tuple[ChannelSpec, dict[str, Any]]]:
    listed = meta.get("channels", [])
    if isinstance(listed, dict):
        listed = [{"signal_block": name, **_object(value)} for name, value in listed.items()]
    entries = [_object(each) for each in _list(listed)]
    named = {_text(each, "signal_block") for each in entries}
    seen: set[str] = set()
    for each in entries:
        channel = _channel(each, shard, named)
        if channel.block in seen:
            raise ValueError(f"channel {channel.block!r} is listed twice")
        seen.add(channel.block)
        yield channel, each


def _channel(each: dict[str, Any], shard: Container[str], named: set[str]) -> ChannelSpec:
    channel_id = _text(each, "id") or _text(each, "signal_block").partition("/")[2]
    block = _text(each, "signal_block")
    if not block or (block not in shard and f"action/{channel_id}" not in named):
        block = _stored_block(block or f"signal/{channel_id}", channel_id, shard)
    lane, _, rest = block.partition("/")
    if lane not in ("signal", "action") or not rest or not channel_id:
        raise ValueError(f"channel {channel_id!r} has no signal or action block")
    clock = each.get("clock")
    if clock is not None and clock not in shard:
        raise ValueError(f"channel {channel_id!r} names a clock that is not there")
    known = CHANNEL_KEYS | {"encoding"} if "ends" in each else CHANNEL_KEYS
    about = {key: value for key, value in each.items() if key not in known}
    return ChannelSpec(channel_id, lane, block, _tensor(each, channel_id), clock, about)


def _stored_block(block: str, channel_id: str, shard: Container[str]) -> str:
    """Two existing writers list actions as if they were signals; the block that is there decides."""
    action = f"action/{channel_id}"
    return action if block == f"signal/{channel_id}" and block not in shard and action in shard else block


def _tensor(each: dict[str, Any], what: str) -> TensorSpec:
    shape = _list(each.get("shape", []))
    for size in shape:
        if type(size) is not int or not 0 <= size < _MAX_COUNT:
            _count(size, f"shape of {what!r}")
    if len(shape) > MAX_RANK:
        raise ValueError(f"{what!r} has {len(shape)} axes")
    spec = tensor_spec(_text(each, "dtype") or "f32", tuple(shape))
    if spec.row_bytes > MAX_ROW_BYTES:
        raise ValueError(f"{what!r} has rows of {spec.row_bytes} bytes")
    return spec


@lru_cache(maxsize=1024)
def tensor_spec(dtype: str, shape: tuple[int, ...] = ()) -> TensorSpec:
    """The spec of rows of this dtype and shape; files of one kind share theirs."""
    return TensorSpec(dtype_named(dtype), shape)


def _lanes(wshard: dict[str, Any]) -> dict[str, TensorSpec]:
    return {_text(each, "block"): _tensor(each, _text(each, "block")) for each in _lane_entries(wshard)}


def _lane_entries(wshard: dict[str, Any]) -> list[dict[str, Any]]:
    return [_object(each) for each in _list(wshard.get("lanes", []))]


def _texts(entries: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, TextSpec]:
    found = {}
    for block, each in entries:
        if "ends" in each:
            encoding = _text(each, "encoding")
            if encoding not in ENCODINGS or (_text(each, "dtype"), each.get("shape")) != ("u8", []):
                raise ValueError(f"{block!r} is neither text nor JSON of one value per step")
            found[block] = TextSpec(encoding, _text(each, "ends"))
    return found


def _flag_entries(wshard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries = {name: _object(each) for name, each in _object(wshard.get("exact")).items()}
    return {name: each for name, each in entries.items() if name in layout.EXACT}


def _flags(wshard: dict[str, Any]) -> dict[str, DType]:
    return {name: dtype_named(_text(each, "dtype")) for name, each in _flag_entries(wshard).items()}


def _block_about(wshard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """User metadata of lanes, rewards and flags, by block."""
    entries = {_text(each, "block"): each for each in _lane_entries(wshard)} | _flag_entries(wshard)
    return {name: _object(each["about"]) for name, each in entries.items() if "about" in each}


def _absent(wshard: dict[str, Any]) -> frozenset[str]:
    return frozenset(str(name) for name in _list(wshard.get("absent", [])))
