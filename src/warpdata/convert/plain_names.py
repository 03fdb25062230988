"""Names of foreign signals and static items: changed to names that episodes can have, and back for exports."""

from __future__ import annotations

from collections.abc import Container, Mapping

from warpdata.formats.episodedir.documents import check_name, plain_part
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import LazySignals, SourceAround

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


class RenamedSource(SourceAround):
    """An episode with other names for some signals and static items; `renamed` maps new names to old ones."""

    def __init__(self, episode: Episode, renamed: Mapping[str, str]) -> None:
        inner, new = episode.source, {old: name for name, old in renamed.items()}
        names, open_signal = inner.signals, lambda name: inner.signals[renamed.get(name, name)]
        signals = LazySignals(lambda: [new.get(name, name) for name in names], open_signal)
        static = lambda: {new.get(name, name): value for name, value in inner.static.items()}  # noqa: E731
        super().__init__(inner, signals, static=static)
        self.renamed = renamed


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
