"""Residual encodings: the sign of a signal's curvature in one bit per step, and prediction errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard.schema import TensorSpec

SIGN_BITS = "sign2nddiff"
"""The type of residual that is stored as one bit per step."""


def is_sign_bits(path: str, spec: TensorSpec) -> bool:
    """Whether a residual holds packed bits: `<channel>/sign2nddiff`, or `/<model>` behind that, in single bytes."""
    return spec.dtype == "u8" and spec.shape == () and SIGN_BITS in path.split("/")[1:][-2:]


def sign2nddiff(signal: ArrayLike) -> NDArray[np.int8]:
    """+1 at a peak, -1 at a dip, 0 where straight or not a number; computed in float64, edges 0, per dimension."""
    values = np.asarray(signal).astype(np.float64)
    residual = np.zeros(values.shape, np.int8)
    if len(values) >= 3:
        with np.errstate(over="ignore", invalid="ignore"):
            curve = 2 * values[1:-1] - values[:-2] - values[2:]
        residual[1:-1] = (curve > 0).astype(np.int8) - (curve < 0)
    return residual


def error_residual(truth: ArrayLike, prediction: ArrayLike) -> NDArray[Any]:
    """Truth minus prediction, computed in float64 and kept in float32 unless the truth is float64."""
    real, guess = np.asarray(truth), np.asarray(prediction)
    if real.shape != guess.shape:
        raise ValueError(f"truth is {list(real.shape)}, prediction {list(guess.shape)}")
    with np.errstate(over="ignore", invalid="ignore"):
        error: NDArray[Any] = real.astype(np.float64) - guess.astype(np.float64)
        return error if real.dtype == np.float64 else error.astype(np.float32)


def pack_residual(residual: ArrayLike) -> bytes:
    """One bit per step, set where positive, lowest bit first, one dimension after the other."""
    signs = np.asarray(residual)
    if signs.ndim == 0:
        raise ValueError("a residual needs a time axis")
    flat = signs.reshape(len(signs), math.prod(signs.shape[1:]))
    return np.packbits((flat > 0).T, axis=1, bitorder="little").tobytes()


def unpack_residual(data: bytes | memoryview | NDArray[np.uint8], length: int) -> NDArray[np.int8]:
    """+1 for a set bit, -1 for a clear one: [length], or [length, D] where the bytes hold D dimensions."""
    packed = np.frombuffer(bytes(data), np.uint8)
    row = -(-length // 8)
    if length == 0 and len(packed) == 0:
        return np.zeros(0, np.int8)
    if length <= 0 or len(packed) == 0 or len(packed) % row:
        raise CorruptLayoutError(f"{len(packed)} bytes are no residual of {length} steps")
    bits = np.unpackbits(packed.reshape(-1, row), axis=1, count=length, bitorder="little")
    signs = (bits.astype(np.int8) * 2 - 1).T
    return signs[:, 0].copy() if signs.shape[1] == 1 else np.ascontiguousarray(signs)
