"""What the blocks of an episode hold: the metadata JSON of three runtimes, read into one form."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError, add_path, require_word
from warpdata.formats.wshard import layout

if TYPE_CHECKING:
    from warpdata.formats.wshard.reader import ShardReader

MAX_RANK = 16
MAX_ROW_BYTES = 1 << 40
DEFAULT_TICK_HZ = 30.0
_MIN_HZ = 1e-9
"""Slower than a tick in thirty years, the time between two ticks is no number of nanoseconds."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_COUNT = 1 << 48
_SHARED_BYTES, _SHARED_NAMES = 128 << 10, 4096
"""The files of one recorder have the same texts and names, which are parsed once unless they are longer than this."""
CHANNEL_KEYS = frozenset({"id", "dtype", "shape", "signal_block", "clock", "content_type_code", "ends"})
"""Keys of the format in the metadata of a channel; all others are the user's."""
_CHUNK_KEYS = frozenset({"chunk_index", "total_chunks", "timestep_range"})
EPISODE_KEYS = _CHUNK_KEYS | {"episode_id", "id", "env_id", "length_T", "length_t", "timebase", "metadata"}
"""Keys of the format in the metadata of an episode."""
ENCODINGS = ("text", "json")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The element type and the shape of one row, without the time axis."""

    dtype: DType
    shape: tuple[int, ...]
    row_bytes: int = field(init=False, compare=False, repr=False)
    """Bytes of one row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.dtype.itemsize * math.prod(self.shape))


@lru_cache(maxsize=1024)
def tensor_spec(dtype: str, shape: tuple[int, ...] = ()) -> TensorSpec:
    """The spec of rows of this dtype and shape; files of one kind share theirs."""
    return TensorSpec(dtype_named(dtype), shape)


@dataclass(frozen=True, slots=True)
class Timebase:
    """How steps relate to time: a fixed rate (`ticks`), or a timestamp per step (`timestamps_ns`)."""

    type: str = "ticks"
    tick_hz: float = DEFAULT_TICK_HZ

    def __post_init__(self) -> None:
        require_word("a timebase", self.type, ("ticks", "timestamps_ns"))
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


class BlockSpec(NamedTuple):
    """One block as the metadata describes it: of a channel, of a model's lane, of rewards or flags."""

    block: str
    tensor: TensorSpec
    about: dict[str, Any]
    id: str = ""
    clock: str | None = None
    """The block with the timestamps of a channel that has its own clock."""
    encoding: str = ""
    """`text` or `json` where a row is one value of any length."""
    ends: str = ""
    """The block that holds the end of each such value."""


class EpisodeSchema(NamedTuple):
    """The contents of the metadata blocks of an episode."""

    id: str
    env_id: str
    length: int
    timebase: Timebase
    channels: tuple[BlockSpec, ...] = ()
    lanes: Mapping[str, BlockSpec] = {}
    flags: Mapping[str, BlockSpec | None] = {}
    """The rewards and flags of the file by the name of their own block; None where no dtype is stated."""
    unlisted: Sequence[str] = ()
    """Blocks that are no metadata, channel, flag or clock."""
    metadata: Mapping[str, Any] = {}
    models: Sequence[Any] = ()
    chunk: tuple[int | None, int | None, tuple[int, int] | None] = (None, None, None)
    about: Mapping[str, Any] = {}


def own_copy(value: Any) -> Any:
    """Copy a JSON value for an episode to change: readers share what was parsed."""
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()} if value else {}
    return [own_copy(item) for item in value] if isinstance(value, list) else value


def check_channel_id(channel_id: str) -> None:
    """Raise ValueError unless this is text without control characters, in parts joined by `/`, none `.` or `..`."""
    if not isinstance(channel_id, str):
        raise ValueError(f"a channel id is a string, not {type(channel_id).__name__}")
    if any(part in ("", ".", "..") for part in channel_id.split("/")) or _CONTROL.search(channel_id):
        raise ValueError(
            f"{channel_id!r:.80} is no channel id: use names joined by '/', without control characters, '.' or '..'"
        )


