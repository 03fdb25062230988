"""An episode as an embedder sees it: what was observed at its steps, and what is known of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.collection.edits import shown
from warpdata.episodes.sources.shard_episode import ShardSource, episode_of_shard
from warpdata.errors import NoStepsError, nearest
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.reader import ShardReader
from warpdata.search.moments.observation import Observation
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import innermost
from warpdata.timeline.steps import Steps, StepSignal

Source = Episode | WShardEpisode | str | os.PathLike[str]
"""An episode that was opened, wherever it lies, or the path of one."""

BLOCK_BYTES = 16 << 20
"""Values read at a time."""


class Behaviour:
    """An episode by step: what was observed, what it earned, and what is known of it."""

    def __init__(
        self, episode: Episode, steps: Steps, file_path: str, signals: Sequence[str] | None = None
    ) -> None:
        self.length = steps.length
        self.times_ns = steps.times_ns
        self.about = about_episode(episode, file_path, steps.length)
        self.key = key_of(self.about)
        self._rewards = steps.rewards
        self.signals = _observed(episode, steps, signals)

    @classmethod
    def of(
        cls, source: Source, rate_hz: float | None, clock: str | None, signals: Sequence[str] | None = None
    ) -> Behaviour:
        """The behaviour of an episode on its own steps, or on those of a rate or a clock."""
        episode, path = episode_and_address(source)
        try:
            is_chosen = rate_hz is not None or clock is not None
            steps = episode.steps_at(rate_hz=rate_hz, clock=clock) if is_chosen else episode.steps
        except NoStepsError as error:
            error.hint = "Say rate_hz= or clock=."
            raise
        if not steps.length:
            raise ValueError(f"an episode without steps has no behaviour: {path}")
        return cls(episode, steps, path, signals)

    def at(self, step: int) -> Observation:
        """The observations of one step."""
        return Observation({name: np.asarray(each[step]) for name, each in self.signals.items()})

    def mean(self, start: int, end: int) -> Observation:
        """Every observation of numbers, its mean over these steps; read in parts that fit in memory."""
        return Observation({name: _mean(each, start, end) for name, each in self.signals.items()})

    @property
    def total_reward(self) -> float:
        """The sum of all rewards that are numbers; 0 where there are none."""
        if self._rewards is None:
            return 0.0
        earned = self._rewards.data[self._rewards.mask].astype(np.float64)
        return float(earned[np.isfinite(earned)].sum())


def about_episode(episode: Episode, file_path: str, length: int | None) -> dict[str, Any]:
    """What every vector of an episode says of it."""
    source = innermost(episode.source)
    chunk = source.tensors.chunk_index if isinstance(source, ShardSource) else None
    found: dict[str, Any] = {"episode_id": episode.id, "env_id": str(episode.static.get("env_id", ""))}
    if length is not None:
        found["length_T"] = length
    found["file_path"] = file_path
    return found if chunk is None else {**found, "chunk_index": chunk}


def key_of(about: dict[str, Any]) -> str:
    """What the vectors of an episode, or of a chunk of one, are called."""
    chunk = about.get("chunk_index")
    return str(about["episode_id"]) if chunk is None else f"{about['episode_id']}#{chunk}"


def window_key(about: dict[str, Any]) -> str:
    """What the vector of a window is called."""
    return f"{about['episode_id']}#{about.get('chunk_index') or 0}@{about['window_start']}"


def episode_and_address(source: Source) -> tuple[Episode, str]:
    """An episode, and what opens it again."""
    if isinstance(source, Episode | WShardEpisode):
        episode: Episode = source.in_time if isinstance(source, WShardEpisode) else source
        return episode, episode.address or episode.id
    path = os.path.abspath(source)
    if os.path.isdir(path):
        return shown(path), path
    if not os.path.exists(path) and ("://" in os.fspath(source) or "#" in os.fspath(source)):
        raise ValueError(f"{os.fspath(source)!r} is no file here: give what wd.open_episode() opens")
    return episode_of_shard(ShardReader.open(path)), path


def _observed(episode: Episode, steps: Steps, names: Sequence[str] | None) -> dict[str, StepSignal]:
    """What an embedder gets: the observations, or the signals that are named, as far as every step has a value."""
    if names is None:
        return {name: each for name, each in steps.observations.items() if _is_complete(each)}
    for name in names:
        if name not in episode.signals:
            raise KeyError(f"no signal {name!r} in episode {episode.id}.{nearest(name, episode.signals)}")
        if not _is_complete(steps[name]):
            raise ValueError(f"signal {name!r} of episode {episode.id} has no number at some steps")
    return {name: steps[name] for name in names}


def _is_complete(signal: StepSignal) -> bool:
    """Whether an observation is numbers and has a value at every step."""
    return not signal.meta.is_object and bool(signal.mask.all())


def _mean(signal: StepSignal, start: int, end: int) -> NDArray[np.float32]:
    total = np.zeros(signal.row_shape, np.float64)
    block = max(1, BLOCK_BYTES // max(1, signal.meta.row_bytes))
    for first in range(start, end, block):
        total += signal[first : min(first + block, end)].sum(axis=0, dtype=np.float64)
    return (total / (end - start)).astype(np.float32)
