"""A journal of whole steps: what stands where in each record, and how its columns are read back."""

from __future__ import annotations

import difflib
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, dtype_named, dtype_of
from warpdata.bytekit.io.append_file import PAGE_BYTES
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.formats.journal.layout import RECORD_BYTES
from warpdata.formats.wshard.channel import Channel, decode_value, text_spec
from warpdata.formats.wshard.episode import LATENT, LATENT_CODEBOOK, WShardEpisode
from warpdata.formats.wshard.layout import LANE_PREFIX
from warpdata.formats.wshard.residual import SIGN_BITS, is_sign_bits, pack_residual
from warpdata.formats.wshard.schema import ENCODINGS, MAX_RANK, TensorSpec, Timebase, check_channel_id
from warpdata.formats.wshard.writer import Compression

LANES = tuple(LANE_PREFIX)
TEXT_SIZE_BYTES = 4
DEFAULT_TEXT_BYTES = 1024
_MAX_TEXT_BYTES = 1 << 24

_KEYS = ("id", "dtype", "shape", "lane", "compression", "max_bytes")
_MODEL_KEYS = ("of", "model", "type")
_MISSPELT = 0.85
"""How like a known key another one must be to be taken for a slip of the hand."""


@dataclass(frozen=True, slots=True)
class StepField:
    """One channel or flag of a step: its place in the payload, what it is, and where it goes in the episode."""

    id: str
    lane: str
    tensor: TensorSpec
    offset: int
    compression: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    """Its name within the lane: that of the channel, or `<of>/<model>` and the like for what models predict."""
    encoding: str | None = None
    """`text` or `json`: then the field is a length and room for that many bytes."""

    @property
    def is_bits(self) -> bool:
        """Whether it takes signs, of which the bits are stored: by its type, or by its name where there is no type."""
        subject, _, kind = self.path.rpartition("/")
        if self.about.get("of") is not None:
            kind = self.about.get("type", "")
        return self.lane == "residual" and bool(subject) and kind == SIGN_BITS


def channel_fields(channels: Sequence[Mapping[str, Any]]) -> list[StepField]:
    """The fields of a step, not yet placed; ValueError or TypeError names the wrong channel."""
    if isinstance(channels, Mapping | str) or not all(isinstance(each, Mapping) for each in channels):
        raise TypeError("channels is a list of dicts with 'id', 'dtype' and 'shape'")
    for index, each in enumerate(channels):
        _check_keys(each, index)
    fields = [_field(each) for each in channels]
    subjects = {each.id for each in fields if each.lane in ("signal", "action")} | {LATENT, LATENT_CODEBOOK}
    for made in fields:
        of = made.about.get("of") if made.lane not in ("signal", "action") else None
        if of is not None and of not in subjects:
            raise ValueError(
                f"channel {made.id!r} is of {of!r}, which is no channel here.{nearest(of, subjects)}"
            )
    for names in ([each.id for each in fields], [(each.lane, each.path) for each in fields]):
        if len(set(names)) != len(names):
            raise ValueError("two channels have the same id, or would be stored in the same block")
    return fields


def absent(fact: str, name: str, given: Iterable[object]) -> str:
    """The fact that a name is not there, and the given one that was probably meant for it."""
    for each in given:
        if meant := nearest(str(each), [name]):
            return f"{fact}, but there is {each!r}.{meant}"
    return fact


def _check_keys(each: Mapping[str, Any], index: int) -> None:
    for key in ("id", "dtype"):
        if key not in each:
            raise ValueError(absent(f"channel {each.get('id', index)!r} has no {key!r}", key, each))
    known = _KEYS if each.get("lane", "signal") in ("signal", "action") else _KEYS + _MODEL_KEYS
    for key in each:
        if key not in known and (close := difflib.get_close_matches(str(key), known, 1, _MISSPELT)):
            raise ValueError(f"channel {each['id']!r} has the key {key!r}. Did you mean {close[0]!r}?")


