"""Signals whose records are already in memory, and several signals joined end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array, read_only
from warpdata.errors import SchemaMismatchError, TimestampOrderError
from warpdata.timeline.meta import OBJECT, Kind, RowType, SignalMeta, as_role, guess_role, numeric_kind
from warpdata.timeline.ragged import as_objects
from warpdata.timeline.signal import ClockedSignal, MappedRows, Record, Signal
from warpdata.timeline.times import as_int_array


class ArraySignal(ClockedSignal):
    """A signal over two arrays in memory, which are not copied."""

    __slots__ = ("_has_role", "_meta", "_ts", "_values")

    def __init__(
        self, timestamps: Any, values: Any, meta: SignalMeta | None = None, *, role: str | None = None
    ) -> None:
        stamps = as_int_array(timestamps, "a time")
        is_ragged = meta is not None and meta.rows is not None
        batch = as_objects(map(read_only, values)) if is_ragged else as_array(values)
        if batch.ndim == 0 or len(stamps) != len(batch):
            raise ValueError(f"{len(stamps)} timestamps for values of shape {batch.shape}")
        check_increasing(stamps)
        self._ts = read_only(stamps)
        is_text = batch.dtype.kind in "USO" and not is_ragged
        if is_text:
            batch = as_objects(values.tolist() if isinstance(values, np.ndarray) else values)
            kinds = {type(value) for value in batch}
            if kinds - {str} and kinds - {bytes}:
                raise TypeError("values are numbers, or all str, or all bytes")
        self._values = read_only(batch)
        if meta is None:
            kind: Kind = numeric_kind(self._values.shape[1:])
            if is_text:
                kind = "bytes" if len(stamps) and isinstance(self._values[0], bytes) else "text"
            meta = SignalMeta(self._values.dtype, self._values.shape[1:], kind)
            self._has_role = role is not None
        else:
            self._has_role = True
        self._meta = meta
        if role is not None:
            self._meta = replace(self._meta, role=as_role(role))

    @classmethod
    def ragged(cls, timestamps: Any, values: Sequence[Any], *, rate_hz: float | None = None) -> ArraySignal:
        """A signal of arrays that differ in length only; blocks of sound with their `rate_hz`."""
        arrays = [as_array(value) for value in values]
        kinds = {RowType(array.dtype, array.shape[1:]) for array in arrays if array.ndim}
        if len(kinds) != 1 or not all(array.ndim for array in arrays):
            raise ValueError(f"values of one row type expected, got {', '.join(map(str, kinds)) or 'none'}")
        kind: Kind = "ragged" if rate_hz is None else "sound"
        return cls(timestamps, arrays, SignalMeta(OBJECT, (), kind, rows=kinds.pop(), rate_hz=rate_hz))

    def named(self, name: str) -> ArraySignal:
        """The signal with the role that its name implies, unless it was given one."""
        if self._has_role:
            return self
        guess = guess_role(name, self._meta.kind)
        meta = replace(self._meta, role=guess.role, of=guess.of, model=guess.model)
        return self if meta == self._meta else ArraySignal(self._ts, self._values, meta)

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind."""
        return self._meta

    def __len__(self) -> int:
        return len(self._ts)

    def _clock(self) -> NDArray[np.int64]:
        return self._ts

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return read_only(self._values[indices])

    def _values_in(self, rows: range) -> NDArray[Any]:
        return self._values[rows.start : rows.stop : rows.step]

    def _in_memory(self) -> MappedRows | None:
        return MappedRows(self._values)

    def _record(self, index: int) -> Record:
        return self._values[index], int(self._ts[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return (ArraySignal, (self._ts, self._values, self._meta))


class JoinedSignal(ClockedSignal):
    """Signals of one kind, one after the other in time: the chunks of an episode as one signal."""

    __slots__ = ("_parts", "_starts", "_ts")

    def __init__(self, parts: Sequence[Signal]) -> None:
        if not parts:
            raise ValueError("nothing to join")
        kept = [part for part in parts if len(part)] or [parts[0]]
        for earlier, later in pairwise(kept):
            if not earlier.meta.same_values(later.meta):
                raise SchemaMismatchError(f"cannot join {later.meta} behind {earlier.meta}")
            if later.first_ts_ns <= earlier.last_ts_ns:
                raise TimestampOrderError(
                    f"a part begins at {later.first_ts_ns}, which is not after {earlier.last_ts_ns}",
                    hint="Move later parts behind the ones before: gap_ns=…, --gap on the command line.",
                )
        self._parts = kept
        self._starts = np.cumsum([0, *(len(part) for part in kept)], dtype=np.int64)
        self._ts: NDArray[np.int64] | None = None

    @property
    def parts(self) -> Sequence[Signal]:
        """The signals that are joined."""
        return self._parts

    @property
    def meta(self) -> SignalMeta:
        """Element type, shape and kind, the same in all parts."""
        return self._parts[0].meta

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _clock(self) -> NDArray[np.int64]:
        if self._ts is None:
            self._ts = read_only(np.concatenate([part.timestamps for part in self._parts]))
        return self._ts

    def _edge(self, index: int) -> int:
        return (self._parts[0]._edge(0)) if index == 0 else self._parts[-1]._edge(len(self._parts[-1]) - 1)

    def _values_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        meta = self.meta
        out = np.empty((len(indices), *meta.shape), meta.dtype)
        owner = self._starts.searchsorted(indices, "right") - 1
        for number in np.unique(owner):
            chosen = owner == number
            out[chosen] = self._parts[number]._values_at(indices[chosen] - self._starts[number])
        return read_only(out)

    def _lengths(self) -> NDArray[np.int64]:
        return np.concatenate([part._lengths() for part in self._parts])

    def _bring(self, indices: NDArray[np.int64]) -> None:
        owner = self._starts.searchsorted(indices, "right") - 1
        for number in np.unique(owner):
            self._parts[number]._bring(indices[owner == number] - self._starts[number])

    def _is_far(self) -> bool:
        return any(part._is_far() for part in self._parts)

    def _values_in(self, rows: range) -> NDArray[Any]:
        if len(rows) and rows.step == 1:
            owner = int(self._starts.searchsorted(rows.start, "right")) - 1
            start = int(self._starts[owner])
            if rows.stop <= self._starts[owner + 1]:
                return self._parts[owner]._values_in(range(rows.start - start, rows.stop - start))
        return super()._values_in(rows)

    def _record(self, index: int) -> Record:
        owner = int(self._starts.searchsorted(index, "right")) - 1
        return self._parts[owner]._record(index - int(self._starts[owner]))

    def __reduce__(self) -> tuple[Any, ...]:
        return (JoinedSignal, (self._parts,))


def check_increasing(stamps: NDArray[np.int64]) -> None:
    """Raise unless timestamps are strictly increasing."""
    wrong = np.flatnonzero(stamps[1:] <= stamps[:-1])
    if len(wrong):
        at = int(wrong[0])
        raise TimestampOrderError(
            f"timestamp {int(stamps[at + 1])} of record {at + 1} is not increasing after {int(stamps[at])}"
        )
