"""Which episodes an HDF5 file holds and what each is made of: robomimic, LIBERO, ManiSkill, ALOHA, D4RL, a mapping."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.hdf5.file import Hdf5File
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.stepped import ChainedRows, EpisodeColumn, PartRows, Parts, PictureRows, Rows, positive
from warpdata.convert.tables.mapping import FileMapping
from warpdata.errors import (
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    UnsupportedDtypeError,
    nearest,
)
from warpdata.timeline.meta import Role

Layout = Literal["robomimic", "libero", "maniskill", "aloha", "d4rl"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NextObs = Literal["merge", "keep"]
Split = Literal["auto", "done", "timeout"]

OWN_DOCUMENT = "warpdata"
"""The text in which warpdata keeps what robomimic's layout has no place for."""
_NUMBER = re.compile(r"(\d+)$")
_MAX_KEPT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller said of a set of HDF5 files."""

    fps: float | None = None
    next_obs: NextObs = "merge"
    split: Split = "auto"
    max_episode_steps: int = 1000


class FileLayout(ABC):
    """The episodes of one file."""

    usual_fps = 20.0

    def __init__(self, file: Hdf5File, options: Options, sidecar: Mapping[str, Any] | None = None) -> None:
        self.file = file
        self.options = options
        self.sidecar = sidecar

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The name of every episode, in order."""

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """What an episode is made of."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says of all its episodes."""
        return {"attributes": {"": self.file.attributes("/")}}

    def where(self, episode_id: str) -> str:
        """The place of an episode, for messages."""
        return f"{self.file.name}#{episode_id}"


