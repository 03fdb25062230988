"""DreamerV3 replay: chunks of rows linked into streams, `<time>-<uuid>-<successor>-<length>.npz`, in and out.

A stream is cut where an episode begins (`is_first`). Older programs wrote a file per episode. Row t holds what was
seen, the reward that came with it and the action chosen there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.aligning import LAST_ROW
from warpdata.convert.exporting import ExportOptions, Part, StepColumn, StepRows, StepWriter
from warpdata.convert.place import Place
from warpdata.convert.receipt import ConversionReceipt, metadata_of, note_of, pack
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, SteppedEpisodes, chain_rows
from warpdata.convert.tables.npz import NpzFile, write_npz
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    SchemaMismatchError,
    require_word,
)
from warpdata.timeline.meta import Role
from warpdata.timeline.source import OUTCOME_CLOCK

Actions = Literal["chosen", "led_to"]
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NO_SUCCESSOR = "0" * 22
_CHUNK = re.compile(r"(\d{8}T\d{6}F\d{6})-([0-9a-zA-Z]{22})-([0-9a-zA-Z]{22})-(\d{1,9})\.npz")
_EPISODE = re.compile(r"(\d{8}T\d{6})-([0-9a-zA-Z]+)-()(\d{1,9})(?:-[01])?\.npz")
_ROLES: dict[str, Role] = {
    "reward": "reward",
    "is_terminal": "terminated",
    **dict.fromkeys(("is_first", "is_last", "stepid", "consec", "reset", "discount"), "other"),
}
_FIRST_TIME = "20000101T000000F"
_PATHS = {
    "action": ("action", "action/{}"),
    "reward": ("reward", "reward"),
    "terminated": ("is_terminal", "is_terminal"),
}
"""Role -> key of the only signal, and of several."""
_FLAGS = ("is_first", "is_last", "is_terminal")
_BLOCK_ROWS = 256


def matches(place: Place) -> bool:
    """Whether it is a folder with files named as chunks of replay are."""
    return not place.is_file and any(_CHUNK.fullmatch(name) for name in place.children())


def read(source: Any, *, fps: float | None = None, actions: Actions | None = None) -> Episodes:
    """The episodes of a replay folder; arrays are read on demand.

    Row t holds what was seen, the reward that came with it, and the action chosen there: `actions="chosen"`. Older
    programs, which wrote a file per episode, stored the action that led to the row: `"led_to"`, their default.
    """
    if actions is not None:
        require_word("actions", actions, ("chosen", "led_to"))
    return Episodes(Replay(Place.of(source), fps, actions))


class _Span(NamedTuple):
    """One episode: the chunks of its stream that hold it, and its rows counted from the start of the first one."""

    id: str
    chunks: tuple[int, ...]
    start: int
    stop: int
    stream: int
    is_begun: bool
    """Whether its first row is in the stream."""


class Replay(SteppedEpisodes):
    """Chunks of streams, or files of single episodes."""

    def __init__(self, place: Place, fps: float | None, actions: Actions | None) -> None:
        super().__init__(place, fps)
        if place.is_file:
            raise BadMagicError("a replay is a folder of chunks, not a file", path=place.name)
        names = place.children()
        self._chunks = [match for name in names if (match := _CHUNK.fullmatch(name))]
        self._is_old = not self._chunks
        if self._is_old:
            self._chunks = [match for name in names if (match := _EPISODE.fullmatch(name))]
        if not self._chunks:
            raise BlobNotFoundError("no chunk of a replay in this folder", path=place.name)
        if len({chunk[2] for chunk in self._chunks}) != len(self._chunks):
            raise CorruptLayoutError("two chunks have the same id", path=place.name)
        self._actions = actions or ("led_to" if self._is_old else "chosen")
        self._files = [NpzFile.at(place, chunk[0]) for chunk in self._chunks]

    @cached_property
    def streams(self) -> list[list[int]]:
        """The chunks of each stream in order: from a chunk that is no successor, to one without a successor."""
        by_uuid = {chunk[2]: number for number, chunk in enumerate(self._chunks)}
        successors = {chunk[3] for chunk in self._chunks}
        streams: list[list[int]] = []
        seen: set[int] = set()
        for number, chunk in enumerate(self._chunks):
            following: int | None = None if chunk[2] in successors else number
            stream: list[int] = []
            while following is not None and following not in seen:
                seen.add(following)
                stream.append(following)
                following = by_uuid.get(self._chunks[following][3])
            streams += [stream] if stream else []
        if len(seen) != len(self._chunks):
            fact = "chunks follow each other in a circle, or two have one successor"
            raise CorruptLayoutError(fact, path=self.name)
        return streams

    @cached_property
    def spans(self) -> list[_Span]:
        """The rows of every episode: a stream is cut where an episode begins."""
        spans = []
        for number, stream in enumerate(self.streams):
            head = self._chunks[stream[0]]
            starts = np.cumsum([0, *map(self._length, stream)])
            total = int(starts[-1])
            if self._is_old:
                spans.append(_Span(f"{head[1]}-{head[2]}", tuple(stream), 0, total, number, True))
                continue
            flags = [self._files[chunk].whole("is_first").reshape(-1) for chunk in stream]
            firsts = np.concatenate(flags).astype(bool)
            cuts = np.unique([0, *np.flatnonzero(firsts), total]).tolist()
            for order, (start, stop) in enumerate(pairwise(cuts)):
                low = int(np.searchsorted(starts, start, side="right")) - 1
                chunks = tuple(stream[low : int(np.searchsorted(starts, stop, side="left"))])
                rows = (start - int(starts[low]), stop - int(starts[low]))
                spans.append(_Span(f"{head[2]}-{order:06d}", chunks, *rows, number, bool(firsts[start])))
        return spans

    def _length(self, chunk: int) -> int:
        """The rows of a chunk, as its name states and all its arrays have."""
        file, name = self._files[chunk], self._chunks[chunk]
        shapes = {key: file.shape(key) for key in file.paths()}
        if not shapes:
            raise CorruptLayoutError("an archive without arrays", path=file.name)
        key = "is_first" if "is_first" in shapes else next(iter(shapes))
        expected = int(name[4]) if not self._is_old else next(iter(shapes[key]), -1)
        for path in shapes if not self._is_old else [key]:
            if not shapes[path] or shapes[path][0] != expected:
                fact = f"{path!r} has shape {list(shapes[path])}, {name[0]!r} states {expected} rows"
                raise CorruptLayoutError(fact, path=file.name)
        return expected

    @cached_property
    def ids(self) -> Sequence[str]:
        """Ids that an export noted, else the first chunk of the stream and the number of the episode in it."""
        notes = [self.own_notes.get(span.id) for span in self.spans]
        names = [note.id for note in notes if note is not None and note.id]
        return names if len(set(names)) == len(self.spans) else [span.id for span in self.spans]

    def note_key(self, position: int) -> str:
        """The stream and the number of the episode in it."""
        return self.spans[position].id

    def parts(self, position: int) -> Parts:
        """The rows of an episode, from all its chunks."""
        span = self.spans[position]
        place = f"{self.name}#{span.id}"
        files = [self._files[chunk] for chunk in span.chunks]
        keys, count = files[0].paths(), span.stop - span.start
        if any(set(file.paths()) != set(keys) for file in files):
            raise CorruptLayoutError(f"the chunks of episode {span.id!r} have different arrays", path=place)
        columns: dict[str, EpisodeColumn] = {}
        for key in keys:
            rows = chain_rows([file.rows(key) for file in files], key).part(span.start, span.stop)
            role = "action" if f"{key}/".startswith("action/") else _ROLES.get(key, "observation")
            role = "other" if key.startswith(("dyn/", "enc/", "dec/", "log/")) else role
            clock = OUTCOME_CLOCK if role in ("reward", "terminated") else None
            columns[key] = EpisodeColumn(rows, role, clock)
        last = columns["is_last"].rows.read(count - 1, count)[0] if count and "is_last" in columns else False
        kept: dict[str, Any] = {"stream": span.stream, "is_begun": span.is_begun}
        if self._actions == "led_to" and count:
            last, kept["actions"], kept["first_action"] = True, "led_to", {}
            for name, column in columns.items():
                if column.role == "action":  # moved to the row of the choice; the first one led to nothing
                    led = column.rows
                    kept["first_action"][name] = pack(led.read(0, 1)[0])
                    zeros = Rows.of(np.zeros((1, *led.shape), led.dtype), led.kind)
                    columns[name] = EpisodeColumn(chain_rows([led.part(1, count), zeros], name), "action")
        meta: dict[str, Any] = {"dreamer": kept, **({LAST_ROW: "observation"} if last else {})}
        return Parts(self.ids[position], count, columns, {}, meta, self._fps, outcome="next", place=place)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The chunks of every stream by name."""
        chunks = [[self._chunks[chunk][0] for chunk in stream] for stream in self.streams]
        return {"dreamer": {"streams": chunks, **({"old": True} if self._is_old else {})}}


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    chunk_length: int = 1024,
    final_observation: Literal["repeat", "drop"] = "repeat",
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as a replay folder, which appears whole or not at all.

    A row holds what was seen, the reward that came with it and the action chosen there: where nothing was seen after
    the last action, the last observation is repeated, or the last step is dropped. The times of the steps are kept in
    `warpdata.json`.
    """
    if chunk_length < 1:
        raise ValueError(f"chunk_length is at least 1, not {chunk_length}")
    require_word("final_observation", final_observation, ("repeat", "drop"))
    return ReplayWriter(chunk_length, final_observation).write(episodes, target, **options)


@dataclass
class ReplayWriter(StepWriter):
    """One stream of chunks of `chunk_length` rows, each named with its successor."""

    format = "dreamer"
    _length: int
    _final: str
    _waiting: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    _keys: set[str] | None = None
    _waiting_rows = _chunks = _episodes = _head = 0

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The rows of replay of one episode, in a file of their own."""
        kept, episode = metadata_of(rows.episode.meta, "dreamer"), rows.episode
        if kept and kept.get("actions") != "led_to" and not rows.is_aligned:
            count = len(episode.steps)  # its arrays are rows of replay already
            arrays = {name: signal.values() for name, signal in episode.signals.items()}
            rows.notes |= {name: note_of(signal) for name, signal in episode.signals.items()}
        else:
            rows.drop_objects("text has no place in replay")
            rows.drop(rows.names("truncated"), "is_last of the last row holds it")
            seen = [rows.columns[name] for name in rows.names("observation")]
            has_last = bool(seen) and all(column.has_more for column in seen)
            count = len(rows) + (1 if has_last or self._final == "repeat" else 0)
            arrays = self._arrays(rows, count)
        with open(scratch / "rows.npz", "wb") as file:
            write_npz(file, {f"{number}": array for number, array in enumerate(arrays.values())})
        return Part(count, (rows.id, scratch / "rows.npz", list(arrays)))

    def _arrays(self, rows: StepRows, count: int) -> dict[str, NDArray[Any]]:
        """The columns under Dreamer's names, the flags, and zeros for what Dreamer needs and the episode has not."""
        numbers = np.arange(count)
        arrays: dict[str, NDArray[Any]] = {}
        for name, there in rows.place(_PATHS).items():
            column, role = rows.columns[name], rows.columns[name].meta.role
            is_end, dtype = role == "terminated", column.meta.dtype
            if there in _FLAGS and not is_end:
                raise SchemaMismatchError(f"two signals of {rows.episode.id!r} would be called {there!r}")
            rows.keep(name)
            if is_end and dtype != np.bool_:
                rows.notes[name] = replace(rows.notes[name], how="retyped", why=f"{dtype} as bool")
            if role in ("reward", "terminated") and count == len(rows):
                why = "the last row has no place in the target"
                rows.notes[name] = replace(rows.notes[name], how="cut", why=why)
            elif role not in ("reward", "terminated", "action") and count > column.count:
                why = "the last observation is repeated"
                rows.notes[name] = replace(rows.notes[name], how="resampled", why=why)
            arrays[there] = _replay_rows(column, len(rows), count)
        arrays |= {"is_first": numbers == 0, "is_last": numbers == count - 1}
        arrays.setdefault("is_terminal", np.zeros(count, np.bool_))
        if "reward" not in arrays:
            arrays["reward"] = np.zeros(count, np.float32)
            rows.add_missing("reward", "zeros, which Dreamer needs")
        return arrays

    def add(self, part: Part) -> str:
        """Append the rows; full chunks are written."""
        name, path, keys = part.data
        if self._keys is not None and set(keys) != self._keys:
            odd = ", ".join(sorted(set(keys) ^ self._keys))
            raise SchemaMismatchError(f"episode {name!r} and those before it differ in their signals: {odd}")
        self._keys = set(keys)
        with np.load(path) as stored:
            arrays = {key: stored[f"{number}"] for number, key in enumerate(keys)}
        if (
            part.rows and not arrays["is_first"].reshape(-1)[0]
        ):  # its start is missing: it begins a new stream
            self._write_chunk(is_last=True)
            self._chunks += bool(self._episodes)
            self._head, self._episodes = self._chunks, 0
        start = 0
        while start < part.rows:
            stop = min(part.rows, start + self._length - self._waiting_rows)
            self._waiting.append({key: rows[start:stop] for key, rows in arrays.items()})
            self._waiting_rows += stop - start
            start = stop
            if self._waiting_rows == self._length:
                self._write_chunk(is_last=False)
        self._episodes += 1
        return f"{_uuid(self._head)[0]}-{self._episodes - 1:06d}"

    def _write_chunk(self, *, is_last: bool) -> None:
        if not self._waiting:
            return
        count, (name, raw) = self._waiting_rows, _uuid(self._chunks)
        successor = _NO_SUCCESSOR if is_last else _uuid(self._chunks + 1)[0]
        file = self.out / f"{_FIRST_TIME}{self._chunks:06d}-{name}-{successor}-{count}.npz"
        arrays = {key: np.concatenate([block[key] for block in self._waiting]) for key in self._waiting[0]}
        ids = np.empty((count, 20), np.uint8)
        ids[:, :16] = np.frombuffer(raw, np.uint8)
        ids[:, 16:] = np.arange(count, dtype=">u4").view(np.uint8).reshape(-1, 4)
        with open(file, "xb") as out:
            write_npz(out, {**arrays, "stepid": arrays.get("stepid", ids)})
        self._waiting, self._waiting_rows = [], 0
        self._chunks += 1

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the last chunk and the receipt."""
        self._write_chunk(is_last=True)
        super().finish(episodes, receipt)


def _uuid(number: int) -> tuple[str, bytes]:
    """Id of a chunk, as text and bytes: the same in every export."""
    raw = hashlib.sha256(f"0/{number}".encode()).digest()[:16]
    rest, text = int.from_bytes(raw, "big"), ""
    for _ in range(22):
        rest, digit = divmod(rest, 62)
        text = _ALPHABET[digit] + text
    return text, raw


def _replay_rows(column: StepColumn, steps: int, count: int) -> NDArray[Any]:
    """Rows of replay: rewards and flags one row later, zeros after the actions, the last observation repeated."""
    role = column.meta.role
    is_outcome = role in ("reward", "terminated")
    out = np.zeros((count, *column.meta.shape), np.bool_ if role == "terminated" else column.meta.dtype)
    first = 1 if is_outcome else 0
    length = min(count - first, steps if is_outcome or role == "action" else column.count)
    for start in range(0, length, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, length)
        out[first + start : first + stop] = column.rows(start, stop)
    if length and not is_outcome and role != "action":
        out[length:] = out[length - 1]
    return out
