from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.signal import SignalContract
from warpdata.errors import SchemaMismatchError, TimestampOrderError
from warpdata.timeline.memory import ArraySignal, JoinedSignal
from warpdata.timeline.signal import Signal

STAMPS = [1000, 1500, 1501, 3000, 3700, 5000, 5005, 8000, 9000, 9100, 12000, 15000, 15001, 20000]
Made = tuple[Signal, list[int], Any]


def vectors(dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.arange(len(STAMPS) * 3).reshape(-1, 3).astype(dtype)


class TestVector(SignalContract):
    def make(self, folder: Path) -> Made:
        return ArraySignal(STAMPS, vectors()), STAMPS, vectors()


class TestScalar(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.linspace(0, 1, len(STAMPS))
        return ArraySignal(np.array(STAMPS), values), STAMPS, values


class TestTensor(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.arange(len(STAMPS) * 24, dtype=np.int16).reshape(-1, 2, 3, 4)
        return ArraySignal(STAMPS, values), STAMPS, values


class TestText(SignalContract):
    def make(self, folder: Path) -> Made:
        values = np.array([f"event {i}" for i in range(len(STAMPS))], object)
        return ArraySignal(STAMPS, values), STAMPS, values


class TestJoined(SignalContract):
    def make(self, folder: Path) -> Made:
        whole = ArraySignal(STAMPS, vectors())
        return JoinedSignal([whole[:4], whole[4:5], whole[5:5], whole[5:]]), STAMPS, vectors()


class TestWindow(SignalContract):
    def make(self, folder: Path) -> Made:
        stamps = [0, 5, *STAMPS, 30000]
        values = np.concatenate([np.zeros((2, 3), "f4"), vectors(), np.ones((1, 3), "f4")])
        return ArraySignal(stamps, values).time[1000:25000], STAMPS, vectors()


class TestStrided(SignalContract):
    def make(self, folder: Path) -> Made:
        stamps = sorted([*STAMPS, *(s + 1 if s not in (1500, 15000) else s - 1 for s in STAMPS)])
        keep = [stamps.index(s) for s in STAMPS]
        values = np.zeros((len(stamps), 3), "f4")
        values[keep] = vectors()
        return ArraySignal(stamps, values)[keep], STAMPS, vectors()


class TestSampled(SignalContract):
    def make(self, folder: Path) -> Made:
        signal = ArraySignal([900, 4000, 9000], np.array([1.0, 2.0, 3.0]))
        values = np.array([1.0 if t < 4000 else 2.0 if t < 9000 else 3.0 for t in STAMPS])
        return signal.time[STAMPS], STAMPS, values


def test_times_of_arrays_must_increase() -> None:
    with pytest.raises(TimestampOrderError, match="is not increasing"):
        ArraySignal([1, 2, 2], [0, 0, 0])
    with pytest.raises(ValueError):
        ArraySignal([1, 2], [0, 0, 0])
    with pytest.raises(TypeError):
        ArraySignal([1.0, 2.0], [0, 0])


def test_joining_checks_time_and_kind() -> None:
    signal = ArraySignal(STAMPS, vectors())
    with pytest.raises(TimestampOrderError):
        JoinedSignal([signal[5:], signal[:5]])
    with pytest.raises(SchemaMismatchError):
        JoinedSignal([signal[:5], ArraySignal(STAMPS, vectors("f8"))[5:]])


def test_windows_are_not_copied() -> None:
    values = vectors()
    signal = ArraySignal(STAMPS, values)
    assert np.shares_memory(signal.time[1500:9000].values(), values)
    assert np.shares_memory(signal[2:9][1:3].values(), values)
    assert np.shares_memory(signal.time[1500:9000].timestamps, signal.timestamps)
    joined = JoinedSignal([signal[:7], signal[7:]])
    assert np.shares_memory(joined[2:6].values(), values)
