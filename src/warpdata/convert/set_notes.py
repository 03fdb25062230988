"""Notes that an exported set keeps beside its rows: step times and static items that its layout has no place for.

They are part of the document that every export writes (`warpdata.json`), keyed by the id under which the episode is
read again. A note counts only for an episode with the same number of steps: a set that was changed since is read
without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.rows import EXACT_NS, grid_times, measured_rate, stated_rate
from warpdata.errors import FormatError, WarpError
from warpdata.timeline.episode import Episode

EPISODES = "episodes"
MAX_DOCUMENT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class EpisodeNotes:
    """Times of the steps of one episode, and its static items."""

    steps: int
    """Rows of the episode in the set."""
    fps: float | None = None
    """Steps per second."""
    start_ns: int = 0
    times: NDArray[np.int64] | None = None
    """Time of every step and of the observation after the last one, where they are not evenly spaced."""
    static: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """Id of the episode before the export, where the set has no place for it."""
    is_assumed: bool = False
    """Whether the source did not state a rate, so that this one was assumed."""

    @classmethod
    def of(
        cls, episode: Episode, steps: int, times: NDArray[np.int64], *, is_assumed: bool = False
    ) -> EpisodeNotes:
        """Notes of an episode with `steps` rows in the set; `is_assumed` marks a rate the source did not state."""
        static = packed(dict(episode.static))
        if not len(times):
            return cls(steps, static=static)
        stated, start = stated_rate(episode.meta.get("fps")), int(times[0])
        for fps in (stated, measured_rate(times)):
            if fps is not None and _is_grid(times, fps):
                return cls(steps, fps, start, static=static, is_assumed=is_assumed)
        if len(times) == 1:
            return cls(steps, stated, start, static=static)
        return cls(steps, measured_rate(times), start, times, static)

    def to_json(self) -> dict[str, Any]:
        """The note as JSON, without what is empty."""
        times = None if self.times is None else packed(self.times)
        values = {
            "fps": self.fps,
            "assumed": self.is_assumed,
            "start_ns": self.start_ns,
            "times_ns": times,
            "static": dict(self.static),
        }
        return {"steps": self.steps, **{key: value for key, value in values.items() if value}}

    @classmethod
    def from_json(cls, stated: Any) -> EpisodeNotes | None:
        """What `to_json` made; None of anything else."""
        if not isinstance(stated, Mapping) or not isinstance(stated.get("steps"), int):
            return None
        static, start = stated.get("static", {}), stated.get("start_ns", 0)
        if not isinstance(static, Mapping) or not isinstance(start, int) or isinstance(start, bool):
            return None
        try:
            times, static = unpacked(stated.get("times_ns")), unpacked(static)
        except WarpError:
            return None
        if times is not None and not _are_times(times, stated["steps"]):
            return None
        name, is_assumed = str(stated.get("id") or ""), stated.get("assumed") is True
        return cls(stated["steps"], stated_rate(stated.get("fps")), start, times, static, name, is_assumed)


def _is_grid(times: NDArray[np.int64], fps: float) -> bool:
    return int(np.abs(times - grid_times(len(times), fps, int(times[0]))).max()) <= EXACT_NS


def _are_times(times: Any, steps: int) -> bool:
    is_array = isinstance(times, np.ndarray) and times.ndim == 1 and times.dtype == np.int64
    return is_array and abs(len(times) - steps) <= 1 and bool((np.diff(times) > 0).all())


def parse_notes(document: bytes | None) -> dict[str, EpisodeNotes]:
    """The notes of all episodes by id; none where the document is missing, damaged or of another program."""
    if document is None:
        return {}
    try:
        stated = parse_json_object(document, max_bytes=MAX_DOCUMENT_BYTES).get(EPISODES)
    except FormatError:
        return {}
    entries = stated.items() if isinstance(stated, Mapping) else ()
    notes = {name: EpisodeNotes.from_json(entry) for name, entry in entries}
    return {name: note for name, note in notes.items() if note is not None}
