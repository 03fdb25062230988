"""Keys of every kind that numpy knows, and many that it refuses, for whatever is read like an array."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

BAD_PARTS: list[Any] = [
    1.5,
    "a",
    b"a",
    {},
    object(),
    [0.5],
    ["a"],
    [[0], [1, 2]],
    np.array([]),
    1j,
    2**70,
    [2**70],
]


@cache
def parts(size: int) -> st.SearchStrategy[Any]:
    """What may choose along one axis of this size; now and then outside of it."""
    index = st.integers(-size - 1, size)
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(-4, 4).filter(bool)
    lists = st.lists(index, max_size=5)
    return st.one_of(
        index,
        index.map(np.int64),
        index.map(np.array),
        st.builds(slice, bound, bound, step),
        lists,
        lists.map(lambda each: np.array(each, np.int32)),
        lists.map(lambda each: np.array([each, each[::-1]], np.int64)),
        st.lists(index, min_size=2, max_size=2).map(lambda each: [[each[0]], [each[1]]]),
        st.lists(st.booleans(), min_size=size, max_size=size),
        st.lists(st.booleans(), min_size=size, max_size=size).map(lambda each: np.array(each, bool)),
        st.sampled_from([range(size), np.ones(size + 1, bool), [True, 1]]),
    )


@cache
def masks(shape: tuple[int, ...]) -> st.SearchStrategy[NDArray[np.bool_]]:
    """Masks over the first axes of an array, of every rank it has."""
    return st.tuples(st.integers(1, len(shape)), st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 1.0])).map(
        lambda drawn: np.random.default_rng(drawn[1]).random(shape[: drawn[0]]) < drawn[2]
    )


@cache
def keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Keys for an array of this shape, single and mixed."""
    odd = st.sampled_from([..., None, True, False, np.bool_(True), *BAD_PARTS])
    one = parts(shape[0]) | masks(shape) | odd
    mixed = [parts(size) for size in shape]
    plain = st.integers(0, len(shape)).flatmap(lambda count: st.tuples(*mixed[:count]))
    strewn = st.tuples(plain, st.lists(odd | masks(shape), max_size=2), st.randoms()).map(_strewn)
    after_dots = st.tuples(*mixed[1:]).map(lambda rest: (..., *rest))
    paired = st.lists(st.tuples(*[st.integers(-size, max(0, size - 1)) for size in shape]), max_size=4).map(
        lambda rows: tuple(np.array(column, int) for column in zip(*rows, strict=True)) if rows else ()
    )
    return st.one_of(one, plain, strewn, after_dots, paired, masks(shape).map(lambda mask: (mask,)))


def _strewn(drawn: Any) -> tuple[Any, ...]:
    key = list(drawn[0])
    for extra in drawn[1]:
        key.insert(drawn[2].randint(0, len(key)), extra)
    return tuple(key)


def check_like_numpy(array: NDArray[Any], key: Any, look: Callable[[Any], Any]) -> None:
    """`look(key)` gives what `array[key]` gives, and raises where numpy does."""
    with warnings.catch_warnings():
        # Before numpy 2 it only warned of an index out of bounds where nothing is chosen.
        warnings.filterwarnings("ignore", "Out of bound index found", DeprecationWarning)
        expected = _chosen(array, key)
        try:
            found = look(key)
        except (IndexError, TypeError, ValueError):
            # numpy lets an index that is out of bounds pass where nothing is chosen; we do not.
            if expected is None or np.size(expected) == 0:
                return
            raise
    assert expected is not None, f"numpy refuses {key!r}"
    assert np.shape(found) == np.shape(expected), f"{key!r}"
    assert type(found) is type(expected), f"{key!r}"
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected), f"{key!r}"


def _chosen(array: NDArray[Any], key: Any) -> Any:
    try:
        return array[key]
    except (IndexError, TypeError, ValueError):
        return None
