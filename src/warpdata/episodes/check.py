"""Look for what is wrong with recorded episodes: rules with stable ids, each finding says where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.folders import RangeFile
from warpdata.episodes.disk_episode import DiskEpisode
from warpdata.episodes.edits import Edits
from warpdata.episodes.listing import episode_path, list_episodes
from warpdata.episodes.signals import VideoSignal, open_bytes
from warpdata.episodes.statistics import GAP_FACTOR, ClockStatistics, ValueStatistics
from warpdata.errors import FormatError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.frame_index import read_frame_index
from warpdata.formats.episodedir.video import list_packets
from warpdata.timeline.signal import Signal

DAMAGED, WARNING, INFO = "damaged", "warning", "info"

RULES: dict[str, tuple[str, str]] = {
    "damaged-file": (DAMAGED, "a file of the episode cannot be read or does not match its checksum"),
    "clock-order": (DAMAGED, "timestamps are not strictly increasing"),
    "video-index": (DAMAGED, "video and frame index do not have the same frames"),
    "statistics": (DAMAGED, "the statistics in meta.json are not those of the data"),
    "edits": (DAMAGED, "a line of edits.jsonl is damaged"),
    "gap": (WARNING, "a pause is more than five times the usual one"),
    "jitter": (WARNING, "pauses deviate by more than a quarter of the usual one"),
    "frozen-camera": (WARNING, "a camera repeats one image for a second or longer"),
    "nan": (WARNING, "values are NaN or infinite"),
    "constant-channel": (WARNING, "a channel never changes"),
    "no-actions": (WARNING, "no signal of the episode is an action"),
    "empty-episode": (WARNING, "the episode has no records"),
    "unfinished": (WARNING, "a recording was never finished"),
    "interrupted": (INFO, "the recording ended by an exception or was salvaged"),
}
"""Rule id -> (severity, what it says). Ids are append-only: programs match on them."""

_JITTER_SHARE = 0.25
_FROZEN_S = 1.0
_MIN_RECORDS = 10
_ACTION_WORDS = ("action", "command", "cmd", "ctrl", "control", "target")
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    rule: str
    severity: str
    episode: str
    signal: str | None
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The finding for a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found in a dataset or an episode."""

    episodes: int
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Whether any data is damaged."""
        return any(each.severity == DAMAGED for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report for a program."""
        counts = Counter(each.rule for each in self.findings)
        return {
            "episodes": self.episodes, "is_damaged": self.is_damaged, "by_rule": dict(sorted(counts.items())),
            "findings": [each.to_json() for each in self.findings],
        }  # fmt: skip


def check_dataset(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None, deep: bool = False
) -> Report:
    """Check every episode of a root, or one episode directory; `deep` also decodes every frame."""
    root = Path(path)
    if _is_episode(root):
        return Report(1, list(check_episode(root, deep=deep)))
    listing = list_episodes(root)
    findings: list[Finding] = list(_check_edits(root))
    for number, each in enumerate(listing.finished):
        findings += check_episode(episode_path(root, each), deep=deep)
        if progress is not None:
            progress(number + 1, len(listing.finished))
    findings += [
        _found("unfinished", f"{each:012d}", None, "run `warp salvage`, or wait for its recorder")
        for each in listing.unfinished
    ]
    return Report(len(listing.finished), findings)


def check_episode(folder: Path, *, deep: bool = False) -> Iterator[Finding]:
    """Everything wrong with one finished episode directory."""
    try:
        episode = DiskEpisode(folder)
    except WarpError as error:
        yield _found("unfinished", folder.name, None, str(error))
        return
    yield from _check_documents(episode)
    names = list(episode.signals)
    if not names:
        yield _found("empty-episode", episode.id, None, "no signals")
    elif not any(_is_action(name) for name in names):
        yield _found("no-actions", episode.id, None, f"signals are {', '.join(names)}")
    for name in names:
        yield from _check_signal(episode, name, deep=deep)


def _check_edits(root: Path) -> Iterator[Finding]:
    try:
        Edits(root)
    except FormatError as error:
        yield _found("edits", "", None, str(error))


def _check_documents(episode: DiskEpisode) -> Iterator[Finding]:
    for file, attribute in ((layout.META_FILE, "meta"), (layout.STATIC_FILE, "static")):
        try:
            getattr(episode, attribute)
        except WarpError as error:
            yield _found("damaged-file", episode.id, None, str(error), file=file, code=error.code)
            continue
        if file == layout.META_FILE and episode.meta.get("interrupted"):
            yield _found("interrupted", episode.id, None, str(episode.meta["interrupted"]))


def _check_signal(episode: DiskEpisode, name: str, *, deep: bool) -> Iterator[Finding]:
    try:
        signal = episode.signals[name]
        if not len(signal):
            yield _found("empty-episode", episode.id, name, "no records")
            return
        if isinstance(signal, VideoSignal):
            yield from _check_frames(episode, name, signal)
            signal.check()
            stated = episode.described().get(name, {})
            yield from _check_camera(episode, name, signal, stated, deep=deep)
        elif not signal.meta.is_object:
            yield from _check_values(episode, name, signal)
        yield from _check_clock(episode, name, signal)
    except WarpError as error:
        rule = "clock-order" if "not increasing" in error.message else "damaged-file"
        yield _found(rule, episode.id, name, str(error), code=error.code)


