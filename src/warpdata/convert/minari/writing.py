"""Write episodes as a Minari dataset, stored as HDF5, Arrow or Parquet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder, write_file
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.exporting import StepColumn, counted, episode_notes, step_columns, usable
from warpdata.convert.hdf5.file import Hdf5Out, writing
from warpdata.convert.importing import OnError, Progress
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
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, called, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import CorruptLayoutError, SchemaMismatchError, require_word
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import Role

MINARI_VERSION = "0.5.4"
_TOPS: dict[Role, str] = {
    "observation": "observations", "action": "actions", "reward": "rewards", "terminated": "terminations",
    "truncated": "truncations",
}  # fmt: skip
_ONE = ("rewards", "terminations", "truncations")
_PREFIXES = re.compile(r"(observations?|obs|actions?)[./]")


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
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as the folder of a Minari dataset, which appears whole or not at all.

    `data_format` is that of the source, else HDF5; `dataset_id` the name in Minari's root, by default the last part of
    the target. Minari wants an observation after the last action: where there is none, the last one is repeated, or
    the last step is dropped.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`. Their times are kept in `warpdata.json`.
    """
    if data_format is not None:
        require_word("data_format", data_format, FORMATS)
    require_word("final_observation", final_observation, ("repeat", "drop"))
    kept = episodes.metadata.get("minari")
    told = dict(unpacked(kept.get("metadata", {}))) if isinstance(kept, Mapping) else {}
    kind = data_format or (told.get("data_format") if told.get("data_format") in FORMATS else None) or "hdf5"
    episodes = under_own_names(episodes)
    options = AlignOptions(rate, clock, align)
    receipt = ConversionReceipt.of_export("minari", episodes, target, MINARI_VERSION, options.to_json())
    episodes = usable(episodes, on_error, receipt, options)
    with commit_folder(target) as folder:
        data = folder / "data"
        data.mkdir()
        plan = _Plan.of(episodes, told, final_observation, options)
        total = _fill(data, episodes, plan, str(kind), receipt, progress)
        told |= {
            "total_episodes": len(episodes), "total_steps": total, "data_format": kind,
            "observation_space": plan.observation_space, "action_space": plan.action_space,
            "jpeg_encoding": plan.jpeg,
        }  # fmt: skip
        told.setdefault("minari_version", MINARI_VERSION)
        if dataset_id is not None or "dataset_id" not in told:
            told["dataset_id"] = dataset_id or _default_id(target)
        told.setdefault(
            "dataset_size",
            round(sum(each.stat().st_size for each in data.rglob("*") if each.is_file()) / 1e6, 1),
        )
        write_file(data / METADATA, json.dumps(told).encode(), durable=False)
        write_file(folder / RECEIPT_FILE, receipt.document(), durable=False)
    return receipt