def read_schema(shard: ShardReader) -> EpisodeSchema:
    """Read the metadata of an episode shard, whichever program wrote it."""
    block, stored = layout.META_WSHARD, shard.table.blocks
    try:
        wshard = bytes(shard.view(block)) if block in stored else b"{}"
        is_long = len(wshard) > _SHARED_BYTES
        stated = _read_stated.__wrapped__(wshard) if is_long else _read_stated(wshard)
        block = layout.META_EPISODE
        episode = parse_json_object(_required(shard, block))
        length = _length(episode, shard)
        timebase = _timebase(episode.get("timebase"), stated.timebase)
        chunk = _chunk(episode, length)
        identity = text_at(episode, "episode_id", "id"), text_at(episode, "env_id")
        metadata = _object(episode.get("metadata"))
        about: dict[str, Any] = {key: episode[key] for key in episode if key not in EPISODE_KEYS}
        block = layout.META_CHANNELS
        text, names = bytes(_required(shard, block)), tuple(stored)
        is_long = is_long or len(text) > _SHARED_BYTES or len(names) > _SHARED_NAMES
        listed = (_read_listed.__wrapped__ if is_long else _read_listed)(text, wshard, names)
        block = layout.META_MODELS
        models = _list(parse_json_object(shard.view(block)).get("models", [])) if block in stored else []
    except FormatError as error:
        raise add_path(error, shard.path, block) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptLayoutError(str(error), block=block, path=shard.path) from None
    channels, flags, unlisted = listed
    return EpisodeSchema(
        *identity, length, timebase, channels, stated.lanes, flags, unlisted, metadata, models, chunk, about
    )


class _Stated(NamedTuple):
    """The contents of `meta/wshard`."""

    timebase: object
    lanes: Mapping[str, BlockSpec]
    exact: Mapping[str, BlockSpec]
    absent: frozenset[str]


@lru_cache(maxsize=64)
def _read_stated(text: bytes) -> _Stated:
    meta = parse_json_object(text)
    lanes, exact = {}, {}
    for entry in map(_object, _list(meta.get("lanes", []))):
        block = text_at(entry, "block")
        about = _object(entry.get("about"))
        lanes[block] = BlockSpec(block, _tensor(entry, block), about, "", None, *_encoding(entry, block))
    for name, value in _object(meta.get("exact")).items():
        entry = _object(value)
        if name in layout.EXACT:
            tensor = tensor_spec(text_at(entry, "dtype"))
            place = name if fits_own_block(name, tensor.dtype) else layout.EXACT[name]
            exact[name] = BlockSpec(place, tensor, _object(entry.get("about")))
    return _Stated(meta.get("timebase"), lanes, exact, frozenset(map(str, _list(meta.get("absent", [])))))


_Listed = tuple[tuple[BlockSpec, ...], dict[str, BlockSpec | None], tuple[str, ...]]


@lru_cache(maxsize=64)
def _read_listed(text: bytes, wshard: bytes, names: tuple[str, ...]) -> _Listed:
    """The channels that `meta/channels` lists, the flags and the unlisted blocks of a file with these blocks."""
    listed, stored, stated = (
        parse_json_object(text).get("channels", []),
        frozenset(names),
        _read_stated(wshard),
    )
    if isinstance(listed, dict):
        listed = [{"signal_block": name, **_object(value)} for name, value in listed.items()]
    entries = [_object(entry) for entry in _list(listed)]
    named = {text_at(entry, "signal_block") for entry in entries}
    channels: dict[str, BlockSpec] = {}
    for entry in entries:
        channel = _channel(entry, stored, named)
        if channels.setdefault(channel.block, channel) is not channel:
            raise ValueError(f"channel {channel.block!r} is listed twice")
    flags = {}
    for name in layout.EXACT:
        spec = stated.exact.get(name)
        if (spec is not None and spec.block != name) or (name in stored and name not in stated.absent):
            flags[name] = spec
    used = {*_META_BLOCKS, *_FIXED, *(spec.block for spec in flags.values() if spec is not None)}
    for spec in (*channels.values(), *stated.lanes.values()):
        used |= {spec.clock or "", spec.ends}
    used |= channels.keys()
    rest = [name for name in names if name not in used and not name.startswith(layout.AIDS)]
    return tuple(channels.values()), flags, tuple(rest)


