"""Rules that compare an episode with the others of its set: lengths, returns, motions, mixed up channels, copies.

An episode is compared with those of the same task where enough name it; all others are one group. What is odd stands
alone: what several episodes share is usual, so unnamed tasks, failures, and joints that some episodes leave
alone are no findings. Episodes that lack a signal, or have it in another shape, are left out there.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import xxh64
from warpdata.episodes.check.report import Finding
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.pictures import is_camera
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import ns_between

MIN_EPISODES = 8
"""In a smaller set nothing can be called usual."""

_MIN_RECORDS = 10
_SPIKE_RECORDS = 32
"""In a shorter recording a single value cannot be told from contacts and noise."""
_TAIL_SHARE, _TAIL_RECORDS = 5, 4
"""The last fifth of an episode: a channel that still moves there ends anywhere."""
_MAX_CHANNELS = 64
_POINTS = 32
_LARGEST = 1e30
"""Larger values cannot be compared: squares of them would not be finite."""
_MAD_TO_STD = 1.4826

_COMPANY, _COMPANY_SHARE = 3, 0.1
"""What this number of episodes of a group, and this share of it, have in common is usual."""
_ODD_SHARE = 0.2
"""Where more of them stand alone, none of them is odd."""
_CORE, _CORE_SHARE = 5, 0.5
"""The densest half gives the usual distance of values: other tasks beside it do not widen it."""
_GAP, _WIDE_GAP = 3.0, 5.0
"""Deviations without a value between usual and odd; more where many channels are tried."""
_FEW = 8.0
"""The deviation of so few values is known to half of it only."""

_LENGTH_FACTOR, _SHORTEST_SHARE = 1.5, 1e-3
_JERK_FACTOR = 3.0
_RETURN_SHARE, _RETURN_GAP = 0.25, 4.0
_STATE_SHARE, _END_STEPS, _NEAR_SHARE = 0.25, 2.0, 0.25
_GRAINS = 4
_DEAD_SHARE, _LITTLE_SHARE = 0.02, 0.15
_NO_STROKE, _FULL_STROKE = 0.25, 0.8
"""A channel that makes nearly the same stroke in all other episodes, such as a gripper, never makes it."""
_VIEW_FACTOR = 2.5
_STUCK_SHARE = 0.3
_SWAP_FAR, _LEAST_SPREAD = 2.0, 0.05
"""Times as far as any usual course from its own kind; courses that are repeated exactly still have a spread."""
_COPY_SHARE = 0.05
_COPY_STD = 0.05
_COPY_LENGTH = 0.02
_COPY_NEXT, _COPY_CHANCE = 0.5, 1e-3
"""A copy is so much nearer than the next one, by a chance so small in the whole set."""
_KEYS, _SAME_KEYS, _FEW_KEYS = 128, 0.35, 24
"""Hashes of distinct records that are remembered, the share that copies have in common, and too few to compare."""
_LAG_FRAMES, _LAG_SPREAD, _LAG_GAIN = 3, 4.0, 0.25
_SPIKE_FACTOR, _SPIKE_FLOOR, _SPIKE_SHARE, _SPIKE_ALONE, _SPIKE_VALUES = 3.0, 0.03, 0.15, 6.0, 9
_SPIKE_STEPS = 6.0

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Track:
    """What is remembered of one numeric signal of one episode, per channel."""

    is_action: bool
    final: Numbers
    drift: Numbers
    """How far it still moves at the end."""
    std: Numbers
    grain: Numbers
    """The smallest step."""
    stuck: Numbers
    """The longest stretch without any change, as a share of the episode."""
    extent: Numbers
    """The largest value less the smallest."""
    bend: Numbers
    """How far values are, on average, from where the four around them would put them: little on a smooth course."""
    reach: Numbers
    """How far apart the values are, but for the lowest and highest tenth."""
    kick: Numbers
    """How far a single value jumps away and back, at most."""
    shape: Numbers
    """The values at even times: [points, channels]."""
    keys: NDArray[np.uint64]
    """The smallest hashes of its distinct records: trimmed copies still share most of them."""


@dataclass(slots=True)
class SetMember:
    """What is remembered of an episode."""

    name: str
    task: str = ""
    is_empty: bool = True
    seconds: float = 0.0
    total_reward: float | None = None
    largest_reward: float = 0.0
    tracks: dict[str, _Track] = field(default_factory=dict)
    cameras: dict[str, Sight] = field(default_factory=dict)
    actions: dict[str, Sight] = field(default_factory=dict)
    short: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Signal with too few records to be compared -> which channels never change."""
    stills: dict[str, int] = field(default_factory=dict)
    """Camera -> its longest run of equal images, where that was recorded."""


