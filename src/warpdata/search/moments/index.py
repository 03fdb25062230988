"""Trajectory vectors in a local .rvf file, and the interface they share with a DeepData server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.search.moments.observation import Channels
from warpdata.search.query.distance import check_metric
from warpdata.search.store import VectorStore
from warpdata.sql.engine import literal, quoted

Floats = NDArray[np.float32]
CHANNELS = "channels"
"""The note of a file that names the channels of its vectors."""
EPISODES, TIMESTEPS = "traj_episodes", "traj_timesteps"
Condition = tuple[str, str, Any]
"""A field of the metadata, one of ==, >=, <=, and a value."""


def similarity(metric: str, distance: float) -> float:
    """A distance as a similarity: larger is nearer."""
    return 1 - distance if metric == "cosine" else -distance


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One vector with its id and what is known about it."""

    id: str
    vector: Floats
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: `score` is a similarity, larger is nearer."""

    id: str
    score: float
    metadata: dict[str, Any]


_LOCAL_NAMES = {"length_T": "length", "total_reward": "reward"}
"""Fields of the server that a file has under the names of older files."""
_SERVER_NAMES = {mine: theirs for theirs, mine in _LOCAL_NAMES.items()}


def file_row(collection: str, key: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a record as a vector file has it."""
    return {"collection": collection, "key": key, **_renamed(metadata, _LOCAL_NAMES)}


class FileIndex:
    """Both collections in one vector file."""

    steps_per_episode = 256
    """Vectors of an episode unless given; 1 is the mean over its time."""
    keeps_times = True
    """Whether whole numbers of nanoseconds are kept as they are."""

    def __init__(self, path: str | os.PathLike[str], *, metric: str = "cosine", writes: bool) -> None:
        self._path = Path(path)
        self._metric = check_metric(metric) if writes else metric
        self._writes = writes
        self._store: VectorStore | None = None
        self._known: dict[tuple[str, str], list[int]] | None = None
        """The vectors of each file by collection, looked up once."""
        if not writes:
            self._store = VectorStore.open(self._path)

    @property
    def channels(self) -> Channels:
        """Channels of the vectors, recorded with the first episode."""
        if self._store is None and self._path.exists():
            self._store = VectorStore.open(self._path, mode="a" if self._writes else "r")
        return Channels() if self._store is None else Channels.parse(self._store.notes.get(CHANNELS))

    def insert(
        self, collection: str, file_path: str, records: Sequence[EpisodeRecord], channels: Channels
    ) -> None:
        """Add the records of one file to a collection; those it had there before go."""
        store = self._opened(len(records[0].vector))
        known = self._vectors_by_file(store)
        before = known.get((collection, file_path), [])
        rows = [file_row(collection, record.id, record.metadata) for record in records]
        notes = {CHANNELS: channels.to_text()}
        ids = store.replace(
            before, np.stack([record.vector for record in records]), metadata=rows, notes=notes
        )
        known[collection, file_path] = ids.tolist()

    def search(
        self, collection: str, vector: Floats, top_k: int, conditions: Sequence[Condition]
    ) -> list[Hit]:
        """The nearest records that meet every condition, nearest first."""
        store = self._store
        if store is None:
            return []
        store.refresh()  # a server knows at once what was added, too
        if not len(store):
            return []
        wanted = self._where(store, collection, conditions)
        if wanted is None:
            return []
        ids, distances = store.search(vector, k=min(top_k, len(store)), where=wanted or None)
        hits = []
        for row, away in zip(store.metadata(ids), distances.tolist(), strict=True):
            key = str(row.pop("key", row.get("episode_id", "")))
            row.pop("collection", None)
            score = similarity(store.metric, float(away))
            hits.append(Hit(key, score, _renamed(row, _SERVER_NAMES)))
        return hits

    def _where(self, store: VectorStore, collection: str, conditions: Sequence[Condition]) -> str | None:
        """The conditions as SQL; None if no record can meet them."""
        parts = []
        for name, operator, value in conditions:
            field = _LOCAL_NAMES.get(name, name)
            if field not in store.fields:
                return None
            parts.append(f"{quoted(field)} {_SQL[operator]} {literal(value)}")
        return " and ".join([*parts, *self._of_collection(store, collection)])

    def _of_collection(self, store: VectorStore, collection: str) -> list[str]:
        """Conditions for the vectors of a collection: windows, or steps where the file has no windows."""
        is_mixed = "collection" in store.fields
        if collection == EPISODES:
            return [f"collection is distinct from {literal(TIMESTEPS)}"] if is_mixed else []
        if is_mixed and "window_start" in store.fields:
            return [f"collection = {literal(collection)}"]
        if "step" not in store.fields:
            raise ValueError(
                f"no windows in {self._path}: its vectors are of whole episodes. Add windows with"
                " TrajectoryIngestor.ingest_timesteps or wd.embed(..., per='window')"
            )
        return ["step is not null"]

    def close(self) -> None:
        """Let go of the file; everything added is in it."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self, dim: int) -> VectorStore:
        if self._store is None:
            self._store = (
                VectorStore.open(self._path, mode="a")
                if self._path.exists()
                else VectorStore.create(self._path, dim=dim, metric=self._metric)
            )
        return self._store

    def _vectors_by_file(self, store: VectorStore) -> dict[tuple[str, str], list[int]]:
        if self._known is None:
            self._known = {}
            ids = store.ids
            for vector_id, row in zip(ids.tolist(), store.metadata(ids), strict=True):
                name = (str(row.get("collection", EPISODES)), str(row.get("file_path")))
                self._known.setdefault(name, []).append(vector_id)
        return self._known


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in row.items()}


_SQL = {"==": "=", ">=": ">=", "<=": "<="}