def _default_id(target: str | os.PathLike[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(os.path.abspath(target)).name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _fill(
    data: Path,
    episodes: Episodes,
    plan: _Plan,
    kind: str,
    receipt: ConversionReceipt,
    progress: Progress | None,
) -> int:
    total = 0
    if kind == "hdf5":
        with writing(data / MAIN_FILE) as out:
            for number, episode in enumerate(counted(episodes, progress)):
                made = _EpisodeOut(episode, plan)
                made.to_hdf5(out, number)
                made.note_in(receipt, number)
                total += made.steps
                receipt.add(made.notes)
        return total
    for number, episode in enumerate(counted(episodes, progress)):
        made = _EpisodeOut(episode, plan)
        made.to_table(data, number, kind)
        made.note_in(receipt, number)
        total += made.steps
        receipt.add(made.notes)
    return total


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is the same for all episodes: the names and spaces of the signals."""

    names: Mapping[str, str]
    """Signal -> its path in the dataset."""
    spaces: Mapping[str, Mapping[str, Any]]
    """Path -> space of a leaf."""
    observation_space: str
    action_space: str
    jpeg: bool
    final: str
    options: AlignOptions

    @classmethod
    def of(cls, episodes: Episodes, told: Mapping[str, Any], final: str, options: AlignOptions) -> _Plan:
        """From the first episode, and the spaces of the source where they fit."""
        if not len(episodes):
            raise CorruptLayoutError("a Minari dataset has at least one episode")
        _, columns = step_columns(episodes[0], options)
        names = _paths(columns)
        spaces = {
            path: space_of(columns[name].meta)
            for name, path in names.items()
            if path.startswith(("observations", "actions"))
        }
        known: dict[str, Mapping[str, Any]] = {}
        for what, top in (("observation_space", "observations"), ("action_space", "actions")):
            known |= dict(leaves(parse_space(told.get(what), what, "the metadata"), top))
        if set(known) == set(spaces) and all(
            _fits(known[path], columns[name]) for name, path in names.items() if path in known
        ):
            observation, action = told["observation_space"], told["action_space"]
            spaces = dict(known)  # type: ignore[arg-type]
        else:
            observation, action = (
                json.dumps(nested_space(_below(spaces, top))) for top in ("observations", "actions")
            )
        pictures = [name for name, path in names.items() if is_image_space(spaces.get(path))]
        jpeg = all(_jpegs(columns[name]) is not None for name in pictures) and bool(
            told.get("jpeg_encoding", True)
        )
        return cls(names, spaces, observation, action, jpeg, final, options)


def _fits(space: Mapping[str, Any], column: StepColumn) -> bool:
    shape = box_shape(space)
    if shape is None:
        return column.meta.is_object
    return shape == column.meta.shape


def _below(spaces: Mapping[str, Mapping[str, Any]], top: str) -> dict[str, Mapping[str, Any]]:
    found = {
        path[len(top) :].lstrip("/"): space for path, space in spaces.items() if path.partition("/")[0] == top
    }
    if not found:
        raise CorruptLayoutError(f"there are no {top}, which Minari asks for")
    return found


def _paths(columns: Mapping[str, StepColumn]) -> dict[str, str]:
    """Where each signal lies: below the word for its role, one of its role alone under that word itself."""
    found: dict[str, str] = {}
    by_role: dict[str, list[str]] = {}
    for name, column in columns.items():
        by_role.setdefault(_TOPS.get(column.meta.role, "infos"), []).append(name)
    for top, names in by_role.items():
        if top == "infos":
            found |= {name: name if name.startswith("infos/") else f"infos/{name}" for name in names}
        elif top in _ONE:
            chosen = top if top in names else names[0]
            found |= {name: top if name == chosen else f"infos/{name}" for name in names}
        elif all(name == top or name.startswith(f"{top}/") for name in names):
            found |= {name: name for name in names}
        elif len(names) == 1:
            found[names[0]] = top
        else:
            found |= {name: f"{top}/{_PREFIXES.sub('', name, count=1)}" for name in names}
    taken = list(found.values())
    if len(set(taken)) != len(taken) or any(
        f"{path}/"
        in "".join(f"{other}/|" for other in taken if other != path and other.startswith(f"{path}/"))
        for path in taken
    ):
        raise SchemaMismatchError(
            "two signals would have one name in the dataset", hint="Rename them with Episodes.map."
        )
    return found


def _jpegs(column: StepColumn) -> Any:
    """The encoded frames of a camera whose frames are JPEG pictures and lie at the steps."""
    run = encoded_run(column.signal) if column.is_exact and column.meta.kind == "image" else None
    if run is None or run.stream.codec != "mjpeg" or not bool(run.shown.all()):
        return None
    return run


class _EpisodeOut:
    """One episode on its way into the dataset."""

    def __init__(self, episode: Episode, plan: _Plan) -> None:
        self._episode, self._plan = episode, plan
        steps, self._columns = step_columns(episode, plan.options)
        self._step_times = steps
        self.notes: dict[str, Note] = {}
        paths = _paths(self._columns)
        if {name: path for name, path in paths.items() if not path.startswith("infos")} != {
            name: path for name, path in plan.names.items() if not path.startswith("infos")
        }:
            raise SchemaMismatchError(f"episode {episode.id!r} has other signals than the first one")
        self._paths = paths
        seen = [column for name, column in self._columns.items() if paths[name].startswith("observations")]
        self._is_short = any(not column.has_more for column in seen)
        self.steps = len(steps) - (1 if self._is_short and plan.final == "drop" else 0)
        kept = episode.meta.get("minari")
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}

    def note_in(self, receipt: ConversionReceipt, number: int) -> None:
        """Enter the step times and static items into the receipt."""
        receipt.episode_notes[f"episode_{number}"] = episode_notes(
            self._episode, self._columns, self._step_times, self.steps, self._plan.options
        )

    def _rows(self, path: str, column: StepColumn) -> tuple[int, int]:
        """How many rows are written, and how many of them are there."""
        if path.startswith("observations"):
            return self.steps + 1, min(column.count, self.steps + 1)
        if path.partition("/")[0] in PER_STEP:
            return self.steps, self.steps
        count = min(column.count, self.steps + 1)
        return count, count

    def _blocks(self, path: str, column: StepColumn) -> Iterator[NDArray[Any]]:
        wanted, there = self._rows(path, column)
        yield from column.blocks(0, there)
        if wanted > there:
            yield np.repeat(column.rows(there - 1, there), wanted - there, axis=0)

    def _noted(self, name: str, path: str, column: StepColumn, is_jpeg: bool) -> None:
        wanted, there = self._rows(path, column)
        note = note_of(column.signal) if is_jpeg else column.note()
        if wanted > there:
            note = replace(
                note, how="resampled", why="the last observation is repeated", max_age_ns=0, max_error_ns=0
            )
        elif there < column.count and not (column.meta.role == "action" and column.has_more):
            note = replace(note, how="dropped", why="the last step is dropped", max_age_ns=0, max_error_ns=0)
        self.notes[name] = called(note, name, path)

    def _missing(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """What Minari asks for and the episode does not have."""
        have = set(self._paths.values())
        for path in _ONE:
            if path not in have:
                values: NDArray[Any] = np.zeros(self.steps, np.float64 if path == "rewards" else np.bool_)
                why = "not in the source: zeros, which Minari asks for"
                if path == "truncations" and not self._has_terminated():
                    values[-1:] = True
                    why = "not in the source: true at the last step, where nothing was terminated"
                self.notes[path] = Note("kept", 0, why=why)
                yield path, values

    def _has_terminated(self) -> bool:
        """Whether the last step ended the task."""
        found = [self._columns[name] for name, path in self._paths.items() if path == "terminations"]
        return bool(found) and self.steps > 0 and bool(np.any(found[0].rows(self.steps - 1, self.steps)))

    def _about(self, number: int) -> dict[str, Any]:
        """What is said of the episode, flat as HDF5 has it."""
        flat = _flat(unpacked(self._kept.get("episode", {})))
        if not flat and isinstance(self._episode.static.get("seed"), int):
            flat["seed"] = self._episode.static["seed"]
        return {**flat, "id": number, "total_steps": self.steps}

    def to_hdf5(self, out: Hdf5Out, number: int) -> None:
        """A group of arrays."""
        group = f"episode_{number}"
        out.group(group)
        for name, column in self._columns.items():
            path = self._paths[name]
            inside = self._stored_path(path)
            run = _jpegs(column) if self._plan.jpeg and is_image_space(self._plan.spaces.get(path)) else None
            count, there = self._rows(path, column)
            if run is not None:
                frames = list(run.packets())[:there]
                frames += frames[-1:] * (count - there)
                out.stream(f"{group}/{inside}", (count,), None, iter([frames]), is_bytes=True)  # type: ignore[list-item]
            else:
                out.stream(
                    f"{group}/{inside}", (count, *column.meta.shape), column.meta.dtype, self._blocks(path, column),
                    is_text=column.meta.kind == "text", is_bytes=column.meta.kind == "bytes",
                )  # fmt: skip
            self._noted(name, path, column, run is not None)
        for path, values in self._missing():
            out.array(f"{group}/{path}", values)
        for path, value in self._kept.get("arrays", {}).items():
            out.array(f"{group}/{path}", unpacked(value))
        original = self._kept.get("episode", {})
        for key, value in self._about(number).items():
            is_same = key in original and unpacked(original[key]) == value
            out.attribute(
                group,
                key,
                original[key]
                if is_same
                else packed(np.int64(value))
                if isinstance(value, int)
                else packed(value),
            )
        for path, attributes in self._kept.get("attributes", {}).items():
            for key, value in attributes.items():
                out.attribute(f"{group}/{path}", key, value)

    def _stored_path(self, path: str) -> str:
        """A path with the members of a Tuple as HDF5 has them."""
        space = self._plan.observation_space if path.startswith("observations") else self._plan.action_space
        if path.partition("/")[0] not in ("observations", "actions"):
            return path
        at: Any = json.loads(space)
        parts = path.split("/")
        out = [parts[0]]
        for part in parts[1:]:
            if isinstance(at, dict) and at.get("type") == "Tuple":
                out.append(f"_index_{part}")
                at = at["subspaces"][int(part)]
            else:
                out.append(part)
                at = at["subspaces"][part] if isinstance(at, dict) else None
        return "/".join(out)

    def to_table(self, data: Path, number: int, kind: str) -> None:
        """A folder with a table and the metadata."""
        table = TableOut(self.steps + 1)
        for name in sorted(self._columns, key=lambda name: _order(self._paths[name])):
            path, column = self._paths[name], self._columns[name]
            run = _jpegs(column) if self._plan.jpeg and is_image_space(self._plan.spaces.get(path)) else None
            if run is not None:
                wanted, there = self._rows(path, column)
                frames = list(run.packets())[:there]
                table.objects(path, frames + frames[-1:] * (wanted - there), is_text=False)
            elif column.meta.is_object:
                texts = [each for block in self._blocks(path, column) for each in block]
                table.objects(path, texts, is_text=column.meta.kind == "text")
            else:
                values_ = np.concatenate(
                    list(self._blocks(path, column)) or [np.empty((0, *column.meta.shape), column.meta.dtype)]
                )
                shape = box_shape(self._plan.spaces.get(path))
                if shape == () and self._plan.spaces[path].get("type") == "Box":
                    values_ = values_.reshape(-1, 1)
                table.numbers(path, values_, told_shape=path.startswith("infos/"))
            self._noted(name, path, column, run is not None)
        for path, values in self._missing():
            table.numbers(path, values)
        folder = data / str(number)
        folder.mkdir()
        write_table(folder / f"part-0.{kind}", table.table(), kind)
        nested = _nested_dict({key: _plain(value) for key, value in self._about(number).items()})
        write_file(folder / METADATA, json.dumps(nested).encode(), durable=False)


def _order(path: str) -> int:
    tops: Sequence[str] = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return tops.index(path.partition("/")[0])


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}/{key}" if above else key
        if isinstance(value, Mapping):
            found |= _flat(value, path)
        else:
            found[path] = value
    return found


def _nested_dict(flat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in flat.items():
        at = found
        *above, last = path.split("/")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
