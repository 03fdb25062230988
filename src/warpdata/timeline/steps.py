"""An episode by step. What row k means is written here, once.

Row k is (o_k, a_k, r_k, terminated_k, truncated_k): o_k is what was known when a_k was chosen; r_k and the flags
are what a_k led to. There are as many rows as the step clock has moments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only, select_rows
from warpdata.errors import TimeRangeError, nearest, require_word
from warpdata.timeline.cards import html_table, sparkline_svg, text, titled_card
from warpdata.timeline.meta import Role, SignalMeta
from warpdata.timeline.ragged import pad_rows
from warpdata.timeline.signal import Signal, before_first
from warpdata.timeline.source import OUTCOME_CLOCK, StepClock, named_error
from warpdata.timeline.times import INT64_MAX, as_int, ns_between

Before = Literal["pad", "nan", "raise"]
Align = Literal["hold", "nearest", "linear", "slerp"]

_EXTRAS = ("mask", "age_ns", "times_ns")
_SMALL_ANGLE = 1e-6
_COLLATE = "torch.utils.data._utils.collate"
"""Where torch keeps the table of how types are collated; looked at only where torch is loaded already."""


class Samples(dict[str, NDArray[Any]]):
    """Field -> stacked array; `.mask` and `.age_ns` have one array per field, `.times_ns` the times.

    The three can also be had by key, unless a field has that name. torch's default collate keeps them for every item.
    """

    def __init__(
        self,
        values: Mapping[str, NDArray[Any]],
        mask: dict[str, NDArray[np.bool_]],
        age_ns: dict[str, NDArray[np.int64]],
        times_ns: NDArray[np.int64],
    ) -> None:
        super().__init__(values)
        self.mask = mask
        self.age_ns = age_ns
        self.times_ns = times_ns
        teach_torch(type(self))

    def __copy__(self) -> Samples:
        if not teach_torch(type(self)):
            # Going on would give a whole batch the masks of its first item.
            raise TypeError("these samples were made before torch was imported; import it first")
        return Samples(self, self.mask, self.age_ns, self.times_ns)

    def __missing__(self, key: str) -> Any:
        if key in _EXTRAS:
            return getattr(self, key)
        raise KeyError(f"no signal {key!r} was sampled.{nearest(str(key), [*self, *_EXTRAS])}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {values.dtype}{list(values.shape[1:])}" for name, values in self.items())
        return f"<Samples of {len(self.times_ns)} times: {fields}>"

    def _repr_html_(self) -> str:
        rows = []
        for name, values in self.items():
            mask = self.mask[name]
            known = mask if mask.ndim == 1 else np.asarray(mask.any(axis=1))
            # The padded rows of ragged signals are no line.
            is_number = values.dtype.kind in "biuf" and len(values) > 0 and mask.ndim == 1
            flat = values.reshape(len(values), -1)[:, 0].astype(np.float64) if is_number else np.empty(0)
            line = sparkline_svg(np.where(known, flat, np.nan)) if is_number else ""
            oldest = f"{self.age_ns[name][known].max() / 1e6:.3f} ms" if known.any() else ""
            valid = f"{int(known.sum())} of {len(known)}"
            rows.append([text(name), text(f"{values.dtype}{list(values.shape[1:])}"), valid, oldest, line])
        return titled_card(repr(self), html_table(["field", "type", "valid", "oldest", ""], rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Samples, (dict(self), self.mask, self.age_ns, self.times_ns))


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which record of a signal answers at each time: its position, whether it is valid, and its age.

    A negative age is a record of the future, a position of -1 no record at all.
    """

    positions: NDArray[np.int64]
    mask: NDArray[np.bool_]
    age_ns: NDArray[np.int64]


def sample_signals(
    signals: Mapping[str, Signal],
    times: NDArray[np.int64],
    before: Before,
    max_age_ns: int | None,
    align: Align | Mapping[str, Align] = "hold",
) -> Samples:
    """Sample every signal at the same times; what is missing or too old is masked, never guessed silently."""
    if before not in get_args(Before):
        raise ValueError(f"before is 'pad', 'nan' or 'raise', not {before!r}")
    check_max_age(max_age_ns)
    if not isinstance(align, str | Mapping):
        raise TypeError(f"align is a word or {{signal: word}}, not {align!r}")
    values: dict[str, NDArray[Any]] = {}
    mask: dict[str, NDArray[np.bool_]] = {}
    age: dict[str, NDArray[np.int64]] = {}
    for name, signal in signals.items():
        how = align if isinstance(align, str) else align.get(name, "hold")
        try:
            aligned = align_signal(signal, times, how, max_age_ns)
            if before == "raise" and (aligned.positions < 0).any():
                raise before_first(signal, int(times[aligned.positions < 0][0]))
            rows, valid = aligned_values(signal, times, aligned, how, blank=before == "nan"), aligned.mask
        except TimeRangeError as error:
            raise named_error(error, name) from None
        if signal.meta.rows is not None:  # one array: as many rows as the longest value, and a mask of them
            rows, inside = pad_rows(rows, signal.meta.rows)
            valid = np.logical_and(inside, valid[:, None])
        values[name], mask[name], age[name] = read_only(rows), read_only(valid), read_only(aligned.age_ns)
    return Samples(values, mask, age, read_only(times))


