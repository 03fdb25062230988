"""Hashes, nested fractions and mixtures: pure functions with frozen bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ordering.mixture_reference import mixture_schedule
from warpdata.loading import mixture
from warpdata.ordering import blocks, fraction

SEEDS = st.integers(0, 2**64 - 1)


def test_splitmix_reference_values() -> None:
    assert blocks.splitmix64_of(0) == 0xE220A8397B1DCDAF
    assert blocks.splitmix64_of(1) == 0x910A2DEC89025CC1
    ids = np.arange(1000, dtype=np.uint64)
    assert blocks.splitmix64(ids).tolist() == [blocks.splitmix64_of(i) for i in range(1000)]
    assert blocks.splitmix64([2**64 - 1]).tolist() == [blocks.splitmix64_of(2**64 - 1)]
    assert ids[:3].tolist() == [0, 1, 2], "the argument is not changed"


@given(st.integers(0, 300), SEEDS)
def test_keyed_permutation_is_one(count: int, key: int) -> None:
    found = blocks.keyed_permutation(count, key)
    assert sorted(found.tolist()) == list(range(count))
    marks = [blocks.splitmix64_of(i ^ key) for i in found.tolist()]
    assert marks == sorted(marks)


@given(st.integers(1, 400), st.integers(1, 500), SEEDS)
def test_random_ids_are_different_and_repeatable(total: int, count: int, seed: int) -> None:
    found = blocks.random_ids(total, count, seed).tolist()
    assert len(found) == len(set(found)) == min(total, count)
    assert all(0 <= each < total for each in found)
    assert found == blocks.random_ids(total, count, seed).tolist()


def test_fraction_reference_values() -> None:
    chosen = np.flatnonzero(fraction.row_in_fraction(np.arange(200), 1 / 64))
    assert chosen.tolist()[:4] == [120, 133, 186, 196]
    assert fraction.fraction_threshold(1.0) == 2**64
    assert fraction.fraction_threshold(0.3) == math.floor(0.3 * 2**64)


def test_one_row_is_asked_like_many() -> None:
    many = fraction.row_in_fraction(np.arange(200), 1 / 64)
    assert [bool(fraction.row_in_fraction(row, 1 / 64)) for row in range(200)] == many.tolist()


@given(st.floats(0, 1), st.floats(0, 1))
def test_fractions_are_nested(a: float, b: float) -> None:
    ids = np.arange(500)
    small, large = fraction.row_in_fraction(ids, min(a, b)), fraction.row_in_fraction(ids, max(a, b))
    assert not (small & ~large).any()


def test_one_row_or_many() -> None:
    found = [row for row in range(200) if fraction.row_in_fraction(row, 1 / 64)]
    assert found == [120, 133, 186, 196]
    assert fraction.row_in_fraction(np.uint64(120), 1 / 64) is True
    assert fraction.row_in_fraction((1 << 64) - 1, 1.0) is True
    assert fraction.row_in_fraction(0, 0.0) is False
    assert blocks.splitmix64(0).shape == ()
    assert int(blocks.splitmix64(0)) == 0xE220A8397B1DCDAF


def test_fraction_of_all_and_none() -> None:
    assert fraction.row_in_fraction(np.arange(50), 1.0).all()
    assert not fraction.row_in_fraction(np.arange(50), 0.0).any()
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="fraction out of range"):
            fraction.row_in_fraction([1], bad)


def test_cascade_schedule() -> None:
    cascade = fraction.Cascade.geometric(1 / 64, 4, passes_per_stage=2)
    assert cascade.fractions == (1 / 64, 1 / 16, 1 / 4, 1.0)
    assert [cascade.fraction_at(n) for n in (0, 1, 2, 5, 6, 99)] == [1 / 64, 1 / 64, 1 / 16, 1 / 4, 1.0, 1.0]
    for bad in ((), (0.5,), (0.5, 0.25, 1.0), (0.0, 1.0)):
        with pytest.raises(ValueError, match="cascade"):
            fraction.Cascade(bad)
    with pytest.raises(ValueError, match="counted from 0"):
        cascade.fraction_at(-1)


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-6), st.integers(0, 200)
)
def test_mixtures_keep_their_shares(weights: list[float], batches: int) -> None:
    schedule = mixture_schedule(weights, batches)
    counts = mixture.mixture_counts(weights, batches)
    assert sum(counts) == len(schedule) == batches
    for source, weight in enumerate(weights):
        exact = weight / sum(weights) * batches
        assert abs(counts[source] - exact) <= 1 + 1e-6
        assert abs(schedule.count(source) - exact) <= len(weights)


def test_mixture_reference() -> None:
    assert mixture_schedule([2, 1], 6) == [0, 1, 0, 0, 1, 0]
    with pytest.raises(ValueError, match="weights"):
        mixture_schedule([0, 0], 3)
