"""What is what in files of no known layout, as the caller says it: episodes, signals, roles, times."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.place import Place
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, seconds_as_times
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.timeline.meta import Role, as_role, guess_role

_KEYS = ("episodes", "ends", "signals", "static", "fps", "times")


@dataclass(frozen=True, slots=True)
class FileMapping:
    """Which arrays are signals, which part each plays, and where episodes end.

    As JSON: `{"episodes": "traj_*", "signals": {"state": "obs/qpos", "action": {"from": "act", "role": "action"}},
    "ends": "episode_ends", "static": {"task": "instruction"}, "times": "stamp", "fps": 20}`; all may be left out.
    """

    episodes: str | None = None
    """HDF5: the groups that are episodes, `*` for any name. Parquet: the column with the number of the episode."""
    ends: str | None = None
    """The array with the end of every episode (exclusive, cumulative), or with a flag at the last step of each."""
    signals: Mapping[str, str] = field(default_factory=dict)
    """Signal -> array; all arrays under their own names where none is named."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    static: Mapping[str, str] = field(default_factory=dict)
    """Static item -> array with one value, or the value itself where there is no such array."""
    times: str | None = None
    """The signal with the time of every step in seconds."""
    fps: float | None = None

    @classmethod
    def of(cls, given: FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None) -> FileMapping | None:
        """A mapping from a dict, or from a JSON file."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | os.PathLike):
            given = parse_json_object(Place.of(given).read(max_bytes=1 << 20))
        if not isinstance(given, Mapping):
            raise TypeError(f"a mapping is a dict or the path of a JSON file, not {type(given).__name__}")
        return cls._checked(given)

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> FileMapping:
        for key in given:
            if key not in _KEYS:
                raise ValueError(f"a mapping has no {key!r}.{nearest(key, _KEYS)}")
        signals: dict[str, str] = {}
        roles: dict[str, Role] = {}
        for name, told in _texts_by_name(given.get("signals", {}), "signals").items():
            about = told if isinstance(told, Mapping) else {"from": told}
            if not isinstance(about.get("from", name), str) or set(about) - {"from", "role"}:
                raise ValueError(f"signal {name!r}: give the name of an array, or {{'from': …, 'role': …}}")
            signals[name] = about.get("from", name)
            if about.get("role") is not None:
                roles[name] = as_role(about["role"])
        fps = given.get("fps")
        if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0):
            raise ValueError(f"fps is a positive number, not {fps!r}")
        for key in ("episodes", "ends", "times"):
            if given.get(key) is not None and not isinstance(given[key], str):
                raise ValueError(f"{key!r} of a mapping is a name, not {given[key]!r}")
        static = _texts_by_name(given.get("static", {}), "static")
        return cls(given.get("episodes"), given.get("ends"), signals, roles, static, given.get("times"), fps)

    def chosen(self, available: Sequence[str], place: str) -> dict[str, str]:
        """Signal -> array among those that are there."""
        if not self.signals:
            left_out = {self.ends, *self.static.values()}
            return {name: name for name in available if name not in left_out}
        for name, path in self.signals.items():
            if path not in available:
                raise CorruptLayoutError(
                    f"there is no array {path!r} for signal {name!r}; there are {', '.join(available[:30]) or 'none'}."
                    f"{nearest(path, available)}",
                    path=place,
                    hint="Correct the mapping.",
                )
        return dict(self.signals)

    def bounds(self, values: NDArray[Any], count: int, place: str) -> NDArray[np.int64]:
        """Where episodes begin, and the end, from ends or flags."""
        flat = values.reshape(len(values), -1)[:, 0] if values.ndim else values.reshape(1)
        if (
            len(flat) == count
            and bool(np.isin(flat, (0, 1)).all())
            and not (count == 1 and flat[0] == 1 and flat.dtype.kind in "iu")
        ):
            ends = np.flatnonzero(flat) + 1
        elif flat.dtype.kind in "iu":
            ends = flat.astype(np.int64)
        else:
            raise CorruptLayoutError(f"{self.ends!r} holds neither ends of episodes nor flags", path=place)
        return bounds_of(ends, count, place, may_be_open=len(flat) == count)

    def role(self, name: str, rows: Rows) -> Role:
        """What part a signal plays: as the mapping says, or by its name."""
        return self.roles.get(name) or guess_role(name, rows.kind or "tensor").role

    def parts(
        self, name: str, rows: Mapping[str, Rows], static: Mapping[str, Any], fps: float | None, place: str,
        meta: Mapping[str, Any] | None = None,
    ) -> Parts:  # fmt: skip
        """An episode of these columns."""
        columns = {signal: EpisodeColumn(each, self.role(signal, each)) for signal, each in rows.items()}
        steps = steps_of(columns, name, place)
        times = None
        if self.times is not None:
            if self.times not in rows:
                raise CorruptLayoutError(
                    f"there is no signal {self.times!r} with times.{nearest(self.times, rows)}", path=place
                )
            times = seconds_as_times(rows[self.times].read(0, rows[self.times].count), f"{place}#{name}")[
                :steps
            ]
        return Parts(name, steps, columns, static, meta or {}, fps or self.fps, times=times, place=place)


def steps_of(columns: Mapping[str, EpisodeColumn], name: str, place: str) -> int:
    """How many steps columns have: as many rows as the actions, or as the shortest; one more is an observation more."""
    counts = {signal: column.rows.count for signal, column in columns.items()}
    actions = [counts[signal] for signal, column in columns.items() if column.role == "action"]
    steps = min(actions or counts.values(), default=0)
    for signal, count in counts.items():
        if count not in (steps, steps + 1):
            raise CorruptLayoutError(
                f"signal {signal!r} of episode {name!r} has {count} rows, there are {steps} steps", path=place,
                hint="Leave it out of the mapping, or name other arrays.",
            )  # fmt: skip
    return steps


def bounds_of(
    ends: NDArray[np.int64], count: int, place: str, *, may_be_open: bool = False
) -> NDArray[np.int64]:
    """Where episodes begin, and the end; ends that do not grow, or pass the rows, are damage."""
    bounds = np.concatenate([[0], ends]).astype(np.int64)
    if may_be_open and bounds[-1] < count:
        bounds = np.append(bounds, count)
    if (np.diff(bounds) < 0).any() or bounds[-1] != count:
        raise CorruptLayoutError(
            f"the ends of the episodes do not grow from 0 to the {count} rows there are", path=place
        )
    return bounds


def _texts_by_name(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{what!r} of a mapping is an object of names, not {given!r}")
    return dict(given)
