"""Whole windows of episodes as vectors: scaled states, motion, and small pictures. Numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import nearest
from warpdata.search.moments.behaviour import Behaviour
from warpdata.timeline.pictures import picture_shape

Floats = NDArray[np.float32]
Windows = Mapping[str, NDArray[Any]]
"""Several windows of equal length: by channel, an array [windows, steps, *shape]."""

POINTS = 16
"""A motion is compared at so many moments of its window."""
_SPEED_WEIGHT = 0.5
"""Differences of neighbouring moments count so much beside the positions."""
_FADING = 0.7
"""The last moment of a window counts exp(-0.7) of the first: performances of other speeds drift apart."""
_STILL = 0.3
"""Motions smaller than this, in spreads of the set, are not stretched to the size of the others."""
_SIDE = 4
_DIRECTIONS = 8
_FRAMES = 3
SAMPLED_EPISODES = 64
_SAMPLED_STEPS = 512


@dataclass(frozen=True)
class Scale:
    """Mean and spread of every number of the channels, learned from the set and stored with the vectors."""

    numbers: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def learn(cls, behaviours: Iterator[Behaviour]) -> Scale:
        """The scale of a set, from evenly spread steps of some of its episodes."""
        values: dict[str, list[NDArray[Any]]] = {}
        for behaviour in behaviours:
            count = min(_SAMPLED_STEPS, behaviour.length)
            rows = np.unique(np.linspace(0, behaviour.length - 1, count).astype(np.int64))
            for name, signal in behaviour.signals.items():
                if picture_shape(signal.row_shape) is None:
                    values.setdefault(name, []).append(np.asarray(signal[rows]).reshape(len(rows), -1))
        scale = {}
        for name, parts in values.items():
            if len({part.shape[1] for part in parts}) > 1:
                raise ValueError(
                    f"channel {name!r} has another size in some episodes: name others with signals="
                )
            data = np.concatenate(parts).astype(np.float64)
            spread = data.std(axis=0)
            scale[name] = (
                data.mean(axis=0).astype(np.float32),
                np.where(spread > 0, spread, 1).astype(np.float32),
            )
        return cls(scale)

    def to_text(self) -> str:
        """The note of the file."""
        numbers = {name: [mean.tolist(), spread.tolist()] for name, (mean, spread) in self.numbers.items()}
        return dump_json(numbers).decode()

    @classmethod
    def parse(cls, text: str | None) -> Scale:
        """The scale of a note; an empty one without it."""
        body = parse_json_object((text or "{}").encode())
        return cls(
            {name: (np.array(m, np.float32), np.array(s, np.float32)) for name, (m, s) in body.items()}
        )

    def scaled(self, windows: Windows) -> Floats:
        """All numbers of the windows, [windows, steps, numbers], each by its own spread; channels in order of name."""
        parts = []
        for name in sorted(self.numbers):
            if name not in windows:
                raise ValueError(
                    f"missing channel {name!r}: the vectors were made of {', '.join(self.numbers)}"
                )
            data = windows[name]
            flat = data.reshape(*data.shape[:2], -1).astype(np.float32)
            mean, spread = self.numbers[name]
            if flat.shape[2] != len(mean):
                raise ValueError(f"channel {name!r} has {flat.shape[2]} numbers: expected {len(mean)}")
            parts.append((flat - mean) / spread)
        if not parts:
            raise ValueError("there are no numbers to compare")
        return np.concatenate(parts, axis=2)


def embed_state(windows: Windows, scale: Scale) -> Floats:
    """The mean of the scaled numbers over each window."""
    return np.asarray(scale.scaled(windows).mean(axis=1), np.float32)


def embed_motion(windows: Windows, scale: Scale) -> Floats:
    """How the scaled numbers move from where the window begins: positions and differences, of equal overall size."""
    flat = {n: data.reshape(*data.shape[:2], -1) for n, data in windows.items() if n in scale.numbers}
    points = scale.scaled({name: resample(data, POINTS) for name, data in flat.items()})
    points -= points[:, :2].mean(axis=1, keepdims=True)
    points *= np.exp(-_FADING * np.linspace(0, 1, POINTS, dtype=np.float32))[:, None]
    moves = np.diff(points, axis=1) * np.float32(_SPEED_WEIGHT)
    both = np.concatenate([points.reshape(len(points), -1), moves.reshape(len(points), -1)], axis=1)
    both /= np.float32(np.sqrt(both.shape[1] / 2))
    return both / np.maximum(np.linalg.norm(both, axis=1, keepdims=True), np.float32(_STILL))


def resample(values: Floats, count: int) -> Floats:
    """[windows, steps, numbers] at `count` evenly spread moments, linear between steps."""
    steps = values.shape[1]
    at = np.linspace(0, steps - 1, count)
    low = np.minimum(at.astype(np.int64), max(0, steps - 2))
    share = (at - low).astype(np.float32)
    weights = np.zeros((count, steps), np.float32)
    weights[np.arange(count), low] = 1 - share
    weights[np.arange(count), np.minimum(low + 1, steps - 1)] += share
    points: Floats = np.matmul(weights, values.astype(np.float32, copy=False))
    return points


def embed_image(windows: Windows, scale: Scale) -> Floats:  # noqa: ARG001
    """Colour layout and directions of edges of frames at the start, in the middle and at the end of each window."""
    parts = []
    for name in sorted(windows):
        data = windows[name]
        if picture_shape(data.shape[2:]) is not None:
            rows = np.unique(np.linspace(0, data.shape[1] - 1, _FRAMES).astype(np.int64))
            for row in np.resize(rows, _FRAMES):
                parts.append(_picture_vectors(data[:, row]))
    if not parts:
        raise ValueError("there are no cameras to compare")
    return np.concatenate(parts, axis=1) / np.float32(len(parts))


def _picture_vectors(pictures: NDArray[Any]) -> Floats:
    values = pictures.astype(np.float32)
    if values.ndim == 3:
        values = values[..., None]
    elif picture_shape(pictures.shape[1:]) != pictures.shape[1:3]:
        values = np.moveaxis(values, 1, 3)
    if pictures.dtype == np.uint8:
        values = values / np.float32(255)
    grey = values.mean(axis=3)
    down, right = np.gradient(grey, axis=1), np.gradient(grey, axis=2)
    strength = np.hypot(down, right)
    turn = ((np.arctan2(down, right) / np.pi + 1) * (_DIRECTIONS / 2)).astype(np.int64) % _DIRECTIONS
    edges = np.stack([np.where(turn == number, strength, 0) for number in range(_DIRECTIONS)], axis=3)
    layout = _cells(values).reshape(len(values), -1)
    return np.concatenate([layout, 4 * _cells(edges).reshape(len(values), -1)], axis=1)


def _cells(values: Floats) -> Floats:
    """Means over a grid of cells: [pictures, side, side, colours]."""
    for axis in (1, 2):
        size = values.shape[axis]
        edges = np.arange(_SIDE) * size // _SIDE
        counts = np.maximum(np.diff(np.append(edges, size)), 1)
        shape = [1] * values.ndim
        shape[axis] = _SIDE
        sums = np.add.reduceat(values, edges, axis=axis)
        values = np.asarray(sums / counts.reshape(shape), np.float32)
    return values


WINDOWED = {"state": embed_state, "motion": embed_motion, "image": embed_image}


@dataclass(frozen=True)
class WindowEmbedder:
    """One of the built-in embedders of windows, or several joined with weights; numbers are scaled by the set's."""

    weights: tuple[tuple[str, float], ...]
    scale: Scale = field(default_factory=Scale)
    metric = "l2"
    wanted = "cameras or observations of numbers"

    @classmethod
    def named(cls, given: str | Mapping[str, float]) -> WindowEmbedder:
        """The embedder of a name, or of names with weights."""
        weights = {given: 1.0} if isinstance(given, str) else dict(given)
        for name, weight in weights.items():
            if name not in WINDOWED:
                known = ", ".join(WINDOWED)
                raise ValueError(
                    f"no embedder {name!r} of windows; there are {known}.{nearest(str(name), WINDOWED)}"
                )
            if not weight > 0:
                raise ValueError(f"the weight of {name!r} is above 0, not {weight}")
        return cls(tuple(sorted(weights.items())))

    @property
    def name(self) -> str:
        """Names and weights as a text, which is stored with the vectors."""
        return "+".join(name if weight == 1 else f"{weight:g}*{name}" for name, weight in self.weights)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether it looks at values of this shape."""
        is_picture = picture_shape(shape) is not None
        return any((name == "image") == is_picture for name, _ in self.weights)

    def __call__(self, windows: Windows) -> Floats:
        """The vectors of several windows of equal length."""
        parts = [np.float32(weight) * WINDOWED[name](windows, self.scale) for name, weight in self.weights]
        return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)


def window_spans(times_ns: NDArray[np.int64], window_s: float, stride_s: float) -> list[tuple[int, int]]:
    """The steps [start, end) of each window; the last one ends with the episode."""
    count = len(times_ns)
    period = int(np.median(np.diff(times_ns))) if count > 1 else 1
    length = min(count, max(1, round(window_s * 1e9 / max(1, period))))
    step = max(1, round(stride_s * 1e9 / max(1, period)))
    starts = [*range(0, count - length, step), count - length]
    return [(start, start + length) for start in starts]


def read_windows(behaviour: Behaviour, spans: Sequence[tuple[int, int]], names: Sequence[str]) -> Windows:
    """Windows of equal length of an episode, by channel."""
    low, high = spans[0][0], max(end for _, end in spans)
    rows = np.array([start - low for start, _ in spans])[:, None] + np.arange(spans[0][1] - spans[0][0])
    return {name: np.asarray(behaviour.signals[name][low:high])[rows] for name in names}