def _field(each: Mapping[str, Any]) -> StepField:
    channel_id, lane = each["id"], each.get("lane", "signal")
    check_channel_id(channel_id)
    if lane not in LANES:
        raise ValueError(
            f"the lane of {channel_id!r} is one of {', '.join(LANES)}, not {lane!r}.{nearest(str(lane), LANES)}"
        )
    compression = each.get("compression")
    if compression is not None and not isinstance(compression, str):
        raise TypeError(f"the compression of {channel_id!r} is a name such as 'zstd', not {compression!r}")
    Compression.parse(compression)
    encoding = each["dtype"] if isinstance(each["dtype"], str) and each["dtype"] in ENCODINGS else None
    tensor = _tensor(each, channel_id) if encoding is None else _text_room(each, channel_id)
    about = {key: value for key, value in each.items() if key not in _KEYS}
    made = StepField(channel_id, lane, tensor, 0, compression, about, _path(each, lane), encoding)
    if made.is_bits and tensor.dtype != "i8":
        raise ValueError(f"channel {channel_id!r} takes signs: its dtype is 'i8', and their bits are stored")
    if lane == "residual" and is_sign_bits(made.path, tensor):
        raise ValueError(
            f"channel {channel_id!r} would be taken for bits of {SIGN_BITS}: use another dtype or name"
        )
    return made


def _path(each: Mapping[str, Any], lane: str) -> str:
    """`<of>/<model>` of a prediction, `<of>/<model>/<type>` of an uncertainty, `<of>/<type>/<model>` of a residual."""
    channel_id, of, model, kind = each["id"], each.get("of"), each.get("model"), each.get("type")
    if lane in ("signal", "action") or of is None:
        if lane not in ("signal", "action") and (model is not None or kind is not None):
            raise ValueError(f"channel {channel_id!r} has no 'of': expected the id of a channel")
        return str(channel_id)
    needed = {"omen": ("model",), "uncert": ("model", "type"), "residual": ()}[lane]
    for key in needed:
        if each.get(key) is None:
            raise ValueError(f"channel {channel_id!r} in lane {lane!r} has no {key!r}")
    parts = {"omen": (of, model), "uncert": (of, model, kind), "residual": (of, kind or "error", model)}[lane]
    path = "/".join(str(part) for part in parts if part is not None)
    check_channel_id(path)
    return path


def _tensor(each: Mapping[str, Any], channel_id: str) -> TensorSpec:
    shape = each.get("shape", ())
    # A string is one of the thirteen names, not every word that numpy accepts.
    dtype = dtype_named(each["dtype"]) if isinstance(each["dtype"], str) else dtype_of(each["dtype"])
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"the shape of {channel_id!r} is a list such as [7], not {shape!r}")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"the shape of {channel_id!r} is {list(shape)}, sizes were expected")
    if len(shape) > MAX_RANK:
        raise ValueError(f"the shape of {channel_id!r} has {len(shape)} axes, at most {MAX_RANK} are allowed")
    return TensorSpec(dtype, tuple(shape))


def _text_room(each: Mapping[str, Any], channel_id: str) -> TensorSpec:
    """A length and room for the longest value: records of a stream are all of one size."""
    room = each.get("max_bytes", DEFAULT_TEXT_BYTES)
    if isinstance(room, bool) or not isinstance(room, int) or not 0 < room <= _MAX_TEXT_BYTES:
        raise ValueError(f"max_bytes of {channel_id!r} is {room!r}, 1 to {_MAX_TEXT_BYTES} was expected")
    if list(each.get("shape", ())) != []:
        raise ValueError(f"channel {channel_id!r} holds one {each['dtype']} per step, it has no shape")
    return TensorSpec(dtype_named("u8"), (TEXT_SIZE_BYTES + room,))


KIND = "wshard-steps"
GIVEN_REWARD, GIVEN_DONE, GIVEN_TRUNCATED, GIVEN_TIME = 1, 2, 4, 8

