"""Find episodes by behaviour: embed their observations, keep the vectors in a file or on a server, search with one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import require_word, suggests
from warpdata.search.file.content import METRICS
from warpdata.search.file.writing import whole_number
from warpdata.search.moments.behaviour import (
    CHANNELS,
    EPISODES,
    TIMESTEPS,
    Channels,
    Source,
    episode_and_address,
    key_of,
    local_name,
    split_row,
)
from warpdata.search.moments.deepdata import Condition, DeepDataIndex, Hit
from warpdata.search.moments.embedders import Embedder, embedded, embedder_of
from warpdata.search.moments.moments import MAX_STEPS, Embedded, EmbedOptions, EpisodeMoments, Floats
from warpdata.search.store import VectorStore
from warpdata.sql.engine import literal, quote_name

if TYPE_CHECKING:
    from typing import Self

Query = Mapping[str, ArrayLike] | ArrayLike

_SQL = {"==": "=", ">=": ">=", "<=": "<="}
_OVERFETCH = 8
"""Several steps of one episode are near each other; this many vectors are looked at per episode wanted."""


class FileIndex:
    """Both collections in one vector file."""

    steps_per_episode = MAX_STEPS
    """Vectors of an episode unless given; 1 is the mean over its time."""

    def __init__(self, path: str | os.PathLike[str], *, metric: str = "cosine", writes: bool) -> None:
        self._path = Path(path)
        if writes:
            require_word("metric", metric, METRICS)
        self._metric = metric
        self._writes = writes
        self._store: VectorStore | None = None
        self._known: dict[tuple[str, str], list[int]] | None = None
        """The vectors of each file by collection, looked up once."""
        if not writes:
            self._store = VectorStore.open(self._path)

    @property
    def channels(self) -> Channels:
        """Channels of the vectors, recorded with the first episode."""
        store = self._opened()
        return Channels() if store is None else Channels.parse(store.notes.get(CHANNELS))

    def _opened(self) -> VectorStore | None:
        if self._store is None and self._path.exists():
            self._store = VectorStore.open(self._path, mode="a" if self._writes else "r")
        return self._store

    def insert(self, collection: str, file_path: str, made: Embedded) -> None:
        """Add the vectors of one episode to a collection; those it had there before go."""
        store = self._opened()
        if store is None:
            store = VectorStore.create(self._path, dim=made.vectors.shape[1], metric=self._metric)
            self._store = store
        if self._known is None:
            self._known, ids = {}, store.ids
            for vector_id, row in zip(ids.tolist(), store.metadata(ids), strict=True):
                name = (str(row.get("collection", EPISODES)), str(row.get("file_path")))
                self._known.setdefault(name, []).append(vector_id)
        before = self._known.get((collection, file_path), [])
        notes = {CHANNELS: made.channels.to_text()}
        ids = store.replace(before, made.vectors, metadata=made.rows, notes=notes)
        self._known[collection, file_path] = ids.tolist()

    def search(
        self, collection: str, vector: Floats, top_k: int, conditions: Sequence[Condition]
    ) -> list[Hit]:
        """The nearest records that meet every condition, nearest first."""
        store = self._store
        if store is None:
            return []
        store.refresh()  # a server knows at once what was added, too
        wanted = self._where(store, collection, conditions) if len(store) else None
        if wanted is None:
            return []
        ids, distances = store.search(vector, k=min(top_k, len(store)), where=wanted or None)
        scores = [(1.0 if store.metric == "cosine" else 0.0) - away for away in distances.tolist()]
        found = map(split_row, store.metadata(ids))
        return [Hit(key, score, about) for (key, about), score in zip(found, scores, strict=True)]

    def _where(self, store: VectorStore, collection: str, conditions: Sequence[Condition]) -> str | None:
        """The conditions as SQL; None if no record can meet them."""
        parts = []
        for name, operator, value in conditions:
            field = local_name(name)
            if field not in store.fields:
                return None
            parts.append(f"{quote_name(field)} {_SQL[operator]} {literal(value)}")
        is_mixed = "collection" in store.fields
        if collection == EPISODES:
            parts += [f"collection is distinct from {literal(TIMESTEPS)}"] if is_mixed else []
        elif is_mixed and "window_start" in store.fields:
            parts.append(f"collection = {literal(collection)}")
        elif "step" in store.fields:  # steps, where the file has no windows
            parts.append("step is not null")
        else:
            raise ValueError(
                f"no windows in {self._path}: its vectors are of whole episodes. Add windows with"
                " TrajectoryIngestor.ingest_timesteps or wd.embed(..., per='window')"
            )
        return " and ".join(parts)

    def close(self) -> None:
        """Close the file; everything added is in it."""
        if self._store is not None:
            self._store.close()
            self._store = None


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
    target: str | os.PathLike[str], *, metric: str, writes: bool, **of_server: Any
) -> FileIndex | DeepDataIndex:
    """The vector file at a path, or the server at an http(s) address."""
    place = os.fspath(target)
    if "://" not in place:
        return FileIndex(place, metric=metric, writes=writes)
    if not place.startswith(("http://", "https://")):
        raise ValueError(f"{place!r}: trajectory vectors live in a file or behind http(s)://host:port")
    return DeepDataIndex(place, **of_server)


@suggests
class TrajectoryIngestor:
    """Adds episodes to a vector file (`episodes.rvf`) or a DeepData server (`http://host:8080`).

    Adding an episode again replaces it. `metric` is that of a file that is made; a server has its own, and is
    reached through `proxy` where one is given.
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
        options = EmbedOptions("episode" if count == 1 else "step", rate_hz, clock, count)
        made = self._ingest(EPISODES, episode, options)
        return key_of(made.rows[0])

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
        sizes = _at_least_one(window_size, "window_size"), _at_least_one(stride, "stride")
        options = EmbedOptions("window", rate_hz, clock, None, *sizes)
        return [row["key"] for row in self._ingest(TIMESTEPS, episode, options).rows]

    def _ingest(self, collection: str, source: Source, options: EmbedOptions) -> Embedded:
        episode, path = episode_and_address(source)
        made = EpisodeMoments(episode, path, options, self._embedder, self._index.channels).all()
        if isinstance(made, str):
            raise ValueError(f"an episode without vectors, {made}: {path}")
        self._index.insert(collection, path, made)
        return made

    def close(self) -> None:
        """Close the file; everything added is in it."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@suggests
class TrajectoryRetriever:
    """Searches a vector file or a DeepData server for episodes that behave like an observation."""

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

        `query_obs` is a dict of channels, one array [D], or several steps [T, D], whose mean is searched for.
        """
        conditions, top_k = _conditions(env_id, min_length, reward_range), _at_least_one(top_k, "top_k")
        vector = self._vector(query_obs)
        wanted = top_k * (1 if self._index.steps_per_episode == 1 else _OVERFETCH)
        while True:
            hits = self._index.search(EPISODES, vector, wanted, conditions)
            nearest_of: dict[tuple[str, str], EpisodeRef] = {}
            for ref in map(_ref, hits):  # each episode (or chunk of one) once
                nearest_of.setdefault((ref.episode_id, ref.file_path), ref)
            if len(nearest_of) >= top_k or len(hits) < wanted:
                return list(nearest_of.values())[:top_k]
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
        """Close the file."""
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
        try:
            low, high = map(float, reward_range)
            if math.isnan(low) or math.isnan(high) or low == math.inf or high == -math.inf:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(f"reward_range is two numbers, (low, high), not {reward_range!r}") from None
        for op, bound in ((">=", low), ("<=", high)):
            if not math.isinf(bound):  # no bound on this side, and JSON has no infinity
                out.append(("total_reward", op, bound))
    return out
