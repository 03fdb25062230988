"""Running statistics of a signal: clock and values, exact to merge, with quantiles of stated error."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import xxh3_128
from warpdata.bytekit.varint import decode_varints, encode_varints_bounds, zigzag_decode
from warpdata.errors import FormatError
from warpdata.timeline.times import ns_between

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
RELATIVE_ERROR = 0.02
MAX_CHANNELS = 64
"""Signals of more numbers per record get statistics over all of them together."""
GAP_FACTOR = 5.0
"""A pause this many times the usual one is a gap."""

_GAMMA_LOG = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_SMALLEST = 1e-12
_CHANNEL_STRIDE = 1 << 23
_ZERO_OFFSET = 1 << 20
_COMPACT_AFTER = 16
_BATCH_VALUES = 1 << 18
_KEPT_CLOCKS = 64


class ClockStatistics:
    """Count, rate, jitter and gaps of a clock, from its timestamps in pieces."""

    def __init__(self) -> None:
        self.count = 0
        self.first_ts_ns: int | None = None
        self.last_ts_ns: int | None = None
        self._sketch = Sketch(1)
        self._longest = self._longest_at = 0
        self._sum = self._squares = 0.0
        self._json: dict[str, Any] | None = None

    @classmethod
    def of(cls, stamps: NDArray[np.int64]) -> ClockStatistics:
        """The statistics of these times."""
        clock = cls()
        clock.add(stamps)
        return clock

    def add(self, stamps: NDArray[np.int64]) -> None:
        """Add the next timestamps."""
        if not len(stamps):
            return
        self._json = None
        before = stamps[:0] if self.last_ts_ns is None else np.array([self.last_ts_ns], np.int64)
        times = np.concatenate([before, stamps])
        pauses = ns_between(times[1:], times[:-1])
        if self.first_ts_ns is None:
            self.first_ts_ns = int(stamps[0])
        self.count += len(stamps)
        self.last_ts_ns = int(stamps[-1])
        if not len(pauses):
            return
        at = int(pauses.argmax())
        if int(pauses[at]) > self._longest:
            self._longest, self._longest_at = int(pauses[at]), int(times[at])
        as_float = pauses.astype(np.float64)
        self._sum += float(as_float.sum())
        self._squares += float((as_float * as_float).sum())
        self._sketch.add(as_float[:, None])

    def rate_hz(self, missing: float) -> float:
        """The rate as in `to_json`, or `missing` where there are not two times."""
        return float(self.to_json().get("rate_hz", missing))

    def to_json(self) -> dict[str, Any]:
        """Rate per second, jitter as the deviation of the pauses, gaps beyond five usual pauses."""
        if self._json is None:  # many signals share a clock
            self._json = self._made_json()
        return dict(self._json)

    def _made_json(self) -> dict[str, Any]:
        facts = {"count": self.count, "first_ts_ns": self.first_ts_ns, "last_ts_ns": self.last_ts_ns}
        pauses = self.count - 1
        if pauses < 1:
            return facts
        mean = self._sum / pauses
        usual = float(self._sketch.quantiles([0.5])[0, 0])
        return {
            **facts,
            "rate_hz": round(1e9 / mean, 6),
            "jitter_ns": round(math.sqrt(max(0.0, self._squares / pauses - mean * mean)), 1),
            "usual_pause_ns": round(usual),
            "gaps": self._sketch.count_above(GAP_FACTOR * usual),
            "longest_pause_ns": self._longest,
            "longest_pause_at_ns": self._longest_at,
        }


class SharedClocks:
    """Statistics of clocks, computed once for all signals that have the same times; few are kept."""

    def __init__(self) -> None:
        self._known: dict[bytes, ClockStatistics] = {}

    def of(self, times: NDArray[np.int64]) -> ClockStatistics:
        """Those of all times of a signal."""
        stamps = np.ascontiguousarray(times)
        key = xxh3_128(stamps.data)
        if key not in self._known:
            if len(self._known) >= _KEPT_CLOCKS:
                self._known.clear()
            self._known[key] = ClockStatistics.of(stamps)
        return self._known[key]


class ValueStatistics:
    """Per channel: min, max, mean, standard deviation, invalid values and quantiles; merging is exact."""

    def __init__(self, shape: tuple[int, ...], most_channels: int = MAX_CHANNELS) -> None:
        channels = math.prod(shape)
        self.channels = channels if 0 < channels <= most_channels else 1
        self.count = np.zeros(self.channels, np.int64)
        self.invalid = np.zeros(self.channels, np.int64)
        self.low = np.full(self.channels, np.inf)
        self.high = np.full(self.channels, -np.inf)
        self.mean, self.m2, self.total = (np.zeros(self.channels) for _ in range(3))
        self.sketch = Sketch(self.channels)

    @np.errstate(over="ignore", invalid="ignore")  # values near the limits of float64 give null statistics
    def add(self, values: NDArray[Any]) -> None:
        """Add a batch of records."""
        rows = np.asarray(values).reshape(-1, self.channels)
        step = max(1, _BATCH_VALUES // self.channels)
        for start in range(0, len(rows), step):  # a large batch at once would take many times its size
            self._add(rows[start : start + step].astype(np.float64))

    def _add(self, flat: NDArray[np.float64]) -> None:
        finite = np.isfinite(flat)
        other, is_all = ValueStatistics((self.channels,), self.channels), bool(finite.all())
        low, high, known = flat, flat, flat
        if not is_all:
            low, high, known = (np.where(finite, flat, missing) for missing in (np.inf, -np.inf, 0.0))
        other.count = finite.sum(axis=0)
        other.invalid = len(flat) - other.count
        other.low, other.high, other.total = low.min(axis=0), high.max(axis=0), _sum_rows(known)
        other.mean = other.total / np.maximum(other.count, 1)
        centred = flat - other.mean if is_all else np.where(finite, flat - other.mean, 0.0)
        other.m2 = _sum_rows(centred * centred)
        other.sketch.add(flat, None if is_all else finite)
        if self.count.any() or self.invalid.any():
            self.merge(other)
        else:  # most signals of an episode are one batch
            self.__dict__.update(other.__dict__)

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: ValueStatistics) -> None:
        """Add everything `other` has seen."""
        total = self.count + other.count
        some = np.maximum(total, 1)
        delta = np.where((self.count > 0) & (other.count > 0), other.mean - self.mean, 0.0)
        self.m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / some
        self.mean = np.where(self.count > 0, self.mean + delta * other.count / some, other.mean)
        self.count, self.invalid = total, self.invalid + other.invalid
        self.total = self.total + other.total
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.sketch.merge(other.sketch)

    def scale(self, factor: int) -> None:
        """Count everything that was seen `factor` times."""
        self.count, self.invalid = self.count * factor, self.invalid * factor
        self.m2, self.total = self.m2 * factor, self.total * factor
        self.sketch.scale(factor)

    def to_json(self) -> dict[str, Any]:
        """JSON for meta.json; channels without a finite value have null."""
        return self._split_to_json([self.channels])[0]

    def _split_to_json(self, widths: Sequence[int]) -> list[dict[str, Any]]:
        """JSON of runs of this many channels each."""
        names = ["min", "max", "mean", "std", "sum", *map(str, QUANTILES)]
        deviation = np.sqrt(self.m2 / np.maximum(self.count, 1))
        columns = np.vstack(
            [self.low, self.high, self.mean, deviation, self.total, *self.sketch.quantiles(QUANTILES)]
        )
        keep, lists = np.isfinite(columns) & (self.count > 0), columns.tolist()
        if not keep.all():
            lists = [
                [number if is_kept else None for number, is_kept in zip(*row, strict=True)]
                for row in zip(lists, keep, strict=True)
            ]
        parts = []
        for stop, width, sketch in zip(
            np.cumsum(widths).tolist(), widths, self.sketch.to_texts(widths), strict=True
        ):
            run = slice(stop - width, stop)
            numbers = {name: row[run] for name, row in zip(names, lists, strict=True)}
            part: dict[str, Any] = {name: numbers[name] for name in names[:5]}
            part |= {"count": self.count[run].tolist(), "invalid": self.invalid[run].tolist()}
            part |= {"quantiles": {name: numbers[name] for name in names[5:]}}
            parts.append({**part, "quantile_relative_error": RELATIVE_ERROR, "sketch": sketch})
        return parts

    @classmethod
    def of_tables(cls, tables: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
        """JSON of the statistics of small tables of as many records, made together: most of the time goes by call."""
        rows = [np.asarray(table).reshape(len(table), -1) for table in tables]
        widths = [flat.shape[1] for flat in rows]
        joined = cls((sum(widths),), sum(widths))
        with np.errstate(over="ignore", invalid="ignore"):
            joined._add(np.concatenate([flat.astype(np.float64) for flat in rows], axis=1))
        return joined._split_to_json(widths)

    @classmethod
    def from_json(cls, entry: Any) -> ValueStatistics | None:
        """Statistics that were recorded, to be merged with others; None where they do not suffice for that."""
        try:
            count = np.array(entry["count"], np.int64)
            made = cls((len(count),))
            made.channels, made.count, made.invalid = len(count), count, np.array(entry["invalid"], np.int64)
            made.low, made.high = _column(entry["min"], np.inf), _column(entry["max"], -np.inf)
            made.mean, made.total = _column(entry["mean"], 0.0), _column(entry["sum"], 0.0)
            made.m2 = _column(entry["std"], 0.0) ** 2 * count
            made.sketch = Sketch.from_text(len(count), entry["sketch"])
        except (KeyError, TypeError, ValueError, FormatError):
            return None
        columns = (made.invalid, made.low, made.high, made.mean, made.total, made.m2)
        return made if {len(column) for column in columns} == {len(count)} else None


def _sum_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of columns, added row by row however many there are: numpy adds adjacent values in pairs."""
    rows = np.ascontiguousarray(np.repeat(values, 2, axis=1) if values.shape[1] == 1 else values)
    return np.asarray(rows.sum(axis=0)[: values.shape[1]])


