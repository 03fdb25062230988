"""Mixtures of sources by weight, their common fields, and the sample at every position of an epoch."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata import loading
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.bytekit.memory import RecycledArrays
from warpdata.errors import SchemaMismatchError, nearest, require_integer, require_kind, suggests
from warpdata.loading.alignment import Int64s
from warpdata.loading.batch import Batch
from warpdata.loading.source import Delivered, RowSource
from warpdata.loading.statistics import FieldStatistics, source_statistics
from warpdata.loading.windows import Windows
from warpdata.ordering.blocks import BlockOrder, ShuffleQuality, stream_key
from warpdata.ordering.epochs import MAX_EPOCH, MAX_POSITION

if TYPE_CHECKING:
    from warpdata.corpora.source import FixedOrderSource

MAX_PERIOD = 1 << 20
"""A schedule repeats after at most this many turns: shares are kept to one part in a million."""
SCHEDULE_VERSION = 2


def mixture_counts(weights: Sequence[float], batches: int) -> list[int]:
    """How many of the first `batches` batches come from each source: within one of its exact share."""
    shares = mixture_shares(weights)
    exact = [share * batches for share in shares]
    counts = [int(value) for value in exact]
    rest = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in rest[: batches - sum(counts)]:
        counts[index] += 1
    return counts


def mixture_shares(weights: Sequence[float]) -> list[Fraction]:
    """The exact share of every source."""
    if (
        not weights
        or not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not any(weights)
    ):
        raise ValueError(f"a mixture needs weights of 0 or more, not all 0: {list(weights)}")
    whole = sum(Fraction(weight) for weight in weights)
    return [Fraction(weight) / whole for weight in weights]


class PeriodicSchedule:
    """A schedule by weight that repeats: the source at any position, and how often each source came before.

    The turns of a source are spread evenly: turn k is at (k + ½) / weight, and turns come in that order, the first
    source of equals. Every period has each source's exact count; weights that do not add up within `MAX_PERIOD` are
    met to one part in that many.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        shares = [share.limit_denominator(MAX_PERIOD) for share in mixture_shares(weights)]
        self.period = math.lcm(*(share.denominator for share in shares))
        if sum(shares) == 1 and self.period <= MAX_PERIOD:
            self.counts = [int(share * self.period) for share in shares]
        else:
            self.period = MAX_PERIOD
            self.counts = mixture_counts(weights, self.period)
        for weight, count in zip(weights, self.counts, strict=True):
            if weight > 0 and not count:
                raise ValueError(f"a weight of {weight} is less than one part in {MAX_PERIOD} of all")
        turns = [np.arange(count) for count in self.counts]
        order = np.argsort(
            np.concatenate([(turn + 0.5) / max(1, len(turn)) for turn in turns]), kind="stable"
        )
        self._source = np.repeat(np.arange(len(turns)), self.counts)[order]
        self._before = np.concatenate(turns)[order]
        self._quotas = np.array(self.counts, np.int64)

    def at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The source at each position, and how many of that source came before."""
        rounds, inside = np.divmod(positions, self.period)
        source = self._source[inside]
        return source, rounds * self._quotas[source] + self._before[inside]

    def given(self, position: int) -> Int64s:
        """How many of each source come before a position."""
        rounds, inside = divmod(position, self.period)
        return rounds * self._quotas + np.bincount(self._source[:inside], minlength=len(self._quotas))


class WeightSchedule:
    """Schedules one after the other: other weights from a position on."""

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]]) -> None:
        self._starts = np.array([start for start, _ in stages], np.int64)
        self._schedules = [PeriodicSchedule(weights) for _, weights in stages]
        base = np.zeros(len(stages[0][1]), np.int64)
        self._bases = [base]
        for number in range(1, len(stages)):
            span = int(self._starts[number] - self._starts[number - 1])
            base = base + self._schedules[number - 1].given(span)
            self._bases.append(base)

    def at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The source at each position, and how many of that source came before."""
        stage = self._starts.searchsorted(positions, "right") - 1
        source, before = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for number in np.unique(stage).tolist():
            here = stage == number
            source[here], inside = self._schedules[number].at(positions[here] - self._starts[number])
            before[here] = inside + self._bases[number][source[here]]
        return source, before

    def given(self, position: int) -> Int64s:
        """How many of each source come before a position."""
        number = int(self._starts.searchsorted(position, "right")) - 1
        return self._bases[number] + self._schedules[number].given(position - int(self._starts[number]))


