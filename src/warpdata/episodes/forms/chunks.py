"""A long recording as chunks: packed shards of some steps each, with a chunk list, which open as one episode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import SupportsIndex

import numpy as np

from warpdata.episodes.forms.shard import shard_of
from warpdata.episodes.sources.shard_episode import ShardSource
from warpdata.errors import NoStepsError, require_kind
from warpdata.formats.wshard.chunks import ChunkedEpisodeWriter, ChunkList, chunk_episode
from warpdata.formats.wshard.save import save_wshard
from warpdata.formats.wshard.writer import CompressionChoice
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal, window
from warpdata.timeline.source import (
    EpisodeSource,
    SourceAround,
    StepClock,
    change_signals,
    innermost,
)
from warpdata.timeline.steps import Steps

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
    source = innermost(episode.source)
    if isinstance(source, ShardSource):
        size = steps or max(1, -(-source.tensors.length // (count or 1)))
        return chunk_episode(
            source.tensors,
            folder,
            size,
            compression=compression,
            compat=compat,
            overwrite=overwrite,
            progress=progress,
        )
    on_steps, rows, times = _find_cuts(episode, steps, count)
    total = len(times) + 1
    writer = ChunkedEpisodeWriter(
        folder,
        episode_id or episode.id,
        max(1, *np.diff(rows).tolist()),
        total_chunks=total,
        compression=compression,
        compat=compat,
        overwrite=overwrite,
    )
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
        found = episode.steps
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
    size = steps or max(1, -(-found.length // (count or 1)))
    rows = [*range(0, max(1, found.length), size), found.length]
    return found, rows, [int(found.times_ns[row]) for row in rows[1:-1]]


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
        is_last = index == len(times)
        own_rows = slice(rows[index], None if is_last else rows[index + 1])
        yield _ChunkOf(source, own_rows, slice(bounds[index], bounds[index + 1]), by_row, clock)


class _ChunkOf(SourceAround):
    """Some steps of an episode, on the clock of the whole: a guess from fewer records could differ."""

    def __init__(
        self, inner: EpisodeSource, rows: slice, bounds: slice, by_row: set[str], clock: StepClock | None
    ) -> None:
        super().__init__(inner)
        self._clock = clock

        def cut(name: str, signal: Signal) -> Signal:
            part: Signal = signal[rows] if name in by_row else window(signal, bounds)
            return part

        self._signals = change_signals(inner.signals, cut)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The signals, cut."""
        return self._signals

    @property
    def step_clock(self) -> StepClock | None:
        """The clock of the whole."""
        return self._clock
