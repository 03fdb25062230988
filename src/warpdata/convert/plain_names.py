"""Signals and static items of foreign sets under names that episodes can have, and under their own when they go out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.formats.episodedir.documents import check_name
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import ReadOnlyDict, SourceAround

RENAMED = "renamed"
"""In the notes of an imported episode: the name that a signal or a static item has here -> the one it had."""
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


def plain_name(name: str) -> str:
    """A name of another program as the name of a signal: no `/` in front, other letters as `_`."""
    parts = [_OTHER.sub("_", part) for part in name.split("/") if part]
    made = "/".join(part if set(part) != {"."} else "_" for part in parts) or "_"
    try:
        return check_name(made)
    except ValueError:
        return "/".join(f"_{part}" for part in parts)


def _is_plain(name: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def _changes(names: Iterable[str]) -> dict[str, str]:
    """A new name -> the old one, for those that cannot stay."""
    names = list(names)
    taken = {name for name in names if _is_plain(name)}
    found: dict[str, str] = {}
    for name in names:
        if name in taken:
            continue
        base = chosen = plain_name(name)
        again = 2
        while chosen in taken:
            chosen, again = f"{base}.{again}", again + 1
        taken.add(chosen)
        found[chosen] = name
    return found


class Renamed(SourceAround):
    """An episode some of whose signals and static items have other names."""

    def __init__(self, episode: Episode, renamed: Mapping[str, str]) -> None:
        super().__init__(episode.source)
        self._episode = episode
        self.renamed = renamed
        """The new name -> the one behind it."""

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """The signals of the episode in their order."""
        return ReadOnlyDict(self._under_new(self._episode.signals))

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """The static items of the episode in their order."""
        return ReadOnlyDict(self._under_new(self._episode.static))

    def _under_new(self, found: Mapping[str, Any]) -> dict[str, Any]:
        new = {old: name for name, old in self.renamed.items()}
        return {new.get(name, name): value for name, value in found.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Renamed, (self._episode, self.renamed))


def under_plain_names(episode: Episode) -> Episode:
    """The episode with names that recordings and shards can have; the very same where all are such."""
    changes = _changes(dict.fromkeys([*episode.signals, *episode.static]))
    return Episode(Renamed(episode, changes)) if changes else episode


def names_behind(episode: Episode) -> Mapping[str, str]:
    """What `under_plain_names` changed: the name here -> the one of the source."""
    return episode.source.renamed if isinstance(episode.source, Renamed) else {}


def under_own_names(episodes: Episodes) -> Episodes:
    """Episodes with the names that they had before they were imported."""
    return Episodes(_OwnNames(episodes.source), episodes._rows)


class _OwnNames(EpisodesSource):
    def __init__(self, inner: EpisodesSource) -> None:
        self._inner = inner

    @property
    def ids(self) -> Sequence[str]:
        return self._inner.ids

    def open(self, position: int) -> Episode:
        episode = self._inner.open(position)
        told = episode.meta.get("import")
        renamed = told.get(RENAMED) if isinstance(told, Mapping) else None
        if not isinstance(renamed, Mapping):
            return episode
        old = {str(name): here for here, name in renamed.items() if isinstance(name, str)}
        return Episode(
            Renamed(episode, {name: here for name, here in old.items() if _is_free(episode, name)})
        )

    def facts(self) -> Any:
        return self._inner.facts()

    @property
    def has_facts(self) -> bool:
        return self._inner.has_facts

    @property
    def knows_signals(self) -> bool:
        return self._inner.knows_signals

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._inner.metadata

    @property
    def name(self) -> str:
        return self._inner.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (_OwnNames, (self._inner,))


def _is_free(episode: Episode, name: str) -> bool:
    return name not in episode.signals and name not in episode.static
