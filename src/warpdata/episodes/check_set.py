"""What is wrong with an episode beside the others of its set: odd lengths, returns, motions, mixed up channels, copies.

Each rule compares an episode with the median of the set and with how far the others usually are from it, so a set
that varies widely has few outliers. Episodes that lack a signal, or have it in another shape, are left out of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.camera_lag import MIN_EXPLAINED, Sight, lags_of, look
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import ns_between

SET_RULES = {
    "outlier-length": "an episode is far shorter or longer than the others",
    "outlier-return": "the sum of the rewards is far from that of the others",
    "outlier-final-state": "an episode ends in a state far from where the others end",
    "action-jerk": "actions jump from one step to the next as in no other episode",
    "dead-channel": "a channel hardly moves where it moves in the others",
    "swapped-channels": "two channels look like each other's in all other episodes",
    "time-shift": "what a camera shows moves earlier or later than the state, unlike in the others",
    "near-duplicate": "two episodes are nearly the same recording",
}
"""Rule id -> what it says; all are warnings."""

MIN_EPISODES = 8
"""In a smaller set nothing can be called usual."""

_MIN_RECORDS = 10
_MAX_CHANNELS = 64
_POINTS = 32
_MAD_TO_STD = 1.4826
_FAR = 8.0
"""So many usual deviations from the median are an outlier."""

_LENGTH_FACTOR = 1.5
_JERK_FACTOR = 3.0
_RETURN_SHARE = 0.25
_STATE_SHARE = 0.1
_DEAD_SHARE = 0.02
_COPY_SHARE = 0.05
_COPY_STD = 0.05
_LAG_FRAMES, _LAG_GAIN = 3, 0.5

Numbers = NDArray[np.float64]


class SetFinding(NamedTuple):
    """One thing that is wrong with an episode of a set."""

    rule: str
    episode: str
    signal: str | None
    message: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Track:
    """What is remembered of one numeric signal of one episode, per channel."""

    final: Numbers
    std: Numbers
    bend: Numbers
    """How much the second difference of the values is, on average."""
    profile: Numbers
    """Mean, deviation, first, last, low and high value: [features, channels]."""
    shape: Numbers
    """The values at even times: [points, channels]."""


@dataclass(slots=True)
class SetMember:
    """What is remembered of an episode."""

    name: str
    seconds: float
    total_reward: float | None = None
    tracks: dict[str, _Track] = field(default_factory=dict)
    sights: dict[str, Sight] = field(default_factory=dict)
    """Some pictures of each camera."""


class EpisodeSet:
    """Remembers a little of each episode, then says which do not belong."""

    def __init__(self, is_action: Callable[[str], bool]) -> None:
        self._is_action = is_action
        self._members: list[SetMember] = []

    def add(self, member: SetMember) -> None:
        """One more episode."""
        self._members.append(member)

    def findings(self) -> Iterator[SetFinding]:
        """Everything that sets an episode apart; one cause is named once."""
        if len(self._members) < MIN_EPISODES:
            return
        lengths = list(self._lengths())
        mixed = [*self._swapped(), *self._dead()]
        yield from lengths
        yield from mixed
        # What ends early ends elsewhere and earns less; what is mixed up is not where it seems: said already.
        cut = {each.episode for each in lengths}
        known = {(each.episode, each.signal, c) for each in mixed for c in each.details["channels"]}
        yield from (each for each in self._returns() if each.episode not in cut)
        yield from self._final_states(cut, known)
        yield from self._jerks()
        yield from self._shifts()
        yield from self._copies()

    def _lengths(self) -> Iterator[SetFinding]:
        seconds = np.array([each.seconds for each in self._members])
        if not (seconds > 0).all():
            return
        for at in _far(np.log(seconds), least=np.log(_LENGTH_FACTOR)):
            usual = float(np.median(seconds))
            text = f"{seconds[at]:.2f} s long, the others about {usual:.2f} s"
            yield self._found("outlier-length", at, None, text, seconds=seconds[at], usual=usual)

    def _returns(self) -> Iterator[SetFinding]:
        chosen = [at for at, each in enumerate(self._members) if each.total_reward is not None]
        total = np.array([self._members[at].total_reward for at in chosen], np.float64)
        if len(total) < MIN_EPISODES:
            return
        usual = float(np.median(total))
        for position in _far(total, least=_RETURN_SHARE * abs(usual)):
            text = f"a return of {total[position]:.4g}, the others have about {usual:.4g}"
            yield self._found(
                "outlier-return", chosen[position], None, text, total=total[position], usual=usual
            )

    def _final_states(self, cut: set[str], known: set[tuple[str, str | None, int]]) -> Iterator[SetFinding]:
        for name, chosen, tracks in self._groups():
            if self._is_action(name):
                continue
            final = np.stack([each.final for each in tracks])
            range_of = np.stack([each.profile[5] - each.profile[4] for each in tracks])
            away: dict[int, list[int]] = defaultdict(list)
            for channel in range(final.shape[1]):
                least = _STATE_SHARE * float(np.median(range_of[:, channel]))
                for position in _far(final[:, channel], least=least):
                    away[position].append(channel)
            for position, channels in away.items():
                episode = self._members[chosen[position]].name
                # One that is constant is named by the rule for those.
                left = [
                    c for c in channels if (episode, name, c) not in known and tracks[position].std[c] > 0
                ]
                if left and episode not in cut:
                    text = f"ends with {_listed(left)} far from where the others end"
                    yield self._found("outlier-final-state", chosen[position], name, text, channels=left)

    def _jerks(self) -> Iterator[SetFinding]:
        for name, chosen, tracks in self._groups():
            if not self._is_action(name):
                continue
            bend = np.stack([each.bend for each in tracks])
            scale = np.median(np.stack([each.std for each in tracks]), axis=0)
            moving = scale > 0
            if not moving.any():
                continue
            jerk = np.sqrt(((bend[:, moving] / scale[moving]) ** 2).mean(1))
            usual = float(np.median(jerk))
            floor = 1e-6 + 1e-3 * usual
            for position in _far(np.log(jerk + floor), least=np.log(_JERK_FACTOR)):
                if jerk[position] > usual:
                    times = jerk[position] / max(usual, floor)
                    text = f"jumps {times:.1f} times as much as in the others"
                    yield self._found("action-jerk", chosen[position], name, text, times=times)

    def _dead(self) -> Iterator[SetFinding]:
        for name, chosen, tracks in self._groups():
            std = np.stack([each.std for each in tracks])
            usual = np.median(std, axis=0)
            for position, at in enumerate(chosen):
                # One that is exactly constant is named by the rule for those.
                dead = np.flatnonzero((std[position] > 0) & (std[position] < _DEAD_SHARE * usual))
                if len(dead):
                    text = f"{_listed(dead.tolist())} hardly moves"
                    yield self._found("dead-channel", at, name, text, channels=dead.tolist())

    def _swapped(self) -> Iterator[SetFinding]:
        for name, chosen, tracks in self._groups():
            profiles = np.stack([each.profile for each in tracks])
            middle = np.median(profiles, axis=0)
            range_of = np.median(np.abs(profiles[:, 5] - profiles[:, 4]), axis=0)
            usual = _MAD_TO_STD * np.median(np.abs(profiles - middle), axis=0)
            scale = np.maximum(usual, 0.05 * range_of + 1e-12)
            for position, at in enumerate(chosen):
                # [own channel, whose profile]: how far this episode's channel is from each channel's usual one.
                away = np.median(
                    np.abs(profiles[position][:, :, None] - middle[:, None, :]) / scale[:, None, :], axis=0
                )
                for one, other in _pairs(away):
                    text = f"channels {one} and {other} look like each other's"
                    yield self._found("swapped-channels", at, name, text, channels=[one, other])

    def _shifts(self) -> Iterator[SetFinding]:
        found: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for at, member in enumerate(self._members):
            for name, sight in member.sights.items():
                found[name, sight.views.shape[1], sight.state.shape[1]].append(at)
        for (name, *_), chosen in sorted(found.items()):
            sights = [self._members[at].sights[name] for at in chosen]
            lags = lags_of(sights) if len(chosen) >= MIN_EPISODES else None
            if lags is None:
                continue
            seconds = np.array([each.seconds for each in lags])
            usual = float(np.median(seconds))
            spread = _FAR / 2 * _MAD_TO_STD * float(np.median(np.abs(seconds - usual)))
            for at, sight, lag in zip(chosen, sights, lags, strict=True):
                late = lag.seconds - usual
                left, before = 1 - lag.explained, 1 - lag.at(usual)
                is_clear = lag.explained >= MIN_EXPLAINED and left < _LAG_GAIN * before
                if is_clear and abs(late) >= max(_LAG_FRAMES * sight.pause_s, spread):
                    text = f"shows what happens {abs(late):.2f} s {'late' if late > 0 else 'early'}"
                    yield self._found("time-shift", at, name, text, seconds=late)

    def _copies(self) -> Iterator[SetFinding]:
        vectors = self._shapes()
        if vectors is None:
            return
        distance = _nearest_distances(vectors)
        usual = float(np.median([each for each, _ in distance]))
        limit = min(_COPY_STD, _COPY_SHARE * usual)
        said = set()
        for at, (away, other) in enumerate(distance):
            if away <= limit and (other, at) not in said:
                said.add((at, other))
                first, second = sorted((at, other))
                text = f"nearly the same recording as {self._members[first].name}"
                yield self._found(
                    "near-duplicate", second, None, text, other=self._members[first].name, distance=away
                )

    def _shapes(self) -> NDArray[np.float32] | None:
        """One vector per episode: its course, in units of how much each channel moves in the set."""
        names = [name for name, chosen, _ in self._groups() if len(chosen) == len(self._members)]
        if not names:
            return None
        columns = []
        for name in names:
            shapes = np.stack([each.tracks[name].shape for each in self._members])
            scale = shapes.std(axis=(0, 1))
            columns.append((shapes / np.where(scale > 0, scale, 1.0)).reshape(len(shapes), -1))
        return np.concatenate(columns, 1).astype(np.float32)

    def _groups(self) -> Iterator[tuple[str, list[int], list[_Track]]]:
        """Signals that enough episodes have in one shape: name, positions of the episodes, what is remembered."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for at, member in enumerate(self._members):
            for name, track in member.tracks.items():
                found[name, len(track.final)].append(at)
        for (name, _), chosen in sorted(found.items()):
            if len(chosen) >= MIN_EPISODES:
                yield name, chosen, [self._members[at].tracks[name] for at in chosen]

    def _found(self, rule: str, at: int, signal: str | None, text: str, **details: Any) -> SetFinding:
        plain = {key: float(each) if isinstance(each, np.floating) else each for key, each in details.items()}
        return SetFinding(rule, self._members[at].name, signal, text, plain)


