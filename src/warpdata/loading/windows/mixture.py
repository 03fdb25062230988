"""The sample at every position: of one source of windows, or of several by weight."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.statistics import ValueStatistics
from warpdata.errors import SchemaMismatchError, nearest, require_kind, suggests
from warpdata.loading.windows.aligning import Int64s
from warpdata.loading.windows.field import FieldSchema
from warpdata.loading.windows.statistics import FieldStatistics, finished, running_statistics
from warpdata.loading.windows.windows import Windows
from warpdata.ordering.blocks import BlockOrder, BlockShape, ShuffleQuality
from warpdata.ordering.limits import MAX_EPOCH, MAX_POSITION, checked_integer
from warpdata.ordering.mixture import SCHEDULE_VERSION, WeightSchedule, mixture_shares
from warpdata.ordering.splitmix import stream_key

Shuffle = Literal["blocks", "full"] | bool

BLOCK_BYTES = 1 << 20
FEWEST, MOST = 16, 256
"""Samples of a block: enough to read a stretch at once, few enough to mix well."""
IN_PLAY, IMAGES_IN_PLAY = 256, 128
_AHEAD = 2048
"""Positions of an epoch that are looked up at once."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Samples of a stretch of an epoch: of which source, in which epoch of the source, which sample."""

    source: Int64s
    epoch: Int64s
    sample: Int64s

    def __len__(self) -> int:
        return len(self.sample)

    def __getitem__(self, key: slice | NDArray[np.bool_]) -> Chosen:
        return Chosen(self.source[key], self.epoch[key], self.sample[key])

    @staticmethod
    def joined(parts: Sequence[Chosen]) -> Chosen:
        """Several stretches as one."""
        return Chosen(
            *(np.concatenate([getattr(p, n) for p in parts]) for n in ("source", "epoch", "sample"))
        )


