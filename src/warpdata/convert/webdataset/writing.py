"""Write episodes as WebDataset tar shards, a sample per episode or per step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.align import padding
from warpdata.bytekit.io.commit import NewFile, commit_file, commit_folder
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.each_episode import OnError, Progress, exported
from warpdata.convert.exporting import StepColumn, episode_notes, source_id, step_columns
from warpdata.convert.npz_file import npz_bytes
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.convert.webdataset.reading import OWN_FIELD, Per
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_camera, encoded_run
from warpdata.errors import SchemaMismatchError
from warpdata.formats.tarshard.layout import BLOCK_BYTES
from warpdata.formats.tarshard.writer import member_header
from warpdata.timeline.episode import Episode

_STILLS = {"mjpeg": "jpg", "png": "png"}
_PIECE = 8 << 20
Member = tuple[str, bytes | RangeReader]


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    per: Per | None = None,
    shard_bytes: int = 256 << 20,
    prefix: str = "shard",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a folder of tar shards, which appears whole or not at all.

    `per="episode"` makes a sample of each episode, with an array per signal; `per="step"` one of each step, with the
    episode as its folder. By default as the source was, else per episode. Shards that were WebDataset before keep their
    names and samples; others have about `shard_bytes`. JPEG and PNG pictures and encoded videos are copied. `jobs`
    processes make samples; the shards are the same whoever did it.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`. Their times are kept in the samples.
    """
    if per not in (None, "episode", "step"):
        raise ValueError(f"per is 'episode' or 'step', not {per!r}")
    episodes = under_own_names(episodes)
    options = AlignOptions(rate, clock, align)
    receipt = ConversionReceipt.of_export("webdataset", episodes, target, supplied=options.to_json())
    kept = episodes.metadata.get("webdataset")
    is_kept = isinstance(kept, Mapping) and per in (None, kept.get("per")) and episodes.is_whole
    kept = kept if isinstance(kept, Mapping) and is_kept and not options.to_json() else {}
    chosen: Per = per or kept.get("per") or "episode"
    with (
        commit_folder(target) as folder,
        tempfile.TemporaryDirectory(prefix="warpdata-") as scratch,
        contextlib.closing(_Shards(folder, kept.get("shards"), shard_bytes, prefix)) as out,
    ):
        work = partial(_write_part, Path(scratch), chosen, bool(kept), options)
        for _, (part, samples, notes) in exported(
            episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress
        ):
            out.take(part, samples)
            receipt.add(notes)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


Sample = tuple[int | None, int]
"""The shard that a sample was in, if that is known, and how many bytes it has."""


def _write_part(
    scratch: Path, per: Per, is_own: bool, options: AlignOptions, position: int, episode: Episode
) -> tuple[Path, list[Sample], dict[str, Note]]:
    """The samples of one episode, one after the other in a file of their own."""
    made = (_PerStep if per == "step" else _PerEpisode)(episode, is_own, options)
    part = scratch / f"{position}.tar"
    samples: list[Sample] = []
    with open(part, "xb") as out:
        for shard, sample in made.samples():
            start = out.tell()
            for name, data in sample:
                size = data.size if isinstance(data, RangeReader) else len(data)
                out.write(member_header(name, size))
                for piece in _pieces(data):
                    out.write(piece)
                out.write(padding(size, BLOCK_BYTES))
            samples.append((shard, out.tell() - start))
    return part, samples, made.notes


