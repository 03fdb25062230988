"""Names of foreign signals and static items: changed to names that episodes can have, and back for exports."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.formats.episodedir.documents import check_name, plain_part
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import ReadOnlyDict, SourceAround

RENAMED = "renamed"
"""Key in the import notes of an episode: name of a signal or static item here -> its name in the source."""


def plain_name(name: str) -> str:
    """A foreign name as the name of a signal: without leading `/`, other characters replaced by `_`."""
    parts = [plain_part(part) for part in name.split("/") if part]
    plain = "/".join(parts) or "_"
    return plain if _is_plain(plain) else "/".join(f"_{part}" for part in parts)


def _is_plain(name: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken."""
    chosen, number = name, 2
    while chosen in taken:
        chosen, number = f"{name}.{number}", number + 1
    return chosen


class RenamedSource(Reopens, SourceAround):
    """An episode with other names for some signals and static items; `renamed` maps new names to old ones."""

    def __init__(self, episode: Episode, renamed: Mapping[str, str]) -> None:
        super().__init__(episode.source)
        self.renamed = renamed

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """The signals of the episode in their order."""
        return self._rename(self.inner.signals)

    @cached_property
    def static(self) -> Mapping[str, Any]:
        """The static items of the episode in their order."""
        return self._rename(self.inner.static)

    def _rename(self, items: Mapping[str, Any]) -> ReadOnlyDict:
        new = {old: name for name, old in self.renamed.items()}
        return ReadOnlyDict({new.get(name, name): value for name, value in items.items()})


def with_plain_names(episode: Episode) -> Episode:
    """The episode with names that recordings and shards can have; unchanged if all its names are such."""
    names = list(dict.fromkeys([*episode.signals, *episode.static]))
    taken = {name for name in names if _is_plain(name)}
    renamed: dict[str, str] = {}
    for name in names:
        if name not in taken:
            new = free_name(plain_name(name), taken)
            taken.add(new)
            renamed[new] = name
    return Episode(RenamedSource(episode, renamed)) if renamed else episode


def names_behind(episode: Episode) -> Mapping[str, str]:
    """Names that `with_plain_names` changed: name here -> name in the source."""
    return episode.source.renamed if isinstance(episode.source, RenamedSource) else {}


def with_own_names(episode: Episode) -> Episode:
    """The episode with the names that it had before its import."""
    notes = episode.meta.get("import")
    renamed = notes.get(RENAMED) if isinstance(notes, Mapping) else None
    if not isinstance(renamed, Mapping):
        return episode
    names = {*episode.signals, *episode.static}
    old = {str(name): here for here, name in renamed.items() if isinstance(name, str)}
    return Episode(RenamedSource(episode, {name: old[name] for name in old if name not in names}))
