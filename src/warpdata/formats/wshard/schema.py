"""What the blocks of an episode hold: the metadata JSON of three runtimes, read into one form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from warpdata.bytekit.dtype import DType, dtype_named
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.table import Block

MAX_RANK = 16
MAX_ROW_BYTES = 1 << 40
DEFAULT_TICK_HZ = 30.0

_CHANNEL_PART = re.compile(r"[A-Za-z0-9_.-]+")
_KNOWN_CHANNEL_KEYS = frozenset({"id", "dtype", "shape", "signal_block", "clock", "content_type_code"})


class MetaSource(Protocol):
    """What the schema needs of an open shard."""

    path: str

    @property
    def names(self) -> list[str]: ...

    def __contains__(self, name: object) -> bool: ...

    def block(self, name: str) -> Block: ...

    def read_json(self, name: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The element type and the shape of one row, without the time axis."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Timebase:
    """How steps relate to time: a fixed rate (`ticks`), or a timestamp per step (`timestamps_ns`)."""

    type: str = "ticks"
    tick_hz: float = DEFAULT_TICK_HZ

    def __post_init__(self) -> None:
        if self.type not in ("ticks", "timestamps_ns"):
            raise ValueError(f"a timebase is 'ticks' or 'timestamps_ns', not {self.type!r}")
        if not (isinstance(self.tick_hz, int | float) and 0 < self.tick_hz < math.inf):
            raise ValueError(f"tick_hz must be a positive number, not {self.tick_hz!r}")

    @property
    def dt_ns(self) -> int:
        """Nanoseconds from one tick to the next, rounded."""
        return round(1e9 / self.tick_hz)

    def to_json(self) -> dict[str, Any]:
        """The form every existing reader understands: both rate and interval."""
        return {"type": self.type, "tick_hz": self.tick_hz, "dt_ns": self.dt_ns}


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """One channel as the metadata describes it."""

    id: str
    lane: str
    block: str
    tensor: TensorSpec
    clock: str | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpisodeSchema:
    """Everything the metadata blocks of an episode say."""

    id: str
    env_id: str
    length: int
    timebase: Timebase
    channels: tuple[ChannelSpec, ...]
    lanes: dict[str, TensorSpec]
    flags: dict[str, DType]
    absent: frozenset[str]
    metadata: dict[str, Any]
    models: list[Any]
    chunk: tuple[int, int | None, tuple[int, int] | None] | None
    about: dict[str, Any]


def check_channel_id(channel_id: str) -> None:
    """Raise ValueError unless this is one to four parts of `[A-Za-z0-9_.-]` joined by `/`."""
    parts = channel_id.split("/")
    good = len(parts) <= 4 and all(
        _CHANNEL_PART.fullmatch(part) and part not in (".", "..") for part in parts
    )
    if not good:
        raise ValueError(
            f"{channel_id!r} is no channel id: use one to four parts of [A-Za-z0-9_.-] joined by '/'"
        )


def read_schema(shard: MetaSource) -> EpisodeSchema:
    """Read the metadata of an episode shard, whichever program wrote it."""
    wshard = shard.read_json(layout.META_WSHARD) if layout.META_WSHARD in shard else {}
    with _Blame(shard, layout.META_EPISODE) as meta:
        episode = _required(shard, layout.META_EPISODE)
        length = _length(episode, shard)
        timebase = _timebase(episode.get("timebase"), wshard.get("timebase"))
        chunk = _chunk(episode, length)
        identity = _text(episode, "episode_id", "id"), _text(episode, "env_id")
        metadata = _object(episode.get("metadata"))
        about: dict[str, Any] = {key: episode[key] for key in ("source", "action_space") if key in episode}
    with meta.blame(layout.META_CHANNELS):
        channels = tuple(_channels(_required(shard, layout.META_CHANNELS), shard))
    with meta.blame(layout.META_WSHARD):
        lanes, flags, absent = _lanes(wshard), _flags(wshard), _absent(wshard)
    models = shard.read_json(layout.META_MODELS).get("models", []) if layout.META_MODELS in shard else []
    with meta.blame(layout.META_MODELS):
        models = _list(models)
    return EpisodeSchema(
        *identity, length, timebase, channels, lanes, flags, absent, metadata, models, chunk, about
    )


def tensor_specs(shard: MetaSource) -> dict[str, TensorSpec]:
    """Dtype and row shape of every tensor block of an episode shard."""
    schema = read_schema(shard)
    specs = {channel.block: channel.tensor for channel in schema.channels}
    specs |= {channel.clock: _spec("i64") for channel in schema.channels if channel.clock}
    specs |= {layout.REWARD: _spec("f32"), layout.DONE: _spec("u8"), layout.TRUNCATED: _spec("u8")}
    specs |= {layout.TICKS: _spec("i32"), layout.TIMESTAMPS_NS: _spec("i64")}
    if "reward" in schema.flags:
        specs[layout.EXACT_REWARD] = TensorSpec(schema.flags["reward"], ())
    specs |= schema.lanes
    for name in shard.names:
        if name not in specs:
            found = guess_spec(name, shard.block(name).raw_size, schema)
            if found is not None:
                specs[name] = found
    return specs


def guess_spec(name: str, raw_size: int, schema: EpisodeSchema) -> TensorSpec | None:
    """Dtype and shape of a block no metadata describes, from its name and size; None if nothing fits."""
    lane = name.partition("/")[0]
    if lane == "action":
        return _rows_of("f32", raw_size, schema.length)
    if lane == "residual":
        return _spec("u8")
    if lane not in ("omen", "uncert"):
        return None
    if name.startswith("omen/latent_action_codebook/"):
        return _rows_of("i32", raw_size, schema.length)
    if name.startswith("omen/latent_action/"):
        return _rows_of("f32", raw_size, schema.length)
    return _spec_of_subject(name, raw_size, schema)


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


def _spec(dtype: str) -> TensorSpec:
    return TensorSpec(dtype_named(dtype), ())


class _Blame:
    """Turns a complaint about metadata into a FormatError that names the block and the file."""

    def __init__(self, shard: MetaSource, block: str) -> None:
        self._path = shard.path
        self._block = block

    def blame(self, block: str) -> _Blame:
        self._block = block
        return self

    def __enter__(self) -> _Blame:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | TypeError) and not isinstance(error, FormatError):
            raise CorruptLayoutError(str(error), block=self._block, path=self._path) from None


def _required(shard: MetaSource, name: str) -> dict[str, Any]:
    if name not in shard:
        raise CorruptLayoutError("is missing: this is no episode", block=name, path=shard.path)
    return shard.read_json(name)


def _text(source: dict[str, Any], *keys: str) -> str:
    for key in keys:
        if key in source:
            if not isinstance(source[key], str):
                raise ValueError(f"{key} is not a string")
            return str(source[key])
    return ""


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
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
    if layout.DONE in shard:
        return shard.block(layout.DONE).raw_size
    raise ValueError("the length of the episode is missing")


def _timebase(*sources: object) -> Timebase:
    kinds = [source for source in sources if isinstance(source, str)]
    given = [source for source in sources if isinstance(source, dict)]
    kind = next((each["type"] for each in given if "type" in each), kinds[0] if kinds else "ticks")
    # Existing readers take microseconds for ticks; a rate without timestamps is all such a file has.
    kind = "ticks" if kind == "timestamps_us" else kind
    for each in given:
        if each.get("tick_hz"):
            return Timebase(kind, float(_number(each["tick_hz"], "tick_hz")))
    for each in given:
        if each.get("dt_ns"):
            return Timebase(kind, _rate(_number(each["dt_ns"], "dt_ns")))
    return Timebase(kind)


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


def _channels(meta: dict[str, Any], shard: MetaSource) -> Iterable[ChannelSpec]:
    listed = meta.get("channels", [])
    if isinstance(listed, dict):
        listed = [{"signal_block": name, **_object(value)} for name, value in listed.items()]
    seen: set[str] = set()
    for each in _list(listed):
        channel = _channel(_object(each), shard)
        if channel.block in seen:
            raise ValueError(f"channel {channel.block!r} is listed twice")
        seen.add(channel.block)
        if channel.block in shard:
            yield channel


def _channel(each: dict[str, Any], shard: MetaSource) -> ChannelSpec:
    channel_id = _text(each, "id") or _text(each, "signal_block").partition("/")[2]
    block = _text(each, "signal_block") or _default_block(channel_id, shard)
    lane, _, rest = block.partition("/")
    if lane not in ("signal", "action") or not rest or not channel_id:
        raise ValueError(f"channel {channel_id!r} has no signal or action block")
    clock = each.get("clock")
    if clock is not None and clock not in shard:
        raise ValueError(f"channel {channel_id!r} names a clock that is not there")
    about = {key: value for key, value in each.items() if key not in _KNOWN_CHANNEL_KEYS}
    return ChannelSpec(channel_id, lane, block, _tensor(each, channel_id), clock, about)


def _default_block(channel_id: str, shard: MetaSource) -> str:
    """One existing writer lists actions without saying so; the block that is there decides."""
    action = f"action/{channel_id}"
    return action if f"signal/{channel_id}" not in shard and action in shard else f"signal/{channel_id}"


def _tensor(each: dict[str, Any], what: str) -> TensorSpec:
    shape = tuple(_count(size, f"shape of {what!r}") for size in _list(each.get("shape", [])))
    if len(shape) > MAX_RANK:
        raise ValueError(f"{what!r} has {len(shape)} axes")
    spec = TensorSpec(dtype_named(_text(each, "dtype") or "f32"), shape)
    if spec.row_bytes > MAX_ROW_BYTES:
        raise ValueError(f"{what!r} has rows of {spec.row_bytes} bytes")
    return spec


def _lanes(wshard: dict[str, Any]) -> dict[str, TensorSpec]:
    return {
        _text(each, "block"): _tensor(each, _text(each, "block"))
        for each in map(_object, _list(wshard.get("lanes", [])))
    }


def _flags(wshard: dict[str, Any]) -> dict[str, DType]:
    return {key: dtype_named(_text(value, "dtype")) for key, value in _object(wshard.get("exact")).items()}


def _absent(wshard: dict[str, Any]) -> frozenset[str]:
    return frozenset(str(name) for name in _list(wshard.get("absent", [])))