def remembered(name: str, episode: Episode, is_action: Callable[[str], bool]) -> SetMember:
    """Look at an episode; signals that cannot be read are findings of other rules."""
    member = SetMember(name, 0.0)
    cameras: dict[str, Signal] = {}
    for each in episode.signals:
        try:
            signal = episode.signals[each]
            if len(signal):
                member.seconds = max(member.seconds, (signal.last_ts_ns - signal.first_ts_ns) / 1e9)
            if signal.meta.kind == "image":
                cameras[each] = signal
            elif not signal.meta.is_object and len(signal) >= _MIN_RECORDS:
                _track(member, each, signal)
        except WarpError:
            continue
    states = [episode.signals[each] for each in sorted(member.tracks) if not is_action(each)]
    for each, camera in cameras.items():
        try:
            sight = look(camera, states)
        except WarpError:
            continue
        if sight is not None:
            member.sights[each] = sight
    return member


def _track(member: SetMember, name: str, signal: Signal) -> None:
    values = np.asarray(signal.values(), np.float64).reshape(len(signal), -1)
    if values.shape[1] > _MAX_CHANNELS or not np.isfinite(values).all():
        return
    if name.rpartition("/")[2].startswith("reward"):
        member.total_reward = float(values.sum())
        return
    times = ns_between(signal.timestamps, signal.first_ts_ns)
    grid = np.linspace(0, float(times[-1]), _POINTS)
    shape = np.stack([np.interp(grid, times, column) for column in values.T], 1)
    low, high = np.quantile(values, (0.1, 0.9), axis=0)
    profile = np.stack([values.mean(0), values.std(0), values[0], values[-1], low, high])
    bend = np.sqrt((np.diff(values, 2, axis=0) ** 2).mean(0))
    member.tracks[name] = _Track(values[-1], values.std(0), bend, profile, shape)


