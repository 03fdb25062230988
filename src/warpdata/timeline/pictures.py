"""Frames as pixels a browser can paint: what is an image, how depth and numbers become gray, how they shrink."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal

_LEAST_SIDE = 8
"""A tensor with smaller sides is numbers to plot, not a picture."""
_COLOURS = (1, 3, 4)
_RANGE_FRAMES = 5
_RANGE_PIXELS = 1 << 16

Pixels = NDArray[np.uint8]
Limits = tuple[float, float]


def is_camera(meta: SignalMeta) -> bool:
    """Whether a signal is to be painted: an image, or a tensor shaped like one."""
    if meta.kind == "image":
        return True
    return meta.kind == "tensor" and meta.dtype.kind in "uifb" and picture_shape(meta.shape) is not None


def picture_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of one value as a picture: HxW, HxWxC or CxHxW; None for other values."""
    if len(shape) == 3 and shape[2] in _COLOURS:
        shape = shape[:2]
    elif len(shape) == 3 and shape[0] in _COLOURS:
        shape = shape[1:]
    return (shape[0], shape[1]) if len(shape) == 2 and min(shape) >= _LEAST_SIDE else None


def limits_of(signal: Signal) -> Limits | None:
    """Which values are black and white, the same for all frames of a camera; None where pixels are stored as such."""
    if signal.meta.dtype == np.uint8 or not len(signal):
        return None
    rows = np.unique(np.linspace(0, len(signal) - 1, min(len(signal), _RANGE_FRAMES)).astype(np.int64))
    values = signal[rows].values().reshape(-1)
    values = values[:: max(1, len(values) // _RANGE_PIXELS)].astype(np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return (0.0, 1.0)
    low, high = np.percentile(values, [1, 99]).tolist()
    if signal.meta.dtype.kind == "f" and low >= 0 and high <= 1:
        return (0.0, 1.0)
    return (low, high) if high > low else (low, low + 1)


def as_pixels(frame: NDArray[Any], limits: Limits | None) -> Pixels:
    """A frame as HxW or HxWx3 bytes."""
    if frame.ndim == 3 and frame.shape[2] not in _COLOURS:
        frame = np.moveaxis(frame, 0, 2)
    if frame.ndim == 3:
        frame = frame[:, :, 0] if frame.shape[2] == 1 else frame[:, :, :3]
    if limits is not None:
        low, high = limits
        with np.errstate(invalid="ignore"):
            scaled = (frame.astype(np.float32) - low) * (255 / (high - low))
            frame = np.nan_to_num(np.clip(scaled, 0, 255)).astype(np.uint8)
    return np.ascontiguousarray(frame)


def shrink_pixels(pixels: Pixels, side: int) -> Pixels:
    """Pixels averaged until no side is longer than this."""
    factor = -(-max(pixels.shape[:2]) // side)
    if factor <= 1:
        return pixels
    height, width = (max(1, side // factor) for side in pixels.shape[:2])
    high, wide = min(factor, pixels.shape[0]), min(factor, pixels.shape[1])
    cut = pixels[: height * high, : width * wide]
    blocks = cut.reshape(height, high, width, wide, -1).mean(axis=(1, 3)).astype(np.uint8)
    return np.ascontiguousarray(blocks[:, :, 0] if pixels.ndim == 2 else blocks)
