"""Open a Minari dataset as episodes: T actions and T + 1 observations."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.hdf5.file import Hdf5File
from warpdata.convert.hdf5.layouts import all_attributes, json_object, whole_number
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.minari.arrow import MinariTable
from warpdata.convert.minari.spaces import box_shape, is_image_space, leaves, parse_space
from warpdata.convert.place import Place
from warpdata.convert.stepped import EpisodeColumn, Parts, PictureRows, Rows, SteppedEpisodes, positive
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BadMagicError, CorruptLayoutError, FormatError, UnsupportedVersionError
from warpdata.timeline.meta import Role

MAIN_FILE = "main_data.hdf5"
METADATA = "metadata.json"
FORMATS = ("hdf5", "arrow", "parquet")
_MAX_METADATA = 256 << 20
_ROLES: dict[str, Role] = {
    "observations": "observation", "actions": "action", "rewards": "reward", "terminations": "terminated",
    "truncations": "truncated",
}  # fmt: skip
PER_STEP = ("actions", "rewards", "terminations", "truncations")
_GROUP = re.compile(r"episode_(\d+)")


def _folder(place: Place) -> str | None:
    """The folder with the metadata: `data/`, or the place itself."""
    for folder in ("data/", ""):
        if place.exists(f"{folder}{METADATA}"):
            return folder
    return None


def matches(place: Place) -> bool:
    """Whether its metadata are Minari's."""
    folder = None if place.is_file else _folder(place)
    if folder is None:
        return False
    try:
        told = parse_json_object(
            place.read(f"{folder}{METADATA}", max_bytes=_MAX_METADATA),
            max_bytes=_MAX_METADATA,
            allow_nan=True,
        )
    except FormatError:
        return False
    return {"total_episodes", "total_steps"} <= set(told) and (
        "data_format" in told or "minari_version" in told
    )


def read(source: Any, *, fps: float | None = None, infos: bool = True) -> Episodes:
    """The episodes of a Minari dataset; rows are read when they are asked for.

    `fps` is the rate of the steps where the environment does not say it. `infos=False` leaves infos out.
    """
    return Episodes(MinariEpisodes(Place.of(source), fps, infos))


class MinariEpisodes(SteppedEpisodes):
    """A dataset with its metadata; how episodes are stored is another thing."""

    def __init__(self, place: Place, fps: float | None, infos: bool) -> None:
        self._place, self._fps, self._infos = place, fps, infos
        folder = None if place.is_file else _folder(place)
        if folder is None:
            raise BadMagicError(f"not a Minari dataset: there is no 'data/{METADATA}'", path=place.name)
        self._folder = folder
        _ = self.stored  # what cannot be read is told at once

    @cached_property
    def told(self) -> dict[str, Any]:
        """The metadata of the dataset."""
        name = f"{self._folder}{METADATA}"
        try:
            return parse_json_object(
                self._place.read(name, max_bytes=_MAX_METADATA), max_bytes=_MAX_METADATA, allow_nan=True
            )
        except FormatError as error:
            raise type(error)(f"{name}: {error.message}", path=self._place.name) from None

    @cached_property
    def spaces(self) -> dict[str, Mapping[str, Any]]:
        """Every leaf of the spaces by the name of its signal."""
        found: dict[str, Mapping[str, Any]] = {}
        for what, name in (("observation_space", "observations"), ("action_space", "actions")):
            found |= dict(leaves(parse_space(self.told.get(what), what, self.name), name))
        return found

    @cached_property
    def stored(self) -> _Stored:
        """How the episodes are stored."""
        kind = self.told.get("data_format") or (
            "hdf5" if self._place.exists(f"{self._folder}{MAIN_FILE}") else "arrow"
        )
        if kind not in FORMATS:
            raise UnsupportedVersionError(f"episodes stored as {kind!r}", path=self.name)
        made: _Stored = _InHdf5(self) if kind == "hdf5" else _InTables(self, kind)
        stated = self.told.get("total_episodes")
        if stated is not None and stated != len(made.numbers):
            raise CorruptLayoutError(
                f"the metadata say {stated} episodes, there are {len(made.numbers)}", path=self.name
            )
        return made

    @cached_property
    def ids(self) -> Sequence[str]:
        """episode_0, episode_1, …"""
        return [f"episode_{number}" for number in self.stored.numbers]

    @property
    def place(self) -> Place:
        """Where the dataset lies."""
        return self._place

    @property
    def folder(self) -> str:
        """The folder of the data inside it, with `/`."""
        return self._folder

    def parts(self, position: int) -> Parts:
        """The columns of an episode."""
        number = self.stored.numbers[position]
        place = f"{self.name}#{self.ids[position]}"
        about, arrays, kept = self.stored.episode(number, place)
        steps = self._steps(arrays, about, self.ids[position], place)
        columns: dict[str, EpisodeColumn] = {}
        for name, rows in arrays.items():
            top = name.partition("/")[0]
            if top == "infos" and not self._infos:
                continue
            if rows.count not in (steps, steps + 1) or (top == "observations" and rows.count != steps + 1):
                raise CorruptLayoutError(
                    f"{name!r} of {self.ids[position]!r} has {rows.count} rows, there are {steps} actions",
                    path=place,
                )
            columns[name] = EpisodeColumn(self._pictures(name, rows), _ROLES.get(top, "other"))
        env = json_object(self.told.get("env_spec"))
        static: dict[str, Any] = {}
        if isinstance(env.get("id"), str):
            static["env_id"] = env["id"]
        seed = about.get("seed")
        if not isinstance(seed, str) and (number := whole_number(seed)) is not None:
            static["seed"] = number
        kwargs = env.get("kwargs")
        fps = positive(kwargs.get("render_fps")) if isinstance(kwargs, dict) else None
        return Parts(
            self.ids[position],
            steps,
            columns,
            static,
            {"minari": {"episode": about, **kept}},
            self._fps or fps,
            place=place,
        )

    def _steps(self, arrays: Mapping[str, Rows], about: Mapping[str, Any], name: str, place: str) -> int:
        if "rewards" not in arrays:
            raise CorruptLayoutError(f"{name!r} has no rewards", path=place)
        steps = arrays["rewards"].count
        stated = unpacked(about.get("total_steps"))
        if stated is not None and whole_number(stated) != steps:
            raise CorruptLayoutError(f"{name!r} says {stated} steps and has {steps}", path=place)
        for top in PER_STEP:
            for path, rows in arrays.items():
                if path.partition("/")[0] == top and rows.count != steps:
                    raise CorruptLayoutError(
                        f"{path!r} of {name!r} has {rows.count} rows, there are {steps} steps", path=place
                    )
        return steps

    def _pictures(self, name: str, rows: Rows) -> Rows:
        """Image spaces are stored as JPEG, unless their rows have the shape of the space."""
        space = self.spaces.get(name)
        shape = box_shape(space) or ()
        is_encoded = rows.kind == "bytes" or (len(rows.row_shape) == 1 and len(shape) > 1)
        if not is_encoded or not is_image_space(space):
            return rows
        return PictureRows(rows, has_axis=len(shape) == 3 and shape[2] == 1)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the dataset as they are."""
        return {"minari": {"metadata": packed(self.told)}}

    @property
    def name(self) -> str:
        """Where it lies."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (MinariEpisodes, (self._place, self._fps, self._infos))