def _channel(entry: dict[str, Any], stored: Collection[str], named: set[str]) -> BlockSpec:
    channel_id = text_at(entry, "id") or text_at(entry, "signal_block").partition("/")[2]
    signal, action = f"signal/{channel_id}", f"action/{channel_id}"
    block = text_at(entry, "signal_block") or signal
    # Two existing writers list actions as if they were signals; the block that is there decides.
    is_free = action not in named or not text_at(entry, "signal_block")
    if block == signal and is_free and block not in stored and action in stored:
        block = action
    lane, _, rest = block.partition("/")
    if lane not in ("signal", "action") or not rest or not channel_id:
        raise ValueError(f"channel {channel_id!r} has no signal or action block")
    clock = entry.get("clock")
    if clock is not None and clock not in stored:
        raise ValueError(f"channel {channel_id!r} names a clock that is not there")
    known = CHANNEL_KEYS | {"encoding"} if "ends" in entry else CHANNEL_KEYS
    about = {key: value for key, value in entry.items() if key not in known}
    tensor = _tensor(entry, channel_id)
    return BlockSpec(block, tensor, about, channel_id, clock, *_encoding(entry, block))


_META_BLOCKS = (layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS)
_FIXED = {
    layout.REWARD: "f32", layout.DONE: "u8", layout.TRUNCATED: "u8", layout.TICKS: "i32", layout.TIMESTAMPS_NS: "i64",
}  # fmt: skip


def tensor_specs(shard: ShardReader, schema: EpisodeSchema) -> dict[str, TensorSpec]:
    """Dtype and row shape of every tensor block of an episode shard."""
    specs = {name: tensor_spec(dtype) for name, dtype in _FIXED.items()}
    for spec in (*schema.channels, *schema.lanes.values()):
        specs[spec.block] = spec.tensor
        specs |= {name: tensor_spec("i64") for name in (spec.clock, spec.ends) if name}
    specs |= {spec.block: spec.tensor for name, spec in schema.flags.items() if spec and spec.block != name}
    for name, block in shard.table.blocks.items():
        if name not in specs and (guess := guess_spec(name, block.raw_size, schema)) is not None:
            specs[name] = guess
    return specs


def fits_own_block(name: str, dtype: DType) -> bool:
    """Whether `reward`, `done` or `truncated`, whose dtypes are fixed, can hold values of this dtype."""
    return dtype == "f32" if name == layout.REWARD else dtype in ("bool", "u8")


def guess_spec(name: str, raw_size: int, schema: EpisodeSchema) -> TensorSpec | None:
    """Dtype and shape of a block no metadata describes, from its name and size; None if nothing fits."""
    lane, _, rest = name.partition("/")
    if lane == "residual":
        return tensor_spec("u8")
    if lane not in ("action", "omen", "uncert"):
        return None
    if name.startswith("omen/latent_action_codebook/"):
        return _rows_of("i32", raw_size, schema.length)
    if name.startswith("omen/latent_action/"):
        return _rows_of("f32", raw_size, schema.length)
    for channel in schema.channels:
        # One existing writer lists a channel once and stores what was seen and what was done under its id;
        # a prediction has the dtype and shape of the signal it predicts.
        is_same = rest == channel.id if lane == "action" else f"{rest}/".startswith(f"{channel.id}/")
        is_signal = channel.block.startswith("signal/")
        if is_signal and is_same and channel.tensor.row_bytes * schema.length == raw_size:
            return channel.tensor
    return _rows_of("f32", raw_size, schema.length) if lane == "action" else None


def _rows_of(dtype: str, raw_size: int, length: int) -> TensorSpec | None:
    """A flat block cut into `length` rows; one element per row is a scalar."""
    step = dtype_named(dtype).itemsize * length
    if step == 0 or raw_size % step:
        return None
    width = raw_size // step
    return tensor_spec(dtype, () if width == 1 else (width,))


