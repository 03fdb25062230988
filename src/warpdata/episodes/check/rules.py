"""Rules for a single episode: files, clocks, values and cameras; each finding has its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.check.compare import SetMember, remember
from warpdata.episodes.check.report import Finding
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.episodes.statistics import GAP_FACTOR, ClockStatistics, ValueStatistics
from warpdata.errors import FormatError, JournalInUseError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.timeline.episode import Episode
from warpdata.timeline.pictures import is_camera
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import ns_between

_JITTER_SHARE = 0.25
_FROZEN_S = 0.5
_REPEATED_SHARE, _REPEATED_RUN = 0.5, 8
"""Images that repeat the one before, evenly: a scene at rest repeats one for longer."""
_MOVED_SHARE, _MOVED_STEPS = 0.1, 6.0
"""A signal moves where it changes by this share of its range, and by more than its usual steps, which may be noise."""
_IRREGULAR_SHARE, _IRREGULAR_FACTOR = 0.05, 3.0
"""Signals recorded on change have no rate: many long pauses, or pauses that differ by this factor."""
_MIN_RECORDS = 10
_ACTION_WORDS = ("action", "command", "cmd", "ctrl", "control", "target")
_MAY_STAY = ("action", "reward", "terminated", "truncated", "event", "other")
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """A signal that is being checked: the place of its findings, and its entry in the metadata."""

    episode: str
    signal: str
    stated: Mapping[str, Any]

    def finding(self, rule: str, message: str, **details: Any) -> Finding:
        return Finding.of(rule, self.episode, self.signal, message, **details)


def check_opened(
    open_episode: Callable[[], Episode],
    name: str,
    *,
    deep: bool = False,
    beside: Callable[[SetMember], object] | None = None,
) -> Iterator[Finding]:
    """Everything wrong with an episode of any form, also that it cannot be opened.

    `beside` gets what is remembered of it, to compare it with others.
    """
    try:
        episode = open_episode()
    except JournalInUseError as error:
        yield Finding.of("unfinished", name, None, str(error))
    except FormatError as error:
        yield Finding.of("damaged-file", name, None, str(error), code=error.code)
    else:
        yield from check_episode(episode, name, deep=deep)
        if beside is not None:
            beside(remember(name, episode, _is_action))


def check_episode(episode: Episode, name: str, *, deep: bool = False) -> Iterator[Finding]:
    """Everything wrong with the signals, static items and metadata of an episode of any form."""
    entries: Any = {}
    for file, attribute in ((layout.META_FILE, "meta"), (layout.STATIC_FILE, "static")):
        try:
            document = getattr(episode, attribute)
        except WarpError as error:
            yield Finding.of("damaged-file", name, None, str(error), file=file, code=error.code)
            continue
        if attribute == "meta":
            entries = document.get("signals")
            if document.get("interrupted"):
                yield Finding.of("interrupted", name, None, str(document["interrupted"]))
    names = list(episode.signals)
    if not names:
        yield Finding.of("empty-episode", name, None, "no signals")
    elif not any(_is_action(key) or _has_role(episode, key, "action") for key in names):
        yield Finding.of("no-actions", name, None, f"signals are {', '.join(names)}")
    for key in names:
        entry = entries.get(key) if isinstance(entries, dict) else None
        place = _Place(name, key, entry if isinstance(entry, dict) else {})
        yield from _check_signal(episode, place, deep=deep)


def _check_signal(episode: Episode, place: _Place, *, deep: bool) -> Iterator[Finding]:
    signal: Signal | None = None
    try:
        signal = episode.signals[place.signal]
        if isinstance(signal, VideoSignal):
            rows, frames = signal.count_frames()
            if frames != rows:
                text = f"the video has {frames} frames, its index {rows}"
                yield place.finding("video-index", text, frames=frames, rows=rows)
            signal.check()
        if is_camera(signal.meta):
            yield from _check_camera(episode, place, signal, deep=deep)
        if signal.meta.is_object:
            signal.values()
        elif signal.meta.kind != "image":
            yield from _check_values(place, signal)
        yield from _check_clock(place, signal)
    except WarpError as error:
        rule = "clock-order" if "not increasing" in error.message else "damaged-file"
        if rule == "clock-order" and isinstance(signal, BlockSignal):
            rule = "falling-times"  # as stored, and read so by step: no byte is damaged
        yield place.finding(rule, str(error), code=error.code)


def _check_clock(place: _Place, signal: Signal) -> Iterator[Finding]:
    facts = ClockStatistics.of(signal.timestamps).to_json()
    for key in ("count", "first_ts_ns", "last_ts_ns"):
        if place.stated and place.stated.get(key) != facts.get(key):
            yield place.finding("statistics", f"{key} is {facts.get(key)}, not {place.stated.get(key)}")
    if facts["count"] < _MIN_RECORDS or signal.meta.is_object:
        return
    usual = facts["usual_pause_ns"]
    pauses = ns_between(signal.timestamps[1:], signal.timestamps[:-1])
    low, high = np.quantile(pauses, (0.1, 0.9))
    if facts["gaps"] > _IRREGULAR_SHARE * facts["count"] or high > _IRREGULAR_FACTOR * low:
        # Whether uneven pauses still follow a rate: times stay near even ones, which those on change do not.
        steps = np.cumsum(pauses)
        even = np.arange(1, len(steps) + 1) * (steps[-1] / len(steps))
        if not bool(np.abs(steps - even).max() < 2.0 * usual):
            return  # recorded on change
    elif facts["gaps"]:
        seconds, at_ns = facts["longest_pause_ns"] / 1e9, facts["longest_pause_at_ns"]
        details = {"gaps": facts["gaps"], "longest_ns": facts["longest_pause_ns"], "at_ns": at_ns}
        yield place.finding("gap", f"{facts['gaps']} gaps, the longest {seconds:.3f} s", **details)
    jitter = float(pauses[pauses <= GAP_FACTOR * usual].std())
    if jitter > _JITTER_SHARE * usual:
        text = f"pauses of {usual / 1e6:.3f} ms deviate by {jitter / 1e6:.3f} ms"
        yield place.finding("jitter", text, jitter_ns=jitter, usual_ns=usual)


def _check_values(place: _Place, signal: Signal) -> Iterator[Finding]:
    values = ValueStatistics(signal.meta.shape)
    for part in signal.blocks(_BATCH_BYTES):
        values.add(part)
    stated = place.stated.get("values")
    if stated is not None and not _agree(values.to_json(), stated):
        yield place.finding("statistics", "min, max, mean or deviation differ from the data")
    if values.invalid.any():
        count = int(values.invalid.sum())
        yield place.finding("nan", f"{count} values are not finite", count=count)
    constant = np.flatnonzero((values.low == values.high) & (values.count >= _MIN_RECORDS))
    meta = signal.meta
    # Choices, rewards and flags may stay as they are, and so may a pixel.
    may_stay = meta.dtype == np.bool_ or is_camera(meta) or meta.role in _MAY_STAY
    if len(constant) and not may_stay:
        which = ", ".join(map(str, constant[:8]))
        yield place.finding("constant-channel", f"channel {which} is constant", channels=constant.tolist())


def _check_camera(episode: Episode, place: _Place, signal: Signal, *, deep: bool) -> Iterator[Finding]:
    if dropped := place.stated.get("dropped_frames"):
        text = f"{dropped} frames were dropped, {len(signal)} are there"
        yield place.finding("dropped-frames", text, dropped=dropped)
    if len(signal) < _MIN_RECORDS:
        return
    longest, repeated = (place.stated.get(key) for key in ("longest_frozen_frames", "duplicate_frames"))
    runs: list[tuple[int, int]] = []
    if longest is None or repeated is None or deep:
        runs = _equal_runs(signal)
        longest = max((last - first for first, last in runs), default=0)
        repeated = sum(last - first for first, last in runs)
    seconds = (signal.last_ts_ns - signal.first_ts_ns) / 1e9
    rate = (len(signal) - 1) / seconds if seconds else 0.0
    least = max(2.0, _FROZEN_S * rate)
    if longest < least and repeated < _REPEATED_SHARE * len(signal):
        return
    runs = runs or _equal_runs(signal)
    short = [last - first for first, last in runs if last - first <= _REPEATED_RUN]
    moving = len(signal) - sum(last - first for first, last in runs if last - first > _REPEATED_RUN)
    if len(short) >= _REPEATED_RUN and sum(short) >= _REPEATED_SHARE * moving:
        text = f"{sum(short)} of {moving} images repeat the one before"
        yield place.finding("repeated-frames", text, repeated=sum(short))
    for first, last in runs:
        span = (int(signal.timestamps[first]), int(signal.timestamps[last]))
        if last - first >= least and any(_moves(other, span) for other in _others(episode, place.signal)):
            count = last - first + 1
            yield place.finding(
                "frozen-camera", f"{count} equal images in a row", frames=count, at_ns=span[0]
            )
            return


def _equal_runs(signal: Signal) -> list[tuple[int, int]]:
    """Stretches of equal images: the positions of the first and the last of each."""
    runs: list[tuple[int, int]] = []
    before: NDArray[Any] | None = None
    position = 0
    for frames in signal.blocks(_BATCH_BYTES):
        for frame in frames:
            if before is not None and np.array_equal(frame, before):
                first = runs.pop()[0] if runs and runs[-1][1] == position - 1 else position - 1
                runs.append((first, position))
            before, position = frame, position + 1
    return runs


def _others(episode: Episode, camera: str) -> Iterator[Signal]:
    """Signals of numbers that show whether something moves."""
    for name in episode.signals:
        try:
            signal = episode.signals[name]
            is_state = not signal.meta.is_object and signal.meta.role in ("observation", "action")
            if name != camera and is_state and not is_camera(signal.meta) and len(signal) >= _MIN_RECORDS:
                yield signal
        except WarpError:  # damaged: a finding of its own
            continue


def _moves(signal: Signal, span: tuple[int, int]) -> bool:
    """Whether a signal changes in a span of time, by more than its noise."""
    low, high = np.searchsorted(signal.timestamps, span, side="right")
    values = np.asarray(signal.values(), np.float64).reshape(len(signal), -1)
    if high - low < 2 or not np.isfinite(values).all():
        return False
    step = np.median(np.abs(np.diff(values, axis=0)), axis=0)
    moved = np.ptp(values[low:high], axis=0)
    return bool(((moved > _MOVED_SHARE * np.ptp(values, axis=0)) & (moved > _MOVED_STEPS * step)).any())


def _agree(mine: dict[str, Any], stated: Any) -> bool:
    """Whether two sums of the same values are equal but for the order of adding."""
    if not isinstance(stated, dict):
        return False
    low, high = _column(mine["min"]), _column(mine["max"])
    scale = 1e-9 * np.maximum(1.0, np.nan_to_num(np.maximum(abs(low), abs(high))))
    for key in ("min", "max", "mean", "std"):
        own, other = _column(mine[key]), _column(stated.get(key))
        if own.shape != other.shape or not np.array_equal(np.isnan(own), np.isnan(other)):
            return False
        if (abs(own - other) > 1e-6 * abs(own) + scale).any():
            return False
    return True


def _column(numbers: Any) -> NDArray[np.float64]:
    """One number per channel, NaN for a missing one; empty if it is not a list of numbers."""
    try:
        return np.array([np.nan if number is None else float(number) for number in numbers])
    except (TypeError, ValueError):
        return np.empty(0)


def _has_role(episode: Episode, name: str, role: str) -> bool:
    try:
        return episode.signals[name].meta.role == role
    except WarpError:  # damaged: a finding of its own
        return False


def _is_action(name: str) -> bool:
    return any(part.lower().startswith(_ACTION_WORDS) for part in name.replace("_", "/").split("/"))


def is_directory(folder: Path) -> bool:
    """Whether a folder is one episode, finished or not, rather than a root of many."""
    marks = (layout.META_FILE, layout.STATIC_FILE, layout.RECORDING_FOLDER)
    return any((folder / mark).exists() for mark in marks)
