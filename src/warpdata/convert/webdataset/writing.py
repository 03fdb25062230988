"""Write episodes as WebDataset tar shards, a sample per episode or per step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import padding_to
from warpdata.bytekit.io.commit import NewFile, commit_file, commit_folder
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import Part, StepColumn, StepRows, StepWriter, source_id, write_set
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.convert.webdataset.reading import OWN_FIELD, Per
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import EncodedRun, encoded_camera, encoded_run
from warpdata.errors import SchemaMismatchError, require_word
from warpdata.formats.tarshard.layout import BLOCK_BYTES
from warpdata.formats.tarshard.writer import member_header

_STILLS = {"mjpeg": "jpg", "png": "png"}
_PIECE = 8 << 20
Member = tuple[str, bytes | RangeReader]
"""A field of a sample and its bytes."""


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
    episode as its folder; by default as the source was, else per episode. Shards have about `shard_bytes`. JPEG and
    PNG pictures and encoded videos are copied. Steps are those of the episode, or a grid of `rate` per second, or the
    records of the signal `clock`, aligned by `align`. Their times are kept in the samples. `jobs` processes make them.
    """
    kept = episodes.metadata.get("webdataset")
    chosen = per or (kept.get("per") if isinstance(kept, Mapping) else None) or "episode"
    require_word("per", chosen, ("episode", "step"))
    writer, options = SampleWriter(chosen, shard_bytes, prefix), AlignOptions(rate, clock, align)
    return write_set(writer, episodes, target, options, on_error=on_error, jobs=jobs, progress=progress)


class SampleWriter(StepWriter):
    """Tar shards, filled one after the other."""

    format = "webdataset"

    def __init__(self, per: Per, shard_bytes: int, prefix: str) -> None:
        self._per, self._limit, self._prefix = per, shard_bytes, prefix
        self._shards = 0
        self._shard: NewFile | None = None

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[tuple[Path, contextlib.ExitStack]]:
        """The new folder, and what closes its last shard."""
        with commit_folder(target) as folder, contextlib.ExitStack() as stack:
            yield folder, stack

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_shard": None}

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The samples of one episode, one after the other in a file."""
        fields = _Fields(rows)
        key = re.sub(r"[^A-Za-z0-9_-]", "_", source_id(rows.episode))
        samples = fields.per_step(key) if self._per == "step" else fields.per_episode(key)
        sizes: list[int] = []
        with open(scratch / "samples.tar", "xb") as out:
            for name, members in samples:
                start = out.tell()
                for field, data in sorted(members, key=lambda member: member[0]):
                    size = data.size if isinstance(data, RangeReader) else len(data)
                    out.write(member_header(f"{name}.{field}", size))
                    for piece in _pieces(data):
                        out.write(piece)
                    out.write(padding_to(size, BLOCK_BYTES))
                sizes.append(out.tell() - start)
        return Part(len(rows), fields.notes, (scratch / "samples.tar", sizes, key))

    def add(self, part: Part) -> str:
        """Append the samples to the last shard, or to a new one."""
        path, sizes, key = part.data
        with open(path, "rb") as file:
            for size in sizes:
                if self._shard is None or self._shard.position >= self._limit:
                    self._next_shard()
                assert self._shard is not None
                for left in range(size, 0, -_PIECE):
                    self._shard.write(file.read(min(left, _PIECE)))
        return str(key)

    def _next_shard(self) -> None:
        folder, stack = self.out
        self._end_shard()
        name = f"{self._prefix}-{self._shards:06d}.tar"
        self._shard = stack.enter_context(commit_file(folder / name, durable=False))
        self._shards += 1

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._shard.write(bytes(2 * BLOCK_BYTES))
        self.out[1].close()

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Close the last shard and write the receipt."""
        self._end_shard()
        (self.out[0] / RECEIPT_FILE).write_bytes(receipt.document())


