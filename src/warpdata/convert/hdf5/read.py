"""Open HDF5 files as episodes: the layouts of robomimic, LIBERO, ManiSkill, ALOHA and D4RL, or a mapping."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json, parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.aligning import stated_rate
from warpdata.convert.hdf5.file import MAGIC, Hdf5File, Hdf5Rows
from warpdata.convert.place import Place
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, packed, unpacked
from warpdata.convert.stepped import (
    ChainedRows,
    EpisodeColumn,
    PartRows,
    Parts,
    PictureRows,
    Rows,
    SteppedEpisodes,
)
from warpdata.convert.tables.mapping import FileMapping
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    UnsupportedDtypeError,
    nearest,
    require_word,
)
from warpdata.timeline.meta import Role

Layout = Literal["robomimic", "libero", "maniskill", "aloha", "d4rl"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NextObs = Literal["merge", "keep"]
Split = Literal["auto", "done", "timeout"]
SUFFIXES = (".hdf5", ".h5", ".hdf")
OWN_DOCUMENT = "warpdata"
"""The text in which warpdata keeps what robomimic's layout has no place for."""
_MAX_SIDECAR = 1 << 30
_MAX_KEPT_BYTES = 8 << 20
_LIBERO = {"problem_info", "bddl_file_name", "bddl_file_content"}
_ROLES: dict[str, Role] = {
    "actions": "action",
    "action": "action",
    "rewards": "reward",
    "reward": "reward",
    "dones": "terminated",
    "terminated": "terminated",
    "terminals": "terminated",
    "truncated": "truncated",
    "timeouts": "truncated",
    "observations": "observation",
}
Shapes = Mapping[str, tuple[int, ...]]


def matches(place: Place) -> bool:
    """Whether it is an HDF5 file, or a folder with some in it."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    return any(name.lower().endswith(SUFFIXES) for name in place.children())


def read(
    source: Any,
    *,
    layout: Layout | None = None,
    mapping: FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    fps: float | None = None,
    next_obs: NextObs = "merge",
    split: Split = "auto",
    max_episode_steps: int = 1000,
) -> Episodes:
    """The episodes of an HDF5 file, or of all those in a folder; rows are read on demand.

    `layout` is `robomimic`, `libero`, `maniskill`, `aloha` or `d4rl`, by default the detected one; `mapping` names
    episodes and signals instead. `fps` is the rate of the steps if the file has none. `next_obs="merge"` makes one
    signal of N + 1 rows of `obs` and `next_obs`, and refuses rows that contradict each other; `"keep"` leaves both.
    D4RL files are cut by `split`: where an episode is `done`, or at a `timeout` only (`auto`: that for AntMaze), and
    after `max_episode_steps` if there are no timeouts.
    """
    require_word("next_obs", next_obs, get_args(NextObs))
    require_word("split", split, get_args(Split))
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}.{nearest(layout, LAYOUTS)}")
    options = Options(layout, FileMapping.of(mapping), fps, next_obs, split, max_episode_steps)
    return Episodes(Hdf5Episodes(Place.of(source), options))


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `read`."""

    layout: Layout | None
    mapping: FileMapping | None
    fps: float | None
    next_obs: NextObs
    split: Split
    max_episode_steps: int


