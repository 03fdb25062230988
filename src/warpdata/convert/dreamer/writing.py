"""Write episodes as DreamerV3 replay: one stream of chunks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.dreamer.names import NOBODY, ChunkName, uuid_bytes, uuid_text
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import Part, StepColumn, StepRows, StepWriter, source_id, write_set
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.convert.tables.npz_file import write_npz
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import SchemaMismatchError, require_word

_FIRST_TIME = "20000101T000000F"
_NAMES = {"reward": "reward", "terminated": "is_terminal"}
_FLAGS = ("is_first", "is_last", "is_terminal")
_BLOCK_ROWS = 256

Rows = dict[str, NDArray[Any]]


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    chunk_length: int = 1024,
    final_observation: Literal["repeat", "drop"] = "repeat",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a replay folder, which appears whole or not at all.

    A row holds what was seen, the reward that came with it and the action chosen there: where nothing was seen after
    the last action, the last observation is repeated, or the last step is dropped. Steps are those of the episode, or
    a grid of `rate` per second, or the records of the signal `clock`, aligned by `align`. Their times are kept in
    `warpdata.json`.
    """
    if chunk_length < 1:
        raise ValueError(f"chunk_length is at least 1, not {chunk_length}")
    require_word("final_observation", final_observation, ("repeat", "drop"))
    writer, options = ReplayWriter(chunk_length, final_observation), AlignOptions(rate, clock, align)
    return write_set(writer, episodes, target, options, on_error=on_error, jobs=jobs, progress=progress)


class ReplayWriter(StepWriter):
    """Chunks of `chunk_length` rows, each named with its successor."""

    format = "dreamer"

    def __init__(self, chunk_length: int, final: str) -> None:
        self._length, self._final = chunk_length, final
        self._waiting: list[Rows] = []
        self._chunks = self._episodes = self._head = 0
        self._keys: set[str] | None = None

    def open(self, target: Path) -> AbstractContextManager[Any]:
        """The new folder."""
        return commit_folder(target)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The rows of replay of one episode, in a file of their own."""
        kept = rows.episode.meta.get("dreamer")
        is_replay = isinstance(kept, Mapping) and kept.get("actions") != "led_to" and not rows.is_aligned
        notes: dict[str, Note] = {}
        if is_replay:  # its arrays are the rows already
            count = len(rows.episode.steps)
            arrays = {name: signal.values() for name, signal in rows.episode.signals.items()}
            notes = {name: note_of(signal) for name, signal in rows.episode.signals.items()}
        else:
            seen = [rows.columns[name] for name in rows.names("observation")]
            has_last = bool(seen) and all(column.has_more for column in seen)
            count = len(rows) + (1 if has_last or self._final == "repeat" else 0)
            columns = _named(rows, notes)
            arrays = {name: _replay_rows(column, len(rows), count) for name, column in columns.items()}
            arrays |= _flags(count, arrays, notes)
        with open(scratch / "rows.npz", "wb") as file:
            write_npz(file, {f"{at}": each for at, each in enumerate(arrays.values())})
        return Part(count, notes, (source_id(rows.episode), scratch / "rows.npz", list(arrays)))

    def add(self, part: Part) -> str:
        """Append the rows; full chunks are written."""
        name, path, keys = part.data
        if self._keys is not None and set(keys) != self._keys:
            odd = ", ".join(sorted(set(keys) ^ self._keys))
            raise SchemaMismatchError(f"episode {name!r} and those before it differ in their signals: {odd}")
        self._keys = set(keys)
        with np.load(path) as stored:
            arrays = {key: stored[f"{at}"] for at, key in enumerate(keys)}
        if part.rows and not arrays["is_first"].reshape(-1)[0]:
            self._end_stream()  # the start of the episode is missing: nothing may come before it
        start = 0
        while start < part.rows:
            stop = min(part.rows, start + self._length - self._waiting_rows)
            self._waiting.append({key: rows[start:stop] for key, rows in arrays.items()})
            start = stop
            if self._waiting_rows == self._length:
                self._flush(is_last=False)
        self._episodes += 1
        return f"{_uuid(self._head)}-{self._episodes - 1:06d}"

    def _end_stream(self) -> None:
        """Write what waits; the next chunk begins a stream that no chunk names."""
        if self._waiting:
            self._flush(is_last=True)
        if self._episodes:
            self._chunks += 1
        self._head, self._episodes = self._chunks, 0

    @property
    def _waiting_rows(self) -> int:
        return sum(len(next(iter(block.values()))) for block in self._waiting)

    def _flush(self, *, is_last: bool) -> None:
        count, number = self._waiting_rows, self._chunks
        successor = NOBODY if is_last else _uuid(number + 1)
        name = ChunkName(f"{_FIRST_TIME}{number:06d}", _uuid(number), successor, count)
        arrays = {key: np.concatenate([block[key] for block in self._waiting]) for key in self._waiting[0]}
        ids = np.empty((count, 20), np.uint8)
        ids[:, :16] = np.frombuffer(uuid_bytes(name.uuid), np.uint8)
        ids[:, 16:] = np.arange(count, dtype=">u4").view(np.uint8).reshape(-1, 4)
        with commit_file(self.out / name.file, durable=False) as new:
            with os.fdopen(os.dup(new.fd), "w+b") as file:
                write_npz(file, arrays if "stepid" in arrays else {**arrays, "stepid": ids})
            new.position = os.fstat(new.fd).st_size
        self._waiting, self._chunks = [], number + 1

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the last chunk and the receipt."""
        if self._waiting:
            self._flush(is_last=True)
        (self.out / RECEIPT_FILE).write_bytes(receipt.document())