class Course(Protocol):
    """All positions of all epochs: a pure function."""

    @property
    def sources(self) -> Sequence[Windows]:
        """The windows that samples come from."""

    @property
    def names(self) -> Sequence[str]:
        """What the sources are called."""

    @property
    def id(self) -> str:
        """The identity of all samples."""

    @property
    def data_id(self) -> str:
        """The identity of the episodes alone, without fields; "" where they grow."""

    def fingerprint(self) -> str:
        """Differs where the order differs, besides seed and epoch."""

    def __len__(self) -> int:
        """Samples of an epoch."""

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch."""

    def quality(self, batch_size: int) -> ShuffleQuality:
        """How far the order is from uniform."""


def window_shape(schema: Mapping[str, FieldSchema], total: int, shuffle: Shuffle) -> BlockShape:
    """The blocks of a shuffle: a function of the fields alone, never of where the bytes are stored."""
    if shuffle is False:
        return BlockShape(total, 0, 1)
    if shuffle == "full":
        return BlockShape(total, 1, 1)
    if shuffle is not True and shuffle != "blocks":
        known = ("blocks", "full")
        raise ValueError(
            f"shuffle is True, 'blocks', 'full' or False, not {shuffle!r}.{nearest(str(shuffle), known)}"
        )
    step = sum(each.sample_bytes // max(1, each.rows) for each in schema.values())
    has_images = any(each.is_image for each in schema.values())
    rows = max(FEWEST, min(MOST, BLOCK_BYTES // max(1, step)))
    return BlockShape(total, rows, IMAGES_IN_PLAY if has_images else IN_PLAY)


class PlainCourse:
    """Windows in a shuffled order; every sample once per epoch."""

    def __init__(self, windows: Windows, seed: int, shuffle: Shuffle, total: int | None = None) -> None:
        self.sources = [windows]
        self.names = [""]
        self._seed = seed
        self.shape = window_shape(windows.schema, len(windows) if total is None else total, shuffle)
        self._orders: dict[int, BlockOrder] = {}
        self._ahead: tuple[int, int, Int64s] = (-1, 0, np.empty(0, np.int64))

    @property
    def id(self) -> str:
        """The identity of the windows; of those that grow, of the samples this course has."""
        windows = self.sources[0]
        return windows.prefix_id(len(self)) if windows.follow else windows.id

    @property
    def data_id(self) -> str:
        """The identity of the episodes; "" where they grow."""
        return "" if self.sources[0].follow else self.sources[0].data_id

    def fingerprint(self) -> str:
        """That of the shape."""
        return self.shape.fingerprint()

    def __len__(self) -> int:
        return self.shape.total_rows

    def order(self, epoch: int) -> BlockOrder:
        """The order of an epoch."""
        found = self._orders.get(epoch)
        if found is None:
            found = BlockOrder(self.shape, self._seed, epoch)
            self._orders = {epoch: found}
        return found

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch."""
        samples = self._rows(epoch, start, stop)
        return Chosen(np.zeros(len(samples), np.int64), np.full(len(samples), epoch, np.int64), samples)

    def _rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """The rows of a stretch; those that follow are found along with it, which costs no more than one."""
        known_epoch, low, rows = self._ahead
        if epoch != known_epoch or not low <= start <= stop <= low + len(rows):
            low, rows = start, self.order(epoch).row_ids(start, max(stop, min(start + _AHEAD, len(self))))
            self._ahead = (epoch, low, rows)
        return rows[start - low : stop - low].copy()

    def at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Epoch and sample at positions that count on over all epochs."""
        epochs, inside = np.divmod(positions, max(1, len(self)))
        samples = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            samples[here] = self.order(epoch).rows_at(inside[here])
        return epochs, samples

    def quality(self, batch_size: int) -> ShuffleQuality:
        """How far the order is from uniform."""
        return self.order(0).quality(batch_size)


_WHOLE = 1 << 30


class Mixture:
    """Several windows with the same fields, each with a weight: `wd.Mixture({"a": (windows_a, 0.7), …})`.

    The samples of a source are spread evenly, so every stretch of an epoch has its share. A source that is used up
    begins its next epoch. An epoch has `length` samples, by default as many as all sources together. `schedule` gives
    other weights from a number of samples on, counted over all epochs: `{100_000: {"a": 0.5, "b": 0.5}}`.
    """

    @suggests
    def __init__(
        self,
        sources: Mapping[str, tuple[Windows, float]],
        *,
        length: int | None = None,
        schedule: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        _check_sources(sources)
        self.names = [str(name) for name in sources]
        self.sources = [windows for windows, _ in sources.values()]
        self.weights = [float(weight) for _, weight in sources.values()]
        self.schedule = self._checked_schedule(schedule or {})
        self._check_fields()
        for _, weights in self.schedule:
            for name, windows, share in zip(self.names, self.sources, mixture_shares(weights), strict=True):
                if share and not len(windows):
                    raise ValueError(f"source {name!r} has no samples")
        everything = sum(map(len, self.sources))
        self.length = (
            everything if length is None else checked_integer("length", length, MAX_POSITION, least=1)
        )

    @classmethod
    def by_static(
        cls, windows: Windows, weights: Mapping[Any, float] | None = None, name: str = "task", **options: Any
    ) -> Mixture:
        """Windows divided by a static item of their episodes, each value with a weight: per task, per robot, …

        Without weights all values have the same share, however many samples each has. What is given none is left out.
        """
        facts = windows.episodes.facts
        column = name if name in facts.column_names else f"static_{name}"
        if column not in facts.column_names:
            raise KeyError(f"no episode has a static item {name!r}.{nearest(name, facts.column_names)}")
        values = facts.column(column).to_pylist()
        if weights is None:
            weights = dict.fromkeys((each for each in values if each is not None), 1.0)
        require_kind("weights", weights, Mapping, "{value: weight}")
        for value in weights:
            if value not in values:
                near = nearest(str(value), sorted({str(each) for each in values}))
                raise KeyError(f"no episode has {name} {value!r}.{near}")
        rows = {value: [row for row, each in enumerate(values) if each == value] for value in weights}
        return cls({str(v): (windows.over(rows[v]), weight) for v, weight in weights.items()}, **options)

    @classmethod
    def by_episode(
        cls,
        windows: Windows,
        weight: Mapping[str, float] | Callable[[Mapping[str, Any]], float],
        **options: Any,
    ) -> Mixture:
        """Windows with a weight per episode: by id (1 where none is given), or a function of its row of facts.

        A sample of an episode of weight 2 comes twice as often as one of an episode of weight 1.
        """
        if isinstance(weight, Mapping):
            for name in weight:
                if name not in windows.ids:
                    raise KeyError(f"no episode {name!r}.{nearest(name, windows.ids)}")
            given = [_weight(weight.get(name, 1.0)) for name in windows.ids]
        else:
            given = [_weight(weight(row)) for row in windows.episodes.facts.to_pylist()]
        groups: dict[float, list[int]] = {}
        for row, each in enumerate(given):
            groups.setdefault(each, []).append(row)
        parts: dict[str, tuple[Windows, float]] = {}
        for each, rows in groups.items():
            part = windows.over(rows)
            if each > 0 and len(part):
                parts[f"x{each!r}".removesuffix(".0")] = (part, each * len(part))
        return cls(parts, **options)

    @classmethod
    def by_sample(
        cls, windows: Windows, weights: Mapping[str, float], *, rest: float = 1.0, **options: Any
    ) -> Mixture:
        """Windows with a weight per sample: of the first condition (as `where` takes it) that holds at its anchor.

        A sample of weight 2 comes twice as often as one of weight 1; those for which none holds have the weight `rest`.
        """
        parts: dict[str, tuple[Windows, float]] = {}
        before = ""
        require_kind("weights", weights, Mapping, "{condition: weight}")
        for condition, weight in [*weights.items(), ("true", rest)]:
            part = windows.holding(f"{before}coalesce(({condition}), false)")
            before += f"not coalesce(({condition}), false) and "
            if weight and len(part):
                name = condition if condition in weights else "rest" if "rest" not in parts else "the rest"
                parts[name] = (part, _weight(weight) * len(part))
        return cls(parts, **options)

    def of_sources(self, sources: Sequence[Windows]) -> Mixture:
        """The same mixture of other windows."""
        made = copy(self)
        made.sources = list(sources)
        return made

    def _checked_schedule(self, given: Mapping[int, Mapping[str, float]]) -> list[tuple[int, list[float]]]:
        """Weights from a position on, in order; the first are those of the sources."""
        found = [(0, self.weights)]
        require_kind("a schedule", given, Mapping, "{number of samples: {source: weight}}")
        for start, weights in sorted(given.items()):
            start = checked_integer("a schedule is by number of samples: it", start, MAX_POSITION)
            require_kind("a stage of the schedule", weights, Mapping, "{source: weight}")
            for name in weights:
                if name not in self.names:
                    raise KeyError(f"the schedule names no source {name!r}.{nearest(name, self.names)}")
            row = [_weight(weights.get(name, 0.0)) for name in self.names]
            found = [row_of for row_of in found if row_of[0] != start] + [(start, row)]
        return found

    def _check_fields(self) -> None:
        first = self.sources[0].schema
        for name, windows in zip(self.names[1:], self.sources[1:], strict=True):
            for field in {*first, *windows.schema}:
                if field not in first or field not in windows.schema:
                    raise SchemaMismatchError(
                        f"field {field!r} is not in all sources of the mixture: {name!r}"
                    )
                a, b = first[field], windows.schema[field]
                if (a.dtype, a.sample_shape) != (b.dtype, b.sample_shape):
                    raise SchemaMismatchError(
                        f"field {field!r} is {b.dtype}{list(b.sample_shape)} in {name!r}, "
                        f"but {a.dtype}{list(a.sample_shape)} in {self.names[0]!r}"
                    )

    @property
    def id(self) -> str:
        """The hash of what all sources are."""
        return sha256_hex(dump_json([[n, w.id] for n, w in zip(self.names, self.sources, strict=True)]))[:32]

    def __len__(self) -> int:
        return self.length

    def quotas(self, epoch: int = 0) -> dict[str, dict[str, float]]:
        """For each source how many samples it gives in an epoch, and how often that goes through it."""
        schedule = WeightSchedule(self.schedule)
        start = checked_integer("epoch", epoch, MAX_EPOCH) * self.length
        given = schedule.given(start + self.length) - schedule.given(start)
        return {
            name: {"samples": int(count), "passes": int(count) / max(1, len(windows))}
            for name, windows, count in zip(self.names, self.sources, given, strict=True)
        }

    def plan(self) -> dict[str, Any]:
        """How the mixture is made again elsewhere, as JSON."""
        return {
            "mixture": [
                {"name": name, "weight": weight, "windows": windows.plan()}
                for name, windows, weight in zip(self.names, self.sources, self.weights, strict=True)
            ],
            "length": self.length,
            "schedule": [[start, row] for start, row in self.schedule],
        }

    def statistics(self, names: Sequence[str], *, progress: bool = False) -> dict[str, FieldStatistics]:
        """Statistics of the fields over all sources, each by its weight."""
        running = [running_statistics(windows, names, progress=progress) for windows in self.sources]
        shares = [float(share) for share in mixture_shares(self.weights)]
        out = {}
        for name in names:
            schema = self.sources[0].schema[name]
            merged: ValueStatistics | None = None
            for found, share in zip(running, shares, strict=True):
                part = found[name][0]
                part.scale(max(1, round(share * _WHOLE / max(1, int(part.count.max(initial=0))))))
                if not share:
                    continue
                if merged is None:
                    merged = part
                else:
                    merged.merge(part)
            assert merged is not None
            out[name] = finished(merged, schema, was_read=any(found[name][1] for found in running))
        return out

    def __repr__(self) -> str:
        listed = ", ".join(
            f"{name}: {weight:g}" for name, weight in zip(self.names, self.weights, strict=True)
        )
        return f"<Mixture {listed}>"


def _check_sources(sources: Any) -> None:
    """Raise unless sources are {name: (windows, weight)} with different names, and none of them grows."""
    if not isinstance(sources, Mapping):
        raise TypeError(f"sources are {{name: (wd.Windows, weight)}}, not {sources!r}")
    if not sources:
        raise ValueError("a mixture has at least one source")
    names: set[str] = set()
    for name, pair in sources.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], Windows):
            raise TypeError(f"source {name!r} is (wd.Windows, weight), not {pair!r}")
        if pair[0].follow:
            raise ValueError(
                f"source {name!r} grows (follow=True), and a mixture has fixed quotas: open its root without follow"
            )
        if str(name) in names:
            raise ValueError(f"duplicate source name: {str(name)!r}")
        names.add(str(name))


def _weight(value: Any) -> float:
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"a weight is a number of 0 or more, not {value!r}")
    return float(value)


class MixtureCourse:
    """The positions of a mixture: epochs follow one another, and every source keeps its own order."""

    def __init__(self, mixture: Mixture, seed: int, shuffle: Shuffle) -> None:
        self._mixture = mixture
        self._weights_at = WeightSchedule(mixture.schedule)
        self.sources = mixture.sources
        self.names = mixture.names
        # Sources with the same samples must not be in step with each other.
        seeds = [stream_key(seed, number) if number else seed for number in range(len(self.sources))]
        self._courses = [PlainCourse(w, s, shuffle) for w, s in zip(self.sources, seeds, strict=True)]

    @property
    def id(self) -> str:
        """The identity of all sources."""
        return self._mixture.id

    @property
    def data_id(self) -> str:
        """The identity of the episodes of all sources."""
        return sha256_hex(dump_json([[n, w.data_id] for n, w in zip(self.names, self.sources, strict=True)]))

    def fingerprint(self) -> str:
        """Differs where weights, schedule, length or the order of a source differ."""
        plans = [course.fingerprint() for course in self._courses]
        parts = [plans, self._mixture.schedule, self._mixture.length, SCHEDULE_VERSION]
        return sha256_hex(dump_json(parts))[:8]

    def __len__(self) -> int:
        return self._mixture.length

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch."""
        first = epoch * len(self)
        source, before = self._weights_at.at(np.arange(first + start, first + stop, dtype=np.int64))
        epochs, samples = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            here = source == number
            epochs[here], samples[here] = self._courses[number].at(before[here])
        return Chosen(source, epochs, samples)

    def quality(self, batch_size: int) -> ShuffleQuality:
        """That of the source with the largest share."""
        largest = int(np.argmax(self._mixture.weights))
        return self._courses[largest].quality(batch_size)
