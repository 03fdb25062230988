"""Episodes recorded by step into one journal: channels declared ahead, one record per step."""

from __future__ import annotations

import contextlib
import difflib
import math
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import align_up, as_array, dtype_named, dtype_of
from warpdata.bytekit.io.commit import map_os_errors, remove_temps_of, writable_path
from warpdata.bytekit.io.files import absolute_path
from warpdata.bytekit.process.forks import NoPickle, run_in_child
from warpdata.episodes.record.recorder import check_no_file
from warpdata.episodes.record.tables import owner
from warpdata.episodes.record.threads import Durability, RecordingThreads
from warpdata.episodes.record.values import as_declared
from warpdata.errors import (
    CorruptLayoutError,
    JournalInUseError,
    RecordingError,
    SchemaMismatchError,
    TimestampOrderError,
    WarpError,
    WriterClosedError,
    nearest,
    suggests,
)
from warpdata.formats.journal.layout import (
    MAX_RECORD_BYTES,
    PARTIAL_SUFFIX,
    RECORD_BYTES,
    STEP_AT,
    STEPS_KIND,
    record_span,
)
from warpdata.formats.journal.reader import JournalReader, is_live
from warpdata.formats.journal.writer import PAGE_BYTES, JournalWriter, StepRecord
from warpdata.formats.wshard.episode import LATENT, LATENT_CODEBOOK, Channel, WShardEpisode
from warpdata.formats.wshard.layout import LANE_PREFIX
from warpdata.formats.wshard.residual import SIGN_BITS, is_sign_bits, pack_residual
from warpdata.formats.wshard.rows import decode_value, encode_value, text_spec
from warpdata.formats.wshard.save import Compression, check_compat, plan_shard, save_wshard
from warpdata.formats.wshard.schema import ENCODINGS, MAX_RANK, TensorSpec, Timebase, check_channel_id

if TYPE_CHECKING:
    from typing import Self

LANES = tuple(LANE_PREFIX)
TEXT_SIZE_BYTES = 4
DEFAULT_TEXT_BYTES = 1024
GIVEN_REWARD, GIVEN_DONE, GIVEN_TRUNCATED, GIVEN_TIME = 1, 2, 4, 8

_MAX_TEXT_BYTES = 1 << 24
_KEYS = ("id", "dtype", "shape", "lane", "compression", "max_bytes")
_MODEL_KEYS = ("of", "model", "type")
_RECORDED = ("signal", "action")
"""Lanes of what happened; the others hold what models predict of it."""
_MISSPELT = 0.85
"""Likeness of an unknown key to a known one from which on it is taken for a typing error."""
_REWARDS = {
    "f16": 65504.0,
    "bf16": float.fromhex("0x1.FEp127"),
    "f32": float.fromhex("0x1.FFFFFEp127"),
    "f64": sys.float_info.max,
}
"""How rewards are stored, with the largest number of each type."""
_FIELD_ALIGNMENT = 8
_WINDOW_BYTES = 16 << 20
_FLAGS = (("done", "bool"), ("truncated", "bool"), ("given", "u8"))
_FLAG_BYTES = 16
"""Reward and flags take less."""
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class StepField:
    """One channel of a step: its type, and its place in the episode."""

    id: str
    lane: str
    tensor: TensorSpec
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

    def to_json(self) -> dict[str, Any]:
        """The channel as its caller described it, in plain values."""
        dtype = self.encoding or str(self.tensor.dtype)
        room: dict[str, Any] = {"shape": list(self.tensor.shape)}
        if self.encoding is not None:
            room = {"max_bytes": self.tensor.shape[0] - TEXT_SIZE_BYTES}
        entry = {**self.about, "id": self.id, "lane": self.lane, "dtype": dtype, **room}
        return entry if self.compression is None else {**entry, "compression": self.compression}


