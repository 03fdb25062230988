"""The statistics of LeRobot sets: per feature min, max, mean, std, count and quantiles, from the data itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.statistics import ValueStatistics

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_EXACT_BYTES = 64 << 20
"""Quantiles of a feature are exact up to this much data, within 2 % of the value beyond."""


def row_statistics(values: NDArray[Any], *, quantiles: bool) -> dict[str, Any]:
    """The statistics of the rows of an episode, as lists."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    shape = values.shape[1:] or (1,)
    found: dict[str, Any] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        for name in ("min", "max", "mean", "std"):
            found[name] = getattr(flat, name)(axis=0).reshape(shape).tolist()
        found["count"] = [len(values)]
        if quantiles:
            for name, value in zip(
                QUANTILES, np.quantile(flat, list(QUANTILES.values()), axis=0), strict=True
            ):
                found[name] = value.reshape(shape).tolist()
    return found


_SIDE, _LARGE = 150, 300
"""Frames with a side of at least `_LARGE` are thinned to about `_SIDE`, as LeRobot does."""


class FrameCounts:
    """How often every level occurs in sampled frames, by channel: all statistics of them are exact, and so are sums."""

    def __init__(self, counts: NDArray[np.int64], frames: int) -> None:
        self._counts = counts
        self._frames = frames

    @classmethod
    def of(cls, frames: NDArray[Any]) -> FrameCounts:
        """Of frames (HWC or HW) of uint8 or uint16; of large ones, only some rows and columns are counted."""
        height, width = frames.shape[1:3]
        side = max(height, width)
        step = side // _SIDE if side >= _LARGE else 1
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3] if frames.ndim == 4 else 1)
        levels = int(np.iinfo(frames.dtype).max) + 1
        counts = [
            np.bincount(pixels[:, channel], minlength=levels).astype(np.int64)
            for channel in range(pixels.shape[1])
        ]
        return cls(np.stack(counts), len(frames))

    def __add__(self, other: FrameCounts) -> FrameCounts:
        return FrameCounts(self._counts + other._counts, self._frames + other._frames)

    def statistics(self, *, quantiles: bool) -> dict[str, Any]:
        """The statistics as LeRobot states them: of uint8 scaled to 0..1, shaped [channel][1][1]."""
        levels = self._counts.shape[1]
        values = np.arange(levels) / (255.0 if levels == 256 else 1.0)
        ranks = np.cumsum(self._counts, axis=1)
        total = int(ranks[0, -1])
        mean = self._counts @ values / total
        spread = self._counts @ values**2 / total - mean**2
        columns = {"min": self._at(values, ranks, 0), "max": self._at(values, ranks, total - 1), "mean": mean}
        columns["std"] = np.sqrt(np.maximum(spread, 0.0))
        for name, share in QUANTILES.items() if quantiles else ():
            place = share * (total - 1)
            low, high = (self._at(values, ranks, int(f(place))) for f in (np.floor, np.ceil))
            columns[name] = low + (high - low) * (place - np.floor(place))
        lists = {name: [[[float(each)]] for each in column] for name, column in columns.items()}
        return {**lists, "count": [self._frames]}

    @staticmethod
    def _at(values: NDArray[Any], ranks: NDArray[np.int64], place: int) -> NDArray[Any]:
        """The value at a place among the sorted ones of each channel."""
        return values[[int(np.searchsorted(each, place, side="right")) for each in ranks]]


class SetStatistics:
    """The statistics of one feature over all episodes."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []
        self._bytes = 0
        self._running: ValueStatistics | None = None
        self._shape: tuple[int, ...] = (1,)
        self._parts: list[Mapping[str, Any]] = []
        self._counts: FrameCounts | None = None
        self._counted = 0

    def add_rows(self, values: NDArray[Any]) -> None:
        """The rows of one more episode."""
        self._shape = values.shape[1:] or (1,)
        if self._running is None and self._bytes + values.nbytes <= _EXACT_BYTES:
            self._kept.append(np.array(values))
            self._bytes += values.nbytes
            return
        if self._running is None:
            self._running = ValueStatistics(self._shape)
            for each in self._kept:
                self._running.add(each)
            self._kept = []
        self._running.add(values)

    def add_part(self, stats: Mapping[str, Any], counts: FrameCounts | None = None) -> None:
        """What is known of one more episode; `counts` where its frames were looked at."""
        self._parts.append(stats)
        if counts is not None:
            self._counts = counts if self._counts is None else self._counts + counts
            self._counted += 1

    def statistics(self) -> dict[str, Any] | None:
        """The statistics, or None where there was nothing."""
        if self._kept:
            return row_statistics(np.concatenate(self._kept), quantiles=True)
        if self._running is not None:
            return self._from_running(self._running)
        if self._counts is not None and self._counted == len(self._parts):
            return self._counts.statistics(quantiles=True)
        return _merged(self._parts) if self._parts else None

    def _from_running(self, running: ValueStatistics) -> dict[str, Any]:
        size = int(np.prod(self._shape))
        std = np.sqrt(running.m2 / np.maximum(running.count, 1))
        columns = {"min": running.low, "max": running.high, "mean": running.mean, "std": std}
        quantiles = running.sketch.quantiles(list(QUANTILES.values()))
        columns |= dict(zip(QUANTILES, quantiles, strict=True))
        found: dict[str, Any] = {
            name: np.broadcast_to(value, size).reshape(self._shape).tolist()
            for name, value in columns.items()
        }
        return {**found, "count": [int(running.count.max())]}


def _merged(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Several statistics of sampled frames as one; quantiles are averaged, as nothing better is known of them."""
    counts = np.array([float(part["count"][0]) for part in parts])
    weights = (counts / counts.sum()).reshape(-1, *(1,) * np.ndim(parts[0]["mean"]))
    column = {
        name: np.array([part[name] for part in parts], np.float64) for name in ("min", "max", "mean", "std")
    }
    mean = (column["mean"] * weights).sum(axis=0)
    spread = ((column["std"] ** 2 + (column["mean"] - mean) ** 2) * weights).sum(axis=0)
    found: dict[str, Any] = {
        "min": column["min"].min(axis=0).tolist(),
        "max": column["max"].max(axis=0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(spread).tolist(),
        "count": [int(counts.sum())],
    }
    for name in QUANTILES:
        if all(name in part for part in parts):
            found[name] = (
                (np.array([part[name] for part in parts], np.float64) * weights).sum(axis=0).tolist()
            )
    return found
