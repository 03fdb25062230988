"""An episode by step. What row k means is written here, once.

Row k is (o_k, a_k, r_k, terminated_k, truncated_k): o_k is what was known when a_k was chosen; r_k and the flags
are what a_k led to. There are as many rows as the step clock has moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only, select_rows
from warpdata.errors import nearest
from warpdata.timeline.meta import Role, SignalMeta
from warpdata.timeline.sampling import (
    Align,
    Alignment,
    align_signal,
    aligned_values,
    blank_values,
    check_align,
    check_max_age,
)
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import OUTCOME_CLOCK, Outcome
from warpdata.timeline.times import INT64_MAX, ns_between

_OUTCOMES: tuple[Role, ...] = ("reward", "terminated", "truncated")
PREFIXES: dict[str, tuple[str, ...]] = {
    "action": ("action/",),
    "prediction": ("omen/", "prediction/"),
    "uncertainty": ("uncert/", "uncertainty/"),
    "residual": ("residual/",),
}
"""How older names carry a role; such a name works with it and without it."""


class StepTimes:
    """The times of the steps; how many there are is known before they are read."""

    def __init__(self, count: int, read: Callable[[], NDArray[np.int64]]) -> None:
        self.count = count
        self._read = read
        self._array: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, times: NDArray[np.int64]) -> StepTimes:
        """Times that are known."""
        return cls(len(times), lambda: times)

    @property
    def array(self) -> NDArray[np.int64]:
        """The times, read on first use."""
        if self._array is None:
            self._array = read_only(self._read())
        return self._array


@dataclass(frozen=True, slots=True)
class RoleSignals:
    """An attribute of `Steps`: the signals of one role."""

    role: Role

    def __get__(self, steps: Steps, owner: type) -> StepSignals:
        names = [name for name, signal in steps.signals.items() if signal.meta.role == self.role]
        return StepSignals(names, steps.__getitem__, self.role)


@dataclass(frozen=True, slots=True)
class RoleSignal:
    """An attribute of `Steps`: the one signal of a role, among several the one of that name; None without one."""

    role: Role

    def __get__(self, steps: Steps, owner: type) -> StepSignal | None:
        names = [name for name, signal in steps.signals.items() if signal.meta.role == self.role]
        if len(names) > 1 and self.role not in names:
            raise KeyError(f"{len(names)} signals are a {self.role}: {', '.join(names)}; use steps[name]")
        return steps[self.role if self.role in names else names[0]] if names else None


class Steps:
    """The rows of an episode: `observations`, `actions`, `rewards`, flags and lanes, each of `length` rows."""

    def __init__(
        self,
        signals: Mapping[str, Signal],
        times: StepTimes,
        *,
        clock: str,
        outcome: Outcome = "same",
        align: Align | Mapping[str, Align] = "hold",
        max_age_ns: int | None = None,
    ) -> None:
        check_max_age(max_age_ns)
        self.signals = signals
        self._times = times
        self.clock = clock
        self.outcome = outcome
        self._align = align
        self._max_age_ns = max_age_ns
        self._made: dict[str, StepSignal] = {}
        for name in align if isinstance(align, Mapping) else ():
            if name not in signals:
                raise KeyError(f"align names no signal {name!r}.{nearest(name, signals)}")

    @property
    def length(self) -> int:
        """How many steps there are."""
        return self._times.count

    def __len__(self) -> int:
        return self._times.count

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """The time of each step."""
        return self._times.array

    observations = RoleSignals("observation")
    """What was known when the action of the row was chosen."""
    actions = RoleSignals("action")
    """What was chosen."""
    predictions = omens = RoleSignals("prediction")
    """What models predicted of the observations; the document calls them omens."""
    uncertainties = uncerts = RoleSignals("uncertainty")
    """How sure models were."""
    residuals = RoleSignals("residual")
    """What is left between truth and prediction."""
    events = RoleSignals("event")
    """The last event at or before each step."""
    others = RoleSignals("other")
    """Signals whose role is `other`."""
    rewards = RoleSignal("reward")
    """What the action of the row earned; None where it was not recorded."""
    terminated = RoleSignal("terminated")
    """Whether the action of the row ended the task."""
    truncated = RoleSignal("truncated")
    """Whether the episode was cut off after the row."""

    @property
    def final_observations(self) -> Mapping[str, Any]:
        """What was observed after the last action, by name; empty where nothing was."""
        end = int(self.times_ns[-1]) if self.length else None
        return {
            name: signal[-1][0]
            for name, signal in self.signals.items()
            if signal.meta.role == "observation" and len(signal) and (end is None or signal.last_ts_ns > end)
        }

    @property
    def total_reward(self) -> float | None:
        """The sum of all valid rewards; None where there are none."""
        rewards = self.rewards
        if rewards is None or rewards.row_shape:
            return None
        return float(np.sum(rewards.data[rewards.mask], dtype=np.float64))

    def __getitem__(self, name: str) -> StepSignal:
        """One signal on the steps, of any role."""
        if name not in self._made:
            align = self._align if isinstance(self._align, str) else self._align.get(name, "hold")
            self._made[name] = self._aligned(self.signals[name], align)
        return self._made[name]

    def row(self, k: int) -> dict[str, Any]:
        """Row k as a dict: observations and actions by name, reward, terminated, truncated, ts_ns."""
        at = range(self.length)[k]
        found: dict[str, Any] = {"ts_ns": int(self.times_ns[at])}
        found["observations"] = {name: each[at] for name, each in self.observations.items()}
        found["actions"] = {name: each[at] for name, each in self.actions.items()}
        for role in _OUTCOMES:
            one = RoleSignal(role).__get__(self, Steps)
            if one is not None:
                found[role] = one[at]
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(k) for k in range(self.length))

    def __repr__(self) -> str:
        names = {"observations": self.observations, "actions": self.actions}
        listed = ", ".join(f"{role}: {', '.join(found)}" for role, found in names.items() if found)
        return f"<Steps {self.length} on {self.clock!r}{'; ' if listed else ''}{listed}>"

    def _aligned(self, signal: Signal, align: Align) -> StepSignal:
        if self.has_rows(signal):
            return StepSignal(signal, self._times)  # the rows are the records
        if self.comes_later(signal):
            return StepSignal(signal, self._times, self._following(signal))
        if signal.meta.role in _OUTCOMES and signal.meta.clock == self.clock:
            return StepSignal(signal, self._times, self._at_their_steps(signal))
        check_align(align, signal.meta)
        return StepSignal(signal, self._times, align=align, max_age_ns=self._max_age_ns)

    def has_rows(self, signal: Signal) -> bool:
        """Whether the records of a signal are the rows: a step may lack one, and one may follow the last step."""
        is_alike = signal.meta.clock == self.clock and len(signal) == self.length
        return is_alike and np.array_equal(signal.timestamps, self.times_ns)

    def comes_later(self, signal: Signal) -> bool:
        """Whether row k shows the record after step k: outcomes that were recorded with the next observation."""
        meta = signal.meta
        return self.outcome == "next" and (
            meta.role in _OUTCOMES or (meta.role == "other" and meta.clock == OUTCOME_CLOCK)
        )

    def _following(self, signal: Signal) -> Alignment:
        """The first record after each step and not after the next one."""
        positions = signal._search_ts(self.times_ns) + 1
        exists = positions < len(signal)
        held = np.where(exists, positions, 0)
        stamps = signal._ts_at(held) if len(signal) else np.zeros(self.length, np.int64)
        limit = np.append(self.times_ns[1:], INT64_MAX)
        mask = exists & (stamps <= limit[: self.length])
        return Alignment(np.where(mask, held, -1), mask, ns_between(self.times_ns, stamps))

    def _at_their_steps(self, signal: Signal) -> Alignment:
        """The record of each step that has one: what an action earned is not earned again by the next."""
        positions = signal._search_ts(self.times_ns)
        stamps = signal._ts_at(np.maximum(positions, 0)) if len(signal) else np.zeros(self.length, np.int64)
        mask = (positions >= 0) & (stamps == self.times_ns)
        return Alignment(np.where(mask, positions, -1), mask, np.zeros(self.length, np.int64))


class StepSignals(Mapping[str, "StepSignal"]):
    """The signals of one role by name, on the steps."""

    def __init__(self, names: Sequence[str], make: Callable[[str], StepSignal], role: Role) -> None:
        self._names = names
        self._make = make
        self._role = role

    def __getitem__(self, name: str) -> StepSignal:
        for full in (name, *(prefix + name for prefix in PREFIXES.get(self._role, ()))):
            if full in self._names:
                return self._make(full)
        for prefix in PREFIXES.get(self._role, ()):
            if name.startswith(prefix) and name.removeprefix(prefix) in self._names:
                return self._make(name.removeprefix(prefix))
        raise KeyError(f"no {self._role} {name!r} in this episode.{nearest(name, self._names)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<{len(self)} of role {self._role}: {', '.join(self._names)}>"


class StepSignal:
    """One signal with one row per step; `[a:b]` reads only those rows, `.mask` marks the valid ones."""

    def __init__(
        self,
        signal: Signal,
        times: StepTimes,
        alignment: Alignment | None = None,
        *,
        align: Align | None = None,
        max_age_ns: int | None = None,
    ) -> None:
        self.signal = signal
        """The signal in time."""
        self._times = times
        self._alignment = alignment
        self._align: Align | None = align
        self._max_age_ns = max_age_ns

    @property
    def meta(self) -> SignalMeta:
        """What the values are."""
        return self.signal.meta

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.signal.meta.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape, steps first."""
        return (self._times.count, *self.row_shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.signal.meta.shape

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """The time of each step."""
        return self._times.array

    @property
    def positions(self) -> NDArray[np.int64]:
        """Which record each row shows; -1 without one."""
        found = self._found()
        return np.arange(len(self), dtype=np.int64) if found is None else read_only(found.positions)

    @property
    def is_exact(self) -> bool:
        """Whether row k is record k, made at step k (or by it, for what the action led to)."""
        found = self._found()
        if found is None:
            return True
        is_own = self._align is None or not found.age_ns.any()
        return bool(is_own and np.array_equal(found.positions, np.arange(len(self))))

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which rows are valid: recorded by then, and not too old."""
        found = self._found()
        return np.ones(len(self), np.bool_) if found is None else read_only(found.mask)

    @property
    def age_ns(self) -> NDArray[np.int64]:
        """How old the value of each row was at its step; negative where it came later."""
        found = self._found()
        return np.zeros(len(self), np.int64) if found is None else read_only(found.age_ns)

    @property
    def data(self) -> NDArray[Any]:
        """All rows as one read-only array."""
        return self.rows(0, len(self))

    def to_numpy(self) -> NDArray[Any]:
        """All rows as one read-only array."""
        return self.data

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), reading no more than they need."""
        found = self._found()
        if found is None:
            return read_only(self.signal._values_in(range(start, stop)))
        part = Alignment(found.positions[start:stop], found.mask[start:stop], found.age_ns[start:stop])
        if not len(self.signal):
            return read_only(blank_values(self.meta, stop - start))
        # What an action led to is known or not: where nothing was recorded, no other record stands in.
        times, align, blank = self.times_ns[start:stop], self._align or "hold", self._align is None
        return read_only(aligned_values(self.signal, times, part, align, blank=blank))

    def __getitem__(self, key: Any) -> Any:
        return select_rows(key, self.shape, self.rows, self.dtype.itemsize, self._bring)

    def _bring(self, rows: NDArray[np.int64]) -> None:
        found = self._found()
        wanted = rows if found is None else found.positions[rows]
        self.signal._bring(wanted[wanted >= 0])

    def __len__(self) -> int:
        return self._times.count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype=dtype) if copy else np.asarray(self.data, dtype=dtype)

    def __repr__(self) -> str:
        return f"<StepSignal {self.meta.role} {self.dtype}{list(self.shape)}>"

    def _found(self) -> Alignment | None:
        """The alignment, found when it is first needed; None where rows and records are the same."""
        if self._alignment is None and self._align is not None:
            self._alignment = align_signal(self.signal, self.times_ns, self._align, self._max_age_ns)
        return self._alignment
