"""Minari datasets in and out: T actions and T + 1 observations, stored as HDF5, Arrow or Parquet.

Spaces of Gymnasium in the metadata describe observations and actions; nested spaces are paths such as
`observations/goal/0`. Images are stored as JPEG.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.aligning import stated_rate
from warpdata.convert.exporting import ExportOptions, Part, StepColumn, StepRows, StepWriter
from warpdata.convert.hdf5.file import Hdf5File, Hdf5Out, writing
from warpdata.convert.hdf5.read import as_object, json_object, whole_number
from warpdata.convert.place import Place
from warpdata.convert.receipt import (
    RECEIPT_FILE,
    ConversionReceipt,
    metadata_of,
    note_of,
    pack,
    rename,
    unpack,
)
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, SteppedEpisodes
from warpdata.convert.tables.parquet import ColumnFile, write_table
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    FormatError,
    SchemaMismatchError,
    UnsupportedVersionError,
    require_word,
)
from warpdata.timeline.meta import OBJECT, Role, SignalMeta

FORMATS = ("hdf5", "arrow", "parquet")
MINARI_VERSION = "0.5.4"
Space = Mapping[str, Any]
_MAIN_FILE, _METADATA = "main_data.hdf5", "metadata.json"
_MAX_JSON = 256 << 20
_MAX_DEPTH = 32
_SMALLEST_IMAGE = 32
_TOPS: dict[Role, str] = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "truncated": "truncations",
}
_ROLES = {top: role for role, top in _TOPS.items()}
_SINGLE = ("rewards", "terminations", "truncations")
_PER_STEP = ("actions", *_SINGLE)
_SPACES = {"observations": "observation_space", "actions": "action_space"}
_PATHS: dict[str, tuple[str, str]] = {
    role: (top, top if top in _SINGLE else f"{top}/{{}}") for role, top in _TOPS.items()
}
"""Role -> path of the only signal, and of several."""
_PART = "episode"
_JPEG = SignalMeta(OBJECT, (), "bytes")


def matches(place: Place) -> bool:
    """Whether its metadata are Minari's."""
    try:
        about = None if place.is_file else place.read_json(_metadata_file(place), max_bytes=_MAX_JSON)
    except FormatError:
        return False
    is_ours = about is not None and {"total_episodes", "total_steps"} <= set(about)
    return is_ours and bool({"data_format", "minari_version"} & set(about or ()))


def read(source: Any, *, fps: float | None = None, infos: bool = True) -> Episodes:
    """The episodes of a Minari dataset; rows are read on demand.

    `fps` is the rate of the steps if the environment does not state it. `infos=False` leaves infos out.
    """
    return Episodes(MinariEpisodes(Place.of(source), fps, infos))


def _metadata_file(place: Place) -> str:
    """The file with the metadata: in `data/`, or in the place itself."""
    for name in (f"data/{_METADATA}", _METADATA):
        if not place.is_file and place.exists(name):
            return name
    raise BadMagicError(f"not a Minari dataset: there is no 'data/{_METADATA}'", path=place.name)


