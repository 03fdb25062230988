"""Running statistics of a signal: clock and values, exact to merge, with quantiles of stated error."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import xxh3_128
from warpdata.bytekit.varint import decode_varints, encode_varints_parts, zigzag_decode
from warpdata.errors import FormatError
from warpdata.timeline.times import ns_between

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_QUANTILE_NAMES = tuple(map(str, QUANTILES))
_COLUMN_NAMES = ("min", "max", "mean", "std", "sum")
RELATIVE_ERROR = 0.02
MAX_CHANNELS = 64
"""Signals of more numbers per record get statistics over all of them together."""

_GAMMA_LOG = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_SMALLEST = 1e-12
GAP_FACTOR = 5.0
"""A pause this many times the usual one is a gap."""


@dataclass(slots=True)
class ClockStatistics:
    """Count, rate, jitter and gaps of a clock, from its timestamps in pieces."""

    count: int = 0
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    _sketch: Sketch = field(default_factory=lambda: Sketch(1))
    _longest: int = 0
    _longest_at: int = 0
    _sum: float = 0.0
    _squares: float = 0.0
    _stated: dict[str, Any] | None = None
    """The result of `to_json`, until more is added: several signals may share a clock."""

    def add(self, stamps: NDArray[np.int64]) -> None:
        """Add the next timestamps."""
        if not len(stamps):
            return
        self._stated = None
        before = [] if self.last_ts_ns is None else [self.last_ts_ns]
        times = np.concatenate([np.array(before, np.int64), stamps])
        pauses = ns_between(times[1:], times[:-1])
        if self.first_ts_ns is None:
            self.first_ts_ns = int(stamps[0])
        self.count += len(stamps)
        self.last_ts_ns = int(stamps[-1])
        if not len(pauses):
            return
        at = int(pauses.argmax())
        if int(pauses[at]) > self._longest:
            self._longest = int(pauses[at])
            self._longest_at = int(times[at])
        as_float = pauses.astype(np.float64)
        self._sum += float(as_float.sum())
        self._squares += float((as_float * as_float).sum())
        self._sketch.add(as_float[:, None])

    def rate_hz(self, missing: float) -> float:
        """The rate as in `to_json`, or `missing` where there are not two times."""
        return float(self.to_json().get("rate_hz", missing))

    def to_json(self) -> dict[str, Any]:
        """Rate per second, jitter as the deviation of the pauses, gaps beyond five usual pauses."""
        if self._stated is None:
            self._stated = self._to_json()
        return dict(self._stated)

    def _to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "count": self.count,
            "first_ts_ns": self.first_ts_ns,
            "last_ts_ns": self.last_ts_ns,
        }
        pauses = self.count - 1
        if pauses < 1:
            return found
        mean = self._sum / pauses
        usual = float(self._sketch.quantiles([0.5])[0, 0])
        found["rate_hz"] = round(1e9 / mean, 6)
        found["jitter_ns"] = round(math.sqrt(max(0.0, self._squares / pauses - mean * mean)), 1)
        found["usual_pause_ns"] = round(usual)
        found["gaps"] = self._sketch.count_above(GAP_FACTOR * usual)
        found["longest_pause_ns"] = self._longest
        found["longest_pause_at_ns"] = self._longest_at
        return found


_KEPT_CLOCKS = 64


class SharedClocks:
    """Statistics of clocks, found once for all signals that have the same times; few are kept."""

    def __init__(self) -> None:
        self._known: dict[bytes, ClockStatistics] = {}

    def of(self, times: NDArray[np.int64]) -> ClockStatistics:
        """Those of all times of a signal."""
        stamps = np.ascontiguousarray(times)
        key = xxh3_128(stamps.data)
        found = self._known.get(key)
        if found is None:
            found = ClockStatistics()
            found.add(stamps)
            if len(self._known) >= _KEPT_CLOCKS:
                self._known.clear()
            self._known[key] = found
        return found


_BATCH_VALUES = 1 << 18


class ValueStatistics:
    """Per channel: min, max, mean, standard deviation, invalid values and quantiles; merging is exact."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        channels = math.prod(shape)
        self.channels = channels if 0 < channels <= MAX_CHANNELS else 1
        self.count = np.zeros(self.channels, np.int64)
        self.invalid = np.zeros(self.channels, np.int64)
        self.low = np.full(self.channels, np.inf)
        self.high = np.full(self.channels, -np.inf)
        self.mean = np.zeros(self.channels)
        self.m2 = np.zeros(self.channels)
        self.total = np.zeros(self.channels)
        self.sketch = Sketch(self.channels)

    @np.errstate(over="ignore", invalid="ignore")  # values near the limits of float64 give null statistics
    def add(self, values: NDArray[Any]) -> None:
        """Add a batch of records."""
        rows = np.asarray(values).reshape(-1, self.channels)
        step = max(1, _BATCH_VALUES // self.channels)
        for start in range(0, len(rows), step):  # a large batch at once would take many times its size
            self._add(rows[start : start + step].astype(np.float64))

    def _add(self, flat: NDArray[np.float64]) -> None:
        self.merge(ValueStatistics._of(flat))

    @staticmethod
    def _of(flat: NDArray[np.float64]) -> ValueStatistics:
        """The statistics of one batch, a column for every channel."""
        finite = np.isfinite(flat)
        other = ValueStatistics.__new__(ValueStatistics)
        other.channels = flat.shape[1]
        is_all = bool(finite.all())
        other.count = np.full(other.channels, len(flat), np.int64) if is_all else finite.sum(axis=0)
        other.invalid = len(flat) - other.count
        if not is_all:
            some = np.maximum(other.count, 1)
            other.low = np.where(finite, flat, np.inf).min(axis=0)
            other.high = np.where(finite, flat, -np.inf).max(axis=0)
            other.total = np.where(finite, flat, 0.0).sum(axis=0)
            other.mean = other.total / some
            centred = np.where(finite, flat - other.mean, 0.0)
        else:
            other.low, other.high, other.total = flat.min(axis=0), flat.max(axis=0), flat.sum(axis=0)
            other.mean = other.total / max(1, len(flat))
            centred = flat - other.mean
        other.m2 = (centred * centred).sum(axis=0)
        other.sketch = Sketch(other.channels)
        other.sketch.add(flat, None if is_all else finite)
        return other

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: ValueStatistics) -> None:
        """Add everything `other` has seen."""
        if self.count.any():
            self._merge_values(other)
        else:
            self.mean, self.m2 = other.mean, other.m2
        self.count, self.invalid = self.count + other.count, self.invalid + other.invalid
        self.total = self.total + other.total
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.sketch.merge(other.sketch)

    def _merge_values(self, other: ValueStatistics) -> None:
        total = self.count + other.count
        some = np.maximum(total, 1)
        delta = other.mean - self.mean
        self.m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / some
        self.mean = np.where(total > 0, self.mean + delta * other.count / some, 0.0)

    def scale(self, factor: int) -> None:
        """Count everything that was seen `factor` times."""
        self.count, self.invalid = self.count * factor, self.invalid * factor
        self.m2, self.total = self.m2 * factor, self.total * factor
        self.sketch.scale(factor)

    def to_json(self) -> dict[str, Any]:
        """JSON for meta.json; channels without a finite value have null."""
        return {
            **self._stated(), "quantile_relative_error": RELATIVE_ERROR, "sketch": self.sketch.to_text(),
        }  # fmt: skip

    def _stated(self) -> dict[str, Any]:
        """What there is a number of for every channel."""
        std = np.sqrt(self.m2 / np.maximum(self.count, 1))
        columns = np.array([self.low, self.high, self.mean, std, self.total])
        quantiles, sketched = self.sketch.quantiles(QUANTILES), self.sketch.counts()
        return {
            **dict(zip(_COLUMN_NAMES, _rows_of_numbers(columns, self.count), strict=True)),
            "count": self.count.tolist(), "invalid": self.invalid.tolist(),
            "quantiles": dict(zip(_QUANTILE_NAMES, _rows_of_numbers(quantiles, sketched), strict=True)),
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Any) -> ValueStatistics | None:
        """Statistics that were recorded, to be merged with others; None where they do not suffice for that."""
        try:
            made = cls.__new__(cls)
            made.count, made.invalid = (
                np.array(found["count"], np.int64),
                np.array(found["invalid"], np.int64),
            )
            made.channels = len(made.count)
            made.low, made.high = _column(found["min"], np.inf), _column(found["max"], -np.inf)
            made.mean, made.total = _column(found["mean"], 0.0), _column(found["sum"], 0.0)
            made.m2 = _column(found["std"], 0.0) ** 2 * made.count
            made.sketch = Sketch.from_text(made.channels, found["sketch"])
        except (KeyError, TypeError, ValueError, FormatError):
            return None
        shapes = {len(each) for each in (made.invalid, made.low, made.high, made.mean, made.total, made.m2)}
        return made if shapes == {made.channels} else None


