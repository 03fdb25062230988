"""Write episodes as robomimic's HDF5: /data/demo_0 … with actions, rewards, dones, obs, next_obs, and masks."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.each_episode import OnError, Progress, exported
from warpdata.convert.exporting import StepColumn, episode_notes, source_id, step_columns, without_last
from warpdata.convert.hdf5.file import Hdf5Out, writing
from warpdata.convert.hdf5.layouts import OWN_DOCUMENT
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import ConversionReceipt, Note, called
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError
from warpdata.timeline.episode import Episode

_DEMO = re.compile(r"demo_\d+")
_PREFIXES = ("observation.", "observations/", "observation/")
_OWN_LAYOUTS = ("robomimic", "libero")
_NAMES = {"reward": "rewards", "terminated": "dones"}


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    next_obs: bool | None = None,
    env_args: str | Mapping[str, Any] | None = None,
    compression: Literal["gzip", "none"] = "gzip",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as one robomimic file, which appears whole or not at all.

    `next_obs` says whether what followed each observation is written too (by default where it is known); `env_args` are
    the arguments of the environment where the episodes bring none. Images are compressed with gzip, a frame per chunk.
    `jobs` processes read and compress episodes; the file is the same whoever did it.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`. Their times are kept in the file.
    """
    if compression not in ("gzip", "none"):
        raise ValueError(f"compression is 'gzip' or 'none', not {compression!r}")
    episodes = under_own_names(episodes)
    options = AlignOptions(rate, clock, align)
    receipt = ConversionReceipt.of_export("hdf5", episodes, target, "robomimic", options.to_json())
    kept = episodes.metadata.get("hdf5")
    kept = kept if isinstance(kept, Mapping) and "files" not in kept else {}
    ids = [source_id(episode) for episode in episodes]
    names = _demo_names(ids)
    total = 0
    written: list[int] = []
    with writing(target) as out, tempfile.TemporaryDirectory(prefix="warpdata-") as scratch:
        work = partial(_write_part, Path(scratch), names, next_obs, compression, options)
        out.group("data")
        for position, (part, steps, notes, about) in exported(
            episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress
        ):
            out.take(part, f"data/{names[position]}")
            part.unlink()
            total += steps
            receipt.add(notes)
            receipt.episode_notes[names[position]] = about
            written.append(position)
        if len(written) < len(episodes):
            episodes = episodes[written]
            names, ids = ([each[position] for position in written] for each in (names, ids))
        _write_set(out, kept, names, ids, episodes, total, env_args, receipt)
        out.array(OWN_DOCUMENT, receipt.document().decode())
    return receipt


def _write_part(
    scratch: Path,
    names: Sequence[str],
    next_obs: bool | None,
    compression: str,
    options: AlignOptions,
    position: int,
    episode: Episode,
) -> tuple[Path, int, dict[str, Note], dict[str, Any]]:
    """One demo in a file of its own; how many steps it has, what became of the signals, and its step times."""
    part = scratch / f"{position}.hdf5"
    with writing(part, durable=False) as out:
        demo = _Demo(out, f"data/{names[position]}", episode, next_obs, compression, options)
        notes = demo.write()
    about = episode_notes(episode, demo.columns, demo.steps, len(demo.steps), options)
    return part, len(demo.steps), notes, about


def _demo_names(ids: Sequence[str]) -> list[str]:
    """The names of the demos: their own where all have robomimic's, else by position."""
    if all(_DEMO.fullmatch(each) for each in ids) and len(set(ids)) == len(ids):
        return list(ids)
    return [f"demo_{number}" for number in range(len(ids))]


