"""Cropping and scaling of images: which part of an image is shown where, and the arithmetic for arrays of any type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RESIZES = ("stretch", "pad", "crop")
"""To the size as it is; the whole image with black bars (letterbox); the middle that covers the size."""


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


class ImageView(NamedTuple):
    """A part of an image, scaled into a part of an image of another size; the rest is black."""

    source: Box
    target: Box
    height: int
    width: int

    @property
    def is_scaled(self) -> bool:
        """Whether pixels are computed and not only copied."""
        return self.source[2:] != self.target[2:]

    @property
    def has_bars(self) -> bool:
        """Whether a part of the image is black."""
        return self.target[2:] != (self.height, self.width)


def view_image(
    height: int, width: int, crop: Sequence[int] | None, size: Sequence[int] | None, resize: str
) -> ImageView:
    """The view of images of a height and width: `crop` (of the middle, or at a place), then `size`."""
    source = Box(0, 0, height, width)
    if crop is not None:
        box = Box(*crop) if len(crop) == 4 else _middle(source, crop[0], crop[1])
        if min(box) < 0 or box.top + box.height > height or box.left + box.width > width:
            raise ValueError(f"a crop of {tuple(crop)} does not fit images of {height} x {width}")
        source = box
    if size is None:
        return ImageView(source, Box(0, 0, *source[2:]), *source[2:])
    target = whole = Box(0, 0, size[0], size[1])
    shares = (source.height / size[0], source.width / size[1])
    if resize == "crop":
        share = min(shares)
        source = _middle(source, *(_rounded(side * share, most) for side, most in zip(size, source[2:])))  # noqa: B905
    elif resize == "pad":
        share = max(shares)
        target = _middle(whole, *(_rounded(side / share, most) for side, most in zip(source[2:], size)))  # noqa: B905
    return ImageView(source, target, size[0], size[1])


def _rounded(side: float, most: int) -> int:
    return min(most, max(1, round(side)))


def _middle(box: Box, height: int, width: int) -> Box:
    return Box(box.top + (box.height - height) // 2, box.left + (box.width - width) // 2, height, width)


def scale_array(image: NDArray[Any], view: ImageView, out: NDArray[Any]) -> None:
    """Write the view of an image of any numbers into `out`: bilinear, averaging where it shrinks, in float64."""
    if view.has_bars:
        out[...] = 0
    part = image[view.source.slices]
    if view.is_scaled:
        rows = np.tensordot(_weights(part.shape[0], view.target.height), part.astype(np.float64), 1)
        part = np.moveaxis(np.tensordot(_weights(part.shape[1], view.target.width), rows, (1, 1)), 0, 1)
        if image.dtype.kind in "ui":
            limits = np.iinfo(image.dtype)
            part = np.clip(np.floor(part + 0.5), limits.min, limits.max)
    out[view.target.slices] = part


@lru_cache(maxsize=32)
def _weights(size: int, count: int) -> NDArray[np.float64]:
    """How much each of `size` pixels adds to each of `count` pixels: a triangle around the pixel's middle."""
    scale = size / count
    reach = max(scale, 1.0)
    middle = (np.arange(count)[:, None] + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(size) - middle) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