def _column(numbers: Any, missing: float) -> NDArray[np.float64]:
    return np.array([missing if number is None else float(number) for number in numbers])


class Sketch:
    """Counts of values in buckets that grow by a constant factor: any quantile within 2 % of its value."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._new: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, values: NDArray[np.float64], counted: NDArray[np.bool_] | None = None) -> None:
        """Count a batch of shape [records, channels], all of which is finite where it is `counted`."""
        keys = _bucket_of(values) + np.arange(self._channels) * _CHANNEL_STRIDE
        self._new.append(np.unique(keys if counted is None else keys[counted], return_counts=True))
        if len(self._new) >= _COMPACT_AFTER:
            self._compact()

    def merge(self, other: Sketch) -> None:
        """Add the counts of another sketch: exact."""
        self._new += [(other._keys, other._counts), *other._new]
        if len(self._new) >= _COMPACT_AFTER:
            self._compact()

    def scale(self, factor: int) -> None:
        """Count every value `factor` times."""
        self._compact()
        self._counts = self._counts * factor

    def to_texts(self, widths: Sequence[int]) -> list[str]:
        """The buckets of runs of channels as text: differences of sorted keys and counts as varints, in base64."""
        self._compact()
        starts = np.cumsum([0, *widths]) * _CHANNEL_STRIDE
        edges, runs = self._keys.searchsorted(starts - _CHANNEL_STRIDE // 2).tolist(), []
        for low, high, start in zip(edges, edges[1:], starts.tolist(), strict=False):
            keys = self._keys[low:high] - start
            first = [key << 1 if key >= 0 else (-key << 1) - 1 for key in keys[:1].tolist()]  # zigzag
            runs += [np.array(first, np.int64), np.diff(keys), self._counts[low:high]]
        data, bounds = encode_varints_bounds(np.concatenate(runs).astype(np.uint64))
        ends = [int(bounds[2 * edge]) for edge in edges]
        return [base64.b64encode(data[low:high]).decode() for low, high in pairwise(ends)]

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

    def quantiles(self, wanted: Sequence[float]) -> NDArray[np.float64]:
        """[quantile, channel]; zero where there are no values."""
        self._compact()
        starts = np.arange(self._channels + 1) * _CHANNEL_STRIDE - _CHANNEL_STRIDE // 2
        edges = self._keys.searchsorted(starts)
        ranks = np.concatenate([[0], np.cumsum(self._counts)])
        totals = np.diff(ranks[edges])
        if not totals.any():
            return np.zeros((len(wanted), self._channels))
        targets = np.maximum(1, np.ceil(np.array(wanted)[:, None] * totals)) + ranks[edges[:-1]]
        at = np.minimum(ranks[1:].searchsorted(targets), len(self._keys) - 1)
        middle = _value_of(self._keys[at] - np.arange(self._channels) * _CHANNEL_STRIDE)
        return np.where(totals > 0, middle, 0.0)

    def count_above(self, limit: float) -> int:
        """How many values, of a sketch of one channel, are in buckets above `limit`."""
        self._compact()
        return int(self._counts[self._keys > int(_bucket_of(np.array([limit]))[0])].sum())

    def _compact(self) -> None:
        parts = [part for part in ((self._keys, self._counts), *self._new) if len(part[0])]
        self._new = []
        if len(parts) == 1:
            self._keys, self._counts = parts[0]
        elif parts:
            keys, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
            self._keys, place = np.unique(keys, return_inverse=True)
            self._counts = np.zeros(len(self._keys), np.int64)
            np.add.at(self._counts, place, counts)


def _bucket_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ordered integers of finite values: negative ones below 0, tiny ones at 0, positive ones above."""
    size = np.abs(values)
    power = np.ceil(np.log(np.maximum(size, _SMALLEST)) / _GAMMA_LOG).astype(np.int64) + _ZERO_OFFSET
    return np.where(size < _SMALLEST, 0, np.where(values < 0, -power, power))


@np.errstate(over="ignore")  # beyond float64 there is no middle; such a quantile is null
def _value_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """The middle of each bucket."""
    size = np.exp((np.abs(keys) - _ZERO_OFFSET) * _GAMMA_LOG) * (1 - RELATIVE_ERROR)
    return np.where(keys == 0, 0.0, np.sign(keys) * size)