def check_max_age(max_age_ns: int | None) -> None:
    """Raise unless this is an age."""
    if max_age_ns is not None and as_int(max_age_ns, "max_age_ns") < 0:
        raise ValueError(f"max_age_ns is not negative, but {max_age_ns}")


def align_signal(
    signal: Signal, times: NDArray[np.int64], align: Align = "hold", max_age_ns: int | None = None
) -> Alignment:
    """The record that answers at each time: the last at or before it, or with `nearest` the closest one."""
    check_align(align, signal.meta)
    positions = signal._search_ts(times)
    missing = positions < 0
    if not len(signal):
        return Alignment(positions, ~missing, np.zeros(len(times), np.int64))
    held = np.where(missing, 0, positions)
    if align == "nearest":
        later = np.minimum(positions + 1, len(signal) - 1)
        is_closer = ns_between(signal._ts_at(later), times) < ns_between(times, signal._ts_at(held))
        held = np.where(is_closer, later, held)
        positions = np.where(missing, -1, held)
    age = ns_between(times, signal._ts_at(held))
    mask = ~missing if max_age_ns is None else ~missing & (np.abs(age) <= max_age_ns)
    return Alignment(positions, mask, age)


def aligned_values(
    signal: Signal,
    times: NDArray[np.int64],
    alignment: Alignment,
    align: Align = "hold",
    *,
    blank: bool = False,
) -> NDArray[Any]:
    """The values of an alignment; before the first record the first one stands in, unless `blank`.

    Of a signal without records, and with `blank` wherever the mask is false: NaN, 0 or empty text.
    """
    if not len(signal):
        return blank_values(signal.meta, len(times))
    held = np.maximum(alignment.positions, 0)
    is_between = align in ("linear", "slerp")
    values = _between(signal, times, held, align) if is_between else signal._values_at(held)
    if blank and not alignment.mask.all():
        values = np.array(values)
        values[~alignment.mask] = blank_values(signal.meta, 1)
    return values


def blank_values(meta: SignalMeta, count: int) -> NDArray[Any]:
    """Rows that hold nothing: NaN, 0, empty text, or an array without rows."""
    out = np.empty((count, *meta.shape), meta.dtype)
    if meta.rows is not None:
        out.fill(np.empty((0, *meta.rows.shape), meta.rows.dtype))
    elif meta.is_object:
        out.fill("" if meta.kind == "text" else b"")
    else:
        out.fill(np.nan if meta.dtype.kind in "fc" else 0)
    return out


def check_align(align: str, meta: SignalMeta) -> None:
    """Raise unless values of this kind can be aligned that way."""
    require_word("align", align, get_args(Align))
    if align == "linear" and (meta.dtype.kind != "f" or meta.kind == "image"):
        raise ValueError(f"align='linear' needs floats, not {meta.kind} values of {meta.dtype}")
    if align == "slerp" and not (
        meta.dtype.kind == "f" and meta.shape == (4,) and (meta.units or "").startswith("quaternion")
    ):
        raise ValueError("align='slerp' needs four floats with units 'quaternion'")


def _between(signal: Signal, times: NDArray[np.int64], held: NDArray[np.int64], align: Align) -> NDArray[Any]:
    """Values between the record held and the next one; beyond the last record it holds."""
    later = np.minimum(held + 1, len(signal) - 1)
    start, stop = signal._ts_at(held), signal._ts_at(later)
    share = shares(times, start, stop)
    return mixed_values(signal._values_at(held), signal._values_at(later), share, align)


