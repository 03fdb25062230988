"""An episode as one `.wshard`, as chunks, and back, losing nothing: rows of steps where other programs look for them.

Signals on the step clock are rows of T under `signal/`, `action/`, `reward`, `done`, `omen/`; signals with another
clock, events and cameras have names that other programs ignore. `meta/directory` lists the place of everything.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.io.commit import check_free
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.collection.edits import EditedSource, with_edits
from warpdata.episodes.forms.directory import write_directory
from warpdata.episodes.sources.cameras import VideoSignal, describe
from warpdata.episodes.sources.disk_episode import DirectorySource, SimpleSignal
from warpdata.episodes.sources.encoded import encoded_camera
from warpdata.episodes.sources.packed import VERSION, VIDEO_PREFIX, PackedSource, is_packed
from warpdata.episodes.sources.shard_episode import DIRECTORY_BLOCK, ShardSource
from warpdata.errors import ConflictError, CorruptLayoutError, NoStepsError, require_kind, suggests
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import plain_static
from warpdata.formats.episodedir.frame_index import frame_index_bytes, sum_frames
from warpdata.formats.episodedir.signal_file import table_bytes
from warpdata.formats.wshard.chunks import ChunkedEpisodeWriter, ChunkList, chunk_episode
from warpdata.formats.wshard.episode import Channel, WShardEpisode
from warpdata.formats.wshard.layout import EXACT
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import ArrayRows, FunctionRows
from warpdata.formats.wshard.save import CompressionChoice, check_compat, save_wshard
from warpdata.formats.wshard.schema import TensorSpec, Timebase, check_channel_id, fits_own_block, tensor_spec
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import RowType
from warpdata.timeline.ragged import join_rows
from warpdata.timeline.signal import Signal, window
from warpdata.timeline.source import (
    EpisodeSource,
    SourceAround,
    StepClock,
    change_signals,
    innermost,
)
from warpdata.timeline.steps import PREFIXES, Steps, StepSignal

_FLAGS = {
    "reward": ("rewards", "reward"),
    "terminated": ("terminations", "done"),
    "truncated": ("truncations", "truncated"),
}
"""Role -> field of the tensors, block."""
_LANES = {
    "observation": ("observations", "signal/"),
    "action": ("actions", "action/"),
    "prediction": ("omens", "omen/"),
    "uncertainty": ("uncerts", "uncert/"),
    "residual": ("residuals", "residual/"),
}
"""Role -> field of the tensors, prefix of its blocks."""
_I64 = tensor_spec("i64")
_RAGGED_BLOCKS = {"block": "rows", "offsets": "offsets", "times": "clock"}
"""Parts of a signal whose values vary in length, and the folder of their blocks."""


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
    source = _recording_of(episode) if raw else with_edits(episode)
    target = Path(output)
    check_free(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as scratch:
        if reencode:
            folder = tempfile.TemporaryDirectory(prefix=".warpdata-", dir=target.absolute().parent)
            again = Path(scratch.enter_context(folder)) / "again"
            write_directory(source, again, reencode=True)
            source, episode_id = Episode(DirectorySource(again)), episode_id or source.id
        save_wshard(shard_of(source, episode_id), target, compression, compat=compat, overwrite=overwrite)
    return target


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
    source, target = PackedSource(shard), Path(directory)
    if overwrite and target.exists() and not (target / layout.META_FILE).is_file():
        raise ConflictError("target is no episode directory", path=target, hint="Choose another name.")
    for name in shard.names:  # frames have checksums of their own, the container around them has not
        block = shard.block(name)
        if block.codec == "none":
            shard.check_block(block)
    write_directory(Episode(source), target, overwrite=overwrite)
    return target


def _recording_of(episode: Episode | str | os.PathLike[str]) -> Episode:
    """The recording as it was made."""
    if not isinstance(episode, Episode):
        return Episode(DirectorySource(episode))
    return Episode(episode.source.recording) if isinstance(episode.source, EditedSource) else episode


def shard_of(episode: Episode, episode_id: str | None = None) -> WShardEpisode:
    """An episode as the shard that packing writes."""
    try:
        steps: Steps | None = episode.steps
    except NoStepsError:
        steps = None
    shard = _empty_shard(episode, steps, episode_id)
    blocks: dict[str, Any] = {}
    entries = {
        name: {**describe(signal.meta).to_json(), **_add_signal(shard, blocks, steps, name, signal)}
        for name, signal in episode.signals.items()
    }
    static = {name: plain_static(name, value) for name, value in episode.static.items()}
    about = {
        "version": VERSION,
        "id": shard.id,
        "meta": dict(episode.meta),
        "static": static,
        "signals": entries,
    }
    if steps is not None:
        about["steps"] = StepClock(steps.clock, steps.outcome).to_json()
    shard.metadata = static
    shard.blocks = {DIRECTORY_BLOCK: dump_json(about), **blocks}
    return shard


def _empty_shard(episode: Episode, steps: Steps | None, episode_id: str | None = None) -> WShardEpisode:
    times = np.empty(0, np.int64) if steps is None else np.array(steps.times_ns)
    env_id = str(episode.static.get("env_id", ""))
    base = Timebase("timestamps_ns")
    return WShardEpisode(episode_id or episode.id, env_id, len(times), base, timestamps_ns=times)


def _add_signal(
    shard: WShardEpisode, blocks: dict[str, Any], steps: Steps | None, name: str, signal: Signal
) -> dict[str, Any]:
    """Put one signal into the shard; returns the places of its parts."""
    if signal.meta.kind == "image":
        if isinstance(signal, VideoSignal):
            signal.check()
        camera = encoded_camera(name, signal)
        if camera is not None:
            places = {"video": f"{VIDEO_PREFIX}{name}{camera.suffix}", "frames": f"aux/frames/{name}"}
            blocks[places["video"]] = camera.video
            has_sums = camera.index.crc32c is not None
            index = camera.index if has_sums else sum_frames(camera.index, camera.video)
            blocks[places["frames"]] = frame_index_bytes(index)
            return places
    if signal.meta.rows is not None:
        offsets = np.cumsum([0, *signal._lengths()], dtype=np.int64)
        blocks[f"aux/rows/{name}"] = _flat_rows(signal, signal.meta.rows, offsets)
        blocks[f"aux/offsets/{name}"] = ArrayRows(offsets, _I64)
        blocks[f"aux/clock/{name}"] = ArrayRows(np.array(signal.timestamps), _I64)
        places = {key: f"aux/{folder}/{name}" for key, folder in _RAGGED_BLOCKS.items()}
        return {**places, "count": len(signal)}
    if signal.meta.is_object:
        blocks[f"aux/table/{name}"] = _table(signal)
        return {"table": f"aux/table/{name}"}
    on_steps = steps[name] if steps is not None and len(signal) >= steps.length else None
    # Rows of T for signals on the step clock: row k as every program of the format takes it.
    block = _add_lane(shard, name, on_steps) if on_steps is not None and on_steps.is_exact else None
    entry = {"block": block or f"aux/rows/{name}", "count": len(signal)}
    if block is None or steps is None:
        blocks[f"aux/rows/{name}"] = _rows(signal)
    elif len(signal) > steps.length:  # seen after the last action
        entry["more"] = f"aux/more/{name}"
        blocks[f"aux/more/{name}"] = _rows(signal, steps.length)
    if block is None or steps is None or not np.array_equal(signal.timestamps, steps.times_ns):
        entry["times"] = f"aux/clock/{name}"
        blocks[f"aux/clock/{name}"] = ArrayRows(np.array(signal.timestamps), _I64)
    return entry


def _table(signal: Signal) -> Any:
    """The parquet file of a signal: its own, checked, or one made now."""
    values = signal.values()  # damage must not get a valid checksum in the shard
    if isinstance(signal, SimpleSignal):
        return signal.file_bytes()
    return bytes(table_bytes(describe(signal.meta).to_json(), np.array(signal.timestamps), np.array(values)))


def _add_lane(shard: WShardEpisode, name: str, signal: StepSignal) -> str | None:
    """Put a signal among the steps; returns its block, or None where the format has no place for it."""
    role = signal.meta.role
    if role in _FLAGS:
        field, block = _FLAGS[role]
        channel = channel_of(block, signal)
        is_flag = role == "reward" or channel.dtype in ("bool", "u8")
        if getattr(shard, field) is not None or signal.row_shape or not is_flag:
            return None
        setattr(shard, field, channel)
        return block if fits_own_block(block, channel.dtype) else EXACT[block]
    if role not in _LANES:
        return None
    field, prefix = _LANES[role]
    lane, key = getattr(shard, field), _lane_key(name, signal)
    try:
        check_channel_id(key)
    except ValueError:
        return None
    if key in lane:
        return None
    lane[key] = channel_of(key, signal)
    return prefix + key


def _lane_key(name: str, signal: StepSignal) -> str:
    """The name of a signal inside its lane: without the role, `of/model` for predictions of a model."""
    meta = signal.meta
    for prefix in PREFIXES.get(meta.role, ()):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    if meta.of is not None:
        return f"{meta.of}/{meta.model}" if meta.model else meta.of
    return name


def channel_of(name: str, signal: StepSignal | Signal) -> Channel:
    """A signal as a channel: by step, or in time with its own clock; read on demand."""
    meta = signal.meta
    about = {"kind": meta.kind, "unit": meta.units, "names": meta.names and list(meta.names)}
    clock = None if isinstance(signal, StepSignal) else ArrayRows(signal.timestamps, _I64)
    stated = {key: value for key, value in about.items() if value is not None}
    return Channel.over(name, _rows(signal), clock=clock, about=stated)


def _rows(signal: StepSignal | Signal, first: int = 0) -> FunctionRows:
    """The rows of a signal from number `first` on, read on demand."""
    spec = TensorSpec(dtype_of(signal.meta.dtype), signal.meta.shape)
    return FunctionRows(spec, len(signal) - first, lambda start, end: signal.rows(first + start, first + end))


def _flat_rows(signal: Signal, kind: RowType, offsets: NDArray[np.int64]) -> FunctionRows:
    """The rows of all values of a ragged signal end to end, read on demand."""

    def read(start: int, end: int) -> NDArray[Any]:
        first = int(offsets.searchsorted(start, "right")) - 1
        last = int(offsets.searchsorted(end, "left"))
        rows, _ = join_rows(signal.rows(first, last), kind)
        return rows[start - offsets[first] : end - offsets[first]]

    return FunctionRows(TensorSpec(dtype_of(kind.dtype), kind.shape), int(offsets[-1]), read)


def tensors_of(episode: Episode) -> WShardEpisode:
    """The rows of an episode: those of its shard, or its steps, read on demand.

    A signal that has no record of its own for every step keeps its own clock. Text, bytes and values of varying length
    are left out.
    """
    source = innermost(episode.source)
    if isinstance(source, ShardSource):
        return source.tensors
    steps = episode.steps
    shard = _empty_shard(episode, steps)
    shard.metadata = {name: value for name, value in episode.static.items() if name != "env_id"}
    for name, signal in episode.signals.items():
        if signal.meta.role in _LANES and not signal.meta.is_object:
            on_steps, lane = steps[name], getattr(shard, _LANES[signal.meta.role][0])
            key = _lane_key(name, on_steps)
            key = name if key in lane else key  # two of one model keep their own names
            lane[key] = channel_of(key, on_steps if on_steps.is_exact else signal)
    for field, flag in (
        ("rewards", steps.rewards),
        ("terminations", steps.terminated),
        ("truncations", steps.truncated),
    ):
        if flag is not None:
            setattr(shard, field, channel_of(field, flag))
    return shard


Progress = Callable[[int, int], None]


def write_chunks(
    episode: Episode,
    folder: str | os.PathLike[str],
    *,
    steps: int | None = None,
    count: int | None = None,
    episode_id: str | None = None,
    compression: CompressionChoice = None,
    compat: str = "default",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ChunkList:
    """Write an episode as chunks of at most `steps` steps, or as `count` chunks, with their chunk list.

    A recording is packed chunk by chunk: signals with clocks of their own are cut where the steps are, cameras by
    whole groups of pictures. One without steps is cut into equal times.
    """
    for given in (steps, count):
        require_kind("the size of a chunk", given, (SupportsIndex, type(None)), "a whole number")
    if (steps is None) == (count is None):
        raise ValueError("expected either steps per chunk or a number of chunks")
    if (size := steps if steps is not None else count) is not None and size < 1:
        raise ValueError(f"{'count' if steps is None else 'steps'} must be at least 1, got {size}")
    require_kind("what is cut", episode, Episode, "an episode (wd.open_episode gives one)")
    options: dict[str, Any] = {"compression": compression, "compat": compat, "overwrite": overwrite}
    source = innermost(episode.source)
    if isinstance(source, ShardSource):
        size = steps or max(1, -(-source.tensors.length // (count or 1)))
        return chunk_episode(source.tensors, folder, size, progress=progress, **options)
    on_steps, rows, times = _find_cuts(episode, steps, count)
    total = len(times) + 1
    longest = max(1, *np.diff(rows).tolist())
    writer = ChunkedEpisodeWriter(folder, episode_id or episode.id, longest, total_chunks=total, **options)
    try:
        for index, part in enumerate(_cut_source(episode.source, on_steps, rows, times)):
            chunk = shard_of(Episode(part), writer.episode_id)
            chunk.chunk_index, chunk.total_chunks = index, total
            if chunk.length:
                chunk.timestep_range = (rows[index], rows[index + 1])
            writer.write_chunk(chunk)
            if progress is not None:
                progress(index + 1, total)
    except BaseException:
        writer.discard()
        raise
    return writer.finalize_manifest()


def join_chunks(
    episode: Episode,
    output: str | os.PathLike[str],
    compression: CompressionChoice = None,
    *,
    compat: str = "default",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a chunked episode as one shard."""
    source = innermost(episode.source)
    shard = source.tensors if isinstance(source, ShardSource) else shard_of(episode)
    save_wshard(shard, output, compression, compat=compat, overwrite=overwrite, progress=progress)


