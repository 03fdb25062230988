"""Write episodes as DreamerV3 replay: streams of chunks, under the names they had where they were replay before."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.dreamer.names import NOBODY, ChunkName, chunk_name, uuid_bytes, uuid_text
from warpdata.convert.exporting import StepColumn, episode_notes, step_columns, usable
from warpdata.convert.importing import OnError, Progress
from warpdata.convert.npz_file import write_npz
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.timeline.episode import Episode

_FIRST_TIME = "20000101T000000F"
_NAMES = {"reward": "reward", "terminated": "is_terminal"}
_MADE = ("is_first", "is_last", "is_terminal")

Row = dict[str, NDArray[Any]]


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
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a replay folder, which appears whole or not at all.

    Chunks of a replay that is written again keep their names and lengths; others have `chunk_length` rows. A row holds
    what was seen, the reward that came with it and the action chosen there: where nothing was seen after the last
    action, the last observation is repeated, or the last step is dropped.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`. Their times are kept in `warpdata.json`.
    """
    if chunk_length < 1:
        raise ValueError(f"chunk_length is at least 1, not {chunk_length}")
    if final_observation not in ("repeat", "drop"):
        raise ValueError(f"final_observation is 'repeat' or 'drop', not {final_observation!r}")
    episodes = under_own_names(episodes)
    options = AlignOptions(rate, clock, align)
    receipt = ConversionReceipt.of_export("dreamer", episodes, target, supplied=options.to_json())
    episodes = usable(episodes, on_error, receipt, options)
    known = None if options.to_json() else _known_streams(episodes)
    done = 0
    with commit_folder(target) as folder:
        for number, members in _by_stream(episodes, known):
            stream = _Stream(folder, known[number] if known else None, chunk_length, f"{number}")
            for order, episode in enumerate(members):
                made = _EpisodeRows(episode, final_observation, options)
                for block in made.blocks():
                    stream.add(block)
                receipt.add(made.notes)
                receipt.episode_notes[f"{stream.head}-{order:06d}"] = made.episode_notes()
                done += 1
                if progress is not None:
                    progress(done, len(episodes))
            stream.finish()
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


def _known_streams(episodes: Episodes) -> list[list[ChunkName]] | None:
    """The chunks that the episodes were in, where they are all of one replay."""
    kept = episodes.metadata.get("dreamer")
    if not isinstance(kept, Mapping) or kept.get("old") or not episodes.is_whole:
        return None
    found = [[chunk_name(str(file)) for file in stream] for stream in kept.get("streams", [])]
    if any(None in stream for stream in found):
        return None
    streams = [[name for name in stream if name is not None] for stream in found]
    rows = [0] * len(streams)
    for episode in episodes:
        about = episode.meta.get("dreamer")
        if (
            not isinstance(about, Mapping)
            or about.get("actions") == "led_to"
            or not 0 <= about.get("stream", -1) < len(rows)
        ):
            return None
        rows[about["stream"]] += len(episode.steps)
    return streams if rows == [sum(name.length for name in stream) for stream in streams] else None


def _by_stream(episodes: Episodes, known: Sequence[Any] | None) -> Iterator[tuple[int, Iterator[Episode]]]:
    if known is None:
        yield 0, iter(episodes)
        return
    for number in range(len(known)):
        yield number, (episode for episode in episodes if episode.meta["dreamer"]["stream"] == number)


