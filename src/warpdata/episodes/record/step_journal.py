"""A journal of whole steps: what stands where in each record, and how its columns are read back."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import align_up
from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.io.mapping import PAGE_BYTES
from warpdata.episodes.record.step_channels import LANES, TEXT_SIZE_BYTES, StepField, channel_fields
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.formats.journal.layout import RECORD_BYTES
from warpdata.formats.wshard.channel import Channel
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.residual import pack_residual
from warpdata.formats.wshard.schema import ENCODINGS, TensorSpec, Timebase
from warpdata.formats.wshard.text import decode_value, text_spec

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
                raise ValueError("a field lies outside the record")
            if any(each.lane not in LANES for each in channels):
                raise ValueError("a channel lies in no lane")
            if flags["given"].tensor != TensorSpec(dtype_named("u8"), ()):
                raise ValueError("what was given with a step is no byte")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLayoutError(f"the journal describes no steps ({error})", path=path) from None
        return cls(channels, flags, size)

    def flag(self, name: str, path: str) -> StepField:
        """Where a flag lies that steps were given with."""
        if name not in self.flags:
            raise CorruptLayoutError(f"the journal does not say where {name!r} lies", path=path)
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
