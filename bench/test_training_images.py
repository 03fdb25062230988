"""The comparison on camera images, shrunk: it runs, and every figure has its bar."""

from __future__ import annotations

import math
from pathlib import Path

from bench.versus import training_images as images

RATES = {"bare 224": 100.0, "ours 224": 90.0, "bare full": 200.0, "ours full": 100.0}


def test_the_loader_and_the_bare_decoder_give_every_frame(tmp_path: Path) -> None:
    rates = images.recorded(tmp_path, images.Sizes(episodes=2, steps=12, rounds=1))
    more = {
        f"{what} {size}"
        for size in ("224", "full")
        for what in ("CPU of bare / ours,", "first epoch of ours,")
    }
    assert set(rates) == {*RATES, *more}
    assert all(map(math.isfinite, rates.values()))


def test_every_figure_has_a_bar() -> None:
    memory = {"case": {"beside the batches (MB)": 300.0, "growth (MB)": 40.0}}
    results = {
        "recorded": RATES,
        "LeRobot": {**RATES, "LeRobot 0.6.1": 10.0},
        "mixture": {"mean": 100.0, "mixture": 95.0},
        "memory": memory,
    }
    bars = images.bars(results)
    assert len(bars) == 8
    assert [name for name, row in bars.items() if not row["holds"]] == [
        "LeRobot's AV1, two cameras, full size / bare decode + RGB",
        "three cameras: third epoch less first in MB",
    ]
    del results["LeRobot"]["LeRobot 0.6.1"]
    assert len(images.bars(results)) == 7
    assert len(images.listed(results)) == 10