class MinariEpisodes(SteppedEpisodes):
    """A dataset in any of its three storage formats."""

    def __init__(self, place: Place, fps: float | None, infos: bool) -> None:
        super().__init__(place, fps)
        self._infos = infos
        name = _metadata_file(place)
        self._folder, self.about = name.removesuffix(_METADATA), place.read_json(name, max_bytes=_MAX_JSON)
        self.spaces = read_spaces(self.about, place.name)
        main = f"{self._folder}{_MAIN_FILE}"
        self._kind = self.about.get("data_format") or ("hdf5" if place.exists(main) else "arrow")
        if self._kind not in FORMATS:
            raise UnsupportedVersionError(f"episodes stored as {self._kind!r}", path=place.name)
        self._file = Hdf5File(place, main) if self._kind == "hdf5" else None
        pattern = rf"{re.escape(self._folder)}(\d+)/part-0\.{self._kind}"
        names = place.names(self._folder.rstrip("/")) if self._file is None else self._file.names("/")
        pattern = pattern if self._file is None else r"episode_(\d+)"
        self._numbers = sorted(int(match[1]) for name in names if (match := re.fullmatch(pattern, name)))
        stated = self.about.get("total_episodes")
        if stated is not None and stated != len(self._numbers):
            fact = f"the metadata state {stated} episodes, there are {len(self._numbers)}"
            raise CorruptLayoutError(fact, path=place.name)

    @cached_property
    def ids(self) -> Sequence[str]:
        """episode_0, episode_1, …"""
        return [f"episode_{number}" for number in self._numbers]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the dataset."""
        return {"minari": {"metadata": pack(self.about)}}

    def parts(self, position: int) -> Parts:
        """The columns of an episode."""
        name, number = self.ids[position], self._numbers[position]
        place = f"{self.name}#{name}"
        if self._file is None:
            about, arrays, kept = self._table_episode(number, place)
        else:
            about, arrays, kept = self._hdf5_episode(self._file, f"/{name}")
        if "rewards" not in arrays:
            raise CorruptLayoutError(f"{name!r} has no rewards", path=place)
        steps, stated = arrays["rewards"].count, unpack(about.get("total_steps"))
        if stated is not None and whole_number(stated) != steps:
            raise CorruptLayoutError(f"{name!r} states {stated} steps and has {steps}", path=place)
        columns: dict[str, EpisodeColumn] = {}
        for path, rows in arrays.items():
            top = path.partition("/")[0]
            if top == "infos" and not self._infos:
                continue
            least, most = steps + (top == "observations"), steps + (top not in _PER_STEP)
            if not least <= rows.count <= most:
                fact = f"{path!r} of {name!r} has {rows.count} rows, there are {steps} steps"
                raise CorruptLayoutError(fact, path=place)
            shape = box_shape(self.spaces.get(path)) or ()
            is_encoded = rows.kind == "bytes" or (len(rows.shape) == 1 and len(shape) > 1)
            if is_encoded and is_image_space(self.spaces.get(path)):  # stored as JPEG
                rows = rows.as_pictures(has_axis=len(shape) == 3 and shape[2] == 1)
            columns[path] = EpisodeColumn(rows, _ROLES.get(top, "other"))
        env = json_object(self.about.get("env_spec"))
        static: dict[str, Any] = {"env_id": env["id"]} if isinstance(env.get("id"), str) else {}
        seed = about.get("seed")
        if not isinstance(seed, str) and (value := whole_number(seed)) is not None:
            static["seed"] = value
        fps = stated_rate(as_object(env.get("kwargs")).get("render_fps"))
        meta = {"minari": {"episode": about, **kept}}
        return Parts(name, steps, columns, static, meta, self._fps or fps, place=place)

    def _hdf5_episode(
        self, file: Hdf5File, group: str
    ) -> tuple[dict[str, Any], dict[str, Rows], dict[str, Any]]:
        """Attributes, columns and other metadata of a group; a Tuple is `_index_0` … there."""
        shapes = file.arrays(group)
        attributes = file.attributes_below(group, shapes)
        arrays: dict[str, Rows] = {}
        kept: dict[str, Any] = {}
        for path, shape in shapes.items():
            name = re.sub(r"(^|/)_index_(\d+)(?=/|$)", r"\1\2", path)
            if shape:
                arrays[name] = file.rows(f"{group}/{path}")
            else:
                kept[name] = pack(file.whole(f"{group}/{path}"))
        more = {"arrays": kept, "attributes": {path: each for path, each in attributes.items() if path}}
        return attributes[""], arrays, {key: value for key, value in more.items() if value}

    def _table_episode(
        self, number: int, place: str
    ) -> tuple[dict[str, Any], dict[str, Rows], dict[str, Any]]:
        """Metadata and columns of a table; the last row of what goes by step is padding."""
        folder = f"{self._folder}{number}"
        table = ColumnFile(self._place, f"{folder}/part-0.{self._kind}", self._kind)
        about = pack(self._place.read_json(f"{folder}/{_METADATA}", max_bytes=1 << 24))
        if table.count < 1:
            raise CorruptLayoutError("the table of the episode is empty", path=place)
        arrays: dict[str, Rows] = {}
        for path, field in table.leaves.items():
            space, count = self.spaces.get(path), table.count - (path.partition("/")[0] in _PER_STEP)
            is_jpeg = is_image_space(space) and str(field.type) in ("binary", "large_binary")
            shape = None if is_jpeg else box_shape(space)
            arrays[path] = table.rows(path, count, shape, "Leave infos out with infos=False.")
        return about, arrays, {}


def read_spaces(about: Mapping[str, Any], place: str) -> dict[str, Space]:
    """Every leaf of the spaces in the metadata of a dataset, by the name of its signal."""
    spaces: dict[str, Space] = {}
    for top, key in _SPACES.items():
        text = about.get(key)
        try:
            if text is not None and not isinstance(text, str):
                raise CorruptLayoutError("it is not text")
            data = (text or "{}").encode("utf-8", "surrogatepass")
            spaces |= dict(_space_leaves(parse_json_object(data, max_bytes=_MAX_JSON, allow_nan=True), top))
        except FormatError as error:
            fact = f"the {key} of the metadata is damaged: {error.message}"
            raise CorruptLayoutError(fact, path=place) from None
    return spaces


def _space_leaves(space: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Space]]:
    """Every space that is no Dict or Tuple, by its path."""
    if not isinstance(space, Mapping) or not space or depth > _MAX_DEPTH:
        return
    inner = space.get("subspaces")
    if space.get("type") == "Dict" and isinstance(inner, Mapping):
        for key, part in inner.items():
            yield from _space_leaves(part, f"{name}/{key}", depth + 1)
    elif space.get("type") == "Tuple" and isinstance(inner, list):
        for number, part in enumerate(inner):
            yield from _space_leaves(part, f"{name}/{number}", depth + 1)
    else:
        yield name, space


def box_shape(space: Space | None) -> tuple[int, ...] | None:
    """The shape of one value, if the space states it."""
    if space is None:
        return None
    kind, shape, count = space.get("type"), space.get("shape"), space.get("n")
    if kind == "Box" and isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape):
        return tuple(shape)
    if kind == "MultiDiscrete" and isinstance(space.get("nvec"), list):
        return tuple(int(side) for side in np.shape(space["nvec"]))
    if kind == "MultiBinary":
        return (count,) if isinstance(count, int) else tuple(count) if isinstance(count, list) else None
    return () if kind == "Discrete" else None


def is_image_space(space: Space | None) -> bool:
    """Whether Minari stores values of this space as JPEG: bytes from 0 to 255, at least 32 x 32, two or three axes."""
    shape = box_shape(space)
    if space is None or shape is None or space.get("type") != "Box" or space.get("dtype") != "uint8":
        return False
    if (
        len(shape) not in (2, 3)
        or shape[2:] not in ((), (1,), (3,), (4,))
        or min(shape[:2]) < _SMALLEST_IMAGE
    ):
        return False
    try:
        bounds = [(np.asarray(space.get(key)) == value).all() for key, value in (("low", 0), ("high", 255))]
    except ValueError:
        return False
    return all(bounds)


def space_of(meta: SignalMeta) -> dict[str, Any]:
    """A space that holds every value of a signal."""
    if meta.is_object:
        charset = "".join(map(chr, range(32, 127)))
        return {"type": "Text", "max_length": 1 << 16, "min_length": 0, "charset": charset}
    low, high = {"f": (-np.inf, np.inf), "b": (False, True)}.get(meta.dtype.kind, (None, None))
    if low is None:
        low, high = int(np.iinfo(meta.dtype).min), int(np.iinfo(meta.dtype).max)
    bounds = {key: np.full(meta.shape, end, object).tolist() for key, end in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": str(meta.dtype), "shape": list(meta.shape), **bounds}


def nested_space(spaces: Mapping[str, Space], top: str) -> dict[str, Any]:
    """The spaces below a top as one: a Dict of Dicts, or the only one itself."""
    below = {
        path[len(top) :].lstrip("/"): each for path, each in spaces.items() if path.partition("/")[0] == top
    }
    if not below:
        hint = "Name signals of the episodes so with Episodes.map."
        raise CorruptLayoutError(f"there are no {top}, which Minari needs", hint=hint)
    if set(below) == {""}:
        return dict(below[""])
    root: dict[str, Any] = {"type": "Dict", "subspaces": {}}
    for path, space in below.items():
        node = root
        *above, last = path.split("/")
        for part in above:
            node = node["subspaces"].setdefault(part, {"type": "Dict", "subspaces": {}})
        node["subspaces"][last] = dict(space)
    return root


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    data_format: Literal["hdf5", "arrow", "parquet"] | None = None,
    dataset_id: str | None = None,
    final_observation: Literal["repeat", "drop"] = "repeat",
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as the folder of a Minari dataset, which appears whole or not at all.

    `data_format` is that of the source, else HDF5; `dataset_id` the name in Minari's root, by default the last part of
    the target. Minari needs an observation after the last action: if there is none, the last one is repeated, or the
    last step is dropped. The times of the steps are kept in `warpdata.json`.
    """
    if data_format is not None:
        require_word("data_format", data_format, FORMATS)
    require_word("final_observation", final_observation, ("repeat", "drop"))
    if not len(episodes):
        raise CorruptLayoutError("a Minari dataset has at least one episode", hint="Check the selection.")
    writer = MinariWriter(data_format or "", dataset_id, final_observation)
    return writer.write(episodes, target, **options)


