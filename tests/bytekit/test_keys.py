"""Keys mean what they mean in numpy, and cost the rows they name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.keys import BAD_PARTS, check_like_numpy, keys
from tests.sweeps import enough_examples
from warpdata.bytekit.arrays import GAP_BYTES, InvalidIndexError, resolve_index, select_rows


class Rows:
    """Rows of an array that count what is read of them."""

    def __init__(self, array: NDArray[Any], itemsize: int | None = None) -> None:
        self.array = array
        self.itemsize = itemsize or array.dtype.itemsize
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, end: int) -> NDArray[Any]:
        assert 0 <= start <= end <= len(self.array)
        self.reads.append((start, end))
        return self.array[start:end]

    def __getitem__(self, key: Any) -> Any:
        return select_rows(key, self.array.shape, self.read, self.itemsize)


SHAPES = [(5,), (7, 3), (4, 2, 3), (0, 3), (3, 0, 2), (1, 1, 1, 2)]


@settings(max_examples=enough_examples(150))
@given(st.data())
@pytest.mark.parametrize("itemsize", [None, GAP_BYTES], ids=["dense", "every row apart"])
def test_like_numpy(itemsize: int | None, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    key = data.draw(keys(shape))
    check_like_numpy(array, key, Rows(array, itemsize).__getitem__)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (7, 0), (0, 0), (6,), (7, 2), (7, 3, 1)], ids=str)
def test_empty_masks_fit_every_axis(shape: tuple[int, ...]) -> None:
    array = np.arange(21).reshape(7, 3)
    check_like_numpy(array, np.zeros(shape, bool), Rows(array).__getitem__)


@pytest.mark.parametrize("bad", BAD_PARTS, ids=lambda bad: type(bad).__name__)
def test_what_is_no_key(bad: Any) -> None:
    rows = Rows(np.zeros((3, 2)))
    for key in (bad, (0, bad), (bad, 0), (..., bad), (slice(None), bad)):
        with pytest.raises(IndexError):
            rows[key]
    with pytest.raises(IndexError):
        resolve_index(bad, 3, "record")


@pytest.mark.parametrize(
    ("key", "reads"),
    [
        (5, [(5, 6)]),
        ((-1, slice(None), 0), [(99, 100)]),
        (slice(10, 13), [(10, 13)]),
        ((slice(10, 13), ..., 1), [(10, 13)]),
        (slice(None, None, 50), [(0, 1), (50, 51)]),
        (slice(None, None, -50), [(49, 50), (99, 100)]),
        ([90, 3, 4, 90], [(3, 5), (90, 91)]),
        (np.array([[7], [80]]), [(7, 8), (80, 81)]),
        (np.arange(100) == 30, [(30, 31)]),
        (([2, 60], [0, 1]), [(2, 3), (60, 61)]),
        ((None, 4), [(4, 5)]),
        ([], [(0, 0)]),
    ],
    ids=repr,
)
def test_only_the_rows_that_are_named_are_read(key: Any, reads: list[tuple[int, int]]) -> None:
    rows = Rows(np.arange(600).reshape(100, 2, 3), itemsize=GAP_BYTES)
    assert np.array_equal(rows[key], rows.array[key])
    assert sorted(rows.reads) == reads


def test_near_rows_are_one_read() -> None:
    rows = Rows(np.arange(100))
    assert rows[[90, 3, 50]].tolist() == [90, 3, 50]
    assert rows[::7].tolist() == list(range(0, 100, 7))
    assert rows.reads == [(3, 91), (0, 99)]


def test_positions_of_a_sequence() -> None:
    assert resolve_index(-1, 5, "record") == 4
    assert resolve_index(np.int8(2), 5, "record") == 2
    assert resolve_index(slice(1, None, 2), 5, "record") == range(1, 5, 2)
    assert resolve_index((), 5, "record") == resolve_index(..., 5, "record") == range(5)
    assert resolve_index(([1],), 5, "record").tolist() == [1]  # type: ignore[union-attr]
    assert resolve_index([4, -5], 5, "record").tolist() == [4, 0]  # type: ignore[union-attr]
    assert len(resolve_index([], 5, "record")) == 0  # type: ignore[arg-type]
    for outside in (5, -6, [0, 5], np.array([2**63], np.uint64), (1, 2), (..., 1)):
        with pytest.raises(IndexError):
            resolve_index(outside, 5, "record")
    for bad in (
        True,
        None,
        [True] * 5,
        [[1]],
        1.0,
        "a",
        slice(True, 2),
        slice(0.5, None),
        slice(None, None, 0),
    ):
        with pytest.raises(InvalidIndexError):
            resolve_index(bad, 5, "record")
    assert issubclass(InvalidIndexError, TypeError)
    assert issubclass(InvalidIndexError, ValueError)
