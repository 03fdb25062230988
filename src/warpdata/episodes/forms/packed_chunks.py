"""A long recording as chunks: packed shards of some steps each, with a chunk list, which open as one episode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsIndex

import numpy as np

from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.forms.packed import PackedSource, shard_of
from warpdata.episodes.sources.shard_episode import ShardSource
from warpdata.errors import CorruptLayoutError, NoStepsError, require_kind
from warpdata.formats.wshard.chunked import ChunkedEpisodeWriter, chunk_episode
from warpdata.formats.wshard.chunks import ChunkList, validate_chunk_continuity
from warpdata.formats.wshard.compression import CompressionChoice
from warpdata.formats.wshard.layout import META_EPISODE
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.save import save_wshard
from warpdata.timeline.episode import Episode
from warpdata.timeline.lazy_signals import LazySignals
from warpdata.timeline.memory import JoinedSignal
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
            source.tensors, folder, size, compression=compression, compat=compat, progress=progress
        )
    cuts = _Cuts.of(episode, steps, count)
    writer = ChunkedEpisodeWriter(
        folder, episode_id or episode.id, cuts.most_steps, total_chunks=len(cuts),
        compression=compression, compat=compat,
    )  # fmt: skip
    try:
        for index, part in enumerate(cuts.sources(episode.source)):
            chunk = shard_of(Episode(part), writer.episode_id)
            chunk.chunk_index, chunk.total_chunks = index, len(cuts)
            if chunk.length:
                chunk.timestep_range = (cuts.rows[index], cuts.rows[index + 1])
            writer.write_chunk(chunk)
            if progress is not None:
                progress(index + 1, len(cuts))
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
    progress: Progress | None = None,
) -> None:
    """Write a chunked episode as one shard, in place of what is there."""
    source = innermost(episode.source)
    shard = source.tensors if isinstance(source, ShardSource) else shard_of(episode)
    save_wshard(shard, output, compression, compat=compat, progress=progress)


class _Cuts:
    """Where an episode is cut: the first row of each chunk and one past the last, and the times between them."""

    def __init__(self, rows: list[int], times: list[int], steps: Steps | None) -> None:
        self.rows = rows
        self.times = times
        self.steps = steps

    @classmethod
    def of(cls, episode: Episode, steps: int | None, count: int | None) -> _Cuts:
        try:
            found = episode.steps
        except NoStepsError:
            return cls._in_time(episode, steps, count)
        size = steps or max(1, -(-found.length // (count or 1)))
        rows = [*range(0, max(1, found.length), size), found.length]
        return cls(rows, [int(found.times_ns[row]) for row in rows[1:-1]], found)

    @classmethod
    def _in_time(cls, episode: Episode, steps: int | None, count: int | None) -> _Cuts:
        if count is None:
            raise NoStepsError(
                f"the episode has no steps, so it cannot be cut into chunks of {steps}",
                hint="Declare a step clock when recording.",
            )
        if not episode.duration_ns:
            return cls([0, 0], [], None)
        first, span = episode.first_ts_ns, episode.duration_ns
        times = sorted({first + span * number // count for number in range(1, count)} - {first})
        return cls([0] * (len(times) + 2), times, None)

    def __len__(self) -> int:
        return len(self.times) + 1

    @property
    def most_steps(self) -> int:
        """Steps of the longest chunk."""
        return max(1, *np.diff(self.rows).tolist())

    def sources(self, source: EpisodeSource) -> Iterator[EpisodeSource]:
        """The episode, chunk by chunk."""
        by_row = {
            name
            for name, signal in source.signals.items()
            if self.steps is not None
            and not signal.meta.is_object
            and len(signal) >= self.steps.length
            and self.steps[name].is_exact
        }
        clock = None if self.steps is None else StepClock(self.steps.clock, self.steps.outcome)
        for index in range(len(self)):
            is_last = index == len(self) - 1
            bounds = (self.times[index - 1] if index else None, None if is_last else self.times[index])
            rows = slice(self.rows[index], None if is_last else self.rows[index + 1])
            yield _ChunkOf(source, rows, bounds, by_row, clock)


class _ChunkOf(SourceAround):
    """Some steps of an episode: signals on the steps by row, so that none loses its step; the others by time."""

    def __init__(
        self,
        inner: EpisodeSource,
        rows: slice,
        bounds: tuple[int | None, int | None],
        by_row: set[str],
        clock: StepClock | None,
    ) -> None:
        super().__init__(inner)
        self._clock = clock

        def cut(name: str, signal: Signal) -> Signal:
            part: Signal = signal[rows] if name in by_row else window(signal, slice(*bounds))
            return part

        self._signals = change_signals(inner.signals, cut)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The signals, cut."""
        return self._signals

    @property
    def step_clock(self) -> StepClock | None:
        """The clock of the whole: what a chunk guessed from fewer records could differ."""
        return self._clock


class PackedChunks(EpisodeSource):
    """The packed chunks of a recording as one episode; a chunk is opened on first use of a signal."""

    def __init__(self, chunks: ChunkList) -> None:
        validate_chunk_continuity(chunks, check_channels=False)
        self.chunks = chunks
        self._first = self._opened(0)
        self._signals = LazySignals(lambda: self._first.signals, self._open_signal)

    def _opened(self, index: int) -> PackedSource:
        entry = self.chunks.chunks[index]
        shard = ShardReader.open(self.chunks.chunk_bytes(entry))
        stated = shard.read_json(META_EPISODE)
        if stated.get("chunk_index") != entry.chunk_index or stated.get("length_T", 0) != entry.length:
            raise CorruptLayoutError(f"{entry.uri} is not chunk {entry.chunk_index} of its list")
        return PackedSource(shard)

    def _open_signal(self, name: str) -> Signal:
        signals = [part.signals[name] for part in self.parts]
        return signals[0] if len(signals) == 1 else JoinedSignal(signals)

    @cached_property
    def parts(self) -> list[PackedSource]:
        """Every chunk, opened."""
        parts = [self._first, *(self._opened(index) for index in range(1, self.chunks.total_chunks))]
        for part, entry in zip(parts, self.chunks.chunks, strict=True):
            if list(part.signals) != list(self._first.signals):
                raise CorruptLayoutError(f"{entry.uri} has other signals than the first chunk of its list")
        return parts

    @property
    def id(self) -> str:
        """The id of the recording."""
        return self.chunks.episode_id

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The signals of all chunks, joined."""
        return self._signals

    @property
    def static(self) -> Mapping[str, Any]:
        """The static items of the recording."""
        return self._first.static

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metadata of the recording."""
        return self._first.meta

    @property
    def step_clock(self) -> StepClock | None:
        """The steps of the recording."""
        return self._first.step_clock

    @property
    def place(self) -> str | None:
        """Path of the chunk list, or of the first chunk."""
        return self._first.place if self.chunks.path is None else os.fspath(self.chunks.path)

    def stored_bytes(self) -> int:
        """What all chunks take."""
        return sum(part.stored_bytes() for part in self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedChunks, (self.chunks,))
