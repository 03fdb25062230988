"""Memory that is used again: never while anybody looks at it, and never more of it than the limit lies ready."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit import buffers
from warpdata.bytekit.buffers import SMALLEST, Buffers

BYTE = np.dtype(np.uint8)


@settings(max_examples=enough_examples(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "drop", "view"]), st.integers(0, 7)), max_size=25))
def test_what_somebody_holds_is_never_handed_out_again(steps: list[tuple[str, int]]) -> None:
    pool = Buffers()
    held: list[tuple[Any, int]] = []
    for number, (step, which) in enumerate(steps):
        if step == "take":
            made = pool.array((SMALLEST * (1 + which % 3),), BYTE)
            made[:] = number % 251
            held.append((made, number % 251))
        elif held:
            array, value = held.pop(which % len(held))
            if step == "view":  # a part, in another form, keeps the whole alive
                held.append((memoryview(array[3:]).toreadonly(), value))
            del array
        for each, value in held:
            found = np.asarray(each)
            assert found[0] == found[-1] == value


def test_memory_comes_back_and_no_more_than_the_limit_lies_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST_KEPT", 5 * SMALLEST)
    pool = Buffers()
    first = pool.array((SMALLEST,), BYTE)
    place = first.__array_interface__["data"][0]
    del first
    assert pool.kept_bytes == SMALLEST
    again = pool.array((SMALLEST // 4,), np.dtype(np.float32))
    assert again.__array_interface__["data"][0] == place
    assert pool.kept_bytes == 0
    many = [pool.array((SMALLEST,), BYTE) for _ in range(9)]
    large = pool.array((3 * SMALLEST,), BYTE)
    del many, large
    assert pool.kept_bytes <= 5 * SMALLEST
    assert pool.array((16,), BYTE).base is None, "small arrays are not of the pool"
