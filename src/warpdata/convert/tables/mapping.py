"""Files of arrays without a known layout: a mapping from the caller names episodes, signals, roles and times."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.convert.aligning import seconds_as_times
from warpdata.convert.place import Place
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, SteppedEpisodes
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, nearest
from warpdata.formats.episodedir.pictures import is_still
from warpdata.timeline.meta import Role, as_role, guess_role

_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("episodes", "ends", "times"), ("a name", lambda value: isinstance(value, str))),
    **dict.fromkeys(
        ("signals", "static"),
        ("an object of names", lambda value: isinstance(value, Mapping) and {str} >= set(map(type, value))),
    ),
    "fps": (
        "a positive number",
        lambda value: isinstance(value, int | float) and value is not True and value > 0,
    ),
}
"""Key of a mapping -> what its value has to be."""
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
    def of(cls, given: MappingSource) -> FileMapping | None:
        """A mapping from a dict, or from a JSON file."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | os.PathLike):
            given = Place.of(given).read_json(max_bytes=1 << 20)
        if not isinstance(given, Mapping):
            raise TypeError(f"a mapping is a dict or the path of a JSON file, not {type(given).__name__}")
        stated = {key: value for key, value in given.items() if value is not None}
        for key in given:
            if key not in _KEYS:
                raise ValueError(f"a mapping has no {key!r}.{nearest(key, _KEYS)}")
            expected, fits = _KEYS[key]
            if key in stated and not fits(stated[key]):
                raise ValueError(f"{key!r} of a mapping is {expected}, not {stated[key]!r}")
        signals: dict[str, str] = {}
        roles: dict[str, Role] = {}
        for name, source in stated.pop("signals", {}).items():
            about = source if isinstance(source, Mapping) else {"from": source}
            if not isinstance(about.get("from", name), str) or set(about) - {"from", "role"}:
                raise ValueError(f"signal {name!r}: give the name of an array, or {{'from': …, 'role': …}}")
            signals[name] = about.get("from", name)
            if about.get("role") is not None:
                roles[name] = as_role(about["role"])
        return cls(signals=signals, roles=roles, **stated)

    def arrays(self, available: Sequence[str], place: str) -> dict[str, str]:
        """Signal -> array among the available ones."""
        if not self.signals:
            left_out = {self.ends, *self.static.values()}
            return {name: name for name in available if name not in left_out}
        for name, path in self.signals.items():
            if path not in available:
                listed = f"{', '.join(available[:30]) or 'none'}.{nearest(path, available)}"
                fact = f"there is no array {path!r} for signal {name!r}; there are {listed}"
                raise CorruptLayoutError(fact, path=place, hint="Correct the mapping.")
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


MappingSource = FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None


def bounds_of(ends: Bounds, count: int, place: str, *, may_be_open: bool = False) -> Bounds:
    """Where episodes begin, and the end; ends that do not grow, or pass the `count` rows, are damage."""
    bounds = np.concatenate([[0], ends]).astype(np.int64)
    if may_be_open and bounds[-1] < count:
        bounds = np.append(bounds, count)
    if (np.diff(bounds) < 0).any() or bounds[-1] != count:
        fact = f"the ends of the episodes do not grow from 0 to the {count} rows there are"
        raise CorruptLayoutError(fact, path=place)
    return bounds


def by_number(name: str) -> tuple[int, str, int]:
    """Sorts names that end in numbers by these: demo_10 comes after demo_9."""
    number = re.search(r"(\d+)$", name)
    return (0, name[: number.start()], int(number[1])) if number else (1, name, 0)


class EpisodeSpan(NamedTuple):
    """An episode in a file: its group, and its rows if the arrays hold several episodes."""

    name: str
    group: str = ""
    start: int | None = None
    stop: int | None = None


class ArrayFile(Reopens, ABC):
    """A file of named arrays, which a mapping turns into episodes."""

    name: str

    @abstractmethod
    def paths(self, group: str = "") -> Sequence[str]:
        """The arrays below a group, by relative path."""

    @abstractmethod
    def shape(self, path: str) -> tuple[int, ...] | None:
        """The shape of an array; empty or None of a single value."""

    @abstractmethod
    def rows(self, path: str) -> Rows:
        """An array by rows."""

    @abstractmethod
    def whole(self, path: str) -> Any:
        """A small array, or a single value."""

    def spans(self, _mapping: FileMapping) -> list[EpisodeSpan] | None:
        """The episodes that `episodes` of the mapping names; None if the whole file is one."""
        return None