class _Shards:
    """Tar files being written one after the other."""

    def __init__(self, folder: Path, names: Sequence[str] | None, shard_bytes: int, prefix: str) -> None:
        self._folder, self._names, self._limit, self._prefix = folder, names, shard_bytes, prefix
        self._stack = contextlib.ExitStack()
        self._out: NewFile | None = None
        self._number = -1

    def take(self, part: Path, samples: Sequence[Sample]) -> None:
        """Append the samples of an episode, each to the shard it was in if that is known; their file is removed."""
        with open(part, "rb") as file:
            for shard, size in samples:
                is_next = shard is not None and shard > self._number
                if self._out is None or is_next or (shard is None and self._out.position >= self._limit):
                    self._next()
                assert self._out is not None
                for left in range(size, 0, -_PIECE):
                    self._out.write(file.read(min(left, _PIECE)))
        part.unlink()

    def _next(self) -> None:
        self.close()
        self._number += 1
        known = self._names is not None and self._number < len(self._names)
        name = (
            self._names[self._number] if known and self._names else f"{self._prefix}-{self._number:06d}.tar"
        )
        self._out = self._stack.enter_context(commit_file(self._folder / Path(name).name, durable=False))

    def close(self) -> None:
        """Finish the shard."""
        if self._out is not None:
            self._out.write(bytes(2 * BLOCK_BYTES))
        self._out = None
        self._stack.close()


def _pieces(data: bytes | RangeReader) -> Iterator[bytes | memoryview]:
    if not isinstance(data, RangeReader):
        yield data
        return
    for start in range(0, data.size, _PIECE):
        yield data.read(start, min(start + _PIECE, data.size))


class _Samples:
    """One episode on its way into samples."""

    def __init__(self, episode: Episode, is_own: bool, options: AlignOptions) -> None:
        self._options = options
        kept = episode.meta.get("webdataset")
        self._kept: Mapping[str, Any] = kept if is_own and isinstance(kept, Mapping) else {}
        self._episode = episode
        self._id = re.sub(r"[^A-Za-z0-9_-]", "_", source_id(episode))
        self._steps, self._columns = step_columns(episode, options)
        self._fields: dict[str, str] = dict(self._kept.get("fields", {}))
        self.notes: dict[str, Note] = {}

    def _field(self, name: str, ending: str) -> str:
        """The field of a signal: its own, or its name with dots and an ending."""
        known = self._kept.get("fields", {}).get(name)
        if isinstance(known, str):
            return known
        made = f"{re.sub(r'[^a-z0-9_.-]', '_', name.lower().replace('/', '.'))}.{ending}"
        taken = [other for other, field in self._fields.items() if field == made and other != name]
        if taken:
            raise SchemaMismatchError(f"signals {taken[0]!r} and {name!r} would be one field, {made!r}")
        self._fields[name] = made
        return made

    def _about(self) -> bytes:
        """What a sample has no place for: names, roles, static items, the rate."""
        roles = {
            name: {"field": field, "role": self._episode.signals[name].meta.role}
            for name, field in self._fields.items()
        }  # fmt: skip
        notes = episode_notes(self._episode, self._columns, self._steps, len(self._steps), self._options)
        return dump_json({"id": source_id(self._episode), "signals": roles, **notes})


