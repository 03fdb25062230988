"""Open HDF5 files as episodes: the layouts of robomimic, LIBERO, ManiSkill, ALOHA and D4RL, or a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.aligning import stated_rate
from warpdata.convert.hdf5.file import MAGIC, Hdf5File
from warpdata.convert.place import Place
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, pack, unpack
from warpdata.convert.stepped import EpisodeColumn, Parts, Read, Rows, SteppedEpisodes, chain_rows
from warpdata.convert.tables.mapping import MappedEpisodes, MappingSource, by_number, list_files
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
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
    **dict.fromkeys(("actions", "action"), "action"),
    **dict.fromkeys(("rewards", "reward"), "reward"),
    **dict.fromkeys(("dones", "terminated", "terminals"), "terminated"),
    **dict.fromkeys(("truncated", "timeouts"), "truncated"),
    "observations": "observation",
}
Shapes = Mapping[str, tuple[int, ...]]
Described = tuple[dict[str, Any], dict[str, Any], float | None]


def matches(place: Place) -> bool:
    """Whether it is an HDF5 file, or a folder with some in it."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    return any(name.lower().endswith(SUFFIXES) for name in place.children())


def read(
    source: Any,
    *,
    layout: Layout | None = None,
    mapping: MappingSource = None,
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
    place = Place.of(source)
    if mapping is not None:
        return Episodes(MappedEpisodes(place, SUFFIXES, Hdf5File, mapping, fps))
    return Episodes(Hdf5Episodes(place, Options(layout, fps, next_obs, split, max_episode_steps)))


class Options(NamedTuple):
    """Arguments of `read`."""

    layout: Layout | None
    fps: float | None
    next_obs: NextObs
    split: Split
    max_episode_steps: int


class Hdf5Episodes(SteppedEpisodes):
    """The episodes of one or several HDF5 files."""

    def __init__(self, place: Place, options: Options) -> None:
        super().__init__(place, options.fps)
        self._layouts: dict[str, FileLayout] = {}
        for stem, name in list_files(place, SUFFIXES).items():
            file = Hdf5File(place, name)
            beside, above = PurePosixPath(name or place.name).with_suffix(".json").name, place
            if not name and place.path is not None:
                above = Place(place.path.parent)
            sidecar = above.read_json(beside, max_bytes=_MAX_SIDECAR) if above.exists(beside) else {}
            layout = _CLASSES[options.layout or _detect_layout(file)]
            self._layouts[stem] = layout(file, options, sidecar)

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
        if len(self._layouts) > 1 or OWN_DOCUMENT not in file.names():
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
    if "data" in names and file.is_group("data") and any(n.startswith("demo_") for n in file.names("data")):
        return "libero" if _LIBERO & set(file.attributes("data")) else "robomimic"
    if any(re.fullmatch(r"traj_\d+", name) for name in names):
        return "maniskill"
    if "action" in names and "observations" in names and file.is_group("observations"):
        return "aloha"
    if {"observations", "actions", "rewards"} <= set(names) and not file.is_group("observations"):
        return "d4rl"
    hint = f"Name a layout ({', '.join(LAYOUTS)}), or name the episodes and signals with a mapping."
    fact = f"no known layout of episodes; at the top there are {', '.join(names[:20]) or 'nothing'}"
    raise FormatError(fact, path=file.name, hint=hint)


class FileLayout:
    """The episodes of one file, a group each: arrays with a row per step, or one more, are signals."""

    layout: str
    above, prefix = "/", ""
    """The group that holds the groups of episodes, and how their names begin."""
    usual_fps = 20.0

    def __init__(self, file: Hdf5File, options: Options, sidecar: Mapping[str, Any]) -> None:
        self.file, self.options, self.sidecar = file, options, sidecar
        self.stem = PurePosixPath(file.name).stem

    @cached_property
    def ids(self) -> Sequence[str]:
        """The groups in the order of their numbers: demo_10 comes after demo_9."""
        names = (name for name in self.file.names(self.above) if name.startswith(self.prefix))
        return sorted(names, key=by_number)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata for all episodes of the file."""
        return {"attributes": {"": self.file.attributes("/")}}

    def role(self, path: str) -> Role:
        """The role of an array."""
        if path.startswith("actions/"):
            return "action"
        return _ROLES.get(path) or ("observation" if path.startswith(("obs/", "observations/")) else "other")

    def show(self, _path: str, rows: Rows) -> Rows:
        """The rows of an array as a signal has them: encoded pictures are marked."""
        return rows

    def describe(
        self, _name: str, _steps: int, _shapes: Shapes, _attributes: Mapping[str, Any], _place: str
    ) -> Described:
        """Static items of an episode, metadata to keep, and its rate; raises if it contradicts its metadata."""
        return {}, {}, None

    def parts(self, position: int) -> Parts:
        """The arrays of a group; those without a row per step are kept as metadata."""
        name = self.ids[position]
        group = f"{self.above.rstrip('/')}/{name}" if self.above else ""
        place = f"{self.file.name}#{name}" if self.above else self.file.name
        shapes = self.file.arrays(group)
        attributes = self.file.attributes_below(group, shapes)
        actions = [shape for path, shape in shapes.items() if self.role(path) == "action" and shape]
        if not actions:
            fact = f"episode {name!r} has no actions; it has {', '.join(shapes) or 'nothing'}"
            raise CorruptLayoutError(fact, path=place, hint="Name the arrays of actions in a mapping.")
        steps = actions[0][0]
        static, more, fps = self.describe(name, steps, shapes, attributes[""], place)
        columns: dict[str, EpisodeColumn] = {}
        kept: dict[str, Any] = {}
        for path, shape in shapes.items():
            if shape and shape[0] in (steps, steps + 1) and 0 not in shape[1:]:
                rows = self.show(path, self.file.rows(f"{group}/{path}"))
                columns[path] = EpisodeColumn(rows, self.role(path))
                continue
            try:
                kept[path] = pack(self.file.whole(f"{group}/{path}", _MAX_KEPT_BYTES))
            except (LimitExceededError, TypeError) as error:
                fact = f"{path!r} of episode {name!r} has no row per step and cannot be kept as metadata ({error})"
                hint = "Name the arrays to read with a mapping."
                raise CorruptLayoutError(fact, path=place, hint=hint) from None
        facts: dict[str, Any] = {"attributes": attributes, "layout": self.layout, **more}
        facts |= {"arrays": kept} if kept else {}
        return self._finish(Parts(name, steps, columns, static, facts, fps, place=place))

    def _finish(self, parts: Parts) -> Parts:
        """Merge observations with what follows them: one column of N + 1 rows."""
        columns, facts, place = dict(parts.columns), dict(parts.meta), str(parts.place)
        following = [path for path in columns if path.startswith(("next_obs/", "next_observations"))]
        if self.options.next_obs == "merge" and following:
            facts["next_obs"] = True
            for path in following if parts.steps else ():
                own = path.removeprefix("next_")
                if own in columns:
                    seen, after = columns[own].rows, columns.pop(path).rows
                    chain = chain_rows([seen, after.part(seen.count - 1, seen.count)], own)
                    rows = replace(chain, read=partial(_read_followed, chain.read, after, own, place))
                    columns[own] = EpisodeColumn(rows, "observation")
        fps = self.options.fps or parts.fps
        return replace(parts, columns=columns, meta={"hdf5": facts}, fps=fps, usual_fps=self.usual_fps)


def _read_followed(
    read_chain: Read, following: Rows, what: str, place: str, start: int, stop: int
) -> NDArray[Any]:
    """Rows, compared with the stated next observations of the rows before."""
    rows = read_chain(start, stop)
    low, high = max(start, 1), min(stop, following.count)
    if low < high:
        seen, stated = rows[low - start : high - start], following.read(low - 1, high - 1)
        same = (seen == stated) | ((seen != seen) & (stated != stated))  # NaN follows NaN
        same = same.reshape(len(seen), -1).all(1)
        if not same.all():
            step = low - 1 + int(np.flatnonzero(~same)[0])
            fact = f"the next observation of step {step} of {what!r} is not that of step {step + 1}"
            raise CorruptLayoutError(fact, path=place, hint="Read both as they are with next_obs='keep'.")
    return rows


class Robomimic(FileLayout):
    """/data/demo_0 … with attributes, /mask/<filter key>; in LIBERO the task is in the attributes of /data."""

    above = "/data"

    @cached_property
    def data_attributes(self) -> dict[str, Any]:
        """The attributes of /data."""
        return self.file.attributes("/data")

    @cached_property
    def layout(self) -> str:
        """`robomimic` or `libero`."""
        return self.options.layout or ("libero" if _LIBERO & set(self.data_attributes) else "robomimic")

    @cached_property
    def masks(self) -> dict[str, list[str]]:
        """Filter key -> names of demos."""
        masks = {}
        for path in self.file.paths("/mask") if self.file.is_group("/mask") else ():
            listed = np.atleast_1d(self.file.whole(f"/mask/{path}"))
            masks[path] = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in listed]
        return masks

    @property
    def metadata(self) -> dict[str, Any]:
        """Attributes of the file and of /data, the masks with their exact types, and other arrays."""
        attributes = {"": self.file.attributes("/"), "data": self.data_attributes}
        arrays: dict[str, Any] = {}
        for name in self.file.names("/"):
            if name in ("data", OWN_DOCUMENT):
                continue
            is_group = self.file.is_group(name)
            for path in [f"{name}/{path}" for path in self.file.paths(name)] if is_group else [name]:
                if self.file.shape(path) is not None:
                    arrays[path] = pack(self.file.whole(path))
        return {"attributes": attributes, **({"arrays": arrays} if arrays else {})}

    def describe(
        self, name: str, steps: int, shapes: Shapes, attributes: Mapping[str, Any], place: str
    ) -> Described:
        """The environment, the task and the split; `num_samples` and the rows of observations are checked."""
        stated = whole_number(attributes.get("num_samples"))
        if stated is not None and stated != steps:
            fact = f"episode {name!r} states num_samples = {stated} and has {steps} actions"
            raise CorruptLayoutError(fact, path=place)
        for path, shape in shapes.items():
            if path.startswith(("obs/", "next_obs/")) and (not shape or shape[0] != steps):
                fact = f"{path!r} of episode {name!r} has shape {shape}, there are {steps} actions"
                raise CorruptLayoutError(fact, path=place)
        task = json_object(attributes.get("ep_meta")).get("lang")
        if self.layout == "libero":
            task = json_object(self.data_attributes.get("problem_info")).get("language_instruction")
            if isinstance(task, list) and all(isinstance(part, str) for part in task):
                task = "".join(task)
            task = task if isinstance(task, str) else self.stem.removesuffix("_demo").replace("_", " ")
            task = task.strip('"')
        splits = [split for split in ("train", "valid") if name in self.masks.get(split, ())]
        env_args = json_object(self.data_attributes.get("env_args"))
        items = {"env_id": env_args.get("env_name"), "task": task, "split": splits[-1] if splits else None}
        fps = stated_rate(as_object(env_args.get("env_kwargs")).get("control_freq"))
        return {key: value for key, value in items.items() if isinstance(value, str)}, {}, fps


class ManiSkill(FileLayout):
    """traj_0 … with T actions and T + 1 observations, and a JSON file of the same name beside."""

    layout, prefix = "maniskill", "traj_"

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON file, without the part about single episodes."""
        beside = {key: value for key, value in self.sidecar.items() if key != "episodes"}
        return {**super().metadata, **({"json": pack(beside)} if beside else {})}

    @cached_property
    def stated(self) -> dict[str, Mapping[str, Any]]:
        """The entry of each episode in the JSON file."""
        listed = self.sidecar.get("episodes")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return {f"traj_{entry.get('episode_id')}": entry for entry in entries}

    def show(self, path: str, rows: Rows) -> Rows:
        """Bytes of observations are pictures."""
        return rows.as_pictures() if rows.kind == "bytes" and path.startswith("obs/") else rows

    def describe(
        self, name: str, steps: int, _shapes: Shapes, _attributes: Mapping[str, Any], place: str
    ) -> Described:
        """The entry of the episode in the JSON file, whose number of steps is checked."""
        entry = self.stated.get(name, {})
        elapsed = entry.get("elapsed_steps")
        if isinstance(elapsed, int) and elapsed != steps:
            fact = f"episode {name!r} has {steps} actions, its JSON states {elapsed}"
            raise CorruptLayoutError(fact, path=place)
        env_info = as_object(self.sidecar.get("env_info"))
        config = as_object(as_object(env_info.get("env_kwargs")).get("sim_config"))
        env_id = env_info.get("env_id")
        static: dict[str, Any] = {"env_id": env_id} if isinstance(env_id, str) else {}
        for key, item in (("episode_seed", "seed"), ("success", "success"), ("control_mode", "control_mode")):
            if isinstance(entry.get(key), bool | int | str):
                static[item] = entry[key]
        return static, {"json": pack(entry)} if entry else {}, stated_rate(config.get("control_freq"))


class Aloha(FileLayout):
    """One episode per file: /observations/… and /action; images maybe as rows of JPEG bytes."""

    above, layout, usual_fps = "", "aloha", 50.0
    metadata: dict[str, Any] = {}  # noqa: RUF012 - everything is metadata of the one episode

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file."""
        return [self.stem]

    def show(self, path: str, rows: Rows) -> Rows:
        """Images are rows of pixels, or of JPEG padded to one length, which the file may state."""
        is_compressed = whole_number(self.file.attributes("/").get("compress"))
        is_padded = rows.dtype == np.uint8 and len(rows.shape) == 1
        is_jpeg = rows.kind == "bytes" or (is_padded and (is_compressed or rows.shape[0] > 256))
        return rows.as_pictures() if is_jpeg and path.startswith("observations/images/") else rows


class D4rl(FileLayout):
    """Flat arrays, all episodes one after the other."""

    layout, usual_fps = "d4rl", 10.0

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where episodes begin, and the end."""
        file, names, split = self.file, self.file.names("/"), self.options.split
        shape = file.shape("actions")
        count, has_timeouts = shape[0] if shape else 0, "timeouts" in names
        ends = np.zeros(count, np.bool_)
        # In AntMaze a terminal marks the goal, and repeats until the time is up.
        is_maze = "antmaze" in PurePosixPath(file.name).name.lower() and has_timeouts
        ends_at_terminals = split == "done" or (split == "auto" and not is_maze)
        for path, is_used in (("timeouts", has_timeouts), ("terminals", ends_at_terminals)):
            if is_used and path in names:
                self._check_count(path, count)
                for start in range(0, count, 1 << 20):
                    flags = file.rows(path).read(start, min(start + (1 << 20), count))
                    ends[start : start + len(flags)] |= flags.reshape(len(flags), -1)[:, 0] != 0
        if not has_timeouts and "next_observations" in names:
            seen, following = file.rows("observations"), file.rows("next_observations")
            for start in range(0, count - 1, 1 << 16):
                stop = min(start + (1 << 16), count - 1)
                differ = following.read(start, stop) != seen.read(start + 1, stop + 1)
                ends[start:stop] |= differ.reshape(stop - start, -1).any(1)
        cuts = [0]
        most = count if has_timeouts or "next_observations" in names else self.options.max_episode_steps
        for end in [*(np.flatnonzero(ends) + 1).tolist(), count]:
            cuts += [*range(cuts[-1] + most, end, max(1, most)), end]
        return np.unique(cuts)

    def _check_count(self, path: str, count: int) -> None:
        shape = self.file.shape(path)
        if not shape or shape[0] != count:
            fact = f"{path!r} has shape {shape}, there are {count} actions"
            raise CorruptLayoutError(fact, path=self.file.name)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The name of the file and the number of the episode."""
        return [f"{self.stem}-{number:06d}" for number in range(len(self.bounds) - 1)]

    @cached_property
    def flat(self) -> dict[str, Rows]:
        """All arrays with a row per step of any episode."""
        count, shapes = int(self.bounds[-1]), self.file.arrays("/")
        for path in ("observations", "actions", "rewards", "terminals"):
            if path in shapes:
                self._check_count(path, count)
        paths = [path for path, shape in shapes.items() if shape and shape[0] == count]
        return {path: self.file.rows(path) for path in paths if not path.startswith("metadata/")}

    @property
    def metadata(self) -> dict[str, Any]:
        """Arrays that are no rows of episodes: the algorithm, the weights of the policy."""
        more: dict[str, Any] = {"arrays": {}, "left_out": []}
        for path in self.file.paths("/"):
            if path not in self.flat:
                try:
                    more["arrays"][path] = pack(self.file.whole(path))
                except (LimitExceededError, TypeError, UnsupportedDtypeError):
                    more["left_out"].append(path)
        return {**super().metadata, **{key: value for key, value in more.items() if value}}

    def parts(self, position: int) -> Parts:
        """The rows of an episode, and one observation more if the file has what follows."""
        start, stop = (int(bound) for bound in self.bounds[position : position + 2])
        columns = {
            path: EpisodeColumn(rows.part(start, stop), _ROLES.get(path, "other"))
            for path, rows in self.flat.items()
        }
        name, facts, static = self.ids[position], {"layout": self.layout}, {"env_id": self.stem}
        place = f"{self.file.name}#{name}"
        return self._finish(Parts(name, stop - start, columns, static, facts, place=place))


_CLASSES: dict[Layout, type[FileLayout]] = {
    "robomimic": Robomimic,
    "libero": Robomimic,
    "maniskill": ManiSkill,
    "aloha": Aloha,
    "d4rl": D4rl,
}


def json_object(text: Any) -> dict[str, Any]:
    """A JSON object in an attribute; empty if it is not one."""
    if not isinstance(text, str):
        return {}
    try:
        return as_object(parse_json(text.encode("utf-8", "surrogatepass"), allow_nan=True))
    except FormatError:
        return {}


def as_object(value: Any) -> dict[str, Any]:
    """A JSON object; empty if the value is something else."""
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """The number that a file states; None if it is not one."""
    try:
        return int(unpack(value))
    except (TypeError, ValueError, OverflowError):
        return None