def _required(shard: ShardReader, name: str) -> memoryview:
    if name not in shard:
        raise CorruptLayoutError("is missing: this is no episode", block=name, path=shard.path)
    return shard.view(name)


def text_at(source: dict[str, Any], *keys: str) -> str:
    """The text under the first of these keys; empty if there is none, ValueError if it is no text."""
    for key in keys:
        if key in source:
            if not isinstance(source[key], str):
                raise ValueError(f"{key} is not a string")
            return str(source[key])
    return ""


def count_of(value: object, what: str) -> int:
    """The value if it is a count, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{what} is {value!r:.40}, a count was expected")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ValueError("metadata is not an object")
    return value or {}


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list was expected")
    return value


def _length(episode: dict[str, Any], shard: ShardReader) -> int:
    for key in ("length_T", "length_t"):
        if key in episode:
            return count_of(episode[key], key)
    if layout.DONE in shard:
        return shard.block(layout.DONE).raw_size
    raise ValueError("the length of the episode is missing")


def _timebase(*sources: object) -> Timebase:
    """The timebase of the first of these sources that has one, in any of its forms."""
    kind: Any = next((source for source in sources if isinstance(source, str)), "ticks")
    given = [source for source in sources if isinstance(source, dict)]
    for source in reversed(given):
        kind = source.get("type", kind)
    # Existing readers take microseconds for ticks; a rate without timestamps is all such a file has.
    kind = "ticks" if kind == "timestamps_us" else kind
    if not isinstance(kind, str):
        raise ValueError(f"a timebase is 'ticks' or 'timestamps_ns', not {kind!r:.40}")
    for key in ("tick_hz", "dt_ns"):
        for source in given:
            if value := source.get(key):
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"{key} is not a number")
                return _cached_timebase(kind, float(value) if key == "tick_hz" else _rate(value))
    return _cached_timebase(kind, DEFAULT_TICK_HZ)


_cached_timebase = lru_cache(maxsize=64)(Timebase)


def _rate(dt_ns: float) -> float:
    """The rate behind an interval that was cut or rounded to whole nanoseconds."""
    rate = 1e9 / dt_ns
    whole = round(rate)
    return float(whole) if whole and dt_ns in (int(1e9 / whole), round(1e9 / whole)) else rate


def _chunk(episode: dict[str, Any], length: int) -> tuple[int | None, int | None, tuple[int, int] | None]:
    """Chunk position, number of chunks and the half-open range of steps, from either spelling of a range."""
    value = episode.get("timestep_range")
    steps = None
    if value == [0, 0]:
        steps = (0, 1) if length == 1 else None
    elif value is not None:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("timestep_range is not a pair")
        start, end = (count_of(step, "timestep_range") for step in value)
        if end - start not in (length - 1, length):
            raise ValueError(f"timestep_range {value} does not hold {length} steps")
        steps = start, start + length
    if episode.get("chunk_index") is None:
        return None, None, None
    index, total = count_of(episode["chunk_index"], "chunk_index"), episode.get("total_chunks")
    return index, None if total is None else count_of(total, "total_chunks"), steps


def _tensor(entry: dict[str, Any], what: str) -> TensorSpec:
    shape = _list(entry.get("shape", []))
    for size in shape:
        count_of(size, f"shape of {what!r}")
    if len(shape) > MAX_RANK:
        raise ValueError(f"{what!r} has {len(shape)} axes")
    spec = tensor_spec(text_at(entry, "dtype") or "f32", tuple(shape))
    if spec.row_bytes > MAX_ROW_BYTES:
        raise ValueError(f"{what!r} has rows of {spec.row_bytes} bytes")
    return spec


def _encoding(entry: dict[str, Any], block: str) -> tuple[str, str]:
    """Encoding and block of ends of a block with one text or JSON value per step; empty for numbers."""
    if "ends" not in entry:
        return "", ""
    encoding = text_at(entry, "encoding")
    if encoding not in ENCODINGS or (text_at(entry, "dtype"), entry.get("shape")) != ("u8", []):
        raise ValueError(f"{block!r} is neither text nor JSON of one value per step")
    return encoding, text_at(entry, "ends")
