"""The pure order: exact cover, the same for every world, batch and resume point, and its frozen bits."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ordering.mixture_reference import mixture_schedule
from tests.sweeps import enough_examples
from warpdata.ordering import fraction, mixture, quality, splitmix, state
from warpdata.ordering.epoch import EpochOrder, cut_blocks, rank_slice
from warpdata.ordering.shape import ShuffleShape, choose_sections, default_block_rows, shuffle_shape

SHAPES = st.builds(
    ShuffleShape,
    shard_rows=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any).map(tuple),
    block_rows=st.integers(1, 20),
    sections=st.integers(1, 12),
    section_blocks=st.integers(1, 4),
)
SEEDS = st.integers(0, 2**64 - 1)


def test_splitmix_reference_values() -> None:
    assert splitmix.splitmix64_of(0) == 0xE220A8397B1DCDAF
    assert splitmix.splitmix64_of(1) == 0x910A2DEC89025CC1
    ids = np.arange(1000, dtype=np.uint64)
    assert splitmix.splitmix64(ids).tolist() == [splitmix.splitmix64_of(i) for i in range(1000)]
    assert splitmix.splitmix64([2**64 - 1]).tolist() == [splitmix.splitmix64_of(2**64 - 1)]
    assert ids[:3].tolist() == [0, 1, 2], "the argument is not changed"


@given(st.integers(0, 300), SEEDS)
def test_keyed_permutation_is_one(count: int, key: int) -> None:
    found = splitmix.keyed_permutation(count, key)
    assert sorted(found.tolist()) == list(range(count))
    marks = [splitmix.splitmix64_of(i ^ key) for i in found.tolist()]
    assert marks == sorted(marks)


@given(st.integers(1, 400), st.integers(1, 500), SEEDS)
def test_random_ids_are_different_and_repeatable(total: int, count: int, seed: int) -> None:
    found = splitmix.random_ids(total, count, seed).tolist()
    assert len(found) == len(set(found)) == min(total, count)
    assert all(0 <= each < total for each in found)
    assert found == splitmix.random_ids(total, count, seed).tolist()


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
    assert splitmix.splitmix64(0).shape == ()
    assert int(splitmix.splitmix64(0)) == 0xE220A8397B1DCDAF


def test_fraction_of_all_and_none() -> None:
    assert fraction.row_in_fraction(np.arange(50), 1.0).all()
    assert not fraction.row_in_fraction(np.arange(50), 0.0).any()
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
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


@settings(max_examples=enough_examples(75))
@given(SHAPES, SEEDS, st.integers(0, 5), st.integers(1, 50))
def test_every_row_exactly_once(shape: ShuffleShape, seed: int, epoch: int, batch: int) -> None:
    order = EpochOrder(shape, seed, epoch)
    total = shape.total_rows
    ids = [order.row_ids(p, min(p + batch, total)) for p in range(0, total, batch)]
    assert sorted(np.concatenate(ids).tolist()) == list(range(total))


@settings(max_examples=enough_examples(80))
@given(SHAPES, SEEDS, st.integers(1, 40), st.integers(1, 64))
def test_ranks_share_a_batch_without_overlap(shape: ShuffleShape, seed: int, batch: int, world: int) -> None:
    order = EpochOrder(shape, seed, 0)
    for start in range(0, shape.total_rows, batch):
        end = min(start + batch, shape.total_rows)
        whole = order.row_ids(start, end).tolist()
        parts = [order.row_ids(start, end, *rank_slice(end - start, r, world)).tolist() for r in range(world)]
        assert [each for part in parts for each in part] == whole
        if (end - start) % world == 0:
            assert {len(part) for part in parts} == {(end - start) // world}


@given(SHAPES, SEEDS, st.data())
def test_the_rows_of_a_span_do_not_depend_on_how_it_is_cut(
    shape: ShuffleShape, seed: int, data: st.DataObject
) -> None:
    """So a stream may be resumed with another batch size: positions, not batches, own the rows."""
    order = EpochOrder(shape, seed, 1)
    total = shape.total_rows
    start = data.draw(st.integers(0, total))
    end = data.draw(st.integers(start, total))
    middle = data.draw(st.integers(start, end))
    halves = [*order.row_ids(start, middle).tolist(), *order.row_ids(middle, end).tolist()]
    assert sorted(halves) == sorted(order.row_ids(start, end).tolist())


@given(SHAPES, SEEDS)
def test_windows_are_bounded_and_cut_between_blocks(shape: ShuffleShape, seed: int) -> None:
    order = EpochOrder(shape, seed, 0)
    for section in range(shape.sections):
        sizes = np.diff(order.window_bounds(section))
        assert (sizes <= shape.window_rows).all()
        assert sizes.sum() == order.section_position(section, shape.total_rows)


def test_blocks_never_cross_a_shard() -> None:
    first, rows = cut_blocks(ShuffleShape((10, 0, 7), 4, 1, 1))
    assert first.tolist() == [0, 4, 8, 10, 14]
    assert rows.tolist() == [4, 4, 2, 4, 3]


def test_the_order_is_frozen() -> None:
    """These bits are a contract: a state taken with one release must mean the same in the next."""
    shape = shuffle_shape([1000, 337, 0, 663], batch_size=48, block_rows=16, window_blocks=32, sections=None)
    assert (shape.sections, shape.section_blocks, shape.fingerprint()) == (24, 1, FROZEN_PLAN)
    ids = np.concatenate([EpochOrder(shape, 7, 3).row_ids(p, min(p + 48, 2000)) for p in range(0, 2000, 48)])
    assert hashlib.sha256(ids.astype("<u8").tobytes()).hexdigest()[:16] == FROZEN_ORDER
    assert ids[:6].tolist() == FROZEN_FIRST


FROZEN_PLAN = "5fInF2bD"
FROZEN_ORDER = "73ca29c55c1e3593"
FROZEN_FIRST = [181, 186, 1284, 1280, 575, 200]


def test_seed_and_epoch_change_everything() -> None:
    shape = ShuffleShape((500,), 10, 4, 2)
    orders = [EpochOrder(shape, s, e).row_ids(0, 500).tolist() for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for index, one in enumerate(orders):
        for other in orders[index + 1 :]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 50


def test_shape_choices() -> None:
    assert choose_sections(4096, 64) == 32
    assert choose_sections(1000, 64) == 25
    assert choose_sections(7, 64) == 7
    assert choose_sections(4099, 64) == 1
    assert default_block_rows(2304 * 4) == 113
    assert default_block_rows(0) == 1 << 20
    with pytest.raises(ValueError, match="at least"):
        ShuffleShape((1,), 0, 1, 1)
    with pytest.raises(ValueError, match="at least"):
        shuffle_shape([1], batch_size=0, block_rows=1, window_blocks=1, sections=None)
    prints = {ShuffleShape((5, 5), b, n, w).fingerprint() for b in (1, 2) for n in (1, 2) for w in (1, 2)}
    assert len(prints) == 8


def test_quality_grows_with_the_window_up_to_uniform() -> None:
    def score(blocks: int) -> float:
        shape = shuffle_shape([20_000], batch_size=64, block_rows=50, window_blocks=blocks, sections=None)
        return quality.measure_quality(EpochOrder(shape, 0, 0), 64).score

    scores = [score(blocks) for blocks in (1, 8, 64, 400)]
    assert scores == sorted(scores)
    assert scores[0] < 0.1
    assert 0.9 < scores[-1] < 1.1


@given(SEEDS, st.integers(0, state.MAX_EPOCH), st.integers(0, state.MAX_POSITION))
def test_a_state_is_under_100_bytes(seed: int, epoch: int, position: int) -> None:
    taken = state.OrderState(seed, epoch, position, "123456")
    packed = json.dumps(taken.to_dict())
    assert len(packed) < 100
    assert state.parse_state(json.loads(packed), "123456") == taken


@example(state.MAX_SEED, state.MAX_EPOCH, state.MAX_POSITION)
@given(SEEDS, st.integers(0, state.MAX_EPOCH), st.integers(0, state.MAX_POSITION))
def test_a_state_of_any_integers_is_one_of_plain_ones(seed: int, epoch: int, position: int) -> None:
    taken = state.OrderState(np.uint64(seed), np.int64(epoch), np.int64(position), "123456")  # type: ignore[arg-type]
    assert taken == state.OrderState(seed, epoch, position, "123456")
    assert len(json.dumps(taken.to_dict())) < 100


def test_a_state_of_an_earlier_release_is_read() -> None:
    """They hold eight characters of the plan."""
    old = {"v": 1, "seed": 3, "epoch": 1, "position": 64, "plan": "ab-_efgh"}
    assert state.parse_state(old, "ab-_ef") == state.OrderState(3, 1, 64, "ab-_ef")
    with pytest.raises(ValueError, match="another corpus"):
        state.parse_state({**old, "plan": "ab-_eXgh"}, "ab-_ef")


def test_foreign_states_are_refused() -> None:
    good = state.OrderState(1, 2, 3, "plan").to_dict()
    for bad in (
        {**good, "v": 2},
        {},
        {**good, "plan": "other"},
        {**good, "seed": -1},
        {**good, "position": "3"},
    ):
        with pytest.raises(ValueError, match=r"state|seed|position"):
            state.parse_state(bad, "plan")
    with pytest.raises(ValueError, match="lacks position"):
        state.parse_state({key: good[key] for key in good if key != "position"}, "plan")


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
