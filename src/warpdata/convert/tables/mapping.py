"""The meaning of arrays in files of no known layout, as the caller gives it: episodes, signals, roles, times."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.aligning import seconds_as_times
from warpdata.convert.place import Place
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows
from warpdata.errors import CorruptLayoutError, nearest
from warpdata.timeline.meta import Role, as_role, guess_role

_KEYS = ("episodes", "ends", "signals", "static", "fps", "times")
Bounds = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileMapping:
    """Which arrays are signals, their roles, and where episodes end.

    As JSON: `{"episodes": "traj_*", "signals": {"state": "obs/qpos", "action": {"from": "act", "role": "action"}},
    "ends": "episode_ends", "static": {"task": "instruction"}, "times": "stamp", "fps": 20}`; all may be left out.
    """

    episodes: str | None = None
    """HDF5: the groups that are episodes, `*` for any name. Parquet: the column with the number of the episode."""
    ends: str | None = None
    """The array with the end of every episode (exclusive, cumulative), or with a flag at the last step of each."""
    signals: Mapping[str, str] = field(default_factory=dict)
    """Signal -> array; if empty, all arrays under their own names."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    static: Mapping[str, str] = field(default_factory=dict)
    """Static item -> array with one value, or the value itself if there is no such array."""
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
        for key in given:
            if key not in _KEYS:
                raise ValueError(f"a mapping has no {key!r}.{nearest(key, _KEYS)}")
        _check_types(given)
        signals, roles = _signals_and_roles(given.get("signals", {}))
        static = dict(given.get("static", {}))
        names = (given.get("episodes"), given.get("ends"))
        return cls(*names, signals, roles, static, given.get("times"), given.get("fps"))

    def arrays(self, available: Sequence[str], place: str) -> dict[str, str]:
        """Signal -> array among the available ones."""
        if not self.signals:
            left_out = {self.ends, *self.static.values()}
            return {name: name for name in available if name not in left_out}
        for name, path in self.signals.items():
            if path not in available:
                listed = ", ".join(available[:30]) or "none"
                fact = f"there is no array {path!r} for signal {name!r}; there are {listed}."
                raise CorruptLayoutError(
                    f"{fact}{nearest(path, available)}", path=place, hint="Correct the mapping."
                )
        return dict(self.signals)

    def bounds(self, values: NDArray[Any], count: int, place: str) -> Bounds:
        """Where episodes begin, and the end, from ends or flags of `count` rows."""
        flat = values.reshape(len(values), -1)[:, 0] if values.ndim else values.reshape(1)
        is_one_end = count == 1 and len(flat) == 1 and flat[0] == 1 and flat.dtype.kind in "iu"
        if len(flat) == count and bool(np.isin(flat, (0, 1)).all()) and not is_one_end:
            ends = np.flatnonzero(flat) + 1
        elif flat.dtype.kind in "iu":
            ends = flat.astype(np.int64)
        else:
            raise CorruptLayoutError(f"{self.ends!r} holds neither ends of episodes nor flags", path=place)
        return bounds_of(ends, count, place, may_be_open=len(flat) == count)

    def parts(
        self, name: str, rows: Mapping[str, Rows], static: Mapping[str, Any], fps: float | None, place: str
    ) -> Parts:
        """An episode of these columns: as many steps as actions, else as the shortest column has rows."""
        columns = {
            signal: EpisodeColumn(
                each, self.roles.get(signal) or guess_role(signal, each.kind or "tensor").role
            )
            for signal, each in rows.items()
        }
        actions = [column.rows.count for column in columns.values() if column.role == "action"]
        steps = min(actions or [each.count for each in rows.values()], default=0)
        for signal, each in rows.items():
            if each.count not in (steps, steps + 1):
                fact = f"signal {signal!r} of episode {name!r} has {each.count} rows, there are {steps} steps"
                hint = "Leave it out of the mapping, or name other arrays."
                raise CorruptLayoutError(fact, path=place, hint=hint)
        times = None
        if self.times is not None:
            if self.times not in rows:
                fact = f"there is no signal {self.times!r} with times.{nearest(self.times, rows)}"
                raise CorruptLayoutError(fact, path=place)
            stamps = rows[self.times].read(0, rows[self.times].count)
            times = seconds_as_times(stamps, f"{place}#{name}")[:steps]
        return Parts(name, steps, columns, static, {}, fps or self.fps, times=times, place=place)


def _check_types(given: Mapping[str, Any]) -> None:
    for key in ("episodes", "ends", "times"):
        if given.get(key) is not None and not isinstance(given[key], str):
            raise ValueError(f"{key!r} of a mapping is a name, not {given[key]!r}")
    for key in ("signals", "static"):
        names = given.get(key, {})
        if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key!r} of a mapping is an object of names, not {names!r}")
    fps = given.get("fps")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0):
        raise ValueError(f"fps is a positive number, not {fps!r}")


def _signals_and_roles(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Role]]:
    signals: dict[str, str] = {}
    roles: dict[str, Role] = {}
    for name, stated in given.items():
        about = stated if isinstance(stated, Mapping) else {"from": stated}
        if not isinstance(about.get("from", name), str) or set(about) - {"from", "role"}:
            raise ValueError(f"signal {name!r}: give the name of an array, or {{'from': …, 'role': …}}")
        signals[name] = about.get("from", name)
        if about.get("role") is not None:
            roles[name] = as_role(about["role"])
    return signals, roles


def bounds_of(ends: Bounds, count: int, place: str, *, may_be_open: bool = False) -> Bounds:
    """Where episodes begin, and the end; ends that do not grow, or pass the `count` rows, are damage."""
    bounds = np.concatenate([[0], ends]).astype(np.int64)
    if may_be_open and bounds[-1] < count:
        bounds = np.append(bounds, count)
    if (np.diff(bounds) < 0).any() or bounds[-1] != count:
        fact = f"the ends of the episodes do not grow from 0 to the {count} rows there are"
        raise CorruptLayoutError(fact, path=place)
    return bounds
