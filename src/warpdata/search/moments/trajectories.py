"""Find episodes by behaviour: embed their observations, keep the vectors in a file or on a server, ask with one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import suggests
from warpdata.search.file.checked_input import whole_number
from warpdata.search.moments.behaviour import Behaviour, Source, window_key
from warpdata.search.moments.deepdata import DeepDataIndex
from warpdata.search.moments.embedders import Embedder, embedded, embedder_of
from warpdata.search.moments.index import EPISODES, TIMESTEPS, Condition, EpisodeRecord, FileIndex, Hit
from warpdata.search.moments.observation import Channels, Observation

if TYPE_CHECKING:
    from typing import Self

Query = Mapping[str, ArrayLike] | ArrayLike

MAX_STEPS = FileIndex.steps_per_episode
"""Steps of an episode that are embedded into a file unless told otherwise, spread evenly over it."""

_OVERFETCH = 8
"""Several steps of one episode are near each other; this many vectors are looked at per episode wanted."""


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """An episode that was found, or a window of one; `score` is a similarity, larger is nearer."""

    episode_id: str
    file_path: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int | None:
        """The step, or the first one of the window, that was found; None for a whole episode."""
        found = self.metadata.get("step", self.metadata.get("window_start"))
        return None if found is None else int(found)

    @property
    def ts_ns(self) -> int | None:
        """The time of the moment that was found, or of the first one; None in indexes of older releases."""
        found = self.metadata.get("ts_ns")
        return None if found is None else int(found)


def open_index(
    target: str | os.PathLike[str],
    *,
    metric: str,
    writes: bool,
    timeout_s: float,
    headers: Mapping[str, str] | None,
    proxy: str | None,
) -> FileIndex | DeepDataIndex:
    """The vector file at a path, or the server at an http(s) address."""
    place = os.fspath(target)
    if "://" not in place:
        return FileIndex(place, metric=metric, writes=writes)
    if not place.startswith(("http://", "https://")):
        raise ValueError(f"{place!r}: trajectory vectors live in a file or behind http(s)://host:port")
    return DeepDataIndex(place, timeout_s=timeout_s, headers=headers, proxy=proxy)


@suggests
class TrajectoryIngestor:
    """Adds episodes to a vector file (`episodes.rvf`) or a DeepData server (`http://host:8080`).

    Adding an episode again replaces it. `metric` is that of a file that is made; a server has its own, and is asked
    through `proxy` where one is given.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        embedder: Embedder | str,
        *,
        metric: str = "cosine",
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        self._embedder = embedder_of(embedder)
        self._channels = Channels()
        self._index = open_index(
            target, metric=metric, writes=True, timeout_s=timeout_s, headers=headers, proxy=proxy
        )

    def ensure_collection(self, dim: int, collection: str = EPISODES) -> None:
        """Make a collection of the server unless it exists; a file needs none."""
        dim = _at_least_one(dim, "dim")
        if isinstance(self._index, DeepDataIndex):
            self._index.ensure(collection, dim)

    @suggests
    def ingest_episode(
        self,
        episode: Source,
        *,
        max_steps: int | None = None,
        rate_hz: float | None = None,
        clock: str | None = None,
    ) -> str:
        """Embed an episode and add it; returns its id.

        It is one that `wd.open_episode` gave, or the path of one. `max_steps=1` embeds the mean over its time, a larger
        number that many steps spread evenly over it; None does what others do there: 1 on a server, 256 in a file.
        `rate_hz` or `clock` choose the steps of an episode that was not recorded by step.
        """
        count = self._index.steps_per_episode if max_steps is None else _at_least_one(max_steps, "max_steps")
        found = self._behaviour(episode, rate_hz, clock)
        about = {**found.about, "total_reward": found.total_reward}
        if count == 1:
            whole = {**about, **self._when(found, 0)}
            records = [self._record(found.key, found.mean(0, found.length), whole)]
        else:
            steps = np.unique(np.linspace(0, found.length - 1, min(count, found.length)).astype(int))
            records = [
                self._record(
                    f"{found.key}@{step}", found.at(step), {**about, "step": step, **self._when(found, step)}
                )
                for step in steps.tolist()
            ]
        self._insert(EPISODES, about["file_path"], records)
        return found.key

    @suggests
    def ingest_episodes(
        self,
        episodes: Episodes | Iterable[Source],
        *,
        max_steps: int | None = None,
        rate_hz: float | None = None,
        clock: str | None = None,
    ) -> list[str]:
        """Embed and add every episode of a sequence, local or published; returns their ids."""
        return [
            self.ingest_episode(each, max_steps=max_steps, rate_hz=rate_hz, clock=clock) for each in episodes
        ]

    @suggests
    def ingest_timesteps(
        self,
        episode: Source,
        window_size: int = 32,
        stride: int = 16,
        *,
        rate_hz: float | None = None,
        clock: str | None = None,
    ) -> list[str]:
        """Embed the mean of each window of an episode, to its very end; returns the ids of the windows."""
        window_size, stride = _at_least_one(window_size, "window_size"), _at_least_one(stride, "stride")
        found = self._behaviour(episode, rate_hz, clock)
        records = []
        for start in range(0, found.length, stride):
            end = min(start + window_size, found.length)
            window = {**found.about, "window_start": start, "window_end": end, **self._when(found, start)}
            key = window_key(window)
            records.append(self._record(key, found.mean(start, end), window))
            if end == found.length:
                break
        self._insert(TIMESTEPS, found.about["file_path"], records)
        return [record.id for record in records]

    def _insert(self, collection: str, file_path: str, records: list[EpisodeRecord]) -> None:
        sizes = sorted({len(each.vector) for each in records})
        if len(sizes) > 1:
            raise ValueError(
                f"the embedder gave vectors of {' and '.join(map(str, sizes))} numbers for one episode: {file_path}"
            )
        self._index.insert(collection, file_path, records, self._channels)

    def _behaviour(self, episode: Source, rate_hz: float | None, clock: str | None) -> Behaviour:
        """The episode with its channels in the order of the index."""
        found = Behaviour.of(episode, rate_hz, clock)
        self._channels = self._index.channels
        found.signals = self._channels.ordered(found.signals)
        return found

    def _when(self, found: Behaviour, step: int) -> dict[str, int]:
        """The time of a step: who shows it need not choose the same steps again."""
        return {"ts_ns": int(found.times_ns[step])} if self._index.keeps_times else {}

    def _record(self, key: str, observation: Observation, metadata: dict[str, Any]) -> EpisodeRecord:
        vector = embedded(self._embedder, observation)
        self._channels = self._channels.joined(observation, metadata["file_path"])
        return EpisodeRecord(key, vector, metadata)

    def close(self) -> None:
        """Let go of the file; everything added is in it."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@suggests
class TrajectoryRetriever:
    """Asks a vector file or a DeepData server for episodes that behave like an observation."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        embedder: Embedder | str,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        self._embedder = embedder_of(embedder)
        self._index = open_index(
            target, metric="", writes=False, timeout_s=timeout_s, headers=headers, proxy=proxy
        )

    @suggests
    def search_similar_episodes(
        self,
        query_obs: Query,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> list[EpisodeRef]:
        """The `top_k` nearest episodes, nearest first; `reward_range` bounds the sum of an episode's rewards.

        `query_obs` is a dict of channels, one array [D], or several steps [T, D], whose mean is asked for.
        """
        conditions, top_k = _conditions(env_id, min_length, reward_range), _at_least_one(top_k, "top_k")
        vector = self._vector(query_obs)
        wanted = top_k * (1 if self._index.steps_per_episode == 1 else _OVERFETCH)
        while True:
            hits = self._index.search(EPISODES, vector, wanted, conditions)
            found = _each_once(hits)
            if len(found) >= top_k or len(hits) < wanted:
                return found[:top_k]
            wanted *= 4

    @suggests
    def search_similar_timesteps(
        self, query_obs: Query, top_k: int = 10, env_id: str | None = None
    ) -> list[EpisodeRef]:
        """The `top_k` nearest windows, or steps where the index has no windows, nearest first."""
        vector = self._vector(query_obs)
        hits = self._index.search(
            TIMESTEPS, vector, _at_least_one(top_k, "top_k"), _conditions(env_id, None, None)
        )
        return [_ref(hit) for hit in hits]

    def _vector(self, query: Query) -> NDArray[np.float32]:
        observation = self._index.channels.query(query)
        vector = embedded(self._embedder, observation)
        if not self._index.channels.names and not observation.is_named and len(observation.channels) > 1:
            raise ValueError(
                f"the embedder reads the first channel of {', '.join(observation.channels)}, and the index has no"
                " record of their order: give one channel, or read channels by name in the embedder"
            )
        return vector

    def close(self) -> None:
        """Let go of the file."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at_least_one(value: int, name: str) -> int:
    wanted = whole_number(value, name)
    if wanted < 1:
        raise ValueError(f"{name} is at least 1, not {value}")
    return wanted


def _ref(hit: Hit) -> EpisodeRef:
    about = hit.metadata
    return EpisodeRef(str(about.get("episode_id", hit.id)), str(about.get("file_path", "")), hit.score, about)


def _each_once(hits: list[Hit]) -> list[EpisodeRef]:
    """Each episode (or chunk of one) once, by its nearest vector."""
    best: dict[tuple[str, str], EpisodeRef] = {}
    for hit in hits:
        ref = _ref(hit)
        best.setdefault((ref.episode_id, ref.file_path), ref)
    return list(best.values())


def _conditions(
    env_id: str | None, min_length: int | None, reward_range: tuple[float, float] | None
) -> list[Condition]:
    out: list[Condition] = []
    if env_id is not None:
        if not isinstance(env_id, str):
            raise TypeError(f"env_id is a text, not {env_id!r}")
        out.append(("env_id", "==", env_id))
    if min_length is not None:
        out.append(("length_T", ">=", whole_number(min_length, "min_length")))
    if reward_range is not None:
        for op, bound in zip((">=", "<="), _bounds(reward_range), strict=True):
            if not math.isinf(bound):  # no bound on this side, and nothing that JSON could say
                out.append(("total_reward", op, bound))
    return out


def _bounds(reward_range: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = map(float, reward_range)
    except (TypeError, ValueError):
        raise ValueError(f"reward_range is two numbers, (low, high), not {reward_range!r}") from None
    if math.isnan(low) or math.isnan(high) or low == math.inf or high == -math.inf:
        raise ValueError(f"reward_range is two numbers, (low, high), not {reward_range!r}")
    return low, high
