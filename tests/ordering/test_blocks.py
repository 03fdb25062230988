"""Orders asked by position: every row once, any position at once, and the same bits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ordering.mixture_reference import mixture_schedule
from warpdata.loading.mixture import PeriodicSchedule
from warpdata.ordering import blocks
from warpdata.ordering.blocks import BlockOrder, BlockShape, permute

BITS = {
    "large": [259288939, 625915787, 224352237, 96966564, 741562441],
    "blocks": [821, 831, 227, 614, 212, 553, 552, 870],
    "billion": [234418655, 610271283, 553098333, 726944594],
    "fingerprint": "jpuJzO8n",
}


@given(count=st.integers(1, 300), key=st.integers(0, 2**64 - 1), small=st.booleans())
def test_a_keyed_bijection_has_every_index_once_and_goes_back(count: int, key: int, small: bool) -> None:
    indices = np.arange(count)
    limit = blocks._TABLE_BELOW
    blocks._TABLE_BELOW = limit if small else 0  # the other way must do for small counts too
    try:
        found = permute(indices, count, key)
        assert sorted(found.tolist()) == list(range(count))
        np.testing.assert_array_equal(permute(found, count, key, back=True), indices)
    finally:
        blocks._TABLE_BELOW = limit


@given(
    total=st.integers(0, 400), block=st.integers(0, 30), in_play=st.integers(1, 9), seed=st.integers(0, 3),
    epoch=st.integers(0, 3), cut=st.integers(0, 400),
)  # fmt: skip
def test_every_row_once_and_any_stretch_alone(total, block, in_play, seed, epoch, cut) -> None:
    order = BlockOrder(BlockShape(total, block, in_play), seed, epoch)
    whole = order.row_ids(0, total)
    assert sorted(whole.tolist()) == list(range(total))
    cut = min(cut, total)
    np.testing.assert_array_equal(order.row_ids(cut, total), whole[cut:])
    if block > 1:  # a pool is a few blocks: their rows and no others
        for start in range(0, total - 1, max(1, block * in_play)):
            span = whole[start : start + block * in_play] // block
            assert len(set(span.tolist())) <= 2 * in_play  # a short block shifts the pools after it


def test_large_counts_are_permute_without_a_table() -> None:
    count = 10**12 + 39
    indices = np.array([0, 1, 2, count // 2, count - 1])
    found = permute(indices, count, 7)
    assert len(set(found.tolist())) == 5
    assert ((found >= 0) & (found < count)).all()
    np.testing.assert_array_equal(permute(found, count, 7, back=True), indices)


@given(
    total=st.integers(1, 300),
    block=st.integers(2, 20),
    in_play=st.integers(1, 7),
    seed=st.integers(0, 2**64 - 1),
)
def test_pools_are_stretches_of_the_epoch_from_blocks_of_their_own(total, block, in_play, seed) -> None:
    order = BlockOrder(BlockShape(total, block, in_play), seed, 1)
    start, pool = 0, 0
    while start < total:
        assert order.pool_at(start) == pool
        end = order.pool_end(pool)
        ids = order.row_ids(start, end)
        blocks = order.pool_blocks(pool)
        assert sorted({int(each) // block for each in ids}) == blocks.tolist()
        assert len(blocks) <= in_play
        start, pool = end, pool + 1
    assert len(order.pool_blocks(pool)) == 0


def test_the_bits_never_change() -> None:
    """States of running trainings depend on these."""
    assert permute(np.arange(5), 10**9, 42).tolist() == BITS["large"]
    assert BlockOrder(BlockShape(1000, 16, 4), 7, 3).row_ids(500, 508).tolist() == BITS["blocks"]
    assert BlockOrder(BlockShape(10**9, 49, 128), 7, 3).row_ids(123456, 123460).tolist() == BITS["billion"]
    assert BlockShape(1000, 16, 4).fingerprint() == BITS["fingerprint"]


def test_quality_is_a_number() -> None:
    full = BlockOrder(BlockShape(20_000, 1, 1), 0, 0).quality(64)
    blocks = BlockOrder(BlockShape(20_000, 32, 256), 0, 0).quality(64)
    few = BlockOrder(BlockShape(20_000, 32, 4), 0, 0).quality(64)
    none = BlockOrder(BlockShape(20_000, 32, 1), 0, 0).quality(64)
    assert full.score == pytest.approx(1.0, abs=0.02)
    assert full.score > blocks.score > few.score > none.score
    assert blocks.score > 0.85


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 2.0, 0.123456789]), min_size=1, max_size=4),
    st.integers(0, 3000),
)
def test_a_periodic_schedule_spreads_the_turns_of_each_source(weights: list[float], position: int) -> None:
    if not sum(weights):
        return
    schedule = PeriodicSchedule(weights)
    source, before = schedule.at(np.arange(position))
    counts = np.bincount(source, minlength=len(weights))
    np.testing.assert_array_equal(schedule.given(position), counts)
    for number in range(len(weights)):
        assert before[source == number].tolist() == list(range(int(counts[number])))
    if schedule.period < 10_000 and position:
        assert source[:200].tolist() == mixture_schedule(
            [float(c) for c in schedule.counts], min(position, 200)
        )
