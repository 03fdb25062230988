"""Episodes in an order: one type for a root, a published version, a list, a slice, a filter, a concatenation."""

from __future__ import annotations

import functools
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array, resolve_index
from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.checksum import xxh64
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.episodes.collection.facts import facts_of, joined_tables, table_of
from warpdata.episodes.collection.summary import SignalSummary, summaries_of
from warpdata.episodes.forms.content import content_of
from warpdata.errors import BlobNotFoundError, FormatError, NoStepsError, WarpError, nearest
from warpdata.ordering.splitmix import splitmix64, stream_key
from warpdata.sql.engine import SqlResult, arrow_source, matching_rows, run_sql
from warpdata.timeline.cards import html_table, picture_html, text, titled
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of, shrunk
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import EpisodeSource, SourceAround

Rows = NDArray[np.int64]

_SHOWN_ROWS = 20
_THUMBNAIL_SIDE = 64
"""What a notebook shows of a sequence."""


_OPENING = 16
"""Episodes that are opened at the same time."""


class EpisodesSource(ABC):
    """Where episodes come from: their ids, a table of facts about each, and how to open one.

    It pickles to an address, not to data.
    """

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The id of every episode, in order."""

    @abstractmethod
    def open(self, position: int) -> Episode:
        """The episode at a position that is there."""

    def facts(self) -> pa.Table:
        """One row per episode; overridden by sources that know them without opening every episode."""
        return table_of([self._facts_at(position) for position in range(len(self.ids))])

    def _facts_at(self, position: int) -> dict[str, Any]:
        try:
            return facts_of(self.open(position))
        except WarpError as error:
            return {"id": self.ids[position], "problems": [str(error)]}

    @property
    def has_facts(self) -> bool:
        """Whether the facts are known without opening every episode."""
        return False

    @property
    def opens_at_once(self) -> int:
        """How many episodes are worth opening at the same time: several where that waits for a network."""
        return _OPENING

    def contents(self) -> list[str]:
        """What each episode holds, as `content_of` gives it: equal in every form one version is stored in.

        From the facts where they have it; an episode that cannot be read is called by its id.
        """
        stated = self.stated_contents()
        unknown = [position for position, each in enumerate(stated) if not each]
        found = dict(zip(unknown, map_in_threads(self._content, unknown, self.opens_at_once), strict=True))
        return [each or found[position] for position, each in enumerate(stated)]

    def stated_contents(self) -> list[str | None]:
        """The same as far as it is known without opening an episode."""
        facts = self.facts() if self.has_facts else None
        if facts is None or "content" not in facts.column_names:
            return [None] * len(self.ids)
        found: list[str | None] = facts.column("content").to_pylist()
        return found

    def _content(self, position: int) -> str:
        try:
            return content_of(self.open(position))
        except (FormatError, BlobNotFoundError):  # anything else may be over in a moment, and is no identity
            return f"unreadable:{self.ids[position]}"

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:  # noqa: ARG002
        """The identity of these signals (None: of any) that are stored beside the episodes and not in `contents`.

        None where no such signal does.
        """
        return None

    @property
    def knows_signals(self) -> bool:
        """Whether the facts speak of the very signals an episode has once it is open."""
        return True

    def origin(self, position: int) -> Origin:  # noqa: ARG002
        """Where an episode comes from, without opening it."""
        return Origin(self.name, None, None)

    def address(self) -> dict[str, Any] | None:
        """How the source is opened again, as JSON; None where it lives in memory only."""
        return None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is known of the set as a whole, as JSON values: by foreign format."""
        return {}

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode comes from: a dataset, which version of it, and the hash of the blob that holds it."""

    dataset: str
    version: str | None
    blob: str | None


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
        for number, each in enumerate(listed):
            if not isinstance(each, Episode):
                hint = "; its in_time is one" if hasattr(each, "in_time") else ""
                raise TypeError(f"item {number} is no Episode, but {type(each).__name__}{hint}")
        return Episodes(_ListSource(listed))

    @property
    def source(self) -> EpisodesSource:
        """Where they come from; most callers do not need it."""
        return self._source

    @property
    def ids(self) -> list[str]:
        """The id of every episode, in order."""
        ids = self._source.ids
        return list(ids) if self._rows is None else [ids[row] for row in self._rows.tolist()]

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
        found = resolve_index(key, len(self), "episode")
        if isinstance(found, int):
            return self._at(found)
        rows = np.arange(found.start, found.stop, found.step) if isinstance(found, range) else found
        return self._chosen(self._numbers()[rows])

    def __iter__(self) -> Iterator[Episode]:
        return (self._at(position) for position in range(len(self)))

    def open(self, episode_id: str | int) -> Episode:
        """The episode with this id; a number stands for the id with that many zeros before it.

        Where no id is a number, a number is a position.
        """
        return self._at(self.position(episode_id))

    def position(self, episode_id: str | int) -> int:
        """Path or URL of the episode that `open` opens."""
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
        if wanted.isdigit() and int(wanted) < len(ids) and not any(each.isdigit() for each in ids):
            return int(wanted)
        raise KeyError(f"no episode {wanted!r} in {self._source.name}.{nearest(wanted, ids)}")

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
        whole = self._source.contents()
        return whole if self._rows is None else [whole[row] for row in self._rows.tolist()]

    def stated_contents(self) -> list[str | None]:
        """The same as far as it is known without opening an episode."""
        whole = self._source.stated_contents()
        return whole if self._rows is None else [whole[row] for row in self._rows.tolist()]

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        """What stands for signals that models added beside the episodes; None where none of these is one."""
        whole = self._source.lane_contents(signals)
        return whole if whole is None or self._rows is None else [whole[row] for row in self._rows.tolist()]

    def origin(self, position: int) -> Origin:
        """Where an episode comes from, without opening it."""
        return self._source.origin(position if self._rows is None else int(self._rows[position]))

    def address(self) -> dict[str, Any] | None:
        """How these very episodes are opened again, as JSON; None where they live in memory only."""
        found = self._source.address()
        return (
            None if found is None else {**found, "rows": None if self._rows is None else self._rows.tolist()}
        )

    def where(self, condition: str) -> Episodes:
        """The episodes whose facts satisfy a SQL condition, such as `task = 'pick' and success`."""
        return self._chosen(self._numbers()[self.positions_where(condition)])

    def positions_where(self, condition: str) -> Rows:
        """Where in this sequence the episodes are that satisfy a SQL condition, in order."""

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
        rows = []
        for position in range(min(len(self), _SHOWN_ROWS)):
            try:
                episode = self._at(position)
                cameras = (
                    signal for signal in episode.signals.values() if is_camera(signal.meta) and len(signal)
                )
                picture = next(map(_thumbnail, cameras), "")
                about = [text(episode.static.get(name, "")) for name in ("task", "success")]
                rows.append([picture, text(episode.id), f"{episode.duration_s:.2f} s", *about])
            except WarpError as error:
                rows.append(["", text(self.ids[position]), "", text(str(error)), ""])
        left = len(self) - len(rows)
        more = f"<p>and {left} more</p>" if left else ""
        return titled(repr(self), html_table(["", "id", "duration", "task", "success"], rows), more)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._source, self._rows))

    def _at(self, position: int) -> Episode:
        return self._source.open(position if self._rows is None else int(self._rows[position]))

    def _numbers(self) -> Rows:
        return np.arange(len(self._source.ids), dtype=np.int64) if self._rows is None else self._rows

    def _chosen(self, rows: Rows) -> Episodes:
        return Episodes(self._source, rows)


def _thumbnail(signal: Signal) -> str:
    row = len(signal) // 2
    return picture_html(shrunk(as_pixels(signal[row][0], limits_of(signal)), _THUMBNAIL_SIDE), f"frame {row}")


class Split(tuple[Episodes, ...]):
    """The parts of a split in the order of the arguments; each also by its name."""

    names: tuple[str, ...]

    def __new__(cls, episodes: Episodes, shares: Mapping[str, float], seed: int) -> Split:
        known = [each for each in shares.values() if isinstance(each, int | float | np.number) and each >= 0]
        total = sum(known)
        if not shares or len(known) < len(shares) or total > 1 + 1e-9:
            raise ValueError(f"shares are fractions that add up to at most 1, not {dict(shares)}")
        names = [*shares] if total > 1 - 1e-9 else [*shares, "rest"]
        edges = np.cumsum([*shares.values()][: len(names) - 1])
        chances = _chances(episodes.ids, seed)
        owner = np.searchsorted(edges, chances, side="right")
        made = super().__new__(
            cls, [episodes[np.flatnonzero(owner == number).tolist()] for number in range(len(names))]
        )
        made.names = tuple(names)
        return made

    def __getattr__(self, name: str) -> Episodes:
        if name != "names" and name in self.names:
            return tuple.__getitem__(self, self.names.index(name))
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<Split {', '.join(f'{n}: {len(e)}' for n, e in zip(self.names, self, strict=True))}>"


def _chances(ids: Sequence[str], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every id, which depends on nothing else but the seed."""
    hashes = np.array([xxh64(each.encode()) for each in ids], np.uint64)
    return (splitmix64(hashes ^ np.uint64(stream_key(seed))) >> np.uint64(11)) / float(1 << 53)


