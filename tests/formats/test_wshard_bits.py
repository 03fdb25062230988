"""The bit and delta helpers, against loops that say what they mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.errors import CorruptLayoutError

SIZES = st.tuples(st.integers(0, 40), st.integers(0, 4))


def signs(seed: int, steps: int, dims: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 2, (steps, dims)).astype(np.int8)


@given(size=SIZES, seed=st.integers(0, 99))
def test_bits_are_those_of_a_loop(size: tuple[int, int], seed: int) -> None:
    steps, dims = size
    values = signs(seed, steps, dims)
    slow = bytearray(dims * -(-steps // 8))
    for dim in range(dims):
        for step in range(steps):
            if values[step, dim] > 0:
                slow[dim * -(-steps // 8) + step // 8] |= 1 << step % 8
    assert wd.pack_residual_bits(values) == slow
    wanted = np.where(values > 0, 1, -1)
    assert np.array_equal(wd.unpack_multidim_residual_bits(bytes(slow), steps, dims), wanted)
    prefixed = wd.pack_multidim_residual_bitmask(values)
    assert len(prefixed) == len(slow) + 4 * dims
    assert np.array_equal(wd.unpack_multidim_residual_bitmask(prefixed, steps, dims), wanted)
    if dims:
        mask = values[:, 0] > 0
        assert np.array_equal(wd.unpack_bool_mask(wd.pack_bool_mask(mask), steps), mask)
        assert np.array_equal(
            wd.unpack_residual_bits(wd.pack_residual_bits(values[:, 0]), steps), wanted[:, 0]
        )


def test_the_bytes_existing_programs_write() -> None:
    residual = np.zeros((10, 3), np.int8)
    residual[0, 1] = residual[9, 2] = 1
    assert wd.pack_residual_bits(residual) == bytes.fromhex("000001000002")
    masks = bytes.fromhex("02000000 0000 02000000 0100 02000000 0002")
    assert wd.pack_multidim_residual_bitmask(residual) == masks


@pytest.mark.parametrize("data", [b"", b"\x02\0\0\0\0", b"\x03\0\0\0\0\0", b"\x02\0\0\0\0\0\0"])
def test_masks_of_another_size_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptLayoutError):
        wd.unpack_multidim_residual_bitmask(data, 10, 1)
    with pytest.raises(CorruptLayoutError):
        wd.unpack_multidim_residual_bits(b"123", 10, 1)
    with pytest.raises(CorruptLayoutError):
        wd.unpack_residual_bits(b"", -1)


@given(steps=st.integers(0, 30), dims=st.integers(0, 3), window=st.integers(1, 9), seed=st.integers(0, 99))
def test_deltas_are_right_to_half_a_step(steps: int, dims: int, window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (steps,) if dims == 0 else (steps, dims)
    signal, omen = rng.normal(size=shape), rng.normal(size=shape)
    signal[: steps // 2] = omen[: steps // 2]
    quantized, scales = wd.quantize_delta(signal, omen, window)
    assert quantized.dtype == np.int8
    assert scales.shape == (-(-steps // window), *shape[1:])
    for start in range(0, steps, window):
        part = slice(start, start + window)
        peak = np.abs(signal[part] - omen[part]).max(axis=0)
        assert np.allclose(scales[start // window], np.where(peak > 0, peak / 127, 1.0))
    again = wd.reconstruct_from_omen_and_delta(omen, quantized, scales, window)
    step = np.repeat(scales, window, axis=0)[:steps]
    assert np.all(np.abs(again - signal) <= step * 0.51 + 1e-6)


def test_deltas_of_no_dimensions() -> None:
    nothing = np.zeros((5, 0), np.float32)
    quantized, scales = wd.quantize_delta(nothing, nothing, 2)
    assert (quantized.shape, scales.shape) == ((5, 0), (3, 0))
    assert wd.reconstruct_from_omen_and_delta(nothing, quantized, scales, 2).shape == (5, 0)


def test_error_curvature_and_wrong_arguments() -> None:
    signal = np.array([0.0, 3, 0, 0, 0])
    assert wd.compute_error_residual(signal, np.zeros(5)).tolist() == [0, 1, -1, 0, 0]
    with pytest.raises(ValueError, match="omen"):
        wd.compute_error_residual(signal, np.zeros(4))
    with pytest.raises(ValueError, match="omen"):
        wd.quantize_delta(signal, np.zeros(4))
    with pytest.raises(ValueError, match="window_size"):
        wd.quantize_delta(signal, signal, 0)
    with pytest.raises(ValueError, match="finite"):
        wd.quantize_delta(signal, np.full(5, np.nan))
    with pytest.raises(ValueError, match="above float32"):
        wd.quantize_delta([1e300], [0.0])
    with pytest.raises(ValueError, match="finite"):
        wd.quantize_delta([1e308], [-1e308])
    with pytest.raises(ValueError, match="scales"):
        wd.dequantize_delta(np.zeros(5, np.int8), np.ones(2, np.float32), 5)
    with pytest.raises(ValueError, match="T, D"):
        wd.pack_multidim_residual_bitmask(np.zeros(3))
