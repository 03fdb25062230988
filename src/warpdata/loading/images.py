"""Cropping, scaling and number ranges of images. An adapter of Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import MissingExtraError

RESIZES = ("stretch", "pad", "crop")
"""To the size as it is; the whole image with black bars (letterbox); the middle that covers the size."""
IMAGE_SCALES = ("0..1", "-1..1", "imagenet")
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)


def crop_box(shape: tuple[int, ...], crop: Sequence[int], name: str) -> tuple[slice, slice]:
    """The rows and columns that a crop keeps of images of this shape, or ValueError."""
    height, width = shape[0], shape[1]
    if len(crop) == 2:
        top, left = (height - crop[0]) // 2, (width - crop[1]) // 2
    else:
        top, left = crop[0], crop[1]
    if top < 0 or left < 0 or top + crop[-2] > height or left + crop[-1] > width:
        raise ValueError(f"field {name!r}: a crop of {tuple(crop)} does not fit images of {height} x {width}")
    return slice(top, top + crop[-2]), slice(left, left + crop[-1])


def resize_images(images: NDArray[Any], size: tuple[int, int], resize: str) -> NDArray[Any]:
    """Images [n, height, width, …] at another size: stretched, with black bars, or the middle that covers the size.

    Bilinear, averaging pixels where it shrinks. Pillow scales 8-bit images of 1, 3 or 4 channels; other arrays (depth,
    masks, features) are scaled by numpy with the same weights in double precision.
    """
    height, width = images.shape[1:3]
    if (height, width) == size:
        return images
    if resize == "crop":
        share = min(height / size[0], width / size[1])
        kept = (min(height, max(1, round(size[0] * share))), min(width, max(1, round(size[1] * share))))
        top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
        images = images[:, top : top + kept[0], left : left + kept[1]]
    inner = size
    if resize == "pad":
        share = max(height / size[0], width / size[1])
        inner = (min(size[0], max(1, round(height / share))), min(size[1], max(1, round(width / share))))
    out = np.zeros((len(images), *size, *images.shape[3:]), images.dtype)
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    is_picture = images.dtype == np.uint8 and images.shape[3:] in ((), (1,), (3,), (4,))
    scale = _scale_picture if is_picture else _scale_array
    for place, image in enumerate(images):
        out[place, top : top + inner[0], left : left + inner[1]] = scale(image, inner)
    return out


def _scale_picture(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError.for_extra("Pillow", "image") from None
    channels = image.shape[2:]
    plane = image[:, :, 0] if channels == (1,) else image
    mode = {(): "L", (1,): "L", (3,): "RGB", (4,): "CMYK"}[channels]  # RGBA would be weighted by alpha
    picture = Image.frombytes(mode, (image.shape[1], image.shape[0]), plane.tobytes())
    scaled = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(scaled).reshape(*size, *channels)


def _scale_array(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    rows = np.tensordot(_weights(image.shape[0], size[0]), image.astype(np.float64), 1)
    scaled = np.moveaxis(np.tensordot(_weights(image.shape[1], size[1]), rows, (1, 1)), 0, 1)
    if image.dtype.kind in "ui":
        limits = np.iinfo(image.dtype)
        return np.clip(np.floor(scaled + 0.5), limits.min, limits.max)
    return scaled


@lru_cache(maxsize=32)
def _weights(size: int, count: int) -> NDArray[np.float64]:
    """How much each of `size` pixels adds to each of `count` pixels: a triangle around the pixel's middle."""
    scale = size / count
    reach = max(scale, 1.0)
    middle = (np.arange(count)[:, None] + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(size) - middle) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def scale_values(images: NDArray[Any], scale: str) -> NDArray[np.float32]:
    """Values of 8-bit images with channels last as floats in a range, or normalised as ImageNet."""
    values: NDArray[np.float32] = images.astype(np.float32) / np.float32(255)
    if scale == "-1..1":
        return np.asarray(values * 2 - 1, np.float32)
    if scale == "imagenet":
        return np.asarray((values - _MEAN[: values.shape[-1]]) / _STD[: values.shape[-1]], np.float32)
    return values
