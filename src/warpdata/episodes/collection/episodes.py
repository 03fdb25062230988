"""Episodes in an order: one type for a root, a published version, a list, a slice, a filter, a concatenation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array, resolve_index
from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.checksum import xxh64
from warpdata.bytekit.process.forks import Reopens, cached_property
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.episodes.collection.facts import (
    SignalSummary,
    facts_of,
    joined_tables,
    summaries_of,
    table_of,
)
from warpdata.episodes.collection.jobs import code_name
from warpdata.episodes.forms.content import content_of
from warpdata.errors import BlobNotFoundError, FormatError, NoStepsError, WarpError, nearest
from warpdata.ordering.blocks import splitmix64, stream_key
from warpdata.sql.engine import SqlResult, arrow_source, matching_rows, run_sql
from warpdata.timeline.cards import html_table, picture_html, text, titled_card
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of, shrink_pixels
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, LazySignals, SourceAround

Rows = NDArray[np.int64]
T = TypeVar("T")

_SHOWN_ROWS = 20
_THUMBNAIL_SIDE = 64
_OPENING = 16
"""Episodes that are opened at the same time."""


class Origin(NamedTuple):
    """Where an episode comes from: a dataset, which version of it, and the hash of the blob that holds it."""

    dataset: str
    version: str | None
    blob: str | None


class EpisodesSource(ABC):
    """Where episodes come from: their ids, a table of facts about each, and how to open one.

    It pickles to an address, not to data.
    """

    name: str
    """For messages."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """What is known of the set as a whole, as JSON values: by foreign format."""
    has_facts = False
    """Whether the facts are known without opening every episode."""
    opens_at_once = _OPENING
    """How many episodes are worth opening at the same time: several where that waits for a network."""
    knows_signals = True
    """Whether the facts name the very signals an episode has once it is open."""

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""

    @abstractmethod
    def open(self, position: int) -> Episode:
        """The episode at a position that is there."""

    def facts(self) -> pa.Table:
        """One row per episode; overridden by sources that know them without opening every episode."""
        rows = []
        for position, episode_id in enumerate(self.ids):
            try:
                rows.append(facts_of(self.open(position)))
            except WarpError as error:
                rows.append({"id": episode_id, "problems": [str(error)]})
        return table_of(rows)

    def contents(self) -> list[str]:
        """What each episode holds, as `content_of` gives it: equal in every form one version is stored in.

        From the facts where they have it; an episode that cannot be read is called by its id.
        """
        contents = self.stated_contents()
        unknown = [position for position, content in enumerate(contents) if not content]
        computed = dict(zip(unknown, map_in_threads(self._content, unknown, self.opens_at_once), strict=True))
        return [content or computed[position] for position, content in enumerate(contents)]

    def stated_contents(self) -> list[str | None]:
        """The contents as far as they are known without opening an episode."""
        facts = self.facts() if self.has_facts else None
        if facts is None or "content" not in facts.column_names:
            return [None] * len(self.ids)
        contents: list[str | None] = facts.column("content").to_pylist()
        return contents

    def _content(self, position: int) -> str:
        try:
            return content_of(self.open(position))
        except (FormatError, BlobNotFoundError):  # other errors may be over in a moment, and are no identity
            return f"unreadable:{self.ids[position]}"

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:  # noqa: ARG002
        """The identity of these signals (None: of any) that are stored beside the episodes and not in `contents`.

        None where there are no such signals.
        """
        return None

    def origin(self, position: int) -> Origin:  # noqa: ARG002
        """Where an episode comes from, without opening it."""
        return Origin(self.name, None, None)

    def address(self) -> dict[str, Any] | None:
        """How the source is opened again, as JSON; None where it lives in memory only."""
        return None


class Episodes(Sequence[Episode]):
    """Episodes in an order. `[i]` is one, `["id"]` too; slices, `where`, `map`, `split` and `+` are Episodes."""

    def __init__(self, source: EpisodesSource, rows: Rows | None = None) -> None:
        self._source = source
        self._rows = rows
        self._facts: pa.Table | None = None

    @staticmethod
    def of(episodes: Iterable[Episode]) -> Episodes:
        """The episodes of a list."""
        if isinstance(episodes, str | bytes | Mapping) or not isinstance(episodes, Iterable):
            raise TypeError(f"a list of episodes was expected, not {type(episodes).__name__}")
        listed = list(episodes)
        for number, item in enumerate(listed):
            if not isinstance(item, Episode):
                hint = "; its in_time is one" if hasattr(item, "in_time") else ""
                raise TypeError(f"item {number} is no Episode, but {type(item).__name__}{hint}")
        return Episodes(_ListSource(listed))

    @property
    def source(self) -> EpisodesSource:
        """Where they come from; most callers do not need it."""
        return self._source

    @property
    def ids(self) -> list[str]:
        """The id of every episode, in order."""
        return list(self._select(self._source.ids))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is known of the set they are from as a whole; of some of its episodes it may not be true."""
        return self._source.metadata

    @property
    def is_whole(self) -> bool:
        """Whether these are all episodes of their source, in its order."""
        return self._rows is None or np.array_equal(self._rows, np.arange(len(self._source.ids)))

    def __len__(self) -> int:
        return len(self._source.ids) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, key: int | str) -> Episode: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> Episodes: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.open(key)
        index = resolve_index(key, len(self), "episode")
        if isinstance(index, int):
            return self._source.open(index if self._rows is None else int(self._rows[index]))
        rows = np.arange(index.start, index.stop, index.step) if isinstance(index, range) else index
        return Episodes(self._source, self._numbers()[rows])

    def __iter__(self) -> Iterator[Episode]:
        return (self[position] for position in range(len(self)))

    def open(self, episode_id: str | int) -> Episode:
        """The episode with this id; a number stands for the id with that many zeros before it.

        Where no id is a number, a number is a position.
        """
        return self[self.position(episode_id)]

    def position(self, episode_id: str | int) -> int:
        """Position of the episode that `open` opens."""
        wanted = str(episode_id)
        ids = self.ids
        for candidate in (wanted, wanted.zfill(12) if wanted.isdigit() else wanted):
            if candidate not in ids:
                continue
            if (count := ids.count(candidate)) > 1:
                raise KeyError(
                    f"{count} episodes are called {candidate!r} in {self._source.name}: take one by its position"
                )
            return ids.index(candidate)
        if wanted.isdigit() and int(wanted) < len(ids) and not any(known.isdigit() for known in ids):
            return int(wanted)
        alone = f", which has {ids[0]!r} alone" if len(ids) == 1 else ""
        raise KeyError(f"no episode {wanted!r} in {self._source.name}{alone}.{nearest(wanted, ids)}")

    def __add__(self, other: Episodes) -> Episodes:
        if not isinstance(other, Episodes):
            return NotImplemented
        return Episodes(_JoinedSource([self, other]))

    # What is known of them.

    @property
    def facts(self) -> pa.Table:
        """One row per episode: id, length, duration_s, task, success, total_reward, rates, every scalar static."""
        if self._facts is None:
            whole = self._source.facts()
            self._facts = whole if self._rows is None else whole.take(to_arrow(self._rows))
        return self._facts

    @property
    def contents(self) -> list[str]:
        """What each episode holds, in one word that is equal in every form one version is stored in."""
        return list(self._select(self._source.contents()))

    def stated_contents(self) -> list[str | None]:
        """The contents as far as they are known without opening an episode."""
        return list(self._select(self._source.stated_contents()))

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        """Identities of signals that models added beside the episodes; None where none of these is one."""
        whole = self._source.lane_contents(signals)
        return None if whole is None else list(self._select(whole))

    def origin(self, position: int) -> Origin:
        """Where an episode comes from, without opening it."""
        return self._source.origin(position if self._rows is None else int(self._rows[position]))

    def address(self) -> dict[str, Any] | None:
        """How these very episodes are opened again, as JSON; None where they live in memory only."""
        address = self._source.address()
        rows = None if self._rows is None else self._rows.tolist()
        return None if address is None else {**address, "rows": rows}

    def where(self, condition: str) -> Episodes:
        """The episodes whose facts satisfy a SQL condition, such as `task = 'pick' and success`."""
        return Episodes(self._source, self._numbers()[self.positions_where(condition)])

    def positions_where(self, condition: str) -> Rows:
        """Positions in this sequence of the episodes that satisfy a SQL condition, in order."""
        return matching_rows(self.facts, condition)

    def sql(self, query: str) -> SqlResult:
        """Run a SELECT over the table `episodes`: `select task, count(*) from episodes group by task`."""
        facts = self.facts
        return run_sql(query, {"episodes": arrow_source(list(facts.schema), lambda *_: iter([facts]))})

    def stats(self, signals: Sequence[str] | None = None) -> dict[str, SignalSummary]:
        """Count, mean, std, min, max and quantiles per signal over all episodes.

        From what was recorded where it suffices; `.read` counts the episodes whose data had to be read.
        """
        return summaries_of(self, signals)

    def map(self, change: Callable[[Episode], Mapping[str, Any] | Episode]) -> Episodes:
        """Every episode with the signals that `change` derives from it, made when an episode is opened.

        `change` gives signals by name (a Signal, or an array with one row per step), or a whole Episode.
        """
        return Episodes(_MappedSource(self, change))

    def split(self, *, seed: int = 0, **shares: float) -> Split:
        """Cut by chance: `train, rest = episodes.split(train=0.9)`; where an episode goes depends on its id only.

        Shares that do not add up to one leave a last part called `rest`.
        """
        return Split(self, shares, seed)

    def __repr__(self) -> str:
        return f"<Episodes {self._source.name}: {len(self)}>"

    def _repr_html_(self) -> str:
        return titled_card(repr(self), *self._html_rows(_SHOWN_ROWS))

    def _html_rows(self, most: int) -> tuple[str, str]:
        """A table of the first episodes, and how many more there are."""
        rows = []
        for position in range(min(len(self), most)):
            try:
                episode = self[position]
                about = [text(episode.static.get(name, "")) for name in ("task", "success")]
                rows.append([_thumbnail(episode), text(episode.id), f"{episode.duration_s:.2f} s", *about])
            except WarpError as error:
                rows.append(["", text(self.ids[position]), "", text(str(error)), ""])
        left = len(self) - len(rows)
        more = f"<p>and {left} more</p>" if left else ""
        return html_table(["", "id", "duration", "task", "success"], rows), more

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._source, self._rows))

    def _numbers(self) -> Rows:
        return np.arange(len(self._source.ids), dtype=np.int64) if self._rows is None else self._rows

    def _select(self, whole: Sequence[T]) -> Sequence[T]:
        """The items of these episodes, out of one item per episode of the source."""
        return whole if self._rows is None else [whole[row] for row in self._rows.tolist()]


