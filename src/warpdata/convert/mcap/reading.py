"""Open MCAP files as episodes: a file is one, and so is a folder of the files of one recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.mcap.layout import MAGIC
from warpdata.convert.mcap.records import McapLog
from warpdata.convert.messages.episode import MessageSource, Reading
from warpdata.convert.messages.topic import TimeKind
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.errors import BlobNotFoundError
from warpdata.timeline.episode import Episode

METADATA_FILE = "metadata.yaml"
_NUMBERED = re.compile(r"(.+)_(\d+)\.mcap")


def matches(place: Place) -> bool:
    """Whether it is an MCAP file, or a folder with some."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    files = _files(place)
    return bool(files) and place.head(len(MAGIC), files[0]) == MAGIC


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of an MCAP file, or of a folder of them or of bags; messages are read when first asked for.

    A signal is named by its topic and field: `joint_states/position`. `time` is what its records are stamped with:
    when the message was recorded (`log`), sent (`publish`), or measured (`header`, where the type has a stamp); the
    others are signals. The fields of the topics in `actions` are actions; `topics` are the only ones read.
    `recover` reads what is left of damaged files.
    """
    return Episodes(McapEpisodes(Place.of(source), Reading.of(time, actions, topics), recover))


class McapEpisodes(EpisodesSource):
    """MCAP files below a place."""

    def __init__(self, place: Place, reading: Reading, recover: bool) -> None:
        self._place, self._reading, self._recover = place, reading, recover
        if not place.is_file and not _files(place):
            raise BlobNotFoundError("no MCAP file is in this folder", path=place.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (McapEpisodes, (self._place, self._reading, self._recover))

    @property
    def name(self) -> str:
        """Where it lies."""
        return self._place.name

    @cached_property
    def _recordings(self) -> dict[str, list[str]]:
        """The id of every recording, and its files in order."""
        if self._place.is_file:
            return {PurePosixPath(self._place.name).stem: [""]}
        return recordings_of(self._place, _files(self._place))

    @property
    def ids(self) -> Sequence[str]:
        """The names of files and bags."""
        return list(self._recordings)

    def open(self, position: int) -> Episode:
        """The recording at a position."""
        name = self.ids[position]
        return Episode(
            MessageSource(
                name, McapLog(self._place, self._recordings[name], recover=self._recover), self._reading
            )
        )


def _files(place: Place) -> list[str]:
    """The MCAP files of a folder and of the folders in it."""
    return [name for name in place.near() if name.endswith(".mcap")]


def recordings_of(place: Place, files: Sequence[str]) -> dict[str, list[str]]:
    """Files by recording: those of a bag, or numbered as the parts of one, belong together."""
    found: dict[str, list[str]] = {}
    for name in files:
        folder, _, file = name.rpartition("/")
        numbered = _NUMBERED.fullmatch(file)
        above = f"{folder}/" if folder else ""
        owner = folder.rpartition("/")[2] or PurePosixPath(place.name).name
        is_bag = place.exists(f"{above}{METADATA_FILE}")
        is_part = numbered is not None and numbered[1] == owner
        if is_bag or is_part:
            found.setdefault(owner if folder or is_bag or is_part else file, []).append(name)
        else:
            found[f"{above}{PurePosixPath(file).stem}"] = [name]
    for listed in found.values():
        listed.sort(key=_part_number)
    return found


def _part_number(name: str) -> tuple[int, str]:
    numbered = _NUMBERED.fullmatch(name.rpartition("/")[2])
    return (int(numbered[2]) if numbered else -1, name)
