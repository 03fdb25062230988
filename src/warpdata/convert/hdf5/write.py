"""Write episodes as robomimic's HDF5: /data/demo_0 … with actions, rewards, dones, obs, next_obs, and masks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.exporting import (
    ExportOptions,
    Part,
    StepColumn,
    StepRows,
    StepWriter,
    place_signals,
    source_id,
    write_set,
)
from warpdata.convert.hdf5.file import Hdf5Out, writing
from warpdata.convert.hdf5.read import OWN_DOCUMENT
from warpdata.convert.receipt import ConversionReceipt, Note, called, packed, unpacked
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, require_word

_DEMO = re.compile(r"demo_\d+")
_OWN_LAYOUTS = ("robomimic", "libero")
_PATHS = {
    "observation": ("obs/{}", "obs/{}"),
    "action": ("actions", "action_dict/{}"),
    "reward": ("rewards", "rewards"),
    "terminated": ("dones", "dones"),
}
"""Role -> path of the only signal, and of several."""
_PART = "demo"
_BLOCK_ROWS = 4096


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    next_obs: bool | None = None,
    env_args: str | Mapping[str, Any] | None = None,
    compression: Literal["gzip", "none"] = "gzip",
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as one robomimic file, which appears whole or not at all.

    `next_obs` writes what followed each observation too (by default if it is known); `env_args` are the arguments of
    the environment if the episodes bring none. Images are compressed with gzip, a frame per chunk. The times of the
    steps are kept in the file.
    """
    require_word("compression", compression, ("gzip", "none"))
    return write_set(RobomimicWriter(next_obs, env_args, compression), episodes, target, **options)