class _Demo:
    """One episode on its way into the file."""

    def __init__(
        self, out: Hdf5Out, group: str, episode: Episode, next_obs: bool | None, compression: str,
        options: AlignOptions,
    ) -> None:  # fmt: skip
        self._out, self._group, self._episode = out, group, episode
        self._compression = compression
        kept = episode.meta.get("hdf5")
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
        self._is_own = self._kept.get("layout") in _OWN_LAYOUTS
        stated = bool(self._kept.get("next_obs")) if self._is_own else True
        self._next_obs = stated if next_obs is None else next_obs
        self.steps, self.columns = step_columns(episode, options)

    def write(self) -> dict[str, Note]:
        """Write all of it; what became of each signal."""
        steps, columns = self.steps, self.columns
        self._out.group(self._group)
        notes: dict[str, Note] = {}
        actions = [name for name, column in columns.items() if column.meta.role == "action"]
        for name, column in columns.items():
            there = self._name(name, column, actions)
            notes[name] = called(self._column(there, column), name, there)
        if not self._is_own:
            self._complete(columns, actions, len(steps), notes)
        self._attributes(len(steps))
        for path, value in self._kept.get("arrays", {}).items() if self._is_own else ():
            self._out.array(f"{self._group}/{path}", unpacked(value))
        return notes

    def _name(self, name: str, column: StepColumn, actions: Sequence[str]) -> str:
        role = column.meta.role
        if self._is_own:
            return name
        if role == "action":
            return "actions" if len(actions) == 1 else f"action_dict/{name}"
        if role in _NAMES:
            return _NAMES[role]
        if role != "observation":
            return name
        prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
        return f"obs/{name.removeprefix(prefix).removeprefix('obs/')}"

    def _column(self, name: str, column: StepColumn) -> Note:
        steps = len(column.steps)
        if column.meta.role == "action":
            self._stream(name, column, 0, steps)
            return column.note()
        if not column.has_more or not name.startswith("obs/"):
            self._stream(name, column, 0, column.count)
            return column.note()
        self._stream(name, column, 0, steps)
        if self._next_obs:
            self._stream(f"next_{name}", column, 1, steps + 1)
            return column.note()
        return without_last(column.note())

    def _stream(self, name: str, column: StepColumn, start: int, stop: int) -> None:
        meta = column.meta
        is_image = meta.kind == "image" and self._compression != "none"
        self._out.stream(
            f"{self._group}/{name}", (stop - start, *meta.shape), meta.dtype, column.blocks(start, stop),
            compression="gzip" if is_image else None, chunks=(1, *meta.shape) if is_image else None,
            is_text=meta.kind == "text", is_bytes=meta.kind == "bytes",
        )  # fmt: skip

    def _complete(
        self, columns: Mapping[str, StepColumn], actions: Sequence[str], steps: int, notes: dict[str, Note]
    ) -> None:
        """What robomimic asks for and the episode does not have."""
        if len(actions) != 1:
            if not actions or any(len(columns[name].meta.shape) > 1 for name in actions):
                raise CorruptLayoutError(
                    f"episode {self._episode.id!r} has no actions that make one vector, which robomimic asks for",
                    hint="Choose the actions with a mapping, or join them with Episodes.map.",
                )
            width = sum(int(np.prod(columns[name].meta.shape)) for name in actions)
            dtype = np.result_type(*(columns[name].meta.dtype for name in actions))
            joined = _joined([columns[name] for name in actions], steps)
            self._out.stream(f"{self._group}/actions", (steps, width), dtype, joined)
        roles = {column.meta.role for column in columns.values()}
        if "reward" not in roles:
            self._out.array(f"{self._group}/rewards", np.zeros(steps, np.float64))
            notes["rewards"] = Note("kept", 0, why="not in the source: zeros, which robomimic asks for")
        if "terminated" not in roles:
            dones = np.zeros(steps, np.int64)
            dones[-1:] = 1
            self._out.array(f"{self._group}/dones", dones)
            notes["dones"] = Note(
                "kept", 0, why="not in the source: 1 at the last step, which robomimic asks for"
            )

    def _attributes(self, steps: int) -> None:
        kept = self._kept.get("attributes", {}) if self._is_own else {}
        for path, attributes in kept.items():
            for name, value in attributes.items():
                self._out.attribute(f"{self._group}/{path}".rstrip("/"), name, value)
        self._out.attribute(self._group, "num_samples", packed(np.int64(steps)))
        if not self._is_own and self._episode.static:
            about = {**self._episode.static}
            if isinstance(about.get("task"), str):
                about["lang"] = about["task"]
            self._out.attribute(self._group, "ep_meta", json.dumps(packed(about)))


