"""Similar moments, from a vector index that is published with the episodes or stored beside them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata._api import open_vectors
from warpdata.errors import NoStepsError
from warpdata.formats.manifest.model import VECTOR_KIND
from warpdata.search.moments.behaviour import TIMESTEPS
from warpdata.sql.engine import literal
from warpdata.timeline.episode import Episode

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.search.store import VectorStore

MOST = 24
SPREAD_NS = 1_000_000_000
"""Moments of one episode that are nearer to each other than this are one."""

_OWN = 1 << 16
"""How many vectors of one episode are looked at."""
_FIRST_LOOK = 8 * MOST
_LONGEST_LOOK = 1 << 14
SUFFIX = ".rvf"


@dataclass(frozen=True, slots=True)
class Moment:
    """A similar moment; `score` is what `Moments.measure` names."""

    episode: str
    at_ns: int
    score: float


class NoMoments(ValueError):
    """Why there are no moments to compare with."""


Opened = Callable[[str], Episode | None]
"""Opens an episode by id; None if it is not shown."""


class Moments:
    """A vector index of the shown episodes, queried with its own vectors: no embedder is needed."""

    def __init__(self, store: VectorStore, name: str) -> None:
        self._store = store
        self.name = name
        self.measure = {"cosine": "similarity", "ip": "dot product"}.get(store.metric, "distance")

    def like(self, episode: Episode, ts_ns: int, opened: Opened, *, most: int = MOST) -> list[Moment]:
        """What is nearest to the vector of this episode that is nearest to this time; the nearest first."""
        store = self._store
        if "episode_id" not in store.fields:
            raise NoMoments(f"{self.name} is no index of episodes: make one with wd.TrajectoryIngestor")
        own = self._own(episode)
        times = {key: when for key, row in own.items() if (when := _time_of(row, episode)) is not None}
        if not times:
            raise NoMoments(
                f"{self.name} holds no moment of {episode.id}: add it with wd.TrajectoryIngestor, by several steps"
            )
        key = min(times, key=lambda each: abs(times[each] - ts_ns))
        is_ours = any(row.get("file_path") == episode.address for row in own.values())
        query = Moment(episode.id, times[key], 1.0)
        where = None
        if "collection" in store.fields:  # steps are compared with steps, and windows with windows
            same = "=" if own[key].get("collection") == TIMESTEPS else "is distinct from"
            where = f"collection {same} {literal(TIMESTEPS)}"
        wanted = _FIRST_LOOK
        while True:
            looked = min(wanted, len(store))
            ids, distances = store.search(store.get([key])[0], k=looked, where=where)
            rows = zip(store.metadata(ids), distances.tolist(), strict=True)
            moments = _spread(query, self._resolved(rows, opened, is_ours=is_ours), most)
            if len(moments) >= most or len(ids) < looked or looked == len(store) or wanted >= _LONGEST_LOOK:
                return moments
            wanted *= 4

    def _own(self, episode: Episode) -> dict[int, dict[str, Any]]:
        """The vectors of an episode, with what is known of each."""
        store = self._store
        rows = store.scroll(f"episode_id = {literal(episode.id)}", limit=_OWN)
        vectors = {int(row.pop("id")): row for row in rows}
        here = {key: row for key, row in vectors.items() if row.get("file_path") == episode.address}
        if here:
            return here
        if len({row.get("file_path") for row in vectors.values()}) > 1:
            raise NoMoments(
                f"{self.name} has several episodes with the id {episode.id}, and none at this path"
            )
        return vectors

    def _resolved(self, rows: Any, opened: Opened, *, is_ours: bool) -> Iterator[Moment]:
        known: dict[str, Episode | None] = {}
        for row, away in rows:
            name = str(row.get("episode_id", ""))
            if name not in known:
                known[name] = opened(name)
            episode = known[name]
            if episode is None or (is_ours and row.get("file_path") != episode.address):
                continue
            when = _time_of(row, episode)
            if when is not None:
                score = {"cosine": 1 - float(away), "ip": -float(away)}.get(self._store.metric, float(away))
                yield Moment(name, when, score)


def _time_of(row: Mapping[str, Any], episode: Episode) -> int | None:
    """Time of a vector; by the steps of the episode if the index has no times."""
    if row.get("ts_ns") is not None:
        return int(row["ts_ns"])
    step = row.get("step", row.get("window_start"))
    if step is None:
        return None
    try:
        return int(episode.steps.times_ns[int(step)])
    except (NoStepsError, IndexError):
        return None


def _spread(query: Moment, moments: Iterator[Moment], most: int) -> list[Moment]:
    """The nearest, each more than a moment away from those before it."""
    kept = [query]
    for moment in moments:
        if all(moment.episode != k.episode or abs(moment.at_ns - k.at_ns) >= SPREAD_NS for k in kept):
            kept.append(moment)
            if len(kept) > most:
                break
    return kept[1:]


def find_moments(
    thing: Any, folder: Path | None, given: str | os.PathLike[str] | None
) -> Callable[[], Moments] | None:
    """What opens the index of these episodes: the one named, published with them, or beside them; None without."""
    if given is not None:
        return lambda: Moments(open_vectors(given), os.fspath(given))
    if (dataset := as_published(thing)) is not None:
        for name, part in dataset.manifest.artifacts.items():
            if part.kind == VECTOR_KIND:
                return lambda: Moments(dataset.vectors(name), name)
        return None
    if folder is None:
        return None
    folder, inside = Path(os.path.abspath(folder)), list[Path]()  # "." has no name to replace
    with contextlib.suppress(OSError):
        inside = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    near = [folder.with_name(f"{folder.stem}{SUFFIX}"), folder.with_name(f"episodes{SUFFIX}")]
    path = next((path for path in (*inside, *near) if path.is_file()), None)
    return None if path is None else lambda: Moments(open_vectors(path), path.name)


def as_published(thing: Any) -> Dataset | None:
    """The thing itself if it is a published dataset; a caller that has one has imported its module."""
    # Another thread may be importing the module right now.
    dataset_type: Any = getattr(sys.modules.get("warpdata.catalog.dataset"), "Dataset", None)
    return thing if dataset_type is not None and isinstance(thing, dataset_type) else None
