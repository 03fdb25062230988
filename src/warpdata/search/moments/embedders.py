"""What turns moments of episodes into vectors: a function of the caller, or one of those that need no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import nearest
from warpdata.search.moments.observation import Observation
from warpdata.timeline.pictures import picture_shape

Embedder = Callable[[Any], Any]
"""Turns an `Observation` into a vector: an array (the first channel, flat) whose channels are found by name."""

Channels = Mapping[str, NDArray[Any]]
"""Several moments: by channel, an array with a row for each."""

Floats = NDArray[np.float32]

_SIDE = 16
"""Pictures are compared as so many by so many pixels."""


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


def _pixels(channels: Channels) -> Floats:
    """Every picture as a few grey pixels around their mean, and that mean: light counts for less than shape."""
    return np.concatenate([_thumbnails(each) for each in channels.values()], 1)


def _thumbnails(pictures: NDArray[Any]) -> Floats:
    values = pictures.astype(np.float32)
    if values.ndim == 4:
        is_last = picture_shape(pictures.shape[1:]) == pictures.shape[1:3]
        values = values.mean(axis=3 if is_last else 1)
    small = _pooled(_pooled(values, 1), 2).reshape(len(values), -1)
    mean = small.mean(axis=1, keepdims=True)
    return np.concatenate([small - mean, mean], axis=1)


def _pooled(values: Floats, axis: int) -> Floats:
    """Means of about equal stretches along an axis."""
    size = values.shape[axis]
    edges = np.arange(_SIDE) * size // _SIDE
    counts = np.maximum(np.diff(np.append(edges, size)), 1)
    shape = [1, 1, 1]
    shape[axis] = _SIDE
    sums = np.add.reduceat(values, edges, axis=axis)
    return np.asarray(sums / counts.reshape(shape), np.float32)


BUILT_IN = {
    each.name: each
    for each in (BuiltIn("state", "l2", False, _state), BuiltIn("pixels", "l2", True, _pixels))
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
    with np.errstate(over="ignore"):  # what is too large is not finite: said below
        vector = np.asarray(given, np.float32).ravel()
    if not vector.size or not np.isfinite(vector).all():
        raise ValueError("the embedder must give a vector of finite numbers")
    return np.array(vector)