def remember(name: str, episode: Episode, is_action: Callable[[str], bool]) -> SetMember:
    """Look at an episode; signals that cannot be read are findings of other rules."""
    try:
        member = SetMember(name, str(episode.static.get("task", "")))
    except WarpError:
        member = SetMember(name)
    cameras: dict[str, Signal] = {}
    for key in episode.signals:
        try:
            signal = episode.signals[key]
            if len(signal):
                member.is_empty = False
                member.seconds = max(member.seconds, (signal.last_ts_ns - signal.first_ts_ns) / 1e9)
            if is_camera(signal.meta):
                cameras[key] = signal
                entries = episode.meta.get("signals")
                stated = entries.get(key) if isinstance(entries, dict) else None
                if isinstance(stated, dict) and isinstance(stated.get("longest_frozen_frames"), int):
                    member.stills[key] = stated["longest_frozen_frames"]
            elif not signal.meta.is_object and len(signal):
                _remember_numbers(member, key, signal, is_action(key))
        except WarpError:
            continue
    # Pictures and actions beside the state, for their delays.
    states = [episode.signals[key] for key, track in sorted(member.tracks.items()) if not track.is_action]
    actions = {key: episode.signals[key] for key, track in member.tracks.items() if track.is_action}
    for key, signal in {**cameras, **actions}.items():
        with contextlib.suppress(WarpError):
            sight = look_at(signal, states, is_camera=key in cameras)
            if sight is not None:
                (member.cameras if key in cameras else member.actions)[key] = sight
    return member


