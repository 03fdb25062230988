"""`kill -9` at 100 random moments, in a soak at 1,000: every acknowledged step comes back, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.episodes.nursery import run_small
from tests.sweeps import SOAK

BATCHES, PER_BATCH = 20 if SOAK else 2, 50


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_acknowledged_is_lost(tmp_path: Path, batch: int) -> None:
    totals = run_small("tests.episodes.killing", tmp_path, PER_BATCH, batch)
    assert totals["kills"] == PER_BATCH
    assert totals["salvaged"] >= totals["acknowledged"] > 0
    assert totals["before_first_step"] < PER_BATCH // 2, "the kills must hit recordings, not their start"
    assert totals["while_finishing"] < PER_BATCH // 2, "nor only their end"