class _ListSource(EpisodesSource):
    def __init__(self, episodes: list[Episode]) -> None:
        self._episodes = episodes

    @property
    def opens_at_once(self) -> int:
        return 1  # they are open

    @property
    def ids(self) -> Sequence[str]:
        return [episode.id for episode in self._episodes]

    def open(self, position: int) -> Episode:
        return self._episodes[position]

    @property
    def name(self) -> str:
        return "a list"


class _JoinedSource(EpisodesSource):
    def __init__(self, parts: Sequence[Episodes]) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    @property
    def ids(self) -> Sequence[str]:
        return [each for part in self._parts for each in part.ids]

    def open(self, position: int) -> Episode:
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._parts[number][position - int(self._starts[number])]

    def facts(self) -> pa.Table:
        return joined_tables([part.facts for part in self._parts])

    def contents(self) -> list[str]:
        return [each for part in self._parts for each in part.contents]

    def stated_contents(self) -> list[str | None]:
        return [each for part in self._parts for each in part.stated_contents()]

    @property
    def has_facts(self) -> bool:
        return all(part.source.has_facts for part in self._parts)

    @property
    def opens_at_once(self) -> int:
        return max((part.source.opens_at_once for part in self._parts), default=1)

    def lane_contents(self, signals: Collection[str] | None) -> list[str] | None:
        parts = [part.lane_contents(signals) for part in self._parts]
        if not any(parts):
            return None
        filled = [
            [""] * len(part) if found is None else found
            for part, found in zip(self._parts, parts, strict=True)
        ]
        return [each for found in filled for each in found]

    @property
    def knows_signals(self) -> bool:
        return all(part.source.knows_signals for part in self._parts)

    def origin(self, position: int) -> Origin:
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._parts[number].origin(position - int(self._starts[number]))

    def address(self) -> dict[str, Any] | None:
        parts = [part.address() for part in self._parts]
        return None if None in parts else {"kind": "joined", "parts": parts}

    @property
    def name(self) -> str:
        return " + ".join(part.source.name for part in self._parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_JoinedSource, (self._parts,))