def shares(
    times: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How far each time is on the way from start to stop, from 0 to 1."""
    # The halves fit where the whole pause has more than 63 bits, and lose nothing that a float could keep then.
    pause, gone = ns_between(stop, start), ns_between(times, start)
    wide = pause == INT64_MAX
    if wide.any():
        pause, gone = (
            np.where(wide, end // 2 - start // 2, limit) for end, limit in ((stop, pause), (times, gone))
        )
    return np.clip(gone / np.maximum(pause, 1), 0.0, 1.0)


def mixed_values(
    first: NDArray[Any], second: NDArray[Any], share: NDArray[np.float64], align: Align
) -> NDArray[Any]:
    """Values a share of the way from the first to the second, in a line or by turning."""
    share = share.reshape(-1, *(1,) * (first.ndim - 1))
    if align == "linear":
        mixed = first * (1.0 - share) + second * share
        # A record that is hit exactly comes back bit for bit, also where its neighbour is not finite.
        exact = np.where(share == 0.0, first, np.where(share == 1.0, second, mixed))
        return exact.astype(first.dtype, copy=False)
    a, b = first.astype(np.float64), second.astype(np.float64)
    a, b = a / np.linalg.norm(a, axis=-1, keepdims=True), b / np.linalg.norm(b, axis=-1, keepdims=True)
    cosine = (a * b).sum(axis=-1, keepdims=True)
    b, cosine = np.where(cosine < 0, -b, b), np.abs(cosine)  # the shorter way round
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    safe = np.maximum(np.sin(angle), _SMALL_ANGLE)
    near = angle < _SMALL_ANGLE
    wa = np.where(near, 1.0 - share, np.sin((1.0 - share) * angle) / safe)
    wb = np.where(near, share, np.sin(share * angle) / safe)
    mixed = wa * a + wb * b
    turned = mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)
    return np.where(share == 0.0, first, turned).astype(first.dtype, copy=False)


# Samples in a batch of torch's default collate: what is kept beside the values is stacked as they are.


def teach_torch(kind: type) -> bool:
    """Tell torch how samples of this type are put together; False where it is loaded and did not know until now."""
    collate = sys.modules.get(_COLLATE)
    table = getattr(collate, "default_collate_fn_map", None)
    if table is None or kind in table:
        return True
    table[kind] = _collated
    return False


def _collated(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Samples of several items as one: values, masks, ages and times with the items first."""
    first = batch[0]
    parts = [
        {name: _together([part[name] for part in parts], collate_fn_map) for name in parts[0]}
        for parts in (batch, [item.mask for item in batch], [item.age_ns for item in batch])
    ]
    times = _together([item.times_ns for item in batch], collate_fn_map)
    return type(first)(*parts, times)


def _together(parts: Sequence[Any], collate_fn_map: Any) -> Any:
    if not isinstance(parts[0], np.ndarray):
        return sys.modules[_COLLATE].collate(list(parts), collate_fn_map=collate_fn_map)
    if parts[0].dtype == object:
        return [part.tolist() for part in parts]  # text and bytes stay what they are
    return sys.modules["torch"].from_numpy(np.stack(parts))


_OUTCOMES: tuple[Role, ...] = ("reward", "terminated", "truncated")
PREFIXES: dict[str, tuple[str, ...]] = {
    "action": ("action/",),
    "prediction": ("omen/", "prediction/"),
    "uncertainty": ("uncert/", "uncertainty/"),
    "residual": ("residual/",),
}
"""How older names carry a role; such a name works with it and without it."""


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
        clock: StepClock,
        *,
        align: Align | Mapping[str, Align] = "hold",
        max_age_ns: int | None = None,
    ) -> None:
        """`clock` has times, and their number."""
        check_max_age(max_age_ns)
        assert clock.times is not None
        assert clock.count is not None
        self.signals = signals
        self.clock, self.outcome, self.length = clock.name, clock.outcome, clock.count
        """The name of the clock, how outcomes are stamped, and how many steps there are."""
        # Without this object in it: a cycle would keep files open until the next garbage collection.
        read = clock.times
        self._read_times = cache(lambda: read_only(read()))
        self._align = align
        self._max_age_ns = max_age_ns
        self._made: dict[str, StepSignal] = {}
        for name in align if isinstance(align, Mapping) else ():
            if name not in signals:
                raise KeyError(f"align names no signal {name!r}.{nearest(name, signals)}")

    def __len__(self) -> int:
        return self.length

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """The time of each step."""
        return self._read_times()

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
        row: dict[str, Any] = {"ts_ns": int(self.times_ns[at])}
        row["observations"] = {name: signal[at] for name, signal in self.observations.items()}
        row["actions"] = {name: signal[at] for name, signal in self.actions.items()}
        for role in _OUTCOMES:
            one = RoleSignal(role).__get__(self, Steps)
            if one is not None:
                row[role] = one[at]
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(k) for k in range(self.length))

    def __repr__(self) -> str:
        names = {"observations": self.observations, "actions": self.actions}
        listed = ", ".join(f"{role}: {', '.join(signals)}" for role, signals in names.items() if signals)
        return f"<Steps {self.length} on {self.clock!r}{'; ' if listed else ''}{listed}>"

    def _aligned(self, signal: Signal, align: Align) -> StepSignal:
        if self.has_rows(signal):
            return StepSignal(signal, self.length, self._read_times)  # the rows are the records
        if self.comes_later(signal):  # the first record after each step and not after the next one
            following = signal._search_ts(self.times_ns) + 1
            exists = following < len(signal)
            held = np.where(exists, following, 0)
            stamps = signal._ts_at(held) if len(signal) else np.zeros(self.length, np.int64)
            limit = np.append(self.times_ns[1:], INT64_MAX)
            mask = exists & (stamps <= limit[: self.length])
            shown = Alignment(np.where(mask, held, -1), mask, ns_between(self.times_ns, stamps))
            return StepSignal(signal, self.length, self._read_times, shown)
        if signal.meta.role in _OUTCOMES and signal.meta.clock == self.clock:
            positions = signal._search_ts(self.times_ns)
            stamps = (
                signal._ts_at(np.maximum(positions, 0)) if len(signal) else np.zeros(self.length, np.int64)
            )
            mask = (positions >= 0) & (stamps == self.times_ns)
            shown = Alignment(np.where(mask, positions, -1), mask, np.zeros(self.length, np.int64))
            return StepSignal(signal, self.length, self._read_times, shown)
        check_align(align, signal.meta)
        return StepSignal(signal, self.length, self._read_times, align=align, max_age_ns=self._max_age_ns)

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
        count: int,
        read_times: Callable[[], NDArray[np.int64]],
        alignment: Alignment | None = None,
        *,
        align: Align | None = None,
        max_age_ns: int | None = None,
    ) -> None:
        self.signal = signal
        """The signal in time."""
        self._count, self._read_times = count, read_times
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
        return (self._count, *self.row_shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.signal.meta.shape

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """The time of each step."""
        return self._read_times()

    @property
    def positions(self) -> NDArray[np.int64]:
        """Which record each row shows; -1 without one."""
        alignment = self._align_records()
        return np.arange(len(self), dtype=np.int64) if alignment is None else read_only(alignment.positions)

    @property
    def is_exact(self) -> bool:
        """Whether row k is record k, made at step k (or by it, for what the action led to)."""
        alignment = self._align_records()
        if alignment is None:
            return True
        is_own = self._align is None or not alignment.age_ns.any()
        return bool(is_own and np.array_equal(alignment.positions, np.arange(len(self))))

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which rows are valid: recorded by then, and not too old."""
        alignment = self._align_records()
        return np.ones(len(self), np.bool_) if alignment is None else read_only(alignment.mask)

    @property
    def age_ns(self) -> NDArray[np.int64]:
        """How old the value of each row was at its step; negative where it came later."""
        alignment = self._align_records()
        return np.zeros(len(self), np.int64) if alignment is None else read_only(alignment.age_ns)

    @property
    def data(self) -> NDArray[Any]:
        """All rows as one read-only array."""
        return self.rows(0, len(self))

    def to_numpy(self) -> NDArray[Any]:
        """All rows as one read-only array."""
        return self.data

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), reading no more than they need."""
        alignment = self._align_records()
        if alignment is None:
            return read_only(self.signal._values_in(range(start, stop)))
        part = Alignment(
            alignment.positions[start:stop], alignment.mask[start:stop], alignment.age_ns[start:stop]
        )
        if not len(self.signal):
            return read_only(blank_values(self.meta, stop - start))
        # What an action led to is known or not: where nothing was recorded, no other record stands in.
        times, align, blank = self.times_ns[start:stop], self._align or "hold", self._align is None
        return read_only(aligned_values(self.signal, times, part, align, blank=blank))

    def __getitem__(self, key: Any) -> Any:
        return select_rows(key, self.shape, self.rows, self.dtype.itemsize, self._bring)

    def _bring(self, rows: NDArray[np.int64]) -> None:
        alignment = self._align_records()
        wanted = rows if alignment is None else alignment.positions[rows]
        self.signal._bring(wanted[wanted >= 0])

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype=dtype) if copy else np.asarray(self.data, dtype=dtype)

    def __repr__(self) -> str:
        return f"<StepSignal {self.meta.role} {self.dtype}{list(self.shape)}>"

    def _align_records(self) -> Alignment | None:
        """The alignment, found when it is first needed; None where rows and records are the same."""
        if self._alignment is None and self._align is not None:
            self._alignment = align_signal(self.signal, self.times_ns, self._align, self._max_age_ns)
        return self._alignment