def _thumbnail(episode: Episode) -> str:
    for signal in episode.signals.values():
        if is_camera(signal.meta) and len(signal):
            row = len(signal) // 2
            pixels = shrink_pixels(as_pixels(signal[row][0], limits_of(signal)), _THUMBNAIL_SIDE)
            return picture_html(pixels, f"frame {row}")
    return ""


class Split(tuple[Episodes, ...]):
    """The parts of a split in the order of the arguments; each also by its name."""

    names: tuple[str, ...]

    def __new__(cls, episodes: Episodes, shares: Mapping[str, float], seed: int) -> Split:
        known = [
            share for share in shares.values() if isinstance(share, int | float | np.number) and share >= 0
        ]
        total = sum(known)
        if not shares or len(known) < len(shares) or total > 1 + 1e-9:
            raise ValueError(f"shares are fractions that add up to at most 1, not {dict(shares)}")
        names = [*shares] if total > 1 - 1e-9 else [*shares, "rest"]
        edges = np.cumsum([*shares.values()][: len(names) - 1])
        # A number in [0, 1) for every id, which depends on nothing else but the seed.
        hashes = np.array([xxh64(episode_id.encode()) for episode_id in episodes.ids], np.uint64)
        chances = (splitmix64(hashes ^ np.uint64(stream_key(seed))) >> np.uint64(11)) / float(1 << 53)
        owner = np.searchsorted(edges, chances, side="right")
        parts = [episodes[np.flatnonzero(owner == number).tolist()] for number in range(len(names))]
        made = super().__new__(cls, parts)
        made.names = tuple(names)
        return made

    def __getattr__(self, name: str) -> Episodes:
        if name != "names" and name in self.names:
            return tuple.__getitem__(self, self.names.index(name))
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<Split {', '.join(f'{n}: {len(e)}' for n, e in zip(self.names, self, strict=True))}>"


