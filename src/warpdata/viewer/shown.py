"""What a viewer shows: episodes in an order, wherever they come from, what is known of each, and how to change them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata._api import divided_address, open_episodes
from warpdata._api import open as open_address
from warpdata.bytekit.process.forks import ThreadLock
from warpdata.episodes.collection.draft import Draft, DraftSource
from warpdata.episodes.collection.edits import Edits
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.facts import facts_of
from warpdata.episodes.collection.local import SUFFIX, LocalDataset, LocalSource, open_live
from warpdata.episodes.salvage.live import LiveEpisode
from warpdata.errors import WarpError
from warpdata.formats.journal.layout import WORK_SUFFIX
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.timeline.episode import Episode
from warpdata.viewer.moments import Moments, NoMoments, as_published, find_moments
from warpdata.viewer.tracks import outliers_in

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

Rows = NDArray[np.int64]

LISTED = ("id", "length", "duration_s", "task", "success", "total_reward", "env_id", "problems")
"""The facts a row of the list shows."""

_KEPT_SELECTIONS = 16


class ShownEpisodes:
    """The episodes at one moment: nothing in it changes, so any number of requests may read it."""

    def __init__(
        self, episodes: Episodes, unfinished: Mapping[str, Path], generation: int, edits: int = 0
    ) -> None:
        """`unfinished`: the directories of recordings under way, by id."""
        self.episodes = episodes
        self.generation = generation
        self.edits = edits
        self.ids = episodes.ids
        self.unfinished = dict(unfinished)
        self._live: dict[str, LiveEpisode] = {}
        self._position = {name: at for at, name in enumerate(self.ids)}
        self._lock = ThreadLock()
        self._reading = ThreadLock()
        self._facts: Any = None
        self._outliers: dict[str, list[str]] | None = None
        self._chosen: OrderedDict[tuple[str, str, bool], Rows] = OrderedDict()

    def open(self, episode_id: str) -> Episode:
        """The episode of this id; of one that is being recorded, what can be read by now."""
        if episode_id in self.unfinished:
            with self._lock:
                if episode_id not in self._live:
                    self._live[episode_id] = LiveEpisode(self.unfinished[episode_id])
                live = self._live[episode_id]
            return live.refresh()
        return self.episodes[self.position(episode_id)]

    def position(self, episode_id: str) -> int:
        """Where an episode stands, or KeyError."""
        if episode_id not in self._position:
            raise KeyError(f"no episode {episode_id!r} here")
        return self._position[episode_id]

    def edits_of(self, episode_id: str) -> object:
        """How an episode is edited, to compare with another moment; None where nothing edits these."""
        source = self.episodes.source
        if not isinstance(source, LocalSource | DraftSource):
            return None
        return source.entries[self.position(episode_id)]

    def facts(self) -> Any:
        """The table of facts, made once; of very many episodes that are new it takes a while."""
        with self._reading:
            if self._facts is None:
                self._facts = self.episodes.facts
            return self._facts

    @property
    def has_facts(self) -> bool:
        """Whether the table of facts is made."""
        return self._facts is not None

    def choose(self, where: str, sort: str, *, descending: bool) -> Rows:
        """The positions of the episodes that satisfy a condition, in an order."""
        key = (where, sort, descending)
        with self._lock:
            if key in self._chosen:
                self._chosen.move_to_end(key)
                return self._chosen[key]
        made = np.arange(len(self.ids), dtype=np.int64)
        if where.strip():
            _ = self.facts()  # read once, under the lock
            # By position, not by name: two episodes of a joined sequence may have the same id.
            made = self.episodes.positions_where(where).astype(np.int64)
        if sort:
            if sort not in self.facts().column_names:
                raise KeyError(f"no column {sort!r} to sort by")
            values = self.facts().column(sort).to_pylist()
            made = made[_order([values[row] for row in made.tolist()], descending=descending)]
        elif descending:
            made = made[::-1]
        with self._lock:
            self._chosen[key] = made
            while len(self._chosen) > _KEPT_SELECTIONS:
                self._chosen.popitem(last=False)
        return made

    def outliers(self) -> dict[str, list[str]]:
        """The episodes that are far from the others, and in what; none until the table of facts is made."""
        if self._outliers is None and self.has_facts:
            self._outliers = outliers_in(self.facts(), self.ids)
        return self._outliers or {}

    def list_rows(self, rows: Rows) -> list[dict[str, Any]]:
        """Rows of the list for these episodes; each is opened until the table of all is ready."""
        if not self.has_facts:
            facts = [facts_of(self.episodes[int(row)]) for row in rows.tolist()]
            return [{name: row[name] for name in LISTED if name in row} for row in facts]
        facts = self.facts()
        columns = {name: facts.column(name) for name in LISTED if name in facts.column_names}
        # One by one: `take` would load the whole of pyarrow.compute before the first rows are seen.
        return [{name: column[row].as_py() for name, column in columns.items()} for row in rows.tolist()]


def _order(values: Sequence[Any], *, descending: bool) -> Rows:
    """Positions in the order of their values; what has none comes last either way."""
    known = [at for at, value in enumerate(values) if value is not None]
    kinds = {isinstance(values[at], int | float) for at in known}
    key = (lambda at: values[at]) if len(kinds) == 1 else (lambda at: str(values[at]))
    ordered = sorted(known, key=key, reverse=descending)
    return np.array([*ordered, *(at for at, value in enumerate(values) if value is None)], np.int64)


class Shown:
    """The thing a viewer was opened on."""

    def __init__(
        self,
        thing: Any,
        *,
        draft: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        catalog: str | os.PathLike[str] | None = None,
    ) -> None:
        self.selected: str | None = None
        self._catalog = catalog
        self.address = os.fspath(thing) if isinstance(thing, str | os.PathLike) else ""
        self._thing = self._opened(thing)
        self._draft: Draft | None = None
        self._draft_folder = draft
        self._lock = ThreadLock()
        self.snapshot = self._look(0)
        self._open_moments = find_moments(self._thing, self._folder(), index)
        self._moments: Moments | None = None

    @property
    def name(self) -> str:
        """Display name: the dataset with its version, or the path."""
        if (dataset := self.published) is not None:
            return f"{dataset.id}@{dataset.version[:12]}"
        if self.address:
            return self.address
        return self._thing.source.name if isinstance(self._thing, Episodes) else self._thing.id or "episode"

    @property
    def root(self) -> Path | None:
        """The root of recordings on this machine, where there is one."""
        thing = self._thing
        if isinstance(thing, LocalDataset) and isinstance(thing.folder, Path):
            return thing.folder
        return None

    @property
    def is_here(self) -> bool:
        """Whether reading all of it costs no network."""
        return self.root is not None or (bool(self.address) and os.path.exists(self.address))

    @property
    def refusal(self) -> str | None:
        """Why nothing can be changed here; None if it can."""
        if self.published is not None:
            return None
        if self.root is None:
            what = "one episode" if isinstance(self._thing, Episode) else "these episodes"
            return f"{what} can only be read: open a root of recordings or a published dataset to edit"
        if not os.access(self.root, os.W_OK):
            return f"{self.root} is read-only"
        return "the edit log belongs to another program" if self.edits.is_foreign else None

    @property
    def edits(self) -> Edits:
        """The edit log: of the root, or of the draft of a published dataset."""
        if isinstance(self._thing, LocalDataset):
            return self._thing.edits
        if self._draft is None:
            raise ValueError("there is no edit log here")
        return self._draft

    @property
    def draft_folder(self) -> Path | None:
        """Where edits of a published dataset are kept until they are published."""
        return None if self._draft is None else self._draft.folder

    def open(self, episode_id: str) -> Episode:
        """An episode by its id."""
        return self.snapshot.open(episode_id)

    @property
    def published(self) -> Dataset | None:
        """The dataset, where it is a published one."""
        return as_published(self._thing)

    @property
    def has_moments(self) -> bool:
        """Whether a vector index of these episodes exists; one may be made while the viewer runs."""
        if self._open_moments is None:
            self._open_moments = find_moments(self._thing, self._folder(), None)
        return self._open_moments is not None

    def moments(self) -> Moments:
        """The vector index, opened at its first use."""
        if not self.has_moments or self._open_moments is None:
            raise NoMoments("there is no vector index of these episodes: make one with wd.TrajectoryIngestor")
        with self._lock:
            if self._moments is None:
                self._moments = self._open_moments()
            return self._moments

    def _folder(self) -> Path | None:
        """Its path on this disk, if it has one."""
        if self.root is not None:
            return self.root
        return Path(self.address) if self.address and os.path.exists(self.address) else None

    def refresh(self) -> bool:
        """Look again; True where something changed."""
        with self._lock:
            before = self.snapshot
            if (dataset := self.published) is not None:  # what was published stays: only the draft grows
                self._draft = self._draft_of(dataset)
                if len(self._draft.log) == before.edits:
                    return False
            elif isinstance(self._thing, LocalDataset):
                self._thing = LocalDataset(self._thing.folder)
            elif isinstance(self._thing, LiveEpisode) and not self._thing.path.exists():
                self._thing = self._opened(self.address)
            else:
                return False
            now = self._look(before.generation + 1)
            if all(getattr(now, name) == getattr(before, name) for name in ("ids", "unfinished", "edits")):
                return False
            self.snapshot = now
            return True

    def show_changes(self) -> None:
        """Show what an edit changed."""
        with self._lock:
            if isinstance(self._thing, LocalDataset):
                self._thing = LocalDataset(self._thing.folder)
            self.snapshot = self._look(self.snapshot.generation + 1)

    def _look(self, generation: int) -> ShownEpisodes:
        thing, dataset = self._thing, self.published
        if dataset is not None:
            self._draft = self._draft or self._draft_of(dataset)
            return ShownEpisodes(self._draft.episodes(), {}, generation, len(self._draft.log))
        if isinstance(thing, LocalDataset):
            places = [Path(str(place)) for place in thing.unfinished_places]
            unfinished = {path.name: path for path in places}
            return ShownEpisodes(thing, unfinished, generation, len(thing.edits.log))
        if isinstance(thing, LiveEpisode):
            return ShownEpisodes(Episodes.of([]), {thing.id: thing.path}, generation)
        assert isinstance(thing, Episode | Episodes)
        return ShownEpisodes(thing if isinstance(thing, Episodes) else Episodes.of([thing]), {}, generation)

    def _draft_of(self, dataset: Dataset) -> Draft:
        here = f"{dataset.id.replace('/', '-')}-{dataset.version[:12]}.draft"
        folder = here if self._draft_folder is None else self._draft_folder
        return Draft(dataset.episodes, folder, of=f"{dataset.id}@{dataset.version}")

    def _opened(self, thing: Any) -> Episode | Episodes | Dataset | LiveEpisode:
        if isinstance(thing, WShardEpisode):
            thing = thing.in_time
        if isinstance(thing, str | os.PathLike):
            text = os.fspath(thing)
            base, inside = divided_address(text)
            if inside is not None:
                self.address = base
                # An unknown id is an error that lists the ids.
                self.selected = open_episodes(base, catalog=self._catalog).open(inside).id
                thing = open_address(base, catalog=self._catalog)
            elif text.endswith(SUFFIX) and os.path.isdir(f"{text}{WORK_SUFFIX}"):
                thing = open_live(text)  # one file that is being recorded
            else:
                thing = open_address(text, catalog=self._catalog)
        if isinstance(thing, Episode | Episodes | LiveEpisode):
            return thing
        if (dataset := as_published(thing)) is not None:
            return dataset
        raise ValueError(f"{thing!r:.80} holds no episodes to view; look at it with `warp inspect`")


def make_edit(edits: Edits, op: str, ask: Mapping[str, Any]) -> Any:
    """Make one edit requested by a page; ValueError or KeyError for missing values."""
    if op in ("undo", "redo"):
        seq = ask.get("seq")
        return edits.redo() if op == "redo" else edits.undo(None if seq is None else int(seq))
    episode = str(ask["episode"])
    if op == "trim":
        start, end = (None if ask.get(key) is None else int(ask[key]) for key in ("start_ns", "end_ns"))
        return edits.trim(episode, start, end)
    if op == "split":
        return edits.split(episode, int(ask["at_ns"]))
    if op == "mark":
        name, value = str(ask["name"]), ask["value"]
        if not isinstance(value, bool | int | float | str):
            raise ValueError("a mark is a text, a number, true or false")
        return edits.set_static(episode, name, value)
    if op in ("drop", "undrop"):
        return edits.drop(episode) if op == "drop" else edits.undrop(episode)
    raise ValueError(f"no edit is called {op!r}")


def describe_error(error: Exception) -> tuple[str, str]:
    """Message and hint of an error."""
    if isinstance(error, WarpError):
        return str(error), error.hint
    return (str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)), ""