def channel_fields(channels: Sequence[Mapping[str, Any]]) -> list[StepField]:
    """The channels of a step; ValueError or TypeError names the wrong one."""
    if isinstance(channels, Mapping | str) or not all(isinstance(channel, Mapping) for channel in channels):
        raise TypeError("channels is a list of dicts with 'id', 'dtype' and 'shape'")
    for index, channel in enumerate(channels):
        _check_keys(channel, index)
    fields = [_field(channel) for channel in channels]
    subjects = {item.id for item in fields if item.lane in _RECORDED} | {LATENT, LATENT_CODEBOOK}
    for item in fields:
        of = None if item.lane in _RECORDED else item.about.get("of")
        if of is not None and of not in subjects:
            raise ValueError(
                f"channel {item.id!r} is of {of!r}, which is no channel here.{nearest(of, subjects)}"
            )
    for names in ([item.id for item in fields], [(item.lane, item.path) for item in fields]):
        if len(set(names)) != len(names):
            raise ValueError("two channels have the same id, or would be stored in the same block")
    return fields


def _check_keys(channel: Mapping[str, Any], index: int) -> None:
    for key in ("id", "dtype"):
        if key not in channel:
            fact = f"channel {channel.get('id', index)!r} has no {key!r}"
            raise ValueError(_with_near_miss(fact, key, channel))
    known = _KEYS if channel.get("lane", "signal") in _RECORDED else _KEYS + _MODEL_KEYS
    for key in channel:
        if key not in known and (close := difflib.get_close_matches(str(key), known, 1, _MISSPELT)):
            raise ValueError(f"channel {channel['id']!r} has the key {key!r}. Did you mean {close[0]!r}?")


def _with_near_miss(fact: str, name: str, given: Iterable[object]) -> str:
    """The fact that a name is missing, and the given one that was probably meant."""
    for other in given:
        if meant := nearest(str(other), [name]):
            return f"{fact}, but there is {other!r}.{meant}"
    return fact


def _field(channel: Mapping[str, Any]) -> StepField:
    channel_id, lane = channel["id"], channel.get("lane", "signal")
    check_channel_id(channel_id)
    if lane not in LANES:
        raise ValueError(
            f"the lane of {channel_id!r} is one of {', '.join(LANES)}, not {lane!r}.{nearest(str(lane), LANES)}"
        )
    compression = channel.get("compression")
    if compression is not None and not isinstance(compression, str):
        raise TypeError(f"the compression of {channel_id!r} is a name such as 'zstd', not {compression!r}")
    Compression.parse(compression)
    is_text = isinstance(channel["dtype"], str) and channel["dtype"] in ENCODINGS
    tensor = _text_room(channel) if is_text else _tensor(channel)
    about = {key: value for key, value in channel.items() if key not in _KEYS}
    encoding = channel["dtype"] if is_text else None
    made = StepField(channel_id, lane, tensor, compression, about, _path(channel, lane), encoding)
    if made.is_bits and tensor.dtype != "i8":
        raise ValueError(f"channel {channel_id!r} takes signs: its dtype is 'i8', and their bits are stored")
    if lane == "residual" and is_sign_bits(made.path, tensor):
        raise ValueError(
            f"channel {channel_id!r} would be taken for bits of {SIGN_BITS}: use another dtype or name"
        )
    return made


def _path(channel: Mapping[str, Any], lane: str) -> str:
    """`<of>/<model>` of a prediction, `<of>/<model>/<type>` of an uncertainty, `<of>/<type>/<model>` of a residual."""
    channel_id, of, model, kind = channel["id"], channel.get("of"), channel.get("model"), channel.get("type")
    if lane in _RECORDED or of is None:
        if lane not in _RECORDED and (model is not None or kind is not None):
            raise ValueError(f"channel {channel_id!r} has no 'of': expected the id of a channel")
        return str(channel_id)
    for key in {"omen": ("model",), "uncert": ("model", "type"), "residual": ()}[lane]:
        if channel.get(key) is None:
            raise ValueError(f"channel {channel_id!r} in lane {lane!r} has no {key!r}")
    parts = {"omen": (of, model), "uncert": (of, model, kind), "residual": (of, kind or "error", model)}[lane]
    path = "/".join(str(part) for part in parts if part is not None)
    check_channel_id(path)
    return path


def _tensor(channel: Mapping[str, Any]) -> TensorSpec:
    channel_id, shape = channel["id"], channel.get("shape", ())
    # A string is one of the thirteen names, not every word that numpy accepts.
    dtype = dtype_named(channel["dtype"]) if isinstance(channel["dtype"], str) else dtype_of(channel["dtype"])
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"the shape of {channel_id!r} is a list such as [7], not {shape!r}")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"the shape of {channel_id!r} is {list(shape)}, sizes were expected")
    if len(shape) > MAX_RANK:
        raise ValueError(f"the shape of {channel_id!r} has {len(shape)} axes, at most {MAX_RANK} are allowed")
    return TensorSpec(dtype, tuple(shape))