@dataclass
class MinariWriter(StepWriter):
    """Groups of one HDF5 file, or a table per episode, with spaces from the source or the first episode."""

    format, version = "minari", MINARI_VERSION
    _data_format: str
    _dataset_id: str | None
    _final: str
    _count = _total = 0

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[tuple[Path, Hdf5Out | None]]:
        """The folder of the dataset, and the file of all episodes if there is one."""
        name = re.sub(r"[^A-Za-z0-9_-]", "-", target.name)
        name = name if re.search(r"-v\d+$", name) else f"{name}-v0"
        self._dataset_id = self._dataset_id or self._metadata.get("dataset_id") or name
        with commit_folder(target) as folder, contextlib.ExitStack() as stack:
            data = folder / "data"
            data.mkdir()
            is_hdf5 = self._data_format == "hdf5"
            yield folder, stack.enter_context(writing(data / _MAIN_FILE)) if is_hdf5 else None
            stack.close()
            size = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
            counts = {"total_episodes": self._count, "total_steps": self._total}
            made = {"minari_version": MINARI_VERSION, "dataset_size": round(size / 1e6, 1), **self._metadata}
            made |= {**counts, "data_format": self._data_format, "jpeg_encoding": self._is_jpeg}
            (data / _METADATA).write_text(json.dumps({**made, "dataset_id": self._dataset_id}))

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """Choose names and spaces: those of the source if they fit."""
        self._metadata = dict(unpack(metadata_of(episodes.metadata, "minari").get("metadata", {})))
        stated = self._metadata.get("data_format")
        self._data_format = self._data_format or (stated if stated in FORMATS else "hdf5")
        self._names = rows.place(_PATHS, "infos/{}")
        metas = {path: rows.columns[name].meta for name, path in self._names.items()}
        spaces = {path: space_of(meta) for path, meta in metas.items() if path.partition("/")[0] in _SPACES}
        known = read_spaces(self._metadata, "the metadata")

        def fits(path: str) -> bool:
            shape = box_shape(known[path])
            return metas[path].is_object if shape is None else shape == metas[path].shape

        self._spaces: Mapping[str, Space] = spaces
        if set(known) == set(spaces) and all(map(fits, known)):
            self._spaces = known
        else:
            self._metadata |= {key: json.dumps(nested_space(spaces, top)) for top, key in _SPACES.items()}
        pictures = [name for name, path in self._names.items() if is_image_space(self._spaces.get(path))]
        are_jpeg = all(rows.columns[name].pictures("mjpeg") is not None for name in pictures)
        self._is_jpeg = are_jpeg and bool(self._metadata.get("jpeg_encoding", True))

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The group or the table of one episode."""
        paths = rows.place(_PATHS, "infos/{}")
        if {item for item in paths.items() if not item[1].startswith("infos")} != {
            item for item in self._names.items() if not item[1].startswith("infos")
        }:
            raise SchemaMismatchError(f"episode {rows.episode.id!r} has other signals than the first one")
        seen = [column for name, column in rows.columns.items() if paths[name].startswith("observations")]
        is_short = any(not column.has_more for column in seen)
        steps = len(rows) - (1 if is_short and self._final == "drop" else 0)
        arrays: dict[str, tuple[SignalMeta, Iterator[Any], int]] = {}
        """Type, blocks and number of rows by path."""
        for name, column in rows.columns.items():
            path, top = paths[name], paths[name].partition("/")[0]
            is_jpeg = self._is_jpeg and is_image_space(self._spaces.get(path))
            run = column.pictures("mjpeg") if is_jpeg else None
            available = steps if top in _PER_STEP else min(column.count, steps + 1)
            wanted = steps + 1 if top == "observations" else available
            note = note_of(column.signal) if run is not None else column.note()
            if wanted > available:
                note = replace(note, how="resampled", why="the last observation is repeated")
            elif available < column.count and not (column.meta.role == "action" and column.has_more):
                note = replace(note, how="cut", why="the last step is dropped")
            rows.notes[name] = rename(note, name, path)
            if run is None:
                arrays[path] = column.meta, _blocks(column, wanted, available), wanted
            else:
                frames = list(run.packets())[:available]
                arrays[path] = _JPEG, iter([frames + frames[-1:] * (wanted - available)]), wanted
        missing = _missing(rows, paths, steps)
        kept = metadata_of(rows.episode.meta, "minari")
        about = _flat(unpack(kept.get("episode", {})))
        if not about and isinstance(rows.episode.static.get("seed"), int):
            about["seed"] = rows.episode.static["seed"]
        if self._data_format == "hdf5":
            self._write_group(scratch / "part", arrays, missing, kept.get("arrays", {}))
        else:
            self._write_table(scratch / "part", arrays, missing, steps)
        return Part(steps, (scratch / "part", {**about, "total_steps": steps}))

    def _write_group(
        self, path: Path, arrays: Mapping[str, Any], missing: Mapping[str, Any], kept: Mapping[str, Any]
    ) -> None:
        with writing(path, durable=False) as out:
            out.group(_PART)
            for name, (meta, blocks, count) in arrays.items():
                there = f"{_PART}/{self._stored_path(name)}"
                out.stream(there, (count, *meta.shape), meta.dtype, blocks, meta.kind)
            for name, values in missing.items():
                out.array(f"{_PART}/{name}", values)
            for name, value in kept.items():
                out.array(f"{_PART}/{name}", unpack(value))

    def _write_table(
        self, path: Path, arrays: Mapping[str, Any], missing: Mapping[str, Any], steps: int
    ) -> None:
        columns: dict[str, Any] = {}
        order = (*_TOPS.values(), "infos")
        for name in sorted(arrays, key=lambda name: order.index(name.partition("/")[0])):
            meta, blocks, _ = arrays[name]
            if meta.is_object:
                columns[name] = [value for block in blocks for value in block]
                continue
            columns[name] = np.concatenate([np.empty((0, *meta.shape), meta.dtype), *blocks])
            space = self._spaces.get(name, {})
            if box_shape(space) == () and space.get("type") == "Box":
                columns[name] = columns[name].reshape(-1, 1)
        write_table(path, {**columns, **missing}, steps + 1, self._data_format)

    def _stored_path(self, path: str) -> str:
        """A path with the members of a Tuple as HDF5 has them."""
        top, *parts = path.split("/")
        if top not in _SPACES:
            return path
        space: Any = json.loads(self._metadata[_SPACES[top]])
        names = [top]
        for part in parts:
            is_tuple = space["type"] == "Tuple"
            names.append(f"_index_{part}" if is_tuple else part)
            space = space["subspaces"][int(part) if is_tuple else part]
        return "/".join(names)

    def add(self, part: Part) -> str:
        """Copy the group into the file, or give the table a folder."""
        (path, about), number = part.data, self._count
        folder, out = self.out
        about = {**about, "id": number}
        if out is not None:
            out.take(path, _PART, f"episode_{number}")
            for key, value in about.items():
                plain = np.int64(value) if isinstance(value, int) else value
                out.attribute(f"episode_{number}", key, pack(plain))
        else:
            place = folder / "data" / str(number)
            place.mkdir()
            shutil.move(path, place / f"part-0.{self._data_format}")
            tree: dict[str, Any] = {}
            for key, value in about.items():
                node, (*above, last) = tree, key.split("/")
                for name in above:
                    node = node.setdefault(name, {})
                node[last] = value.tolist() if hasattr(value, "tolist") else value
            (place / _METADATA).write_text(json.dumps(tree))
        self._count += 1
        self._total += part.rows
        return f"episode_{number}"

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the receipt; the metadata follow when the files are closed."""
        (self.out[0] / RECEIPT_FILE).write_bytes(receipt.document())


def _blocks(column: StepColumn, wanted: int, available: int) -> Iterator[NDArray[Any]]:
    yield from column.blocks(0, available)
    if wanted > available:
        yield np.repeat(column.rows(available - 1, available), wanted - available, axis=0)


def _missing(rows: StepRows, paths: Mapping[str, str], steps: int) -> dict[str, NDArray[Any]]:
    """What Minari needs and the episode does not have."""
    columns = {path: rows.columns[name] for name, path in paths.items()}
    ended = columns.get("terminations")
    has_ended = ended is not None and steps > 0 and bool(np.any(ended.rows(steps - 1, steps)))
    missing: dict[str, NDArray[Any]] = {}
    for path in (path for path in _SINGLE if path not in columns):
        missing[path] = np.zeros(steps, np.float64 if path == "rewards" else np.bool_)
        if path == "truncations" and not has_ended:
            missing[path][-1:] = True
            rows.add_missing(path, "true at the last step, where nothing was terminated")
        else:
            rows.add_missing(path, "zeros, which Minari needs")
    return missing


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}/{key}" if above else key
        flat |= _flat(value, path) if isinstance(value, Mapping) else {path: value}
    return flat