def _uuid(number: int) -> str:
    """Id of a chunk: the same in every export."""
    return uuid_text(hashlib.sha256(f"0/{number}".encode()).digest()[:16])


def _named(rows: StepRows, notes: dict[str, Note]) -> dict[str, StepColumn]:
    """The columns under Dreamer's names; text has no place."""
    columns: dict[str, StepColumn] = {}
    notes |= rows.drop_objects("text has no place in replay")
    for name in rows.names("truncated"):
        notes[name] = note_of(rows.columns.pop(name).signal, "dropped", "is_last of the last row holds it")
    actions = rows.names("action")
    for name, column in rows.columns.items():
        role = column.meta.role
        there = _NAMES.get(role, name)
        if name in actions:
            there = "action" if len(actions) == 1 else f"action/{name.removeprefix('action/')}"
        if there in columns or (there in _FLAGS and role != "terminated"):
            raise SchemaMismatchError(f"two signals of episode {rows.episode.id!r} would be called {there!r}")
        columns[there] = column
        notes[name] = column.note()
        if role == "terminated" and column.meta.dtype != np.bool_:
            notes[name] = replace(notes[name], how="retyped", why=f"{column.meta.dtype} as bool")
    return columns


def _replay_rows(column: StepColumn, steps: int, count: int) -> NDArray[Any]:
    """Rows of replay: rewards and flags one later, zeros behind the actions, the last observation again."""
    role = column.meta.role
    out = np.zeros((count, *column.meta.shape), np.bool_ if role == "terminated" else column.meta.dtype)
    is_outcome = role in ("reward", "terminated")
    first = 1 if is_outcome else 0
    there = min(count - first, steps if is_outcome or role == "action" else column.count)
    for start in range(0, there, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, there)
        out[first + start : first + stop] = column.rows(start, stop)
    if there and not is_outcome and role != "action":
        out[there:] = out[there - 1]
    return out


def _flags(count: int, arrays: Mapping[str, Any], notes: dict[str, Note]) -> Rows:
    numbers = np.arange(count)
    flags = {"is_first": numbers == 0, "is_last": numbers == count - 1}
    if "is_terminal" not in arrays:
        flags["is_terminal"] = np.zeros(count, np.bool_)
    if "reward" not in arrays:
        flags["reward"] = np.zeros(count, np.float32)
        notes["reward"] = Note("kept", 0, why="missing in the source: zeros, which Dreamer needs")
    return flags
