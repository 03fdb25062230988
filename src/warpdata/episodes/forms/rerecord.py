"""Write an episode as edits show it as a recording of its own."""

from __future__ import annotations

import os
from pathlib import Path

from warpdata.episodes.collection.replay import replay
from warpdata.episodes.record.disk_writer import DiskEpisodeWriter
from warpdata.formats.episodedir.documents import read_meta, write_meta
from warpdata.timeline.episode import Episode

_OF_FILES = ("signals", "static_file")
"""What metadata says of files, which the new ones say of themselves."""


def record_again(episode: Episode, directory: str | os.PathLike[str]) -> Path:
    """Record every sample the edits leave into a new directory; cameras are encoded again.

    The identity follows from the recordings and the edits, so that doing it twice gives the same episode.
    """
    about = {key: value for key, value in episode.meta.items() if key not in _OF_FILES}
    writer = DiskEpisodeWriter(
        directory,
        created_ts_ns=episode.meta.get("created_ts_ns"),
        uid=episode.meta.get("uid"),
        durability="none",
        meta=about,
    )
    with writer:
        for name, value in episode.static.items():
            writer.set_static(name, value)
        for name, signal in episode.signals.items():
            meta = signal.meta
            writer.declare(
                name,
                kind=meta.kind,
                units=meta.units,
                names=meta.names,
                role=meta.role,
                of=meta.of,
                model=meta.model,
                clock=meta.clock,
            )
        replay(episode, writer.append, speed=None)
    _forget_waiting(Path(directory))
    return Path(directory)


def _forget_waiting(folder: Path) -> None:
    """Drop how long the encoder was waited for: it says nothing of the recording and differs each time."""
    meta = read_meta(folder)
    for about in meta["signals"].values():
        about.pop("blocked_ns", None)
    write_meta(folder, meta)