def _check_frames(episode: DiskEpisode, name: str, signal: VideoSignal) -> Iterator[Finding]:
    """Whether the video has a frame for every row of its index, and no more, whatever else says so."""
    rows = len(read_frame_index(open_bytes(signal.frames_path, signal.folder)).ts_ns)
    reader = open_bytes(signal.path, signal.folder)
    try:
        frames = len(list_packets(RangeFile(reader), reader.name)[1])
    finally:
        reader.close()
    if frames != rows:
        text = f"the video has {frames} frames, its index {rows}"
        yield _found("video-index", episode.id, name, text, frames=frames, rows=rows)


def _check_clock(episode: DiskEpisode, name: str, signal: Signal) -> Iterator[Finding]:
    clock = ClockStatistics()
    clock.add(signal.timestamps)
    found = clock.to_json()
    stated = episode.described().get(name)
    if isinstance(stated, dict):
        for key in ("count", "first_ts_ns", "last_ts_ns"):
            if stated.get(key) != found.get(key):
                yield _found(
                    "statistics", episode.id, name, f"{key} is {found.get(key)}, not {stated.get(key)}"
                )
    if found["count"] < _MIN_RECORDS or signal.meta.is_object:
        return
    usual = found["usual_pause_ns"]
    if found["gaps"]:
        seconds = found["longest_pause_ns"] / 1e9
        yield _found(
            "gap", episode.id, name, f"{found['gaps']} gaps, the longest {seconds:.3f} s",
            gaps=found["gaps"], longest_ns=found["longest_pause_ns"], at_ns=found["longest_pause_at_ns"],
        )  # fmt: skip
    pauses = np.diff(signal.timestamps)
    jitter = float(pauses[pauses <= GAP_FACTOR * usual].std())
    if jitter > _JITTER_SHARE * usual:
        text = f"pauses of {usual / 1e6:.3f} ms deviate by {jitter / 1e6:.3f} ms"
        yield _found("jitter", episode.id, name, text, jitter_ns=jitter, usual_ns=usual)


def _check_values(episode: DiskEpisode, name: str, signal: Signal) -> Iterator[Finding]:
    values = ValueStatistics(signal.meta.shape)
    values.add(signal.values())
    found = values.to_json()
    stated = episode.described().get(name, {}).get("values")
    if stated is not None and not _agree(found, stated):
        yield _found("statistics", episode.id, name, "min, max, mean or deviation differ from the data")
    if values.invalid.any():
        count = int(values.invalid.sum())
        yield _found("nan", episode.id, name, f"{count} values are not finite", count=count)
    constant = np.flatnonzero((values.low == values.high) & (values.count >= _MIN_RECORDS))
    if len(constant) and signal.meta.dtype != np.bool_:
        which = ", ".join(map(str, constant[:8]))
        yield _found(
            "constant-channel", episode.id, name, f"channel {which} is constant", channels=constant.tolist()
        )


def _check_camera(
    episode: DiskEpisode, name: str, signal: VideoSignal, stated: Any, *, deep: bool
) -> Iterator[Finding]:
    longest = stated.get("longest_frozen_frames") if isinstance(stated, dict) else None
    if longest is None or deep:
        longest = _longest_frozen(signal)
    seconds = (signal.last_ts - signal.first_ts) / 1e9
    rate = (len(signal) - 1) / seconds if seconds else 0.0
    if len(signal) >= _MIN_RECORDS and longest >= max(2.0, _FROZEN_S * rate):
        text = f"{longest + 1} equal images in a row"
        yield _found("frozen-camera", episode.id, name, text, frames=longest + 1)


def _longest_frozen(signal: VideoSignal) -> int:
    """How often the same decoded image follows itself, at most."""
    longest = run = 0
    before: NDArray[Any] | None = None
    for start in range(0, len(signal), _BATCH):
        for frame in signal[start : start + _BATCH].values():
            run = run + 1 if before is not None and np.array_equal(frame, before) else 0
            longest, before = max(longest, run), frame
    return longest


def _agree(found: dict[str, Any], stated: Any) -> bool:
    """Whether two sums of the same values are equal but for the order of adding."""
    if not isinstance(stated, dict):
        return False
    low, high = _column(found["min"]), _column(found["max"])
    scale = 1e-9 * np.maximum(1.0, np.nan_to_num(np.maximum(abs(low), abs(high))))
    for key in ("min", "max", "mean", "std"):
        mine, theirs = _column(found[key]), _column(stated.get(key))
        if mine.shape != theirs.shape or not np.array_equal(np.isnan(mine), np.isnan(theirs)):
            return False
        if (abs(mine - theirs) > 1e-6 * abs(mine) + scale).any():
            return False
    return True


def _column(numbers: Any) -> NDArray[np.float64]:
    """One number per channel, NaN where there is none; nothing where it is no list of numbers."""
    try:
        return np.array([np.nan if each is None else float(each) for each in numbers])
    except (TypeError, ValueError):
        return np.empty(0)


def _is_action(name: str) -> bool:
    return any(part.lower().startswith(_ACTION_WORDS) for part in name.replace("_", "/").split("/"))


def _is_episode(folder: Path) -> bool:
    marks = (layout.META_FILE, layout.STATIC_FILE, layout.RECORDING_FOLDER)
    return any((folder / mark).exists() for mark in marks)


def _found(rule: str, episode: str, signal: str | None, message: str, **details: Any) -> Finding:
    return Finding(rule, RULES[rule][0], episode, signal, message, details)
