"""A recording as one `.wshard` and back, losing nothing: rows of steps where other programs look for them.

Signals on the step clock are rows of T under `signal/`, `action/`, `reward`, `done`, `omen/`; signals with another
clock, events and cameras have names that other programs ignore. `meta/directory` lists the place of everything.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of, read_only, select_rows
from warpdata.bytekit.checksum import join_crc32c
from warpdata.bytekit.io.ranges import PartRangeReader, RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.episodes.collection.edits import EditedSource, shown
from warpdata.episodes.forms.directory_copy import write_directory
from warpdata.episodes.forms.tensors import channel_of, lane_key, rows_of
from warpdata.episodes.sources.disk_episode import DirectorySource
from warpdata.episodes.sources.encoded import encoded_camera
from warpdata.episodes.sources.opening import DIRECTORY_BLOCK
from warpdata.episodes.sources.signals import SimpleSignal, VideoSignal, signal_meta
from warpdata.errors import ConflictError, CorruptLayoutError, NoStepsError, suggests
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.arrow import TableWriter, signal_schema
from warpdata.formats.episodedir.documents import (
    FileSum,
    plain_static,
    restored_static,
)
from warpdata.formats.episodedir.frame_index import FrameIndex, parse_frame_index
from warpdata.formats.episodedir.signal_file import Description, parse_signal
from warpdata.formats.wshard.episode import LaneMap, WShardEpisode, fits_own_block
from warpdata.formats.wshard.layout import EXACT, TIMESTAMPS_NS
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import ArrayRows, BlockRows
from warpdata.formats.wshard.save import save_wshard
from warpdata.formats.wshard.schema import TensorSpec, Timebase, check_channel_id
from warpdata.formats.wshard.writer import CompressionChoice, check_compat
from warpdata.timeline.episode import Episode
from warpdata.timeline.lazy_signals import LazySignals
from warpdata.timeline.memory import ArraySignal, ClockedSignal
from warpdata.timeline.signal import MappedRows, Signal
from warpdata.timeline.source import StatedSource, StepClock
from warpdata.timeline.steps import Steps, StepSignal

VERSION = 2
VIDEO_PREFIX, FRAMES_PREFIX, TABLE_PREFIX = "video/", "aux/frames/", "aux/table/"
ROWS_PREFIX, MORE_PREFIX, CLOCK_PREFIX, FILE_PREFIX = "aux/rows/", "aux/more/", "aux/clock/", "aux/file/"
_ACTION = "action/"
_COPY_BYTES = 4 << 20
_FLAGS = {"reward": ("rewards", "reward"), "terminated": ("terminations", "done"),
          "truncated": ("truncations", "truncated")}  # fmt: skip
_LANES = {"observation": "observations", "action": "actions", "prediction": "omens",
          "uncertainty": "uncerts", "residual": "residuals"}  # fmt: skip
_BLOCK_OF = {"observation": "signal/", "action": "action/", "prediction": "omen/",
             "uncertainty": "uncert/", "residual": "residual/"}  # fmt: skip


@suggests
def pack_episode(
    episode: Episode | str | os.PathLike[str],
    output: str | os.PathLike[str],
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    raw: bool = False,
    reencode: bool = False,
    episode_id: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write an episode as one shard, as the edits of its dataset show it; cameras keep their encoded bytes.

    `raw` packs the recording beneath the edits. Where cameras of different encoders were joined, only `reencode`
    makes one video of them, which changes pixels.
    """
    check_compat(compat)
    opened = _beneath(episode) if raw else shown(episode)
    target = Path(output)
    if target.exists() and not overwrite:
        raise ConflictError("target exists", path=target, hint="Choose another path, or pass overwrite=True.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as scratch:
        if reencode:
            folder = tempfile.TemporaryDirectory(prefix=".warpdata-", dir=target.absolute().parent)
            again = Path(scratch.enter_context(folder)) / "again"
            write_directory(opened, again, reencode=True)
            opened, episode_id = Episode(DirectorySource(again)), episode_id or opened.id
        save_wshard(shard_of(opened, episode_id), target, compression, compat=compat)
    return target


def shard_of(episode: Episode, episode_id: str | None = None) -> WShardEpisode:
    """An episode as the shard that packing writes."""
    return _Packing(episode, episode_id).packed()


def _beneath(episode: Episode | str | os.PathLike[str]) -> Episode:
    """The recording as it was made."""
    if not isinstance(episode, Episode):
        return Episode(DirectorySource(episode))
    return Episode(episode.source.recording) if isinstance(episode.source, EditedSource) else episode


class _Packing:
    """One episode on its way into a shard."""

    def __init__(self, episode: Episode, episode_id: str | None) -> None:
        self.episode = episode
        try:
            self.steps: Steps | None = episode.steps
        except NoStepsError:
            self.steps = None
        self.shard = WShardEpisode(
            episode_id or episode.id, str(episode.static.get("env_id", "")), 0, Timebase("timestamps_ns")
        )
        times = np.empty(0, np.int64) if self.steps is None else np.array(self.steps.times_ns)
        self.shard.length, self.shard.timestamps_ns = len(times), times
        self.blocks: dict[str, Any] = {}

    def packed(self) -> WShardEpisode:
        """The shard with everything in it."""
        episode = self.episode
        stored = {name: self._add(name, signal) for name, signal in episode.signals.items()}
        static = {name: plain_static(name, value) for name, value in episode.static.items()}
        about = {
            "version": VERSION, "id": self.shard.id, "meta": dict(episode.meta), "static": static,
            "signals": stored,
        }  # fmt: skip
        if self.steps is not None:
            about["steps"] = StepClock(self.steps.clock, self.steps.outcome).to_json()
        self.shard.metadata = static
        self.shard.blocks = {DIRECTORY_BLOCK: dump_json(about), **self.blocks}
        return self.shard

    def _add(self, name: str, signal: Signal) -> dict[str, Any]:
        """Put one signal into the shard; returns what it is and where it is stored."""
        about = described(signal).to_json()
        if signal.meta.kind == "image":
            if isinstance(signal, VideoSignal):
                signal.check()
            camera = encoded_camera(name, signal)
            if camera is not None:
                about["video"] = f"{VIDEO_PREFIX}{name}{camera.suffix}"
                about["frames"] = FRAMES_PREFIX + name
                self.blocks[about["video"]], self.blocks[about["frames"]] = camera.video, camera.frames
                return about
        if signal.meta.is_object:
            about["table"] = TABLE_PREFIX + name
            self.blocks[about["table"]] = _table_bytes(signal)
            return about
        about["count"] = len(signal)
        return about | (self._by_step(name, signal) or self._in_time(name, signal))

    def _by_step(self, name: str, signal: Signal) -> dict[str, Any] | None:
        """Rows of T for signals on the step clock: row k as every program of the format takes it."""
        if self.steps is None or len(signal) < self.steps.length:
            return None
        on_steps = self.steps[name]
        if not on_steps.is_exact:
            return None
        block = self._lane(name, on_steps)
        if block is None:
            return None
        found: dict[str, Any] = {"block": block}
        if len(signal) > self.steps.length:  # what was seen after the last action
            found["more"] = MORE_PREFIX + name
            self.blocks[found["more"]] = rows_of(signal, self.steps.length)
        if not np.array_equal(signal.timestamps, self.steps.times_ns):
            found["times"] = self._clock(name, signal)
        return found

    def _lane(self, name: str, signal: StepSignal) -> str | None:
        """The block of a signal among the steps; None where the format has no place for it."""
        role, shard = signal.meta.role, self.shard
        if role in _FLAGS:
            attribute, block = _FLAGS[role]
            if getattr(shard, attribute) is not None or signal.row_shape:
                return None
            channel = channel_of(block, signal)
            is_flag = role == "reward" or channel.dtype in ("bool", "u8")
            if not is_flag:
                return None
            setattr(shard, attribute, channel)
            return block if fits_own_block(block, channel.dtype) else EXACT[block]
        if role not in _LANES:
            return None
        lane: LaneMap = getattr(shard, _LANES[role])
        key = lane_key(name, signal)
        if key in lane or not _is_channel_id(key):
            return None
        lane[key] = channel_of(key, signal)
        return _BLOCK_OF[role] + key

    def _in_time(self, name: str, signal: Signal) -> dict[str, Any]:
        self.blocks[ROWS_PREFIX + name] = rows_of(signal, 0)
        return {"block": ROWS_PREFIX + name, "times": self._clock(name, signal)}

    def _clock(self, name: str, signal: Signal) -> str:
        stamps = np.array(signal.timestamps)
        self.blocks[CLOCK_PREFIX + name] = ArrayRows(stamps, TensorSpec(dtype_named("i64"), ()))
        return CLOCK_PREFIX + name


def described(signal: Signal) -> Description:
    """The description of a signal as it is stored."""
    meta = signal.meta
    dtype = meta.kind if meta.is_object else dtype_of(meta.dtype).name
    return Description(
        meta.kind, dtype, meta.shape, meta.units, meta.names, meta.role, meta.of, meta.model, meta.clock
    )


def _is_channel_id(name: str) -> bool:
    try:
        check_channel_id(name)
    except ValueError:
        return False
    return True


def _table_bytes(signal: Signal) -> Any:
    """The parquet file of a signal: its own, checked, or one made now."""
    if isinstance(signal, SimpleSignal):
        signal.values()  # damage must not get a valid checksum in the shard
        return signal.file_bytes()
    if isinstance(signal, TableSignal):
        return signal.file_bytes()
    sink = io.BytesIO()
    about = described(signal).to_json()
    writer = TableWriter(sink, signal_schema(about), about)
    writer.write(np.array(signal.timestamps), np.array(signal.values()))
    writer.close()
    return sink.getvalue()


def directory_of(about: bytes, blocks: Collection[str]) -> bytes:
    """The directory block without the signals whose blocks are not among these names."""
    found = parse_json_object(about)
    kept = {name: how for name, how in found["signals"].items() if set(_blocks_of(how)) <= set(blocks)}
    lost = set(found["signals"]) - set(kept)
    meta = found["meta"]
    if isinstance(meta.get("signals"), dict):
        meta["signals"] = {name: each for name, each in meta["signals"].items() if name not in lost}
    return dump_json({**found, "meta": meta, "signals": kept})


def _blocks_of(how: Mapping[str, Any]) -> list[str]:
    """The blocks of a signal: its rows and times, its table, or its video and frame index."""
    places = ("video", "frames", "table", "block", "more", "times")
    blocks = [str(how[key]) for key in places if how.get(key) is not None]
    is_on_steps = how.get("block") is not None and how.get("times") is None
    return [*blocks, TIMESTAMPS_NS] if is_on_steps else blocks


def is_packed(shard: ShardReader) -> bool:
    """Whether a shard holds a packed recording."""
    return DIRECTORY_BLOCK in shard


@dataclass(frozen=True, slots=True)
class _Stored:
    """The blocks of a signal in a shard."""

    description: Description
    video: str | None = None
    frames: str | None = None
    table: str | None = None
    block: str | None = None
    more: str | None = None
    times: str | None = None
    count: int = 0


class PackedSource(StatedSource):
    """A packed recording opened in place: the same names, signals, static items and metadata."""

    def __init__(self, shard: ShardReader) -> None:
        self.shard = shard
        about = shard.read_json(DIRECTORY_BLOCK)
        try:
            version = about.get("version")
            if version != VERSION:
                raise CorruptLayoutError(
                    f"a recording packed in version {version}", block=DIRECTORY_BLOCK, path=shard.path,
                    hint="Upgrade warpdata.",
                )  # fmt: skip
            static = {k: restored_static(v) for k, v in about["static"].items()}
            meta = dict(about["meta"])
            name = str(about.get("id") or shard.read_json("meta/episode").get("episode_id"))
            stored = _stored(about["signals"], shard.path)
            signals = LazySignals(lambda: stored, lambda name: _open_signal(shard, name, stored[name]))
            super().__init__(name, signals, static, meta, StepClock.from_json(about.get("steps")))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise CorruptLayoutError(
                "the description of the recording is damaged", block=DIRECTORY_BLOCK, path=shard.path
            ) from None

    @property
    def place(self) -> str | None:
        """Path or URL of the shard."""
        return self.shard.path

    def stored_bytes(self) -> int:
        """The size of the shard."""
        return self.shard.size

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedSource, (self.shard,))


