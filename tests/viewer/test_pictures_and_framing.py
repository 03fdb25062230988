"""What is painted: which signals are pictures, and how their values become pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of, shrink_pixels
from warpdata.viewer.framing import pack_arrays, sendable

SHAPES: list[tuple[tuple[int, ...], str, bool]] = [
    ((48, 64, 3), "uint8", True), ((48, 64), "uint8", True), ((48, 64), "uint16", True), ((3, 48, 64), "float32", True),
    ((48, 64, 4), "uint8", True), ((48, 64, 1), "float64", True), ((7,), "float32", False), ((4, 4), "float32", False),
    ((48, 64, 5), "uint8", False), ((2, 48, 64, 3), "uint8", False), ((), "float32", False),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype", "is_one"), SHAPES)
def test_a_camera_is_what_looks_like_one(shape: tuple[int, ...], dtype: str, is_one: bool) -> None:
    signal = wd.ArraySignal(np.arange(4), np.arange(4 * int(np.prod(shape))).reshape(4, *shape).astype(dtype))
    assert is_camera(signal.meta) == is_one
    if is_one:
        pixels = as_pixels(signal[2][0], limits_of(signal))
        assert pixels.dtype == np.uint8
        assert pixels.shape[:2] == (48, 64)
        assert pixels.shape[2:] in ((), (3,))


def test_bytes_stay_as_they_are() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    assert np.array_equal(as_pixels(frame, None), frame)
    assert np.array_equal(as_pixels(np.moveaxis(frame, 2, 0), None), frame)
    assert np.array_equal(as_pixels(frame[:, :, :1], None), frame[:, :, 0])


def test_depth_is_scaled_alike_in_all_frames() -> None:
    frames = np.linspace(500, 3000, 20 * 48 * 64).reshape(20, 48, 64).astype(np.uint16)
    limits = limits_of(wd.ArraySignal(np.arange(20), frames))
    means = [as_pixels(frame, limits).mean() for frame in frames]
    assert (np.diff(means) > 0).all()
    assert means[0] < 20
    assert means[-1] > 235


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_painted_too(odd: float) -> None:
    frames = np.full((3, 16, 16), odd, np.float32)
    frames[:, :8] = np.arange(8)[:, None]
    pixels = as_pixels(frames[0], limits_of(wd.ArraySignal(np.arange(3), frames)))
    assert pixels.shape == (16, 16)
    nothing = np.full_like(frames, odd)
    assert as_pixels(nothing[0], limits_of(wd.ArraySignal(np.arange(3), nothing))).shape == (16, 16)


@pytest.mark.parametrize("shape", [(480, 640, 3), (96, 96), (97, 5, 3), (5, 1000), (3000, 17, 3), (1, 1)])
def test_thumbnails_are_small_and_the_mean_of_what_they_show(shape: tuple[int, ...]) -> None:
    small = shrink_pixels(np.full(shape, 77, np.uint8), 96)
    assert max(small.shape[:2]) <= 96
    assert min(small.shape[:2]) >= 1
    assert small.ndim == len(shape)
    assert (small == 77).all()


def test_arrays_on_the_wire_are_what_their_head_says() -> None:
    arrays = {
        "a": np.arange(7, dtype=np.uint8),
        "b": np.arange(6.0).reshape(2, 3),
        "c": np.empty((0, 3), np.float32),
    }
    body = pack_arrays({"word": "é", "big": 1 << 60}, arrays)
    import json

    size = int.from_bytes(body[4:8], "little")
    head = json.loads(body[8 : 8 + size])
    assert (body[:4], head["word"], head["big"]) == (b"WDA1", "é", str(1 << 60))
    start = (8 + size + 7) // 8 * 8
    for name, array in arrays.items():
        about: Any = head["arrays"][name]
        assert about["at"] % 8 == 0
        raw = body[start + about["at"] : start + about["at"] + array.nbytes]
        assert np.array_equal(np.frombuffer(raw, f"<{about['dtype']}").reshape(about["shape"]), array)


def test_json_has_nothing_a_browser_cannot_read() -> None:
    odd = {
        "nan": float("nan"),
        "big": 2**53,
        "n": np.float32(2),
        5: (1, b"abc"),
        "array": np.arange(3),
        "deep": [np.nan],
    }
    assert sendable(odd) == {
        "nan": None, "big": str(2**53), "n": 2.0, "5": [1, "<3 bytes>"], "array": [0, 1, 2], "deep": [None],
    }  # fmt: skip
