"""Write episodes as a Minari dataset, stored as HDF5, Arrow or Parquet."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import Part, StepColumn, StepRows, StepWriter, write_set
from warpdata.convert.hdf5.file import Hdf5Out, writing
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.minari.arrow import TableOut, write_table
from warpdata.convert.minari.reading import FORMATS, MAIN_FILE, METADATA, PER_STEP
from warpdata.convert.minari.spaces import (
    box_shape,
    is_image_space,
    leaves,
    nested_space,
    parse_space,
    space_of,
)
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, called, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import CorruptLayoutError, SchemaMismatchError, require_word
from warpdata.timeline.meta import Role

MINARI_VERSION = "0.5.4"
_TOPS: dict[Role, str] = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "truncated": "truncations",
}
_ORDER = (*_TOPS.values(), "infos")
_SINGLE = ("rewards", "terminations", "truncations")
_PREFIXES = re.compile(r"(observations?|obs|actions?)[./]")
_PART = "episode"


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    data_format: Literal["hdf5", "arrow", "parquet"] | None = None,
    dataset_id: str | None = None,
    final_observation: Literal["repeat", "drop"] = "repeat",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as the folder of a Minari dataset, which appears whole or not at all.

    `data_format` is that of the source, else HDF5; `dataset_id` the name in Minari's root, by default the last part of
    the target. Minari needs an observation after the last action: where there is none, the last one is repeated, or
    the last step is dropped. Steps are those of the episode, or a grid of `rate` per second, or the records of the
    signal `clock`, aligned by `align`. Their times are kept in `warpdata.json`.
    """
    if data_format is not None:
        require_word("data_format", data_format, FORMATS)
    require_word("final_observation", final_observation, ("repeat", "drop"))
    if not len(episodes):
        raise CorruptLayoutError("a Minari dataset has at least one episode")
    writer, options = (
        MinariWriter(data_format, dataset_id, final_observation),
        AlignOptions(rate, clock, align),
    )
    return write_set(writer, episodes, target, options, on_error=on_error, jobs=jobs, progress=progress)