def _stored(signals: Any, path: str) -> dict[str, _Stored]:
    places = ("video", "frames", "table", "block", "more", "times")
    stored = {}
    for name, about in signals.items():
        where = {key: None if about.get(key) is None else str(about[key]) for key in places}
        stored[str(name)] = _Stored(
            Description.from_json(about, path), **where, count=int(about.get("count", 0))
        )
    return stored


def _open_signal(shard: ShardReader, name: str, how: _Stored) -> Signal:
    if how.video is not None and how.frames is not None:
        return ShardVideo(shard, name, how.video, how.frames)
    if how.table is not None:
        return TableSignal(shard, name, how.table)
    return PackedRows(shard, name, how)


class PackedRows(ClockedSignal):
    """A signal whose records are rows of a block, and maybe some more rows of another one."""

    def __init__(self, shard: ShardReader, name: str, how: _Stored) -> None:
        self._shard, self._name, self._how = shard, name, how
        spec = TensorSpec(dtype_named(how.description.dtype), how.description.shape)
        self._parts: list[BlockRows] = []
        self._starts = [0]
        for block in (how.block, how.more):
            if block is not None:
                size = shard.block(block).raw_size
                count = size // spec.row_bytes
                if count * spec.row_bytes != size:
                    raise CorruptLayoutError(
                        f"{size} bytes are no rows of {spec}", block=block, path=shard.path
                    )
                self._parts.append(BlockRows(shard, block, spec, count))
                self._starts.append(self._starts[-1] + count)
        if self._starts[-1] != how.count:
            raise CorruptLayoutError(
                f"{self._starts[-1]} rows of {how.count} are there", block=how.block, path=shard.path
            )
        self._meta = signal_meta(how.description, name)
        self._ts: NDArray[np.int64] | None = None

    @property
    def meta(self) -> Any:
        """Element type, shape, kind and role."""
        return self._meta

    def __len__(self) -> int:
        return self._how.count

    @property
    def parts(self) -> list[BlockRows]:
        """The blocks whose rows are its records, one after the other."""
        return self._parts

    @property
    def times_rows(self) -> BlockRows:
        """The block of its times."""
        return BlockRows(self._shard, self._times_block, TensorSpec(dtype_named("i64"), ()), len(self))

    @property
    def _times_block(self) -> str:
        return self._how.times or TIMESTAMPS_NS

    def checksum(self) -> int:
        """CRC-32C of all values, as the file states it."""
        total = self._parts[0].checksum() if self._parts else 0
        for part in self._parts[1:]:
            total = join_crc32c(total, part.checksum(), part.length * part.spec.row_bytes)
        return total

    def _clock(self) -> NDArray[np.int64]:
        if self._ts is None:
            block = self._times_block
            stamps = np.frombuffer(self._shard.view(block), np.int64)
            if len(stamps) != len(self) or (stamps[1:] <= stamps[:-1]).any():
                raise CorruptLayoutError(
                    f"the times of {self._name!r} are not increasing, or not as many as its records",
                    block=block, path=self._shard.path,
                )  # fmt: skip
            self._ts = read_only(stamps)
        return self._ts

    def _values_in(self, rows: range) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, *self._meta.shape), self._meta.dtype)
        low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1
        run = self._run(low, high)
        return read_only(run[:: rows.step] if rows.step > 0 else run[::-1][:: -rows.step])

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if not len(indices):
            return self._values_in(range(0))
        shape = (len(self), *self._meta.shape)
        return read_only(select_rows(indices, shape, self._run, self._meta.dtype.itemsize, self._bring))

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        found = self._parts[0].rows_kept(indices) if len(self._parts) == 1 else None
        return self._values_at(indices) if found is None else found

    def _in_memory(self) -> MappedRows | None:
        found = self._parts[0].mapped_rows() if len(self._parts) == 1 else None
        return None if found is None else MappedRows(*found)

    def _bring(self, indices: NDArray[np.int64]) -> None:
        for part, start in zip(self._parts, self._starts, strict=False):
            part.bring(indices[(indices >= start) & (indices < start + part.length)] - start)

    def _gives_runs(self) -> bool:
        return True

    def _is_far(self) -> bool:
        return not self._shard.is_local

    def _runs_into(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
        if len(self._parts) == 1:
            self._parts[0].read_windows(starts, out, places)
            return
        border = self._starts[1]
        first, last = starts + out.shape[1] <= border, starts >= border
        self._parts[0].read_windows(starts[first], out, places[first])
        self._parts[1].read_windows(starts[last] - border, out, places[last])
        across = ~(first | last)
        if across.any():
            super()._runs_into(starts[across], out, places[across])

    def _run(self, low: int, high: int) -> NDArray[Any]:
        pieces = [
            part.rows(max(low - start, 0), min(high - start, part.length))
            for part, start in zip(self._parts, self._starts, strict=False)
            if low < start + part.length and high > start
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedRows, (self._shard, self._name, self._how))


class TableSignal(ClockedSignal):
    """Events, or another writer's numbers, in a parquet file inside the shard; read on first use."""

    def __init__(self, shard: ShardReader, name: str, block: str) -> None:
        self._shard, self._name, self._block = shard, name, block
        self._inner: ArraySignal | None = None

    @property
    def _loaded(self) -> ArraySignal:
        if self._inner is None:
            where = f"{self._shard.path}#{self._block}"
            description, stamps, values = parse_signal(self._shard.read(self._block), where)
            self._inner = ArraySignal(stamps, values, signal_meta(description, self._name))
        return self._inner

    @property
    def meta(self) -> Any:
        """Kind and role."""
        return self._loaded.meta

    def file_bytes(self) -> bytes:
        """The file it was recorded in, checked."""
        return self._shard.read(self._block)

    def __len__(self) -> int:
        return len(self._loaded)

    def _clock(self) -> NDArray[np.int64]:
        return self._loaded._clock()

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._loaded._values_at(indices)

    def _values_in(self, rows: range) -> NDArray[Any]:
        return self._loaded._values_in(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return (TableSignal, (self._shard, self._name, self._block))


class ShardVideo(VideoSignal):
    """A camera inside a shard, played by reading only the frames it needs."""

    def __init__(self, shard: ShardReader, name: str, video: str, frames: str) -> None:
        self._shard = shard
        self._frames_block = frames
        self.video_block = video
        """The block that holds the video."""
        super().__init__(f"{shard.path}#{video}", f"{shard.path}#{frames}", name=name)

    def _read_index(self, _expected: FileSum | None) -> FrameIndex:
        return parse_frame_index(self._shard.read(self._frames_block), self.frames_path)

    def _bytes(self) -> RangeReader:
        return self._part(self.video_block)

    @property
    def shard(self) -> ShardReader:
        """The shard of the video."""
        return self._shard

    def index_bytes(self) -> RangeReader:
        """The bytes of the frame index."""
        return self._part(self._frames_block)

    def _is_far(self) -> bool:
        return not self._shard.is_local

    def _part(self, name: str) -> RangeReader:
        block = self._shard.block(name)
        if block.codec != "none":
            raise CorruptLayoutError("video in a shard is never compressed again", block=block.name)
        return PartRangeReader(
            self._shard.range_reader, block.data_offset, block.disk_size, f"{self._shard.path}#{name}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardVideo, (self._shard, self.name, self.video_block, self._frames_block))


@suggests
def unpack_episode(
    shard_path: str | os.PathLike[str] | ShardReader,
    directory: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write a packed recording as a directory again: values, times, metadata and video as they were.

    `overwrite` replaces an episode directory that is there, and nothing else.
    """
    shard = shard_path if isinstance(shard_path, ShardReader) else ShardReader.open(shard_path)
    if not is_packed(shard):
        raise CorruptLayoutError("not a packed recording", path=shard.path, hint="Use `warp chunk`.")
    episode = PackedSource(shard)
    target = Path(directory)
    if overwrite and target.exists() and not (target / layout.META_FILE).is_file():
        raise ConflictError("what is there is no episode directory", path=target, hint="Choose another name.")
    for name in shard.names:  # frames have checksums of their own, the container around them has not
        block = shard.block(name)
        if block.codec == "none":
            shard.check_block(block)
    write_directory(Episode(episode), target, overwrite=overwrite)
    return target