class _EpisodeRows:
    """One episode as rows of replay, a block at a time."""

    def __init__(self, episode: Episode, final: str, options: AlignOptions) -> None:
        self._episode, self._options = episode, options
        self.notes: dict[str, Note] = {}
        kept = episode.meta.get("dreamer")
        is_replay = isinstance(kept, Mapping) and kept.get("actions") != "led_to"
        self._is_own = is_replay and not options.to_json()
        self._steps, self._columns = step_columns(episode, options)
        seen = [column for column in self._columns.values() if column.meta.role == "observation"]
        self._has_last = bool(seen) and all(column.has_more for column in seen)
        self._count = len(self._steps) + (1 if self._has_last or final == "repeat" else 0)

    def episode_notes(self) -> dict[str, Any]:
        """Times and static items of the episode."""
        rows = len(self._episode.steps) if self._is_own else self._count
        return episode_notes(self._episode, self._columns, self._steps, rows, self._options)

    def blocks(self) -> Iterator[Row]:
        """The rows, some hundred at a time."""
        if self._is_own:
            yield from self._own_blocks()
            return
        columns = self._named()
        for start in range(0, self._count, 256):
            stop = min(start + 256, self._count)
            block = {name: self._rows(column, start, stop) for name, column in columns.items()}
            yield {**block, **self._flags(start, stop, block)}

    def _own_blocks(self) -> Iterator[Row]:
        """All arrays as they were."""
        signals = self._episode.signals
        count = len(self._episode.steps)
        for name, signal in signals.items():
            self.notes[name] = note_of(signal)
            if len(signal) != count:
                raise CorruptLayoutError(
                    f"signal {name!r} of episode {self._episode.id!r} has {len(signal)} rows of {count}"
                )
        for start in range(0, count, 256):
            stop = min(start + 256, count)
            yield {name: signal.rows(start, stop) for name, signal in signals.items()}

    def _named(self) -> dict[str, StepColumn]:
        """The columns under Dreamer's names; text has no place."""
        out: dict[str, StepColumn] = {}
        actions = [name for name, column in self._columns.items() if column.meta.role == "action"]
        for name, column in self._columns.items():
            if column.meta.is_object or (column.meta.role == "truncated"):
                why = (
                    "the last row says it"
                    if column.meta.role == "truncated"
                    else "text has no place in replay"
                )
                self.notes[name] = note_of(column.signal, "dropped", why)
                continue
            new = _NAMES.get(column.meta.role, name)
            if name in actions:
                new = "action" if len(actions) == 1 else f"action/{name.removeprefix('action/')}"
            if new in out or (new in _MADE and column.meta.role != "terminated"):
                raise SchemaMismatchError(
                    f"two signals of episode {self._episode.id!r} would be called {new!r}"
                )
            out[new] = column
            note = column.note()
            if column.meta.role == "terminated" and column.meta.dtype != np.bool_:
                note = replace(note, how="retyped", why=f"{column.meta.dtype} as bool")
            self.notes[name] = note
        return out

    def _rows(self, column: StepColumn, start: int, stop: int) -> NDArray[Any]:
        """Rows of replay: rewards and flags one later, zeros behind the actions, the last observation again."""
        steps = len(self._steps)
        role = column.meta.role
        if role in ("reward", "terminated"):
            low = max(start - 1, 0)
            block = (
                column.rows(low, stop - 1)
                if stop - 1 > low
                else np.empty((0, *column.meta.shape), column.meta.dtype)
            )
            before = np.zeros((1, *column.meta.shape), column.meta.dtype)
            found = np.concatenate([before, block]) if start == 0 else block
            return found.astype(np.bool_) if role == "terminated" else found
        limit = steps if role == "action" else column.count
        found = column.rows(min(start, limit), min(stop, limit))
        missing = stop - start - len(found)
        if not missing:
            return found
        if role == "action":
            return np.concatenate([found, np.zeros((missing, *column.meta.shape), column.meta.dtype)])
        return np.concatenate([found, np.repeat(column.rows(limit - 1, limit), missing, axis=0)])

    def _flags(self, start: int, stop: int, block: Mapping[str, Any]) -> Row:
        rows = np.arange(start, stop)
        flags = {"is_first": rows == 0, "is_last": rows == self._count - 1}
        if "is_terminal" not in block:
            flags["is_terminal"] = np.zeros(stop - start, np.bool_)
        if "reward" not in block:
            flags["reward"] = np.zeros(stop - start, np.float32)
            self.notes["reward"] = Note("kept", 0, why="not in the source: zeros, which Dreamer asks for")
        return flags


class _Stream:
    """One stream being written chunk by chunk."""

    def __init__(self, folder: Path, known: Sequence[ChunkName] | None, length: int, seed: str) -> None:
        self._folder, self._known, self._length, self._seed = folder, known, length, seed
        self._waiting: list[Row] = []
        self._rows = 0
        self._number = 0
        self._keys: set[str] | None = None

    def _name(self, number: int, length: int) -> ChunkName:
        """The name of a chunk: its own, or one that follows from its place in the stream."""
        if self._known is not None:
            return self._known[number]
        uuids = [
            uuid_text(hashlib.sha256(f"{self._seed}/{each}".encode()).digest()[:16])
            for each in (number, number + 1)
        ]
        return ChunkName(f"{_FIRST_TIME}{number:06d}", uuids[0], uuids[1], length)

    @property
    def head(self) -> str:
        """Id of the first chunk."""
        return self._name(0, 0).uuid

    @property
    def _wanted(self) -> int:
        return self._known[self._number].length if self._known is not None else self._length

    def add(self, block: Row) -> None:
        """Append rows; full chunks are written."""
        keys = set(block)
        if self._keys is not None and keys != self._keys:
            raise SchemaMismatchError(
                f"episodes differ in their signals: {', '.join(sorted(keys ^ self._keys))}"
            )
        self._keys = keys
        count = len(next(iter(block.values())))
        at = 0
        while at < count:
            taken = min(self._wanted - self._rows, count - at)
            self._waiting.append({name: rows[at : at + taken] for name, rows in block.items()})
            self._rows += taken
            at += taken
            if self._rows == self._wanted:
                self._flush(is_last=False)

    def _flush(self, *, is_last: bool) -> None:
        name = self._name(self._number, self._rows)
        if is_last and self._known is None:
            name = ChunkName(name.time, name.uuid, NOBODY, self._rows)
        arrays = {key: np.concatenate([each[key] for each in self._waiting]) for key in self._waiting[0]}
        if "stepid" not in arrays:
            ids = np.empty((self._rows, 20), np.uint8)
            ids[:, :16] = np.frombuffer(uuid_bytes(name.uuid), np.uint8)
            ids[:, 16:] = np.arange(self._rows, dtype=">u4").view(np.uint8).reshape(-1, 4)
            arrays["stepid"] = ids
        with commit_file(self._folder / name.file, durable=False) as new:
            with os.fdopen(os.dup(new.fd), "w+b") as file:
                write_npz(file, arrays)
            new.position = os.fstat(new.fd).st_size
        self._waiting, self._rows, self._number = [], 0, self._number + 1

    def finish(self) -> None:
        """Write the last chunk."""
        if self._rows:
            self._flush(is_last=True)
