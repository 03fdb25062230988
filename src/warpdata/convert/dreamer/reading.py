"""Open a replay folder as episodes: chunks are linked into streams, streams are cut where an episode begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.aligning import LAST_ROW
from warpdata.convert.dreamer.names import ChunkName, chunk_name, episode_name
from warpdata.convert.kept_values import packed
from warpdata.convert.place import Place
from warpdata.convert.stepped import ChainedRows, EpisodeColumn, PartRows, Parts, Rows, SteppedEpisodes
from warpdata.convert.tables.npz_file import NpzFile
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BadMagicError, BlobNotFoundError, CorruptLayoutError
from warpdata.timeline.meta import Role

Actions = Literal["chosen", "led_to"]
_ROLES: dict[str, Role] = {
    "reward": "reward", "is_terminal": "terminated", "is_first": "other", "is_last": "other", "stepid": "other",
    "consec": "other", "reset": "other", "discount": "other",
}  # fmt: skip
OUTCOMES = "outcomes"
"""The clock of what came with an observation: one step after the action that led to it."""


def matches(place: Place) -> bool:
    """Whether it is a folder with files named as chunks of replay are."""
    return not place.is_file and any(chunk_name(name) for name in place.children())


def read(source: Any, *, fps: float | None = None, actions: Actions | None = None) -> Episodes:
    """The episodes of a replay folder; arrays are read when they are asked for.

    Row t holds what was seen, the reward that came with it, and the action chosen there: `actions="chosen"`. Older
    programs, which wrote a file per episode, stored the action that led to the row: `"led_to"`, their default.
    """
    if actions not in (None, "chosen", "led_to"):
        raise ValueError(f"actions is 'chosen' or 'led_to', not {actions!r}")
    return Episodes(Replay(Place.of(source), fps, actions))


@dataclass(frozen=True, slots=True)
class _Span:
    """One episode: the chunks of its stream that hold it, and its rows counted from the start of the first one."""

    id: str
    chunks: tuple[int, ...]
    start: int
    stop: int
    stream: int
    is_begun: bool
    """Whether its first row is there."""


class Replay(SteppedEpisodes):
    """Chunks of streams, or files of single episodes."""

    def __init__(self, place: Place, fps: float | None, actions: Actions | None) -> None:
        self._place, self._fps, self._actions = place, fps, actions
        if place.is_file:
            raise BadMagicError("a replay is a folder of chunks, not a file", path=place.name)
        _ = self.names

    @cached_property
    def names(self) -> list[tuple[str, ChunkName]]:
        """The files in the order of their times."""
        listed = sorted(self._place.children())
        found = [(file, name) for file in listed if (name := chunk_name(file))]
        if not found:
            found = [(file, name) for file in listed if (name := episode_name(file))]
        if not found:
            raise BlobNotFoundError("no chunk of a replay is in this folder", path=self.name)
        if len({name.uuid for _, name in found}) != len(found):
            raise CorruptLayoutError("two chunks have the same id", path=self.name)
        return found

    @cached_property
    def files(self) -> list[NpzFile]:
        """The chunks as archives."""
        return [NpzFile(self._place, file) for file, _ in self.names]

    @property
    def _is_old(self) -> bool:
        return chunk_name(self.names[0][0]) is None

    @cached_property
    def streams(self) -> list[list[int]]:
        """The chunks of each stream in order: from a chunk that nobody names on, as long as the next one is there."""
        by_uuid = {name.uuid: at for at, (_, name) in enumerate(self.names)}
        named = {name.successor for _, name in self.names}
        found: list[list[int]] = []
        seen: set[int] = set()
        for at, (_, name) in enumerate(self.names):
            if name.uuid in named:
                continue
            stream: list[int] = []
            following: int | None = at
            while following is not None and following not in seen:
                seen.add(following)
                stream.append(following)
                following = by_uuid.get(self.names[following][1].successor)
            found.append(stream)
        if len(seen) != len(self.names):
            raise CorruptLayoutError(
                "chunks follow each other in a circle, or two have one successor", path=self.name
            )
        return found

    @cached_property
    def spans(self) -> list[_Span]:
        """Where every episode lies."""
        return [span for number, stream in enumerate(self.streams) for span in self._cut(number, stream)]

    def _cut(self, number: int, stream: Sequence[int]) -> list[_Span]:
        head = self.names[stream[0]][1].uuid
        starts = np.cumsum([0, *(self._length(at) for at in stream)])
        total = int(starts[-1])
        if self._is_old:
            return [_Span(f"{self.names[stream[0]][1].time}-{head}", tuple(stream), 0, total, number, True)]
        firsts = np.concatenate([self.files[at].array("is_first").reshape(-1) for at in stream]).astype(bool)
        cuts = np.unique(np.concatenate([[0], np.flatnonzero(firsts), [total]]))
        spans = []
        for order, (start, stop) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            low = int(np.searchsorted(starts, start, side="right")) - 1
            high = int(np.searchsorted(starts, stop, side="left"))
            base = int(starts[low])
            spans.append(
                _Span(
                    f"{head}-{order:06d}",
                    tuple(stream[low:high]),
                    start - base,
                    stop - base,
                    number,
                    bool(firsts[start]),
                )
            )
        return spans

    def _length(self, at: int) -> int:
        """The rows of a chunk, as its name says and all its arrays have."""
        file, (name, about) = self.files[at], self.names[at]
        key = "is_first" if "is_first" in file.keys else next(iter(file.keys), None)
        if key is None:
            raise CorruptLayoutError("an archive without arrays", path=file.name)
        rows = file.header(key)[0][:1]
        expected = about.length if not self._is_old else (rows[0] if rows else -1)
        for each in file.keys if not self._is_old else [key]:
            shape = file.header(each)[0]
            if not shape or shape[0] != expected:
                raise CorruptLayoutError(
                    f"{each!r} has shape {list(shape)}, the name of {name!r} says {expected} rows",
                    path=file.name,
                )
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
        """The rows of an episode, out of all chunks it runs through."""
        span = self.spans[position]
        place = f"{self.name}#{span.id}"
        files = [self.files[at] for at in span.chunks]
        keys = files[0].keys
        if any(set(file.keys) != set(keys) for file in files):
            raise CorruptLayoutError(f"the chunks of episode {span.id!r} have different arrays", path=place)
        columns: dict[str, EpisodeColumn] = {}
        count = span.stop - span.start
        for key in keys:
            rows: Rows = PartRows(ChainedRows([file.rows(key) for file in files], key), span.start, span.stop)
            role = (
                "action" if key == "action" or key.startswith("action/") else _ROLES.get(key, "observation")
            )
            role = "other" if key.startswith(("dyn/", "enc/", "dec/", "log/")) else role
            is_outcome = role in ("reward", "terminated")
            columns[key] = EpisodeColumn(rows, role, OUTCOMES if is_outcome else None)
        ended = (
            bool(count) and "is_last" in columns and bool(columns["is_last"].rows.read(count - 1, count)[0])
        )
        kept: dict[str, Any] = {"stream": span.stream, "is_begun": span.is_begun}
        if (self._actions or ("led_to" if self._is_old else "chosen")) == "led_to" and count:
            columns, kept = self._moved(columns, kept, count)
            ended = True
        meta: dict[str, Any] = {"dreamer": kept, **({LAST_ROW: "observation"} if ended else {})}
        return Parts(self.ids[position], count, columns, {}, meta, self._fps, outcome="next", place=place)

    def _moved(
        self, columns: Mapping[str, EpisodeColumn], kept: dict[str, Any], count: int
    ) -> tuple[dict[str, EpisodeColumn], dict[str, Any]]:
        """Actions that led to their row, moved to the row where they were chosen; the first one led to nothing."""
        out = dict(columns)
        first = {}
        for name, column in columns.items():
            if column.role == "action":
                first[name] = packed(column.rows.read(0, 1)[0])
                moved = [PartRows(column.rows, 1, count), _Zeros(column.rows)]
                out[name] = EpisodeColumn(ChainedRows(moved, name), "action")
        return out, {**kept, "actions": "led_to", "first_action": first}

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The chunks of every stream by name."""
        chunks = [[self.names[at][0] for at in stream] for stream in self.streams]
        return {"dreamer": {"streams": chunks, **({"old": True} if self._is_old else {})}}

    @property
    def name(self) -> str:
        """Where the replay lies."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replay, (self._place, self._fps, self._actions))


class _Zeros(Rows):
    """One row of zeros like those of another array."""

    def __init__(self, like: Rows) -> None:
        self.count, self.dtype, self.row_shape = 1, like.dtype, like.row_shape

    def read(self, start: int, stop: int) -> Any:
        """The row."""
        return np.zeros((stop - start, *self.row_shape), self.dtype)