class _Fields:
    """The signals of one episode as fields of samples."""

    def __init__(self, rows: StepRows) -> None:
        self._rows = rows
        self._fields: dict[str, str] = {}
        self._at: dict[str, list[int]] = {}
        """Steps of the records of signals that have none at some steps."""
        for name, column in rows.columns.items():
            if not column.is_exact and np.isin(column.signal.timestamps, rows.steps.times_ns).all():
                self._at[name] = np.searchsorted(rows.steps.times_ns, column.signal.timestamps).tolist()
        self.notes: dict[str, Note] = {}

    def _field(self, name: str, ending: str) -> str:
        """The field of a signal: its name with dots, and an ending."""
        field = f"{re.sub(r'[^a-z0-9_.-]', '_', name.lower().replace('/', '.'))}.{ending}"
        if field in self._fields.values():
            raise SchemaMismatchError(f"signal {name!r} and another one would be one field, {field!r}")
        self._fields[name] = field
        return field

    def _own(self) -> Member:
        """Names, roles, static items and step times, which a sample has no place for."""
        signals = self._rows.episode.signals
        roles = {
            name: {"field": field, "role": signals[name].meta.role, "at": self._at.get(name)}
            for name, field in self._fields.items()
        }
        notes = self._rows.episode_notes(len(self._rows))
        return OWN_FIELD, dump_json({"id": source_id(self._rows.episode), "signals": roles, **notes})

    def per_episode(self, key: str) -> Iterator[tuple[str, list[Member]]]:
        """One sample."""
        members: list[Member] = []
        for name, column in self._rows.columns.items():
            members += self._episode_members(name, column)
        yield key, [*members, self._own()]

    def _episode_members(self, name: str, column: StepColumn) -> list[Member]:
        run = encoded_run(column.signal)
        if run is not None and _are_stills(run):
            stem, _, ending = self._field(name, _STILLS[run.stream.codec]).rpartition(".")
            numbers = np.searchsorted(self._rows.steps.times_ns, column.signal.timestamps).tolist()
            self.notes[name] = note_of(column.signal)
            return [
                (f"{stem}.{number:06d}.{ending}", data)
                for number, data in zip(numbers, run.packets(), strict=True)
            ]
        if run is not None and run.stream.codec != "ffv1":
            camera = encoded_camera(name, column.signal)
            assert camera is not None
            self.notes[name] = note_of(column.signal)
            return [(self._field(name, camera.suffix.lstrip(".")), camera.video)]
        is_sparse = name in self._at
        self.notes[name] = note_of(column.signal) if is_sparse else column.note()
        values = column.signal.values() if is_sparse else column.rows(0, column.count)
        if column.meta.kind == "bytes" and len(values) == 1:
            return [(self._field(name, "bin"), bytes(values[0]))]
        if column.meta.kind == "bytes":
            why = "bytes that are no pictures have no place in a sample"
            self.notes[name] = note_of(column.signal, "dropped", why)
            return []
        if column.meta.kind == "text":
            return [(self._field(name, "json"), json.dumps(values.tolist()).encode())]
        return [(self._field(name, "npy"), npy_bytes(values))]

    def per_step(self, key: str) -> Iterator[tuple[str, list[Member]]]:
        """A sample per step, and one more for what was seen after the last."""
        columns = self._rows.columns
        values = {name: self._step_values(name, column) for name, column in columns.items()}
        for step in range(max((column.count for column in columns.values()), default=0)):
            items = ((self._fields[name], next(rows, None)) for name, rows in values.items())
            members: list[Member] = [(field, data) for field, data in items if data is not None]
            yield f"{key}/{step:06d}", [*members, self._own()] if step == 0 else members

    def _step_values(self, name: str, column: StepColumn) -> Iterator[bytes | None]:
        run = encoded_run(column.signal) if column.is_exact else None
        if run is not None and _are_stills(run):
            self._field(name, _STILLS[run.stream.codec])
            self.notes[name] = note_of(column.signal)
            return iter(run.packets())
        self._field(name, {"text": "txt", "bytes": "bin"}.get(column.meta.kind, "npy"))
        if name in self._at:
            self.notes[name] = note_of(column.signal)
            by_step = dict(zip(self._at[name], map(_value_bytes, column.signal.values()), strict=True))
            return (by_step.get(step) for step in range(len(self._rows)))
        self.notes[name] = column.note()
        return (_value_bytes(value) for block in column.blocks() for value in block)


def _are_stills(run: EncodedRun) -> bool:
    return run.stream.codec in _STILLS and bool(run.shown.all())


def _pieces(data: bytes | RangeReader) -> Iterator[bytes | memoryview]:
    if not isinstance(data, RangeReader):
        yield data
        return
    for start in range(0, data.size, _PIECE):
        yield data.read(start, min(start + _PIECE, data.size))


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else npy_bytes(np.asarray(value))


def npy_bytes(array: NDArray[Any]) -> bytes:
    """An array as a .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array, order="C"), allow_pickle=False)
    return out.getvalue()