class RobomimicWriter(StepWriter):
    """A group per episode, made in a file of its own and copied."""

    format, version = "hdf5", "robomimic"

    def __init__(
        self, next_obs: bool | None, env_args: str | Mapping[str, Any] | None, compression: str
    ) -> None:
        self._next_obs, self._env_args, self._compression = next_obs, env_args, compression
        self._names: list[str] = []
        self._total = 0
        self._keeps_names = False

    def open(self, target: Path) -> AbstractContextManager[Hdf5Out]:
        """The new file."""
        return writing(target)

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """Demos keep their names if all have robomimic's; others are numbered."""
        ids = [source_id(episode) for episode in episodes]
        self._keeps_names = all(map(_DEMO.fullmatch, ids)) and len(set(ids)) == len(ids)
        super().choose(rows, episodes)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The group of one demo."""
        kept = rows.episode.meta.get("hdf5")
        kept = kept if isinstance(kept, Mapping) and kept.get("layout") in _OWN_LAYOUTS else {}
        next_obs = self._next_obs if self._next_obs is not None else bool(kept.get("next_obs", not kept))
        path, notes = scratch / "part.hdf5", {}
        paths = {name: name for name in rows.columns} if kept else place_signals(rows.columns, _PATHS)
        with writing(path, durable=False) as out:
            out.group(_PART)
            for name, column in rows.columns.items():
                there = paths[name]
                is_seen = there.startswith("obs/")
                if column.has_more and is_seen and next_obs:
                    self._stream(out, f"next_{there}", column, 1, len(rows) + 1)
                stop = len(rows) if is_seen or column.meta.role == "action" else column.count
                self._stream(out, there, column, 0, stop)
                notes[name] = called(column.note(has_final=next_obs or not is_seen), name, there)
            if not kept:
                self._complete(out, rows, notes)
            self._write_attributes(out, rows, kept)
        return Part(len(rows), notes, (path, source_id(rows.episode)))

    def _stream(self, out: Hdf5Out, name: str, column: StepColumn, start: int, stop: int) -> None:
        meta, blocks = column.meta, column.blocks(start, stop)
        is_compressed = meta.kind == "image" and self._compression != "none"
        shape = (stop - start, *meta.shape)
        out.stream(f"{_PART}/{name}", shape, meta.dtype, blocks, kind=meta.kind, is_compressed=is_compressed)

    def _complete(self, out: Hdf5Out, rows: StepRows, notes: dict[str, Note]) -> None:
        """Write what robomimic needs and the episode does not have."""
        actions, count = [rows.columns[name] for name in rows.names("action")], len(rows)
        if len(actions) != 1:
            if not actions or any(len(column.meta.shape) > 1 for column in actions):
                raise CorruptLayoutError(
                    f"episode {rows.episode.id!r} has no actions that make one vector, which robomimic needs",
                    hint="Choose the actions with a mapping, or join them with Episodes.map.",
                )
            width = sum(int(np.prod(column.meta.shape)) for column in actions)
            dtype = np.result_type(*(column.meta.dtype for column in actions))

            def joined() -> Iterator[NDArray[Any]]:
                for start in range(0, count, _BLOCK_ROWS):
                    stop = min(start + _BLOCK_ROWS, count)
                    blocks = [column.rows(start, stop).reshape(stop - start, -1) for column in actions]
                    yield np.concatenate(blocks, axis=1)

            out.stream(f"{_PART}/actions", (count, width), dtype, joined())
        if not rows.names("reward"):
            out.array(f"{_PART}/rewards", np.zeros(count, np.float64))
            notes["rewards"] = Note("kept", 0, why="missing in the source: zeros, which robomimic needs")
        if not rows.names("terminated"):
            dones = np.zeros(count, np.int64)
            dones[-1:] = 1
            out.array(f"{_PART}/dones", dones)
            why = "missing in the source: 1 at the last step, which robomimic needs"
            notes["dones"] = Note("kept", 0, why=why)

    def _write_attributes(self, out: Hdf5Out, rows: StepRows, kept: Mapping[str, Any]) -> None:
        for path, value in kept.get("arrays", {}).items():
            out.array(f"{_PART}/{path}", unpacked(value))
        for path, attributes in kept.get("attributes", {}).items():
            for name, value in attributes.items():
                out.attribute(f"{_PART}/{path}".rstrip("/"), name, value)
        out.attribute(_PART, "num_samples", np.int64(len(rows)))
        static = dict(rows.episode.static)
        if not kept and static:
            language = {"lang": static["task"]} if isinstance(static.get("task"), str) else {}
            out.attribute(_PART, "ep_meta", json.dumps(packed({**static, **language})))

    def add(self, part: Part) -> str:
        """Copy the group into the file."""
        path, own_name = part.data
        name = str(own_name) if self._keeps_names else f"demo_{len(self._names)}"
        self.out.take(path, _PART, f"data/{name}")
        self._names.append(name)
        self._total += part.rows
        return name

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the attributes of the file and of /data, the masks, and the receipt."""
        kept = episodes.metadata.get("hdf5")
        kept = kept if isinstance(kept, Mapping) and "files" not in kept else {}
        attributes, arrays = kept.get("attributes", {}), kept.get("arrays", {})
        self.out.group("data")
        for name, value in attributes.get("", {}).items():
            self.out.attribute("/", name, value)
        for name, value in self._data_attributes(attributes.get("data"), episodes, receipt).items():
            self.out.attribute("data", name, value)
        is_whole = self._keeps_names and episodes.is_whole
        for path, value in arrays.items():
            array = unpacked(value)
            if path.startswith("mask/") and not is_whole:
                array = np.array([each for each in array if each.decode() in self._names], array.dtype)
            self.out.array(path, array)
        if not any(path.startswith("mask/") for path in arrays):
            splits = [episode.static.get("split") for episode in episodes]
            for split in dict.fromkeys(each for each in splits if isinstance(each, str) and each):
                members = [
                    name.encode() for name, own in zip(self._names, splits, strict=True) if own == split
                ]
                self.out.array(f"mask/{split.replace('/', '_')}", np.array(members))
        self.out.array(OWN_DOCUMENT, receipt.document().decode())

    def _data_attributes(
        self, attributes: Mapping[str, Any] | None, episodes: Episodes, receipt: ConversionReceipt
    ) -> dict[str, Any]:
        """The attributes of /data: those of the source, with the counts of this file."""
        made = dict(attributes if attributes is not None else {"total": None, "env_args": None})
        if self._env_args is not None:
            is_text = isinstance(self._env_args, str)
            made["env_args"] = self._env_args if is_text else json.dumps(self._env_args, indent=4)
            receipt.supplied["env_args"] = made["env_args"]
        elif "env_args" in made and made["env_args"] is None:
            static: Mapping[str, Any] = episodes[0].static if len(episodes) else {}
            notes = receipt.episode_notes.values()
            rates = {None if note.get("assumed") else note.get("fps") for note in notes}
            fps = rates.pop() if len(rates) == 1 else None
            kwargs = {} if fps is None else {"control_freq": fps}
            env = {"env_name": str(static.get("env_id", "unknown")), "type": 2, "env_kwargs": kwargs}
            made["env_args"] = json.dumps(env, indent=4)
            receipt.notes.append("env_args: not in the source; the name of the environment and the rate only")
        counts = {"total": self._total, "num_demos": len(self._names)}
        return made | {name: np.int64(count) for name, count in counts.items() if name in made}
