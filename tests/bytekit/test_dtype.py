from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from warpdata.bytekit.arrays import DTYPE_NAMES, DType, dtype_named, dtype_of

SIZES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
    "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip


def test_the_thirteen_and_their_sizes() -> None:
    assert {name: dtype_named(name).itemsize for name in DTYPE_NAMES} == SIZES


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_equal_to_name_and_numpy(name: str) -> None:
    dtype = dtype_named(name)
    assert dtype == name
    assert dtype == dtype.dtype
    assert dtype.dtype == dtype
    assert dtype_of(dtype.dtype) == dtype_of(name) == dtype
    assert np.zeros(2, dtype=dtype).dtype == dtype.dtype
    assert str(dtype) == name
    assert hash(dtype) == hash(DType(name))
    assert pickle.loads(pickle.dumps(dtype)) == dtype


def test_different_dtypes_differ() -> None:
    assert dtype_named("f32") != "f64"
    assert dtype_named("f32") != np.float64
    assert dtype_named("bf16") == ml_dtypes.bfloat16
    assert dtype_named("f32") == np.float32
    assert dtype_named("f32") != 7


@pytest.mark.parametrize("bad", ["f8x", ">f4", "complex64", "U5", object])
def test_others_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="element type"):
        dtype_of(bad)
    with pytest.raises(ValueError, match="unknown dtype"):
        dtype_named("float32")
