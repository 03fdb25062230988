"""Residual encodings: signs of curvature in bits, prediction errors, and quantised differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.errors import CorruptLayoutError
from warpdata.formats.wshard.layout import MASK_LENGTH as _LENGTH
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


DELTA_WINDOW = 256
_MOST = 127
_LARGEST = _MOST * float(np.finfo(np.float32).max)


def compute_error_residual(signal: ArrayLike, omen: ArrayLike) -> NDArray[np.int8]:
    """The sign of the curvature of truth minus prediction, computed in float64."""
    truth, guess = np.asarray(signal), np.asarray(omen)
    if truth.shape != guess.shape:
        raise ValueError(f"signal is {list(truth.shape)}, omen {list(guess.shape)}")
    with np.errstate(over="ignore", invalid="ignore"):
        return sign2nddiff(truth.astype(np.float64) - guess.astype(np.float64))


def pack_residual_bits(residuals: ArrayLike) -> bytes:
    """One bit per step, set where positive; of [T] or of [T, D], one dimension after the other."""
    return pack_residual(residuals)


def unpack_residual_bits(packed: bytes, length: int) -> NDArray[np.int8]:
    """+1 for a set bit, -1 for a clear one, of one dimension."""
    return unpack_multidim_residual_bits(packed, length, 1)[:, 0].copy()


def unpack_multidim_residual_bits(packed: bytes, length: int, dims: int) -> NDArray[np.int8]:
    """+1 for a set bit, -1 for a clear one: [length, dims]."""
    if length < 0 or dims < 0 or len(packed) != dims * -(-length // 8):
        raise CorruptLayoutError(f"{len(packed)} bytes are no bits of {length} steps in {dims} dimensions")
    if not length or not dims:
        return np.zeros((length, dims), np.int8)
    return unpack_residual(packed, length).reshape(length, dims)


def pack_multidim_residual_bitmask(residuals: ArrayLike) -> bytes:
    """The bits of [T, D] with the number of bytes (u32) before each dimension."""
    signs = np.asarray(residuals)
    if signs.ndim != 2:
        raise ValueError(f"a residual of shape {list(signs.shape)}, [T, D] was expected")
    masks = [pack_residual(column) for column in signs.T]
    return b"".join(_LENGTH.pack(len(mask)) + mask for mask in masks)


def unpack_multidim_residual_bitmask(data: bytes, length: int, dims: int) -> NDArray[np.int8]:
    """[length, dims] out of dimensions with their lengths."""
    size = -(-length // 8)
    if length < 0 or dims < 0 or len(data) != dims * (_LENGTH.size + size):
        raise CorruptLayoutError(f"{len(data)} bytes are no masks of {length} steps in {dims} dimensions")
    masks = [data[start : start + _LENGTH.size + size] for start in range(0, len(data), _LENGTH.size + size)]
    if any(_LENGTH.unpack_from(mask)[0] != size for mask in masks):
        raise CorruptLayoutError(f"a mask of {length} steps does not have {size} bytes")
    return unpack_multidim_residual_bits(b"".join(mask[_LENGTH.size :] for mask in masks), length, dims)


def pack_bool_mask(mask: ArrayLike) -> bytes:
    """One bit per step, set where true."""
    return pack_residual(np.asarray(mask).astype(bool))


def unpack_bool_mask(packed: bytes, length: int) -> NDArray[np.bool_]:
    """True where the bit of a step is set."""
    return unpack_residual_bits(packed, length) > 0


def quantize_delta(
    signal: ArrayLike, omen: ArrayLike, window_size: int = DELTA_WINDOW
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Truth minus prediction in 8 bits, and the step of each window of `window_size` rows (and dimension)."""
    truth, guess = np.asarray(signal), np.asarray(omen)
    if truth.shape != guess.shape or truth.ndim == 0:
        raise ValueError(f"signal is {list(truth.shape)}, omen {list(guess.shape)}; both have a time axis")
    with np.errstate(over="ignore", invalid="ignore"):
        delta = truth.astype(np.float64) - guess.astype(np.float64)
    if not (np.abs(delta) <= _LARGEST).all():
        raise ValueError("a difference that is not finite, or has a step above float32, cannot be quantised")
    windows = _windows(delta, window_size)
    peaks = np.abs(windows).max(axis=1, initial=0)
    scales = np.where(peaks > 0, peaks / _MOST, 1.0).astype(np.float32)
    scales[scales == 0] = 1.0  # a peak below the smallest float32 is nothing
    steps = np.clip(np.round(windows / scales[:, None]), -_MOST, _MOST).astype(np.int8)
    return _joined(steps)[: len(delta)], scales


def dequantize_delta(
    quantized: ArrayLike, scales: ArrayLike, window_size: int = DELTA_WINDOW
) -> NDArray[np.float32]:
    """The differences that `quantize_delta` gave away, as float32."""
    steps, sizes = np.asarray(quantized), np.asarray(scales, np.float32)
    windows = _windows(steps.astype(np.float32), window_size)
    if sizes.shape != windows.shape[:1] + windows.shape[2:]:
        raise ValueError(f"scales are {list(sizes.shape)} for {len(windows)} windows of {list(steps.shape)}")
    whole: NDArray[np.float32] = _joined(windows * sizes[:, None])
    return whole[: len(steps)]


def reconstruct_from_omen_and_delta(
    omen: ArrayLike, quantized: ArrayLike, scales: ArrayLike, window_size: int = DELTA_WINDOW
) -> NDArray[Any]:
    """The prediction and its quantised difference added up: the truth, to half a step of its window."""
    with np.errstate(over="ignore", invalid="ignore"):
        truth: NDArray[Any] = np.asarray(omen) + dequantize_delta(quantized, scales, window_size)
    return truth


def _windows(values: NDArray[Any], size: int) -> NDArray[Any]:
    """[windows, size, …] with zeros after the last row."""
    if size <= 0:
        raise ValueError(f"window_size must be positive, not {size}")
    count = math.ceil(len(values) / size)
    padded = np.zeros((count * size, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded.reshape(count, size, *values.shape[1:])


def _joined(windows: NDArray[Any]) -> NDArray[Any]:
    """[windows, size, …] one after the other."""
    return windows.reshape(windows.shape[0] * windows.shape[1], *windows.shape[2:])
