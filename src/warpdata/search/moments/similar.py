"""Moments like a given one, near-duplicate episodes and novelty, all from one index of windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import code_name
from warpdata.errors import DatasetError
from warpdata.search.moments.behaviour import CHANNELS, Behaviour, Channels
from warpdata.search.moments.embedders import Scale, WindowEmbedder, resample
from warpdata.search.moments.moments import EmbedOptions, Vectors
from warpdata.search.store import VectorStore

Floats = NDArray[np.float32]

_POINTS = 32
_BAND = 5
"""How many of the moments two motions may be apart in time while they are compared."""
_RERANKED = 8
"""So many windows per wanted hit are looked up; many of them overlap."""
_COMPARED = 4
"""So many moments per wanted hit are compared step by step."""
_DUPLICATE_SHARE = 0.8
_DUPLICATE_DISTANCE = 0.05
"""A window is a copy if it is nearer than this part of the usual distance to the nearest other episode."""


@dataclass(frozen=True, slots=True)
class SimilarMoment:
    """A moment [t0_ns, t1_ns] of an episode, and how far it is from the given one: smaller is more similar."""

    episode_id: str
    t0_ns: int
    t1_ns: int
    distance: float


class MomentIndex:
    """An index of windows made by `wd.embed(..., window_s=...)`, with the episodes it is about."""

    def __init__(
        self,
        store: VectorStore,
        episodes: Episodes,
        embedder: Any = None,
        revision: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._store, self._episodes, notes = store, episodes, store.notes
        if "window_s" not in str(notes.get("options", "")) or "end_ns" not in store.fields:
            raise DatasetError(
                f"{store.stats()['path']} is no index of windows",
                hint="Make one: wd.embed(source, 'motion', per='window', window_s=1.0, stride_s=0.5).",
            )
        self._scale = Scale.parse(notes.get("scale"))
        self._channels = Channels.parse(notes.get(CHANNELS))
        options = parse_json_object(str(notes["options"]).encode())
        self._options = EmbedOptions(**options, batch_size=batch_size)
        self._embedder = self._matching(str(notes["embedder"]), embedder, revision)

    def _matching(self, made_by: str, given: Any, revision: str | None) -> Any:
        """The embedder of the index; another one is refused by name."""
        if given is not None and not isinstance(given, str | dict):
            named = revision or code_name(given)
            if named != made_by:
                raise ValueError(f"embedder mismatch: the index was made by {made_by}, got {named}")
            return given
        weights: dict[str, float] = {}
        for part in made_by.split("+"):
            weight, star, name = part.partition("*")
            weights[name if star else weight] = float(weight) if star else 1.0
        try:
            built_in = WindowEmbedder.named(weights)
        except ValueError:
            raise ValueError(f"the index was made by {made_by}: give embedder= the same function") from None
        if given is not None and WindowEmbedder.named(given).name != built_in.name:
            raise ValueError(f"embedder mismatch: the index was made by {made_by}, got {given}")
        return replace(built_in, scale=self._scale)

    def _windows(self, episode_id: str, t0_ns: int, t1_ns: int) -> dict[str, NDArray[Any]]:
        """The steps of a moment by channel, as one window."""
        options = self._options
        behaviour = Behaviour.of(
            self._episodes.open(episode_id), options.rate_hz, options.clock, options.signals
        )
        low, high = np.searchsorted(behaviour.times_ns, [t0_ns, t1_ns])
        if high - low < 2:
            first, last = int(behaviour.times_ns[0]), int(behaviour.times_ns[-1])
            raise ValueError(f"no steps between {t0_ns} and {t1_ns} ns; the episode has {first} to {last}")
        signals = self._channels.ordered(behaviour.signals)
        return {name: np.asarray(signal[low:high])[None] for name, signal in signals.items()}

    def find(self, episode_id: str, t0_ns: int, t1_ns: int, k: int = 5) -> list[SimilarMoment]:
        """The k most similar moments, not those of the query's own; overlapping ones count once.

        Candidates are put in the order of dynamic time warping of their scaled numbers, if they have any.
        """
        if k < 1 or t1_ns <= t0_ns:
            raise ValueError(f"k is at least 1 and t0_ns before t1_ns, not {k}, {t0_ns} and {t1_ns}")
        query, wanted = self._windows(episode_id, t0_ns, t1_ns), _RERANKED * k
        self._scale.check(query)
        takes = getattr(self._embedder, "takes", lambda _: True)
        seen = {name: values for name, values in query.items() if takes(values.shape[2:])}
        vector = Vectors(self._embedder, self._options.batch_size, self._channels, episode_id).of(seen)[0]
        if (count := len(vector)) != (dim := self._store.dim):
            fact = f"the embedder gave {count} numbers, the index has {dim}"
            raise ValueError(f"{fact}: give batch_size= if it takes several moments at once")
        while True:
            ids, distances, rows = self._store.search(
                vector, min(wanted, len(self._store)), columns=["episode_id", "ts_ns", "end_ns"]
            )
            moments: list[SimilarMoment] = []
            for row, away in zip(rows, distances.tolist(), strict=True):
                moment = SimilarMoment(row["episode_id"], row["ts_ns"], row["end_ns"], float(away))
                own = SimilarMoment(episode_id, t0_ns, t1_ns, 0.0)
                near = (other for other in (own, *moments) if other.episode_id == moment.episode_id)
                if not any(moment.t0_ns < each.t1_ns and each.t0_ns < moment.t1_ns for each in near):
                    moments.append(moment)
            if len(moments) >= _COMPARED * k or len(ids) == len(self._store) or wanted > 1 << 14:
                break
            wanted *= 4
        if not self._scale.numbers:
            return moments[:k]
        first, compared = _centred(self._scale.scaled(query)), []
        for moment in moments[: _COMPARED * k]:
            windows = self._windows(moment.episode_id, moment.t0_ns, moment.t1_ns)
            second = _centred(self._scale.scaled(windows))
            compared.append(replace(moment, distance=warped_distance(first, second)))
        return sorted(compared, key=lambda moment: moment.distance)[:k]

    def nearest_others(self) -> Iterator[tuple[str, NDArray[np.float64], list[str]]]:
        """For each episode the distance of every window to the nearest of another episode, and its id."""
        ids = self._store.ids
        names = [row["episode_id"] for row in self._store.metadata(ids, columns=["episode_id"])]
        mine: dict[str, list[int]] = {}
        for vector_id, name in zip(ids.tolist(), names, strict=True):
            mine.setdefault(name, []).append(vector_id)
        name_of = dict(zip(ids.tolist(), names, strict=True))
        for name, own in mine.items():
            away, nearest = np.full(len(own), np.inf), [""] * len(own)
            count = min(len(own) + 1, len(self._store))
            found, distances = self._store.search(self._store.get(own), count)
            for number in range(len(own)):
                for vector_id, distance in zip(found[number].tolist(), distances[number], strict=True):
                    if vector_id >= 0 and name_of[vector_id] != name:
                        away[number], nearest[number] = distance, name_of[vector_id]
                        break
            yield name, away, nearest

    def duplicates(self) -> list[tuple[str, str, float]]:
        """Pairs of episodes of which most windows are copies: both ids and the share of copied windows."""
        found = list(self.nearest_others())
        finite = [away[np.isfinite(away)] for _, away, _ in found]
        usual = float(np.median(np.concatenate([np.zeros(0), *finite]))) if finite else 0.0
        pairs: dict[tuple[str, str], float] = {}
        for name, away, others in found:
            limit = _DUPLICATE_DISTANCE * usual
            copied = [other for other, distance in zip(others, away, strict=True) if distance <= limit]
            for other in set(copied):
                share = copied.count(other) / len(away)
                if share >= _DUPLICATE_SHARE:
                    pair = (min(name, other), max(name, other))
                    pairs[pair] = max(share, pairs.get(pair, 0.0))
        return sorted(((a, b, share) for (a, b), share in pairs.items()), key=lambda pair: (-pair[2], pair))

    def novelty(self) -> list[tuple[str, float]]:
        """Episodes by their mean distance to the nearest other one, the most unusual first."""
        scores = [(name, float(away.mean())) for name, away, _ in self.nearest_others()]
        return sorted(scores, key=lambda score: (-score[1], score[0]))


def _centred(values: Floats) -> Floats:
    points = resample(values, _POINTS)[0]
    return np.asarray(points - points.mean(axis=0), np.float32)


def warped_distance(first: Floats, second: Floats) -> float:
    """Mean squared distance of two motions of equal length along their best alignment within a band."""
    count = len(first)
    apart = np.square(first[:, None] - second[None]).mean(axis=2)
    costs = np.full((count + 1, count + 1), np.inf)
    costs[0, 0] = 0
    for row in range(count):
        for column in range(max(0, row - _BAND), min(count, row + _BAND + 1)):
            before = min(costs[row, column], costs[row, column + 1], costs[row + 1, column])
            costs[row + 1, column + 1] = apart[row, column] + before
    return float(costs[count, count] / count)
