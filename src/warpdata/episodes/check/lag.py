"""The delay of cameras and actions: a model of the set predicts the state from them, and finds its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpdata.timeline.signal import Signal

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


def _lags_to_try(sights: Sequence[Sight]) -> Floats:
    """Up to a second or so in small steps, and up to a share of the usual length in larger ones."""
    even = np.linspace(-1, 1, _LAG_STEPS)
    usual = float(np.median([each.state_times_s[-1] for each in sights]))
    return np.unique(np.concatenate([_MAX_LAG_S * even, _MAX_LAG_SHARE * usual * even]))


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
    centre, scale = _spread(np.concatenate([each.state for each in sights]))
    moving = scale > 1e-9
    if not moving.any():
        return None
    wanted = [_state_at(each, each.times_s, centre, scale)[:, moving] for each in sights]
    middle, width = _spread(np.concatenate([each.views for each in sights]))
    seen = [
        np.c_[(each.views - middle) / np.where(width > 1e-6, width, 1.0), np.ones(len(each.views))]
        for each in sights
    ]
    predictions = _predict_by_others(seen, wanted)
    predicted, truth = np.concatenate(predictions), np.concatenate(wanted)
    # A camera does not show every joint: those it shows best give its time, others only move along with them.
    left = ((predicted - truth) ** 2).sum(0) / np.maximum(((truth - truth.mean(0)) ** 2).sum(0), 1e-12)
    if left.min() > 1 - MIN_EXPLAINED:
        return None
    is_shown = left <= _AS_WELL * left.min()
    shown, tried = np.flatnonzero(moving)[is_shown], _lags_to_try(sights)
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


def _predict_by_others(seen: Sequence[Floats], wanted: Sequence[Floats]) -> list[Floats]:
    """The state by a model of the other episodes: a model of its own would have learnt its lag.

    Least squares with a little ridge, so that tiles that hardly change do not decide.
    """
    grams = [features.T @ features for features in seen]
    products = [features.T @ state for features, state in zip(seen, wanted, strict=True)]
    gram, product, count = sum(grams), sum(products), sum(map(len, seen))
    ridge = _RIDGE * count * np.eye(len(grams[0]))
    return [
        features @ np.linalg.solve(gram - own + ridge, product - own_product)
        for features, own, own_product in zip(seen, grams, products, strict=True)
    ]


def _explained(sight: Sight, state: Floats, predicted: Floats, lag_s: float) -> float:
    """The share of the state's variance that the pictures explain if they are late by `lag_s`."""
    times = sight.times_s - lag_s
    inside = (times >= 0) & (times <= sight.state_times_s[-1])
    if inside.sum() < max(MIN_VIEWS // 2, len(times) // 2):
        return -np.inf
    truth = np.stack([np.interp(times[inside], sight.state_times_s, column) for column in state.T], 1)
    spread = ((truth - truth.mean(0)) ** 2).sum()
    return float(1.0 - ((predicted[inside] - truth) ** 2).sum() / spread) if spread else -np.inf
