"""Images cut and scaled: whole numbers throughout, so the same pixels on every machine and in any batch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BITS = 14
"""Weights are whole numbers of 2^-14."""


def cut_box(shape: tuple[int, ...], crop: tuple[int, ...], name: str) -> tuple[slice, slice]:
    """The rows and columns a crop keeps of images of this shape, or ValueError."""
    height, width = shape[0], shape[1]
    if len(crop) == 2:
        top, left = (height - crop[0]) // 2, (width - crop[1]) // 2
    else:
        top, left = crop[0], crop[1]
    if top < 0 or left < 0 or top + crop[-2] > height or left + crop[-1] > width:
        raise ValueError(f"field {name!r}: a crop of {crop} does not fit images of {height} x {width}")
    return slice(top, top + crop[-2]), slice(left, left + crop[-1])


def scaled(images: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Images [n, height, width, …] at another size; what shrinks is averaged over all it covers."""
    if images.shape[1:3] == size:
        return images
    return _scaled_axis(_scaled_axis(images, 1, size[0]), 2, size[1])


def _scaled_axis(images: NDArray[Any], axis: int, count: int) -> NDArray[Any]:
    if images.shape[axis] == count:
        return images
    places, weights = _taps(images.shape[axis], count)
    whole = images.dtype.kind in "ui"
    shape = [1] * images.ndim
    shape[axis] = count
    total: Any = 0
    for tap in range(places.shape[1]):
        weight = weights[:, tap].reshape(shape)
        part = np.take(images, places[:, tap], axis=axis)
        total = total + (
            part.astype(np.int64) * weight if whole else part.astype(np.float64) * (weight / (1 << _BITS))
        )
    if not whole:
        return np.asarray(total).astype(images.dtype)
    limits = np.iinfo(images.dtype)
    rounded = np.asarray((total + (1 << (_BITS - 1))) >> _BITS)
    return np.asarray(np.clip(rounded, limits.min, limits.max), images.dtype)


@lru_cache(maxsize=32)
def _taps(size: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each pixel of the result the pixels it is made of and their weights, which add up to 2^14."""
    scale = size / count
    reach = max(scale, 1.0)
    middle = (np.arange(count) + 0.5) * scale - 0.5
    width = int(np.ceil(reach)) * 2 + 1
    places = np.floor(middle).astype(np.int64)[:, None] + np.arange(-(width // 2), width // 2 + 1)
    weights = np.maximum(0.0, 1.0 - np.abs(places - middle[:, None]) / reach)
    weights[(places < 0) | (places >= size)] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    whole = np.round(weights * (1 << _BITS)).astype(np.int64)
    # What rounding left over goes to the heaviest pixel.
    whole[np.arange(count), whole.argmax(axis=1)] += (1 << _BITS) - whole.sum(axis=1)
    return np.clip(places, 0, size - 1), whole