_REWARDS = ("f16", "bf16", "f32", "f64")
_FIELD_ALIGNMENT = 8
_WINDOW_BYTES = 16 << 20
_TS_OFFSET = -8
"""The time of a step is the last field of the record header, just before the payload."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The payload of a step record."""

    channels: tuple[StepField, ...]
    flags: dict[str, StepField]
    payload_bytes: int

    @classmethod
    def plan(cls, channels: Sequence[Mapping[str, Any]], reward_dtype: str = "f32") -> StepLayout:
        """Place the channels a caller describes, and the flags behind them."""
        if reward_dtype not in _REWARDS:
            raise ValueError(
                f"rewards are {', '.join(_REWARDS)}, not {reward_dtype!r}.{nearest(str(reward_dtype), _REWARDS)}"
            )
        fields, offset = [], 0
        for spec in channel_fields(channels):
            fields.append(replace(spec, offset=offset))
            offset = align_up(offset + spec.tensor.row_bytes, _FIELD_ALIGNMENT)
        flags = {}
        for name, dtype in (
            ("reward", reward_dtype),
            ("done", "bool"),
            ("truncated", "bool"),
            ("given", "u8"),
        ):
            flags[name] = StepField(name, "flag", TensorSpec(dtype_named(dtype), ()), offset)
            offset += dtype_named(dtype).itemsize
        return cls(tuple(fields), flags, offset)

    def to_json(self) -> dict[str, Any]:
        """The part of the journal's descriptor that describes its records."""
        return {
            "payload_bytes": self.payload_bytes,
            "channels": [_field_json(each) for each in self.channels],
            "fields": {name: _field_json(each) for name, each in self.flags.items()},
        }

    @classmethod
    def from_json(cls, descriptor: Mapping[str, Any], path: str) -> StepLayout:
        """Read it back out of a journal's descriptor."""
        try:
            size = int(descriptor["payload_bytes"])
            channels = tuple(_field_from_json(each) for each in descriptor["channels"])
            flags = {name: _field_from_json(each) for name, each in descriptor["fields"].items()}
            if any(
                not 0 <= each.offset <= size - each.tensor.row_bytes for each in [*channels, *flags.values()]
            ):
                raise ValueError("a field is outside the record")
            if any(each.lane not in LANES for each in channels):
                raise ValueError("a channel has no lane")
            if flags["given"].tensor != TensorSpec(dtype_named("u8"), ()):
                raise ValueError("what was given with a step is no byte")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLayoutError(f"the journal describes no steps ({error})", path=path) from None
        return cls(channels, flags, size)

    def flag(self, name: str, path: str) -> StepField:
        """The offset of a flag in the record."""
        if name not in self.flags:
            raise CorruptLayoutError(f"the journal has no offset for {name!r}", path=path)
        return self.flags[name]

    def compression(self) -> dict[str, str]:
        """The compression wanted for each block of the finished file."""
        return {f"{each.lane}/{each.path}": each.compression for each in self.channels if each.compression}


@dataclass(frozen=True, slots=True)
class StepRun:
    """Records of one size that follow each other without a gap."""

    offset: int
    count: int