class MinariWriter(StepWriter):
    """Groups of one HDF5 file, or a table per episode, with spaces from the source or the first episode."""

    format, version = "minari", MINARI_VERSION

    def __init__(self, data_format: str | None, dataset_id: str | None, final: str) -> None:
        self._data_format, self._dataset_id, self._final = data_format or "", dataset_id, final
        self._count = self._total = 0

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[tuple[Path, Hdf5Out | None]]:
        """The folder of the dataset, and the file of all episodes where there is one."""
        self._dataset_id = self._dataset_id or self._metadata.get("dataset_id") or _default_id(target)
        with commit_folder(target) as folder:
            data = folder / "data"
            data.mkdir()
            if self._data_format != "hdf5":
                yield folder, None
                return
            with writing(data / MAIN_FILE) as out:
                yield folder, out
            self._write_metadata(folder)  # its size is known now

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """Choose names and spaces: those of the source where they fit."""
        kept = episodes.metadata.get("minari")
        self._metadata = dict(unpacked(kept.get("metadata", {}))) if isinstance(kept, Mapping) else {}
        stated = self._metadata.get("data_format")
        self._data_format = self._data_format or (stated if stated in FORMATS else "hdf5")
        self._names = _paths(rows.columns)
        spaces = {
            path: space_of(rows.columns[name].meta)
            for name, path in self._names.items()
            if path.startswith(("observations", "actions"))
        }
        known: dict[str, Mapping[str, Any]] = {}
        for what, top in (("observation_space", "observations"), ("action_space", "actions")):
            known |= dict(leaves(parse_space(self._metadata.get(what), what, "the metadata"), top))
        fits = set(known) == set(spaces) and all(
            _fits(known[path], rows.columns[name]) for name, path in self._names.items() if path in known
        )
        self._spaces: Mapping[str, Mapping[str, Any]] = known if fits else spaces
        if not fits:
            for what, top in (("observation_space", "observations"), ("action_space", "actions")):
                self._metadata[what] = json.dumps(nested_space(_below(spaces, top)))
        pictures = [name for name, path in self._names.items() if is_image_space(self._spaces.get(path))]
        are_jpeg = all(_jpegs(rows.columns[name]) is not None for name in pictures)
        self._is_jpeg = are_jpeg and bool(self._metadata.get("jpeg_encoding", True))

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The group or the table of one episode."""
        paths = _paths(rows.columns)
        own = {name: path for name, path in paths.items() if not path.startswith("infos")}
        if own != {name: path for name, path in self._names.items() if not path.startswith("infos")}:
            raise SchemaMismatchError(f"episode {rows.episode.id!r} has other signals than the first one")
        seen = [column for name, column in rows.columns.items() if paths[name].startswith("observations")]
        is_short = any(not column.has_more for column in seen)
        steps = len(rows) - (1 if is_short and self._final == "drop" else 0)
        notes: dict[str, Note] = {}
        arrays: dict[str, tuple[StepColumn, list[bytes] | None, int, int]] = {}
        for name, column in rows.columns.items():
            path = paths[name]
            wanted, there = _counts(path, column, steps)
            run = _jpegs(column) if self._is_jpeg and is_image_space(self._spaces.get(path)) else None
            frames = None if run is None else list(run.packets())[:there]
            if frames is not None:
                frames += frames[-1:] * (wanted - there)
            arrays[path] = (column, frames, wanted, there)
            note = note_of(column.signal) if run is not None else column.note()
            notes[name] = called(_noted(note, column, wanted, there), name, path)
        missing = _missing(rows, paths, steps, notes)
        kept = rows.episode.meta.get("minari")
        kept = kept if isinstance(kept, Mapping) else {}
        about = _flat(unpacked(kept.get("episode", {})))
        if not about and isinstance(rows.episode.static.get("seed"), int):
            about["seed"] = rows.episode.static["seed"]
        file = scratch / "part"
        if self._data_format == "hdf5":
            self._write_group(file, arrays, missing, kept.get("arrays", {}))
        else:
            self._write_table(file, arrays, missing, steps)
        return Part(steps, notes, (file, {**about, "total_steps": steps}))

    def _write_group(
        self, path: Path, arrays: Mapping[str, Any], missing: Mapping[str, Any], kept: Mapping[str, Any]
    ) -> None:
        with writing(path, durable=False) as out:
            out.group(_PART)
            for name, (column, frames, wanted, there) in arrays.items():
                inside, meta = f"{_PART}/{self._stored_path(name)}", column.meta
                if frames is not None:
                    out.stream(inside, (wanted,), None, iter([frames]), is_bytes=True)
                    continue
                is_text, is_bytes = meta.kind == "text", meta.kind == "bytes"
                blocks = _blocks(column, wanted, there)
                out.stream(
                    inside, (wanted, *meta.shape), meta.dtype, blocks, is_text=is_text, is_bytes=is_bytes
                )
            for name, values in missing.items():
                out.array(f"{_PART}/{name}", values)
            for name, value in kept.items():
                out.array(f"{_PART}/{name}", unpacked(value))

    def _write_table(
        self, path: Path, arrays: Mapping[str, Any], missing: Mapping[str, Any], steps: int
    ) -> None:
        table = TableOut(steps + 1)
        names = sorted(arrays, key=lambda name: _ORDER.index(name.partition("/")[0]))
        for name in names:
            column, frames, wanted, there = arrays[name]
            if frames is not None:
                table.objects(name, frames, is_text=False)
            elif column.meta.is_object:
                texts = [each for block in _blocks(column, wanted, there) for each in block]
                table.objects(name, texts, is_text=column.meta.kind == "text")
            else:
                empty = np.empty((0, *column.meta.shape), column.meta.dtype)
                values = np.concatenate([empty, *_blocks(column, wanted, there)])
                space = self._spaces.get(name, {})
                if box_shape(space) == () and space.get("type") == "Box":
                    values = values.reshape(-1, 1)
                table.numbers(name, values, told_shape=name.startswith("infos/"))
        for name, values in missing.items():
            table.numbers(name, values)
        write_table(path, table.table(), self._data_format)

    def _stored_path(self, path: str) -> str:
        """A path with the members of a Tuple as HDF5 has them."""
        top, *parts = path.split("/")
        if top not in ("observations", "actions"):
            return path
        space: Any = json.loads(
            self._metadata["observation_space" if top == "observations" else "action_space"]
        )
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
                out.attribute(f"episode_{number}", key, packed(plain))
        else:
            place = folder / "data" / str(number)
            place.mkdir()
            shutil.move(path, place / f"part-0.{self._data_format}")
            plain = {
                key: value.tolist() if hasattr(value, "tolist") else value for key, value in about.items()
            }
            (place / METADATA).write_text(json.dumps(_nested_dict(plain)))
        self._count += 1
        self._total += part.rows
        return f"episode_{number}"

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the metadata and the receipt; beside an HDF5 file, once that is closed."""
        folder, out = self.out
        if out is None:
            self._write_metadata(folder)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())

    def _write_metadata(self, folder: Path) -> None:
        data = folder / "data"
        size = sum(each.stat().st_size for each in data.rglob("*") if each.is_file())
        made = {"minari_version": MINARI_VERSION, "dataset_size": round(size / 1e6, 1), **self._metadata}
        made |= {
            "total_episodes": self._count,
            "total_steps": self._total,
            "data_format": self._data_format,
            "jpeg_encoding": self._is_jpeg,
            "dataset_id": self._dataset_id,
        }
        (data / METADATA).write_text(json.dumps(made))