class _PerEpisode(_Samples):
    """One sample."""

    def samples(self) -> Iterator[tuple[int | None, list[Member]]]:
        """The one."""
        key = self._kept.get("key", self._id)
        members: list[Member] = []
        archives: dict[str, dict[str, NDArray[Any]]] = {}
        for name, column in self._columns.items():
            self._signal(key, name, column, members, archives)
        members += [(f"{key}.{field}", npz_bytes(arrays)) for field, arrays in archives.items()]
        for field, text in self._kept.get("texts", {}).items():
            members.append((f"{key}.{field}", text.encode()))
        if not self._kept:
            members.append((f"{key}.{OWN_FIELD}", self._about()))
        yield self._kept.get("shard"), sorted(members, key=lambda member: member[0])

    def _signal(
        self,
        key: str,
        name: str,
        column: StepColumn,
        members: list[Member],
        archives: dict[str, dict[str, NDArray[Any]]],
    ) -> None:
        known = self._kept.get("fields", {}).get(name, "")
        signal = column.signal
        run = encoded_run(signal)
        if run is not None and run.stream.codec in _STILLS and bool(run.shown.all()):
            ending = _STILLS[run.stream.codec]
            field = self._field(name, ending)
            stem, _, ending = field.rpartition(".")
            numbers = np.searchsorted(self._steps.times_ns, signal.timestamps).tolist()
            if re.search(r"(^|\.)\d+$", stem) or not known:
                stem = re.sub(r"(^|\.)\d+$", "", stem)
                width = 1 if known else 6
                names = [f"{stem}.{number:0{width}d}.{ending}".lstrip(".") for number in numbers]
            else:
                names = [field]
            members += [(f"{key}.{each}", data) for each, data in zip(names, run.packets(), strict=True)]
            self.notes[name] = note_of(signal)
        elif run is not None and run.stream.codec not in ("ffv1",):
            camera = encoded_camera(name, signal)
            assert camera is not None
            members.append((f"{key}.{self._field(name, camera.suffix.lstrip('.'))}", camera.video))
            self.notes[name] = note_of(signal)
        elif known.endswith(".npz"):
            archives.setdefault(known, {})[name.removeprefix(f"{known.removesuffix('.npz')}/")] = (
                signal.values()
            )
            self.notes[name] = note_of(signal)
        elif column.meta.is_object:
            self._objects(key, name, column, members)
        else:
            exact = column.is_exact or bool(known)
            values = signal.values() if exact else column.rows(0, column.count)
            members.append((f"{key}.{self._field(name, 'npy')}", npy_bytes(values)))
            self.notes[name] = note_of(signal) if known else column.note()

    def _objects(self, key: str, name: str, column: StepColumn, members: list[Member]) -> None:
        known = self._kept.get("fields", {}).get(name)
        values = column.signal.values()
        if known is not None and len(values) == 1:
            value = values[0]
            members.append((f"{key}.{known}", value.encode() if isinstance(value, str) else value))
            self.notes[name] = note_of(column.signal)
            return
        if column.meta.kind == "bytes":
            self.notes[name] = note_of(
                column.signal, "dropped", "bytes that are no pictures have no place in a sample"
            )
            return
        rows = column.rows(0, column.count).tolist()
        members.append((f"{key}.{self._field(name, 'json')}", json.dumps(rows).encode()))
        self.notes[name] = column.note()


class _PerStep(_Samples):
    """A sample per step, and one more for what was seen after the last."""

    def samples(self) -> Iterator[tuple[int | None, list[Member]]]:
        """All of them in order."""
        rows = {name: self._rows(name, column) for name, column in self._columns.items()}
        count = max((column.count for column in self._columns.values()), default=0)
        keys = self._kept.get("keys")
        shards = [shard for shard, number in self._kept.get("shards", []) for _ in range(number)]
        for step in range(count):
            key = keys[step] if keys else f"{self._id}/{step:06d}"
            members: list[Member] = []
            for name, found in rows.items():
                data = next(found, None)
                if data is not None:
                    members.append((f"{key}.{self._fields[name]}", data))
            if not self._kept and step == 0:
                members.append((f"{key}.{OWN_FIELD}", self._about()))
            yield shards[step] if shards else None, sorted(members, key=lambda member: member[0])

    def _rows(self, name: str, column: StepColumn) -> Iterator[bytes | None]:
        run = encoded_run(column.signal) if column.is_exact else None
        if run is not None and run.stream.codec in _STILLS and bool(run.shown.all()):
            self._field(name, _STILLS[run.stream.codec])
            self.notes[name] = note_of(column.signal)
            return iter(run.packets())
        ending = "txt" if column.meta.kind == "text" else "bin" if column.meta.kind == "bytes" else "npy"
        field = self._field(name, ending)
        self.notes[name] = column.note()
        if self._kept and not column.is_exact:
            at = set(np.searchsorted(self._steps.times_ns, column.signal.timestamps).tolist())
            values = iter(column.signal)
            self.notes[name] = note_of(column.signal)
            return (
                _member_bytes(next(values)[0], field) if step in at else None
                for step in range(len(self._steps))
            )
        return (_member_bytes(value, field) for block in column.blocks() for value in block)


def _member_bytes(value: Any, field: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if field.rpartition(".")[2] != "npy":
        return str(int(value)).encode()
    return npy_bytes(np.asarray(value))


def npy_bytes(array: NDArray[Any]) -> bytes:
    """An array as a .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array, order="C"), allow_pickle=False)
    return out.getvalue()
