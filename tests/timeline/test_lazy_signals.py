"""LazySignals: names are read once, signals are opened on first use."""

from __future__ import annotations

import numpy as np
import pytest

from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.signal import Signal
from warpdata.timeline.source import LazySignals


def test_signals_are_opened_once_and_on_use() -> None:
    calls: list[str] = []

    def names() -> list[str]:
        calls.append("names")
        return ["b", "a"]

    def open_signal(name: str) -> Signal:
        calls.append(name)
        return ArraySignal(np.arange(2), np.arange(2.0))

    signals = LazySignals(names, open_signal)
    assert calls == []
    assert list(signals) == ["b", "a"]
    assert len(signals) == 2
    assert "a" in signals
    assert "c" not in signals
    assert calls == ["names"]
    assert signals["a"] is signals["a"]
    assert calls == ["names", "a"]
    with pytest.raises(KeyError, match="c"):
        _ = signals["c"]
