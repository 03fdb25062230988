"""Embedders: functions of the caller, and those that need no model, for moments and for whole windows. Numpy only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import nearest
from warpdata.search.moments.behaviour import Behaviour, Observation
from warpdata.timeline.pictures import picture_shape

Embedder = Callable[[Any], Any]
"""Turns an `Observation` into a vector: an array (the first channel, flat) whose channels are found by name."""

Channels = Mapping[str, NDArray[Any]]
"""Several moments: by channel, an array with a row for each."""

Windows = Mapping[str, NDArray[Any]]
"""Several windows of equal length: by channel, an array [windows, steps, *shape]."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """An embedder that is part of this library; called with one observation, or with `many` moments at once."""

    name: str
    metric: str
    is_of_pictures: bool
    many: Callable[[Channels], Floats]

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether it looks at values of this shape."""
        return (picture_shape(shape) is not None) == self.is_of_pictures

    def __call__(self, observation: Observation) -> Floats:
        """The vector of one moment."""
        found = {n: each[None] for n, each in sorted(observation.channels.items()) if self.takes(each.shape)}
        observation.use(list(found))
        if not found:
            raise ValueError(
                f"the embedder {self.name!r} finds nothing to look at: {self.wanted} are missing"
            )
        vector: Floats = self.many(found)[0]
        return vector

    @property
    def wanted(self) -> str:
        """What it looks at, in words."""
        return "cameras" if self.is_of_pictures else "observations of numbers"


def _state(channels: Channels) -> Floats:
    """All numbers that are no pictures, one channel after the other."""
    return np.concatenate([each.reshape(len(each), -1).astype(np.float32) for each in channels.values()], 1)


def _image(channels: Channels) -> Floats:
    """Colour layout and directions of edges of every picture."""
    return np.concatenate([_picture_vectors(each) for each in channels.values()], 1)


def _grid(values: Floats, side: int) -> Floats:
    """Means over a grid of about equal cells: [pictures, side, side, ...]."""
    for axis in (1, 2):
        size = values.shape[axis]
        edges = np.arange(side) * size // side
        shape = [1] * values.ndim
        shape[axis] = side
        counts = np.maximum(np.diff(np.append(edges, size)), 1).reshape(shape)
        values = np.asarray(np.add.reduceat(values, edges, axis=axis) / counts, np.float32)
    return values


BUILT_IN = {
    each.name: each for each in (BuiltIn("state", "l2", False, _state), BuiltIn("image", "l2", True, _image))
}


def embedder_of(given: Embedder | str) -> Embedder:
    """An embedder as it is, or one of this library by its name."""
    if not isinstance(given, str):
        if not callable(given):
            raise TypeError(f"an embedder is a function or the name of one, not {type(given).__name__}")
        return given
    if given not in BUILT_IN:
        raise ValueError(
            f"no embedder {given!r}; there are {', '.join(BUILT_IN)}, and functions of your own."
            f"{nearest(given, BUILT_IN)}"
        )
    return BUILT_IN[given]


def embedded(embedder: Embedder, observation: Observation) -> Floats:
    """The vector of one observation, checked."""
    given = as_array(embedder(observation))
    if given.dtype.kind not in "fiub" and given.dtype.name != "bfloat16":
        raise ValueError(f"the embedder must give a vector of finite numbers, not of {given.dtype}")
    with np.errstate(over="ignore"):  # what is too large is not finite: refused below
        vector = np.asarray(given, np.float32).ravel()
    if not vector.size or not np.isfinite(vector).all():
        raise ValueError("the embedder must give a vector of finite numbers")
    return np.array(vector)


def is_module(embedder: Any) -> bool:
    """Whether an embedder is a module of torch."""
    return all(hasattr(embedder, name) for name in ("state_dict", "parameters", "training"))


def run_module(module: Any, channels: Channels) -> NDArray[Any]:
    """The rows of a module of torch: it gets the one channel as a tensor, or several as a dict of tensors."""
    torch, first = sys.modules["torch"], next(iter(module.parameters()), None)
    tensors = {name: torch.as_tensor(np.array(each)) for name, each in channels.items()}
    if first is not None:
        tensors = {name: each.to(first.device, first.dtype) for name, each in tensors.items()}
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return as_array(module(tensors if len(tensors) > 1 else next(iter(tensors.values()))))
    finally:
        module.train(was_training)


# -- whole windows ---------------------------------------------------------------------------------------

POINTS = 16
"""A motion is compared at so many moments of its window."""
_SPEED_WEIGHT = 0.5
"""Differences of neighbouring moments count so much beside the positions."""
_FADING = 0.7
"""The last moment of a window counts exp(-0.7) of the first: performances of other speeds drift apart."""
_STILL = 0.3
"""Motions smaller than this, in spreads of the set, are not stretched to the size of the others."""
_CELLS = 4
_DIRECTIONS = 8
_FRAMES = 3
SAMPLED_EPISODES = 64
_OTHER_UNIT = 300
"""Values so many spreads away are counts, degrees or millimetres of what the set has in another unit."""
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

    def check(self, windows: Windows) -> None:
        """ValueError where numbers are in another unit than those the scale was learned from."""
        for name, (mean, spread) in self.numbers.items():
            values = windows[name].reshape(-1, len(mean)) if name in windows else mean[None]
            away = float(np.abs((values - mean) / spread).mean(axis=0).max())
            if away > _OTHER_UNIT:
                fact = f"scale mismatch: channel {name!r} is {away:.3g} spreads away from what the index has"
                raise ValueError(f"{fact}. Give it in the unit of the indexed episodes")

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
    sizes = np.linalg.norm(both, axis=1, keepdims=True)
    return np.asarray(both / np.maximum(sizes, np.float32(_STILL)), np.float32)


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
    for _, data in sorted(windows.items()):
        if picture_shape(data.shape[2:]) is not None:
            rows = np.unique(np.linspace(0, data.shape[1] - 1, _FRAMES).astype(np.int64))
            parts += [_picture_vectors(data[:, row]) for row in np.resize(rows, _FRAMES)]
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
    layout = _grid(values, _CELLS).reshape(len(values), -1)
    return np.concatenate([layout, 4 * _grid(edges, _CELLS).reshape(len(values), -1)], axis=1)


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
