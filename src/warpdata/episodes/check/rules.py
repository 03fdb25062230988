"""Look for what is wrong with recorded episodes: rules with stable ids; each finding has its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.check.beside import SET_RULES, EpisodeSet, SetMember, remembered
from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.episodes.statistics import GAP_FACTOR, ClockStatistics, ValueStatistics
from warpdata.errors import FileFinding, FormatError, JournalInUseError, WarpError, nearest
from warpdata.formats.episodedir import layout
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.pictures import is_camera
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import ns_between

DAMAGED, WARNING, INFO = "damaged", "warning", "info"

RULES: dict[str, tuple[str, str]] = {
    "damaged-file": (DAMAGED, "a file of the episode cannot be read or does not match its checksum"),
    "clock-order": (DAMAGED, "timestamps are not strictly increasing, as a recording has them"),
    "video-index": (DAMAGED, "video and frame index do not have the same frames"),
    "statistics": (DAMAGED, "the statistics in meta.json are not those of the data"),
    "edits": (DAMAGED, "a line of edits.jsonl is damaged"),
    "gap": (WARNING, "a pause is more than five times the usual one"),
    "jitter": (WARNING, "pauses deviate by more than a quarter of the usual one"),
    "frozen-camera": (
        WARNING,
        "a camera repeats one image for half a second or longer while something moves",
    ),
    "nan": (WARNING, "values are NaN or infinite"),
    "constant-channel": (WARNING, "a channel never changes"),
    "no-actions": (WARNING, "no signal of the episode is an action"),
    "empty-episode": (WARNING, "the episode has no records"),
    "unfinished": (WARNING, "a recording was never finished"),
    "falling-times": (
        WARNING,
        "times that a shard of another program holds do not increase: read it by step",
    ),
    "repeated-frames": (WARNING, "a camera shows most images several times: its rate is lower than recorded"),
    "interrupted": (INFO, "the recording ended by an exception or was salvaged"),
    **{rule: (WARNING, text) for rule, text in SET_RULES.items()},
}
"""Rule id -> (severity, description). Ids are append-only: programs match on them."""

_JITTER_SHARE = 0.25
_FROZEN_S = 0.5
_REPEATED_SHARE, _REPEATED_RUN = 0.5, 8
"""Images that repeat the one before, evenly: a scene at rest repeats one for longer."""
_MOVED_SHARE, _MOVED_STEPS = 0.1, 6.0
"""A signal moves where it changes by this share of its range, and by more than its usual steps, which may be noise."""
_IRREGULAR_SHARE, _IRREGULAR_FACTOR = 0.05, 3.0
"""Signals recorded on change have no rate: many long pauses, or pauses that differ by this factor."""
_USUAL, _USUAL_SHARE = 3, 0.3
"""What so many episodes, and this share of a set, have in common is usual: one line for the set."""
_PER_SET = ("gap", "jitter", "frozen-camera", "repeated-frames", "constant-channel", "no-actions", "nan")
_MIN_RECORDS = 10
_ACTION_WORDS = ("action", "command", "cmd", "ctrl", "control", "target")
_MAY_STAY = ("action", "reward", "terminated", "truncated", "event", "other")
_BATCH_BYTES = 16 << 20


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

    def groups(self) -> list[Group]:
        """Findings of one rule and signal together, the most serious and then the most frequent first."""
        found: dict[tuple[str, str | None], list[Finding]] = {}
        for each in self.findings:
            found.setdefault((each.rule, each.signal), []).append(each)
        made = [Group(rule, signal, every) for (rule, signal), every in found.items()]
        order = (DAMAGED, WARNING, INFO)
        return sorted(made, key=lambda each: (order.index(each.severity), -len(each.findings)))

    def without(self, rules: Iterable[str]) -> Report:
        """The report without the findings of these rules."""
        muted = set(rules)
        return Report(self.episodes, [each for each in self.findings if each.rule not in muted])

    def to_json(self) -> dict[str, Any]:
        """The report for a program."""
        counts = Counter(each.rule for each in self.findings)
        return {
            "episodes": self.episodes, "is_damaged": self.is_damaged, "by_rule": dict(sorted(counts.items())),
            "groups": [each.to_json() for each in self.groups()],
            "findings": [each.to_json() for each in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """What one rule found in one signal, over all episodes."""

    rule: str
    signal: str | None
    findings: list[Finding]

    @property
    def severity(self) -> str:
        """How serious it is."""
        return self.findings[0].severity

    def to_json(self) -> dict[str, Any]:
        """The group for a program."""
        names = [name for each in self.findings for name in each.details.get("episodes", [each.episode])]
        return {
            "rule": self.rule, "severity": self.severity, "signal": self.signal,
            "count": len(names), "episodes": names,
        }  # fmt: skip


def check_rules(names: Iterable[str]) -> None:
    """Raise ValueError unless each is the id of a rule."""
    for name in names:
        if name not in RULES:
            raise ValueError(f"no rule is called {name!r}.{nearest(name, RULES)}")


Progress = Callable[[int, int], None]


def merged(reports: Iterable[Report]) -> Report:
    """Several reports as one."""
    every = list(reports)
    return Report(sum(each.episodes for each in every), [found for each in every for found in each.findings])


@dataclass(frozen=True, slots=True)
class _Place:
    """A signal that is being checked: the place of its findings, and its entry in the metadata."""

    episode: str
    signal: str
    stated: Mapping[str, Any]

    def found(self, rule: str, message: str, **details: Any) -> Finding:
        return found(rule, self.episode, self.signal, message, **details)


def new_set() -> EpisodeSet:
    """Episodes that are to be compared with each other."""
    return EpisodeSet()


def set_findings(beside: EpisodeSet) -> list[Finding]:
    """What is wrong with episodes beside the others."""
    return [
        found(each.rule, each.episode, each.signal, each.message, **each.details)
        for each in beside.findings()
    ]


def without_usual(findings: Iterable[Finding], beside: EpisodeSet, episodes: int) -> list[Finding]:
    """Findings of single episodes that are odd in their set; what is usual there is one line for the set.

    Channels that never change in several episodes, though they can, are no findings.
    """
    usual = beside.usual_constants()
    odd: dict[tuple[str, str | None], list[Finding]] = {}
    for each in findings:
        if each.rule != "constant-channel" or any(
            (each.episode, each.signal, channel) not in usual for channel in each.details["channels"]
        ):
            odd.setdefault((each.rule, each.signal), []).append(each)
    kept: list[Finding] = []
    for (rule, signal), alike in odd.items():
        names = list(dict.fromkeys(each.episode for each in alike))
        if rule not in _PER_SET or len(names) < max(_USUAL, _USUAL_SHARE * episodes):
            kept += alike
            continue
        text = f"in {len(names)} of {episodes} episodes, such as {names[0]}: {alike[0].message}"
        kept.append(Finding(rule, INFO, "", signal, text, {"episodes": names}))
    return kept


def check_opened(
    opened: Callable[[], Episode],
    name: str,
    *,
    deep: bool = False,
    beside: Callable[[SetMember], object] | None = None,
) -> Iterator[Finding]:
    """Everything wrong with an episode of any form, also that it cannot be opened.

    `beside` gets what is remembered of it, to compare it with others.
    """
    try:
        episode = opened()
    except JournalInUseError as error:
        yield found("unfinished", name, None, str(error))
    except FormatError as error:
        yield found("damaged-file", name, None, str(error), code=error.code)
    else:
        yield from check_episode(episode, name, deep=deep)
        if beside is not None:
            beside(remembered(name, episode, _is_action))


def check_episode(episode: Episode, name: str, *, deep: bool = False) -> Iterator[Finding]:
    """Everything wrong with the signals, static items and metadata of an episode of any form."""
    yield from _check_documents(episode, name)
    names = list(episode.signals)
    if not names:
        yield found("empty-episode", name, None, "no signals")
    elif not any(_is_action(each) or _has_role(episode, each, "action") for each in names):
        yield found("no-actions", name, None, f"signals are {', '.join(names)}")
    stated = _described(episode)
    for each in names:
        about = stated.get(each)
        yield from _check_signal(
            episode, _Place(name, each, about if isinstance(about, dict) else {}), deep=deep
        )


def _check_documents(episode: Episode, name: str) -> Iterator[Finding]:
    for file, attribute in ((layout.META_FILE, "meta"), (layout.STATIC_FILE, "static")):
        try:
            getattr(episode, attribute)
        except WarpError as error:
            yield found("damaged-file", name, None, str(error), file=file, code=error.code)
            continue
        if file == layout.META_FILE and episode.meta.get("interrupted"):
            yield found("interrupted", name, None, str(episode.meta["interrupted"]))


def _described(episode: Episode) -> Mapping[str, Any]:
    """Signal entries of the metadata; empty if it is damaged or foreign."""
    try:
        found = episode.meta.get("signals")
    except FormatError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_signal(episode: Episode, place: _Place, *, deep: bool) -> Iterator[Finding]:
    signal = None
    try:
        signal = episode.signals[place.signal]
        if not len(signal):
            yield place.found("empty-episode", "no records")
            return
        if isinstance(signal, VideoSignal):
            rows, frames = signal.count_frames()
            if frames != rows:
                text = f"the video has {frames} frames, its index {rows}"
                yield place.found("video-index", text, frames=frames, rows=rows)
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
            rule = "falling-times"  # what was stored, and is read so by step: no byte is damaged
        yield place.found(rule, str(error), code=error.code)


def _check_clock(place: _Place, signal: Signal) -> Iterator[Finding]:
    clock = ClockStatistics()
    clock.add(signal.timestamps)
    found = clock.to_json()
    for key in ("count", "first_ts_ns", "last_ts_ns"):
        if place.stated and place.stated.get(key) != found.get(key):
            yield place.found("statistics", f"{key} is {found.get(key)}, not {place.stated.get(key)}")
    if found["count"] < _MIN_RECORDS or signal.meta.is_object:
        return
    usual = found["usual_pause_ns"]
    pauses = ns_between(signal.timestamps[1:], signal.timestamps[:-1])
    low, high = np.quantile(pauses, (0.1, 0.9))
    if found["gaps"] > _IRREGULAR_SHARE * found["count"] or high > _IRREGULAR_FACTOR * low:
        return  # recorded on change
    if found["gaps"]:
        seconds = found["longest_pause_ns"] / 1e9
        yield place.found(
            "gap", f"{found['gaps']} gaps, the longest {seconds:.3f} s",
            gaps=found["gaps"], longest_ns=found["longest_pause_ns"], at_ns=found["longest_pause_at_ns"],
        )  # fmt: skip
    jitter = float(pauses[pauses <= GAP_FACTOR * usual].std())
    if jitter > _JITTER_SHARE * usual:
        text = f"pauses of {usual / 1e6:.3f} ms deviate by {jitter / 1e6:.3f} ms"
        yield place.found("jitter", text, jitter_ns=jitter, usual_ns=usual)


def _check_values(place: _Place, signal: Signal) -> Iterator[Finding]:
    values = ValueStatistics(signal.meta.shape)
    for part in _batches(signal):
        values.add(part)
    stated = place.stated.get("values")
    if stated is not None and not _agree(values.to_json(), stated):
        yield place.found("statistics", "min, max, mean or deviation differ from the data")
    if values.invalid.any():
        count = int(values.invalid.sum())
        yield place.found("nan", f"{count} values are not finite", count=count)
    constant = np.flatnonzero((values.low == values.high) & (values.count >= _MIN_RECORDS))
    if len(constant) and _must_change(signal.meta):
        which = ", ".join(map(str, constant[:8]))
        yield place.found("constant-channel", f"channel {which} is constant", channels=constant.tolist())


def _must_change(meta: SignalMeta) -> bool:
    """Whether a constant is odd: what is chosen, earned or counted may stay as it is, and so may a pixel."""
    return meta.dtype != np.bool_ and not is_camera(meta) and meta.role not in _MAY_STAY


def _check_camera(episode: Episode, place: _Place, signal: Signal, *, deep: bool) -> Iterator[Finding]:
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
        yield place.found("repeated-frames", text, repeated=sum(short))
    for first, last in runs:
        span = (int(signal.timestamps[first]), int(signal.timestamps[last]))
        if last - first >= least and any(_moves(other, span) for _, other in _others(episode, place.signal)):
            yield place.found(
                "frozen-camera",
                f"{last - first + 1} equal images in a row",
                frames=last - first + 1,
                at_ns=span[0],
            )
            return


def _equal_runs(signal: Signal) -> list[tuple[int, int]]:
    """Stretches of equal images: the positions of the first and the last of each."""
    runs: list[tuple[int, int]] = []
    before: NDArray[Any] | None = None
    position = 0
    for frames in _batches(signal):
        for frame in frames:
            if before is not None and np.array_equal(frame, before):
                first = runs.pop()[0] if runs and runs[-1][1] == position - 1 else position - 1
                runs.append((first, position))
            before, position = frame, position + 1
    return runs


def _others(episode: Episode, camera: str) -> Iterator[tuple[str, Signal]]:
    """Signals of numbers that show whether something moves."""
    for name in episode.signals:
        try:
            signal = episode.signals[name]
            is_state = not signal.meta.is_object and signal.meta.role in ("observation", "action")
            if name != camera and is_state and not is_camera(signal.meta) and len(signal) >= _MIN_RECORDS:
                yield name, signal
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


def _batches(signal: Signal) -> Iterator[NDArray[Any]]:
    """All values of a signal, in batches that fit in memory."""
    step = max(1, _BATCH_BYTES // max(1, signal.meta.row_bytes))
    for start in range(0, len(signal), step):
        yield signal[start : start + step].values()


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
    """One number per channel, NaN for a missing one; empty if it is not a list of numbers."""
    try:
        return np.array([np.nan if each is None else float(each) for each in numbers])
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


def damaged_block(episode: str, damage: FileFinding) -> Finding:
    """A damaged block of a shard as a finding of its episode."""
    return found("damaged-file", episode, None, damage.message, block=damage.part, code=damage.code)


def found(rule: str, episode: str, signal: str | None, message: str, **details: Any) -> Finding:
    """A finding of a rule."""
    return Finding(rule, RULES[rule][0], episode, signal, message, details)
