"""The page about scale shows what the model gives, and the model is what it says it is."""

from __future__ import annotations

import math

import pytest
from bench.scale_model import PAGE, hits, levels, page_with, report, tables, tree, waiting


def test_the_page_shows_what_the_model_gives() -> None:
    text = PAGE.read_text()
    assert page_with(text, tables(report())) == text, "run `python -m bench.scale_model --write`"


def test_the_queue_is_the_one_of_the_textbook() -> None:
    """Arrivals at random, turns of one length: load * turn / 2 / (1 - load)."""
    for load in (0.3, 0.6):
        expected = load * 1.0 / 2 / (1 - load)
        assert waiting(2000, 2000 / load, 1.0) == pytest.approx(expected, rel=0.15)


def test_caches_hold_what_they_can() -> None:
    assert hits(4, 200, 5, 1000, at_home=True) == 1.0
    assert hits(4, 200, 5, 100, at_home=True) > 2 * hits(4, 200, 5, 100, at_home=False)


def test_half_of_what_comes_in_random_order_is_a_seventh_of_the_hits() -> None:
    """Of one window each, in a new order every epoch: 1 - (1 - c)(1 - ln(1 - c)) is found in the most recent c."""
    expected = 1 - 0.5 * (1 - math.log(0.5))
    assert hits(1, 3000, 1, 1500, at_home=True) == pytest.approx(expected, abs=0.02)


def test_trees_of_the_model_are_those_of_the_code() -> None:
    shape = tree(3000)
    assert 60 < shape.entries_per_part < 250
    assert 90 < shape.entry_bytes < 150
    assert shape.changed_parts <= 4
    assert levels(100_000, 128) == 3