class JournalColumn:
    """The rows of one field over all records of a journal, gathered a window at a time."""

    def __init__(
        self, path: str, runs: Sequence[StepRun], stride: int, offset: int, spec: TensorSpec
    ) -> None:
        self.path = path
        self._runs = runs
        self._stride = stride
        self._offset = RECORD_BYTES + offset
        self.spec = spec
        self.length = sum(run.count for run in runs)

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end), copied out of the journal in bounded memory."""
        out = np.empty((end - start, self.spec.row_bytes), np.uint8)
        if not len(out):
            return np.empty((0, *self.spec.shape), self.spec.dtype.dtype)
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            filled = 0
            for low, count in self._stretches(start, end):
                self._gather(fd, low, out[filled : filled + count])
                filled += count
        finally:
            os.close(fd)
        return out.reshape(-1).view(self.spec.dtype.dtype).reshape(end - start, *self.spec.shape)

    def _stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(file offset, count) of stretches of records that fit in one window."""
        per_window = max(1, _WINDOW_BYTES // self._stride)
        first = 0
        for run in self._runs:
            low, high = max(start - first, 0), min(end - first, run.count)
            for at in range(low, high, per_window):
                yield run.offset + at * self._stride, min(per_window, high - at)
            first += run.count

    def _gather(self, fd: int, offset: int, out: NDArray[np.uint8]) -> None:
        base = offset // PAGE_BYTES * PAGE_BYTES
        size = offset - base + (len(out) - 1) * self._stride + self._offset + self.spec.row_bytes
        with mmap.mmap(fd, size, prot=mmap.PROT_READ, offset=base) as window:
            view: NDArray[np.uint8] = np.ndarray(
                out.shape, np.uint8, window, offset - base + self._offset, (self._stride, 1)
            )
            out[:] = view
            del view


class TextColumn:
    """The texts or JSON values of one field over all records of a journal."""

    def __init__(self, column: JournalColumn, encoding: str, name: str) -> None:
        self._column = column
        self._encoding = encoding
        self._name = name
        self.spec = text_spec(encoding)
        self.length = column.length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Values [start, end), the room they were given read a window at a time."""
        out = np.empty(end - start, object)
        per_window = max(1, _WINDOW_BYTES // max(1, self._column.spec.row_bytes))
        for low in range(start, end, per_window):
            rooms = self._column.rows(low, min(low + per_window, end))
            for index, stored in enumerate(rooms, low - start):
                out[index] = self._value(stored)
        return out

    def _value(self, stored: NDArray[np.uint8]) -> Any:
        size = int.from_bytes(stored[:TEXT_SIZE_BYTES].tobytes(), "little")
        if size > len(stored) - TEXT_SIZE_BYTES:
            raise CorruptLayoutError(
                f"channel {self._name!r} has a value longer than its room", path=self._column.path
            )
        data = stored[TEXT_SIZE_BYTES : TEXT_SIZE_BYTES + size].tobytes()
        return decode_value(self._encoding, data, self._name, self._column.path)


def step_episode(
    path: str, descriptor: Mapping[str, Any], runs: Sequence[StepRun], stride: int
) -> WShardEpisode:
    """The episode a step journal holds, its channels still in the journal."""
    layout = StepLayout.from_json(descriptor, path)

    def column(each: StepField) -> JournalColumn:
        return JournalColumn(path, runs, stride, each.offset, each.tensor)

    episode = _identity(descriptor, path)
    episode.length = sum(run.count for run in runs)
    targets = {
        "signal": episode.observations, "action": episode.actions, "omen": episode.omens,
        "uncert": episode.uncerts, "residual": episode.residuals,
    }  # fmt: skip
    for each in layout.channels:
        targets[each.lane][each.path] = _channel(each, column(each))
    given = column(layout.flags["given"]).rows(0, episode.length)
    ever, always = int(np.bitwise_or.reduce(given, initial=0)), int(np.bitwise_and.reduce(given, initial=255))
    if ever & GIVEN_REWARD:
        episode.rewards = Channel.over("reward", column(layout.flag("reward", path)))
    if ever & GIVEN_DONE:
        episode.terminations = Channel.over("done", column(layout.flag("done", path)))
    if ever & GIVEN_TRUNCATED:
        episode.truncations = Channel.over("truncated", column(layout.flag("truncated", path)))
    if episode.timebase.type == "timestamps_ns" or (episode.length and always & GIVEN_TIME):
        stamps = JournalColumn(path, runs, stride, _TS_OFFSET, TensorSpec(dtype_named("i64"), ()))
        episode.set_clock(stamps)
    return episode


def _channel(each: StepField, column: JournalColumn) -> Channel:
    if each.encoding is not None:
        return Channel.over(each.path, TextColumn(column, each.encoding, each.id), about=each.about)
    if each.is_bits:
        return Channel(each.path, _packed_bits(column), about=each.about)
    return Channel.over(each.path, column, about=each.about)


def _packed_bits(column: JournalColumn) -> NDArray[np.uint8]:
    """One bit per sign, one dimension after the other; the signs are read a window of whole bytes at a time."""
    dims = column.spec.row_bytes
    if not dims or not column.length:
        return np.zeros(0, np.uint8)
    per_window = max(1, _WINDOW_BYTES // dims // 8) * 8
    parts = [
        np.frombuffer(pack_residual(column.rows(start, min(start + per_window, column.length))), np.uint8)
        for start in range(0, column.length, per_window)
    ]
    return np.concatenate([part.reshape(dims, -1) for part in parts], axis=1).reshape(-1)


def _identity(descriptor: Mapping[str, Any], path: str) -> WShardEpisode:
    try:
        meta = descriptor["episode"]
        timebase = Timebase(meta["timebase"]["type"], meta["timebase"]["tick_hz"])
        return WShardEpisode(meta["id"], meta["env_id"], 0, timebase, metadata=dict(meta["metadata"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptLayoutError(f"the journal names no episode ({error})", path=path) from None


def _field_json(each: StepField) -> dict[str, Any]:
    return {
        "id": each.id, "lane": each.lane, "dtype": str(each.tensor.dtype), "shape": list(each.tensor.shape),
        "offset": each.offset, "compression": each.compression, "about": each.about, "path": each.path,
        "encoding": each.encoding,
    }  # fmt: skip


def _field_from_json(each: Mapping[str, Any]) -> StepField:
    shape = tuple(int(size) for size in each["shape"])
    if any(size < 0 for size in shape):
        raise ValueError("a shape is negative")
    tensor, encoding = TensorSpec(dtype_named(each["dtype"]), shape), each.get("encoding")
    if encoding is not None and (encoding not in ENCODINGS or tensor.dtype != "u8" or len(shape) != 1):
        raise ValueError("a text field is not made of bytes")
    if each["lane"] not in LANES and each["lane"] != "flag":
        raise ValueError(f"there is no lane {each['lane']!r}")
    return StepField(
        str(each["id"]), str(each["lane"]), tensor, int(each["offset"]), each["compression"],
        dict(each["about"]), str(each.get("path") or each["id"]), encoding,
    )  # fmt: skip
