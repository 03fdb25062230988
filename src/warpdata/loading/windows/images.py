"""Cropping and scaling of images. An adapter of Pillow."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.errors import MissingExtraError


def crop_box(shape: tuple[int, ...], crop: tuple[int, ...], name: str) -> tuple[slice, slice]:
    """The rows and columns that a crop keeps of images of this shape, or ValueError."""
    height, width = shape[0], shape[1]
    if len(crop) == 2:
        top, left = (height - crop[0]) // 2, (width - crop[1]) // 2
    else:
        top, left = crop[0], crop[1]
    if top < 0 or left < 0 or top + crop[-2] > height or left + crop[-1] > width:
        raise ValueError(f"field {name!r}: a crop of {crop} does not fit images of {height} x {width}")
    return slice(top, top + crop[-2]), slice(left, left + crop[-1])


def scale_images(images: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Images [n, height, width, …] at another size, one at a time: bilinear, averaging what shrinks.

    Pillow scales 8-bit images of 1, 3 or 4 channels. Other arrays (depth, masks, features) are scaled by numpy with the
    same weights in double precision.
    """
    if images.shape[1:3] == size:
        return images
    out = np.empty((len(images), *size, *images.shape[3:]), images.dtype)
    is_picture = images.dtype == np.uint8 and images.shape[3:] in ((), (1,), (3,), (4,))
    scale = _scale_picture if is_picture else _scale_array
    for place, image in enumerate(images):
        out[place] = scale(image, size)
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
    found = np.moveaxis(np.tensordot(_weights(image.shape[1], size[1]), rows, (1, 1)), 0, 1)
    if image.dtype.kind in "ui":
        limits = np.iinfo(image.dtype)
        return np.clip(np.floor(found + 0.5), limits.min, limits.max)
    return found


@lru_cache(maxsize=32)
def _weights(size: int, count: int) -> NDArray[np.float64]:
    """How much each of `size` pixels adds to each of `count` pixels: a triangle around the pixel's middle."""
    scale = size / count
    reach = max(scale, 1.0)
    middle = (np.arange(count)[:, None] + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(size) - middle) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
