"""Every exported set gives back the times of its steps, and a receipt is exact only where it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.convert.sets import on_steps
from warpdata.convert.aligning import grid_times
from warpdata.convert.formats import format_module
from warpdata.episodes.collection.episodes import Episodes
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import STEPS, StepClock

TARGETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lerobot": ("lerobot", "out", {}),
    "lerobot-v2.1": ("lerobot", "out", {"version": "v2.1"}),
    "rlds": ("rlds", "out", {}),
    "hdf5": ("hdf5", "out.hdf5", {}),
    "zarr": ("zarr", "out.zarr", {}),
    "zarr-zip": ("zarr", "out.zarr.zip", {}),
    "minari": ("minari", "out", {}),
    "minari-parquet": ("minari", "out", {"data_format": "parquet"}),
    "dreamer": ("dreamer", "out", {}),
    "webdataset": ("webdataset", "out", {}),
    "webdataset-steps": ("webdataset", "out", {"per": "step"}),
    "mcap": ("mcap", "out", {}),
}
START = 1_763_000_000_123_456_789
UNEVEN = np.cumsum([START, *([20_000_000, 35_000_000, 5_000_001] * 4)]).astype(np.int64)


def episode(number: int, times: NDArray[np.int64], *, has_final: bool = False) -> Episode:
    """Actions and rewards at these times; with `has_final` the last time is that of an observation alone."""
    acted = times[:-1] if has_final else times
    rng = np.random.default_rng(number)
    state = rng.normal(size=(len(times), 3)).astype(np.float32)
    meta = SignalMeta(state.dtype, (3,), "vector", role="observation", clock=None if has_final else STEPS)
    signals: dict[str, Any] = {
        "observation.state": ArraySignal(times, state, meta),
        "action": on_steps(acted, rng.normal(size=(len(acted), 2)).astype(np.float32), "action"),
        "next.reward": on_steps(acted, rng.normal(size=len(acted)).astype(np.float32), "reward"),
        "next.done": on_steps(acted, np.arange(len(acted)) == len(acted) - 1, "terminated"),
    }
    static = {"task": "stack", "seed": 7 + number, "success": number % 2 == 0}
    return Episode.of(signals, static, id=f"{number:012d}", steps=StepClock(STEPS))


def round_trip(target: str, tmp_path: Path, episodes: Episodes, **options: Any) -> tuple[Any, Episodes]:
    name, file, more = TARGETS[target]
    module = format_module(name)
    tmp_path.mkdir(exist_ok=True)
    receipt = module.write(episodes, tmp_path / file, **more, **options)
    return receipt, module.read(tmp_path / file)


def assert_same_times(source: Episodes, again: Episodes) -> None:
    assert len(source) == len(again)
    for first, second in zip(source, again, strict=True):
        wanted = first.steps.times_ns
        times = next(signal for signal in second.signals.values() if signal.meta.role == "action").timestamps
        assert np.abs(times[: len(wanted)] - wanted).max() <= 1000
        assert len(times) - len(wanted) in (0, 1)


CASES: dict[str, Callable[[], list[Episode]]] = {
    "50 Hz": lambda: [episode(0, grid_times(12, 50)), episode(1, grid_times(9, 50))],
    "29.97 Hz by the clock": lambda: [episode(0, grid_times(12, 29.97, START))],
    "an observation at the end": lambda: [episode(0, grid_times(13, 50, START), has_final=True)],
    "one step": lambda: [episode(0, grid_times(12, 50, START)), episode(1, grid_times(1, 50, 5 + START))],
}
UNEVEN_CASES: dict[str, Callable[[], list[Episode]]] = {
    "uneven": lambda: [episode(0, UNEVEN)],
    "uneven with an observation at the end": lambda: [episode(0, UNEVEN, has_final=True)],
    "two rates": lambda: [episode(0, grid_times(12, 50)), episode(1, grid_times(12, 20, START))],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_times_survive_an_export(target: str, case: str, tmp_path: Path) -> None:
    source = Episodes.of(CASES[case]())
    _, again = round_trip(target, tmp_path, source)
    assert_same_times(source, again)


@pytest.mark.parametrize("case", UNEVEN_CASES)
@pytest.mark.parametrize("target", [name for name in TARGETS if not name.startswith("lerobot")])
def test_uneven_times_survive_an_export(target: str, case: str, tmp_path: Path) -> None:
    source = Episodes.of(UNEVEN_CASES[case]())
    _, again = round_trip(target, tmp_path, source)
    assert_same_times(source, again)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "mcap"])
def test_every_stepped_export_takes_a_rate(target: str, tmp_path: Path) -> None:
    source = Episodes.of([episode(0, grid_times(20, 50, START)), episode(1, UNEVEN)])
    receipt, again = round_trip(target, tmp_path, source, rate=10)
    assert receipt.supplied["rate"] == 10
    assert not receipt.is_exact
    for first, second in zip(source, again, strict=True):
        times = second.steps.times_ns
        assert times[0] == first.steps.times_ns[0]
        assert np.all(np.diff(times) == 100_000_000)


@pytest.mark.parametrize("target", TARGETS)
def test_static_items_survive_an_export(target: str, tmp_path: Path) -> None:
    source = Episodes.of(CASES["50 Hz"]())
    _, again = round_trip(target, tmp_path, source)
    for first, second in zip(source, again, strict=True):
        assert {name: second.static.get(name) for name in first.static} == dict(first.static)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "mcap"])
def test_an_assumed_rate_stays_assumed(target: str, tmp_path: Path) -> None:
    round_trip("zarr", tmp_path / "first", Episodes.of([episode(0, grid_times(5, 10))]))
    (tmp_path / "first" / "out.zarr" / "warpdata.json").unlink()
    unknown = format_module("zarr").read(tmp_path / "first" / "out.zarr")
    assert unknown[0].meta["fps_from"] == "assumed"
    receipt, again = round_trip(target, tmp_path, unknown)
    assert any("rate" in note for note in receipt.notes)
    assert np.array_equal(again[0].steps.times_ns[:5], unknown[0].steps.times_ns)
    assert "lerobot" in target or again[0].meta["fps_from"] == "assumed"
