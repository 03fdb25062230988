from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.errors import CorruptLayoutError, SchemaMismatchError


def test_reference_vectors() -> None:
    signs = np.zeros((10, 3), np.int8)
    signs[0, 1] = signs[9, 2] = 1
    assert wd.pack_residual(signs) == bytes.fromhex("000001000002")
    assert wd.pack_residual(wd.sign2nddiff([0, 1, 0, -1, 0, 0, 0, 0])) == b"\x12"
    assert wd.sign2nddiff([1, 2]).tolist() == [0, 0]
    # In float32 this signal looks straight; the rule is to compute in float64.
    signal = (np.arange(30, dtype=np.float32) * np.float32(0.1)).reshape(10, 3)[:, 0]
    assert wd.pack_residual(wd.sign2nddiff(signal)) == b"\x90\x00"


def test_what_is_no_number_has_no_curvature() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = wd.sign2nddiff([0, np.nan, 1, 5, np.inf, 5, 1e308, -1e308, 1e308])
    assert found.tolist() == [0, 0, 0, -1, 1, -1, 1, -1, 0]


@given(st.integers(1, 40), st.integers(1, 4), st.data())
def test_bits_come_back(length: int, dims: int, data: st.DataObject) -> None:
    flat = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=length * dims, max_size=length * dims))
    signs = np.array(flat, np.int8).reshape(length, dims)
    packed = wd.pack_residual(signs)
    assert len(packed) == dims * -(-length // 8)
    found = wd.unpack_residual(packed, length)
    assert np.array_equal(found.reshape(length, dims), signs)


def test_errors() -> None:
    assert wd.error_residual(np.float32([1, 2]), np.float32([0.5, 3])).tolist() == [0.5, -1]
    assert wd.error_residual(np.float32([1]), np.float32([0])).dtype == np.float32
    assert wd.error_residual(np.float64([1]), np.float32([0])).dtype == np.float64
    with pytest.raises(ValueError, match="prediction"):
        wd.error_residual(np.zeros(3), np.zeros(2))
    with pytest.raises(CorruptLayoutError):
        wd.unpack_residual(b"abc", 10)
    with pytest.raises(CorruptLayoutError):
        wd.unpack_residual(b"", 10)


def test_on_an_episode() -> None:
    episode = wd.WShardEpisode(id="r", length=5)
    episode.observations["x"] = np.array([0, 1, 0, 1, 0], np.float32)
    episode.omens["x/m"] = np.array([0, 0, 0, 0, 1], np.float32)
    assert wd.unpack_residual(episode.add_residual("x").data, 5).tolist() == [-1, 1, -1, 1, -1]
    assert episode.add_residual("x", model="m").data.tolist() == [0, 1, 0, 1, -1]
    episode.observations["said"] = ["a"] * 5
    with pytest.raises(SchemaMismatchError, match="'said' holds text"):
        episode.add_residual("said")