def _text_room(channel: Mapping[str, Any]) -> TensorSpec:
    """A length and room for the longest value: records of a stream are all of one size."""
    channel_id, room = channel["id"], channel.get("max_bytes", DEFAULT_TEXT_BYTES)
    if isinstance(room, bool) or not isinstance(room, int) or not 0 < room <= _MAX_TEXT_BYTES:
        raise ValueError(f"max_bytes of {channel_id!r} is {room!r}, 1 to {_MAX_TEXT_BYTES} was expected")
    if list(channel.get("shape", ())) != []:
        raise ValueError(f"channel {channel_id!r} holds one {channel['dtype']} per step, it has no shape")
    return TensorSpec(dtype_named("u8"), (TEXT_SIZE_BYTES + room,))


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The record of a step: its header with the time, the channels, the flags."""

    channels: tuple[StepField, ...]
    reward_dtype: str
    dtype: np.dtype[Any]
    """The whole record as one structured type: `ts_ns`, the channels by position, the flags by name."""

    @classmethod
    def plan(cls, channels: Sequence[Mapping[str, Any]], reward_dtype: str = "f32") -> StepLayout:
        """Give the described channels offsets, and the flags after them."""
        if reward_dtype not in _REWARDS:
            near = nearest(str(reward_dtype), _REWARDS)
            raise ValueError(f"rewards are {', '.join(_REWARDS)}, not {reward_dtype!r}.{near}")
        fields = channel_fields(channels)
        size = sum(align_up(item.tensor.row_bytes, _FIELD_ALIGNMENT) for item in fields)
        if size > MAX_RECORD_BYTES - _FLAG_BYTES:
            raise SchemaMismatchError(
                f"a step of {size} bytes is too large: it has at most {MAX_RECORD_BYTES - _FLAG_BYTES}",
                hint="Declare smaller shapes, or record the large channel with a recorder of its own.",
            )
        names, offsets, offset = ["ts_ns"], [STEP_AT + 8], RECORD_BYTES
        formats: list[np.dtype[Any]] = [np.dtype(np.int64)]
        for number, item in enumerate(fields):
            names.append(str(number))
            formats.append(np.dtype((item.tensor.dtype.dtype, item.tensor.shape)))
            offsets.append(offset)
            offset = align_up(offset + item.tensor.row_bytes, _FIELD_ALIGNMENT)
        for name, dtype in (("reward", reward_dtype), *_FLAGS):
            names.append(name)
            formats.append(dtype_named(dtype).dtype)
            offsets.append(offset)
            offset += formats[-1].itemsize
        about = {"names": names, "formats": formats, "offsets": offsets, "itemsize": offset}
        return cls(tuple(fields), reward_dtype, np.dtype(about))  # type: ignore[call-overload]

    @property
    def payload_bytes(self) -> int:
        """The size of a record without its header."""
        return self.dtype.itemsize - RECORD_BYTES

    def to_json(self) -> dict[str, Any]:
        """The part of the journal's descriptor that describes its records."""
        return {
            "payload_bytes": self.payload_bytes,
            "channels": [item.to_json() for item in self.channels],
            "reward_dtype": self.reward_dtype,
        }

    @classmethod
    def from_json(cls, descriptor: Mapping[str, Any], path: str) -> StepLayout:
        """The same layout, from a journal's descriptor."""
        try:
            layout = cls.plan(descriptor["channels"], descriptor["reward_dtype"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptLayoutError(f"the journal describes no steps ({error})", path=path) from None
        if layout.payload_bytes != descriptor.get("payload_bytes"):
            raise CorruptLayoutError("the journal describes records of another size", path=path)
        return layout

    def compression(self) -> dict[str, str]:
        """The compression wanted for each block of the finished file."""
        return {f"{item.lane}/{item.path}": item.compression for item in self.channels if item.compression}


@dataclass(frozen=True, slots=True)
class StepRun:
    """Records of one size that follow each other without a gap."""

    offset: int
    count: int


class JournalColumn:
    """The rows of one field over all records of a journal, gathered a window at a time."""

    def __init__(
        self, path: str, runs: Sequence[StepRun], record: np.dtype[Any], name: str, spec: TensorSpec
    ) -> None:
        self.path = path
        self._runs = runs
        self._record = record
        self._stride = record_span(record.itemsize - RECORD_BYTES)
        self._name = name
        self.spec = spec
        self.length = sum(run.count for run in runs)

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end), copied out of the journal in bounded memory."""
        out = np.empty((end - start, *self.spec.shape), self.spec.dtype.dtype)
        filled, first, per_window = 0, 0, max(1, _WINDOW_BYTES // self._stride)
        with open(self.path, "rb") as file:
            for run in self._runs:
                low, high = max(start - first, 0), min(end - first, run.count)
                for at in range(low, high, per_window):
                    count = min(per_window, high - at)
                    self._copy(file.fileno(), run.offset + at * self._stride, out[filled : filled + count])
                    filled += count
                first += run.count
        return out

    def _copy(self, fd: int, offset: int, out: NDArray[Any]) -> None:
        base = offset // PAGE_BYTES * PAGE_BYTES
        size = offset - base + (len(out) - 1) * self._stride + self._record.itemsize
        with mmap.mmap(fd, size, prot=mmap.PROT_READ, offset=base) as window:
            records: NDArray[Any] = np.ndarray(len(out), self._record, window, offset - base, (self._stride,))
            out[...] = records[self._name]
            del records


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
                size = int.from_bytes(stored[:TEXT_SIZE_BYTES].tobytes(), "little")
                if size > len(stored) - TEXT_SIZE_BYTES:
                    fact = f"channel {self._name!r} has a value longer than its room"
                    raise CorruptLayoutError(fact, path=self._column.path)
                data = stored[TEXT_SIZE_BYTES : TEXT_SIZE_BYTES + size].tobytes()
                out[index] = decode_value(self._encoding, data, self._name, self._column.path)
        return out


def step_episode(path: str, descriptor: Mapping[str, Any], runs: Sequence[StepRun] = ()) -> WShardEpisode:
    """The episode a step journal holds, its channels still in the journal."""
    layout = StepLayout.from_json(descriptor, path)

    def column(name: str, spec: TensorSpec | None = None) -> JournalColumn:
        spec = spec or TensorSpec(dtype_of(layout.dtype[name]), ())
        return JournalColumn(path, runs, layout.dtype, name, spec)

    try:
        meta = descriptor["episode"]
        timebase = Timebase(meta["timebase"]["type"], meta["timebase"]["tick_hz"])
        episode = WShardEpisode(meta["id"], meta["env_id"], 0, timebase, metadata=dict(meta["metadata"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptLayoutError(f"the journal names no episode ({error})", path=path) from None
    episode.length = sum(run.count for run in runs)
    targets = {
        "signal": episode.observations, "action": episode.actions, "omen": episode.omens,
        "uncert": episode.uncerts, "residual": episode.residuals,
    }  # fmt: skip
    for number, item in enumerate(layout.channels):
        rows: Any = column(str(number), item.tensor)
        if item.is_bits:
            targets[item.lane][item.path] = Channel(item.path, _packed_bits(rows), about=item.about)
            continue
        if item.encoding is not None:
            rows = TextColumn(rows, item.encoding, item.id)
        targets[item.lane][item.path] = Channel.over(item.path, rows, about=item.about)
    given = column("given").rows(0, episode.length)
    ever, always = int(np.bitwise_or.reduce(given, initial=0)), int(np.bitwise_and.reduce(given, initial=255))
    for flag, name, attribute in (
        (GIVEN_REWARD, "reward", "rewards"),
        (GIVEN_DONE, "done", "terminations"),
        (GIVEN_TRUNCATED, "truncated", "truncations"),
    ):
        if ever & flag:
            setattr(episode, attribute, Channel.over(name, column(name)))
    if episode.timebase.type == "timestamps_ns" or (episode.length and always & GIVEN_TIME):
        episode.set_clock(column("ts_ns"))
    return episode


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


class WShardStreamWriter(NoPickle):
    """Streams one episode into `<path>.partial` and turns it into `path` when the episode ends.

    The writer of the document: rows of declared channels, in one journal with the threads of any recording. A step is
    one record: as signals of a `Recording` it would take seven times as long. `wd.record` takes undeclared signals,
    cameras, and signals of different rates.
    """

    @suggests
    def __init__(
        self,
        path: str | os.PathLike[str],
        episode_id: str,
        channels: Sequence[Mapping[str, Any]],
        *,
        env_id: str = "",
        timebase: Timebase | str | Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        reward_dtype: str = "f32",
        durability: str = "100ms",
        compat: str = "default",
        overwrite: bool = False,
    ) -> None:
        self._overwrite = overwrite
        self._lock = threading.RLock()
        self.path = str(absolute_path(path))
        self.partial_path = self.path + PARTIAL_SUFFIX
        self.steps = 0
        self._layout = StepLayout.plan(channels, reward_dtype)
        self._durability = Durability.parse(durability)
        clock = Timebase() if timebase is None else Timebase.of(timebase)
        self._descriptor: dict[str, Any] = {
            "kind": STEPS_KIND, "owner": None, "target": os.path.basename(self.path),
            "episode": {
                "id": episode_id, "env_id": env_id, "timebase": clock.to_json(), "metadata": dict(metadata or {}),
            },
            "compat": check_compat(compat), **self._layout.to_json(),
        }  # fmt: skip
        # What could not be saved in the end is refused now, not after an hour of recording.
        plan_shard(step_episode(os.devnull, self._descriptor), self.path)
        self._check_target()
        self._journal: JournalWriter | None = None
        self._state = "new"
        self._last_ts_ns: int | None = None
        self._is_timed: bool | None = True if clock.type == "timestamps_ns" else None
        run_in_child(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child: the recording continues in the process that began it."""
        self._lock = threading.RLock()
        if self._state == "recording":
            self._state = "recorded by another process"

    def begin_episode(self) -> None:
        """Create the journal; a journal already there is an error that names its owner."""
        if self._state != "new":
            raise WriterClosedError(f"the episode is {self._state}", path=self.path)
        self._check_no_journal()
        self._check_target()
        writable_path(self.path)
        self._record = StepRecord(0, self._layout.payload_bytes)
        fields = np.frombuffer(self._record.buffer, self._layout.dtype, 1)
        items = [(item, fields[str(number)][0, ...]) for number, item in enumerate(self._layout.channels)]
        self._slots = [
            (item.id, item.tensor.dtype.dtype, item.tensor.shape, slot)
            for item, slot in items
            if not item.encoding
        ]
        self._text_slots = [(item.id, item.encoding, slot) for item, slot in items if item.encoding]
        flags = ("reward", "done", "truncated", "given")
        self._reward, self._done, self._truncated, self._given = (fields[name][0, ...] for name in flags)
        self._descriptor["owner"] = owner()
        with map_os_errors(self.partial_path):
            self._journal = JournalWriter(
                self.partial_path, self._descriptor, max_record_bytes=self._layout.payload_bytes
            )
        # Left by a recorder that was killed while it finished; the journal keeps others away.
        remove_temps_of(self.path)
        self._threads = RecordingThreads(self._durability)
        self._threads.add_journal(self._journal)
        self._state = "recording"

    def write_timestep(
        self,
        values: Mapping[str, Any],
        reward: float | None = None,
        done: bool | None = None,
        *,
        truncated: bool | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Record one step; when this returns, it survives the death of this process. Any thread may call it."""
        with self._lock:  # the row is collected in one buffer
            journal = self._journal
            if self._state != "recording" or journal is None:
                raise self._not_recording()
            if self._threads.failure is not None:
                self._threads.check()
            if type(values) is not dict and not isinstance(values, Mapping):
                raise TypeError(f"a step is a dict of values by channel id, not {type(values).__name__}")
            for name, dtype, shape, slot in self._slots:
                value = values.get(name)
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    value = _as_channel(name, value, dtype, shape, values)
                slot[...] = value
            for name, encoding, slot in self._text_slots:
                _put_text(name, encoding, slot, values)
            if len(values) != len(self._slots) + len(self._text_slots):
                raise self._unknown_channels(values)
            ts_ns = self._check_time(timestamp_ns)
            self._set_flags(reward, done, truncated, timestamp_ns)
            journal.append_step(self._record, self.steps, ts_ns)
            self.steps += 1
            self._last_ts_ns, self._is_timed = ts_ns, timestamp_ns is not None
            if self._durability.every_record:
                journal.sync()

    def end_episode(self) -> None:
        """Turn the journal into the finished file: contiguous blocks, checksums, fsync, atomic rename."""
        with self._lock:
            if self._state != "recording":
                raise self._not_recording()
            with self._stop() as journal:
                try:
                    self._check_target()
                    runs = [StepRun(journal.records_offset, self.steps)]
                    episode = step_episode(self.partial_path, self._descriptor, runs)
                    compression = self._layout.compression()
                    compat = self._descriptor["compat"]
                    save_wshard(episode, self.path, compression, compat=compat, overwrite=self._overwrite)
                except WarpError as error:
                    hint = "Everything recorded is kept: make room for it, then run"
                    error.hint = f"{hint} `warp salvage {self.partial_path}`."
                    raise
                with map_os_errors(self.partial_path):
                    os.unlink(self.partial_path)
            self._state = "finished"

    def abort(self) -> None:
        """Delete the journal and everything recorded in it."""
        with self._lock:
            if self._state in ("recording", "unfinished"):
                is_open = self._state == "recording"
                with self._stop() if is_open else contextlib.nullcontext(), map_os_errors(self.partial_path):
                    os.unlink(self.partial_path)
            self._state = "aborted"

    def close(self) -> None:
        """Close the journal without finishing the episode; it can be salvaged later."""
        with self._lock:
            if self._state == "recording":
                with self._stop():
                    pass

    def __repr__(self) -> str:
        return f"<WShardStreamWriter {self.path}: {self.steps} steps, {self._state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._state != "recording":
            return
        if error is None:
            self.end_episode()
            return
        self.close()
        error.add_note(
            f"{self.steps} steps are kept in {self.partial_path}; finish them with `warp salvage {self.path}`"
        )

    @contextlib.contextmanager
    def _stop(self) -> Iterator[JournalWriter]:
        """Stop the threads and close the journal; what was written stays in it, locked against salvage."""
        journal, self._journal = self._journal, None
        if journal is None:
            raise self._not_recording()
        self._state = "unfinished"
        self._threads.remove_journal(journal)
        self._threads.close()
        try:
            journal.close(unlock=False)
            yield journal
        finally:
            journal.unlock()

    def _set_flags(
        self, reward: float | None, done: bool | None, truncated: bool | None, timestamp_ns: int | None
    ) -> None:
        try:
            value = math.nan if reward is None else reward if type(reward) is float else _as_real(reward)
            if _REWARDS[self._layout.reward_dtype] < abs(value) < math.inf:
                raise OverflowError(f"{reward} does not fit in {self._reward.dtype}")
            self._reward[...] = value
            self._done[...] = _as_flag(done)
            self._truncated[...] = _as_flag(truncated)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise SchemaMismatchError(f"reward is a number, done and truncated are bool: {error}") from None
        self._given[...] = (
            (reward is not None) * GIVEN_REWARD
            | (done is not None) * GIVEN_DONE
            | (truncated is not None) * GIVEN_TRUNCATED
            | (timestamp_ns is not None) * GIVEN_TIME
        )

    def _check_time(self, timestamp_ns: int | None) -> int:
        """The time of a step: all steps have one or none has; later than the last, and small enough to store."""
        if timestamp_ns is None:
            if not self._is_timed:
                return 0
            raise TimestampOrderError("timestamp_ns is needed with every step", path=self.path)
        if self._is_timed is False:
            raise TimestampOrderError("the steps before this one came without timestamp_ns", path=self.path)
        if isinstance(timestamp_ns, bool) or not isinstance(timestamp_ns, int | np.integer):
            raise TypeError(f"timestamp_ns is integer nanoseconds, not {type(timestamp_ns).__name__}")
        ts_ns = int(timestamp_ns)
        if not -_INT64 <= ts_ns < _INT64:
            raise TimestampOrderError(f"timestamp {ts_ns} does not fit in 64 bits", path=self.path)
        if self._last_ts_ns is not None and ts_ns <= self._last_ts_ns:
            raise TimestampOrderError(f"{ts_ns} is not increasing after {self._last_ts_ns}", path=self.path)
        return ts_ns

    def _check_target(self) -> None:
        if not self._overwrite:
            check_no_file(self.path)

    def _check_no_journal(self) -> None:
        """Raise JournalInUseError if a journal is at the path, with whether its owner is alive."""
        path = self.partial_path
        if not os.path.exists(path):
            return
        if is_live(path):
            hint = "Record to another path, or stop that process."
            raise JournalInUseError(f"being recorded by {describe_owner(path)}", path=path, hint=hint)
        hint = f"Run `warp salvage {path}` to finish it, or delete it."
        raise JournalInUseError(
            f"an unfinished recording of {describe_owner(path)} is there", path=path, hint=hint
        )

    def _not_recording(self) -> WarpError:
        if self._state == "new":
            return RecordingError(
                "the episode has not begun", path=self.path, hint="Call begin_episode() first."
            )
        return WriterClosedError(f"the episode is {self._state}", path=self.path)

    def _unknown_channels(self, values: Mapping[str, Any]) -> SchemaMismatchError:
        known = [item.id for item in self._layout.channels]
        unknown = sorted(map(str, set(values) - set(known)))
        fact = f"no channel has the id {', '.join(map(repr, unknown))}.{nearest(unknown[0], known)}"
        return SchemaMismatchError(fact, path=self.path, hint="Use the ids the channels were declared with.")


def describe_owner(partial_path: str) -> str:
    """The owner of a journal in words; that of an unreadable journal is unknown."""
    try:
        stated = JournalReader.open(partial_path).descriptor.get("owner", {})
        return f"process {stated['pid']} on {stated['host']}"
    except (WarpError, KeyError, TypeError, AttributeError):
        return "an unknown process"


def _as_real(value: Any) -> Any:
    """A number of any kind; not one with an imaginary part, nor a text or a time that numpy would turn into one."""
    array = as_array(value)
    if array.dtype.kind in "cSUmM":
        raise TypeError(f"{value!r:.40} is not a number")
    return array.item()


def _as_flag(value: Any) -> bool:
    """True or false, as bool or as the number 1 or 0; a word or another number is neither."""
    flag = bool(value)
    if value is not None and value is not flag and not value == flag:
        raise ValueError(f"{value!r:.40} is not a bool")
    return flag


def _put_text(name: str, encoding: str, slot: NDArray[Any], values: Mapping[str, Any]) -> None:
    """Fill the room of a text field: the length, the bytes, zeros."""
    if name not in values:
        raise _missing(name, values)
    try:
        data = encode_value(encoding, values[name])
    except ValueError as error:
        raise SchemaMismatchError(f"channel {name!r}: {error}") from None
    room = len(slot) - TEXT_SIZE_BYTES
    if len(data) > room:
        raise SchemaMismatchError(
            f"channel {name!r} has {len(data)} bytes, at most {room} were announced",
            hint="Announce more with max_bytes in the description of the channel.",
        )
    whole = len(data).to_bytes(TEXT_SIZE_BYTES, "little") + data
    slot[: len(whole)] = np.frombuffer(whole, np.uint8)
    slot[len(whole) :] = 0


def _missing(name: str, values: Mapping[str, Any]) -> SchemaMismatchError:
    fact = f"channel {name!r} is None in this step"
    if name not in values:
        fact = _with_near_miss(f"channel {name!r} is missing in this step", name, values)
    return SchemaMismatchError(fact, hint="Give every step a value for every channel.")


def _as_channel(
    name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], values: Mapping[str, Any]
) -> NDArray[Any]:
    """A value that is no exact array: Python numbers and lists are taken, arrays of another dtype are not."""
    if value is None:
        raise _missing(name, values)
    is_array = hasattr(value, "dtype")
    try:
        array = as_array(value) if is_array else np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatchError(f"channel {name!r} is {dtype}: {error}") from None
    if (is_array and array.dtype != dtype) or (not is_array and array.dtype.kind not in "biuf"):
        got = array.dtype if is_array else type(value).__name__
        raise SchemaMismatchError(f"channel {name!r} is {dtype}, not {got}")
    array = as_declared(name, array, dtype_of(dtype))
    if array.shape != shape:
        raise SchemaMismatchError(f"channel {name!r} has the shape {list(shape)}, not {list(array.shape)}")
    return array