class _ListSource(EpisodesSource):
    name = "a list"
    opens_at_once = 1

    def __init__(self, episodes: list[Episode]) -> None:
        self._episodes = episodes

    @property
    def ids(self) -> Sequence[str]:
        return [episode.id for episode in self._episodes]

    def open(self, position: int) -> Episode:
        return self._episodes[position]


class _JoinedSource(Reopens, EpisodesSource):
    def __init__(self, parts: Sequence[Episodes]) -> None:
        self._parts, sources = list(parts), [part.source for part in parts]
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.name = " + ".join(source.name for source in sources)
        self.has_facts = all(source.has_facts for source in sources)
        self.knows_signals = all(source.knows_signals for source in sources)
        self.opens_at_once = max((source.opens_at_once for source in sources), default=1)

    def _find(self, position: int) -> tuple[Episodes, int]:
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._parts[number], position - int(self._starts[number])

    @property
    def ids(self) -> Sequence[str]:
        return [episode_id for part in self._parts for episode_id in part.ids]

    def open(self, position: int) -> Episode:
        part, inside = self._find(position)
        return part[inside]

    def facts(self) -> pa.Table:
        return joined_tables([part.facts for part in self._parts])

    def contents(self) -> list[str]:
        return [content for part in self._parts for content in part.contents]

    def stated_contents(self) -> list[str | None]:
        return [content for part in self._parts for content in part.stated_contents()]

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        every = [part.lane_contents(signals) for part in self._parts]
        if not any(every):
            return None
        pairs = zip(self._parts, every, strict=True)
        return [content for part, contents in pairs for content in contents or [""] * len(part)]

    def origin(self, position: int) -> Origin:
        part, inside = self._find(position)
        return part.origin(inside)

    def address(self) -> dict[str, Any] | None:
        parts = [part.address() for part in self._parts]
        return None if None in parts else {"kind": "joined", "parts": parts}


