"""Write episodes as robomimic's HDF5: /data/demo_0 … with actions, rewards, dones, obs, next_obs, and masks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.exporting import ExportOptions, Part, StepRows, StepWriter, source_id
from warpdata.convert.hdf5.file import Hdf5Out, writing
from warpdata.convert.hdf5.read import OWN_DOCUMENT
from warpdata.convert.receipt import ConversionReceipt, metadata_of, pack, unpack
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, require_word

_DEMO = re.compile(r"demo_\d+")
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
    return RobomimicWriter(next_obs, env_args, compression).write(episodes, target, **options)


@dataclass
class RobomimicWriter(StepWriter):
    """A group per episode, made in a file of its own and copied."""

    format, version = "hdf5", "robomimic"
    holds_ragged = True
    _next_obs: bool | None
    _env_args: str | Mapping[str, Any] | None
    _compression: str
    _names: list[str] = field(default_factory=list)
    _total = 0
    _keeps_names = False

    def open(self, target: Path) -> AbstractContextManager[Hdf5Out]:
        """The new file."""
        return writing(target)

    def choose(self, _rows: StepRows, episodes: Episodes) -> None:
        """Demos keep their names if all have robomimic's; others are numbered."""
        ids = [source_id(episode) for episode in episodes]
        self._keeps_names = all(map(_DEMO.fullmatch, ids)) and len(set(ids)) == len(ids)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The group of one demo."""
        kept = metadata_of(rows.episode.meta, "hdf5")
        kept = kept if kept.get("layout") in ("robomimic", "libero") else {}
        next_obs = self._next_obs if self._next_obs is not None else bool(kept.get("next_obs", not kept))
        paths = {name: name for name in rows.columns} if kept else rows.place(_PATHS)
        with writing(scratch / "part.hdf5", durable=False) as out:
            out.group(_PART)
            for name, column in rows.columns.items():
                there, meta = paths[name], column.meta
                is_seen = there.startswith("obs/")
                parts = [(there, 0, len(rows) if is_seen or meta.role == "action" else column.count)]
                if column.has_more and is_seen and next_obs:
                    parts.insert(0, (f"next_{there}", 1, len(rows) + 1))
                is_compressed = meta.kind == "image" and self._compression != "none"
                for path, start, stop in parts:
                    shape, blocks = (stop - start, *meta.shape), column.blocks(start, stop)
                    dtype = meta.rows or meta.dtype
                    out.stream(f"{_PART}/{path}", shape, dtype, blocks, meta.kind, is_compressed)
                rows.keep(name, there, has_final=next_obs or not is_seen)
            if not kept:
                self._complete(out, rows)
            for path, value in kept.get("arrays", {}).items():
                out.array(f"{_PART}/{path}", unpack(value))
            for path, attributes in kept.get("attributes", {}).items():
                for name, value in attributes.items():
                    out.attribute(f"{_PART}/{path}".rstrip("/"), name, value)
            out.attribute(_PART, "num_samples", np.int64(len(rows)))
            static = dict(rows.episode.static)
            if not kept and static:
                language = {"lang": static["task"]} if isinstance(static.get("task"), str) else {}
                out.attribute(_PART, "ep_meta", json.dumps(pack({**static, **language})))
        return Part(len(rows), (scratch / "part.hdf5", rows.id))

    def _complete(self, out: Hdf5Out, rows: StepRows) -> None:
        """Write what robomimic needs and the episode does not have."""
        actions, count = [rows.columns[name] for name in rows.names("action")], len(rows)
        if not actions or (len(actions) > 1 and any(len(column.meta.shape) > 1 for column in actions)):
            raise CorruptLayoutError(
                f"episode {rows.episode.id!r} has no actions that make one vector, which robomimic needs",
                hint="Choose the actions with a mapping, or join them with Episodes.map.",
            )
        if len(actions) > 1:
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
            rows.add_missing("rewards", "zeros, which robomimic needs")
        if not rows.names("terminated"):
            out.array(f"{_PART}/dones", (np.arange(count) == count - 1).astype(np.int64))
            rows.add_missing("dones", "1 at the last step, which robomimic needs")

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
        kept = metadata_of(episodes.metadata, "hdf5")
        kept = {} if "files" in kept else kept
        attributes, arrays = kept.get("attributes", {}), kept.get("arrays", {})
        self.out.group("data")
        for name, value in attributes.get("", {}).items():
            self.out.attribute("/", name, value)
        for name, value in self._data_attributes(attributes.get("data"), episodes, receipt).items():
            self.out.attribute("data", name, value)
        is_whole = self._keeps_names and episodes.is_whole
        for path, value in arrays.items():
            array = unpack(value)
            if path.startswith("mask/") and not is_whole:
                array = np.array([name for name in array if name.decode() in self._names], array.dtype)
            self.out.array(path, array)
        if not any(path.startswith("mask/") for path in arrays):
            members: dict[str, list[bytes]] = {}
            for name, episode in zip(self._names, episodes, strict=True):
                split = episode.static.get("split")
                if isinstance(split, str) and split:
                    members.setdefault(split.replace("/", "_"), []).append(name.encode())
            for split, names in members.items():
                self.out.array(f"mask/{split}", np.array(names))
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