def _far(values: Numbers, least: float) -> list[int]:
    """Positions of values farther from the median than the usual deviation allows, and than `least`."""
    away = np.abs(values - np.median(values))
    limit = max(_FAR * _MAD_TO_STD * float(np.median(away)), least, 1e-12)
    return np.flatnonzero(away > limit).tolist()


def _pairs(away: Numbers) -> Iterator[tuple[int, int]]:
    """Pairs of channels that are far from their own usual course and close to each other's."""
    own = np.diag(away)
    for one in np.flatnonzero(own > _FAR / 2).tolist():
        for other in range(one + 1, len(own)):
            crossed = max(away[one, other], away[other, one])
            if own[other] > _FAR / 2 and crossed < min(own[one], own[other]) / 3 and crossed < _FAR / 3:
                yield one, other


def _nearest_distances(vectors: NDArray[np.float32]) -> list[tuple[float, int]]:
    """For each vector how far the nearest other one is, per number, and which; a block of rows at a time."""
    squares = (vectors.astype(np.float64) ** 2).sum(1)
    out: list[tuple[float, int]] = []
    for start in range(0, len(vectors), 256):
        block = vectors[start : start + 256]
        away = squares[start : start + 256, None] + squares - 2.0 * (block @ vectors.T)
        away[np.arange(len(block)), np.arange(start, start + len(block))] = np.inf
        nearest = away.argmin(1)
        for row, other in enumerate(nearest.tolist()):
            exact = float(((block[row] - vectors[other]) ** 2).mean())
            out.append((exact**0.5, other))
    return out


def _listed(channels: Sequence[int]) -> str:
    shown = ", ".join(map(str, channels[:8]))
    return f"channel {shown}" if len(channels) == 1 else f"channels {shown}"
