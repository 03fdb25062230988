"""MCAP files as episodes: one per file, or one per folder with the files of one recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from warpdata.convert.mcap.layout import MAGIC
from warpdata.convert.mcap.records import McapLog
from warpdata.convert.messages.episode import Reading, Recordings
from warpdata.convert.messages.topic import TimeKind
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes

METADATA_FILE = "metadata.yaml"
_NUMBERED = re.compile(r"(.+)_(\d+)\.mcap")


def matches(place: Place) -> bool:
    """Whether it is an MCAP file, or a folder with some."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    files = _list_files(place)
    return bool(files) and place.head(len(MAGIC), files[0]) == MAGIC


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of an MCAP file, or of a folder of MCAP files or of bags; messages are read on first use.

    A signal is named by its topic and field: `joint_states/position`. `time` chooses the timestamps of its records:
    when the message was recorded (`log`), sent (`publish`), or measured (`header`, if the type has a stamp); the
    other times are signals. The fields of the topics in `actions` are actions; `topics` limits what is read.
    `recover` reads what is left of damaged files.
    """
    reading = Reading.of(time, actions, topics)
    return Episodes(Recordings(Place.of(source), reading, group_files, partial(open_log, recover)))


def open_log(recover: bool, place: Place, files: list[str]) -> McapLog:
    """The files of one recording."""
    return McapLog(place, files, recover)


def _list_files(place: Place) -> list[str]:
    """MCAP files of a folder and of the folders in it."""
    return [name for name in place.near() if name.endswith(".mcap")]


def group_files(place: Place) -> dict[str, list[str]]:
    """Files by recording: those of a bag, or numbered after their folder, are one recording."""
    if place.is_file:
        return {PurePosixPath(place.name).stem: [""]}
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in _list_files(place):
        folder, _, file = name.rpartition("/")
        above = f"{folder}/" if folder else ""
        owner = folder.rpartition("/")[2] or PurePosixPath(place.name).name
        match = _NUMBERED.fullmatch(file)
        is_part = match is not None and match[1] == owner
        group = (
            owner
            if is_part or place.exists(f"{above}{METADATA_FILE}")
            else f"{above}{PurePosixPath(file).stem}"
        )
        groups.setdefault(group, []).append((int(match[2]) if match else -1, name))
    return {group: [name for _, name in sorted(files)] for group, files in groups.items()}