def _find_cuts(
    episode: Episode, steps: int | None, count: int | None
) -> tuple[Steps | None, list[int], list[int]]:
    """The steps, the first row of each chunk and one past the last, and the times between the chunks."""
    try:
        on_steps = episode.steps
    except NoStepsError:
        if count is None:
            raise NoStepsError(
                f"the episode has no steps, so it cannot be cut into chunks of {steps}",
                hint="Declare a step clock when recording.",
            ) from None
        if not episode.duration_ns:
            return None, [0, 0], []
        first, span = episode.first_ts_ns, episode.duration_ns
        times = sorted({first + span * number // count for number in range(1, count)} - {first})
        return None, [0] * (len(times) + 2), times
    size = steps or max(1, -(-on_steps.length // (count or 1)))
    rows = [*range(0, max(1, on_steps.length), size), on_steps.length]
    return on_steps, rows, [int(on_steps.times_ns[row]) for row in rows[1:-1]]


def _cut_source(
    source: EpisodeSource, steps: Steps | None, rows: list[int], times: list[int]
) -> Iterator[EpisodeSource]:
    """The episode, chunk by chunk: signals on the steps by row, so that none loses its step; others by time."""
    by_row = {
        name
        for name, signal in source.signals.items()
        if steps is not None
        and not signal.meta.is_object
        and len(signal) >= steps.length
        and steps[name].is_exact
    }
    clock = None if steps is None else StepClock(steps.clock, steps.outcome)
    bounds = [None, *times, None]
    for index in range(len(times) + 1):
        own_rows = slice(rows[index], None if index == len(times) else rows[index + 1])
        own_times = slice(bounds[index], bounds[index + 1])

        def cut(name: str, signal: Signal, rows: slice = own_rows, times: slice = own_times) -> Signal:
            part: Signal = signal[rows] if name in by_row else window(signal, times)
            return part

        # On the clock of the whole: a guess from fewer records could differ.
        yield SourceAround(source, change_signals(source.signals, cut), step_clock=lambda: clock)