Shuffle = Literal["blocks", "full"] | bool
_AHEAD = 2048
"""Positions of an epoch that are looked up at once."""


class MixedField(NamedTuple):
    """One field of a mixture: as wide as in its widest source."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """The shape in one sample."""
    has_axis: bool
    is_text: bool
    mask_shape: tuple[int, ...]
    """Axes of the mask of one sample: rows, and those of values of varying length."""
    age_axes: int
    """How many of them ages have."""


class Mixture:
    """Several sources, each with a weight: `wd.Mixture({"a": (windows_a, 0.7), "b": (windows_b, 0.3)})`.

    Sources are windows or open corpora. The samples of a source are spread evenly, so every stretch of an epoch has its
    share. A source that is used up begins its next epoch. An epoch has `length` samples, by default as many as all
    sources together. `schedule` has other weights from a number of samples on, counted over all epochs:
    `{100_000: {"a": 0.5, "b": 0.5}}`.

    Fields of one name are padded to the widest source; a field that a source lacks is zero and masked.
    """

    @suggests
    def __init__(
        self,
        sources: Mapping[str, tuple[RowSource | FixedOrderSource, float]],
        *,
        length: int | None = None,
        schedule: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        pairs = _checked_sources(sources)
        self.names = [name for name, _, _ in pairs]
        self.sources = [source for _, source, _ in pairs]
        self.weights = [weight for _, _, weight in pairs]
        self.schedule = self._checked_schedule(schedule or {})
        for _, weights in self.schedule:
            for name, source, share in zip(self.names, self.sources, mixture_shares(weights), strict=True):
                if share and not len(source):
                    raise ValueError(f"source {name!r} has no samples")
        self.fields = self._common_fields()
        self._arrays = RecycledArrays()
        everything = sum(map(len, self.sources))
        self.length = (
            everything if length is None else require_integer("length", length, MAX_POSITION, least=1)
        )

    @classmethod
    def by_static(
        cls, windows: Windows, weights: Mapping[Any, float] | None = None, name: str = "task", **options: Any
    ) -> Mixture:
        """Windows divided by a static item of their episodes, each value with a weight: per task, per robot, …

        Without weights all values have the same share, however many samples each has. Values without a weight are
        left out.
        """
        values = windows.labels(name)
        if weights is None:
            weights = dict.fromkeys((value for value in values if value is not None), 1.0)
        require_kind("weights", weights, Mapping, "{value: weight}")
        for value in weights:
            if value not in values:
                near = nearest(str(value), sorted({str(known) for known in values}))
                raise KeyError(f"no episode has {name} {value!r}.{near}")
        return cls({str(v): (windows.part_of(v, name), weight) for v, weight in weights.items()}, **options)

    @classmethod
    def by_episode(
        cls,
        windows: Windows,
        weight: Mapping[str, float] | Callable[[Mapping[str, Any]], float],
        **options: Any,
    ) -> Mixture:
        """Windows with a weight per episode: by id (1 for an id without one), or a function of its row of facts.

        A sample of an episode of weight 2 comes twice as often as one of an episode of weight 1.
        """
        if isinstance(weight, Mapping):
            for name in weight:
                if name not in windows.ids:
                    raise KeyError(f"no episode {name!r}.{nearest(name, windows.ids)}")
            weights = [_checked_weight(weight.get(name, 1.0)) for name in windows.ids]
        else:
            weights = [_checked_weight(weight(row)) for row in windows.episodes.facts.to_pylist()]
        groups: dict[float, list[int]] = {}
        for row, value in enumerate(weights):
            groups.setdefault(value, []).append(row)
        parts: dict[str, tuple[Windows, float]] = {}
        for value, rows in groups.items():
            part = windows.over(rows)
            if value > 0 and len(part):
                parts[f"x{value!r}".removesuffix(".0")] = (part, value * len(part))
        return cls(parts, **options)

    @classmethod
    def by_sample(
        cls, windows: Windows, weights: Mapping[str, float], *, rest: float = 1.0, **options: Any
    ) -> Mixture:
        """Windows with a weight per sample: of the first condition (as `where` takes it) that is true at its anchor.

        A sample of weight 2 comes twice as often as one of weight 1; samples without a true condition have the weight
        `rest`.
        """
        parts: dict[str, tuple[Windows, float]] = {}
        before = ""
        require_kind("weights", weights, Mapping, "{condition: weight}")
        for condition, weight in [*weights.items(), ("true", rest)]:
            part = windows.holding(f"{before}coalesce(({condition}), false)")
            before += f"not coalesce(({condition}), false) and "
            if weight and len(part):
                name = condition if condition in weights else "rest" if "rest" not in parts else "the rest"
                parts[name] = (part, _checked_weight(weight) * len(part))
        return cls(parts, **options)

    def _checked_schedule(self, given: Mapping[int, Mapping[str, float]]) -> list[tuple[int, list[float]]]:
        """Weights from a position on, in order; the first are those of the sources."""
        stages = {0: self.weights}
        require_kind("a schedule", given, Mapping, "{number of samples: {source: weight}}")
        for key, weights in given.items():
            start = require_integer("a schedule is by number of samples: it", key, MAX_POSITION)
            require_kind("a stage of the schedule", weights, Mapping, "{source: weight}")
            for name in weights:
                if name not in self.names:
                    raise KeyError(f"the schedule names no source {name!r}.{nearest(name, self.names)}")
            stages[start] = [_checked_weight(weights.get(name, 0.0)) for name in self.names]
        return sorted(stages.items())

    def _common_fields(self) -> dict[str, MixedField]:
        """Every field of any source, as wide as in its widest source; after the transforms of each source."""
        first: dict[str, tuple[str, Delivered]] = {}
        fields: dict[str, MixedField] = {}
        for source_name, source in zip(self.names, self.sources, strict=True):
            for name, own in source.delivered.items():
                schema = source.schema[name]
                mask_shape = schema.mask_shape
                known = fields.get(name)
                if known is None:
                    first[name] = source_name, own
                    fields[name] = MixedField(
                        own.dtype, own.shape, own.has_axis, own.is_text, mask_shape, int(schema.has_axis)
                    )
                    continue
                other_name, other = first[name]
                if not _fit_together(own, other):
                    raise SchemaMismatchError(
                        f"field {name!r} is {own.dtype}{list(own.shape)} in source {source_name!r}, "
                        f"but {other.dtype}{list(other.shape)} in source {other_name!r}",
                        hint="Make types, axes and images alike with dtype=, size= or a transform.",
                    )
                shape = tuple(max(pair) for pair in zip(known.shape, own.shape, strict=True))
                if len(mask_shape) != len(known.mask_shape):
                    raise SchemaMismatchError(
                        f"field {name!r} varies in length in only one of {source_name!r} and {other_name!r}"
                    )
                mask_shape = tuple(max(pair) for pair in zip(known.mask_shape, mask_shape, strict=True))
                fields[name] = known._replace(shape=shape, mask_shape=mask_shape)
        return fields

    @property
    def id(self) -> str:
        """The hash of all sources and of the padded shapes."""
        return sha256_hex(dump_json([[n, w.id] for n, w in zip(self.names, self.sources, strict=True)]))[:32]

    @property
    def data_id(self) -> str:
        """The hash of the data of all sources."""
        return sha256_hex(dump_json([[n, w.data_id] for n, w in zip(self.names, self.sources, strict=True)]))

    def __len__(self) -> int:
        return self.length

    def quotas(self, epoch: int = 0) -> dict[str, dict[str, float]]:
        """How many samples each source has in an epoch, and how often that goes through the source."""
        schedule = WeightSchedule(self.schedule)
        start = require_integer("epoch", epoch, MAX_EPOCH) * self.length
        given = schedule.given(start + self.length) - schedule.given(start)
        return {
            name: {"samples": int(count), "passes": int(count) / max(1, len(source))}
            for name, source, count in zip(self.names, self.sources, given, strict=True)
        }

    def plan(self) -> dict[str, Any]:
        """A description as JSON from which the mixture can be made again."""
        return {
            "mixture": [
                {"name": name, "weight": weight, "windows": source.plan()}
                for name, source, weight in zip(self.names, self.sources, self.weights, strict=True)
            ],
            "length": self.length,
            "schedule": [[start, row] for start, row in self.schedule],
        }

    def statistics(self, names: Sequence[str], *, progress: bool = False) -> dict[str, FieldStatistics]:
        """Statistics of the fields over all sources, each by its weight; for fields of one width."""
        for name in names:
            if name not in self.fields:
                raise KeyError(f"no field {name!r}.{nearest(name, self.fields)}")
        return source_statistics(self.with_shares(self.sources), names, progress=progress)

    def with_shares(self, sources: Sequence[RowSource]) -> list[tuple[RowSource, float | None]]:
        """Sources, each with its share."""
        return [(s, float(share)) for s, share in zip(sources, mixture_shares(self.weights), strict=True)]

    def join(self, parts: Sequence[Batch], source: Int64s) -> Batch:
        """Batches of some sources as one with all fields; `source` is the number of the source of each sample."""
        count, used = len(source), np.unique(source).tolist() or [0]
        places = [np.flatnonzero(source == number) for number in used]

        def collect(shape: tuple[int, ...], dtype: Any, arrays: Sequence[Any]) -> Any:
            """Arrays at their places, padded with zeros at the end of every axis."""
            out = self._arrays.empty((count, *shape), np.dtype(dtype))
            if any(array is None or array.shape[1:] != shape for array in arrays):
                out[...] = "" if out.dtype.hasobject else 0
            for here, array in zip(places, arrays, strict=True):
                if array is not None and len(array):
                    where: Any = (here, *(slice(0, size) for size in array.shape[1:]))
                    out[where] = array
            return out

        values, masks, ages, dims = {}, {}, {}, {}
        for name, field in self.fields.items():
            having = [part if name in part else None for part in parts]
            ages_shape = field.mask_shape[: field.age_axes]
            values[name] = collect(field.shape, field.dtype, [p and p[name] for p in having])
            masks[name] = collect(field.mask_shape, np.bool_, [p and p.mask[name] for p in having])
            ages[name] = collect(ages_shape, np.int64, [p and p.age_ns[name] for p in having])
            row_shape = field.shape[1:] if field.has_axis else field.shape
            if len(row_shape) == 1 and not field.is_text:
                known = [p and np.ones((len(p.sample_id), p[name].shape[-1]), np.bool_) for p in having]
                dims[name] = collect(row_shape, np.bool_, known)
        ids, times, episodes = (
            collect((), np.int64, [getattr(part, name) for part in parts])
            for name in ("sample_id", "ts_ns", "episode")
        )
        return Batch(values, masks, ages, ids, times, episodes, source=source, dims=dims)

    def __repr__(self) -> str:
        pairs = zip(self.names, self.weights, strict=True)
        return f"<Mixture {', '.join(f'{name}: {weight:g}' for name, weight in pairs)}>"


def _fit_together(a: Delivered, b: Delivered) -> bool:
    """Whether two fields can be padded to one: same type and axes, and images of one shape."""
    kind = (a.dtype, a.is_text, a.has_axis, len(a.shape))
    if kind != (b.dtype, b.is_text, b.has_axis, len(b.shape)):
        return False
    if a.is_ragged and b.is_ragged:  # padded to the longer one
        return a.row_shape[1:] == b.row_shape[1:]
    return len(a.row_shape) <= 1 or a.row_shape == b.row_shape


def _checked_sources(sources: Any) -> list[tuple[str, RowSource, float]]:
    """Name, source and weight of each; names differ and no source grows."""
    if not isinstance(sources, Mapping):
        raise TypeError(f"sources are {{name: (wd.Windows, weight)}}, not {sources!r}")
    if not sources:
        raise ValueError("a mixture has at least one source")
    checked: list[tuple[str, RowSource, float]] = []
    for name, pair in sources.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"source {name!r} is (wd.Windows, weight), not {pair!r}")
        source = as_source(pair[0], f"source {name!r}")
        if source.follow:
            raise ValueError(
                f"source {name!r} grows (follow=True), and a mixture has fixed quotas: open its root without follow"
            )
        if str(name) in [known for known, _, _ in checked]:
            raise ValueError(f"duplicate source name: {str(name)!r}")
        checked.append((str(name), source, float(pair[1])))
    return checked


def as_source(given: Any, what: str = "a loader") -> RowSource:
    """Windows as they are, an open corpus as a source of its rows."""
    if isinstance(given, RowSource):
        return given
    if not hasattr(given, "open_rows"):
        raise TypeError(
            f"{what} is over wd.Windows, an open corpus or a wd.Mixture, not {type(given).__name__}"
        )
    source: RowSource = loading.CorpusSource(given)  # the module is loaded here: few need corpora
    return source


def _checked_weight(value: Any) -> float:
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"a weight is a number of 0 or more, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Samples of a stretch of an epoch: the source, the epoch of the source, and the sample of each."""

    source: Int64s
    epoch: Int64s
    sample: Int64s

    def __len__(self) -> int:
        return len(self.sample)

    def __getitem__(self, key: slice | NDArray[np.bool_]) -> Chosen:
        return Chosen(self.source[key].copy(), self.epoch[key].copy(), self.sample[key].copy())

    @staticmethod
    def join(parts: Sequence[Chosen]) -> Chosen:
        """Several stretches as one."""
        names = ("source", "epoch", "sample")
        return Chosen(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class SampleOrder:
    """The sample at every position of every epoch of a source or a mixture: a pure function.

    Of one source every sample comes once per epoch. The epochs of a mixture follow one another, and every source keeps
    its own order.
    """

    def __init__(
        self, source: RowSource | Mixture, seed: int, shuffle: Shuffle, total: int | None = None
    ) -> None:
        self._mixture = source if isinstance(source, Mixture) else None
        self.sources = source.sources if isinstance(source, Mixture) else [source]
        self.names = source.names if isinstance(source, Mixture) else [""]
        totals = [len(each) if total is None else total for each in self.sources]
        shares = [1.0]
        if isinstance(source, Mixture):  # the largest of each source in any stage of the schedule
            stages = [mixture_shares(weights) for _, weights in source.schedule]
            most = [float(max(each)) for each in zip(*stages, strict=True)]
            shares = [each / sum(most) for each in most]
        self._shapes = [
            each.block_shape(count, shuffle, share)
            for each, count, share in zip(self.sources, totals, shares, strict=True)
        ]
        # Sources with the same samples must not be in step with each other.
        self._seeds = [stream_key(seed, number) if number else seed for number in range(len(self.sources))]
        self._schedule = None if self._mixture is None else WeightSchedule(self._mixture.schedule)
        self._ahead: tuple[int, int, Chosen | None] = (-1, 0, None)

    def __len__(self) -> int:
        return self._shapes[0].total_rows if self._mixture is None else self._mixture.length

    @property
    def id(self) -> str:
        """The identity of all samples; of windows that grow, of the first samples."""
        source = self.sources[0]
        if self._mixture is None and isinstance(source, Windows) and source.follow:
            return source.prefix_id(len(self))
        return source.id if self._mixture is None else self._mixture.id

    @property
    def data_id(self) -> str:
        """The identity of the data alone; "" if it grows."""
        if self._mixture is not None:
            return self._mixture.data_id
        return "" if self.sources[0].follow else self.sources[0].data_id

    def fingerprint(self) -> str:
        """Differs if the order differs, besides seed and epoch."""
        plans = [shape.fingerprint() for shape in self._shapes]
        if self._mixture is None:
            return plans[0]
        return sha256_hex(dump_json([plans, self._mixture.schedule, self._mixture.length, SCHEDULE_VERSION]))[
            :8
        ]

    def block_rows(self, number: int) -> int:
        """Samples of a source whose images are decoded together: a block, if those in play fit the cache."""
        pairs = zip(self._shapes, self.sources, strict=True)
        held = sum(
            (shape.block_rows + source.more_rows) * shape.blocks_in_play * source.row_bytes
            for shape, source in pairs
        )
        return max(1, self._shapes[number].block_rows) if held <= BLOCK_CACHE.max_bytes else 1

    def chosen(self, epoch: int, start: int, stop: int) -> Chosen:
        """The samples at positions [start, stop) of an epoch; following ones are looked up along with them."""
        known_epoch, low, ahead = self._ahead
        if ahead is None or epoch != known_epoch or not low <= start <= stop <= low + len(ahead):
            low, ahead = start, self._look_up(epoch, start, max(stop, min(start + _AHEAD, len(self))))
            self._ahead = (epoch, low, ahead)
        return ahead[start - low : stop - low]

    def _look_up(self, epoch: int, start: int, stop: int) -> Chosen:
        positions = np.arange(start, stop, dtype=np.int64)
        if self._schedule is None:
            samples = BlockOrder(self._shapes[0], self._seeds[0], epoch).rows_at(positions)
            return Chosen(np.zeros(len(samples), np.int64), np.full(len(samples), epoch, np.int64), samples)
        source, before = self._schedule.at(epoch * len(self) + positions)
        epochs, samples = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            here = np.flatnonzero(source == number)
            epochs[here], inside = np.divmod(before[here], max(1, self._shapes[number].total_rows))
            for own in np.unique(epochs[here]).tolist():
                mine = epochs[here] == own
                order = BlockOrder(self._shapes[number], self._seeds[number], own)
                samples[here[mine]] = order.rows_at(inside[mine])
        return Chosen(source, epochs, samples)

    def quality(self, batch_size: int) -> ShuffleQuality:
        """How far the order is from uniform; of a mixture, that of the source with the largest share."""
        largest = 0 if self._mixture is None else int(np.argmax(self._mixture.weights))
        return BlockOrder(self._shapes[largest], self._seeds[largest], 0).quality(batch_size)