def with_signals(episode: Episode, more: Mapping[str, Any] | Episode) -> Episode:
    """The episode with further signals by name: a Signal, or an array with one row per step."""
    if isinstance(more, Episode):
        return more
    if not isinstance(more, Mapping):
        raise TypeError(f"derived signals are {{name: rows}} or an Episode, not {type(more).__name__}")
    made: dict[str, Signal] = {}
    for name, value in more.items():
        if not isinstance(value, Signal):
            rows = as_array(value)
            value = ArraySignal(_derived_times(episode, name, rows), rows).named(name)
        made[name] = value
    return Episode(_with_more(episode.source, made))


def _with_more(inner: EpisodeSource, more: Mapping[str, Signal]) -> EpisodeSource:
    """An episode and signals computed from it, which stand before recorded ones of the same name."""
    known = inner.signals
    signals = LazySignals(lambda: [*known, *more], lambda name: more[name] if name in more else known[name])
    source = SourceAround(inner, signals)
    source.reopen_by(_with_more, inner, more)
    return source


def _derived_times(episode: Episode, name: str, rows: NDArray[Any]) -> NDArray[np.int64]:
    """The times of derived rows: those of the steps, or of the recorded signals that have as many rows."""
    hint = "give one row per step, or a Signal with its own times"
    shape = f"derived signal {name!r} has shape {rows.shape}"
    try:
        steps = episode.steps
    except NoStepsError:
        if rows.ndim == 0:
            raise ValueError(f"{shape}; {hint}") from None
        clocks = [signal.timestamps for signal in episode.signals.values() if len(signal) == len(rows)]
        if not clocks or any(not np.array_equal(clock, clocks[0]) for clock in clocks):
            raise ValueError(f"{shape}, and the episode has no steps for their times; {hint}") from None
        return np.asarray(clocks[0])
    if rows.ndim == 0 or len(rows) != steps.length:
        raise ValueError(f"{shape}; expected one row for each of {steps.length} steps; {hint}")
    return np.asarray(steps.times_ns)


class _MappedSource(Reopens, EpisodesSource):
    knows_signals = False

    def __init__(self, episodes: Episodes, change: Callable[[Episode], Any]) -> None:
        self._episodes, self._change, source = episodes, change, episodes.source
        self.name, self.has_facts, self.opens_at_once = (
            f"{source.name}, changed",
            source.has_facts,
            source.opens_at_once,
        )

    @property
    def ids(self) -> Sequence[str]:
        return self._episodes.ids

    def open(self, position: int) -> Episode:
        episode = self._episodes[position]
        return with_signals(episode, self._change(episode))

    def facts(self) -> pa.Table:
        return self._episodes.facts

    def contents(self) -> list[str]:
        return [f"{content}{self._more[at]}" for at, content in enumerate(self._episodes.contents)]

    def stated_contents(self) -> list[str | None]:
        contents = self._episodes.stated_contents()
        return [content and f"{content}{self._more[at]}" for at, content in enumerate(contents)]

    @cached_property
    def _more(self) -> list[str]:
        """The function applied to each episode, and the lanes it could read."""
        how = code_name(self._change)
        beside = self._episodes.lane_contents(None) or [""] * len(self._episodes)
        return [f" {lanes} {how}" if lanes else f" {how}" for lanes in beside]

    def origin(self, position: int) -> Origin:
        return self._episodes.origin(position)
