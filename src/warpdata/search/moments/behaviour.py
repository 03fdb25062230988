"""An episode as an embedder sees it: observations by channel at its steps, and the facts stored with its vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.episodes.collection.edits import shown
from warpdata.episodes.sources.shard_episode import ShardSource, episode_of_shard
from warpdata.errors import NoStepsError, nearest
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.reader import ShardReader
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import innermost
from warpdata.timeline.steps import Steps, StepSignal

T = TypeVar("T")
Source = Episode | WShardEpisode | str | os.PathLike[str]
"""An episode that was opened, or the path of one."""

BLOCK_BYTES = 16 << 20
"""Values read at a time."""
CHANNELS = "channels"
"""The note of a file that names the channels of its vectors."""
EPISODES, TIMESTEPS = "traj_episodes", "traj_timesteps"
_LOCAL_NAMES = {"length_T": "length", "total_reward": "reward"}
"""Fields of the server that a file has under the names of older files."""
_SERVER_NAMES = {mine: theirs for theirs, mine in _LOCAL_NAMES.items()}


def local_name(field: str) -> str:
    """The name of a field of the server in a vector file."""
    return _LOCAL_NAMES.get(field, field)


def file_row(collection: str, key: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a vector as a vector file has it."""
    return {"collection": collection, "key": key, **{local_name(n): v for n, v in metadata.items()}}


def split_row(row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Key and metadata of a row of a vector file, with the names of the server."""
    metadata = {_SERVER_NAMES.get(n, n): v for n, v in row.items() if n not in ("collection", "key")}
    return str(row.get("key", row.get("episode_id", ""))), metadata


class Observation(np.ndarray[Any, Any]):
    """An array: the first channel, flat. Channels are read by name: `obs["joint_pos"]`, `obs.items()`."""

    channels: dict[str, NDArray[Any]]
    """All channels; reading them here does not count as use."""
    _used: set[str]

    def __new__(cls, channels: Mapping[str, ArrayLike]) -> Observation:
        """Observations of these channels."""
        arrays = {name: as_array(value) for name, value in channels.items()}
        if not arrays:
            raise ValueError("there are no observations to embed")
        made: Observation = np.ravel(next(iter(arrays.values()))).view(cls)
        made.channels = arrays
        made._used = set()
        return made

    def __array_finalize__(self, obj: Any) -> None:
        """Arrays computed from observations have no names."""
        self.channels, self._used = {}, set()

    @property
    def used(self) -> list[str]:
        """Channels that were read by name; the first one where none was."""
        return [name for name in self.channels if name in self._used] or list(self.channels)[:1]

    @property
    def is_named(self) -> bool:
        """Whether a channel was read by name."""
        return bool(self._used)

    def use(self, names: Sequence[str]) -> None:
        """Count these channels as read."""
        self._used.update(names)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self.channels:
            self._used.add(key)
            return self.channels[key]
        if list(self.channels) == [BARE]:
            raise KeyError(f"no channel {key!r}: a bare array was given; give a dict of channels")
        known = ", ".join(self.channels) or "none"
        raise KeyError(f"no channel {key!r}; there are {known}.{nearest(key, self.channels)}")

    def __contains__(self, key: object) -> bool:
        return key in self.channels if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """Names of the channels."""
        return list(self.channels)

    def values(self) -> list[NDArray[Any]]:
        """Arrays of the channels."""
        self._used.update(self.channels)
        return list(self.channels.values())

    def items(self) -> list[tuple[str, NDArray[Any]]]:
        """Names and arrays of the channels."""
        self._used.update(self.channels)
        return list(self.channels.items())


BARE = ""
"""The name of the one channel of a query that is a bare array."""
_ROW_KEY = "observations"


@dataclass(frozen=True, slots=True)
class Channels:
    """Names of the channels of an index: all of them in their order, and those its vectors were made of."""

    names: tuple[str, ...] = ()
    used: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Channels:
        """Channels from a note of the file; none for files that do not record them."""
        if not text:
            return cls()
        body = parse_json_object(text.encode())
        return cls(tuple(map(str, body["names"])), tuple(map(str, body["used"])))

    def to_text(self) -> str:
        """The note of the file."""
        return dump_json({"names": list(self.names), "used": list(self.used)}).decode()

    def ordered(self, named: Mapping[str, T]) -> dict[str, T]:
        """A mapping by channel in the order of the index; channels it does not have come last."""
        known = {name: named[name] for name in self.names if name in named}
        return known | {name: each for name, each in named.items() if name not in known}

    def joined(self, channels: Iterable[str], used: Sequence[str], where: str) -> Channels:
        """With the channels of an embedded observation, which must have used the same ones."""
        if self.used and set(used) != set(self.used):
            raise ValueError(
                f"channel mismatch: expected {', '.join(self.used)}, got {', '.join(used)}: {where}. "
                "All episodes of an index are embedded from the same channels"
            )
        names = (*self.names, *(name for name in channels if name not in self.names))
        return Channels(names, self.used or tuple(used))

    def query(self, query: Mapping[str, Any] | ArrayLike) -> Observation:
        """A query: channels by name, a row of `episode.steps`, one array [D], or the mean of several steps [T, D].

        Channels are matched by name. One that the index does not have is refused, and so is a query without one that
        the vectors were made of.
        """
        if isinstance(query, Mapping) and isinstance(query.get(_ROW_KEY), Mapping):
            row: Mapping[str, Any] = query[_ROW_KEY]
            query = {name: each for name, each in row.items() if not self.names or name in self.names}
        if isinstance(query, Observation) and query.channels:
            query = query.channels
        if not isinstance(query, Mapping):
            array = as_array(query)
            array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
            if array.dtype.kind not in "fiub" or not array.size:
                raise ValueError("a query is an array of numbers, or a dict of such arrays by channel")
            return Observation({BARE: array.mean(axis=0) if array.ndim > 1 else np.atleast_1d(array)})
        for name in query if self.names else ():
            if name not in self.names:
                known = ", ".join(self.names)
                raise ValueError(
                    f"unknown channel {name!r}: the index has {known}.{nearest(str(name), self.names)}"
                )
        missing = [name for name in self.used if name not in query]
        if missing:
            raise ValueError(
                f"missing channel {missing[0]!r}: the vectors were made of {', '.join(self.used)}"
            )
        return Observation(self.ordered(query))


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
            error.hint = "Give rate_hz= or clock=."
            raise
        if not steps.length:
            raise ValueError(f"an episode without steps has no behaviour: {path}")
        return cls(episode, steps, path, signals)

    def mean(self, start: int, end: int) -> Observation:
        """Every observation of numbers, its mean over these steps; read in parts that fit in memory."""
        means = {}
        for name, signal in self.signals.items():
            total = np.zeros(signal.row_shape, np.float64)
            block = max(1, BLOCK_BYTES // max(1, signal.meta.row_bytes))
            for first in range(start, end, block):
                total += signal[first : min(first + block, end)].sum(axis=0, dtype=np.float64)
            means[name] = (total / (end - start)).astype(np.float32)
        return Observation(means)

    @property
    def total_reward(self) -> float:
        """The sum of all rewards that are numbers; 0 without any."""
        if self._rewards is None:
            return 0.0
        earned = self._rewards.data[self._rewards.mask].astype(np.float64)
        return float(earned[np.isfinite(earned)].sum())


def about_episode(episode: Episode, file_path: str, length: int | None) -> dict[str, Any]:
    """Facts stored with every vector of an episode."""
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