def _remember_numbers(member: SetMember, name: str, signal: Signal, is_action: bool) -> None:
    meta = signal.meta
    if math.prod(meta.shape) > _MAX_CHANNELS or meta.role not in ("observation", "action", "reward"):
        return
    values = np.asarray(signal.values(), np.float64).reshape(len(signal), -1)
    if len(values) < _MIN_RECORDS:
        member.short[name] = (values == values[0]).all(0)
        return
    if not (np.abs(values) < _LARGEST).all():
        return
    if meta.role == "reward" or name.rpartition("/")[2].startswith("reward"):
        member.total_reward = float(values.sum())
        member.largest_reward = float(np.abs(values).max())
        return
    times = ns_between(signal.timestamps, signal.first_ts_ns)
    grid = np.linspace(0, float(times[-1]), _POINTS)
    shape = np.stack([np.interp(grid, times, column) for column in values.T], 1)
    low, high = np.quantile(values, (0.1, 0.9), axis=0)
    pauses = np.abs(np.diff(values, axis=0))
    bend = np.sqrt((np.diff(values, 4, axis=0) ** 2).mean(0)) / 6
    grain = np.where(pauses > 0, pauses, np.inf).min(0)
    hashes = {xxh64(row.tobytes()) for row in np.ascontiguousarray(values)}
    # The longest run of True in each column.
    flags = pauses == 0
    rows = np.arange(1, len(flags) + 1)[:, None]
    ended = np.maximum.accumulate(np.where(flags, 0, rows), axis=0)
    longest: Numbers = (rows - ended).max(0).astype(np.float64)
    member.tracks[name] = _Track(
        is_action or meta.role == "action",
        values[-1],
        np.ptp(values[-max(_TAIL_RECORDS, len(values) // _TAIL_SHARE) :], axis=0),
        values.std(0),
        np.where(np.isfinite(grain), grain, 0.0),
        longest / len(pauses),
        np.ptp(values, axis=0),
        bend,
        high - low,
        _largest_spikes(values),
        shape,
        np.array(sorted(hashes)[:_KEYS], np.uint64),
    )


def _largest_spikes(values: Numbers) -> Numbers:
    """How far a single value jumps from both of its neighbours, per channel, where these hardly move."""
    steps = np.diff(values, axis=0)
    there, back = steps[1:-2], -steps[2:-1]
    size = np.where(there * back > 0, np.minimum(abs(there), abs(back)), 0.0)
    around = np.maximum(np.maximum(abs(steps[:-3]), abs(steps[3:])), abs(there - back))
    is_fine = np.array([len(np.unique(column[:256])) >= _SPIKE_VALUES for column in values.T])
    # Noise has large values too, more of them in long episodes: a spike is many usual steps.
    limit = np.maximum(_SPIKE_ALONE * around, _SPIKE_STEPS * np.median(abs(steps), axis=0))
    is_fine &= len(values) >= _SPIKE_RECORDS
    largest: Numbers = np.where(is_fine & (size > limit), size, 0.0).max(0)
    return largest


class EpisodeSet:
    """Remembers a little of each episode, then names those that do not belong."""

    def __init__(self) -> None:
        self._members: list[SetMember] = []

    def add(self, member: SetMember) -> None:
        """One more episode."""
        self._members.append(member)

    def findings(self) -> Iterator[Finding]:
        """Everything that sets an episode apart; one cause is named once."""
        for group in self._groups():
            yield from group.findings()
        # Courses are compared among all episodes where they share a signal, else among those of each form.
        forms: dict[frozenset[tuple[str, int]], list[SetMember]] = defaultdict(list)
        for member in self._members:
            forms[frozenset((name, len(t.final)) for name, t in member.tracks.items())].append(member)
        together = [self._members] if forms and frozenset.intersection(*forms) else list(forms.values())
        for members in together:
            if len(members) >= MIN_EPISODES:
                yield from _Alike(members).copies()

    def usual_constants(self) -> set[tuple[str, str, int]]:
        """Episode, signal and channel that never changes there, and neither in several others, though it can."""
        usual = {channel for group in self._groups() for channel in group.usual_constants()}
        short: dict[tuple[str, int], list[NDArray[np.bool_]]] = defaultdict(list)
        for member in self._members:
            for name, constant in member.short.items():
                short[name, len(constant)].append(constant)
        for member in self._members:
            for name, track in member.tracks.items():
                beside = short.get((name, len(track.std)), ())
                if len(beside) >= _COMPANY:
                    never = (track.std == 0) & np.all(beside, axis=0)
                    usual.update((member.name, name, channel) for channel in np.flatnonzero(never).tolist())
        return usual

    def usual_still(self, camera: str) -> float:
        """The usual length of the longest run of equal images of a camera; 0 if it is not known."""
        lengths = [member.stills[camera] for member in self._members if camera in member.stills]
        return float(np.median(lengths)) if len(lengths) >= _COMPANY else 0.0

    def _groups(self) -> list[_Alike]:
        """Episodes of one task together; those of tasks with few episodes are one group."""
        tasks: dict[str, list[SetMember]] = defaultdict(list)
        for member in self._members:
            tasks[member.task].append(member)
        large = [members for members in tasks.values() if len(members) >= MIN_EPISODES]
        rest = [member for members in tasks.values() if len(members) < MIN_EPISODES for member in members]
        return [_Alike(members) for members in (*large, rest) if len(members) >= MIN_EPISODES]


class _Alike:
    """Episodes that are alike."""

    def __init__(self, members: Sequence[SetMember]) -> None:
        self._members = members

    def findings(self) -> Iterator[Finding]:
        """What sets an episode apart from the others; one cause is named once."""
        lengths = list(self._lengths())
        # An episode that ends early runs otherwise, leaves joints alone, ends elsewhere and earns less.
        cut = {finding.episode for finding in lengths}
        mixed = [finding for finding in self._swapped() if finding.episode not in cut]
        mixed += (finding for finding in self._dead(_channels(mixed)) if finding.episode not in cut)
        yield from lengths
        yield from mixed
        yield from self._returns(cut)
        yield from self._final_states(cut, _channels(mixed))  # mixed up channels are not where they seem
        jerks = [finding for finding in self._jerks() if finding.episode not in cut]
        yield from jerks
        jerky = {(finding.episode, finding.signal) for finding in jerks}
        yield from (finding for finding in self._spikes() if (finding.episode, finding.signal) not in jerky)
        yield from self._shifts("cameras")
        yield from self._shifts("actions")
        yield from self._views()

    def usual_constants(self) -> Iterator[tuple[str, str, int]]:
        """Episode, signal and channel that never changes there, and neither in several others, though it can."""
        for name, chosen, tracks in self._signals():
            constant = np.stack([track.std == 0 for track in tracks])
            often = constant.sum(0)
            usual = (often >= _company(len(tracks))) & (often < len(tracks)) | self._hardly(tracks).any(0)
            for position, channel in np.argwhere(constant & usual).tolist():
                yield self._members[chosen[position]].name, name, channel

    @staticmethod
    def _hardly(tracks: Sequence[_Track]) -> NDArray[np.bool_]:
        """[episode, channel]: whether it moves by no more than a few of the smallest steps of its sensor."""
        grain = _median(tracks, "grain")
        return np.stack([(track.std > 0) & (track.extent <= _GRAINS * grain) for track in tracks])

    def _lengths(self) -> Iterator[Finding]:
        chosen = [at for at, member in enumerate(self._members) if not member.is_empty]
        seconds = np.array([self._members[at].seconds for at in chosen])
        usual = float(np.median(seconds)) if chosen else 0.0
        if usual:
            # One record takes no time, which has no logarithm.
            lengths = np.log(np.maximum(seconds, _SHORTEST_SHARE * usual))
            for odd in _alone(lengths, np.log(_LENGTH_FACTOR)):
                text = f"{seconds[odd]:.2f} s long, the others about {usual:.2f} s"
                yield self._finding(
                    "outlier-length", chosen[odd], None, text, seconds=seconds[odd], usual=usual
                )

    def _returns(self, cut: set[str]) -> Iterator[Finding]:
        members = self._members
        chosen = [
            at for at, item in enumerate(members) if item.total_reward is not None and item.name not in cut
        ]
        total = np.array([members[at].total_reward for at in chosen], np.float64)
        if chosen:
            usual = float(np.median(total))
            # Whether the one reward at the end came or not is no oddity.
            single = float(np.median([members[at].largest_reward for at in chosen]))
            for odd in _alone(total, max(_RETURN_SHARE * abs(usual), single), _RETURN_GAP):
                text = f"a return of {total[odd]:.4g}, the others have about {usual:.4g}"
                yield self._finding("outlier-return", chosen[odd], None, text, total=total[odd], usual=usual)

    def _final_states(self, cut: set[str], known: set[tuple[str, str | None, int]]) -> Iterator[Finding]:
        for name, chosen, tracks in self._signals(is_action=False):
            reach, grain = (_median(tracks, key) for key in ("reach", "grain"))
            least = np.maximum(_STATE_SHARE * reach, _GRAINS * grain)
            away: dict[int, list[int]] = defaultdict(list)
            for channel in range(len(least)):
                # A constant one is named by the rule for those.
                left = [
                    position
                    for position, at in enumerate(chosen)
                    if self._members[at].name not in cut
                    and (self._members[at].name, name, channel) not in known
                    and tracks[position].std[channel] > 0
                ]
                final = np.array([tracks[position].final[channel] for position in left])
                alone = _alone(final, float(least[channel]), _WIDE_GAP)
                usual = np.delete(final, alone)
                # Where ends are scattered, the next one is no further out than the last ones were from each other.
                step = _END_STEPS * float(np.diff(np.sort(usual)).max(initial=0.0))
                for odd in alone:
                    apart = float(np.abs(usual - final[odd]).min())
                    company = np.abs(np.delete(final, odd) - final[odd]) < _NEAR_SHARE * apart
                    is_outside = not usual.min() <= final[odd] <= usual.max()
                    if apart > max(step * is_outside, tracks[left[odd]].drift[channel]) and not company.any():
                        away[left[odd]].append(channel)
            for position, channels in away.items():
                text = f"ends with {_listed(channels)} far from where the others end"
                yield self._finding("outlier-final-state", chosen[position], name, text, channels=channels)

    def _jerks(self) -> Iterator[Finding]:
        for name, chosen, tracks in self._signals(is_action=True):
            scale = _median(tracks, "std")
            if not scale.any():
                continue
            bend = np.stack([track.bend for track in tracks])[:, scale > 0]
            jerk = np.sqrt(((bend / scale[scale > 0]) ** 2).mean(1))
            usual = float(np.median(jerk))
            floor = 1e-6 + 1e-3 * usual
            for odd in _alone(np.log(jerk + floor), np.log(_JERK_FACTOR)):
                if jerk[odd] > usual:
                    times = jerk[odd] / max(usual, floor)
                    text = f"jumps {times:.1f} times as much as in the others"
                    yield self._finding("action-jerk", chosen[odd], name, text, times=times)

    def _spikes(self) -> Iterator[Finding]:
        """Single values far from their neighbours, in units of how far the channel moves in the set."""
        for name, chosen, tracks in self._signals(is_action=False):
            extent = _median(tracks, "extent")
            kick = np.stack([track.kick for track in tracks]) / np.where(extent > 0, extent, np.inf)
            usual = np.median(kick, axis=0)
            odd: dict[int, list[int]] = defaultdict(list)
            for channel, size in enumerate(kick.T):
                for position in _alone(np.log(size + _SPIKE_FLOOR), np.log(_SPIKE_FACTOR), _WIDE_GAP):
                    if size[position] > max(usual[channel], _SPIKE_SHARE):
                        odd[position].append(channel)
            for position, channels in odd.items():
                share = float(kick[position, channels].max())
                text = f"{_listed(channels)} jumps away and back by {share:.0%} of its range"
                yield self._finding("spikes", chosen[position], name, text, channels=channels, share=share)

    def _dead(self, known: set[tuple[str, str | None, int]]) -> Iterator[Finding]:
        for name, chosen, tracks in self._signals():
            std = np.stack([track.std for track in tracks])
            usual = np.median(std, axis=0)
            still = (std < _DEAD_SHARE * usual) & (usual > 0)
            # An exactly constant one is named by the rule for those, unless a constant is a choice.
            dead = still & ((std > 0) | tracks[0].is_action) & (still.sum(0) < _company(len(tracks)))
            # Where others move little, one that moves less has less far to go: goals are in all directions.
            dead &= np.where(still, np.inf, std).min(0) > _LITTLE_SHARE * usual
            stroke = np.stack([track.extent for track in tracks])
            full = np.median(stroke, axis=0)
            never = (stroke < _NO_STROKE * full) & (std > 0)
            is_alone = (never.sum(0) == 1) & (np.where(never, np.inf, stroke).min(0) > _FULL_STROKE * full)
            dead |= never & is_alone
            coarse = self._hardly(tracks).sum(0) > 1
            for channel in [] if tracks[0].is_action else np.flatnonzero(~coarse).tolist():
                stuck = np.array([track.stuck[channel] for track in tracks])
                for position in _alone(stuck, _STUCK_SHARE, _WIDE_GAP):
                    if stuck[position] > np.median(stuck) and std[position, channel] > 0:
                        dead[position, channel] = True
            for position in np.flatnonzero(dead.any(1)).tolist():
                episode = self._members[chosen[position]].name
                channels = [
                    c for c in np.flatnonzero(dead[position]).tolist() if (episode, name, c) not in known
                ]
                if channels:
                    text = f"{_listed(channels)} hardly moves"
                    yield self._finding("dead-channel", chosen[position], name, text, channels=channels)

    def _swapped(self) -> Iterator[Finding]:
        for name, chosen, tracks in self._signals():
            shapes = np.stack([track.shape for track in tracks])
            swaps = list(_exchanged(shapes, np.stack([track.extent for track in tracks])))
            if len({position for position, *_ in swaps}) >= _company(len(tracks)):
                continue
            for position, one, other in swaps:
                text = f"channels {one} and {other} look like each other's"
                yield self._finding("swapped-channels", chosen[position], name, text, channels=[one, other])

    def _shifts(self, kind: str) -> Iterator[Finding]:
        """Cameras or actions whose delay against the state differs from the usual one."""
        groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for at, member in enumerate(self._members):
            for name, sight in getattr(member, kind).items():
                groups[name, sight.views.shape[1], sight.state.shape[1]].append(at)
        for (name, *_), chosen in sorted(groups.items()):
            sights = [getattr(self._members[at], kind)[name] for at in chosen]
            lags = lags_of(sights) if len(chosen) >= MIN_EPISODES else None
            if lags is None:
                continue
            seconds = np.array([lag.seconds for lag in lags])
            usual = float(np.median(seconds))
            spread = _LAG_SPREAD * _MAD_TO_STD * float(np.median(np.abs(seconds - usual)))
            for at, sight, lag in zip(chosen, sights, lags, strict=True):
                late = lag.seconds - usual
                left, before = 1 - lag.explained, 1 - lag.at(usual)
                is_clear = lag.explained >= MIN_EXPLAINED and left < _LAG_GAIN * before
                if is_clear and abs(late) >= max(_LAG_FRAMES * sight.pause_s, spread):
                    text = f"shows what happens {abs(late):.2f} s {'late' if late > 0 else 'early'}"
                    yield self._finding("time-shift", at, name, text, seconds=late)

    def _views(self) -> Iterator[Finding]:
        """Cameras whose mean picture is far from the mean picture of the others."""
        cameras: dict[tuple[str, int], list[int]] = defaultdict(list)
        for at, member in enumerate(self._members):
            for name, sight in member.cameras.items():
                cameras[name, sight.views.shape[1]].append(at)
        for (name, _), chosen in sorted(cameras.items()):
            if len(chosen) < MIN_EPISODES:
                continue
            views = [self._members[at].cameras[name].views for at in chosen]
            means = np.stack([view.mean(0, dtype=np.float64) for view in views])
            away = np.sqrt(((means - np.median(means, axis=0)) ** 2).mean(1))
            floor = max(float(np.median(away)), 1.0)
            for position in _alone(np.log(away + floor), least=np.log(_VIEW_FACTOR)):
                if away[position] > floor:
                    text = (
                        f"differs from the others by {away[position]:.0f} of 255, they by about {floor:.0f}"
                    )
                    yield self._finding("odd-view", chosen[position], name, text, away=away[position])

    def copies(self) -> Iterator[Finding]:
        """Episodes that are nearly the same recording as one before them, whole or trimmed."""
        pairs = self._trimmed_copies() | self._near_courses()
        for (first, second), away in sorted(pairs.items()):
            other = self._members[first].name
            text = f"nearly the same recording as {other}"
            yield self._finding("near-duplicate", second, None, text, other=other, distance=away)

    def _trimmed_copies(self) -> dict[tuple[int, int], float]:
        """Pairs that have the same records in every signal with many distinct ones."""
        shares: dict[tuple[int, int], list[float]] = defaultdict(list)
        names = [name for name, chosen, _ in self._signals() if len(chosen) == len(self._members)]
        tried = 0
        for name in names:
            keys = [member.tracks[name].keys for member in self._members]
            if min(map(len, keys)) < _FEW_KEYS:
                continue
            tried += 1
            holders: dict[int, list[int]] = defaultdict(list)
            for at, own in enumerate(keys):
                for key in own.tolist():
                    holders[key].append(at)
            together = Counter(pair for held in holders.values() for pair in combinations(held[:20], 2))
            for (first, second), count in together.items():
                both = np.union1d(keys[first], keys[second])[:_KEYS]
                shares[first, second].append(min(count, len(both)) / len(both))
        pairs = {
            pair: 0.0 for pair, every in shares.items() if len(every) == tried and min(every) > _SAME_KEYS
        }
        copied = {at for pair in pairs for at in pair}
        return pairs if len(copied) <= max(2, _ODD_SHARE * len(self._members)) else {}

    def _near_courses(self) -> dict[tuple[int, int], float]:
        """Pairs whose courses differ by far less than those of other episodes."""
        names = [name for name, chosen, _ in self._signals() if len(chosen) == len(self._members)]
        if not names:
            return {}
        columns = []
        for name in names:  # in units of how much each channel moves in the set
            shapes = np.stack([member.tracks[name].shape for member in self._members])
            scale = shapes.std(axis=(0, 1))
            shapes = shapes - shapes.mean(
                axis=(0, 1)
            )  # a large offset would leave no digits for what differs
            columns.append((shapes / np.where(scale > 0, scale, 1.0)).reshape(len(shapes), -1))
        # For each vector how far the nearest other one and the next are, per number, and which is nearest.
        vectors = np.concatenate(columns, 1).astype(np.float32)
        squares = (vectors.astype(np.float64) ** 2).sum(1)
        distance: list[tuple[float, float, int]] = []
        for start in range(0, len(vectors), 256):
            block = vectors[start : start + 256]
            away = squares[start : start + 256, None] + squares - 2.0 * (block @ vectors.T)
            away[np.arange(len(block)), np.arange(start, start + len(block))] = np.inf
            for row, (first, second) in enumerate(np.argpartition(away, 1, axis=1)[:, :2].tolist()):
                exact = [
                    (float(((block[row] - vectors[at]) ** 2).mean()) ** 0.5, at) for at in (first, second)
                ]
                (near, nearest), (beyond, _) = sorted(exact)
                distance.append((near, beyond, nearest))
        limit = min(_COPY_STD, _COPY_SHARE * float(np.median([away for away, _, _ in distance])))
        # By chance the nearest is r times as far as the next one with probability r to the power of the dimension.
        share = np.array([away / max(next_away, 1e-12) for away, next_away, _ in distance])
        dimension = np.log(0.5) / min(float(np.median(np.log(np.maximum(share, 1e-12)))), -5e-3)
        is_close = (share < _COPY_NEXT) & (len(share) * share**dimension < _COPY_CHANCE)
        seconds = [max(member.seconds, 1e-9) for member in self._members]
        pairs = {}
        for at, (away, _, other) in enumerate(distance):
            is_as_long = abs(np.log(seconds[at] / seconds[other])) <= _COPY_LENGTH
            if (away <= limit or is_close[at]) and is_as_long:
                pairs[min(at, other), max(at, other)] = away
        return pairs

    def _signals(self, is_action: bool | None = None) -> Iterator[tuple[str, list[int], list[_Track]]]:
        """Signals that enough episodes have in one shape: name, positions of the episodes, what is remembered."""
        groups: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
        for at, member in enumerate(self._members):
            for name, track in member.tracks.items():
                if is_action is None or track.is_action == is_action:
                    groups[name, len(track.final), track.is_action].append(at)
        for (name, *_), chosen in sorted(groups.items()):
            if len(chosen) >= MIN_EPISODES:
                yield name, chosen, [self._members[at].tracks[name] for at in chosen]

    def _finding(self, rule: str, at: int, signal: str | None, text: str, **details: Any) -> Finding:
        plain = {key: float(item) if isinstance(item, np.floating) else item for key, item in details.items()}
        return Finding.of(rule, self._members[at].name, signal, text, **plain)


def _channels(findings: Sequence[Finding]) -> set[tuple[str, str | None, int]]:
    """Episode, signal and channel of findings."""
    return {(finding.episode, finding.signal, c) for finding in findings for c in finding.details["channels"]}


def _median(tracks: Sequence[_Track], key: str) -> Numbers:
    """The median over episodes of what is remembered, per channel."""
    return np.asarray(np.median([getattr(track, key) for track in tracks], axis=0))


def _company(count: int) -> float:
    """How many of so many episodes must be alike to be usual."""
    return max(_COMPANY, _COMPANY_SHARE * count)


def _alone(values: Numbers, least: float, gap: float = _GAP) -> list[int]:
    """Positions of the few values that stand alone: `gap` deviations, and `least`, from where many are."""
    count = len(values)
    if count < MIN_EPISODES:
        return []
    order = np.argsort(values)
    ranked = values[order]
    core = max(_CORE, round(_CORE_SHARE * count))
    width = float((ranked[core - 1 :] - ranked[: count - core + 1]).min())
    spread = width / (2 * NormalDist().inv_cdf(0.5 + core / count / 2))
    apart = np.flatnonzero(np.diff(ranked) > max(_GAP * spread, least, 1e-12)) + 1
    clumps = np.split(order, apart)
    usual = [values[clump] for clump in clumps if len(clump) >= _company(count)]
    odd = [at for clump in clumps if len(clump) < _company(count) for at in clump.tolist()]
    if not usual or len(odd) > max(2, _ODD_SHARE * count):
        return []  # scattered
    return sorted(at for at in odd if _is_far(float(values[at]), usual, gap))


def _is_far(value: float, usual: Sequence[Numbers], gap: float) -> bool:
    """Whether a value is far from the clump that is nearest to it."""
    away, near = min(
        ((float(np.abs(clump - value).min()), clump) for clump in usual), key=lambda pair: pair[0]
    )
    return away > gap * (1 + _FEW / len(near)) * float(near.std())


def _exchanged(shapes: Numbers, extents: Numbers) -> Iterator[tuple[int, int, int]]:
    """Episodes and two channels in each that run as in no other episode, but as the other one does there."""
    middle = np.median(shapes, axis=0)
    spread = _MAD_TO_STD * np.median(np.abs(shapes - middle), axis=0)
    least = _LEAST_SPREAD * np.median(extents, axis=0) + 1e-9 * np.abs(middle).max(0) + 1e-12
    scale = np.maximum(spread, least)
    courses = (shapes - middle) / scale
    # A course has company: several others run like it. How far the usual ones are from theirs is the unit.
    own = np.stack([_company_away(course, course, _COMPANY + 1) for course in courses.transpose(2, 0, 1)], 1)
    usual = np.sort(own, axis=0)[-math.ceil(_company(len(own)))] + 1e-9
    away = own / usual
    for at, is_far in enumerate(away > _SWAP_FAR):
        for one, other in combinations(np.flatnonzero(is_far).tolist(), 2):
            here, there = [one, other], [other, one]
            exchanged = (shapes[at][:, there] - middle[:, here]) / scale[:, here]
            crossed = [
                float(
                    _company_away(exchanged[None, :, column], courses[:, :, channel], _COMPANY)[0]
                    / usual[channel]
                )
                for column, channel in enumerate(here)
            ]
            if away[at, here].min() > _SWAP_FAR * max(1.0, *crossed):
                yield at, one, other


def _company_away(rows: Numbers, others: Numbers, count: int) -> Numbers:
    """How far so many of the others are at most, per number, from each row; a block of rows at a time."""
    squares = (others**2).mean(1)
    out = []
    for start in range(0, len(rows), 256):
        block = rows[start : start + 256]
        away = (block**2).mean(1)[:, None] + squares - 2.0 / rows.shape[1] * (block @ others.T)
        out.append(np.sqrt(np.maximum(np.partition(away, count - 1, axis=1)[:, count - 1], 0.0)))
    return np.concatenate(out)


def _listed(channels: Sequence[int]) -> str:
    shown = ", ".join(map(str, channels[:8]))
    return f"channel {shown}" if len(channels) == 1 else f"channels {shown}"


MIN_VIEWS = 20

_TILES = 6
_MAX_VIEWS = 48
_STATE_POINTS = 512
_SMOOTH = 9
_MAX_LAG_S, _MAX_LAG_SHARE, _LAG_STEPS = 1.5, 0.3, 91
_RIDGE = 1e-2
_AS_WELL = 1.5
MIN_EXPLAINED = 0.5
"""A model that explains less of a channel of the state than this is not used."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sight:
    """Some small pictures of a camera, or actions, of one episode, and its state."""

    times_s: Floats
    views: NDArray[np.float32]
    pause_s: float
    state_times_s: Floats
    state: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Lag:
    """By how many seconds a camera is late, and how much of the state its pictures explain then."""

    seconds: float
    explained: float
    tried: Floats
    explained_at: Floats

    def at(self, seconds: float) -> float:
        """How much of the state the pictures explain if they are late by this."""
        return float(np.interp(seconds, self.tried, self.explained_at))


def look_at(signal: Signal, states: Sequence[Signal], *, is_camera: bool) -> Sight | None:
    """Some pictures of a camera, or actions, beside the states; None of few records.

    Actions are compared with the speeds of the states too, which velocities command.
    """
    if len(signal) < MIN_VIEWS or not states:
        return None
    first = max(state.first_ts_ns for state in states)
    last = min(state.last_ts_ns for state in states)
    if last <= first:
        return None
    most = _MAX_VIEWS if is_camera else 4 * _MAX_VIEWS
    rows = np.unique(np.linspace(0, len(signal) - 1, min(most, len(signal))).astype(np.int64))
    if is_camera:
        views = np.stack([_small(signal[int(row)][0]) for row in rows])
    else:
        views = np.asarray(signal.values(), np.float32).reshape(len(signal), -1)[rows]
    grid = np.linspace(first, last, _STATE_POINTS)
    columns = [
        np.interp(grid, state.timestamps, column)
        for state in states
        for column in np.asarray(state.values(), np.float64).reshape(len(state), -1).T
    ]
    if not is_camera:
        smooth = np.ones(_SMOOTH) / _SMOOTH
        padded = [np.pad(column, _SMOOTH // 2, mode="edge") for column in columns]
        columns += [np.gradient(np.convolve(column, smooth, "valid")) for column in padded]
    return Sight(
        (signal.timestamps[rows] - first) / 1e9,
        views,
        float(np.median(np.diff(signal.timestamps))) / 1e9,
        (grid - first) / 1e9,
        np.stack(columns, 1).astype(np.float32),
    )


def lags_of(sights: Sequence[Sight]) -> list[Lag] | None:
    """The lag of each camera, if pictures of this set show the state at all; else None."""
    centre, scale = _spread(np.concatenate([sight.state for sight in sights]))
    moving = scale > 1e-9
    if not moving.any():
        return None
    wanted = [_state_at(sight, sight.times_s, centre, scale)[:, moving] for sight in sights]
    middle, width = _spread(np.concatenate([sight.views for sight in sights]))
    seen = [
        np.c_[(sight.views - middle) / np.where(width > 1e-6, width, 1.0), np.ones(len(sight.views))]
        for sight in sights
    ]
    # The state by a model of the other episodes: a model of its own would have learnt its lag.
    grams = [features.T @ features for features in seen]
    products = [features.T @ state for features, state in zip(seen, wanted, strict=True)]
    gram, product, count = sum(grams), sum(products), sum(map(len, seen))
    ridge = _RIDGE * count * np.eye(len(grams[0]))
    predictions = [
        features @ np.linalg.solve(gram - own + ridge, product - own_product)
        for features, own, own_product in zip(seen, grams, products, strict=True)
    ]
    predicted, truth = np.concatenate(predictions), np.concatenate(wanted)
    # A camera does not show every joint: those it shows best give its time, others only move along with them.
    left = ((predicted - truth) ** 2).sum(0) / np.maximum(((truth - truth.mean(0)) ** 2).sum(0), 1e-12)
    if left.min() > 1 - MIN_EXPLAINED:
        return None
    is_shown = left <= _AS_WELL * left.min()
    # Up to a second or so in small steps, and up to a share of the usual length in larger ones.
    even = np.linspace(-1, 1, _LAG_STEPS)
    usual = float(np.median([sight.state_times_s[-1] for sight in sights]))
    shown, tried = (
        np.flatnonzero(moving)[is_shown],
        np.unique(np.concatenate([_MAX_LAG_S * even, _MAX_LAG_SHARE * usual * even])),
    )
    lags = []
    for sight, every in zip(sights, predictions, strict=True):
        predicted = every[:, is_shown]
        state = (sight.state[:, shown] - centre[shown]) / scale[shown]
        curve = np.array([_explained(sight, state, predicted, lag) for lag in tried])
        lags.append(Lag(float(tried[curve.argmax()]), float(curve.max()), tried, curve))
    return lags


def _small(image: NDArray[np.generic]) -> NDArray[np.float32]:
    """The mean colour of a few tiles."""
    pixels = np.asarray(image, np.float32)
    rows = np.array_split(pixels, min(_TILES, pixels.shape[0]), axis=0)
    tiles = [
        tile.mean(axis=(0, 1))
        for row in rows
        for tile in np.array_split(row, min(_TILES, pixels.shape[1]), axis=1)
    ]
    return np.asarray(tiles, np.float32).reshape(-1)


def _spread(values: NDArray[np.float32]) -> tuple[Floats, Floats]:
    return values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)


def _state_at(sight: Sight, times_s: Floats, centre: Floats, scale: Floats) -> Floats:
    columns = [np.interp(times_s, sight.state_times_s, column) for column in sight.state.T]
    return (np.stack(columns, 1) - centre) / np.where(scale > 1e-9, scale, 1.0)


def _explained(sight: Sight, state: Floats, predicted: Floats, lag_s: float) -> float:
    """The share of the state's variance that the pictures explain if they are late by `lag_s`."""
    times = sight.times_s - lag_s
    inside = (times >= 0) & (times <= sight.state_times_s[-1])
    if inside.sum() < max(MIN_VIEWS // 2, len(times) // 2):
        return -np.inf
    truth = np.stack([np.interp(times[inside], sight.state_times_s, column) for column in state.T], 1)
    spread = ((truth - truth.mean(0)) ** 2).sum()
    return float(1.0 - ((predicted[inside] - truth) ** 2).sum() / spread) if spread else -np.inf
