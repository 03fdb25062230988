"""An episode that is still being recorded, as far as its records are on disk: a snapshot of its journals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.episodes.salvage_rows import JournaledRows
from warpdata.episodes.signals import signal_meta
from warpdata.episodes.unfinished import UnfinishedRecording, open_recording
from warpdata.errors import WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import restored_static
from warpdata.formats.episodedir.signal_file import Description
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal


def live_episode(folder: Path) -> Episode | None:
    """What an unfinished recording holds now; None where nothing of it can be read yet.

    Cameras are there once the recording is finished: until then their frames are in the hands of the encoder.
    """
    try:
        found = open_recording(folder / layout.RECORDING_FOLDER)
        signals = {
            str(about["name"]): _signal(found, stream, about) for stream, about in found.signals.items()
        }
    except (WarpError, OSError, KeyError, ValueError):
        return None
    kept: Mapping[str, Signal] = {name: each for name, each in signals.items() if each is not None}
    static = {name: restored_static(value) for name, value in found.static.items()}
    return Episode.of(kept, static, found.meta, id=folder.name)


def _signal(found: UnfinishedRecording, stream: int, about: dict[str, Any]) -> Signal | None:
    """The records of a signal that are whole and follow one another."""
    description = Description.from_json(about, str(found.work))
    if description.kind == "image":
        return None
    rows = JournaledRows(found.journals, stream)
    is_event = description.kind in ("text", "bytes")
    parts = list(rows.events(description.kind) if is_event else rows.numbers(description))
    meta = signal_meta(description, str(about["name"]))
    if not parts:
        return ArraySignal(np.empty(0, np.int64), np.empty((0, *meta.shape), meta.dtype), meta)
    # What comes after a record that is not there yet waits for it.
    whole = int((rows.steps == np.arange(len(rows))).argmin()) or len(rows) if rows.missing else len(rows)
    stamps, values = (np.concatenate([part[side] for part in parts])[:whole] for side in (0, 1))
    return ArraySignal(stamps, values, meta)