class Hdf5Episodes(SteppedEpisodes):
    """The episodes of one or several HDF5 files."""

    def __init__(self, place: Place, options: Options) -> None:
        self._place, self._options, self._fps = place, options, options.fps
        names = [""]
        if not place.is_file:
            names = [name for name in place.children() if name.lower().endswith(SUFFIXES)]
            names.sort(
                key=lambda name: (int((re.findall(r"(\d+)$", PurePosixPath(name).stem) or [-1])[0]), name)
            )
        if not names:
            raise BlobNotFoundError("no HDF5 file in this folder", path=place.name)
        self._layouts = {PurePosixPath(name).stem: self._open_layout(name) for name in names}

    def _open_layout(self, name: str) -> FileLayout:
        place = self._place
        local = place.path if place.path is None or not name else place.inside(name)
        file = Hdf5File(place.open(name) if local is None else local)
        if self._options.mapping is not None:
            return Mapped(file, self._options, {})
        kind = self._options.layout or _detect_layout(file)
        sidecar: dict[str, Any] = {}
        if local is not None and local.with_suffix(".json").is_file():
            data = Place(local.with_suffix(".json")).read(max_bytes=_MAX_SIDECAR)
            sidecar = parse_json_object(data, max_bytes=_MAX_SIDECAR, allow_nan=True)
        elif name and place.exists(beside := str(PurePosixPath(name).with_suffix(".json"))):
            data = place.read(beside, max_bytes=_MAX_SIDECAR)
            sidecar = parse_json_object(data, max_bytes=_MAX_SIDECAR, allow_nan=True)
        classes = {
            "robomimic": Robomimic,
            "libero": Robomimic,
            "maniskill": ManiSkill,
            "aloha": Aloha,
            "d4rl": D4rl,
        }
        layout: FileLayout = classes[kind](file, self._options, sidecar)
        return layout

    @cached_property
    def _episodes(self) -> list[tuple[str, FileLayout, int]]:
        """Of every episode its id, its file and its position in it; ids of several files begin with their stem."""
        episodes = []
        for stem, layout in self._layouts.items():
            is_alone = len(self._layouts) == 1 or list(layout.ids) == [stem]
            for row, name in enumerate(layout.ids):
                episodes.append((name if is_alone else f"{stem}/{name}", layout, row))
        return episodes

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the episodes."""
        return [name for name, _, _ in self._episodes]

    def parts(self, position: int) -> Parts:
        """The parts of an episode of one of the files."""
        name, layout, row = self._episodes[position]
        return replace(layout.parts(row), id=name)

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into its files."""
        file = next(iter(self._layouts.values())).file
        if len(self._layouts) > 1 or not file.has(OWN_DOCUMENT):
            return None
        document = file.whole(OWN_DOCUMENT, MAX_DOCUMENT_BYTES)
        return document if isinstance(document, bytes) else None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata that a file has for all its episodes."""
        stated = {stem: layout.metadata for stem, layout in self._layouts.items()}
        return {"hdf5": next(iter(stated.values())) if len(stated) == 1 else {"files": stated}}


def _detect_layout(file: Hdf5File) -> Layout:
    names = file.names("/")
    if "data" in names and file.is_group("data") and any(map(_is_demo, file.names("data"))):
        return "libero" if _LIBERO & set(file.attributes("data")) else "robomimic"
    if any(re.fullmatch(r"traj_\d+", name) for name in names):
        return "maniskill"
    if "action" in names and "observations" in names and file.is_group("observations"):
        return "aloha"
    if {"observations", "actions", "rewards"} <= set(names) and not file.is_group("observations"):
        return "d4rl"
    listed = ", ".join(names[:20]) or "nothing"
    hint = f"Name a layout ({', '.join(LAYOUTS)}), or name the episodes and signals with a mapping."
    raise FormatError(
        f"no known layout of episodes; at the top there are {listed}", path=file.name, hint=hint
    )


def _is_demo(name: str) -> bool:
    return name.startswith("demo_")


class FileLayout(ABC):
    """The episodes of one file."""

    usual_fps = 20.0

    def __init__(self, file: Hdf5File, options: Options, sidecar: Mapping[str, Any]) -> None:
        self.file, self.options, self.sidecar = file, options, sidecar
        self.stem = PurePosixPath(file.name).stem

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The name of every episode, in order."""

    @abstractmethod
    def parts(self, position: int) -> Parts:
        """The contents of an episode."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata for all episodes of the file."""
        return {"attributes": {"": self.file.attributes("/")}}