class _Stored(ABC):
    """Episodes by number."""

    numbers: Sequence[int]

    @abstractmethod
    def episode(self, number: int, place: str) -> tuple[dict[str, Any], dict[str, Rows], dict[str, Any]]:
        """What is said of an episode, its columns by name, and what else is to be kept."""


class _InHdf5(_Stored):
    """One file, a group per episode."""

    def __init__(self, owner: MinariEpisodes) -> None:
        name = f"{owner.folder}{MAIN_FILE}"
        place = owner.place
        self._file = Hdf5File(place.inside(name) if place.path is not None else place.open(name))
        found = [_GROUP.fullmatch(name) for name in self._file.names("/")]
        self.numbers = sorted(int(each[1]) for each in found if each)

    def episode(self, number: int, _: str) -> tuple[dict[str, Any], dict[str, Rows], dict[str, Any]]:
        """The arrays of the group; a Tuple is `_index_0` … there."""
        group = f"/episode_{number}"
        attributes = all_attributes(self._file, group)
        arrays: dict[str, Rows] = {}
        kept: dict[str, Any] = {}
        for path in self._file.arrays(group):
            name = re.sub(r"(^|/)_index_(\d+)(?=/|$)", r"\1\2", path)
            if self._file.shape(f"{group}/{path}"):
                arrays[name] = self._file.rows(f"{group}/{path}")
            else:
                kept[name] = packed(self._file.whole(f"{group}/{path}"))
        below = {path: value for path, value in attributes.items() if path}
        more = {**({"arrays": kept} if kept else {}), **({"attributes": below} if below else {})}
        return attributes[""], arrays, more


class _InTables(_Stored):
    """A folder per episode, with one table and its metadata."""

    def __init__(self, owner: MinariEpisodes, kind: str) -> None:
        self._owner, self._kind = owner, kind
        pattern = re.compile(rf"{re.escape(owner.folder)}(\d+)/part-0\.{kind}")
        names = owner.place.names(owner.folder.rstrip("/"))
        self.numbers = sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def episode(self, number: int, place: str) -> tuple[dict[str, Any], dict[str, Rows], dict[str, Any]]:
        """The columns of the table; the last row of what goes by step is padding."""
        owner = self._owner
        folder = f"{owner.folder}{number}"
        table = MinariTable(owner.place, f"{folder}/part-0.{self._kind}", self._kind)
        told = owner.place.read(f"{folder}/{METADATA}", max_bytes=1 << 24)
        try:
            about = packed(parse_json_object(told, allow_nan=True))
        except FormatError as error:
            raise CorruptLayoutError(f"the metadata of the episode: {error.message}", path=place) from None
        if table.count < 1:
            raise CorruptLayoutError("the table of the episode is empty", path=place)
        arrays: dict[str, Rows] = {}
        for path, field in table.leaves():
            is_step = path.partition("/")[0] in PER_STEP
            shape = box_shape(owner.spaces.get(path))
            is_list = not is_image_space(owner.spaces.get(path)) or not _is_binary(field)
            arrays[path] = table.rows(path, field, shape if is_list else None, table.count - is_step)
        return about, arrays, {}


def _is_binary(field: Any) -> bool:
    return str(field.type) in ("binary", "large_binary")
