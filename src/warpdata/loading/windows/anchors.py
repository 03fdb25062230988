"""Which moments of an episode are samples: the records of a signal, or a grid of a rate, where a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.collection.facts import column_table
from warpdata.errors import DatasetError, nearest
from warpdata.ordering.limits import checked_integer
from warpdata.sql.engine import matching_rows, parse_condition
from warpdata.sql.sqltext import folded
from warpdata.timeline.episode import Episode, same_clock
from warpdata.timeline.meta import ROLES
from warpdata.timeline.sampling import align_signal, aligned_values
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import MAX_GRID, checked_rate, rate_grid


@dataclass(frozen=True, slots=True)
class Anchors:
    """`signal`: every `stride`-th record of a signal (or of the signals of a role). `rate_hz`: a grid."""

    signal: str | None
    rate_hz: float | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        if (self.signal is None) == (self.rate_hz is None):
            raise ValueError("give either anchor= (a signal or a role) or rate_hz=")
        if self.signal is not None and not isinstance(self.signal, str):
            raise TypeError(f"anchor names a signal or a role, not {self.signal!r}")
        object.__setattr__(self, "stride", checked_integer("stride", self.stride, MAX_GRID, least=1))
        if self.rate_hz is not None:
            object.__setattr__(self, "rate_hz", checked_rate(self.rate_hz))

    def to_json(self) -> dict[str, Any]:
        """What makes the anchors what they are."""
        rate = self.rate_hz
        # 20 and 20.0 are the same anchors.
        rate = int(rate) if rate is not None and rate.is_integer() else rate
        return {"signal": self.signal, "rate_hz": rate, "stride": self.stride}

    def name_in(self, episode: Episode) -> str | None:
        """The signal of this episode whose records are the anchors; None where it has none."""
        assert self.signal is not None
        signals = episode.signals
        if self.signal in signals:
            return self.signal
        named = episode._older_name(self.signal)
        if named is not None:
            return named
        if self.signal not in ROLES:
            return None
        of_role = [name for name, each in signals.items() if each.meta.role == self.signal and len(each)]
        for other in of_role[1:]:
            if not same_clock(signals[of_role[0]], signals[other]):
                raise ValueError(
                    f"the signals of role {self.signal!r} of episode {episode.id!r} have clocks of their own: "
                    f"choose one of {', '.join(of_role)}"
                )
        return of_role[0] if of_role else None

    def times(self, episode: Episode, used: Mapping[str, Signal]) -> NDArray[np.int64]:
        """The times of all anchors of an episode; `used` are the signals of the fields that have records."""
        if self.signal is not None:
            name = self.name_in(episode)
            return np.empty(0, np.int64) if name is None else episode.signals[name].timestamps[:: self.stride]
        return self._grid(used)

    def _grid(self, used: Mapping[str, Signal]) -> NDArray[np.int64]:
        """From the first moment at which every field has a value until the last record of any."""
        assert self.rate_hz is not None
        if not used:
            return np.empty(0, np.int64)
        start = max(signal.first_ts_ns for signal in used.values())
        stop = max(signal.last_ts_ns for signal in used.values())
        return rate_grid(start, stop, self.rate_hz)[:: self.stride]

    def unknown(self, names: list[str]) -> KeyError:
        """The error for an anchor that no episode has."""
        known = [*names, *ROLES]
        assert self.signal is not None
        return KeyError(
            f"anchor: no episode has a signal {self.signal!r}, and it is no role; there are "
            f"{', '.join(names) or 'none'}.{nearest(self.signal, known)}"
        )


def matching_anchors(
    episode: Episode,
    times: NDArray[np.int64],
    condition: str,
    other_names: Callable[[], Iterable[str]] = tuple,
) -> NDArray[np.int64]:
    """Anchors that satisfy a SQL condition over signals (the value held there) and static items.

    A signal without a value yet is null, and so is a name that only other episodes have (`other_names`). Signals of
    several numbers are lists; `ts_ns` is the time of the anchor.
    """
    known, parsed = [*episode.keys, "ts_ns"], parse_condition(condition)
    if not {folded(name) for name in parsed.names} <= {folded(name) for name in known}:
        absent = [name for name in other_names() if name not in known]
        known += parsed.columns_of(absent)
    wanted = set(parsed.columns_of(known))
    columns: dict[str, Any] = {}
    for name in known:
        if name not in wanted or name not in episode.keys:
            columns[name] = None
        elif name in episode.signals:
            signal = episode.signals[name]
            found = align_signal(signal, times)
            values = aligned_values(signal, times, found)
            columns[name] = [v if good else None for v, good in zip(values.tolist(), found.mask, strict=True)]
        else:
            columns[name] = [episode.static[name]] * len(times)
    columns["ts_ns"] = times
    try:
        return matching_rows(column_table(columns, len(times)), condition)
    except DatasetError as error:
        strange = sorted(parsed.names - {*known})
        has = f"episode {episode.id!r} has {', '.join(known)}"
        near = "".join(nearest(name, known) for name in strange[:1])
        raise DatasetError(f"where={condition!r}: {error.message}", hint=f"{has}.{near}") from None
