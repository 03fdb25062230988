"""Find episodes by behaviour: embed their observations, keep the vectors in one file, ask with an observation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.formats.wshard.load import load_wshard
from warpdata.search.store import VectorStore

if TYPE_CHECKING:
    from typing import Self

    from warpdata.formats.wshard.episode import WShardEpisode

Embedder = Callable[[Mapping[str, NDArray[Any]]], Any]
"""Turns the observations of one step, by channel id, into a vector."""

MAX_STEPS = 256
"""Steps of an episode that are embedded unless told otherwise, spread evenly over it."""

_OVERFETCH = 8
"""Several steps of one episode are near each other; this many vectors are looked at per episode wanted."""


@dataclass(frozen=True, slots=True)
class SimilarEpisode:
    """An episode that was found: its best step, and how far that is from the query (smaller is nearer)."""

    episode_id: str
    file_path: str
    score: float
    step: int


class TrajectoryIngestor:
    """Adds episodes to a file of trajectory vectors; adding an episode again replaces it."""

    def __init__(self, path: str | os.PathLike[str], embedder: Embedder, *, metric: str = "cosine") -> None:
        self._path = _local(path)
        self._embedder = embedder
        self._metric = metric
        self._store: VectorStore | None = None

    def ingest_episode(self, path: str | os.PathLike[str], *, max_steps: int = MAX_STEPS) -> int:
        """Embed steps spread evenly over an episode and add them; returns how many."""
        episode = load_wshard(path)
        steps = np.unique(
            np.linspace(0, max(0, episode.length - 1), min(max_steps, episode.length)).astype(int)
        )
        vectors = np.stack(
            [np.asarray(self._embedder(_observation(episode, step)), np.float32) for step in steps]
        )
        store = self._opened(vectors.shape[1])
        file_path = os.path.abspath(path)
        self._forget(store, file_path)
        shared = {
            "episode_id": episode.id,
            "file_path": file_path,
            "env_id": episode.env_id,
            "length": episode.length,
            "reward": _return(episode),
        }
        columns: dict[str, Any] = {name: [value] * len(steps) for name, value in shared.items()}
        store.add(vectors, metadata={**columns, "step": steps.tolist()})
        return len(steps)

    def close(self) -> None:
        """Let go of the file; everything added is in it."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, dim: int) -> VectorStore:
        if self._store is None:
            exists = self._path.exists()
            self._store = (
                VectorStore.open(self._path, mode="a")
                if exists
                else VectorStore.create(self._path, dim=dim, metric=self._metric)
            )
        return self._store

    def _forget(self, store: VectorStore, file_path: str) -> None:
        if not len(store):
            return
        ids = store.ids
        known = [
            int(vector_id)
            for vector_id, record in zip(ids, store.metadata(ids), strict=True)
            if record.get("file_path") == file_path
        ]
        if known:
            store.delete(known)


class TrajectoryRetriever:
    """Asks a file of trajectory vectors for episodes that behave like an observation."""

    def __init__(self, path: str | os.PathLike[str], embedder: Embedder) -> None:
        self._store = VectorStore.open(_local(path))
        self._embedder = embedder

    def search_similar_episodes(
        self,
        query_obs: Mapping[str, Any],
        top_k: int = 10,
        *,
        env_id: str | None = None,
        min_length: int | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> list[SimilarEpisode]:
        """The `top_k` nearest episodes, nearest first; `reward_range` bounds the sum of an episode's rewards."""
        if not len(self._store):
            return []
        query = np.asarray(self._embedder({k: np.asarray(v) for k, v in query_obs.items()}), np.float32)
        condition = _condition(env_id, min_length, reward_range)
        wanted = top_k * _OVERFETCH
        while True:
            ids, distances = self._store.search(query, k=min(wanted, len(self._store)), filter=condition)
            found = self._episodes(ids, distances)
            if len(found) >= top_k or len(ids) < wanted or wanted >= len(self._store):
                return found[:top_k]
            wanted *= 4

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _episodes(self, ids: NDArray[np.int64], distances: NDArray[np.float32]) -> list[SimilarEpisode]:
        """Each episode once, by its nearest step."""
        best: dict[str, SimilarEpisode] = {}
        for record, distance in zip(self._store.metadata(ids), distances.tolist(), strict=True):
            key = record["file_path"]
            if key not in best:
                best[key] = SimilarEpisode(record["episode_id"], key, float(distance), int(record["step"]))
        return list(best.values())


def _local(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise ValueError(
            f"{os.fspath(path)!r}: trajectory vectors live in a file, no server is needed; give a path"
        )
    return Path(path)


def _observation(episode: WShardEpisode, step: int) -> dict[str, NDArray[Any]]:
    return {
        name: np.asarray(channel[step])
        for name, channel in episode.observations.items()
        if channel.clock_source is None
    }


def _return(episode: WShardEpisode) -> float:
    return float(np.nansum(episode.rewards.data.astype(np.float64))) if episode.rewards is not None else 0.0


def _condition(
    env_id: str | None, min_length: int | None, reward_range: tuple[float, float] | None
) -> dict[str, Any] | None:
    fields: dict[str, Any] = {}
    if env_id is not None:
        fields["env_id"] = {"==": env_id}
    if min_length is not None:
        fields["length"] = {">=": min_length}
    if reward_range is not None:
        fields["reward"] = {">=": reward_range[0], "<=": reward_range[1]}
    return fields or None
