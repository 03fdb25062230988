"""A signal: records (value, ts_ns) in strictly increasing time. Indexing is written here, for all kinds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import InvalidIndexError, read_only, resolve_index
from warpdata.errors import TimeRangeError
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.ragged import join_rows
from warpdata.timeline.times import INT64_MAX, INT64_MIN, as_int, as_int_array, grid, is_many

Record = tuple[Any, int]
_BLOCK, _BLOCK_BYTES = 64, 8 << 20
"""Records read at a time while iterating, and bytes: of large images one."""


class MappedRows(NamedTuple):
    """Values in memory or in a mapped file, and what to call with a run of rows before they are looked at."""

    rows: NDArray[Any]
    check: Callable[[int, int], bool] | None = None
    """Raises where bytes are not as they were written; gives True, or is None, once all were checked."""
    guard: Callable[[], None] | None = None
    """What raises TruncatedError if the mapped file was cut: touching lost pages would end the process."""


class Signal(Sequence[Record]):
    """A step function of time: value(t) is the last record at or before t, undefined before the first.

    A backend gives `meta`, `__len__`, `_ts_at`, `_values_at` and `_search_ts`; all else is written above.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def meta(self) -> SignalMeta:
        """Element type, shape and kind, known without reading values."""

    @abstractmethod
    def __len__(self) -> int:
        """How many records there are."""

    @abstractmethod
    def _ts_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The timestamps of these records; every index is valid."""

    @abstractmethod
    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """The values of these records as one batch; every index is valid."""

    @abstractmethod
    def _search_ts(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each time the position of the last record at or before it, -1 before the first."""

    # Optional shortcuts of a backend.

    def _ts_in(self, rows: range) -> NDArray[np.int64]:
        return self._ts_at(np.arange(rows.start, rows.stop, rows.step, dtype=np.int64))

    def _values_in(self, rows: range) -> NDArray[Any]:
        return self._values_at(np.arange(rows.start, rows.stop, rows.step, dtype=np.int64))

    def _in_memory(self) -> MappedRows | None:
        """All values in place, if they need no decoding and no waiting; None where they do."""
        return None

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Like `_values_at`, for a caller that will read neighbours as well: what is decoded is kept."""
        return self._values_at(indices)

    def _read_runs(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> bool:
        """Write records from each start on, as many as a row of `out` holds, into places of it.

        Without copies on the way; False where a backend cannot, and nothing is written.
        """
        del starts, out, places
        return False

    def _bring(self, indices: NDArray[np.int64]) -> None:
        """Fetch the bytes of these records, if they are remote."""

    def _is_far(self) -> bool:
        """Whether reading waits for a network."""
        return False

    def _lengths(self) -> NDArray[np.int64]:
        """How many rows every value of a ragged signal has."""
        runs = (range(low, min(low + _BLOCK, len(self))) for low in range(0, len(self), _BLOCK))
        return np.fromiter((len(row) for run in runs for row in self._values_in(run)), np.int64, len(self))

    def _record(self, index: int) -> Record:
        at = np.array([index], np.int64)
        return self._values_at(at)[0], int(self._ts_at(at)[0])

    def _floor(self, ts_ns: int) -> int:
        if not INT64_MIN <= ts_ns <= INT64_MAX:
            return len(self) - 1 if ts_ns > 0 else -1
        return int(self._search_ts(np.array([ts_ns], np.int64))[0])

    # The interface.

    def __getitem__(self, key: Any) -> Any:
        rows = resolve_index(key, len(self), "record")
        if isinstance(rows, int):
            return self._record(rows)
        if isinstance(rows, range) and rows.step < 0:
            raise InvalidIndexError(f"a step must be positive, not {rows.step}: time goes forward")
        return SignalView(self, rows)

    def __iter__(self) -> Iterator[Record]:
        for rows in self.runs(_BLOCK_BYTES, _BLOCK):
            yield from zip(self._values_in(rows), self._ts_in(rows).tolist(), strict=True)

    def value_bytes(self) -> int:
        """Bytes of one value; of a ragged signal their mean, of text and bytes of the reference to it."""
        kind = self.meta.rows
        if kind is None or not len(self):
            return self.meta.row_bytes
        return 8 + kind.nbytes * int(self._lengths().mean())

    def runs(self, max_bytes: int, max_rows: int = 1 << 14) -> Iterator[range]:
        """All records as runs of about so many bytes, one record at least."""
        step = max(1, min(max_rows, max_bytes // max(1, self.value_bytes()))) if len(self) else 1
        return (range(start, min(start + step, len(self))) for start in range(0, len(self), step))

    def blocks(self, max_bytes: int, max_rows: int = 1 << 14) -> Iterator[NDArray[Any]]:
        """All values in batches of about so many bytes."""
        return (self.rows(run.start, run.stop) for run in self.runs(max_bytes, max_rows))

    def flat(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The rows of all values of a ragged signal end to end: record k is rows [offsets[k], offsets[k + 1])."""
        if self.meta.rows is None:
            raise TypeError(f"flat() is for ragged signals and sound, not {self.meta}")
        return join_rows(self.values(), self.meta.rows)

    @property
    def time(self) -> SignalTime:
        """Access by time instead of by position."""
        return SignalTime(self)

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """All timestamps, read-only."""
        return read_only(self._ts_in(range(len(self))))

    def values(self) -> NDArray[Any]:
        """All values as one read-only batch; text and bytes as an array of objects."""
        return read_only(self._values_in(range(len(self))))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The values of records [start, stop)."""
        return read_only(self._values_in(range(len(self))[start:stop]))

    def to_numpy(self) -> NDArray[Any]:
        """All values as one read-only batch."""
        return self.values()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values(), dtype=dtype) if copy else np.asarray(self.values(), dtype=dtype)

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """All times, read-only."""
        return self.timestamps

    @property
    def first_ts_ns(self) -> int:
        """The time of the first record."""
        return self._edge(0)

    @property
    def last_ts_ns(self) -> int:
        """The time of the last record."""
        return self._edge(len(self) - 1)

    def _edge(self, index: int) -> int:
        if not len(self):
            raise TimeRangeError("the signal has no records")
        return int(self._ts_at(np.array([index], np.int64))[0])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.meta}, {len(self)} records>"


class ClockedSignal(Signal):
    """A signal that keeps its timestamps as one array; a backend adds the values."""

    __slots__ = ()

    @abstractmethod
    def _clock(self) -> NDArray[np.int64]:
        """All timestamps, strictly increasing."""

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """All timestamps, read-only."""
        return read_only(self._clock())

    def _ts_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._clock()[indices]

    def _ts_in(self, rows: range) -> NDArray[np.int64]:
        return self._clock()[rows.start : rows.stop : rows.step]

    def _search_ts(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._clock().searchsorted(times, "right").astype(np.int64) - 1

    def _floor(self, ts_ns: int) -> int:
        if not INT64_MIN <= ts_ns <= INT64_MAX:
            return super()._floor(ts_ns)
        return int(self._clock().searchsorted(ts_ns, "right")) - 1  # without an array of one time


class SignalTime:
    """`signal.time`: floor lookups, windows, and sampling at requested times."""

    __slots__ = ("_signal",)

    def __init__(self, signal: Signal) -> None:
        self._signal = signal

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int:
            return value_at(self._signal, key)
        if isinstance(key, slice):
            if key.step is None:
                return window(self._signal, key)
            step, signal = positive_step(key.step), self._signal
            if not len(signal) and (key.start is None or key.stop is None):
                return SignalView(signal, range(0))
            start = signal.first_ts_ns if key.start is None else as_int(key.start, "a time")
            stop = signal.last_ts_ns + 1 if key.stop is None else as_int(key.stop, "a time")
            return sample_at(signal, grid(start, stop, step))
        if is_many(key):
            return sample_at(self._signal, as_int_array(key, "a time"))
        return value_at(self._signal, as_int(key, "a time"))


def value_at(signal: Signal, ts_ns: int) -> Record:
    """The record that holds at `ts_ns`, with its stored timestamp."""
    position = signal._floor(ts_ns)
    if position < 0:
        raise before_first(signal, ts_ns)
    return signal._record(position)


def window(signal: Signal, key: slice) -> Signal:
    """Exactly the records with start <= ts < stop, without a copy."""
    low = 0 if key.start is None else signal._floor(as_int(key.start, "a time") - 1) + 1
    high = len(signal) if key.stop is None else signal._floor(as_int(key.stop, "a time") - 1) + 1
    return SignalView(signal, range(low, max(low, high)))


def sample_at(signal: Signal, times: NDArray[np.int64]) -> Signal:
    """The value that holds at each requested time, stamped with the requested time."""
    rows = signal._search_ts(times)
    if len(rows) and rows.min() < 0:
        raise before_first(signal, int(times[rows.argmin()]))
    return SignalView(signal, rows, times)


def before_first(signal: Signal, ts_ns: int) -> TimeRangeError:
    """The error for a time at which the signal has no value yet."""
    if not len(signal):
        return TimeRangeError(f"no value at {ts_ns}: the signal has no records")
    return TimeRangeError(f"no value at {ts_ns}: the first record is at {signal.first_ts_ns}")


def positive_step(step: Any) -> int:
    """A step of a time grid, checked."""
    number = as_int(step, "a step")
    if number <= 0:
        raise ValueError(f"a step must be positive, not {number}")
    return number


class SignalView(Signal):
    """Some records of another signal in a chosen order, with requested times or moved in time; no copy."""

    __slots__ = ("_base", "_clock", "_rows", "_times", "shift_ns")

    _base: Signal
    _rows: range | NDArray[np.int64]
    _times: NDArray[np.int64] | None
    shift_ns: int

    def __init__(
        self,
        base: Signal,
        rows: range | NDArray[np.int64],
        times: NDArray[np.int64] | None = None,
        shift_ns: int = 0,
    ) -> None:
        if isinstance(base, SignalView):  # views of views stay one step away from the data
            if times is None and base._times is not None:
                times = base._times[_as_key(rows)] + shift_ns
            shift_ns += base.shift_ns
            rows, base = _chain(base._rows, rows), base._base
        self._base = base
        self._rows = rows
        self._times = None if times is None else read_only(times)
        self._clock: NDArray[np.int64] | None = None
        self.shift_ns = shift_ns
        """How far the records are moved in time, where they have no requested times."""

    @property
    def base(self) -> Signal:
        """The signal behind the view."""
        return self._base

    @property
    def run(self) -> range | None:
        """The records of the base that the view shows, where they are a run without requested times."""
        rows = self._rows
        return rows if isinstance(rows, range) and rows.step == 1 and self._times is None else None

    @property
    def meta(self) -> SignalMeta:
        """Metadata of the signal behind the view."""
        return self._base.meta

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """All timestamps of the view, read-only."""
        if self._times is not None:
            return self._times
        if self._clock is None:
            rows = self._rows
            stamps = self._base._ts_in(rows) if isinstance(rows, range) else self._base._ts_at(rows)
            self._clock = read_only(stamps + self.shift_ns if self.shift_ns else stamps)
        return self._clock

    def _base_rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self._rows
        return rows.start + indices * rows.step if isinstance(rows, range) else rows[indices]

    def _ts_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.timestamps[indices]

    def _ts_in(self, rows: range) -> NDArray[np.int64]:
        return self.timestamps[rows.start : rows.stop : rows.step]

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._base._values_at(self._base_rows(indices))

    def _values_in(self, rows: range) -> NDArray[Any]:
        own = self._rows
        if isinstance(own, range):
            return self._base._values_in(own[_as_key(rows)])
        return self._base._values_at(own[_as_key(rows)])

    def _lengths(self) -> NDArray[np.int64]:
        lengths: NDArray[np.int64] = self._base._lengths()[_as_key(self._rows)]
        return lengths

    def _in_memory(self) -> MappedRows | None:
        run, mapped = self.run, self._base._in_memory()
        if run is None or mapped is None:
            return None
        first, check = run.start, mapped.check
        moved = None if check is None else lambda start, stop: check(first + start, first + stop)
        return MappedRows(mapped.rows[run.start : run.stop], moved, mapped.guard)

    def _values_kept(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._base._values_kept(self._base_rows(indices))

    def _read_runs(self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> bool:
        return self.run is not None and self._base._read_runs(self._base_rows(starts), out, places)

    def _bring(self, indices: NDArray[np.int64]) -> None:
        self._base._bring(self._base_rows(indices))

    def _is_far(self) -> bool:
        return self._base._is_far()

    def _record(self, index: int) -> Record:
        value, ts_ns = self._base._record(int(self._rows[index]))
        return value, ts_ns + self.shift_ns if self._times is None else int(self._times[index])

    def _search_ts(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        stamps = self.timestamps
        if not isinstance(self._rows, range) and np.any(stamps[1:] < stamps[:-1]):
            raise ValueError("these records are not in the order of time; sort them to look up times")
        return np.searchsorted(stamps, times, side="right").astype(np.int64) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return (SignalView, (self._base, self._rows, self._times, self.shift_ns))


def _chain(outer: range | NDArray[np.int64], inner: range | NDArray[np.int64]) -> range | NDArray[np.int64]:
    """The rows of the base that a view of a view shows."""
    if isinstance(inner, range):
        return outer[slice(inner.start, inner.stop, inner.step)]
    if isinstance(outer, range):
        return outer.start + inner * outer.step
    return outer[inner]


def _as_key(rows: range | NDArray[np.int64]) -> Any:
    return slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