def with_signals(episode: Episode, more: Mapping[str, Any] | Episode) -> Episode:
    """The episode with further signals by name: a Signal, or an array with one row per step."""
    if isinstance(more, Episode):
        return more
    if not isinstance(more, Mapping):
        raise TypeError(f"derived signals are {{name: rows}} or an Episode, not {type(more).__name__}")
    made: dict[str, Signal] = {}
    for name, value in more.items():
        if isinstance(value, Signal):
            made[name] = value
            continue
        rows = as_array(value)
        made[name] = ArraySignal(_times_ns(episode, name, rows), rows).named(name)
    return Episode(DerivedSource(episode.source, made))


def _times_ns(episode: Episode, name: str, rows: NDArray[Any]) -> NDArray[np.int64]:
    """The times of derived rows: those of the steps, or of the recorded signals that have as many rows."""
    hint = "give one row per step, or a Signal with its own times"
    try:
        steps = episode.steps
    except NoStepsError:
        if rows.ndim == 0:
            raise ValueError(f"derived signal {name!r} has shape {rows.shape}; {hint}") from None
        clocks = [signal.timestamps for signal in episode.signals.values() if len(signal) == len(rows)]
        if not clocks or any(not np.array_equal(clock, clocks[0]) for clock in clocks):
            raise ValueError(
                f"derived signal {name!r} has {len(rows)} rows, and the episode no steps to tell their times; {hint}"
            ) from None
        return np.asarray(clocks[0])
    if rows.ndim == 0 or len(rows) != steps.length:
        raise ValueError(
            f"derived signal {name!r} has shape {rows.shape}; expected one row for each of {steps.length} steps; {hint}"
        )
    return np.asarray(steps.times_ns)


class DerivedSource(Reopens, SourceAround):
    """An episode and signals computed from it, which stand before recorded ones of the same name."""

    def __init__(self, inner: EpisodeSource, more: Mapping[str, Signal]) -> None:
        super().__init__(inner)
        self._more = dict(more)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """Recorded and derived signals."""
        return {**self.inner.signals, **self._more}