class GroupLayout(FileLayout):
    """A group per episode: arrays with as many rows as there are steps, or one more, are signals."""

    above = "/"
    layout: str

    @cached_property
    def ids(self) -> Sequence[str]:
        """The groups in the order of their numbers: demo_10 comes after demo_9."""
        return sorted(filter(self._is_episode, self.file.names(self.above)), key=_by_number)

    def _is_episode(self, _name: str) -> bool:
        """Whether a member of `above` is an episode."""
        return True

    def parts(self, position: int) -> Parts:
        """The arrays of the group; those without a row per step are kept as metadata."""
        name = self.ids[position]
        group = f"{self.above.rstrip('/')}/{name}" if self.above else ""
        place = f"{self.file.name}#{name}" if self.above else self.file.name
        shapes = self.file.arrays(group)
        attributes = self.file.attributes_below(group, shapes)
        actions = [shape for path, shape in shapes.items() if self._role(path) == "action" and shape]
        if not actions:
            fact = f"episode {name!r} has no actions; it has {', '.join(shapes) or 'nothing'}"
            raise CorruptLayoutError(fact, path=place)
        steps = actions[0][0]
        self._check(name, steps, shapes, attributes[""], place)
        columns: dict[str, EpisodeColumn] = {}
        kept: dict[str, Any] = {}
        for path, shape in shapes.items():
            if shape and shape[0] in (steps, steps + 1) and 0 not in shape[1:]:
                rows = self._shown(path, Hdf5Rows(self.file, f"{group}/{path}"))
                columns[path] = EpisodeColumn(rows, self._role(path))
                continue
            try:
                kept[path] = packed(self.file.whole(f"{group}/{path}", _MAX_KEPT_BYTES))
            except (LimitExceededError, TypeError) as error:
                fact = f"{path!r} of episode {name!r} has no row per step and cannot be kept as metadata ({error})"
                hint = "Name the arrays to read with a mapping."
                raise CorruptLayoutError(fact, path=place, hint=hint) from None
        static, more = self._facts(name, attributes[""])
        if self.options.next_obs == "merge" and _merge_next(columns, steps, place):
            more["next_obs"] = True
        facts = {
            "attributes": attributes,
            **({"arrays": kept} if kept else {}),
            "layout": self.layout,
            **more,
        }
        fps = self.options.fps or self.fps
        return Parts(name, steps, columns, static, {"hdf5": facts}, fps, self.usual_fps, place=place)

    @cached_property
    def fps(self) -> float | None:
        """Steps per second, if the file states it."""
        return None

    def _role(self, path: str) -> Role:
        """The role of an array."""
        return _ROLES.get(path) or ("observation" if path.startswith(("obs/", "observations/")) else "other")

    def _check(
        self, name: str, steps: int, shapes: Shapes, attributes: Mapping[str, Any], place: str
    ) -> None:
        """Raise if an episode contradicts its metadata."""

    def _shown(self, _path: str, rows: Rows) -> Rows:
        """The rows as signals show them: encoded pictures are marked."""
        return rows

    def _facts(self, _name: str, _attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Static items of an episode, and further metadata to keep."""
        return {}, {}


class Robomimic(GroupLayout):
    """/data/demo_0 … with attributes, /mask/<filter key>; in LIBERO the task is in the attributes of /data."""

    above = "/data"

    @cached_property
    def data_attributes(self) -> dict[str, Any]:
        """The attributes of /data."""
        return self.file.attributes("/data")

    @cached_property
    def layout(self) -> str:
        """`robomimic` or `libero`."""
        is_libero = self.options.layout == "libero" or _LIBERO & set(self.data_attributes)
        return "libero" if is_libero and self.options.layout != "robomimic" else "robomimic"

    @cached_property
    def masks(self) -> dict[str, list[str]]:
        """Filter key -> names of demos."""
        masks = {}
        for path in self.file.arrays("/mask") if self.file.is_group("/mask") else ():
            listed = np.atleast_1d(self.file.whole(f"/mask/{path}"))
            masks[path] = [
                each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in listed
            ]
        return masks

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes of the file and of /data, the masks with their exact types, and other arrays."""
        attributes = {"": self.file.attributes("/"), "data": self.data_attributes}
        arrays: dict[str, Any] = {}
        for name in self.file.names("/"):
            if name in ("data", OWN_DOCUMENT):
                continue
            paths = (
                [name]
                if not self.file.is_group(name)
                else [f"{name}/{each}" for each in self.file.arrays(name)]
            )
            arrays |= {
                path: packed(self.file.whole(path)) for path in paths if self.file.shape(path) is not None
            }
        return {"attributes": attributes, **({"arrays": arrays} if arrays else {})}

    @cached_property
    def env_args(self) -> dict[str, Any]:
        """The arguments of the environment, if they are JSON."""
        return json_object(self.data_attributes.get("env_args"))

    @cached_property
    def fps(self) -> float | None:
        """env_kwargs.control_freq."""
        kwargs = self.env_args.get("env_kwargs")
        return stated_rate(kwargs.get("control_freq")) if isinstance(kwargs, dict) else None

    def _check(
        self, name: str, steps: int, shapes: Shapes, attributes: Mapping[str, Any], place: str
    ) -> None:
        stated = whole_number(attributes.get("num_samples"))
        if stated is not None and stated != steps:
            fact = f"episode {name!r} states num_samples = {stated} and has {steps} actions"
            raise CorruptLayoutError(fact, path=place)
        for path, shape in shapes.items():
            if path.startswith(("obs/", "next_obs/")) and (not shape or shape[0] != steps):
                fact = f"{path!r} of episode {name!r} has shape {shape}, there are {steps} actions"
                raise CorruptLayoutError(fact, path=place)

    def _facts(self, name: str, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        static: dict[str, Any] = {}
        if isinstance(self.env_args.get("env_name"), str):
            static["env_id"] = self.env_args["env_name"]
        task = json_object(attributes.get("ep_meta")).get("lang")
        if self.layout == "libero":
            task = json_object(self.data_attributes.get("problem_info")).get("language_instruction")
            if isinstance(task, list) and all(isinstance(each, str) for each in task):
                task = "".join(task)
            if not isinstance(task, str):
                task = self.stem.removesuffix("_demo").replace("_", " ")
            task = task.strip('"')
        if isinstance(task, str):
            static["task"] = task
        for split in ("train", "valid"):
            if name in self.masks.get(split, ()):
                static["split"] = split
        return static, {}


class ManiSkill(GroupLayout):
    """traj_0 … with T actions and T + 1 observations, and a JSON file of the same name beside."""

    layout = "maniskill"

    def _is_episode(self, name: str) -> bool:
        return name.startswith("traj_")

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON file, without the part about single episodes."""
        beside = {key: value for key, value in self.sidecar.items() if key != "episodes"}
        return {**super().metadata, **({"json": packed(beside)} if beside else {})}

    @cached_property
    def env_info(self) -> Mapping[str, Any]:
        """`env_info` of the JSON file."""
        about = self.sidecar.get("env_info")
        return about if isinstance(about, dict) else {}

    @cached_property
    def fps(self) -> float | None:
        """env_kwargs.sim_config.control_freq."""
        kwargs = self.env_info.get("env_kwargs")
        config = kwargs.get("sim_config") if isinstance(kwargs, dict) else None
        return stated_rate(config.get("control_freq")) if isinstance(config, dict) else None

    @cached_property
    def stated(self) -> dict[str, Mapping[str, Any]]:
        """The entry of each episode in the JSON file."""
        listed = self.sidecar.get("episodes")
        entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        return {f"traj_{each.get('episode_id')}": each for each in entries}

    def _role(self, path: str) -> Role:
        return "action" if path.startswith("actions/") else super()._role(path)

    def _check(self, name: str, steps: int, _shapes: Shapes, _: Mapping[str, Any], place: str) -> None:
        elapsed = self.stated.get(name, {}).get("elapsed_steps")
        if isinstance(elapsed, int) and elapsed != steps:
            fact = f"episode {name!r} has {steps} actions, its JSON states {elapsed}"
            raise CorruptLayoutError(fact, path=place)

    def _shown(self, path: str, rows: Rows) -> Rows:
        return PictureRows(rows) if rows.kind == "bytes" and path.startswith("obs/") else rows

    def _facts(self, name: str, _attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        static: dict[str, Any] = {}
        if isinstance(self.env_info.get("env_id"), str):
            static["env_id"] = self.env_info["env_id"]
        stated = self.stated.get(name, {})
        for key, item in (("episode_seed", "seed"), ("success", "success"), ("control_mode", "control_mode")):
            if isinstance(stated.get(key), bool | int | str):
                static[item] = stated[key]
        return static, {"json": packed(stated)} if stated else {}


class Aloha(GroupLayout):
    """One episode per file: /observations/… and /action; images maybe as rows of JPEG bytes."""

    above, layout, usual_fps = "", "aloha", 50.0
    metadata: dict[str, Any] = {}  # noqa: RUF012 - everything is metadata of the one episode

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file."""
        return [self.stem]

    @cached_property
    def is_compressed(self) -> bool:
        """Whether the file states that its images are JPEG."""
        return bool(whole_number(self.file.attributes("/").get("compress")))

    def _shown(self, path: str, rows: Rows) -> Rows:
        is_padded = rows.dtype == np.uint8 and len(rows.row_shape) == 1
        is_jpeg = rows.kind == "bytes" or (is_padded and (self.is_compressed or rows.row_shape[0] > 256))
        return PictureRows(rows) if is_jpeg and path.startswith("observations/images/") else rows


class D4rl(FileLayout):
    """Flat arrays, all episodes one after the other."""

    usual_fps = 10.0

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where episodes begin, and the end."""
        shape = self.file.shape("actions")
        count = shape[0] if shape else 0
        ends = np.zeros(count, np.bool_)
        names = self.file.names("/")
        if "timeouts" in names:
            ends |= self._flags("timeouts", count)
        # In AntMaze a terminal marks the goal, and repeats until the time is up.
        is_maze = "antmaze" in PurePosixPath(self.file.name).name.lower() and "timeouts" in names
        ends_at_terminals = self.options.split == "done" or (self.options.split == "auto" and not is_maze)
        if "terminals" in names and ends_at_terminals:
            ends |= self._flags("terminals", count)
        if "timeouts" not in names:
            ends |= self._breaks(names, count, ends)
        return np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [count]])).astype(np.int64)

    def _flags(self, path: str, count: int) -> NDArray[np.bool_]:
        self._check_count(path, count)
        rows = Hdf5Rows(self.file, path)
        flags = np.empty(count, np.bool_)
        for start in range(0, count, 1 << 20):
            stop = min(start + (1 << 20), count)
            flags[start:stop] = rows.read(start, stop).reshape(stop - start, -1)[:, 0] != 0
        return flags

    def _check_count(self, path: str, count: int) -> None:
        shape = self.file.shape(path)
        if not shape or shape[0] != count:
            fact = f"{path!r} has shape {shape}, there are {count} actions"
            raise CorruptLayoutError(fact, path=self.file.name)

    def _breaks(self, names: Sequence[str], count: int, ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Ends without timeouts: where the next observation is not the following one, or after the most steps."""
        breaks = np.zeros(count, np.bool_)
        if "next_observations" in names:
            seen, following = (Hdf5Rows(self.file, name) for name in ("observations", "next_observations"))
            for start in range(0, count - 1, 1 << 16):
                stop = min(start + (1 << 16), count - 1)
                differ = following.read(start, stop) != seen.read(start + 1, stop + 1)
                breaks[start:stop] = differ.reshape(stop - start, -1).any(1)
            return breaks
        since = 0
        for row in range(count):
            since += 1
            if ends[row] or since == self.options.max_episode_steps:
                breaks[row] = since == self.options.max_episode_steps
                since = 0
        return breaks

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file and the number of the episode."""
        return [f"{self.stem}-{number:06d}" for number in range(len(self.bounds) - 1)]

    @cached_property
    def flat(self) -> dict[str, Rows]:
        """All arrays with a row per step of any episode."""
        count = int(self.bounds[-1])
        shapes = self.file.arrays("/")
        for path in ("observations", "actions", "rewards", "terminals"):
            if path in shapes:
                self._check_count(path, count)
        paths = [path for path, shape in shapes.items() if shape and shape[0] == count]
        return {path: Hdf5Rows(self.file, path) for path in paths if not path.startswith("metadata/")}

    @property
    def metadata(self) -> dict[str, Any]:
        """Arrays that are no rows of episodes: the algorithm, the weights of the policy."""
        arrays: dict[str, Any] = {}
        left: list[str] = []
        for path in self.file.arrays("/"):
            if path not in self.flat:
                try:
                    arrays[path] = packed(self.file.whole(path))
                except (LimitExceededError, TypeError, UnsupportedDtypeError):
                    left.append(path)
        more = {"arrays": arrays, "left_out": left}
        return {**super().metadata, **{key: value for key, value in more.items() if value}}

    def parts(self, position: int) -> Parts:
        """The rows of an episode, and one observation more if the file has what follows."""
        start, stop = (int(bound) for bound in self.bounds[position : position + 2])
        name = self.ids[position]
        place = f"{self.file.name}#{name}"
        columns = {
            path: EpisodeColumn(PartRows(rows, start, stop), _ROLES.get(path, "other"))
            for path, rows in self.flat.items()
        }
        meta: dict[str, Any] = {"layout": "d4rl"}
        if self.options.next_obs == "merge" and _merge_next(columns, stop - start, place):
            meta["next_obs"] = True
        static, fps = {"env_id": self.stem}, self.options.fps
        return Parts(name, stop - start, columns, static, {"hdf5": meta}, fps, self.usual_fps, place=place)


class Mapped(FileLayout):
    """Episodes and signals as the caller names them."""

    usual_fps = 10.0

    @property
    def mapping(self) -> FileMapping:
        """The mapping."""
        assert self.options.mapping is not None
        return self.options.mapping

    @cached_property
    def groups(self) -> list[str]:
        """The group of every episode."""
        pattern = (self.mapping.episodes or "").strip("/")
        groups = [""]
        for part in filter(None, pattern.split("/")):
            matcher = re.compile(re.escape(part).replace(r"\*", "[^/]*"))
            groups = [
                f"{group}/{name}"
                for group in groups
                for name in sorted(self.file.names(group or "/"), key=_by_number)
                if matcher.fullmatch(name) and self.file.is_group(f"{group}/{name}")
            ]
        if not groups:
            listed = ", ".join(self.file.names("/")[:20])
            raise CorruptLayoutError(
                f"no group is called {pattern!r}; there are {listed}", path=self.file.name
            )
        return groups

    @cached_property
    def bounds(self) -> NDArray[np.int64] | None:
        """Where episodes begin in arrays that hold all of them."""
        if self.mapping.ends is None:
            return None
        values = np.asarray(self.file.whole(self.mapping.ends, 1 << 30))
        shapes = self.file.arrays("/")
        chosen = [shapes[path] for path in self.mapping.arrays(list(shapes), self.file.name).values()]
        count = max((shape[0] for shape in chosen if shape), default=0)
        return self.mapping.bounds(values, count, self.file.name)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the groups, or numbers."""
        if self.bounds is not None:
            return [f"{self.stem}-{number:06d}" for number in range(len(self.bounds) - 1)]
        return [group.strip("/").rpartition("/")[2] or self.stem for group in self.groups]

    def parts(self, position: int) -> Parts:
        """The arrays that the mapping names."""
        name = self.ids[position]
        place = f"{self.file.name}#{name}"
        group = self.groups[0 if self.bounds is not None else position]
        available = self.file.arrays(group or "/")
        paths = self.mapping.arrays(list(available), place)
        rows: dict[str, Rows] = {
            signal: Hdf5Rows(self.file, f"{group}/{path}") for signal, path in paths.items()
        }
        if self.bounds is not None:
            start, stop = (int(bound) for bound in self.bounds[position : position + 2])
            rows = {signal: PartRows(each, start, stop) for signal, each in rows.items()}
        static: dict[str, Any] = {}
        for item, path in self.mapping.static.items():
            value = self.file.whole(f"{group}/{path}") if path in available else path
            value = value.decode() if isinstance(value, bytes) else value
            static[item] = value.item() if isinstance(value, np.generic) else value
        return self.mapping.parts(name, rows, static, self.options.fps, place)


def _merge_next(columns: dict[str, EpisodeColumn], steps: int, place: str) -> bool:
    """Make one column of N + 1 rows of observations and what follows them; whether there was anything to merge."""
    following = [path for path in columns if path.startswith(("next_obs/", "next_observations"))]
    for path in following if steps else ():
        own = path.removeprefix("next_")
        if own in columns:
            rows = FollowedRows(columns[own].rows, columns.pop(path).rows, own, place)
            columns[own] = EpisodeColumn(rows, "observation")
    return bool(following)


class FollowedRows(ChainedRows):
    """Observations and the one after the last; the stated next observation must be the following one."""

    def __init__(self, seen: Rows, following: Rows, what: str, place: str) -> None:
        super().__init__([seen, PartRows(following, seen.count - 1, seen.count)], what)
        self._following, self._seen, self._what, self._place = following, seen, what, place

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows, compared with the stated next observations of the rows before."""
        rows = super().read(start, stop)
        low, high = max(start, 1), min(stop, self._seen.count)
        if low < high:
            seen, stated = rows[low - start : high - start], self._following.read(low - 1, high - 1)
            same = (seen == stated) | ((seen != seen) & (stated != stated))  # NaN follows NaN
            same = same.reshape(len(seen), -1).all(1)
            if not same.all():
                step = low - 1 + int(np.flatnonzero(~same)[0])
                what = f"the next observation of step {step} of {self._what!r}"
                fact = f"{what} is not the observation of step {step + 1}"
                hint = "Read both as they are with next_obs='keep'."
                raise CorruptLayoutError(fact, path=self._place, hint=hint)
        return rows


def json_object(text: Any) -> dict[str, Any]:
    """A JSON object in an attribute; empty if it is not one."""
    if not isinstance(text, str):
        return {}
    try:
        value = parse_json(text.encode("utf-8", "surrogatepass"), allow_nan=True)
    except FormatError:
        return {}
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """The number that a file states; None if it is not one."""
    try:
        return int(unpacked(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _by_number(name: str) -> tuple[int, str, int]:
    number = re.search(r"(\d+)$", name)
    return (0, name[: number.start()], int(number[1])) if number else (1, name, 0)