_FEW_VALUES = 1 << 14


def are_few(rows: int, channels: int) -> bool:
    """Whether `stated_together` takes so many records."""
    return 0 < channels <= MAX_CHANNELS and 0 < rows * channels <= _FEW_VALUES


def stated_together(columns: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
    """`ValueStatistics.to_json` of several signals with as many records, computed in one go.

    Of few numbers each: most of what such statistics cost is calls.
    """
    rows = len(columns[0])
    flat = [np.asarray(values).reshape(rows, -1) for values in columns]
    widths = [each.shape[1] for each in flat]
    with np.errstate(over="ignore", invalid="ignore"):
        all_together = ValueStatistics._of(np.concatenate(flat, axis=1, dtype=np.float64, casting="unsafe"))
    ends = np.cumsum(widths).tolist()
    bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    texts = all_together.sketch.texts(bounds)
    stated = all_together._stated()
    quantiles = stated.pop("quantiles")
    return [
        {
            **{key: values[first:stop] for key, values in stated.items()},
            "quantiles": {key: values[first:stop] for key, values in quantiles.items()},
            "quantile_relative_error": RELATIVE_ERROR, "sketch": text,
        }
        for (first, stop), text in zip(bounds, texts, strict=True)
    ]  # fmt: skip


class Sketch:
    """Counts of values in buckets that grow by a constant factor: any quantile within 2 % of its value."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._new: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._known_edges: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, values: NDArray[np.float64], counted: NDArray[np.bool_] | None = None) -> None:
        """Count a batch of shape [records, channels], all of which is finite where it is `counted`."""
        channels = np.arange(self._channels) * _CHANNEL_STRIDE
        if counted is None:
            # The keys of a channel are between those of its neighbours: many short sorts are one long one.
            keys = np.ascontiguousarray((_bucket_of(values) + channels).T)
        else:
            keys = _bucket_of(values[counted]) + np.broadcast_to(channels, values.shape)[counted]
        keys.sort()
        self._new.append(_counted(keys.reshape(-1)))
        if len(self._new) >= _COMPACT_AFTER:
            self._compact()

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch: exact."""
        self._new += [(other._keys, other._counts), *other._new] if len(other._keys) else other._new
        if len(self._new) >= _COMPACT_AFTER:
            self._compact()

    def scale(self, factor: int) -> None:
        """Count every value `factor` times."""
        self._compact()
        self._counts = self._counts * factor
        self._known_edges = None

    def to_text(self) -> str:
        """The buckets as text: differences of the sorted keys and the counts as varints, in base64."""
        return self.texts([(0, self._channels)])[0]

    def texts(self, bounds: Sequence[tuple[int, int]]) -> list[str]:
        """As text, each stretch [first, stop) of the channels as a sketch of its own."""
        edges, _ = self._edges()
        steps = np.empty_like(self._keys)  # the first of each stretch is written below
        steps[1:] = self._keys[1:] - self._keys[:-1]
        numbers, ends, at = np.empty(2 * len(self._keys), np.uint64), [], 0
        for first, stop in bounds:
            low, high = int(edges[first]), int(edges[stop])
            count = high - low
            if count:
                key = int(self._keys[low]) - first * _CHANNEL_STRIDE
                numbers[at : at + count] = steps[low:high].view(np.uint64)
                numbers[at] = key << 1 if key >= 0 else (-key << 1) - 1  # zigzag
                numbers[at + count : at + 2 * count] = self._counts[low:high].view(np.uint64)
            at += 2 * count
            ends.append(at)
        return [base64.b64encode(each).decode() for each in encode_varints_parts(numbers[:at], ends)]

    @classmethod
    def from_text(cls, channels: int, text: str) -> Sketch:
        """A sketch that was written as text; ValueError or FormatError for other text."""
        numbers = decode_varints(base64.b64decode(text, validate=True))
        if len(numbers) % 2:
            raise ValueError("a sketch has as many keys as counts")
        made = cls(channels)
        half = len(numbers) // 2
        first = zigzag_decode(numbers[: min(1, half)])
        made._keys = np.cumsum(np.concatenate([first, numbers[min(1, half) : half].astype(np.int64)]))
        made._counts = numbers[half:].astype(np.int64)
        if (np.diff(made._keys) <= 0).any() or (made._counts < 1).any():
            raise ValueError("the buckets of a sketch are not in order")
        return made

    def counts(self) -> NDArray[np.int64]:
        """How many values each channel has."""
        edges, ranks = self._edges()
        return np.diff(ranks[edges])

    def quantiles(self, wanted: Sequence[float]) -> NDArray[np.float64]:
        """[quantile, channel]; zero where there are no values."""
        edges, ranks = self._edges()
        totals = np.diff(ranks[edges])
        if not totals.any():
            return np.zeros((len(wanted), self._channels))
        targets = np.maximum(1, np.ceil(np.array(wanted)[:, None] * totals)) + ranks[edges[:-1]]
        at = np.minimum(ranks[1:].searchsorted(targets), len(self._keys) - 1)
        found = _value_of(self._keys[at] - np.arange(self._channels) * _CHANNEL_STRIDE)
        return np.where(totals > 0, found, 0.0)

    def count_above(self, limit: float) -> int:
        """How many values of the first channel are in buckets above `limit`."""
        edges, _ = self._edges()
        keys, counts = self._keys[: edges[1]], self._counts[: edges[1]]
        return int(counts[keys > int(_bucket_of(np.array([[limit]]))[0, 0])].sum())

    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the buckets of each channel begin, with the end behind the last; how many values are before each."""
        self._compact()
        if self._known_edges is None:
            starts = np.arange(self._channels + 1) * _CHANNEL_STRIDE - _CHANNEL_STRIDE // 2
            before = np.concatenate([[0], np.cumsum(self._counts)])
            self._known_edges = self._keys.searchsorted(starts), before
        return self._known_edges

    def _compact(self) -> None:
        if self._new:
            self._known_edges = None
        if len(self._new) == 1 and not len(self._keys):
            self._keys, self._counts = self._new.pop()
        elif self._new:
            keys = np.concatenate([self._keys, *(new[0] for new in self._new)])
            counts = np.concatenate([self._counts, *(new[1] for new in self._new)])
            self._keys, place = np.unique(keys, return_inverse=True)
            self._counts = np.zeros(len(self._keys), np.int64)
            np.add.at(self._counts, place, counts)
            self._new = []


def _counted(found: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different ones of sorted keys, and how often each is there: what `np.unique` finds with fewer calls."""
    first = np.empty(len(found), np.bool_)
    first[:1] = True
    np.not_equal(found[1:], found[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    counts = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(found) - starts[-1:]
    return found[starts], counts


_CHANNEL_STRIDE = 1 << 23
_COMPACT_AFTER = 16
_ZERO_OFFSET = 1 << 20


def _bucket_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ordered integers of finite values: negative ones below 0, tiny ones at 0, positive ones above."""
    size = np.abs(values)
    power = np.log(np.maximum(size, _SMALLEST))
    power /= _GAMMA_LOG
    found = np.ceil(power, out=power).astype(np.int64)
    found += _ZERO_OFFSET
    np.negative(found, out=found, where=values < 0)
    found[size < _SMALLEST] = 0
    return found


@np.errstate(over="ignore")  # beyond float64 there is no middle; such a quantile is null
def _value_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """The middle of each bucket."""
    size = np.exp((np.abs(keys) - _ZERO_OFFSET) * _GAMMA_LOG) * (1 - RELATIVE_ERROR)
    return np.where(keys == 0, 0.0, np.sign(keys) * size)


def _column(numbers: Any, missing: float) -> NDArray[np.float64]:
    return np.array([missing if each is None else float(each) for each in numbers])


def _rows_of_numbers(rows: NDArray[np.float64], counts: NDArray[np.int64]) -> list[list[float | None]]:
    if (counts > 0).all() and np.isfinite(rows).all():
        found: list[list[float | None]] = rows.tolist()
        return found
    return [_numbers(row, counts) for row in rows]


def _numbers(values: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> list[float | None]:
    keep = np.isfinite(values) if counts is None else np.isfinite(values) & (counts > 0)
    if keep.all():
        found: list[float | None] = values.tolist()
        return found
    return [float(value) if good else None for value, good in zip(values, keep, strict=True)]