class _MappedSource(EpisodesSource):
    def __init__(self, episodes: Episodes, change: Callable[[Episode], Any]) -> None:
        self._episodes = episodes
        self._change = change

    @property
    def ids(self) -> Sequence[str]:
        return self._episodes.ids

    def open(self, position: int) -> Episode:
        episode = self._episodes[position]
        return with_signals(episode, self._change(episode))

    def facts(self) -> pa.Table:
        return self._episodes.facts

    @property
    def has_facts(self) -> bool:
        return self._episodes.source.has_facts

    @property
    def opens_at_once(self) -> int:
        return self._episodes.source.opens_at_once

    def contents(self) -> list[str]:
        return [f"{each}{self._more[position]}" for position, each in enumerate(self._episodes.contents)]

    def stated_contents(self) -> list[str | None]:
        stated = self._episodes.stated_contents()
        return [each and f"{each}{self._more[position]}" for position, each in enumerate(stated)]

    @cached_property
    def _more(self) -> list[str]:
        """What was done to each episode, and which lanes were there to do it with."""
        how = code_name(self._change)
        beside = self._episodes.lane_contents(None) or [""] * len(self._episodes)
        return [f" {lanes} {how}" if lanes else f" {how}" for lanes in beside]

    @property
    def knows_signals(self) -> bool:
        return False

    def origin(self, position: int) -> Origin:
        return self._episodes.origin(position)

    @property
    def name(self) -> str:
        return f"{self._episodes.source.name}, changed"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_MappedSource, (self._episodes, self._change))


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INSTALLED = ("site-packages", "dist-packages")


def code_name(function: Any) -> str:
    """A text that changes when the function, a helper it calls or a global it reads changes.

    Code of installed libraries counts by name. State that Python cannot show, such as the weights of a model, does not
    count: such functions need a revision from their caller.
    """
    return _Identity().name_of(function)


class _Identity:
    """One walk over the code that a function reaches; each piece is visited once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def name_of(self, function: Any) -> str:
        """Name and hash of a callable."""
        if isinstance(function, functools.partial):
            given = [self.text_of(each) for each in (function.args, function.keywords)]
            return f"partial({self.name_of(function.func)}, {_short(''.join(given))})"
        inner = getattr(function, "__func__", function)
        kind = inner if isinstance(inner, type | FunctionType) else type(inner)
        name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', kind.__qualname__)}"
        if id(inner) in self._seen:
            return f"{name}#{self._seen[id(inner)]}"
        self._seen[id(inner)] = len(self._seen)
        if _is_library(kind.__module__) and isinstance(inner, type | FunctionType):
            return name
        if isinstance(inner, type):
            return f"{name}:{_short(self._class(inner))}"
        if isinstance(inner, FunctionType):
            return f"{name}:{_short(self._function(inner))}"
        state = sorted(getattr(inner, "__dict__", {}).items())
        code = "" if _is_library(kind.__module__) else self._class(type(inner))
        return f"{name}:{_short(code + self.text_of(state))}"

    def text_of(self, value: Any) -> str:
        """A text for a value that code reads: its content where that is plain data, else its type."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes().hex()
            return f"{array.dtype}{array.shape}{_short(data)}"
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, Mapping):
            return str([(self.text_of(key), self.text_of(each)) for key, each in value.items()])
        if isinstance(value, list | tuple):
            return str([self.text_of(each) for each in value])
        if isinstance(value, set | frozenset):
            return str(sorted(self.text_of(each) for each in value))
        if callable(value):
            return self.name_of(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"

    def _function(self, function: FunctionType) -> str:
        cells = [self.text_of(each.cell_contents) for each in function.__closure__ or ()]
        values = [self.text_of(function.__defaults__), self.text_of(function.__kwdefaults__), *cells]
        read = [f"{name}={self.text_of(value)}" for name, value in _globals_of(function)]
        return _code_text(function.__code__) + "".join([*values, *read])

    def _class(self, kind: type) -> str:
        """Methods and plain attributes of a class and of its bases outside of Python and of libraries."""
        parts = []
        for base in kind.__mro__:
            if _is_library(base.__module__):
                continue
            for name, value in sorted(vars(base).items()):
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(inner, FunctionType):
                    parts.append(f"{name}:{self._function(inner)}")
                elif isinstance(value, _PLAIN) and not name.startswith("__"):
                    parts.append(f"{name}={value!r}")
        return "\n".join(parts)


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Globals that the code names, and what it names in modules of the user."""
    names = sorted(_names_in(function.__code__))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            yield from ((f"{name}.{each}", vars(value)[each]) for each in names if each in vars(value))


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _is_library(module: str) -> bool:
    """Whether a module is part of Python or installed, so that its name stands for its code."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return top == "warpdata" or any(folder in path for folder in _INSTALLED)


def _code_text(code: CodeType) -> str:
    constants = [
        _code_text(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each)))
        if isinstance(each, frozenset)
        else repr(each)
        for each in code.co_consts
    ]
    return f"{code.co_code.hex()}{constants}{code.co_names}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