def _joined(columns: Sequence[StepColumn], steps: int) -> Iterator[NDArray[Any]]:
    for start in range(0, steps, 4096):
        stop = min(start + 4096, steps)
        yield np.concatenate([each.rows(start, stop).reshape(stop - start, -1) for each in columns], axis=1)


def _write_set(
    out: Hdf5Out,
    kept: Mapping[str, Any],
    names: Sequence[str],
    ids: Sequence[str],
    episodes: Episodes,
    total: int,
    env_args: str | Mapping[str, Any] | None,
    receipt: ConversionReceipt,
) -> None:
    """The attributes of the file and of /data, and the masks."""
    for name, value in kept.get("attributes", {}).get("", {}).items():
        out.attribute("/", name, value)
    for name, value in _data_attributes(kept, names, episodes, total, env_args, receipt).items():
        out.attribute("data", name, value)
    is_whole = list(names) == list(ids) and episodes.is_whole
    for path, value in kept.get("arrays", {}).items():
        array = unpacked(value)
        if path.startswith("mask/") and not is_whole:
            array = np.array([each for each in array if each.decode() in set(names)], array.dtype)
        out.array(path, array)
    if not any(path.startswith("mask/") for path in kept.get("arrays", {})):
        _masks_of_splits(out, names, episodes)


def _data_attributes(
    kept: Mapping[str, Any],
    names: Sequence[str],
    episodes: Episodes,
    total: int,
    env_args: str | Mapping[str, Any] | None,
    receipt: ConversionReceipt,
) -> dict[str, Any]:
    """The attributes of /data: as they were, with the counts of now; what robomimic asks for where there were none."""
    attributes = kept.get("attributes", {})
    told = dict(attributes.get("data", {}))
    if "data" not in attributes:
        told = {"total": None, "env_args": None}
    if env_args is not None:
        told["env_args"] = env_args if isinstance(env_args, str) else json.dumps(env_args, indent=4)
        receipt.supplied["env_args"] = told["env_args"]
    if "env_args" in told and told["env_args"] is None:
        told["env_args"] = _plain_env(episodes)
        receipt.notes.append("env_args: not in the source; the name of the environment and the rate only")
    if "total" in told:
        told["total"] = packed(np.int64(total))
    if "num_demos" in told:
        told["num_demos"] = packed(np.int64(len(names)))
    return told


def _plain_env(episodes: Episodes) -> str:
    first = episodes[0] if len(episodes) else None
    static: Mapping[str, Any] = {} if first is None else first.static
    fps = None if first is None else first.meta.get("fps")
    kwargs = (
        {}
        if fps is None or first is None or first.meta.get("fps_from") == "assumed"
        else {"control_freq": fps}
    )
    return json.dumps(
        {"env_name": str(static.get("env_id", "unknown")), "type": 2, "env_kwargs": kwargs}, indent=4
    )


def _masks_of_splits(out: Hdf5Out, names: Sequence[str], episodes: Episodes) -> None:
    """A filter key for each split that the episodes name."""
    by_split: dict[str, list[bytes]] = {}
    for name, episode in zip(names, episodes, strict=True):
        split = episode.static.get("split")
        if isinstance(split, str) and split:
            by_split.setdefault(split, []).append(name.encode())
    for split, members in by_split.items():
        out.array(f"mask/{split.replace('/', '_')}", np.array(members))