class _Groups(FileLayout):
    """A group per episode; what has as many rows as there are steps, or one more, is a signal."""

    @cached_property
    def ids(self) -> Sequence[str]:
        """The groups in the order of their numbers: demo_10 comes after demo_9."""
        names = [name for name in self.file.names(self.above) if self.is_episode(name)]
        return sorted(names, key=_by_number)

    above = "/"

    @abstractmethod
    def is_episode(self, name: str) -> bool:
        """Whether a group of this name is an episode."""

    def group(self, position: int) -> str:
        """The path of an episode."""
        return f"{self.above.rstrip('/')}/{self.ids[position]}"

    def parts(self, position: int) -> Parts:
        """The arrays of the group."""
        name, group = self.ids[position], self.group(position)
        arrays, attributes = self.file.contents(group)
        steps = self.steps(name, arrays, attributes.get("", {}))
        columns, kept = self.columns(name, group, arrays, steps)
        facts: dict[str, Any] = {"attributes": attributes}
        if kept:
            facts["arrays"] = kept
        static, more = self.facts(name, attributes.get("", {}))
        return Parts(
            name, steps, columns, static, {"hdf5": {**facts, **more}}, self.options.fps or self.fps,
            self.usual_fps, place=self.where(name),
        )  # fmt: skip

    def columns(
        self, name: str, group: str, arrays: Mapping[str, tuple[int, ...]], steps: int
    ) -> tuple[dict[str, EpisodeColumn], dict[str, Any]]:
        """Arrays with a row per step as columns; the others as they are, to be kept."""
        columns: dict[str, EpisodeColumn] = {}
        kept: dict[str, Any] = {}
        for path, shape in arrays.items():
            if shape and shape[0] in (steps, steps + 1) and 0 not in shape[1:]:
                columns[path] = EpisodeColumn(self.file.rows(f"{group}/{path}"), self.role(path))
            else:
                kept[path] = self.keep(name, group, path)
        return columns, kept

    def keep(self, name: str, group: str, path: str) -> Any:
        """An array that has no row per step, as metadata."""
        try:
            return packed(self.file.whole(f"{group}/{path}", _MAX_KEPT_BYTES))
        except (LimitExceededError, TypeError) as error:
            raise CorruptLayoutError(
                f"{path!r} of episode {name!r} has no row per step and cannot be kept as metadata ({error})",
                path=self.where(name),
                hint="Name the arrays to read with a mapping.",
            ) from None

    def steps(self, name: str, arrays: Mapping[str, tuple[int, ...]], _: Mapping[str, Any]) -> int:
        """How many steps the episode has."""
        actions = [shape for path, shape in arrays.items() if self.role(path) == "action" and shape]
        if not actions:
            raise CorruptLayoutError(
                f"episode {name!r} has no actions; it has {', '.join(arrays) or 'nothing'}",
                path=self.where(name),
            )
        return actions[0][0]

    @cached_property
    def fps(self) -> float | None:
        """Steps per second, where the file says it."""
        return None

    def role(self, path: str) -> Role:
        """What part an array plays."""
        return _ROLES.get(path) or ("observation" if path.startswith(("obs/", "observations/")) else "other")

    def facts(self, _name: str, _: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Static items of an episode, and what else is to be kept of it."""
        return {}, {}


_ROLES: dict[str, Role] = {
    "actions": "action", "action": "action", "rewards": "reward", "reward": "reward", "dones": "terminated",
    "terminated": "terminated", "truncated": "truncated", "terminals": "terminated", "timeouts": "truncated",
    "observations": "observation",
}  # fmt: skip


class Robomimic(_Groups):
    """/data/demo_0 … with attributes, /mask/<filter key>."""

    above = "/data"

    def is_episode(self, name: str) -> bool:
        """Every group below /data."""
        return self.file.is_group(f"/data/{name}")

    @cached_property
    def ids(self) -> Sequence[str]:
        """demo_0, demo_1, … by number."""
        return sorted(self.file.names("/data"), key=_by_number)

    @cached_property
    def data_attributes(self) -> dict[str, Any]:
        """The attributes of /data."""
        return self.file.attributes("/data")

    @cached_property
    def masks(self) -> dict[str, list[str]]:
        """Filter key -> names of demos."""
        if not self.file.is_group("/mask"):
            return {}
        found = {}
        for path in self.file.arrays("/mask"):
            listed = np.atleast_1d(self.file.whole(f"/mask/{path}"))
            found[path] = [
                each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in listed
            ]
        return found

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes of the file and of /data, the masks with their exact types, and arrays elsewhere."""
        found: dict[str, Any] = {"attributes": {"": self.file.attributes("/"), "data": self.data_attributes}}
        outside = [
            name
            for name in self.file.names("/")
            if name not in ("data", OWN_DOCUMENT) and not self.file.is_empty(name)
        ]
        arrays: dict[str, Any] = {}
        for name in outside:
            paths = (
                [f"{name}/{each}" for each in self.file.arrays(name)] if self.file.is_group(name) else [name]
            )
            for path in paths:
                arrays[path] = packed(self.file.whole(path))
        return {**found, "arrays": arrays} if arrays else found

    @cached_property
    def env_args(self) -> dict[str, Any]:
        """The arguments of the environment, where they are JSON."""
        return json_object(self.data_attributes.get("env_args"))

    @cached_property
    def fps(self) -> float | None:
        """env_kwargs.control_freq."""
        kwargs = self.env_args.get("env_kwargs")
        return positive(kwargs.get("control_freq")) if isinstance(kwargs, dict) else None

    def steps(self, name: str, arrays: Mapping[str, tuple[int, ...]], attributes: Mapping[str, Any]) -> int:
        """The rows of the actions, which `num_samples` must agree with."""
        found = super().steps(name, arrays, attributes)
        with_number = self.file.attributes(f"/data/{name}").get("num_samples")
        stated = None if with_number is None else whole_number(with_number)
        if stated is not None and stated != found:
            raise CorruptLayoutError(
                f"episode {name!r} says num_samples = {stated} and has {found} actions", path=self.where(name)
            )
        return found

    def columns(
        self, name: str, group: str, arrays: Mapping[str, tuple[int, ...]], steps: int
    ) -> tuple[dict[str, EpisodeColumn], dict[str, Any]]:
        """Observations and what follows them as one signal of N + 1 rows, where there are both."""
        wrong = [
            path for path, shape in arrays.items()
            if path.startswith(("obs/", "next_obs/")) and (not shape or shape[0] != steps)
        ]  # fmt: skip
        if wrong:
            raise CorruptLayoutError(
                f"{wrong[0]!r} of episode {name!r} has shape {arrays[wrong[0]]}, there are {steps} actions",
                path=self.where(name),
            )
        columns, kept = super().columns(name, group, arrays, steps)
        if self.options.next_obs == "merge":
            for path in [path for path in columns if path.startswith("next_obs/")]:
                own = f"obs/{path.removeprefix('next_obs/')}"
                if own in columns and steps:
                    rows = _FollowedRows(columns[own].rows, columns.pop(path).rows, own, self.where(name))
                    columns[own] = EpisodeColumn(rows, "observation")
        return columns, kept

    def facts(self, name: str, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The environment, the task where one is told, and the split."""
        static: dict[str, Any] = {}
        if isinstance(self.env_args.get("env_name"), str):
            static["env_id"] = self.env_args["env_name"]
        told = json_object(attributes.get("ep_meta")).get("lang")
        if isinstance(told, str):
            static["task"] = told
        for split in ("train", "valid"):
            if name in self.masks.get(split, ()):
                static["split"] = split
        merged = self.options.next_obs == "merge" and self.file.has(f"/data/{name}/next_obs")
        return static, {"layout": "robomimic", "next_obs": True} if merged else {"layout": "robomimic"}


class Libero(Robomimic):
    """robomimic's layout with the task in the attributes of /data."""

    def facts(self, name: str, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The instruction in words."""
        static, more = super().facts(name, attributes)
        told = json_object(self.data_attributes.get("problem_info")).get("language_instruction")
        told = (
            "".join(told) if isinstance(told, list) and all(isinstance(each, str) for each in told) else told
        )
        if not isinstance(told, str):
            told = PurePosixPath(self.file.name).stem.removesuffix("_demo").replace("_", " ")
        return {**static, "task": told.strip('"')}, {**more, "layout": "libero"}


class ManiSkill(_Groups):
    """traj_0 … with T actions and T + 1 observations, and a JSON file of the same name beside."""

    def is_episode(self, name: str) -> bool:
        """traj_<number>."""
        return name.startswith("traj_")

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON file, without what it says of single episodes."""
        beside = {key: value for key, value in (self.sidecar or {}).items() if key != "episodes"}
        return {**super().metadata, **({"json": packed(beside)} if beside else {})}

    @cached_property
    def fps(self) -> float | None:
        """sim_config.control_freq."""
        kwargs = (self.sidecar or {}).get("env_info", {})
        kwargs = kwargs.get("env_kwargs", {}) if isinstance(kwargs, dict) else {}
        config = kwargs.get("sim_config", {}) if isinstance(kwargs, dict) else {}
        return positive(config.get("control_freq")) if isinstance(config, dict) else None

    @cached_property
    def told(self) -> dict[str, Mapping[str, Any]]:
        """What the JSON file says of each episode."""
        listed = (self.sidecar or {}).get("episodes")
        listed = listed if isinstance(listed, list) else []
        return {f"traj_{each.get('episode_id')}": each for each in listed if isinstance(each, dict)}

    def role(self, path: str) -> Role:
        """Actions may be a group of arrays."""
        return "action" if path.startswith("actions/") else super().role(path)

    def columns(
        self, name: str, group: str, arrays: Mapping[str, tuple[int, ...]], steps: int
    ) -> tuple[dict[str, EpisodeColumn], dict[str, Any]]:
        """PNG byte strings of older files are pictures."""
        elapsed = self.told.get(name, {}).get("elapsed_steps")
        if isinstance(elapsed, int) and elapsed != steps:
            raise CorruptLayoutError(
                f"episode {name!r} has {steps} actions, its JSON says {elapsed}", path=self.where(name)
            )
        columns, kept = super().columns(name, group, arrays, steps)
        for path, column in columns.items():
            if column.rows.kind == "bytes" and path.startswith("obs/"):
                columns[path] = EpisodeColumn(PictureRows(column.rows), column.role)
        return columns, kept

    def facts(self, name: str, _: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The environment, seed and success of the JSON file."""
        static: dict[str, Any] = {}
        about = (self.sidecar or {}).get("env_info")
        if isinstance(about, dict) and isinstance(about.get("env_id"), str):
            static["env_id"] = about["env_id"]
        told = self.told.get(name, {})
        for key, item in (("episode_seed", "seed"), ("success", "success"), ("control_mode", "control_mode")):
            if isinstance(told.get(key), bool | int | str):
                static[item] = told[key]
        more: dict[str, Any] = {"layout": "maniskill"}
        return static, {**more, "json": packed(told)} if told else more


class Aloha(_Groups):
    """One episode per file: /observations/… and /action; images maybe as JPEG rows."""

    usual_fps = 50.0

    def is_episode(self, _: str) -> bool:
        """The file itself."""
        return False

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file."""
        return [PurePosixPath(self.file.name).stem]

    def group(self, _: int) -> str:
        """The file itself."""
        return ""

    def where(self, _: str) -> str:
        """The file: it has one episode."""
        return self.file.name

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything is said of the one episode."""
        return {}

    def columns(
        self, name: str, group: str, arrays: Mapping[str, tuple[int, ...]], steps: int
    ) -> tuple[dict[str, EpisodeColumn], dict[str, Any]]:
        """Rows of JPEG bytes, padded to one length, as pictures."""
        columns, kept = super().columns(name, group, arrays, steps)
        is_compressed = bool(whole_number(self.file.attributes("/").get("compress"), False))
        for path, column in columns.items():
            rows = column.rows
            if not path.startswith("observations/images/"):
                continue
            is_padded = rows.dtype == np.uint8 and len(rows.row_shape) == 1
            if rows.kind == "bytes" or (is_padded and (is_compressed or rows.row_shape[0] > 256)):
                columns[path] = EpisodeColumn(PictureRows(rows), column.role)
        return columns, kept

    def facts(self, _name: str, _: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Nothing but the layout."""
        return {}, {"layout": "aloha"}


class D4rl(FileLayout):
    """Flat arrays, all episodes one after the other."""

    usual_fps = 10.0

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where episodes begin, and the end."""
        count = self.file.shape("actions")[0]
        ends = np.zeros(count, np.bool_)
        names = self.file.names("/")
        if "timeouts" in names:
            ends |= self._flags("timeouts", count)
        if self._ends_with_terminals(names):
            ends |= self._flags("terminals", count)
        if "timeouts" not in names:
            ends |= self._breaks(names, count, ends)
        cuts = np.flatnonzero(ends) + 1
        return np.unique(np.concatenate([[0], cuts, [count]])).astype(np.int64)

    def _ends_with_terminals(self, names: Sequence[str]) -> bool:
        """Whether a terminal ends an episode: in AntMaze it marks the goal, and repeats until the time is up."""
        if "terminals" not in names or self.options.split == "timeout":
            return False
        is_maze = "antmaze" in PurePosixPath(self.file.name).name.lower()
        return self.options.split == "done" or not (is_maze and "timeouts" in names)

    def _flags(self, path: str, count: int) -> NDArray[np.bool_]:
        shape = self.file.shape(path)
        if not shape or shape[0] != count:
            raise CorruptLayoutError(
                f"{path!r} has shape {shape}, there are {count} actions", path=self.file.name
            )
        rows = self.file.rows(path)
        found = np.empty(count, np.bool_)
        for start in range(0, count, 1 << 20):
            stop = min(start + (1 << 20), count)
            found[start:stop] = rows.read(start, stop).reshape(stop - start, -1)[:, 0] != 0
        return found

    def _breaks(self, names: Sequence[str], count: int, ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Without timeouts: where what follows is not what comes next, or where the time is up."""
        found = np.zeros(count, np.bool_)
        if "next_observations" in names:
            seen, following = self.file.rows("observations"), self.file.rows("next_observations")
            for start in range(0, count - 1, 1 << 16):
                stop = min(start + (1 << 16), count - 1)
                now, then = following.read(start, stop), seen.read(start + 1, stop + 1)
                found[start:stop] = (now != then).reshape(stop - start, -1).any(1)
            return found
        limit, since = self.options.max_episode_steps, 0
        for at in range(count):
            since += 1
            if ends[at] or since == limit:
                found[at] = since == limit
                since = 0
        return found

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file and the number of the episode."""
        stem = PurePosixPath(self.file.name).stem
        return [f"{stem}-{number:06d}" for number in range(len(self.bounds) - 1)]

    @cached_property
    def flat(self) -> dict[str, Rows]:
        """All arrays with a row per step of any episode."""
        count = int(self.bounds[-1])
        found: dict[str, Rows] = {}
        for path in self.file.arrays("/"):
            shape = self.file.shape(path)
            if path in ("observations", "actions", "rewards", "terminals") and (
                not shape or shape[0] != count
            ):
                raise CorruptLayoutError(
                    f"{path!r} has shape {shape}, there are {count} actions", path=self.file.name
                )
            if shape and shape[0] == count and not path.startswith("metadata/"):
                found[path] = self.file.rows(path)
        return found

    @property
    def metadata(self) -> dict[str, Any]:
        """What is no row of any episode: the algorithm, the weights of the policy."""
        arrays: dict[str, Any] = {}
        left: list[str] = []
        for path in self.file.arrays("/"):
            if path not in self.flat:
                try:
                    arrays[path] = packed(self.file.whole(path))
                except (LimitExceededError, TypeError, UnsupportedDtypeError):
                    left.append(path)
        found = super().metadata
        return {**found, **({"arrays": arrays} if arrays else {}), **({"left_out": left} if left else {})}

    def parts(self, position: int) -> Parts:
        """The rows of an episode; where the file says what follows, one observation more."""
        start, stop = int(self.bounds[position]), int(self.bounds[position + 1])
        name = self.ids[position]
        columns: dict[str, EpisodeColumn] = {}
        for path, rows in self.flat.items():
            role = _ROLES.get(path, "other")
            columns[path] = EpisodeColumn(PartRows(rows, start, stop), role)
        merged = self.options.next_obs == "merge" and "next_observations" in columns
        if merged:
            seen, following = columns["observations"].rows, columns.pop("next_observations").rows
            rows = _FollowedRows(seen, following, "observations", self.where(name))
            columns["observations"] = EpisodeColumn(rows, "observation")
        meta = {"hdf5": {"layout": "d4rl", **({"next_obs": True} if merged else {})}}
        static = {"env_id": PurePosixPath(self.file.name).stem}
        return Parts(
            name,
            stop - start,
            columns,
            static,
            meta,
            self.options.fps,
            self.usual_fps,
            place=self.where(name),
        )


class Mapped(FileLayout):
    """Episodes and signals as the caller names them."""

    usual_fps = 10.0

    def __init__(self, file: Hdf5File, options: Options, mapping: FileMapping) -> None:
        super().__init__(file, options)
        self._mapping = mapping

    @cached_property
    def groups(self) -> list[str]:
        """The group of every episode."""
        pattern = (self._mapping.episodes or "").strip("/")
        found = [""]
        for part in [each for each in pattern.split("/") if each]:
            matcher = re.compile(re.escape(part).replace(r"\*", "[^/]*") + r"\Z")
            found = [
                f"{group}/{name}" for group in found
                for name in sorted(self.file.names(group or "/"), key=_by_number)
                if matcher.match(name) and self.file.is_group(f"{group}/{name}")
            ]  # fmt: skip
        if not found:
            raise CorruptLayoutError(
                f"no group is called {pattern!r}; there are {', '.join(self.file.names('/')[:20])}",
                path=self.file.name,
            )
        return found

    @cached_property
    def flat_bounds(self) -> NDArray[np.int64] | None:
        """Where episodes begin in arrays that hold all of them."""
        if self._mapping.ends is None:
            return None
        values = np.asarray(self.file.whole(self._mapping.ends, 1 << 30))
        named = self._mapping.chosen(self.file.arrays("/"), self.file.name).values()
        count = max((shape[0] for path in named if (shape := self.file.shape(path))), default=0)
        return self._mapping.bounds(values, count, self.file.name)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the groups, or numbers."""
        stem = PurePosixPath(self.file.name).stem
        if self.flat_bounds is not None:
            return [f"{stem}-{number:06d}" for number in range(len(self.flat_bounds) - 1)]
        return [group.strip("/").rpartition("/")[2] or stem for group in self.groups]

    def parts(self, position: int) -> Parts:
        """The arrays that the mapping names."""
        name = self.ids[position]
        group = self.groups[0 if self.flat_bounds is not None else position]
        available = self.file.arrays(group or "/")
        chosen = self._mapping.chosen(available, self.where(name))
        rows = {signal: self.file.rows(f"{group}/{path}") for signal, path in chosen.items()}
        if self.flat_bounds is not None:
            start, stop = (int(each) for each in self.flat_bounds[position : position + 2])
            rows = {signal: PartRows(each, start, stop) for signal, each in rows.items()}  # type: ignore[misc]
        static: dict[str, Any] = {}
        for item, path in self._mapping.static.items():
            value = self.file.whole(f"{group}/{path}") if path in available else path
            static[item] = (
                value.decode()
                if isinstance(value, bytes)
                else value.item()
                if isinstance(value, np.generic)
                else value
            )
        return self._mapping.parts(name, dict(rows), static, self.options.fps, self.where(name))


class _FollowedRows(ChainedRows):
    """Observations and the one after the last; what is said to follow each must be what comes next."""

    def __init__(self, seen: Rows, following: Rows, what: str, place: str) -> None:
        super().__init__([seen, PartRows(following, seen.count - 1, seen.count)], what)
        self._following, self._seen, self._what, self._place = following, seen, what, place

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows, compared with what was said to follow the ones before."""
        found = super().read(start, stop)
        low, high = max(start, 1), min(stop, self._seen.count)
        if low < high:
            same = _equal(found[low - start : high - start], self._following.read(low - 1, high - 1))
            if not same.all():
                at = low - 1 + int(np.flatnonzero(~same)[0])
                raise CorruptLayoutError(
                    f"the next observation of step {at} of {self._what!r} is not the observation of step {at + 1}",
                    path=self._place,
                    hint="Read both as they are with next_obs='keep'.",
                )
        return found


def _equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    if a.dtype == object:
        return np.array([x == y for x, y in zip(a, b, strict=True)], np.bool_)
    same = (a == b) | ((a != a) & (b != b))
    return np.asarray(same.reshape(len(a), -1).all(1))


def layout_of(file: Hdf5File, names: Sequence[str]) -> Layout | None:
    """The layout that the groups at the top of a file show."""
    if "data" in names and file.is_group("data"):
        inside = file.names("data")
        if any(name.startswith("demo_") for name in inside):
            told = file.attributes("data")
            return (
                "libero"
                if {"problem_info", "bddl_file_name", "bddl_file_content"} & set(told)
                else "robomimic"
            )
    if any(re.fullmatch(r"traj_\d+", name) for name in names):
        return "maniskill"
    if "action" in names and "observations" in names and file.is_group("observations"):
        return "aloha"
    if {"observations", "actions", "rewards"} <= set(names) and not file.is_group("observations"):
        return "d4rl"
    return None


_CLASSES: dict[Layout, type[FileLayout]] = {
    "robomimic": Robomimic, "libero": Libero, "maniskill": ManiSkill, "aloha": Aloha, "d4rl": D4rl,
}  # fmt: skip


def open_layout(
    file: Hdf5File,
    layout: str | None,
    options: Options,
    mapping: FileMapping | None,
    sidecar: Mapping[str, Any] | None,
) -> FileLayout:
    """The episodes of a file, in the layout that was named, mapped, or that it shows."""
    if mapping is not None:
        return Mapped(file, options, mapping)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}.{nearest(layout, LAYOUTS)}")
    names = file.names("/")
    chosen = next((each for each in LAYOUTS if each == layout), None) or layout_of(file, names)
    if chosen is None:
        listed = ", ".join(names[:20]) or "nothing"
        raise FormatError(
            f"no known layout of episodes; at the top there are {listed}",
            path=file.name,
            hint=f"Name a layout ({', '.join(LAYOUTS)}), or say with a mapping what the episodes and signals are.",
        )
    return _CLASSES[chosen](file, options, sidecar)


def all_attributes(file: Hdf5File, group: str) -> dict[str, dict[str, Any]]:
    """The attributes of a group and of everything below it, by path."""
    return file.contents(group or "/").attributes


def json_object(text: Any) -> dict[str, Any]:
    """A JSON object in an attribute; nothing where it is no such thing."""
    if not isinstance(text, str):
        return {}
    try:
        found = parse_json(text.encode("utf-8", "surrogatepass"), allow_nan=True)
    except FormatError:
        return {}
    return found if isinstance(found, dict) else {}


def whole_number(value: Any, default: Any = None) -> Any:
    """The number that a file states, or `default` where it is none."""
    try:
        return int(unpacked(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _by_number(name: str) -> tuple[int, str, int]:
    found = _NUMBER.search(name)
    return (0, name[: found.start()], int(found[1])) if found else (1, name, 0)