def _default_id(target: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", target.name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _fits(space: Mapping[str, Any], column: StepColumn) -> bool:
    shape = box_shape(space)
    return column.meta.is_object if shape is None else shape == column.meta.shape


def _below(spaces: Mapping[str, Mapping[str, Any]], top: str) -> dict[str, Mapping[str, Any]]:
    below = {
        path[len(top) :].lstrip("/"): space for path, space in spaces.items() if path.partition("/")[0] == top
    }
    if not below:
        raise CorruptLayoutError(f"there are no {top}, which Minari needs")
    return below


def _paths(columns: Mapping[str, StepColumn]) -> dict[str, str]:
    """Signal -> its path: below the word for its role; the only one of its role has that word alone."""
    paths: dict[str, str] = {}
    by_top: dict[str, list[str]] = {}
    for name, column in columns.items():
        by_top.setdefault(_TOPS.get(column.meta.role, "infos"), []).append(name)
    for top, names in by_top.items():
        if top == "infos":
            paths |= {name: name if name.startswith("infos/") else f"infos/{name}" for name in names}
        elif top in _SINGLE:
            first = top if top in names else names[0]
            paths |= {name: top if name == first else f"infos/{name}" for name in names}
        elif all(name == top or name.startswith(f"{top}/") for name in names):
            paths |= {name: name for name in names}
        elif len(names) == 1:
            paths[names[0]] = top
        else:
            paths |= {name: f"{top}/{_PREFIXES.sub('', name, count=1)}" for name in names}
    taken = sorted(paths.values())
    for path in taken:
        if taken.count(path) > 1 or any(other.startswith(f"{path}/") for other in taken):
            raise SchemaMismatchError(
                f"two signals would be called {path!r}", hint="Rename them with Episodes.map."
            )
    return paths


def _jpegs(column: StepColumn) -> Any:
    """The encoded frames of a camera whose frames are JPEG pictures and lie at the steps."""
    run = encoded_run(column.signal) if column.is_exact and column.meta.kind == "image" else None
    is_jpeg = run is not None and run.stream.codec == "mjpeg" and bool(run.shown.all())
    return run if is_jpeg else None


def _counts(path: str, column: StepColumn, steps: int) -> tuple[int, int]:
    """How many rows are written, and how many of them there are."""
    if path.startswith("observations"):
        return steps + 1, min(column.count, steps + 1)
    count = steps if path.partition("/")[0] in PER_STEP else min(column.count, steps + 1)
    return count, count


def _blocks(column: StepColumn, wanted: int, there: int) -> Iterator[NDArray[Any]]:
    yield from column.blocks(0, there)
    if wanted > there:
        yield np.repeat(column.rows(there - 1, there), wanted - there, axis=0)


def _noted(note: Note, column: StepColumn, wanted: int, there: int) -> Note:
    if wanted > there:
        return replace(note, how="resampled", why="the last observation is repeated")
    if there < column.count and not (column.meta.role == "action" and column.has_more):
        return replace(note, how="dropped", why="the last step is dropped")
    return note


def _missing(
    rows: StepRows, paths: Mapping[str, str], steps: int, notes: dict[str, Note]
) -> dict[str, NDArray[Any]]:
    """What Minari needs and the episode does not have."""
    there = {path: rows.columns[name] for name, path in paths.items()}
    ended = there.get("terminations")
    has_ended = ended is not None and steps > 0 and bool(np.any(ended.rows(steps - 1, steps)))
    made: dict[str, NDArray[Any]] = {}
    for path in _SINGLE:
        if path in there:
            continue
        made[path] = np.zeros(steps, np.float64 if path == "rewards" else np.bool_)
        why = "missing in the source: zeros, which Minari needs"
        if path == "truncations" and not has_ended:
            made[path][-1:] = True
            why = "missing in the source: true at the last step, where nothing was terminated"
        notes[path] = Note("kept", 0, why=why)
    return made


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}/{key}" if above else key
        flat |= _flat(value, path) if isinstance(value, Mapping) else {path: value}
    return flat


def _nested_dict(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        *above, last = path.split("/")
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return tree