class MappedEpisodes(SteppedEpisodes):
    """The episodes of a file of arrays, or of all those in a folder."""

    def __init__(
        self,
        place: Place,
        suffixes: tuple[str, ...],
        open_file: Callable[[Place, str], ArrayFile],
        mapping: MappingSource,
        fps: float | None,
    ) -> None:
        super().__init__(place, fps)
        self._mapping = FileMapping.of(mapping) or FileMapping()
        self._files = {stem: open_file(place, name) for stem, name in list_files(place, suffixes).items()}

    @cached_property
    def _episodes(self) -> dict[str, tuple[ArrayFile, EpisodeSpan]]:
        episodes: dict[str, tuple[ArrayFile, EpisodeSpan]] = {}
        ends = self._mapping.ends
        for stem, file in self._files.items():
            spans = file.spans(self._mapping)
            if spans is None and ends is not None:
                shapes = map(file.shape, self._mapping.arrays(file.paths(), file.name).values())
                count = max((shape[0] for shape in shapes if shape), default=0)
                edges = self._mapping.bounds(np.asarray(file.whole(ends)), count, file.name).tolist()
                spans = [EpisodeSpan(f"{stem}-{k:06d}", "", *edge) for k, edge in enumerate(pairwise(edges))]
            for span in [EpisodeSpan(stem)] if spans is None else spans:
                name = f"{stem}/{span.name}" if span.group and len(self._files) > 1 else span.name
                if name in episodes:
                    raise CorruptLayoutError(f"the rows of {name!r} are not neighbours", path=file.name)
                episodes[name] = file, span
        return episodes

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the groups, the numbers of the episodes, or the names of the files."""
        return list(self._episodes)

    def parts(self, position: int) -> Parts:
        """As many steps as actions, else as the shortest array has rows."""
        name, mapping = self.ids[position], self._mapping
        file, (_, group, start, stop) = self._episodes[name]
        place, paths = f"{file.name}#{name}", file.paths(group)
        above = f"{group}/" if group else ""
        columns: dict[str, EpisodeColumn] = {}
        static: dict[str, Any] = {}
        for signal, path in mapping.arrays(paths, place).items():
            if not file.shape(above + path):
                static[signal] = _plain(file.whole(above + path))
                continue
            rows = file.rows(above + path)
            rows = rows if start is None or stop is None else rows.part(start, stop)
            if rows.kind == "bytes" and rows.count and is_still(bytes(rows.read(0, 1)[0])):
                rows = rows.as_pictures()
            role = mapping.roles.get(signal) or guess_role(signal, rows.kind or "tensor").role
            columns[signal] = EpisodeColumn(rows, role)
        for item, path in mapping.static.items():
            static[item] = path
            if path in paths:
                first, whole = start or 0, above + path
                is_row = bool(file.shape(whole))
                value = file.rows(whole).read(first, first + 1)[0] if is_row else file.whole(whole)
                static[item] = _plain(value)
        steps, times = _count_steps(name, columns, place), None
        if mapping.times is not None:
            if mapping.times not in columns:
                fact = f"there is no signal {mapping.times!r} with times.{nearest(mapping.times, columns)}"
                raise CorruptLayoutError(fact, path=place)
            times = seconds_as_times(columns[mapping.times].rows.all(), place)[:steps]
        return Parts(name, steps, columns, static, {}, self._fps or mapping.fps, times=times, place=place)


def _count_steps(name: str, columns: Mapping[str, EpisodeColumn], place: str) -> int:
    """The number of actions, else of the rows of the shortest array; the others have as many, or one more."""
    counts = {signal: column.rows.count for signal, column in columns.items()}
    actions = [counts[signal] for signal, column in columns.items() if column.role == "action"]
    steps = min(actions or counts.values(), default=0)
    for signal, count in counts.items():
        if count not in (steps, steps + 1):
            fact = f"signal {signal!r} of episode {name!r} has {count} rows, there are {steps} steps"
            hint = "Leave it out of the mapping, or name other arrays."
            raise CorruptLayoutError(fact, path=place, hint=hint)
    return steps


def _plain(value: Any) -> Any:
    """A single value as static items hold it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def list_files(place: Place, suffixes: tuple[str, ...]) -> dict[str, str]:
    """The files of a folder with such a suffix by their stems, in the order of their numbers.

    The place itself if it is a file: its name is empty then. Files that share a stem go by their whole names.
    """
    if place.is_file:
        return {PurePosixPath(place.name).stem: ""}
    names = [name for name in place.children() if name.lower().endswith(suffixes)]
    if not names:
        raise BlobNotFoundError(f"no {suffixes[0]} file in this folder", path=place.name)
    stems = {name: PurePosixPath(name).stem for name in names}
    names.sort(key=lambda name: (by_number(stems[name]), name))
    return {stems[name] if list(stems.values()).count(stems[name]) == 1 else name: name for name in names}
