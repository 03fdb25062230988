"""Edits of episodes that cannot be changed in place: a log in a folder of its own, applied while reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.commit import map_os_errors, write_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import Reopens
from warpdata.episodes.collection.edits import EditedSource, Edits, Effect, EpisodeEntry
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.errors import ConflictError, CorruptLayoutError, nearest
from warpdata.formats.episodedir.documents import parse_document, read_document
from warpdata.timeline.episode import Episode

DRAFT_FILE = "draft.json"
"""Beside the log: the version that its positions are counted in."""


def draft_source(folder: str | os.PathLike[str]) -> str | None:
    """The version that a folder is a draft of, as `workspace/name@version`; None if it is not a draft yet."""
    draft = read_document(Path(folder), DRAFT_FILE, parse_document)
    if draft is None:
        return None
    stated = draft.get("of")
    if not isinstance(stated, str):
        path = Path(folder, DRAFT_FILE)
        raise CorruptLayoutError("the file does not name the source of the draft", path=path)
    return stated


class Draft(Edits):
    """Edits of episodes that are not published yet; in the log an episode is named by its position."""

    def __init__(self, episodes: Episodes, folder: str | os.PathLike[str], *, of: str) -> None:
        self.folder = Path(os.path.abspath(folder))
        stated = draft_source(self.folder)
        if stated not in (None, of):
            raise ConflictError(
                f"the draft holds edits of {stated}, not of {of}",
                path=self.folder,
                hint="Publish or view that version, or choose another folder for the draft.",
            )
        super().__init__(self.folder)
        self._episodes = episodes
        self._of = of

    def episodes(self) -> Episodes:
        """The episodes as the draft shows them."""
        if not self.log:
            return self._episodes
        return Episodes(DraftSource(self._episodes, self.apply(range(len(self._episodes)))))

    @property
    def dropped(self) -> list[str]:
        """The episodes that the draft hides, by their names in the sequence."""
        ids = self._episodes.ids
        return [_shown_name(entry_id, ids) for entry_id in super().dropped]

    def _log_name(self, episode_id: str | int) -> str:
        ids = self._episodes.ids
        for entry in self._fold(self.log, range(len(ids))):
            if _shown_name(entry.id, ids) == str(episode_id):
                return entry.id
        raise KeyError(
            f"no episode {episode_id!r} in {self._episodes.source.name}.{nearest(str(episode_id), ids)}"
        )

    def _numbers_in(self, edit: dict[str, Any]) -> list[int]:
        return self._mentioned(edit)

    def _mentioned(self, edit: dict[str, Any]) -> list[int]:  # noqa: ARG002 - all of them
        return list(range(len(self._episodes)))

    def _open(self, entry: EpisodeEntry) -> Episode:
        return _open_entry(entry, self._episodes)

    def _try_to_add(self, edit: dict[str, Any], *, dry_run: bool) -> Effect:
        if not dry_run:
            with map_os_errors(self._here):
                self._here.mkdir(parents=True, exist_ok=True)
            if draft_source(self._here) is None:
                write_file(self._here / DRAFT_FILE, dump_json({"of": self._of}))
        return super()._try_to_add(edit, dry_run=dry_run)


class DraftSource(Reopens, EpisodesSource):
    """Episodes of a sequence as edits show them."""

    ids: Sequence[str] = ()

    def __init__(self, episodes: Episodes, entries: Sequence[EpisodeEntry]) -> None:
        self._episodes, self.entries, known = episodes, entries, episodes.ids
        self.ids = [_shown_name(entry.id, known) for entry in entries]
        self.name = f"{episodes.source.name}, edited"

    def open(self, position: int) -> Episode:
        """The episode at a position."""
        entry = self.entries[position]
        if entry.is_plain:
            return self._episodes[entry.parts[0].number]
        return _open_entry(replace(entry, id=self.ids[position]), self._episodes)


def _open_entry(entry: EpisodeEntry, episodes: Episodes) -> Episode:
    return Episode(EditedSource(entry, [episodes[part.number].source for part in entry.parts]))


def _shown_name(entry_id: str, ids: Sequence[str]) -> str:
    """`000000000003-1` as `<id of the fourth>-1`."""
    parts = []
    for part in entry_id.split("+"):
        number, dash, rest = part.partition("-")
        parts.append(ids[int(number)] + dash + rest)
    return "+".join(parts)
