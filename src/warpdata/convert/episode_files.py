"""Export with one file per episode: into a new folder, or as the one file that the target names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from warpdata.bytekit.io.commit import commit_folder
from warpdata.convert.each_episode import OnError, Progress, check_on_error, exported
from warpdata.convert.exporting import source_id
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note
from warpdata.episodes.collection.episodes import Episodes
from warpdata.timeline.episode import Episode

WriteFile = Callable[[Episode, Path, ConversionReceipt | None], dict[str, Note]]
"""Writes a new file and returns the notes of the signals. A receipt is given to a file that is the whole export:
the notes are added to it, and the file stores it."""


def write_episode_files(
    format: str,  # noqa: A002 - the word of the receipt
    episodes: Episodes,
    target: str | os.PathLike[str],
    write_file: WriteFile,
    *,
    version: str = "",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write every episode as a file with the name of the format as suffix; names come from the episodes."""
    check_on_error(on_error)
    episodes = under_own_names(episodes)
    receipt = ConversionReceipt.of_export(format, episodes, target, version)
    if os.fspath(target).endswith(f".{format}"):
        if len(episodes) != 1:
            raise ValueError(f"{target} is one file for {len(episodes)} episodes: name a folder")
        write_file(episodes[0], Path(target), receipt)
        return receipt
    with commit_folder(target) as folder:
        work = partial(_write_part, write_file, folder)
        taken: set[str] = set()
        parts = exported(episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress)
        for position, (name, notes) in parts:
            while name in taken:
                name += "_"
            taken.add(name)
            (folder / f".{position}.part").rename(folder / f"{name}.{format}")
            receipt.add(notes)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


def _write_part(
    write_file: WriteFile, folder: Path, position: int, episode: Episode
) -> tuple[str, dict[str, Note]]:
    """Write one file under a temporary name; its final name and the notes of the signals."""
    notes = write_file(episode, folder / f".{position}.part", None)
    return re.sub(r"[^A-Za-z0-9_.=+@-]", "_", source_id(episode)).lstrip(".") or "episode", notes
